"""Flipout for NumPyro; see :mod:`ppl_ext.guides.flipout`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
from jax import Array

from numpyro_ext.guides.linear_sites import KeyedNoise, RowNoiseELBO
from ppl_ext.documented import documented
from ppl_ext.guides.flipout import FLIPOUT_DOCUMENTATION, FlipoutSigns


class FlipoutNoise(FlipoutSigns, KeyedNoise):
    def _random_signs(self, rows: int, length: int, like: Array) -> Array:
        return jax.random.rademacher(self.next_key(), (rows, length)).astype(like.dtype)


@documented(FLIPOUT_DOCUMENTATION)
def flipout(elbo: Any, sites: Collection[str] | None = None) -> RowNoiseELBO:
    """An objective with gradients of lower variance for networks under a mean-field guide.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(x, y=None):
    ...     w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 1]).to_event(2))
    ...     with numpyro.plate("rows", len(x)):
    ...         numpyro.sample("y", dist.Normal((x @ w)[:, 0], 0.1), obs=y)
    >>> x = jnp.tile(jnp.eye(2), (10, 1))
    >>> y = x @ jnp.array([1.0, -1.0])
    >>> guide = numpyro.infer.autoguide.AutoNormal(model)
    >>> loss = nx.flipout(numpyro.infer.TraceMeanField_ELBO())
    >>> svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(0.05), loss)
    >>> result = svi.run(jax.random.key(0), 200, x, y, progress_bar=False)
    >>> print(guide.median(result.params)["w"][:, 0].round())
    [ 1. -1.]
    """
    return RowNoiseELBO(elbo, FlipoutNoise, sites)
