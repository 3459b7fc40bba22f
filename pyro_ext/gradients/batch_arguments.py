"""Minibatch scores of a model whose batches are its arguments, from a list of batches.

Engines with a ``step`` are called with a new batch each time. A host's ``MCMC`` is called once,
and the batches have to come from somewhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pyro_ext.density import Data, LogDensity, Score
from pyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from pyro_ext.gradients.full_data import FullData, batches_of, check_rows, num_rows
from pyro_ext.gradients.minibatch import shuffled


@dataclass(frozen=True)
class BatchArguments(GradientEstimator):
    """Score of one of the given batches, in an order that is drawn anew for every round.

    Parameters
    ----------
    batches : iterable of tuples
        The model's positional arguments of each batch, such as ``(x, y)``, or a ``DataLoader`` of
        these; together they hold each row once. The model's plate scales a batch up to all rows
        by its size, as in ``plate("data", N, subsample_size=len(x))``. Keyword arguments are those
        of the call.
    own_rows : bool
        Draw a batch for each position apart, as independent chains need them; positions are then
        evaluated one after another.

    Raises
    ------
    ArgumentError
        There are no batches. From ``init``: the model looks up its rows itself, or the batches do
        not hold each row once.
    """

    batches: FullData = field(compare=False, repr=False)
    own_rows: bool = False

    def __post_init__(self) -> None:
        # An iterable may be good for one pass only.
        object.__setattr__(self, "batches", list(batches_of(self.batches)))

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        batches = tuple(self.batches)
        check_rows(target, data, batches)
        # A position past the end makes the first draw start with a fresh order.
        return {"order": torch.arange(len(batches)), "position": len(batches)}

    def draw(
        self, state: EstimatorState, generator: torch.Generator, num_positions: int = 1
    ) -> tuple[Tensor, EstimatorState]:
        """Number of the next batch, or (P,) of them, and the next state."""
        order, position, number = state["order"], state["position"], len(tuple(self.batches))
        if position >= number:
            lead = (num_positions,) if self.own_rows else ()
            order, position = shuffled(number, lead, generator), 0
        return order[..., position], {"order": order, "position": position + 1}

    def score(self, target: LogDensity, chosen: Tensor, z: Tensor, data: Data) -> Score:
        """Score at positions (P, D) of the batch ``chosen``, or of (P,) batches."""
        batches: list[tuple[Any, ...]] = list(self.batches)

        def of_batch(z: Tensor, number: Tensor) -> Score:
            return target.score(z, target.bind(*batches[int(number)], **data.kwargs))

        if chosen.dim() == 0:
            return of_batch(z, chosen)
        found = [of_batch(row[None], number) for row, number in zip(z, chosen, strict=True)]
        return Score(*map(torch.cat, zip(*found, strict=True)))

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Tensor,
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        chosen, state = self.draw(state, generator, len(z))
        return ScoreEstimate(*self.score(target, chosen, z, data), indices=None), state

    def needs_new_arguments(self, target: LogDensity) -> bool:
        """Never: it has the batches."""
        return False

    def with_own_rows(self, target: LogDensity) -> BatchArguments:
        """The same batches, drawn for each position apart."""
        return replace(self, own_rows=True)

    def evaluations_per_step(self, target: LogDensity) -> float:
        batches = list(self.batches)
        return num_rows(batches[0]) / sum(map(num_rows, batches))
