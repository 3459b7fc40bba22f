"""Kernelised Stein discrepancy between a fit and its target, see
:mod:`ppl_ext.diagnostics.stein_discrepancy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppl_ext.arguments import entry
from ppl_ext.batches.passes import rows_of_loader
from ppl_ext.diagnostics.stein_discrepancy import (
    BLOCK,
    KSD_DOCUMENTATION,
    Options,
    Points,
    SteinDiscrepancy,
    discrepancy_of,
)
from ppl_ext.documented import documented
from pyro_ext.density import LogDensity
from pyro_ext.density.arguments import placing
from pyro_ext.diagnostics.fit import SEED, fitted_guide, target_of_model

Metric = str | Tensor | np.ndarray | None


@documented(KSD_DOCUMENTATION, host="Pyro", state="", randomness=SEED)
@entry
def ksd(
    fit: Any,
    *,
    target: LogDensity | None = None,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batches: Iterable[Any] | None = None,
    num_samples: int | None = None,
    statistic: str | None = None,
    metric: Metric = "whitened",
    scale: float = 1.0,
    null: str | None = None,
    likelihood_temperature: float | None = None,
    draw_chunk: int | None = None,
    block: int = BLOCK,
    seed: int | None = None,
) -> SteinDiscrepancy:
    """Kernelised Stein discrepancy between a fit and its target.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> target = px.LogDensity(model, (y,))
    >>> right = 2.0 + 0.5 * torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    >>> shifted = px.ksd(right + 1.0, target=target, args=(y,))
    >>> print(px.ksd(right, target=target, args=(y,)).value < shifted.value)
    True
    """
    args, kwargs, passes = rows_of_loader(batches, args, kwargs, placing(None))
    points = Points(
        lambda given: isinstance(given, Tensor | np.ndarray),
        lambda given, at: torch.as_tensor(given, dtype=at.dtype, device=at.device).detach(),
        lambda num: fit.get_samples(num),
        lambda: fit.particles,
        lambda: fitted_guide(fit, model, args, kwargs, seed, passes),
        target_of_model,
    )
    of_fit, how = (model, args, kwargs, passes), (likelihood_temperature, draw_chunk)
    options = Options(statistic, metric, scale, null, block)
    return discrepancy_of(fit, points, target, of_fit, num_samples, how, options)
