"""Batch and match (``BaM``); see :mod:`ppl_ext.matching`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.guides.flat_density import Moments
from numpyro_ext.score.gaussian_matching import GaussianMatching
from ppl_ext.matching import BaMShell


def bam_update(
    moments: Moments,
    theta: Float[Array, "S D"],
    score: Float[Array, "S D"],
    weight: Array | float,
) -> Moments:
    """Moments of the Normal q that minimises the objective of one step.

    ``moments`` are those of the present guide, which drew ``theta``; ``score`` is the target's
    there, and ``weight`` the paper's lambda_t: weight of the scores against the present guide.
    """
    mean, scale = moments
    number = len(theta)
    share = weight / (1.0 + weight)
    theta_mean, score_mean = theta.mean(0), score.mean(0)
    spread, pull = jnp.sqrt(weight / number), jnp.sqrt(share / number)
    # The mean is added to every row, where the deviations from it add up to zero: one row more
    # than draws would have a singular value that is zero but for rounding, which is not small
    # against 1 when scores are large.
    rows = spread * (theta - theta_mean) + pull * (mean - theta_mean)
    root = _triangular(jnp.concatenate([scale.T, rows]))
    rows = spread * (score - score_mean) + pull * score_mean
    _, singular, directions = jnp.linalg.svd(rows @ root, full_matrices=False)
    shrunk = jnp.sqrt(2.0 / (1.0 + jnp.sqrt(1.0 + 4.0 * jnp.square(singular))))
    # The root of S is the identity but for these directions.
    root = root - ((root @ directions.T) * (1.0 - shrunk)) @ directions
    scale = _triangular(root.T)
    new_mean = (1.0 - share) * mean + share * (scale @ (scale.T @ score_mean) + theta_mean)
    return Moments(new_mean, scale)


def _triangular(rows: Float[Array, "n D"]) -> Float[Array, "D D"]:
    """Lower triangular L with positive diagonal and L L^T = R^T R, for rows R."""
    upper = jnp.linalg.qr(rows, mode="r")
    return upper.T * jnp.where(jnp.diagonal(upper) < 0, -1.0, 1.0)


class BaM(BaMShell, GaussianMatching):
    def _weight(self, size: int, step: Array) -> Array:
        return jnp.asarray(self._regularization_at(step, size), jnp.result_type(float))

    def _matched(
        self,
        moments: Moments,
        theta: Float[Array, "S D"],
        score: Float[Array, "S D"],
        step: Array,
    ) -> Moments:
        return bam_update(moments, theta, score, self._weight(theta.size, step))
