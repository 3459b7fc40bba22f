"""Conversion of a fitted engine, or of a guide of the host's, to ArviZ, on the full data.

Engines need two things for it: ``target`` (their log density) and ``get_samples(state,
rng_key=..., num_samples=...)``. Where they have more to say, they define any of the following,
each looked up by name:

``sample_statistics(state, positions)``
    Statistics of each draw, as a dict of (S,) arrays, given the draws' unconstrained
    positions (S, D). Guides return ``log_q``, their log density at the positions. They go to
    the group ``sample_stats``, beside ``log_p``, the model's log density at the positions.
``arviz_attributes()``
    A dict of attributes. ``sample_kind`` says what the draws are: "particles" or
    "independent draws".

The figures of every step go to the group ``optimization`` when the run's result is passed, or
its losses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpy.typing import NDArray
from numpyro.infer import MCMC

from numpyro_ext.density.replay import Replay, replay
from numpyro_ext.diagnostics.chains import Chains
from numpyro_ext.diagnostics.host_fit import HostFit
from numpyro_ext.engine import RunResult
from ppl_ext.diagnostics.inference_data import (
    Variable,
    constant_variables,
    inference_data,
    leading_plate,
    named_arguments,
)
from ppl_ext.errors import ArgumentError

Array = NDArray[Any]

_NOTES = {
    "particles": (
        "The draws are particles of one fit, stored as one chain. They are not a Markov chain: "
        "R-hat and effective sample size do not apply."
    ),
    "independent draws": (
        "The draws are independent draws from a fitted approximation, stored as one chain. "
        "R-hat and effective sample size say nothing about the fit."
    ),
}


def to_arviz(
    engine: Any,
    state: Any = None,
    *args: Any,
    num_samples: int | None = None,
    posterior_predictive: bool = True,
    log_likelihood: bool = True,
    observed_data: bool = True,
    sample_stats: bool = True,
    constant_data: Mapping[str, Any] | bool = True,
    losses: Any = None,
    result: RunResult | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    draw_chunk: int | None = None,
    data_chunk: int | None = None,
    rng_key: Any = None,
    model: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Convert a fitted engine, a run of the host's ``MCMC``, or a guide fitted by its ``SVI``.

    Everything is computed on the full data, also when the model draws minibatches: the model
    is replayed over chunks of rows, and the rows come out in their order. When batches are
    passed as arguments, pass the arrays of all rows here.

    The draws of an engine are stored as one chain, those of ``MCMC`` as its chains. Deterministic
    sites are part of the posterior; of a Stan program the posterior has the parameters, and the
    vector that they come from is in the group ``unconstrained_posterior``. Names
    are made safe for netCDF ("/" becomes "."); the attribute ``renamed`` holds the originals.

    Parameters
    ----------
    engine
        An engine of this package; ``numpyro.infer.MCMC`` after ``run``, with any kernel of a
        model; or, with ``model``, a guide fitted by NumPyro's ``SVI`` under any objective. With
        ``MCMC`` there is no ``state``, and without arguments those of its run are taken.
    state
        The :class:`~numpyro_ext.engine.RunResult` of its run, which ``result`` then need not
        repeat, or its state alone: ``result.state``. With a guide the result of ``SVI.run``, or the
        parameters as ``SVI.get_params`` gives them.
    *args, **kwargs
        The model's arguments, with all rows of the data.
    num_samples : int, optional
        Number of draws. Default: every particle, or what the engine draws by default.
    posterior_predictive, log_likelihood, observed_data, sample_stats : bool
        Groups to include. ``log_likelihood`` is pointwise, without the scales of plates and of
        ``handlers.scale``; observations that are masked out have 0.
    constant_data : mapping of str to array, or bool
        Arrays for the group of that name. True takes the model's array arguments that are not
        observations.
    losses : sequence of float, optional
        Loss of each step, for the group ``optimization``, in place of ``result.losses``.
    result : RunResult, optional
        The group ``optimization`` takes the loss of each step and every entry of ``info``
        (``force_norm``, ``log_p``, ...) from it, along the dimension ``step``.
    dims : mapping of str to sequence of str, optional
        Dimension names of a variable, without chain and draw. Default: the plates' names.
    coords : mapping of str to sequence, optional
        Labels along a dimension.
    draw_chunk, data_chunk : int, optional
        At most this many draws and rows are evaluated at once, which bounds memory.
    rng_key : array, optional
        Key of the posterior and posterior predictive draws. Default: ``jax.random.key(0)``.
    model : callable, optional
        The model of a guide; not with an engine.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        The former with ArviZ 0.23, the latter with ArviZ 1 and later.

    Raises
    ------
    ArgumentError
        ``engine`` is no engine, or the arguments do not fit the model, lack observations that
        the engine was set up with, or hold only some rows of a plate.
    RuntimeError
        The engine has not seen the model's arguments yet.
    ImportError
        ArviZ is not installed.
    """
    if isinstance(engine, MCMC):
        if state is not None:
            args = (state, *args)
        if not args and not kwargs:
            args, kwargs = engine._args, engine._kwargs
        engine, state = Chains(engine, args, kwargs), None
    is_engine = callable(getattr(engine, "get_samples", None)) and hasattr(engine, "target")
    if is_engine == (model is not None) or not (is_engine or callable(engine)):
        raise ArgumentError(
            "Expected an engine with a target and get_samples, such as SVGD, without model=, or a "
            f"guide fitted by SVI with model=, found {type(engine).__name__} "
            f"{'with' if model else 'without'} it. Call to_arviz(engine, result, *args)."
        )
    if model is not None:
        # The host's result has the losses of its run.
        losses = getattr(state, "losses", None) if losses is None else losses
        state = getattr(state, "params", state)
        engine = HostFit(engine, state, model, args, kwargs)
    if isinstance(state, RunResult):
        result = state if result is None else result
        state = state.state
    optimization = _optimization(losses, result)
    target = engine.target
    data = target.bind(*args, **kwargs)
    draw_key, predictive_key = random.split(random.key(0) if rng_key is None else rng_key)
    if num_samples is not None and isinstance(engine, Chains):
        raise ArgumentError(
            f"Expected no num_samples with MCMC, whose draws are given, found {num_samples}."
        )
    options = {} if num_samples is None else {"num_samples": num_samples}
    given = engine.get_samples(state, rng_key=draw_key, **options)
    draws = {name: jnp.asarray(given[name]) for name in target.layout.names if name in given}
    wanted = {
        "deterministic": True,
        "predictive": posterior_predictive,
        "log_likelihood": log_likelihood,
        "observed": observed_data or bool(constant_data),
    }
    replayed = replay(
        target,
        draws,
        data,
        groups=[name for name, include in wanted.items() if include],
        draw_chunk=draw_chunk,
        data_chunk=data_chunk,
        rng_key=predictive_key,
    )
    groups = _site_groups(
        replayed,
        {name: np.asarray(value) for name, value in draws.items()},
        target.parameter_sites,
    )
    if not observed_data:
        groups.pop("observed_data")
    if sample_stats:
        groups["sample_stats"] = _sample_statistics(engine, state, draws, data, draw_chunk)
    if constant_data is True:
        arguments = {
            name: np.asarray(value)
            for name, value in named_arguments(
                inspect.signature(target.model), args, kwargs
            ).items()
            if isinstance(value, (jax.Array, np.ndarray))
        }
        groups["constant_data"] = constant_variables(
            arguments, replayed.observed, replayed.plate_sizes
        )
    elif constant_data:
        groups["constant_data"] = {
            name: Variable(
                np.asarray(value), leading_plate(np.asarray(value), replayed.plate_sizes)
            )
            for name, value in constant_data.items()
        }
    groups["optimization"] = optimization
    return inference_data(
        groups,
        replayed.plate_sizes,
        dims=dims,
        coords=coords,
        attributes=_attributes(engine),
        num_chains=getattr(engine, "num_chains", 1),
    )


