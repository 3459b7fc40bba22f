"""``check``: draws of any method on a NumPyro program, judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.infer import MCMC, SVI

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.batches import place
from numpyro_ext.diagnostics.fit import Chains, FittedGuide, HostFit, fitted_guide, state_of_engine
from numpyro_ext.diagnostics.predictive import predictive_distribution
from numpyro_ext.draws import check_key
from numpyro_ext.engine import Engine
from numpyro_ext.fit import ways_of
from numpyro_ext.sharding import entry
from ppl_ext.batches.passes import Passes, rows_of_loader
from ppl_ext.check import check as shared
from ppl_ext.check.check import CHECK_ESS, Program
from ppl_ext.check.checked import Checked
from ppl_ext.check.predictions import told_of_predictions
from ppl_ext.check.source import Source, number_of_draws, of_engine, of_guide, source_of
from ppl_ext.errors import ArgumentError

#: Draws that are unconstrained together; fewer are filled up, so that one program serves all.
WIDTH = 500


@entry
def check(
    rng_key: Array,
    draws: Any,
    model: Callable[..., Any],
    *args: Any,
    batches: Iterable[Any] | None = None,
    held_out: tuple[Any, ...] | None = None,
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
    rng_key : array
        JAX random key.
    draws
        ``(engine, result)`` of an engine's run, a fit, ``(svi, result)`` or ``(guide, params)`` of
        the host's ``SVI``, the host's ``MCMC`` after ``run``, or a mapping from latent sites to
        constrained values, first axis = draws. Of a guide 2,000 draws are made, fewer in very high
        dimension.
    model : callable
        NumPyro program.
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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> narrow = {"mean": 2.0 + 0.1 * jax.random.normal(jax.random.key(0), (1000,))}
    >>> verdict = nx.check(jax.random.key(1), narrow, model, y)
    >>> print(verdict.level)
    not trusted
    """
    check_key(rng_key, "check", "draws")
    # The draws that are checked have a key of their own: those of the check must be independent of
    # them.
    of_source, rng_key = random.split(rng_key)
    some, named, passes = rows_of_loader(batches, args, kwargs, place)
    first = some or (), dict(named or {})
    source = source_of(draws, lambda found: of_host(found, model, *first, of_source, passes))

    def predictions() -> str:
        held: dict[str, Any] = {"params": source.held} if source.held else {}
        held["return_sites"] = ()
        predicted = predictive_distribution(model, source.draws, *held_out or (), **held)
        return told_of_predictions(predicted)

    generator = np.random.default_rng(np.asarray(random.bits(rng_key, (4,))))
    seed = int(random.bits(random.split(rng_key)[0]))
    return shared.check(
        source,
        program_of(model, args, kwargs, seed, generator, source.held, passes),
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
    held: Mapping[str, Any] | None = None,
    passes: Passes | None = None,
) -> Program:
    """What a check asks of a NumPyro program, parameters without a prior as in ``held``."""
    ways = ways_of(model, args, kwargs, seed, generator, engine="check", held=held, passes=passes)
    return shared.program_of(ways, passes, _unconstrain, _parts)


def _unconstrain(target: LogDensity, data: Data, draws: Mapping[str, Any]) -> np.ndarray:
    values = {name: np.asarray(draws[name], target.dtype) for name in target.layout.names}
    number = len(values[target.layout.names[0]])
    pieces = []
    for start in range(0, number, WIDTH):
        # The last draw fills the last piece up. The copies are left out below.
        rows = np.minimum(np.arange(start, start + WIDTH), number - 1)
        some = {name: jnp.asarray(value[rows]) for name, value in values.items()}
        pieces.append(np.asarray(target.unconstrain(some, data), np.float64))
    return np.concatenate(pieces)[:number]


def _parts(target: LogDensity, data: Data, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = target.full_score_parts(jnp.asarray(positions, target.dtype), data)
    return np.asarray(found.prior), np.asarray(found.likelihood)


def of_host(
    found: Any,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    rng_key: Array,
    passes: Passes | None = None,
) -> Source | None:
    """Draws of what NumPyro or this package has fitted."""
    if isinstance(found, MCMC):
        chains = Chains(found, args, kwargs, passes)
        fields = found.get_extra_fields(group_by_chain=True)
        diverging, energy = fields.get("diverging"), fields.get("energy")
        return Source(
            type(found.sampler).__name__,
            "Markov chains",
            chains.get_samples(None),
            chains.num_chains,
            None if diverging is None else float(np.asarray(diverging).mean()),
            None if energy is None else np.asarray(energy, np.float64).T,
        )
    if not isinstance(found, tuple) or len(found) != 2:
        return None
    fit, state = found
    if isinstance(fit, Engine):
        fit, state = fit.of_run(state)
        state = state_of_engine(fit, state)
        drawn = of_engine(fit, partial(fit.get_samples, state, rng_key))
        if drawn is not None:
            return drawn
        guide = fitted_guide(fit, state, None, args, kwargs, rng_key, passes)
        return _of_guide(type(fit).__name__, guide, {})
    if isinstance(fit, SVI):
        # The parameters, the result of svi.run, or the state of svi.update.
        is_state = not isinstance(state, Mapping) and not hasattr(state, "params")
        fit, state = fit.guide, fit.get_params(state) if is_state else state
    params = getattr(state, "params", state)
    if not callable(fit) or not isinstance(params, Mapping):
        raise ArgumentError(
            "Expected (engine, result), (svi, result) or (guide, params), found "
            f"({type(fit).__name__}, {type(state).__name__})."
        )
    host = HostFit(fit, params, model, args, kwargs, passes)
    if host.fitted is not None:
        return _of_guide(type(fit).__name__, host.fitted, params)
    # A guide written by hand has no flat density, so that its draws are all there is to look at.
    samples = host.get_samples(params, rng_key, number_of_draws(host.target.dim))
    return Source("SVI", "independent draws", samples, held=params)


def _of_guide(name: str, fitted: FittedGuide, held: Mapping[str, Any]) -> Source:
    target = fitted.target

    def constrain(positions: np.ndarray) -> dict[str, Array]:
        return target.constrain(jnp.asarray(positions, target.dtype), fitted.data)

    return of_guide(name, fitted, constrain, held)
