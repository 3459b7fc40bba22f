"""All rows of a loader: passes over its batches, for sums over the data that do not fit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ppl_ext.batches.batch import Batch, as_batch, check_form, check_placed
from ppl_ext.batches.order import Order
from ppl_ext.batches.prefetch import prefetched
from ppl_ext.batches.stream import check_no_arguments
from ppl_ext.errors import ArgumentError, ModelCheckError

#: What makes an array of a loader one of a package's.
Place: TypeAlias = Callable[[Any], Any]
#: Bytes of a sample at most, where a batch is not larger.
MOST_BYTES = 2**26


@dataclass(frozen=True)
class Sample:
    """The first batches of a loader as one.

    Attributes
    ----------
    batch : Batch
    is_all : bool
        Whether the loader has no other rows.
    seconds : float
        That reading a row takes.
    """

    batch: Batch
    is_all: bool
    seconds: float

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """Context in which a model is met with these rows, which may be more than its plate has.

        Raises
        ------
        ModelCheckError
            The model cannot be fitted.
        """
        try:
            yield
        except ModelCheckError as error:
            if self.is_all or "subsample_size" not in str(error):
                raise
            raise ModelCheckError(
                "Expected a loader that ends after all rows of the model's plate, found one that "
                f"has given {self.batch.rows} rows and goes on. Give one pass over the data, such "
                f"as a DataLoader, or the plate the number of rows. The model says: {error}"
            ) from error

    def in_parts(self, number: int) -> list[Batch]:
        """The sample in parts of one size; rows that are left over are in none."""
        size = max(1, self.batch.rows // number)
        return [self.batch.part(k * size, (k + 1) * size) for k in range(number)]


class Passes:
    """Passes over a loader, as many as are asked for; each gives every row once.

    Parameters
    ----------
    loader : iterable
        Gives tuples of the model's arguments, or mappings from their names. Its order does not
        matter.

    Raises
    ------
    ArgumentError
        It can be iterated over once only.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.order = Order(loader)
        if self.order.one_pass:
            raise ArgumentError(
                "Expected batches that can be passed over again and again, found "
                f"{type(loader).__name__}, which ends after one pass. Pass a DataLoader, a list or "
                "an object whose __iter__ begins anew."
            )
        self._raw: Batch | None = None
        self._seen: Batch | None = None
        # Marks of the rows of the first two whole passes.
        self._marks: list[int] = []

    @property
    def loader(self) -> Iterable[Any]:
        """What is passed over."""
        return self.order.loader

    def first(self, place: Place) -> Batch:
        """The first batch, by which the model is met; it is read once.

        Raises
        ------
        ArgumentError
            There is none.
        """
        if self._raw is None:
            for given in self.order.begin(0):
                self._raw = as_batch(given)
                break
            else:
                raise self._empty()
            placed = self._raw.map(place)
            check_placed(self._raw, placed)
            return placed
        return self._raw.map(place)

    def seen(self, place: Place) -> Batch:
        """The first batch, in the same arrays whenever it is asked for."""
        if self._seen is None:
            self._seen = self.first(place)
        return self._seen

    def sample(
        self, place: Place, rows: int, clock: Callable[[], float] = time.perf_counter
    ) -> Sample:
        """The first batches, of so many rows together or a few more, and of 64 MiB at most.

        Raises
        ------
        ArgumentError
            There is none, or batches differ in form.
        """
        began, kept, number, size, mark = clock(), list[Batch](), 0, 0, 0
        iterator = self.order.begin(0)
        for given in iterator:
            raw = as_batch(given)
            batch, mark = raw.map(place), mark + raw.mark()
            if kept:
                check_form(batch, kept[0].form(), len(kept), 0)
            else:
                check_placed(raw, batch)
                # Here ``_raw`` is placed already: placing once more copies, and changes nothing.
                self._raw, first = batch, clock()
            kept.append(batch)
            number, size = number + batch.rows, size + batch.nbytes
            # It stops before the batch that would go beyond the bytes, if batches are alike.
            if number >= rows or size + batch.nbytes > MOST_BYTES:
                break
        else:
            if not kept:
                raise self._empty()
        # The first batch of a loader may wait for its processes to start.
        last, after = clock(), number - kept[0].rows
        seconds = (last - first) / after if after else (first - began) / number
        sample = Sample(joined(kept), next(iterator, None) is None, seconds)
        if sample.is_all:
            # They may be read no more, so that nobody would see what another pass gives.
            self._look(mark)
            self._look(sum(batch.mark() for batch in self._again(number)))
        return sample

    def _again(self, rows: int) -> Iterator[Batch]:
        """The batches of another pass, and no more once they are more than so many rows."""
        found = 0
        for given in self.order.begin(0):
            batch = as_batch(given)
            found += batch.rows
            yield batch
            if found > rows:
                return

    def _look(self, mark: int) -> None:
        """Hold the rows of a whole pass against those of the first.

        Raises
        ------
        ArgumentError
            They are others.
        """
        # A sum over rows, in which their order does not count.
        # The first pass stays to be compared with, and only the second is: later passes save the
        # hashing.
        self._marks = [*self._marks[:1], mark % 2**64]
        if len(set(self._marks)) > 1:
            raise ArgumentError(
                "Expected a loader that gives the same rows on each pass, in any order, found "
                "others on the second: rows that are changed at random or drawn with replacement "
                "have no one posterior. Give fixed rows, such as list(loader), or run an engine, "
                "which takes each batch as it comes: run(..., batches=loader)."
            )

    @staticmethod
    def _empty() -> ArgumentError:
        return ArgumentError(
            "Expected batches that hold all rows of the data, found that the loader gives none."
        )

    def batches(self, place: Place, size: int | None) -> Generator[Batch, None, None]:
        """One pass, read ahead by a thread; ``size`` are the rows that it has to give in all.

        Raises
        ------
        ArgumentError
            Batches differ in form, or it gives more rows, or fewer.
        """
        form = self.first(place).form()
        rows, mark, is_looked_at = 0, 0, len(self._marks) > 1

        def placed() -> Generator[tuple[Batch, int], None, None]:
            for given in self.order.begin(0):
                raw = as_batch(given)
                yield raw.map(place), 0 if is_looked_at else raw.mark()

        # As in a stream, processes of a DataLoader must not be forked by a thread.
        items = placed() if self.order.has_processes else prefetched(placed())
        try:
            for number, (batch, of_batch) in enumerate(items):
                check_form(batch, form, number, 0)
                rows += batch.rows
                mark += of_batch
                if size is not None and rows > size:
                    self._refuse(size, f"more than {size}")
                yield batch
        finally:
            items.close()
        if size is not None and rows != size:
            self._refuse(size, str(rows))
        if not is_looked_at:
            self._look(mark)

    @staticmethod
    def _refuse(size: int, found: str) -> None:
        raise ArgumentError(
            f"Expected a loader that gives each of the {size} rows of the model's plate once a "
            f"pass, found {found} rows. Keep the last batch (drop_last=False), and give the plate "
            "the number of rows of the data."
        )

    def of_equal_size(self, place: Place, size: int, rows: int) -> Iterator[Batch]:
        """One pass of ``size`` rows in batches of ``rows``, and one of those that are left."""
        kept: list[Batch] = []
        number = 0
        for batch in self.batches(place, size):
            kept.append(batch)
            number += batch.rows
            while number >= rows:
                whole = joined(kept)
                yield whole if number == rows else whole.part(0, rows)
                number -= rows
                kept = [whole.part(rows, rows + number)] if number else []
        if number:
            yield joined(kept)


