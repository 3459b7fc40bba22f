"""The batches of a run, one a step: read ahead, counted in epochs and rows, and found again."""

from __future__ import annotations

import json
import random
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from ppl_ext.batches.batch import Batch, as_batch, check_form, check_placed
from ppl_ext.batches.codec import decoded, encoded
from ppl_ext.batches.order import Order
from ppl_ext.batches.prefetch import prefetched
from ppl_ext.errors import ArgumentError, BatchWarning, ResumeWarning

#: Batches that a warning names at most.
_NAMED = 5
#: Seconds that batches which are to be taken together wait for each other.
_PATIENCE = 0.02
#: Batches that are kept of an epoch, as many as parts of a sample of rows are compared, and bytes
#: that they take at most, where one batch does not take more: they stay beside the model's.
KEPT, KEPT_BYTES = 16, 2**26


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
        Makes a batch that a loader gives one of the package's arrays. It copies, since a loader
        may use its memory again.
    saved : str, optional
        The place after the last batch of an earlier run, as :meth:`saved` says it.
    together : callable, optional
        Says of a batch how many like it are taken together at most. Default: one.

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
        self,
        loader: Iterable[Any],
        place: Callable[[Batch], Batch],
        saved: str | None = None,
        together: Callable[[Batch], int] = lambda _: 1,
    ) -> None:
        self.order = Order(loader)
        self._place = place
        self._saved = saved
        self._together = together
        #: How many batches of the usual size are taken together at most, once there is one.
        self.together = 1
        self._sizes: list[int] = []
        self._form: dict[str, str] = {}
        self._is_looked_at = False
        self._plates: list[int] = []
        self._items: Generator[_Item, None, None] | None = None
        # What was read and not yet taken, and an error that came after it.
        self._waiting: deque[_Item] = deque()
        self._failure: Exception | None = None
        self._latest: _Item | None = None
        self._skipped: list[tuple[int, int]] = []
        # Batches of the epoch by number, and those of the epoch before.
        self._kept: dict[int, Batch] = {}
        self._kept_before: dict[int, Batch] = {}

    # -- reading -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        items = self._read(*self._resumed())
        # Processes of a DataLoader read ahead by themselves. They must not be forked by a thread
        # while another one computes, whose locks they would hold for ever.
        if not self.order.has_processes:
            items = prefetched(items, lambda item: self._together(item.batch))
        self._items = items
        try:
            item = next(self._items)
            encoded(item.state)  # what cannot be saved is told before there is anything to lose
        except BaseException:
            self._items.close()
            raise
        self._waiting.append(item)
        self._form = item.batch.form()
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
            # The loader has put itself there.
            if not before:
                return iterator, epoch, number, rows
            # The last batch is read again, and shows whether the order is that of then.
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
        batch = as_batch(given)
        placed = self._place(batch)
        if not self._is_looked_at:
            check_placed(batch, placed)
            self._is_looked_at = True
        return placed

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

    @property
    def rows(self) -> int:
        """Rows of a batch of the usual size, once there is one."""
        return self._sizes[0]

    # -- the model's plates ----------------------------------------------------------------------

    def first(self) -> Batch:
        """A batch of the usual size, by which the model is met; it is not taken."""
        batch = self._waiting[0].batch
        if not self._sizes:
            self._sizes = [batch.rows]
        batch = batch.of_size(self._sizes[0])
        self.together = self._together(batch)
        return batch

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
            raise unscaled_error(f"{number} batches")
        if len(self._plates) != 1:
            return
        (size,) = self._plates
        known = _rows_of_an_epoch(self.order.loader)
        if known is not None and known != size:
            self._refuse_rows(f"{known} rows")
        # The last batch may be shorter than the others, or left out.
        if number is not None and not (number - 1) * rows < size < (number + 1) * rows:
            self._refuse_rows(f"{number} batches of {rows}")

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
        if not self._waiting:
            self._fetch()
        return self._checked(self._waiting[0])

    def several(self, most: int) -> list[Batch]:
        """The next batches, at most so many: of the usual size, and as many as come soon.

        One of another size comes alone. An error that comes after some is raised when these were
        taken, and they are the same again until :meth:`taken`.

        Raises
        ------
        ArgumentError
            See :meth:`next`.
        """
        found, until = [self.next()], time.monotonic() + _PATIENCE
        most = min(most, self.together) if found[0].rows == self._sizes[0] else 1
        while len(found) < most and time.monotonic() < until:
            try:
                if len(found) == len(self._waiting):
                    self._fetch()
                item = self._waiting[len(found)]
                if item.batch.rows != found[0].rows:
                    break
                found.append(self._checked(item))
            except Exception:  # noqa: BLE001 raised again when its turn comes
                break
        return found

    def _fetch(self) -> None:
        """Wait for one more batch; an error is raised whenever there is none."""
        assert self._items is not None
        if self._failure is None:
            try:
                self._waiting.append(next(self._items))
                return
            except Exception as error:  # noqa: BLE001 raised below, and again
                self._failure = error
        raise self._failure

    def _checked(self, item: _Item) -> Batch:
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
            raise unscaled_error("more than one batch")
        if item.whole is not None and len(self._plates) == 1:
            self._check_epoch(item.whole)
        return batch

    def _check_epoch(self, rows: int) -> None:
        (size,) = self._plates
        # A loader may leave out the last rows of an epoch where they fill no batch.
        drops = bool(getattr(self.order.loader, "drop_last", True))
        dropped = drops and len(self._sizes) == 1 and 0 < size - rows < self._sizes[0]
        if rows != size and not dropped:
            self._refuse_rows(f"{rows} rows in an epoch")

    def taken(self, finite: bool = True) -> None:
        """The step of the next batch was taken: what comes is after it."""
        before = self._latest
        self._latest = self._waiting.popleft()
        if not finite:
            self._skipped.append((self._latest.epoch, self._latest.number - 1))
        if before is not None and before.epoch != self._latest.epoch:
            self._kept, self._kept_before = {}, self._kept
        batch = self._kept[self._latest.number] = self._latest.batch
        if len(self._kept) > max(1, min(KEPT, KEPT_BYTES // max(1, batch.nbytes))):
            # A number's own random draw stays, so that those left are a sample of all.
            del self._kept[max(self._kept, key=lambda number: random.Random(number).random())]

    def sample(self) -> list[Batch]:
        """Some batches of the last whole epoch, drawn at random, or of the first while it lasts."""
        return list((self._kept_before or self._kept).values())

    @property
    def size(self) -> int | None:
        """Rows of an epoch, where one plate counts them."""
        return self._plates[0] if len(self._plates) == 1 else None

    def tell(self, error: BaseException, among: int = 1) -> None:
        """Let an exception say which batch it came with, or ``among`` how many from which on."""
        if not isinstance(error, Exception):
            return
        if not self._waiting:
            after = self._latest
            where = "before the first batch" if after is None else f"after {self._name(after)}"
            error.add_note(f"It came from the loader, {where}.")
        else:
            others = min(among, len(self._waiting)) - 1
            tail = f", or with one of the {others} after it" if others > 0 else ""
            error.add_note(f"It came with {self._name(self._waiting[0])}{tail}.")

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


def unscaled_error(found: str) -> ArgumentError:
    """What is said of a model that takes a batch for all the data."""
    return ArgumentError(
        "Expected a model that scales its batches up to all rows, by a plate(name, N, "
        f"subsample_size=len(x)), found no such plate and {found}: each would count as all the "
        "data there are."
    )


def check_no_arguments(args: tuple[Any, ...]) -> None:
    """See that a run with batches has no positional arguments of the model.

    Raises
    ------
    ArgumentError
        It has.
    """
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
