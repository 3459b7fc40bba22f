"""Importance ratios p/q of a fitted guide: the ELBO, and Pareto k-hat.

Both draw theta from the guide q and need log p(theta) - log q(theta), on the flat unconstrained
space (so that log p includes the Jacobians), with log p over all rows of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jax import Array

from numpyro_ext.density.batches import place
from numpyro_ext.diagnostics.fit import RNG_KEY, STATE, fitted_guide
from numpyro_ext.sharding import entry
from ppl_ext.batches.passes import rows_of_loader
from ppl_ext.diagnostics.importance import (
    ELBO,
    ELBO_DOCUMENTATION,
    ELBO_SAMPLES,
    KHAT_DOCUMENTATION,
    KHAT_SAMPLES,
    evidence_lower_bound,
    ratios_at_draws,
)
from ppl_ext.documented import documented
from ppl_ext.options import check_count
from ppl_ext.statistics.khat import LEAST_KHAT_SAMPLES, ParetoKHat, pareto_khat


@documented(
    ELBO_DOCUMENTATION,
    host="NumPyro",
    engine_call="elbo(engine, state)",
    guide_call="elbo(guide, params, model=model, args=(x, y))",
    state=STATE,
    held="the values that they have in ``state``",
    randomness=RNG_KEY,
)
@entry
def elbo(
    fit: Any,
    state: Any = None,
    *,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batches: Iterable[Any] | None = None,
    num_samples: int = ELBO_SAMPLES,
    likelihood_temperature: float | None = 1.0,
    draw_chunk: int | None = None,
    rng_key: Array | None = None,
) -> ELBO:
    """Evidence lower bound E_q[log p(data, theta) - log q(theta)] of a fitted guide.

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
    >>> engine = nx.GSM(model)
    >>> result = engine.run(jax.random.key(0), 50, y)
    >>> bound = nx.elbo(engine, result.state)  # the log evidence, where the guide is exact
    >>> print(f"{bound.value:.1f}")
    -7.7
    """
    check_count("num_samples", num_samples, least=2)
    args, kwargs, passes = rows_of_loader(batches, args, kwargs, place)
    fitted = fitted_guide(fit, state, model, args, kwargs, rng_key, passes)
    ratios = ratios_at_draws(fitted, num_samples, likelihood_temperature, draw_chunk)
    return evidence_lower_bound(ratios)


@documented(
    KHAT_DOCUMENTATION, as_in_elbo="fit, state, model, args, kwargs, batches, draw_chunk, rng_key"
)
@entry
def psis_khat(
    fit: Any,
    state: Any = None,
    *,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batches: Iterable[Any] | None = None,
    num_samples: int = KHAT_SAMPLES,
    likelihood_temperature: float | None = None,
    draw_chunk: int | None = None,
    rng_key: Array | None = None,
) -> ParetoKHat:
    """Pareto k-hat of the importance ratios p/q of a fitted guide.

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
    >>> guide = numpyro.infer.autoguide.AutoDiagonalNormal(model, init_scale=0.6)
    >>> engine = nx.ProximalScoreVI(model, guide)
    >>> result = engine.run(jax.random.key(0), 100, y)
    >>> print(nx.psis_khat(engine, result.state).reliable)
    True
    """
    check_count("num_samples", num_samples, least=LEAST_KHAT_SAMPLES)
    args, kwargs, passes = rows_of_loader(batches, args, kwargs, place)
    fitted = fitted_guide(fit, state, model, args, kwargs, rng_key, passes)
    return pareto_khat(ratios_at_draws(fitted, num_samples, likelihood_temperature, draw_chunk))
