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
    ELBO_SAMPLES,
    KHAT_SAMPLES,
    evidence_lower_bound,
    ratios_at_draws,
)
from ppl_ext.options import check_count
from ppl_ext.statistics.khat import LEAST_KHAT_SAMPLES, ParetoKHat, pareto_khat
from pyro_ext.density.arguments import placing
from pyro_ext.diagnostics.fit import fitted_guide


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

    A Monte Carlo estimate over draws of the guide q, on the full data also when the model draws
    minibatches. It is at most the log evidence, which it equals when q is the posterior, up to
    its standard error.

    Parameters
    ----------
    fit
        An engine that fits a guide (``elbo(engine)``), or an autoguide that Pyro's own ``SVI``
        has fitted (``elbo(guide, model=model, args=(x, y))``).
    model : callable, optional
        Model of an autoguide; not with an engine. Parameters without a prior are held at
        their present values.
    args : tuple, optional
    kwargs : mapping, optional
        The model's arguments, with all rows of the data. Default with an engine: the arguments
        that it saw last, which must hold all rows.
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
    seed : int, optional
        Seed of the draws of a guide, which come from a generator of their own. Default: 0.

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

    A generalised Pareto distribution is fitted to the largest ratios over draws of
    the guide q; its shape k-hat tells how far q is from the posterior p where q has mass. Below
    ``threshold`` (0.7 with 2155 draws or more) q is good enough to be corrected by importance
    weights.

    Parameters
    ----------
    fit, model, args, kwargs, batches, draw_chunk, seed
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
