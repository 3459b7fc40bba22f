"""Importance ratios p/q of a fitted guide: the ELBO, and Pareto k-hat.

Both draw theta from the guide q and need log p(theta) - log q(theta), on the flat unconstrained
space (so that log p includes the Jacobians), with log p over all rows of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jax import Array

from numpyro_ext.density.batches import place
from numpyro_ext.diagnostics.fit import fitted_guide
from numpyro_ext.sharding import entry
from ppl_ext.batches.passes import rows_of_loader
from ppl_ext.diagnostics.importance import (
    ELBO,
    ELBO_SAMPLES,
    KHAT_SAMPLES,
    evidence_lower_bound,
    ratios_at_draws,
)
from ppl_ext.options import check_count
from ppl_ext.statistics.khat import LEAST_KHAT_SAMPLES, ParetoKHat, pareto_khat


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

    A Monte Carlo estimate over draws of the guide q, on the full data also when the model draws
    minibatches. It is at most the log evidence, which it equals when q is the posterior, up to
    its standard error.

    Parameters
    ----------
    fit
        An engine that fits a guide (``elbo(engine, state)``), or an autoguide that NumPyro's own
        ``SVI`` has fitted (``elbo(guide, params, model=model, args=(x, y))``).
    state
        State of the engine, or the result of its run; or the parameters of the autoguide as
        ``SVI.get_params`` gives them, or the result of ``SVI.run``.
    model : callable, optional
        Model of an autoguide; not with an engine. Parameters without a prior are held at
        the values that they have in ``state``.
    args : tuple, optional
    kwargs : mapping, optional
        The model's arguments, with all rows of the data. Default with an engine: the arguments
        of a result's run, or that the engine saw last, which must hold all rows.
    batches : iterable, optional
        All rows in place of ``args``, as batches of a loader that is passed over again and again.
    num_samples : int
        Draws of the guide.
    likelihood_temperature : float or None
        The log likelihood is divided by this. Default: 1, the model as it is, whatever the
        engine was fitted to, because only that is a bound on the log evidence. None takes the
        temperature of the engine.
    draw_chunk : int, optional
        At most this many draws are evaluated at once, which bounds memory; each chunk is drawn
        when its turn comes, so that another chunk gives other draws. Default: 100, fewer in
        very high dimension.
    rng_key : array, optional
        Key of the draws of a guide. Default: one derived from the engine's state, so that every
        call gives the same draws; ``jax.random.key(0)`` for an autoguide.

    Returns
    -------
    ELBO
        ``value``, ``standard_error`` and ``num_samples``.

    Raises
    ------
    ArgumentError
        ``fit`` has no guide with a flat log density, the arguments hold only some rows of a
        plate, or log p - log q is not a number at some draw.

    Notes
    -----
    Normalising constants are all included. A draw at which log p is -inf makes the value -inf.

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

    A generalised Pareto distribution is fitted to the largest ratios over draws of
    the guide q; its shape k-hat tells how far q is from the posterior p where q has mass. Below
    ``threshold`` (0.7 with 2155 draws or more) q is good enough to be corrected by importance
    weights.

    Parameters
    ----------
    fit, state, model, args, kwargs, batches, draw_chunk, rng_key
        As in :func:`elbo`.
    num_samples : int
        Draws of the guide, at least 25.
    likelihood_temperature : float or None
        The log likelihood is divided by this. Default: the temperature that the engine was
        fitted with, because the question is how well the guide fits its target; 1 for an
        autoguide.

    Returns
    -------
    ParetoKHat
        ``khat`` and ``num_samples``, with the properties ``threshold``, ``reliable`` and
        ``message``.

    Raises
    ------
    ArgumentError
        As in :func:`elbo`, or every draw has log p = -inf.

    Notes
    -----
    k-hat sees what the draws see: a mode that q never visits leaves no trace in it. In high
    dimension it exceeds 0.7 also for guides whose means and standard deviations are close.

    References
    ----------
    Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, Journal
    of Machine Learning Research 25(72), `arXiv:1507.02646 <https://arxiv.org/abs/1507.02646>`_.
    Yao, Vehtari, Simpson and Gelman (2018), Yes, but did it work? Evaluating variational
    inference, Algorithm 1, `arXiv:1802.02538 <https://arxiv.org/abs/1802.02538>`_.

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
