"""The batches of a run, one a step: read ahead, counted in epochs and rows, and found again."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from ppl_ext.batches.batch import Batch, as_batch, check_form
from ppl_ext.batches.codec import decoded, encoded
from ppl_ext.batches.order import Order
from ppl_ext.batches.prefetch import prefetched
from ppl_ext.errors import ArgumentError, BatchWarning, ResumeWarning

#: Batches that a warning names at most.
_NAMED = 5


class _Item(NamedTuple):
    """A batch with the place after it: batches and rows of the epoch so far, and the state there.

    ``whole`` are the rows of the epoch before, where this is the first batch of the next.
    """

    batch: Batch
    epoch: int
    number: int
    rows: int
    state: Any
    whole: int | None


def place_of(saved: str) -> dict[str, Any]:
    """What a saved text says of the place in a loader.

    Raises
    ------
    ValueError
        The text is not one of :meth:`Stream.saved`.
    """
    found = json.loads(saved)
    counts = ("epoch", "batch", "rows", "size")
    if not isinstance(found, dict) or found.keys() != {*counts, "digest", "state"}:
        raise ValueError(f"its place in the batches is {saved[:100]!r}")
    return {**found, **{name: int(found[name]) for name in counts}}


class Stream:
    """The batches of a run: a context, in which a thread reads ahead.

    Parameters
    ----------
    loader : iterable
        Gives tuples of the model's arguments, or mappings from their names.
    place : callable
        Makes an array that a loader gives one of the package's, on its device. It copies, since a
        loader may use its memory again.
    saved : str, optional
        The place after the last batch of an earlier run, as :meth:`saved` says it.

    Raises
    ------
    ArgumentError
        It cannot be iterated over. On entering: there is no batch, or it is not one.

    Warns
    -----
    ResumeWarning
        The run cannot go on where the earlier one was; it says why, and begins a new epoch.
    """

    def __init__(
        self, loader: Iterable[Any], place: Callable[[Any], Any], saved: str | None = None
    ) -> None:
        self.order = Order(loader)
        self._place = place
        self._saved = saved
        self._sizes: list[int] = []
        self._form: dict[str, str] = {}
        self._plates: list[int] = []
        self._items: Generator[_Item, None, None] | None = None
        self._next: _Item | None = None
        self._latest: _Item | None = None
        self._skipped: list[tuple[int, int]] = []

    # -- reading -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        start = self._resumed()
        items = self._read(*start)
        # Processes of a DataLoader read ahead by themselves. They must not be forked by a thread
        # while another one computes, whose locks they would hold for ever.
        forks = bool(getattr(self.order.loader, "num_workers", 0))
        self._items = items if forks else prefetched(items)
        try:
            item = next(self._items)
            encoded(item.state)  # what cannot be saved is told before there is anything to lose
        except BaseException:
            self._items.close()
            raise
        self._next, self._form = item, item.batch.form()
        return self

    def __exit__(self, *error: object) -> None:
        if self._items is not None:
            self._items.close()
        self._items = None
        if self._skipped and not any(error):
            named = [f"{number} of epoch {epoch}" for epoch, number in self._skipped[:_NAMED]]
            more = len(self._skipped) - len(named)
            tail = f" and {more} others" if more else ""
            warnings.warn(
                f"The steps of {len(self._skipped)} batches were not finite and were skipped: "
                f"batch {', '.join(named)}{tail}. Look for NaN in their rows, or lower the "
                "learning rate.",
                BatchWarning,
                stacklevel=3,
            )

    def _resumed(self) -> tuple[Iterator[Any], int, int, int]:
        """The batches from the place on where the earlier run was, and that place."""
        order = self.order
        if self._saved is None:
            return order.begin(0), 0, 0, 0
        found = place_of(self._saved)
        epoch, number, rows = found["epoch"], found["batch"], found["rows"]
        self._sizes = [found["size"]]
        state = decoded(found["state"])
        reason = order.unknown
        if order.one_pass and not (state and hasattr(order.loader, "set_state")):
            reason = "it can be iterated over once only, and cannot be put back"
        if not reason:
            iterator, before = order.at(epoch, number, state)
            last = None
            for _ in range(before):
                last = next(iterator, None)
                if last is None:
                    break
            if not before:
                return iterator, epoch, number, rows
            if last is not None and self._placed(last).digest() == found["digest"]:
                return iterator, epoch, number, rows
            reason = f"batch {number - 1} of epoch {epoch} is another than it was then"
        warnings.warn(
            f"The run cannot go on in the loader where it was, after batch {number - 1} of epoch "
            f"{epoch}: {reason}. A new epoch begins, whose rows come in another order than "
            "without the interruption.",
            ResumeWarning,
            stacklevel=4,
        )
        return order.begin(epoch + 1), epoch + 1, 0, 0

    def _placed(self, given: Any) -> Batch:
        return as_batch(given).map(self._place)

    def _read(
        self, iterator: Iterator[Any], epoch: int, number: int, rows: int
    ) -> Generator[_Item, None, None]:
        whole: int | None = None
        while True:
            for given in iterator:
                batch = self._placed(given)
                number, rows = number + 1, rows + batch.rows
                yield _Item(batch, epoch, number, rows, self.order.state(iterator), whole)
                whole = None
            if number == 0:
                raise ArgumentError(
                    "Expected batches, one a step, found that the loader gives none"
                    + (f" in epoch {epoch}." if epoch else ".")
                    + " Give one that can be iterated over again and again, of data with rows."
                )
            if self.order.one_pass:
                raise ArgumentError(
                    f"Expected a loader that can be iterated over again, once for each epoch, "
                    f"found that {type(self.order.loader).__name__} ended after batch "
                    f"{number - 1}, before the run did. Pass a DataLoader, a list or an object "
                    "whose __iter__ begins anew, or take fewer steps."
                )
            whole, epoch, number, rows = rows, epoch + 1, 0, 0
            iterator = self.order.begin(epoch)

    # -- the model's plates ----------------------------------------------------------------------

    def first(self) -> Batch:
        """A batch of the usual size, by which the model is met; it is not taken."""
        assert self._next is not None
        batch = self._next.batch
        if not self._sizes:
            self._sizes = [batch.rows]
        return batch.of_size(self._sizes[0])

    def check_target(self, target: Any) -> None:
        """See that a model takes batches as arguments, whose rows its plate counts.

        Raises
        ------
        ArgumentError
            It does not.
        """
        if target.plates:
            raise ArgumentError(
                "Expected a model whose batches are its arguments with batches=, found that it "
                f"looks up its rows by the indices of {sorted(target.plates)}. Write "
                "plate(name, N, subsample_size=len(x)) and use x and y as they are, or pass the "
                "arrays of all rows in place of batches."
            )
        (rows,) = self._sizes[:1]
        plates = target.batch_plates.values()
        self._plates = sorted(
            {each.size for each in plates if each.subsample_size == rows}
            or {each.size for each in plates}
        )
        number = _length(self.order.loader)
        if not self._plates and number is not None and number > 1:
            self._refuse_unscaled(f"{number} batches")
        if len(self._plates) != 1:
            return
        (size,) = self._plates
        known = _rows_of_an_epoch(self.order.loader)
        if known is not None and known != size:
            self._refuse_rows(f"{known} rows")
        if number is not None and not (number - 1) * rows < size < (number + 1) * rows:
            self._refuse_rows(f"{number} batches of {rows}")

    def _refuse_unscaled(self, found: str) -> None:
        raise ArgumentError(
            "Expected a model that scales its batches up to all rows, by a plate(name, N, "
            f"subsample_size=len(x)), found no such plate and {found}: each would count as all "
            "the data there are."
        )

    def _refuse_rows(self, found: str) -> None:
        raise ArgumentError(
            f"Expected a loader that gives each row of the model's plate once an epoch, "
            f"{self._plates[0]} in all, found {found}. Give the plate the number of rows of the "
            "data."
        )

    # -- taking ----------------------------------------------------------------------------------

    def next(self) -> Batch:
        """The next batch; it is the same again until :meth:`taken`.

        Raises
        ------
        ArgumentError
            The loader has ended, or gives batches of another form or number of rows.
        """
        if self._next is None:
            assert self._items is not None
            self._next = next(self._items)
        item = self._next
        batch, number = item.batch, item.number - 1
        check_form(batch, self._form, number, item.epoch)
        if batch.rows not in self._sizes:
            self._sizes.append(batch.rows)
        if len(self._sizes) > 2:
            raise ArgumentError(
                f"Expected batches of one size, and another for the last of an epoch, found "
                f"{sorted(self._sizes)} rows: each size is traced and compiled apart. Make the "
                "loader give batches of one size, or drop the last one."
            )
        if not self._plates and (number or item.epoch) and (number or item.whole != batch.rows):
            self._refuse_unscaled("more than one batch")
        if item.whole is not None and len(self._plates) == 1:
            self._check_epoch(item.whole)
        return batch

    def _check_epoch(self, rows: int) -> None:
        (size,) = self._plates
        drops = bool(getattr(self.order.loader, "drop_last", True))
        dropped = drops and len(self._sizes) == 1 and 0 < size - rows < self._sizes[0]
        if rows != size and not dropped:
            self._refuse_rows(f"{rows} rows in an epoch")

    def taken(self, finite: bool = True) -> None:
        """The step of the next batch was taken: what comes is after it."""
        assert self._next is not None
        if not finite:
            self._skipped.append((self._next.epoch, self._next.number - 1))
        self._latest, self._next = self._next, None

    def tell(self, error: BaseException) -> None:
        """Let an exception say which batch it came with."""
        if not isinstance(error, Exception):
            return
        if self._next is None:
            after = self._latest
            where = "before the first batch" if after is None else f"after {self._name(after)}"
            error.add_note(f"It came from the loader, {where}.")
        else:
            error.add_note(f"It came with {self._name(self._next)}.")

    @staticmethod
    def _name(item: _Item) -> str:
        first = item.rows - item.batch.rows
        return (
            f"batch {item.number - 1} of epoch {item.epoch} (rows {first:,} to {item.rows - 1:,} "
            "in the loader's order)"
        )

    # -- where it is -----------------------------------------------------------------------------

    def saved(self) -> str | None:
        """The place after the last batch that was taken, as text."""
        if self._latest is None:
            return self._saved
        item = self._latest
        return json.dumps(
            {
                "epoch": item.epoch,
                "batch": item.number,
                "rows": item.rows,
                "size": self._sizes[0],
                "digest": item.batch.digest(),
                "state": encoded(item.state),
            }
        )

    def shown(self) -> Mapping[str, str]:
        """Rows and epochs so far, for a progress bar."""
        if self._latest is None:
            return {}
        of = f"/{self._plates[0]:,}" if len(self._plates) == 1 else ""
        return {"epoch": str(self._latest.epoch), "rows": f"{self._latest.rows:,}{of}"}


def check_no_arguments(args: tuple[Any, ...], sharding: Any = None) -> None:
    """See that a run with batches has no positional arguments of the model, and no sharding.

    Raises
    ------
    ArgumentError
        It has.
    """
    if sharding is not None:
        raise ArgumentError(
            "Expected no sharding with batches, found both: the rows of a loader are not divided "
            "among devices. Pass the arrays of all rows, or leave sharding out."
        )
    if args:
        raise ArgumentError(
            "Expected either batches or the model's arguments, found both: batches and "
            f"{len(args)} arguments. The batches are the arguments, one for each step; what is the "
            "same for all steps goes by keyword."
        )


def _length(loader: Any) -> int | None:
    """Batches of an epoch, where the loader knows."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _rows_of_an_epoch(loader: Any) -> int | None:
    """Rows that a DataLoader draws in an epoch, where it cuts them into batches itself."""
    if getattr(loader, "batch_size", None) is None:
        return None
    sampler = getattr(loader, "sampler", None)
    return None if sampler is None else _length(sampler)
