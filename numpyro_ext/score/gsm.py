"""Gaussian score matching (``GSM``); see :mod:`ppl_ext.score_matching.matching`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.guides.flat_density import Moments
from numpyro_ext.score.gaussian_matching import GaussianMatching
from numpyro_ext.score.guide_engine import GuideEngine
from ppl_ext.score_matching.matching import GSMShell, gsm_moments


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


class GSM(GSMShell, GaussianMatching, GuideEngine):
    """Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> engine = nx.GSM(model)
    >>> result = engine.run(jax.random.key(0), 50, y)
    >>> draws = engine.get_samples(result.state, jax.random.key(1), 1000)
    >>> print(f"{engine.guide.median(result.params)['mean']:.1f} {draws['mean'].std():.1f}")
    2.0 0.5
    """

    def _matched(
        self,
        moments: Moments,
        theta: Float[Array, "S D"],
        score: Float[Array, "S D"],
        step: Array,
    ) -> Moments:
        return gsm_update(moments, theta, score)