def _optimization(losses: Any, result: Any) -> dict[str, Variable]:
    """Loss and further figures of each step."""
    if result is not None and not isinstance(result, RunResult):
        raise ArgumentError(
            f"Expected result to be what engine.run returns, found {type(result).__name__}."
        )
    given = result.losses if losses is None and result is not None else losses
    steps = {} if given is None else {"loss": np.asarray(given)}
    for name, values in ({} if result is None else result.info).items():
        if len(values) != len(given):
            raise ArgumentError(
                f"Expected losses of the {len(values)} steps of the result, found {len(given)}. "
                "Leave losses out, or pass the result's state in place of the result."
            )
        steps[name] = np.asarray(values)
    return {name: Variable(values) for name, values in steps.items() if len(values)}


def _site_groups(
    replayed: Replay, draws: Mapping[str, Array], parameter_sites: Sequence[str]
) -> dict[str, dict[str, Variable]]:
    sites = replayed.sites
    posterior: dict[str, Variable] = {}
    # Where the parameters are deterministic sites, the latent ones are only where they come from.
    unconstrained: dict[str, Variable] = {}
    for name, site in sites.items():
        if site.kind == "latent":
            group = unconstrained if parameter_sites else posterior
            group[name] = Variable(draws[name], site.plates)
        elif site.kind == "deterministic":
            posterior[name] = Variable(replayed.deterministic[name], site.plates)
    return {
        "posterior": posterior,
        "unconstrained_posterior": unconstrained,
        "posterior_predictive": {
            name: Variable(value, sites[name].plates) for name, value in replayed.predictive.items()
        },
        "log_likelihood": {
            name: Variable(value, sites[name].batch_plates)
            for name, value in replayed.log_likelihood.items()
        },
        "observed_data": {
            name: Variable(value, sites[name].plates) for name, value in replayed.observed.items()
        },
    }


def _sample_statistics(
    engine: Any, state: Any, draws: Mapping[str, Any], data: Any, draw_chunk: int | None
) -> dict[str, Variable]:
    target = engine.target
    positions = target.unconstrain(draws, data)
    chunk = draw_chunk or len(positions)
    log_p = [
        sum(target.full_log_prior_and_likelihood(positions[start : start + chunk], data))
        for start in range(0, len(positions), chunk)
    ]
    statistics = {"log_p": jnp.concatenate(log_p)}
    hook = getattr(engine, "sample_statistics", None)
    if hook is not None:
        statistics.update(hook(state, positions))
    return {name: Variable(np.asarray(value)) for name, value in statistics.items()}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _attributes(engine: Any) -> dict[str, Any]:
    kind = "particles" if hasattr(engine, "num_particles") else "independent draws"
    attributes: dict[str, Any] = {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "inference_library": "numpyro_ext",
        "inference_library_version": _version("ppl-ext"),
        "host_library": "numpyro",
        "host_library_version": _version("numpyro"),
        "engine": type(engine).__name__,
        "sample_kind": kind,
    }
    hook = getattr(engine, "arviz_attributes", None)
    if hook is not None:
        attributes.update(hook())
    note = _NOTES.get(str(attributes["sample_kind"]))
    if note is not None:
        attributes.setdefault("sample_note", note)
    return attributes
