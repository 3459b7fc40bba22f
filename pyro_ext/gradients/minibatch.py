"""Minibatch scores: the engine owns the row indices, one set a step for all particles or not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ppl_ext.errors import ArgumentError
from pyro_ext.density import Data, LogDensity
from pyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate

SAMPLING = ("reshuffle", "replacement", "cyclic")


@dataclass(frozen=True)
class Minibatch(GradientEstimator):
    """Scores of a minibatch of each subsampled plate, of the size that the model declares.

    Parameters
    ----------
    sampling : {"reshuffle", "replacement", "cyclic"}
        "reshuffle" goes through a permutation of the rows and draws another one at the end of
        every epoch; rows that do not fill a batch are left out of that epoch, at random.
        "replacement" draws every row independently. Both are unbiased. "cyclic" takes the rows in
        the order of the data, again and again, without a gap at its end; it is right on average
        over a whole number of rounds only, and biased within one where the data are sorted.
    own_rows : bool
        Draw rows for each position apart, as independent chains need them. Particles of one fit
        share theirs, which costs less.

    Raises
    ------
    ArgumentError
        ``sampling`` is none of these, or ``"cyclic"`` with rows of each position's own.
    """

    sampling: str = "reshuffle"
    own_rows: bool = False

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLING:
            raise ArgumentError(
                f"Expected sampling to be one of {SAMPLING}, found {self.sampling!r}."
            )
        if self.own_rows and self.sampling == "cyclic":
            raise ArgumentError(
                "Expected sampling 'reshuffle' or 'replacement' where each position draws rows of "
                "its own, as chains do, found 'cyclic', which takes the same rows for all."
            )

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        if not target.plates and not target.observed_sites:
            raise ArgumentError(
                "Minibatch draws rows of the observed sites. Expected a model that has some, found "
                "none: its density is in one piece, as that of a Stan program is, and cannot be "
                "divided by rows. Use Full(), the exact score."
            )
        if not target.plates:
            raise ArgumentError(
                "Minibatch draws the rows of subsampled plates. Expected a model with "
                "pyro.plate(name, size, subsample_size=B) that indexes its data by the plate, "
                "found none; use Full(), and pass batches as arguments if you want minibatches."
            )
        if self.sampling == "replacement":
            return {}
        if self.sampling == "cyclic":
            return {name: {"position": 0} for name in target.plates}
        # A position past the end makes the first step shuffle.
        return {
            name: {"order": torch.arange(plate.size), "position": plate.size}
            for name, plate in target.plates.items()
        }

    def draw(
        self,
        target: LogDensity,
        state: EstimatorState,
        generator: torch.Generator,
        num_positions: int = 1,
    ) -> tuple[dict[str, Tensor], EstimatorState]:
        """Row indices of the next minibatch of each plate, and the next state.

        Of shape (B,), or (P, B) where each position has its own.
        """
        lead = (num_positions,) if self.own_rows else ()
        indices, following = {}, {}
        for name, plate in target.plates.items():
            size, count = plate.size, plate.subsample_size
            if self.sampling == "replacement":
                rows = torch.randint(size, (*lead, count), generator=generator)
            elif self.sampling == "cyclic":
                position = state[name]["position"]
                rows = (position + torch.arange(count)) % size
                following[name] = {"position": (position + count) % size}
            else:
                order, position = state[name]["order"], state[name]["position"]
                if position + count > size:
                    order, position = shuffled(size, lead, generator), 0
                rows = order[..., position : position + count]
                following[name] = {"order": order, "position": position + count}
            indices[name] = rows.to(target.device)
        return indices, following

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Tensor,
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        indices, state = self.draw(target, state, generator, len(z))
        return ScoreEstimate(*target.score(z, data, indices), indices=indices), state

    def with_own_rows(self, target: LogDensity) -> Minibatch:
        """The same sampling, with rows drawn for each position apart."""
        return replace(self, own_rows=True)

    def evaluations_per_step(self, target: LogDensity) -> float:
        return target.batch_fraction


def shuffled(size: int, lead: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """A permutation of so many numbers, or ``lead`` of them."""
    if not lead:
        return torch.randperm(size, generator=generator)
    return torch.stack([torch.randperm(size, generator=generator) for _ in range(lead[0])])
