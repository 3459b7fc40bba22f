"""What an engine may ask of a score estimator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.density import tempered
from ppl_ext.errors import ArgumentError
from pyro_ext.density import Data, LogDensity, Score

EstimatorState = dict[str, Any]


class ScoreEstimate(NamedTuple):
    """Score and value of the target at P positions, and the rows that they come from.

    ``score`` (P, D) estimates the gradient of log prior + log likelihood / temperature;
    ``log_prior`` and ``log_likelihood`` (P,) are not tempered. ``indices`` are the rows of each
    subsampled plate that the estimate has seen, (rows,) or, where each position has its own,
    (P, rows); None for all rows.
    """

    score: Tensor
    log_prior: Tensor
    log_likelihood: Tensor
    indices: Mapping[str, Tensor] | None

    def log_density(self, temperature: float = 1.0) -> Float[Tensor, " P"]:
        """Log prior + log likelihood / temperature."""
        return tempered(self.log_prior, self.log_likelihood, temperature)


def corrected(
    here: Score, there: Score, exact: Score, indices: Mapping[str, Tensor] | None
) -> ScoreEstimate:
    """The scores of a batch at positions, less the noise that they share with those at an anchor.

    Parameters
    ----------
    here, there : Score
        Of the batch, at the positions and at the anchor.
    exact : Score
        Of all rows, at the anchor.
    """
    return ScoreEstimate(
        here.score - there.score + exact.score,
        here.log_prior,
        here.log_likelihood - there.log_likelihood + exact.log_likelihood,
        indices,
    )


class GradientEstimator(ABC):
    """An unbiased estimator of the score.

    The object holds settings only. What changes from step to step is a dictionary of tensors
    that the engine keeps and saves, so that one estimator object can serve several engines.
    """

    @abstractmethod
    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        """State before the first step.

        Raises
        ------
        ArgumentError
            The estimator does not fit the model.
        """

    @abstractmethod
    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Tensor,
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        """Score at particles z (P, D), and the next state."""

    def needs_new_arguments(self, target: LogDensity) -> bool:
        """Whether every step wants another batch as the model's arguments."""
        return target.batch_arguments

    def with_own_rows(self, target: LogDensity) -> GradientEstimator:
        """The same estimator with rows drawn for each position apart.

        Particles of one fit share their rows; chains that are to be independent must not.

        Raises
        ------
        ArgumentError
            The estimator draws one set of rows for all.
        """
        raise ArgumentError(
            f"Expected an estimator that can draw rows for each chain, such as Minibatch() or "
            f"SVRG(...), found {type(self).__name__}, which draws one set of rows for all. Run the "
            "chains one after another, or use another estimator."
        )

    @abstractmethod
    def evaluations_per_step(self, target: LogDensity) -> float:
        """Cost of one estimate for one particle, in gradients over the full data."""
