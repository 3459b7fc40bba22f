"""Kernelised Stein discrepancy between a fit and its target, see
:mod:`ppl_ext.diagnostics.stein_discrepancy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from jax import Array

from numpyro_ext.density import LogDensity
from numpyro_ext.density.batches import place
from numpyro_ext.diagnostics.fit import (
    RNG_KEY,
    STATE,
    fitted_guide,
    state_of_engine,
    target_of_model,
)
from numpyro_ext.sharding import entry
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
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count

Metric = str | Array | np.ndarray | None


@documented(
    KSD_DOCUMENTATION,
    host="NumPyro",
    state=f"{STATE.rstrip()} Not with positions.",
    randomness=RNG_KEY,
)
@entry
def ksd(
    fit: Any,
    state: Any = None,
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
    rng_key: Array | None = None,
) -> SteinDiscrepancy:
    """Kernelised Stein discrepancy between a fit and its target.

    Examples
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
    >>> target = nx.LogDensity(model, jax.random.key(0), (y,))
    >>> right = 2.0 + 0.5 * jax.random.normal(jax.random.key(1), (500, 1))
    >>> shifted = nx.ksd(right + 1.0, target=target, args=(y,))
    >>> print(nx.ksd(right, target=target, args=(y,)).value < shifted.value)
    True
    """
    args, kwargs, passes = rows_of_loader(batches, args, kwargs, place)
    options = {
        "statistic": statistic,
        "metric": metric,
        "scale": scale,
        "block": block,
        "null": null,
    }
    if isinstance(fit, (Array, np.ndarray)):
        if state is not None:
            raise ArgumentError(
                f"Expected no state with positions, found {type(state).__name__}. Pass target=... "
                "or model=..., and args=(...)."
            )
        target, data = target_of_positions(
            fit, target, model, args, kwargs, num_samples, target_of_model, passes
        )
        positions = np.asarray(fit, target.dtype)
        check_positions(positions.shape, target.dim)
    else:
        check_no_target(target, fit)
        if is_sampler(fit):
            target, data = target_of_engine(fit, model, args, kwargs, passes)
            check_count("num_samples", num_samples, optional=True)
            state = state_of_engine(fit, state)
            drawn = fit.get_samples(state, rng_key, num_samples or KSD_SAMPLES)
            positions = np.asarray(target.unconstrain(drawn, data))
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
            fitted = fitted_guide(fit, state, model, args, kwargs, rng_key, passes)
            return discrepancy_of_guide(
                fitted, num_samples, likelihood_temperature, draw_chunk, **options
            )
        check_not_particles(null, fit)
        target, data = target_of_engine(fit, model, args, kwargs, passes)
        positions = np.asarray(fit.particles(state_of_engine(fit, state)))
        check_num_samples(num_samples, len(positions))
    return discrepancy_of_positions(
        positions, target, data, likelihood_temperature, draw_chunk, **options
    )
