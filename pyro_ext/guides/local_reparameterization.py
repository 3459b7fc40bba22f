"""The local reparameterisation for Pyro; see :mod:`ppl_ext.guides.local_reparameterization`."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ppl_ext.guides.local_reparameterization import NormalOutputs
from ppl_ext.scalars import square_root
from pyro_ext.guides.linear_sites import RowNoiseELBO


class OutputNoise(NormalOutputs):
    def _normal(self, mean: Tensor, variance: Tensor) -> Tensor:
        # A row of zeros has no noise.
        return mean + square_root(torch, variance) * torch.randn_like(mean)


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
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(x, y=None):
    ...     w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 1]).to_event(2))
    ...     with pyro.plate("rows", len(x)):
    ...         pyro.sample("y", dist.Normal((x @ w)[:, 0], 0.1), obs=y)
    >>> x = torch.eye(2).repeat(10, 1)
    >>> y = x @ torch.tensor([1.0, -1.0])
    >>> _ = pyro.set_rng_seed(0)
    >>> guide = pyro.infer.autoguide.AutoNormal(model)
    >>> loss = px.local_reparameterization(pyro.infer.TraceMeanField_ELBO())
    >>> svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), loss)
    >>> losses = [svi.step(x, y) for _ in range(200)]
    >>> print(guide.median()["w"][:, 0].round().tolist())
    [1.0, -1.0]
    """
    noise = partial(OutputNoise, independent_places=independent_places)
    return RowNoiseELBO(elbo, noise, sites)
