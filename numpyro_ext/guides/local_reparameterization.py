"""The local reparameterisation: noise in a layer's outputs in place of its weights.

With independent Normal weights of mean M and variance V the outputs y = x W of a row are
independent Normals with mean x M and variance x^2 V (squares entry by entry). Drawing these
directly gives every row noise of its own, so that the variance of the gradient falls with the
number of rows, and fewer numbers are drawn.

D. P. Kingma, T. Salimans and M. Welling, "Variational dropout and the local reparameterization
trick", NeurIPS 2015, equation (6). For convolutions, with places drawn independently: D.
Molchanov, A. Ashukha and D. Vetrov, "Variational dropout sparsifies deep neural networks", ICML
2017.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import jax
import jax.numpy as jnp
from numpyro.infer import ELBO

from numpyro_ext.guides.linear_sites import LinearUse, RowNoise, RowNoiseELBO
from ppl_ext.errors import ArgumentError


def local_reparameterization(
    elbo: ELBO, sites: Collection[str] | None = None, *, independent_places: bool = False
) -> RowNoiseELBO:
    """An objective whose noise is drawn in the outputs of linear layers, for mean-field guides.

    The expectation of objective and gradient is that of ``elbo``; model and guide are not touched,
    and the weights stay sample sites, whose draws the objective's other terms see.

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
        approximation, and has to be asked for. :func:`~numpyro_ext.guides.flipout.flipout` is
        exact there.

    Returns
    -------
    RowNoiseELBO
        To be passed to the host's ``SVI`` as its loss.

    Notes
    -----
    What is asked of model and guide is as in :func:`~numpyro_ext.guides.flipout.flipout`; besides,
    a weight is applied once.

    Raises
    ------
    ArgumentError
        As in :func:`~numpyro_ext.guides.flipout.flipout`; and from the first step when a weight
        is applied twice, or at several places of a row without ``independent_places``.

    Examples
    --------
    >>> loss = local_reparameterization(TraceMeanField_ELBO())  # doctest: +SKIP
    >>> svi = SVI(model, AutoNormal(model), Adam(1e-3), loss)  # doctest: +SKIP
    """
    return RowNoiseELBO(elbo, partial(OutputNoise, independent_places=independent_places), sites)


class OutputNoise(RowNoise):
    """Independent Normal noise in the outputs, with the variance that the weights' noise has."""

    name = "local_reparameterization"

    def __init__(self, rng_key: jax.Array, independent_places: bool = False) -> None:
        super().__init__(rng_key)
        self._independent_places = independent_places
        self._seen: set[str] = set()

    def __call__(self, use: LinearUse) -> jax.Array:
        if use.site in self._seen:
            raise ArgumentError(
                f"Expected {use.site!r} to be applied once, found a second use, whose outputs "
                "depend on those of the first. Use flipout, which is exact there, or name the "
                "other sites in sites=."
            )
        if use.positions > 1 and not self._independent_places:
            raise ArgumentError(
                f"Expected {use.site!r} to be applied once a row, found {use.positions} places, "
                "whose outputs depend on each other. Use flipout, which is exact there, or accept "
                "the approximation of independent places with independent_places=True."
            )
        self._seen.add(use.site)
        mean = use.apply(use.x, use.draw.mean)
        variance = use.apply(jnp.square(use.x), jnp.square(use.draw.scale))
        return mean + _sqrt(variance) * jax.random.normal(self.next_key(), mean.shape, mean.dtype)


def _sqrt(variance: jax.Array) -> jax.Array:
    """Square root with derivative 0 at 0, where a row of zeros has no noise."""
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)
