"""``check``: draws of any method on a Pyro program, judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from pyro.infer import MCMC, SVI
from torch import Tensor

from ppl_ext.arguments import entry
from ppl_ext.batches.passes import Passes, rows_of_loader
from ppl_ext.check import check as shared
from ppl_ext.check.check import CHECK_ESS, Program
from ppl_ext.check.checked import Checked
from ppl_ext.check.predictions import told_of_predictions
from ppl_ext.check.source import Source, number_of_draws, of_engine, of_guide, source_of
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.arguments import placing
from pyro_ext.diagnostics.fit import Chains, FittedGuide, HostFit, fitted_guide
from pyro_ext.diagnostics.predictive import predictive_distribution
from pyro_ext.engine import Engine
from pyro_ext.fit import ways_of


@entry
def check(
    draws: Any,
    model: Callable[..., Any],
    *args: Any,
    batches: Iterable[Any] | None = None,
    held_out: tuple[Any, ...] | None = None,
    seed: int = 0,
    budget: int | None = None,
    seconds: float | None = None,
    target_ess: float = CHECK_ESS,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Checked:
    """Whether draws of any method are the posterior's.

    Witnesses are computed in turn, the cheap ones first; draws that one of them refuses are
    refused. Figures of the draws themselves: R-hat, effective draws, divergences and E-BFMI of
    Markov chains, Pareto k-hat and reweighted moments of guides, Stein's identities of the scores.
    Then short Hamiltonian chains from the draws, which leave the posterior as it is: whatever
    shifts is not the posterior's. At last a fit, made anew as by :func:`fit`: means, standard
    deviations, tails and whole marginals are compared with its chains' own, coordinate by
    coordinate, with allowance for chance.

    Parameters
    ----------
    seed : int
        Seed of all random numbers.
    draws
        An engine that has run, a fit, the host's ``SVI`` or its guide, the host's ``MCMC`` after
        ``run``, or a mapping from latent sites to constrained values, first axis = draws. Of a
        guide 2,000 draws are made, fewer in very high dimension.
    model : callable
        Pyro program.
    *args, **kwargs
        Its arguments, with all rows.
    batches : iterable, optional
        All rows from a loader, in place of ``args``; see :func:`fit`. Where there is no time for
        passes over it, Stein's identities are computed on a sample of its batches.
    held_out : tuple, optional
        The same arguments with other rows, observations among them: the calibration of the draws'
        predictions for these is told, which is all that there is for large programs.
    budget, seconds, target_ess, progress_bar
        Of the whole check and of the chains; see :func:`fit`.

    Returns
    -------
    Checked
        A :class:`Verdict` with the draws, which ``summary``, ``to_arviz``, ``plot`` and
        ``predict`` show as those of a fit: "approximate" and trusted where the draws agree with
        chains that agree; "not trusted" with what speaks against them; else "approximate" and not
        trusted, with what was not done. By site, bounds on the errors of means and standard
        deviations.

    Raises
    ------
    ModelCheckError
        The model cannot be fitted.
    ArgumentError
        The draws are not of this model.

    Notes
    -----
    The draws are judged as the posterior's of the model as it is: those of an engine with a
    tempered likelihood are not. Right draws are seldom refused, and mostly those of a density on
    which no chains come to rest. A mode that neither the draws nor the fit's search have found is
    seen by nobody.

    References
    ----------
    Importance ratios: A. Vehtari and others, "Pareto smoothed importance sampling" (2024). Nested
    R-hat: C. Margossian and others, "Nested R-hat" (2024).

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
    >>> narrow = {"mean": 2.0 + 0.1 * torch.randn(1000)}
    >>> verdict = px.check(narrow, model, y)
    >>> print(verdict.level)
    not trusted
    """
    some, named, passes = rows_of_loader(batches, args, kwargs, placing(None))
    first = some or (), dict(named or {})
    source = source_of(draws, lambda found: of_host(found, model, *first, seed, passes))

    def predictions() -> str:
        predicted = predictive_distribution(model, source.draws, *held_out or (), return_sites=())
        return told_of_predictions(predicted)

    generator = np.random.default_rng(seed)
    return shared.check(
        source,
        program_of(model, args, kwargs, seed, generator, passes),
        generator,
        seed,
        budget=budget,
        seconds=seconds,
        target_ess=target_ess,
        progress_bar=progress_bar,
        predictions=None if held_out is None else predictions,
    )


def program_of(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    seed: int,
    generator: np.random.Generator,
    passes: Passes | None = None,
) -> Program:
    """What a check asks of a Pyro program."""
    ways = ways_of(model, args, kwargs, seed, generator, passes=passes)
    return shared.program_of(ways, passes, _unconstrain, _parts)


def _unconstrain(target: LogDensity, data: Data, draws: Mapping[str, Any]) -> np.ndarray:
    names, dtype = target.layout.names, target.dtype
    values = {name: torch.as_tensor(draws[name]).detach().to(dtype) for name in names}
    return target.unconstrain(values, data).detach().double().cpu().numpy()


def _parts(target: LogDensity, data: Data, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = target.full_score_parts(torch.as_tensor(positions, dtype=target.dtype), data)
    return found.prior.detach().cpu().numpy(), found.likelihood.detach().cpu().numpy()


def of_host(
    found: Any,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    seed: int,
    passes: Passes | None = None,
) -> Source | None:
    """Draws of a fit of Pyro or of this package as a ``Source``; None where it is no such fit."""
    if isinstance(found, MCMC):
        chains = Chains(found, args, kwargs, passes)
        draws = chains.get_samples()
        # The flags of the draws need no positions: an empty tensor stands for them.
        number = len(next(iter(draws.values())))
        diverging = chains.sample_statistics(torch.zeros(number, 0)).get("diverging")
        divergent = None if diverging is None else float(diverging.double().mean())
        name = type(found.kernel).__name__
        return Source(name, "Markov chains", draws, chains.num_chains, divergent)
    if isinstance(found, Engine):
        if (drawn := of_engine(found, found.get_samples)) is not None:
            return drawn
        fitted = fitted_guide(found, None, args, kwargs, seed, passes)
        return _of_guide(type(found).__name__, fitted)
    guide = found.guide if isinstance(found, SVI) else found
    # A class, data, or a fit with draws of its own is no guide.
    if isinstance(guide, type) or not callable(guide) or hasattr(guide, "get_samples"):
        return None
    fit = HostFit(guide, model, args, kwargs, seed, passes)
    if fit.fitted is not None:
        return _of_guide(type(guide).__name__, fit.fitted)
    # A guide written by hand has no flat density, so that its draws are all there is to look at.
    samples = fit.get_samples(number_of_draws(fit.target.dim))
    return Source("SVI", "independent draws", samples)


def _of_guide(name: str, fitted: FittedGuide) -> Source:
    target = fitted.target

    @torch.no_grad()
    def constrain(positions: np.ndarray) -> dict[str, Tensor]:
        return target.constrain(torch.as_tensor(positions, dtype=target.dtype), fitted.data)

    return of_guide(name, fitted, constrain)
