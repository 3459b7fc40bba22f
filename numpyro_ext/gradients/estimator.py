"""What an estimator of the score is: a frozen configuration with a pure ``init`` and
``estimate``, whose state is a pytree that travels with the engine's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from jax import Array
from jaxtyping import Float

from numpyro_ext.density import Data, Indices, LogDensity, Score, ScoreParts
from ppl_ext.density import tempered
from ppl_ext.errors import ArgumentError

EstimatorState = Any


class ScoreEstimate(NamedTuple):
    """Score and value of the target at P positions, and the rows that they come from.

    Parameters
    ----------
    score : array (P, D)
        Estimate of the gradient of log prior + log likelihood / temperature.
    log_prior, log_likelihood : array (P,)
        The two parts, not tempered.
    indices : dict of str to array or None
        Rows of each subsampled plate that the estimate has seen, (rows,) or, where each position
        has its own, (P, rows); None for all rows.
    """

    score: Array
    log_prior: Array
    log_likelihood: Array
    indices: Indices | None

    def log_density(self, temperature: float = 1.0) -> Float[Array, " P"]:
        """Log prior + log likelihood / temperature."""
        return tempered(self.log_prior, self.log_likelihood, temperature)


def corrected(here: Score, there: Score, exact: Score, indices: Indices | None) -> ScoreEstimate:
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
    """An unbiased estimator of the target's score.

    Subclasses are frozen configurations: everything that changes lives in the state.
    """

    @abstractmethod
    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State before the first step, for estimates at so many positions at once.

        Raises
        ------
        ArgumentError
            The estimator does not fit the model.
        """

    def check(self, state: EstimatorState) -> None:
        """See that the values in a state of :meth:`init` will do; nothing is traced here.

        Raises
        ------
        ArgumentError
            They will not.
        """
        return

    @abstractmethod
    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Array, data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        """Score at positions (P, D), and the next state."""

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
        """Cost of one estimate per position, in full-data gradients (B/N for a minibatch)."""


__all__ = ["EstimatorState", "GradientEstimator", "Score", "ScoreEstimate", "ScoreParts"]
