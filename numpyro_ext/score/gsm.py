"""Gaussian score matching (``GSM``); see :mod:`ppl_ext.matching`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.guides.flat_density import Moments
from numpyro_ext.score.gaussian_matching import GaussianMatching
from ppl_ext.matching import GSMShell, gsm_moments


def gsm_update(moments: Moments, theta: Float[Array, "S D"], score: Float[Array, "S D"]) -> Moments:
    """Moments of the next guide, from the scores of the target at draws from the present one.

    With NaN for a scale when the covariance is not positive definite. That cannot happen in exact
    arithmetic; in floating point the covariance is a difference.
    """
    mean, covariance = gsm_moments(*moments, theta, score)
    # As little as keeps a covariance that is singular to rounding positive definite.
    jitter = jnp.finfo(covariance.dtype).eps * jnp.diagonal(covariance).mean()
    factor = jnp.linalg.cholesky(covariance + jitter * jnp.eye(len(mean), dtype=mean.dtype))
    return Moments(mean, factor)


class GSM(GSMShell, GaussianMatching):
    def _matched(
        self,
        moments: Moments,
        theta: Float[Array, "S D"],
        score: Float[Array, "S D"],
        step: Array,
    ) -> Moments:
        return gsm_update(moments, theta, score)
