"""Conversion of a fitted engine, or of a guide of the host's, to ArviZ, on the full data.

Engines need three things for it: ``target`` (their log density), ``get_samples(num_samples)``,
and, where they have more to say, any of the following, each looked up by name:

``sample_statistics(positions)``
    Statistics of each draw, as a dict of (S,) tensors, given the draws' unconstrained
    positions (S, D). Guides return ``log_q``, their log density at the positions. They go to
    the group ``sample_stats``, beside ``log_p``, the model's log density at the positions.
``arviz_attributes()``
    A dict of attributes. ``sample_kind`` says what the draws are: "particles" or
    "independent draws".
``history``
    A dict of the figures of every step so far, the loss among them, which go to the group
    ``optimization``: a step is not a draw, so they cannot be in ``sample_stats``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pyro.infer import MCMC
from pyro.infer.mcmc import StreamingMCMC

from ppl_ext.diagnostics.inference_data import (
    Variable,
    constant_variables,
    inference_data,
    leading_plate,
    named_arguments,
)
from ppl_ext.errors import ArgumentError
from pyro_ext.density.replay import Replay, replay
from pyro_ext.diagnostics.chains import Chains
from pyro_ext.diagnostics.host_fit import HostFit
from pyro_ext.engine import RunResult

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
    seed: int = 0,
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
        A fitted engine of this package; ``pyro.infer.MCMC`` after ``run``, with any kernel of a
        model; or, with ``model``, a guide fitted by Pyro's ``SVI`` under any objective. With
        ``MCMC`` and without arguments those of its run are taken.
    *args, **kwargs
        The model's arguments, with all rows of the data.
    num_samples : int, optional
        Number of draws. Default: every particle, or what the engine draws by default.
    posterior_predictive, log_likelihood, observed_data, sample_stats : bool
        Groups to include. ``log_likelihood`` is pointwise, without the scales of plates and of
        ``poutine.scale``; observations that are masked out have 0.
    constant_data : mapping of str to array, or bool
        Arrays for the group of that name. True takes the model's array arguments that are not
        observations.
    losses : sequence of float, optional
        Loss of each step, for the group ``optimization``, in place of those kept.
    result : RunResult, optional
        Run whose losses and other figures (the force norm of particles, log_p and log_q of
        guides) go to the group ``optimization``, along a dimension ``step``. Default: those of
        every step that the engine has taken.
    dims : mapping of str to sequence of str, optional
        Dimension names of a variable, without chain and draw. Default: the plates' names.
    coords : mapping of str to sequence, optional
        Labels along a dimension.
    draw_chunk, data_chunk : int, optional
        At most this many draws and rows are evaluated at once, which bounds memory.
    seed : int
        Seed of the posterior predictive draws, and of the draws of a guide.
    model : callable, optional
        The model of a guide; not with an engine.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        The former with ArviZ 0.23, the latter with ArviZ 1 and later.

    Raises
    ------
    ArgumentError
        The arguments do not fit the model, or hold only some rows of a plate.
    ImportError
        ArviZ is not installed.
    """
    if isinstance(engine, StreamingMCMC):
        raise ArgumentError(
            "Expected draws, found StreamingMCMC, which keeps statistics of them alone. Run "
            "pyro.infer.MCMC."
        )
    if isinstance(engine, MCMC):
        if not args and not kwargs:
            args, kwargs = engine._args, engine._kwargs
        engine = Chains(engine, args, kwargs)
        if num_samples is not None:
            raise ArgumentError(
                f"Expected no num_samples with MCMC, whose draws are given, found {num_samples}."
            )
    is_engine = hasattr(engine, "target") and hasattr(engine, "get_samples")
    if is_engine == (model is not None) or not (is_engine or callable(engine)):
        raise ArgumentError(
            "Expected a fitted engine such as SVGD without model=, or a guide fitted by SVI with "
            f"model=, found {type(engine).__name__} {'with' if model else 'without'} it. Pass "
            "the engine, then the model's arguments."
        )
    if model is not None:
        engine = HostFit(engine, model, args, kwargs, seed)
    target = engine.target
    data = target.bind(*args, **kwargs)
    given = engine.get_samples() if num_samples is None else engine.get_samples(num_samples)
    draws = {
        name: torch.as_tensor(given[name]).detach() for name in target.layout.names if name in given
    }
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
        data_chunk=data_chunk,
        seed=seed,
    )
    groups = _site_groups(
        replayed,
        {name: value.cpu().numpy() for name, value in draws.items()},
        target.parameter_sites,
    )
    if not observed_data:
        groups.pop("observed_data")
    if sample_stats:
        groups["sample_stats"] = _sample_statistics(engine, draws, data, draw_chunk)
    if constant_data is True:
        arguments = {
            name: _to_numpy(value)
            for name, value in named_arguments(_signature(target.model), args, kwargs).items()
            if isinstance(value, (torch.Tensor, np.ndarray))
        }
        groups["constant_data"] = constant_variables(
            arguments, replayed.observed, replayed.plate_sizes
        )
    elif constant_data:
        groups["constant_data"] = {
            name: Variable(_to_numpy(value), leading_plate(_to_numpy(value), replayed.plate_sizes))
            for name, value in constant_data.items()
        }
    groups["optimization"] = _optimization(engine, losses, result)
    return inference_data(
        groups,
        replayed.plate_sizes,
        dims=dims,
        coords=coords,
        attributes=_attributes(engine),
        num_chains=getattr(engine, "num_chains", 1),
    )


def _optimization(engine: Any, losses: Any, result: Any) -> dict[str, Variable]:
    if result is None:
        traces = dict(getattr(engine, "history", {}))
    else:
        traces = {"loss": result.losses, **result.info}
    if losses is not None:
        steps = len(traces.get("loss", losses))
        if len(losses) != steps:
            raise ArgumentError(
                f"Expected losses of the {steps} steps, found {len(losses)}. Leave losses out, or "
                "pass those of the same steps."
            )
        traces["loss"] = losses
    return {name: Variable(_to_numpy(values)) for name, values in traces.items() if len(values)}


def _to_numpy(value: Any) -> Array:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)


def _signature(model: Any) -> inspect.Signature:
    return inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)


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
    engine: Any, draws: Mapping[str, Any], data: Any, draw_chunk: int | None
) -> dict[str, Variable]:
    target = engine.target
    positions = target.unconstrain(draws, data)
    log_p = [
        torch.stack(target.full_log_prior_and_likelihood(part, data)).sum(0)
        for part in positions.split(draw_chunk or len(positions))
    ]
    statistics = {"log_p": torch.cat(log_p)}
    hook = getattr(engine, "sample_statistics", None)
    if hook is not None:
        statistics.update(hook(positions))
    return {name: Variable(_to_numpy(value)) for name, value in statistics.items()}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _attributes(engine: Any) -> dict[str, Any]:
    kind = "particles" if hasattr(engine, "num_particles") else "independent draws"
    attributes: dict[str, Any] = {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "inference_library": "pyro_ext",
        "inference_library_version": _version("ppl-ext"),
        "host_library": "pyro",
        "host_library_version": _version("pyro-ppl"),
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
