"""Scores with noise added, for studying how robust an engine is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.draws import standard_normal
from numpyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from ppl_ext.errors import ArgumentError


@dataclass(frozen=True)
class Noisy(GradientEstimator):
    """Another estimator's scores with normal noise added, for studying robustness.

    The score s of each particle becomes ``s + level * max|s| * n`` with n standard normal in
    every coordinate, drawn anew for every particle and step: unbiased, and noisier far from the
    mode. Equation 19 of M. Kim, "Large-scale Score-based Variational Posterior Inference for
    Bayesian Deep Neural Networks", where ``level`` is beta. The parts of the log density stay as
    they are.

    Parameters
    ----------
    estimator : GradientEstimator, optional
        Where the scores come from. Default: the engines' default, minibatches when the model
        subsamples a plate itself, else all rows of the arguments.
    level : float
        Noise level; 0 adds none.

    Raises
    ------
    ArgumentError
        The level is negative, or ``estimator`` is something else.
    """

    estimator: GradientEstimator | None = None
    level: float = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.estimator is not None and not isinstance(self.estimator, GradientEstimator):
            raise ArgumentError(
                "Expected estimator to be a GradientEstimator such as Full(), found "
                f"{type(self.estimator).__name__}. The noise level goes by name: Noisy(level=0.5)."
            )
        if not self.level >= 0:
            raise ArgumentError(f"Expected level >= 0, found {self.level}.")

    def inner(self, target: LogDensity) -> GradientEstimator:
        # Imported late: the room's __init__ imports this module.
        from numpyro_ext.gradients import default_estimator

        return default_estimator(target) if self.estimator is None else self.estimator

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: a key, and the state of the estimator that the scores come from."""
        rng_key, inner_key = random.split(rng_key)
        inner = self.inner(target).init(target, data, inner_key, num_positions)
        return {"rng_key": rng_key, "inner": inner}

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Array, data: Data
    ) -> tuple[ScoreEstimate, EstimatorState]:
        """Score at positions (P, D) with noise, and the next state."""
        found, inner = self.inner(target).estimate(target, state["inner"], z, data)
        rng_key, noise_key = random.split(state["rng_key"])
        noise = standard_normal(noise_key, found.score.shape, found.score.dtype)
        # Whoever differentiates scores gets the derivative of the score itself: with noise that
        # follows the parameters the derivative would not be unbiased.
        size = lax.stop_gradient(jnp.abs(found.score).max(-1, keepdims=True))
        score = found.score + self.level * size * noise
        return found._replace(score=score), {"rng_key": rng_key, "inner": inner}

    def needs_new_arguments(self, target: LogDensity) -> bool:
        """As the other estimator."""
        return self.inner(target).needs_new_arguments(target)

    def with_own_rows(self, target: LogDensity) -> Noisy:
        """Noise on scores of the other estimator with rows of each position's own."""
        return replace(self, estimator=self.inner(target).with_own_rows(target))

    def evaluations_per_step(self, target: LogDensity) -> float:
        """Cost of the estimator that the scores come from; noise is free."""
        return self.inner(target).evaluations_per_step(target)