def passes_of(batches: Iterable[Any] | None, args: tuple[Any, ...]) -> Passes | None:
    """Passes over a loader, if there is one.

    Raises
    ------
    ArgumentError
        There are positional arguments besides, or the loader ends after one pass.
    """
    if batches is None:
        return None
    check_no_arguments(args)
    return Passes(batches)


def rows_of_loader(
    batches: Iterable[Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    place: Place,
) -> tuple[tuple[Any, ...] | None, Mapping[str, Any] | None, Passes | None]:
    """Arguments by which a model is met, and passes over a loader with all rows, if there is one.

    Raises
    ------
    ArgumentError
        There are positional arguments besides, or the loader ends after one pass.
    """
    passes = passes_of(batches, () if args is None else args)
    if passes is None:
        return args, kwargs, None
    first = passes.first(place)
    return first.args, {**(kwargs or {}), **first.kwargs}, passes


def check_not_shared(loader: Any, passes: Any) -> None:
    """See that a run's loader is not passed over by its estimator where that would disturb it.

    Raises
    ------
    ArgumentError
        It is.
    """
    if isinstance(passes, Passes) and passes.loader is loader and passes.order.is_shared:
        raise ArgumentError(
            "Expected full_data to be another loader than batches, found the same: its order "
            "has a state or a generator, or it keeps its workers, so that a pass over all rows "
            "would put the run elsewhere. Make a second loader of the same data, such as "
            "DataLoader(dataset, batch_size=4096)."
        )


def total_rows(plates: Mapping[str, Any], rows: int) -> int | None:
    """Rows of all data, by the plates that a batch of ``rows`` is part of; None where it is all.

    Raises
    ------
    ArgumentError
        The plates have several sizes.
    """
    own = {each.size for each in plates.values() if each.subsample_size == rows}
    sizes = own or {each.size for each in plates.values()}
    if len(sizes) > 1:
        raise ArgumentError(
            "Expected one plate that counts the rows of a batch, found plates "
            f"{ {name: each.size for name, each in plates.items()} }. Pass the arrays of all rows."
        )
    return sizes.pop() if sizes else None


def joined(batches: list[Batch]) -> Batch:
    """Batches as one, their rows in order."""
    if len(batches) == 1:
        return batches[0]
    # ``map`` visits leaves in the order of ``leaves``, so that the iterators give the same array of
    # each batch.
    leaves = [iter([leaf for _, leaf in each.leaves()]) for each in batches]

    def joined(leaf: Any) -> Any:
        parts = [next(each) for each in leaves]
        return _concatenated(parts) if len(leaf.shape) else leaf

    return batches[0].map(joined)


def _concatenated(parts: list[Any]) -> Any:
    # Where there are tensors, torch is there.
    if type(parts[0]).__module__.startswith("torch"):
        return sys.modules["torch"].cat(parts)
    return np.concatenate(parts)
