"""Importance ratios p/q of a fitted guide: the ELBO, and Pareto k-hat.

Both draw theta from the guide q and need log p(theta) - log q(theta), on the flat unconstrained
space (so that log p includes the Jacobians), with log p over all rows of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ppl_ext.arguments import entry
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
from pyro_ext.density.arguments import placing
from pyro_ext.diagnostics.fit import SEED, fitted_guide


@documented(
    ELBO_DOCUMENTATION,
    host="Pyro",
    engine_call="elbo(engine)",
    guide_call="elbo(guide, model=model, args=(x, y))",
    state="",
    held="their present values",
    randomness=SEED,
)
@entry
def elbo(
    fit: Any,
    *,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batches: Iterable[Any] | None = None,
    num_samples: int = ELBO_SAMPLES,
    likelihood_temperature: float | None = 1.0,
    draw_chunk: int | None = None,
    seed: int | None = None,
) -> ELBO:
    """Evidence lower bound E_q[log p(data, theta) - log q(theta)] of a fitted guide.

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
    >>> engine = px.GSM(model, seed=0)
    >>> result = engine.run(50, y)
    >>> bound = px.elbo(engine, seed=0)  # the log evidence, where the guide is exact
    >>> print(f"{bound.value:.1f}")
    -7.7
    """
    check_count("num_samples", num_samples, least=2)
    args, kwargs, passes = rows_of_loader(batches, args, kwargs, placing(None))
    fitted = fitted_guide(fit, model, args, kwargs, seed, passes)
    ratios = ratios_at_draws(fitted, num_samples, likelihood_temperature, draw_chunk)
    return evidence_lower_bound(ratios)


@documented(KHAT_DOCUMENTATION, as_in_elbo="fit, model, args, kwargs, batches, draw_chunk, seed")
@entry
def psis_khat(
    fit: Any,
    *,
    model: Callable[..., Any] | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    batches: Iterable[Any] | None = None,
    num_samples: int = KHAT_SAMPLES,
    likelihood_temperature: float | None = None,
    draw_chunk: int | None = None,
    seed: int | None = None,
) -> ParetoKHat:
    """Pareto k-hat of the importance ratios p/q of a fitted guide.

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
    >>> guide = pyro.infer.autoguide.AutoDiagonalNormal(model, init_scale=0.6)
    >>> engine = px.ProximalScoreVI(model, guide, seed=0)
    >>> result = engine.run(100, y)
    >>> print(px.psis_khat(engine, seed=0).reliable)
    True
    """
    check_count("num_samples", num_samples, least=LEAST_KHAT_SAMPLES)
    args, kwargs, passes = rows_of_loader(batches, args, kwargs, placing(None))
    fitted = fitted_guide(fit, model, args, kwargs, seed, passes)
    return pareto_khat(ratios_at_draws(fitted, num_samples, likelihood_temperature, draw_chunk))
