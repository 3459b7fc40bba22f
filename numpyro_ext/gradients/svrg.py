"""Minibatch scores with reduced variance: differences to an anchor where the score is exact."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from numpyro_ext.errors import ArgumentError
from numpyro_ext.gradients.estimator import EstimatorState, GradientEstimator
from numpyro_ext.gradients.minibatch import Minibatch, Sampling
from numpyro_ext.options import check_count
from numpyro_ext.target import Data, LogDensity, Score


@dataclass(frozen=True)
class SVRG(GradientEstimator):
    """Stochastic variance reduced gradient.

    Every ``anchor_every`` steps the present positions become anchors, and the exact scores there
    are computed by a sweep over all rows. With s_B the score of a minibatch B, shared by all
    positions, the estimate at position z with anchor a is

        s_B(z) - s_B(a) + s(a),

    which is unbiased, and the less noisy the nearer z is to its anchor. What does not depend on
    the rows, such as the prior of the weights, is the same in s_B and s and therefore exact.

    Parameters
    ----------
    anchor_every : int
        Steps from one anchor to the next.
    sampling : {"reshuffle", "replacement", "cyclic"}
        See :class:`~numpyro_ext.gradients.Minibatch`.

    Raises
    ------
    ArgumentError
        An option is out of range. From ``init``: the model subsamples no plate itself, or has
        latents inside a subsampled plate.

    References
    ----------
    R. Johnson and T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", NeurIPS 2013; for Stein variational gradient descent see ``SVGDVR``.
    """

    anchor_every: int
    sampling: Sampling = "reshuffle"

    def __post_init__(self) -> None:
        check_count("anchor_every", self.anchor_every)
        self._minibatch()

    def _minibatch(self) -> Minibatch:
        return Minibatch(self.sampling)

    def init(
        self, target: LogDensity, data: Data, rng_key: Array, num_positions: int
    ) -> EstimatorState:
        """State: that of the minibatches, the anchors with their scores, and the steps since."""
        check_no_local_latents(target, type(self).__name__)
        positions, values = (num_positions, target.dim), (num_positions,)
        return {
            "minibatch": self._minibatch().init(target, data, rng_key, num_positions),
            "anchor": jnp.zeros(positions, target.dtype),
            "exact": Score(
                *(jnp.zeros(shape, target.dtype) for shape in (positions, values, values))
            ),
            # The first step sets an anchor.
            "since": jnp.asarray(self.anchor_every, jnp.int32),
        }

    def estimate(
        self, target: LogDensity, state: EstimatorState, z: Array, data: Data
    ) -> tuple[Score, EstimatorState]:
        """Score at positions (P, D), and the next state."""
        due = state["since"] >= self.anchor_every
        anchor, exact = lax.cond(
            due,
            lambda: (z, target.full_score(z, data)),
            lambda: (state["anchor"], state["exact"]),
        )
        indices, minibatch = self._minibatch().draw(target, state["minibatch"])
        here = target.score(z, data, indices)
        there = target.score(anchor, data, indices)
        score = Score(
            here.score - there.score + exact.score,
            here.log_prior,
            here.log_likelihood - there.log_likelihood + exact.log_likelihood,
        )
        since = jnp.where(due, 1, state["since"] + 1)
        following = {"minibatch": minibatch, "anchor": anchor, "exact": exact, "since": since}
        return score, following

    def evaluations_per_step(self, target: LogDensity) -> float:
        """Two minibatches, and the share of a sweep."""
        return 2.0 * self._minibatch().evaluations_per_step(target) + 1.0 / self.anchor_every


def check_no_local_latents(target: LogDensity, name: str) -> None:
    """See that no latent lives inside a subsampled plate.

    Raises
    ------
    ArgumentError
        One does: it is moved by the scores of its own row alone, which a step mostly does not
        draw, so that there is no noise of other rows to reduce.
    """
    if target.local_sites:
        raise ArgumentError(
            f"Expected no latent inside a subsampled plate with {name}, found "
            f"{sorted(target.local_sites)}: their gradients come from their own rows alone, which "
            "most minibatches do not hold. Use Minibatch() or Full()."
        )
