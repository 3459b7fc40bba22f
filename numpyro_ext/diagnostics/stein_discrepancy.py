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
from ppl_ext.diagnostics.stein_discrepancy import (
    BLOCK,
    KSD_DOCUMENTATION,
    Options,
    Points,
    SteinDiscrepancy,
    discrepancy_of,
)
from ppl_ext.documented import documented
from ppl_ext.errors import ArgumentError

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
    if isinstance(fit, (Array, np.ndarray)) and state is not None:
        raise ArgumentError(
            f"Expected no state with positions, found {type(state).__name__}. Pass target=... "
            "or model=..., and args=(...)."
        )
    points = Points(
        lambda given: isinstance(given, (Array, np.ndarray)),
        lambda given, at: np.asarray(given, at.dtype),
        lambda num: fit.get_samples(state_of_engine(fit, state), rng_key, num),
        lambda: fit.particles(state_of_engine(fit, state)),
        lambda: fitted_guide(fit, state, model, args, kwargs, rng_key, passes),
        target_of_model,
    )
    of_fit, how = (model, args, kwargs, passes), (likelihood_temperature, draw_chunk)
    options = Options(statistic, metric, scale, null, block)
    return discrepancy_of(fit, points, target, of_fit, num_samples, how, options)
