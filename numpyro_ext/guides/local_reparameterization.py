"""The local reparameterisation for NumPyro; see :mod:`ppl_ext.guides.local_reparameterization`."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from numpyro_ext.guides.linear_sites import KeyedNoise, RowNoiseELBO
from ppl_ext.guides.local_reparameterization import NormalOutputs
from ppl_ext.scalars import square_root


class OutputNoise(NormalOutputs, KeyedNoise):
    def _normal(self, mean: Array, variance: Array) -> Array:
        noise = jax.random.normal(self.next_key(), mean.shape, mean.dtype)
        # A row of zeros has no noise.
        return mean + square_root(jnp, variance) * noise


def local_reparameterization(
    elbo: Any, sites: Collection[str] | None = None, *, independent_places: bool = False
) -> RowNoiseELBO:
    """An objective whose noise is drawn in the outputs of linear layers, for mean-field guides.

    The expectation of objective and gradient is that of ``elbo``; model and guide are not
    touched, and the weights stay sample sites, whose draws the objective's other terms see.

    Parameters
    ----------
    elbo : Trace_ELBO, TraceMeanField_ELBO or TraceGraph_ELBO
        The host's objective. TraceMeanField_ELBO has no noise in the divergence from the prior.
    sites : collection of str, optional
        Names of the weights' sites. Default: all that are met as an operand of a matrix product
        or a convolution. Biases, and what is used otherwise, keep one draw for all rows.
    independent_places : bool
        A convolution applies its weights at many places of a row, whose outputs are then
        correlated. Drawing them independently, as is usual, changes the objective: it is an
        approximation, and has to be asked for. ``flipout`` is exact there.

    Returns
    -------
    RowNoiseELBO
        To be passed to the host's ``SVI`` as its loss.

    Notes
    -----
    What is asked of model and guide is as in ``flipout``; besides, a weight is applied once.

    Raises
    ------
    ArgumentError
        As in ``flipout``; and from the first step when a weight is applied twice, or at several
        places of a row without ``independent_places``.

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
    >>> loss = nx.local_reparameterization(numpyro.infer.TraceMeanField_ELBO())
    >>> svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(0.05), loss)
    >>> result = svi.run(jax.random.key(0), 200, x, y, progress_bar=False)
    >>> print(guide.median(result.params)["w"][:, 0].round())
    [ 1. -1.]
    """
    noise = partial(OutputNoise, independent_places=independent_places)
    return RowNoiseELBO(elbo, noise, sites)
