"""Batch and match (``BaM``); see :mod:`ppl_ext.score_matching.matching`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.guides.flat_density import Moments
from numpyro_ext.score.gaussian_matching import GaussianMatching
from numpyro_ext.score.guide_engine import GuideEngine
from ppl_ext.score_matching.matching import BaMShell, bam_moments


def bam_update(
    moments: Moments,
    theta: Float[Array, "S D"],
    score: Float[Array, "S D"],
    weight: Float[Array, ""] | float,
) -> Moments:
    """Moments of the Normal q that minimises the objective of one step.

    ``moments`` are those of the present guide, which drew ``theta``; ``score`` is the target's
    there, and ``weight`` the paper's lambda_t: weight of the scores against the present guide.
    """
    return Moments(*bam_moments(jnp, _triangular, *moments, theta, score, weight))


def _triangular(rows: Float[Array, "n D"]) -> Float[Array, "D D"]:
    """Lower triangular L with positive diagonal and L L^T = R^T R, for rows R."""
    upper = jnp.linalg.qr(rows, mode="r")
    return upper.T * jnp.where(jnp.diagonal(upper) < 0, -1.0, 1.0)


class BaM(BaMShell, GaussianMatching, GuideEngine):
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
    >>> engine = nx.BaM(model)
    >>> result = engine.run(jax.random.key(0), 50, y)
    >>> draws = engine.get_samples(result.state, jax.random.key(1), 1000)
    >>> print(f"{engine.guide.median(result.params)['mean']:.1f} {draws['mean'].std():.1f}")
    2.0 0.5
    """

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
