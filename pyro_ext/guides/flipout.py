"""Flipout for Pyro; see :mod:`ppl_ext.guides.flipout`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from ppl_ext.documented import documented
from ppl_ext.guides.flipout import FLIPOUT_DOCUMENTATION, FlipoutSigns
from pyro_ext.guides.linear_sites import RowNoiseELBO


class FlipoutNoise(FlipoutSigns):
    def _random_signs(self, rows: int, length: int, like: Tensor) -> Tensor:
        bits = torch.randint(2, (rows, length), device=like.device)
        return (2 * bits - 1).to(like.dtype)


@documented(FLIPOUT_DOCUMENTATION)
def flipout(elbo: Any, sites: Collection[str] | None = None) -> RowNoiseELBO:
    """An objective with gradients of lower variance for networks under a mean-field guide.

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
    >>> loss = px.flipout(pyro.infer.TraceMeanField_ELBO())
    >>> svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), loss)
    >>> losses = [svi.step(x, y) for _ in range(200)]
    >>> print(guide.median()["w"][:, 0].round().tolist())
    [1.0, -1.0]
    """
    return RowNoiseELBO(elbo, FlipoutNoise, sites)
