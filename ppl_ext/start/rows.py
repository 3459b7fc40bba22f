"""Of which rows of the data a density is evaluated: a batch of them first, then all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np

from ppl_ext.batches.batch import Batch
from ppl_ext.batches.passes import Sample, joined
from ppl_ext.batches.stream import unscaled_error
from ppl_ext.start.paths import Evaluate
from ppl_ext.start.search import WIDTHS, InPieces, Joined, Piece, rows_left, rows_of
from ppl_ext.target.layouts import DataPlate

#: Parts of a batch, whose differences tell of the error of figures that are of a batch.
PARTS = 16


class Minibatches:
    """Evaluations by rows that are drawn anew, as many of each plate as the model draws itself.

    Parameters
    ----------
    plates : mapping of str to DataPlate
        Those that the model subsamples, at least one.
    pieces : callable
        Evaluates with some rows of them, scaled up to all.

    Attributes
    ----------
    evaluate : InPieces
        With the rows that were drawn last.
    rows : int
        Of a minibatch, of the plate that has most.
    share : float
        Rows of a minibatch over those of the data, of the plate of which it is largest: about what
        an evaluation takes of one with all rows.
    """

    def __init__(
        self, plates: Mapping[str, DataPlate], pieces: Callable[[dict[str, np.ndarray]], Piece]
    ) -> None:
        self._plates, self._pieces = plates, pieces
        self._piece = pieces({n: np.arange(each.subsample_size) for n, each in plates.items()})
        together = self._piece.together if isinstance(self._piece, Joined) else 1
        # One for all minibatches, which counts what was evaluated before.
        self.evaluate = InPieces(Joined(lambda z, before: self._piece(z, before), together))
        self.rows = max(each.subsample_size for each in plates.values())
        self.share = max(each.subsample_size / each.size for each in plates.values())

    def draw(self, generator: np.random.Generator) -> None:
        """Go over to other rows."""
        rows = {
            name: generator.choice(each.size, each.subsample_size, replace=False)
            for name, each in self._plates.items()
        }
        self._piece = self._pieces(rows)


@dataclass(frozen=True)
class Rows:
    """Of which rows of the data the density of a problem is evaluated.

    Attributes
    ----------
    few : InPieces
        Evaluates with a batch of them, scaled up, or with all where they are few.
    every : InPieces or None
        With all of them, where ``few`` takes a batch and the others can be had.
    times : float
        Rows of the data over those of the batch.
    reading : float
        Seconds that all rows take to be read, where they come from a loader.
    number : int
        Rows of the batch.
    parts : callable
        Evaluations with parts of the batch of one size, each scaled up to all rows; none where
        there is no batch, or rows of several plates.
    minibatches : Minibatches, optional
        Evaluations by rows that are drawn anew, where the model looks them up in its plates.
    """

    few: InPieces
    every: InPieces | None = None
    times: float = 1.0
    reading: float = 0.0
    number: int = 0
    parts: Callable[[], Sequence[Evaluate]] = tuple
    minibatches: Minibatches | None = None

    @classmethod
    def of_plates(
        cls,
        plates: Mapping[str, DataPlate],
        pieces: Callable[[dict[str, np.ndarray] | None], Piece],
        generator: np.random.Generator,
    ) -> Self:
        """Rows that a model looks up in its plates; ``pieces`` evaluate with some, or with all."""
        rows = rows_of(plates, generator)
        minibatches = Minibatches(plates, pieces) if plates else None
        if rows is None:
            return cls(InPieces(pieces(None)), minibatches=minibatches)

        def parts() -> list[Evaluate]:
            if len(rows) > 1:
                return []
            ((name, own),) = rows.items()
            mixed = generator.permutation(own)[: len(own) // PARTS * PARTS]
            return [InPieces(pieces({name: np.sort(each)})) for each in np.split(mixed, PARTS)]

        number = max(map(len, rows.values()))
        every, times = InPieces(pieces(None)), rows_left(plates, rows)
        return cls(InPieces(pieces(rows)), every, times, 0.0, number, parts, minibatches)

    @classmethod
    def of_loader(
        cls, sample: Sample, size: int | None, pieces: Callable[[Batch | None], Piece]
    ) -> Self:
        """Rows of a loader, ``size`` in all; ``pieces`` evaluate with some, or pass over all.

        Raises
        ------
        ArgumentError
            The model takes a batch for all rows.
        """
        number = sample.batch.rows
        few = InPieces(pieces(sample.batch))
        if size is None and not sample.is_all:
            raise unscaled_error(f"more than {number} rows")
        if size is None:
            return cls(few)

        parts = partial(_in_parts, sample, pieces)
        every = InPieces(pieces(None), widths=WIDTHS)
        return cls(few, every, size / number, size * sample.seconds, number, parts)

    @classmethod
    def of_batches(cls, batches: list[Batch], size: int, pieces: Callable[[Batch], Piece]) -> Self:
        """Some batches of a loader of ``size`` rows; ``pieces`` evaluate with one, scaled up."""
        sample = Sample(joined(batches), is_all=False, seconds=0.0)
        number = sample.batch.rows
        few = InPieces(pieces(sample.batch))
        if number == size:
            return cls(few)

        parts = partial(_in_parts, sample, pieces)
        return cls(few, times=size / number, number=number, parts=parts)


def _in_parts(sample: Sample, pieces: Callable[[Batch], Piece]) -> list[Evaluate]:
    return [InPieces(pieces(each)) for each in sample.in_parts(PARTS)]
