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
from ppl_ext.diagnostics.fit import target_of_engine
from ppl_ext.diagnostics.stein_discrepancy import (
    BLOCK,
    KSD_DOCUMENTATION,
    KSD_SAMPLES,
    SteinDiscrepancy,
    check_no_target,
    check_not_particles,
    check_num_samples,
    check_positions,
    discrepancy_of_guide,
    discrepancy_of_positions,
    is_sampler,
    target_of_positions,
)
from ppl_ext.documented import documented
from ppl_ext.options import check_count
from pyro_ext.density import LogDensity
from pyro_ext.density.batches import placing
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
    options = {
        "statistic": statistic,
        "metric": metric,
        "scale": scale,
        "block": block,
        "null": null,
    }
    if isinstance(fit, (Tensor, np.ndarray)):
        target, data = target_of_positions(
            fit, target, model, args, kwargs, num_samples, target_of_model, passes
        )
        positions = torch.as_tensor(fit, dtype=target.dtype, device=target.device).detach()
        check_positions(tuple(positions.shape), target.dim)
    else:
        check_no_target(target, fit)
        if is_sampler(fit):
            target, data = target_of_engine(fit, model, args, kwargs, passes)
            check_count("num_samples", num_samples, optional=True)
            drawn = fit.get_samples(num_samples or KSD_SAMPLES)
            positions = target.unconstrain(drawn, data).detach()
            return discrepancy_of_positions(
                positions,
                target,
                data,
                likelihood_temperature,
                draw_chunk,
                **{**options, "statistic": statistic or "U"},
            )
        particles = hasattr(fit, "target") and hasattr(fit, "particles")
        if not particles or hasattr(fit, "approximation"):
            fitted = fitted_guide(fit, model, args, kwargs, seed, passes)
            return discrepancy_of_guide(
                fitted, num_samples, likelihood_temperature, draw_chunk, **options
            )
        check_not_particles(null, fit)
        target, data = target_of_engine(fit, model, args, kwargs, passes)
        positions = fit.particles
        check_num_samples(num_samples, len(positions))
    return discrepancy_of_positions(
        positions, target, data, likelihood_temperature, draw_chunk, **options
    )
