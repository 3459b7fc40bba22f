"""What of a fit goes to which group of ArviZ, and what is said of its draws."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_ext.diagnostics.inference_data import (
    Variable,
    constant_variables,
    leading_plate,
    named_arguments,
)
from ppl_ext.diagnostics.replay import Replay
from ppl_ext.errors import ArgumentError

Array = NDArray[Any]
Group = dict[str, Variable]

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


def check_fit(fit: Any, model: Any, call: str) -> None:
    """See that a fit is an engine without a model beside it, or a guide with one."""
    is_engine = callable(getattr(fit, "get_samples", None)) and hasattr(fit, "target")
    if is_engine == (model is not None) or not (is_engine or callable(fit)):
        raise ArgumentError(
            "Expected an engine with a target and get_samples, such as SVGD, without model=, or a "
            f"guide fitted by SVI with model=, found {type(fit).__name__} "
            f"{'with' if model else 'without'} it. Call {call}."
        )


def check_no_num_samples(num_samples: int | None) -> None:
    """Refuse a number of draws where a host's MCMC has drawn them."""
    if num_samples is not None:
        raise ArgumentError(
            f"Expected no num_samples with MCMC, whose draws are given, found {num_samples}."
        )


def groups_to_replay(
    posterior_predictive: bool,
    log_likelihood: bool,
    observed_data: bool,
    constant_data: Mapping[str, Any] | bool,
) -> list[str]:
    """What of the model has to be computed again; constants are told from observations."""
    wanted = {
        "deterministic": True,
        "predictive": posterior_predictive,
        "log_likelihood": log_likelihood,
        "observed": observed_data or bool(constant_data),
    }
    return [name for name, include in wanted.items() if include]


def site_groups(
    replayed: Replay, draws: Mapping[str, Array], parameter_sites: Sequence[str]
) -> dict[str, Group]:
    """The groups that hold values of sites."""
    sites = replayed.sites
    posterior: Group = {}
    # Where the parameters are deterministic sites, the latent ones are only where they come from.
    unconstrained: Group = {}
    for name, site in sites.items():
        if site.kind == "latent":
            group = unconstrained if parameter_sites else posterior
            group[name] = Variable(draws[name], site.plates)
        elif site.kind == "deterministic":
            posterior[name] = Variable(replayed.deterministic[name], site.plates)

    def variables(values: Mapping[str, Array]) -> Group:
        return {name: Variable(value, sites[name].plates) for name, value in values.items()}

    return {
        "posterior": posterior,
        "unconstrained_posterior": unconstrained,
        "posterior_predictive": variables(replayed.predictive),
        "log_likelihood": {
            name: Variable(value, sites[name].batch_plates)
            for name, value in replayed.log_likelihood.items()
        },
        "observed_data": variables(replayed.observed),
    }


def constant_group(
    given: Mapping[str, Any] | bool,
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    replayed: Replay,
    as_array: Callable[[Any], Array | None],
) -> Group:
    """The constants that are given, or, with True, the model's arrays that are no observations.

    ``as_array`` gives a NumPy array, or None of what is no array.
    """
    if not given:
        return {}
    if given is not True:
        arrays = {
            name: found if (found := as_array(value)) is not None else np.asarray(value)
            for name, value in dict(given).items()
        }
        sizes = replayed.plate_sizes
        return {name: Variable(each, leading_plate(each, sizes)) for name, each in arrays.items()}
    named = named_arguments(signature, args, kwargs)
    arguments = {name: as_array(value) for name, value in named.items()}
    return constant_variables(
        {name: value for name, value in arguments.items() if value is not None},
        replayed.observed,
        replayed.plate_sizes,
    )


def step_group(
    traces: Mapping[str, Any], losses: Any, as_array: Callable[[Any], Array | None]
) -> Group:
    """Figures of each step, with losses in place of those among them."""
    figures = dict(traces)
    if losses is not None:
        steps = len(next(iter(figures.values()), losses))
        if len(losses) != steps:
            raise ArgumentError(
                f"Expected losses of the {steps} steps, found {len(losses)}. Leave losses out, or "
                "pass those of the same steps."
            )
        figures["loss"] = losses
    return {
        name: Variable(array if (array := as_array(values)) is not None else np.asarray(values))
        for name, values in figures.items()
        if len(values)
    }


def fit_attributes(engine: Any, package: str, host: str, distribution: str) -> dict[str, Any]:
    """Where the draws come from, and what they are."""
    kind = "particles" if hasattr(engine, "num_particles") else "independent draws"
    attributes: dict[str, Any] = {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "inference_library": package,
        "inference_library_version": _version("ppl-ext"),
        "host_library": host,
        "host_library_version": _version(distribution),
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


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
