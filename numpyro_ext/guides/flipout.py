"""Flipout for NumPyro; see :mod:`ppl_ext.guides.flipout`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
from jax import Array

from numpyro_ext.guides.linear_sites import KeyedNoise, RowNoiseELBO
from ppl_ext.guides.flipout import FlipoutSigns


class FlipoutNoise(FlipoutSigns, KeyedNoise):
    def _random_signs(self, rows: int, length: int, like: Array) -> Array:
        return jax.random.rademacher(self.next_key(), (rows, length)).astype(like.dtype)


def flipout(elbo: Any, sites: Collection[str] | None = None) -> RowNoiseELBO:
    """An objective with gradients of lower variance for networks under a mean-field guide.

    The expectation of objective and gradient is that of ``elbo``; model and guide are not
    touched, and the weights stay sample sites.

    Parameters
    ----------
    elbo : Trace_ELBO, TraceMeanField_ELBO or TraceGraph_ELBO
        The host's objective.
    sites : collection of str, optional
        Names of the weights' sites. Default: all that are met as an operand of a matrix product
        or a convolution. Biases, and what is used otherwise, keep one draw for all rows.

    Returns
    -------
    RowNoiseELBO
        To be passed to the host's ``SVI`` as its loss.

    Notes
    -----
    The guide draws the weights from a factorised Normal over unconstrained sites:
    ``AutoNormal``, ``AutoDiagonalNormal``, or the host's ``sample(name, Normal(...))``. The
    first axis of what a weight is applied to (the batch axis of a convolution) holds the rows,
    and the likelihood is a product over rows: no batch normalisation. Places within a row, such
    as pixels or time steps, share their row's weights, and so do several applications of one
    weight; these are exact too. In Pyro a weight is met in ``F.linear``, ``F.conv*`` and
    ``x @ w``, as it is or as a view; not in other functions, such as those of recurrent layers
    and ``einsum``. In NumPyro a weight that enters a loop (``lax.scan``) or a function with
    derivatives of its own is not met there.

    Raises
    ------
    ArgumentError
        At once, when the objective is not linear in the log likelihood; from the first step,
        when a named site (or, by default, every site) is never met in a linear operation, a
        weight is used in other ways besides, or is not drawn from a factorised Normal.

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
