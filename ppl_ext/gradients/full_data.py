"""The arguments of all rows, of a model whose batches are its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from ppl_ext.batches.passes import Passes
from ppl_ext.errors import ArgumentError

#: The model's positional arguments with the rows of one batch.
Batch: TypeAlias = tuple[Any, ...]
#: The model's positional arguments with all rows, or those of each batch.
FullData: TypeAlias = Batch | Iterable[Batch]
#: Counts the rows of a batch.
NumRows: TypeAlias = Callable[[Batch], int]


def batches_of(full_data: FullData, num_rows: NumRows) -> tuple[Batch, ...]:
    """Arguments of each batch.

    Raises
    ------
    ArgumentError
        There is no batch, a batch is no tuple of arguments, or one has no array to count rows by.
    """
    batches: tuple[Any, ...]
    try:
        batches = (full_data,) if isinstance(full_data, tuple) else tuple(full_data)
    except TypeError:
        batches = ()
    # A DataLoader gives lists.
    batches = tuple(tuple(batch) if isinstance(batch, list) else batch for batch in batches)
    if not batches or not all(isinstance(batch, tuple) for batch in batches):
        raise ArgumentError(
            "Expected full_data to be a tuple of the model's arguments with all rows, such as "
            "(x, y), or an iterable of such tuples, one for each batch, found "
            f"{type(full_data).__name__}."
        )
    for batch in batches:
        num_rows(batch)
    return batches


def rows_of(full_data: Any, num_rows: NumRows) -> list[Batch] | Passes:
    """All rows: batches in memory, or a loader that is passed over again and again.

    Raises
    ------
    ArgumentError
        As of :func:`batches_of`.
    """
    if isinstance(full_data, Passes):
        return full_data
    # Arrays can be iterated over as well, by rows. They are left to ``batches_of``, which refuses
    # them.
    lasts = hasattr(full_data, "__iter__") and not isinstance(full_data, Iterator)
    if lasts and not isinstance(full_data, tuple | list) and not hasattr(full_data, "shape"):
        return Passes(full_data)
    # An iterable may be good for one pass only.
    return list(batches_of(full_data, num_rows))


def rows_in(arrays: Iterable[Any]) -> int:
    """Rows of the arrays of a batch: their leading axis; those without axes do not count.

    Raises
    ------
    ArgumentError
        No array has a leading axis, or they differ.
    """
    found = {int(array.shape[0]) for array in arrays if len(getattr(array, "shape", ()))}
    if len(found) == 1:
        return found.pop()
    raise ArgumentError(
        "Expected each batch of full_data to hold arrays with one row for each row of the data, "
        f"found leading axes {sorted(found)} in one. Give arguments that hold no rows by keyword "
        "or by functools.partial, and several batches as a list."
    )


def check_rows(
    target: Any, data: Any, batches: tuple[Batch, ...] | Passes, num_rows: NumRows
) -> None:
    """See that rows come from the engine or from ``full_data``, and not from both.

    Raises
    ------
    ArgumentError
        They come from both or from neither, or ``full_data`` does not hold each row once.
    """
    if batches and target.plates:
        raise ArgumentError(
            "Expected no full_data with a model that looks up its rows by a plate's indices, "
            f"as {sorted(target.plates)}: the engine draws them, and sweeps over all."
        )
    if not batches and target.batch_arguments:
        raise ArgumentError(
            "Expected full_data with a model whose batches are its arguments: the score at an "
            "anchor needs all rows. Pass full_data=(x, y) with all of them, or a list of such "
            "tuples, one for each batch."
        )
    if isinstance(batches, Passes):
        return  # which count their rows when they pass over them
    sizes = {plate.size for plate in target.batch_plates.values()}
    found = sum(num_rows(batch) for batch in batches)
    if batches and not sizes and num_rows(data.args) != found:
        raise ArgumentError(
            "Expected a model that scales its batches up to all rows, by a plate with "
            "subsample_size=len(batch), or a first call with all rows; found no such plate, "
            f"{num_rows(data.args)} rows in the call and {found} in full_data."
        )
    if batches and not sizes and num_rows(batches[0]) < found:
        # The first call had all rows, so only a batch shows whether the plate scales it.
        if not target.partial_plates(target.bind(*batches[0], **data.kwargs)):
            raise ArgumentError(
                "Expected a model that scales its batches up to all rows, by a plate with "
                f"subsample_size=len(batch), found none that scales {num_rows(batches[0])} of "
                f"{found} rows."
            )
    if batches and sizes and sizes != {found}:
        raise ArgumentError(
            f"Expected full_data to hold each of the rows of {sorted(target.batch_plates)} "
            f"once, {sorted(sizes)} in all, found {found}."
        )
