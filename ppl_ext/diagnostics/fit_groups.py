"""What of a fit goes to which group of ArviZ, and what is said of its draws."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_ext.arguments import columns_as_arrays
from ppl_ext.batches.passes import Passes, rows_of_loader
from ppl_ext.diagnostics.inference_data import (
    Variable,
    constant_variables,
    inference_data,
    leading_plate,
    named_arguments,
)
from ppl_ext.diagnostics.replay import (
    DISCRETE,
    TOGETHER,
    Replay,
    over_batches,
    told_of_filled,
    told_of_outside,
)
from ppl_ext.diagnostics.thinning import is_much, kept_draws, of_one_chain, thinned
from ppl_ext.errors import ArgumentError, DataWarning, DivergenceWarning
from ppl_ext.options import check_choice, check_count, described

Array = NDArray[Any]
Group = dict[str, Variable]

#: Draws at which densities are evaluated at once, at least, where there are many rows.
LEAST_TOGETHER = 8

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


def rows_to_show(
    fit: Any,
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    batches: Any,
    place: Callable[[Any], Any],
) -> tuple[tuple[Any, ...], dict[str, Any], Passes | None]:
    """Arguments as arrays, and passes over a loader: those that are given, or that a fit knows.

    Raises
    ------
    ArgumentError
        A fit has none: it was loaded without its program.
    """
    if model is None:
        args, kwargs, batches = _remembered(fit, args, kwargs, batches)
    args, kwargs = columns_as_arrays(args, kwargs, place, model)
    some, named, passes = rows_of_loader(batches, args, kwargs, place)
    return some or (), dict(named or {}), passes


def _remembered(
    fit: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], batches: Any
) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
    """The arguments of a model: those that are given, or else those that a fit or engine knows."""
    if args or kwargs or batches is not None:
        return args, kwargs, batches
    if (views := getattr(fit, "views", None)) is not None:
        return views.args, views.kwargs, views.batches
    data = getattr(fit, "data", None)
    return (args, kwargs, None) if data is None else (data.args, data.kwargs, None)


class Wanted(NamedTuple):
    """Which groups are wanted, of what they are made, and how; see ``to_arviz``."""

    posterior_predictive: bool
    log_likelihood: bool
    log_prior: bool
    observed_data: bool
    sample_stats: bool
    constant_data: Mapping[str, Any] | bool
    discrete: str | None
    losses: Any = None
    draw_chunk: int | None = None
    data_chunk: int | None = None
    may_thin: bool = False
    dims: Mapping[str, Sequence[str]] | None = None
    coords: Mapping[str, Sequence[Any]] | None = None

    def to_replay(self) -> list[str]:
        """What of the model has to be computed again; constants are told from observations."""
        check_choice("discrete", self.discrete, (*DISCRETE, None))
        wanted = {
            "deterministic": True,
            "discrete": self.discrete is not None,
            "predictive": self.posterior_predictive,
            "log_likelihood": self.log_likelihood,
            "log_prior": self.log_prior,
            "observed": self.observed_data or bool(self.constant_data),
        }
        return [name for name, include in wanted.items() if include]


def warn_of_draws(replayed: Replay, statistics: Mapping[str, Any]) -> None:
    """Say that draws are outside of their sites' supports, and that steps of chains broke."""
    told = told_of_outside(replayed.outside)
    if told:
        warnings.warn(f"{told} They are in the posterior all the same.", UserWarning, stacklevel=4)
    if "diverging" in statistics:
        broken = np.asarray(statistics["diverging"].values)
        if broken.any():
            warnings.warn(
                f"{int(broken.sum())} of {broken.size} draws diverged: they are marked in "
                "sample_stats.diverging.",
                DivergenceWarning,
                stacklevel=4,
            )


def site_groups(
    replayed: Replay, draws: Mapping[str, Array], parameter_sites: Sequence[str]
) -> dict[str, Group]:
    """The groups that hold values of sites."""
    sites = replayed.sites
    posterior: Group = {}
    # Where parameters are deterministic sites, other latent ones are only where they come from.
    unconstrained: Group = {}
    for name, site in sites.items():
        if site.kind == "latent":
            is_own = not parameter_sites or name in parameter_sites
            group = posterior if is_own else unconstrained
            group[name] = Variable(draws[name], site.dims)
        elif site.kind in ("deterministic", "computed"):
            posterior[name] = Variable(replayed.deterministic[name], site.dims)
        elif name in replayed.discrete:
            posterior[name] = Variable(replayed.discrete[name], site.dims)

    def variables(values: Mapping[str, Array]) -> Group:
        return {name: Variable(value, sites[name].dims) for name, value in values.items()}

    return {
        "posterior": posterior,
        "unconstrained_posterior": unconstrained,
        "posterior_predictive": variables(replayed.predictive),
        "log_likelihood": {
            name: Variable(value, sites[name].likelihood[1])
            for name, value in replayed.log_likelihood.items()
        },
        "log_prior": {
            name: Variable(value, sites[name].likelihood[1])
            for name, value in replayed.log_prior.items()
            if not parameter_sites
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
    passes: Passes | None,
) -> Group:
    """The constants that are given, or, with True, the model's arrays that are no observations.

    ``as_array`` gives a NumPy array, or None of what is no array.
    """
    # Arrays of a loader's batch are those of some rows alone.
    if not given or (given is True and passes is not None):
        return {}
    if given is not True:
        if not isinstance(given, Mapping):
            raise ArgumentError(
                "Expected constant_data to be True, False or a mapping from names to arrays, found "
                f"{described(given)}."
            )
        arrays = {name: _as_constant(name, value, as_array(value)) for name, value in given.items()}
        sizes = replayed.plate_sizes
        return {name: Variable(each, leading_plate(each, sizes)) for name, each in arrays.items()}
    named = named_arguments(signature, args, kwargs)
    arguments = {name: as_array(value) for name, value in named.items()}
    return constant_variables(
        {name: value for name, value in arguments.items() if value is not None},
        replayed.observed,
        replayed.plate_sizes,
    )


def _as_constant(name: str, value: Any, array: Array | None) -> Array:
    try:
        found = np.asarray(value) if array is None else array
    except ValueError:
        found = np.asarray(None)  # lists of different lengths
    if found.dtype.kind == "O":
        raise ArgumentError(
            f"Expected constant_data['{name}'] to be an array of numbers or texts, found "
            f"{described(value)}."
        )
    return found


def step_group(
    traces: Mapping[str, Any], losses: Any, as_array: Callable[[Any], Array | None]
) -> Group:
    """Figures of each step, with losses in place of those among them."""
    figures = dict(traces)
    if losses is not None:
        if np.ndim(losses) != 1:
            raise ArgumentError(
                "Expected losses to be a sequence with one for each step, found "
                f"{described(losses)}."
            )
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


class Host(NamedTuple):
    """What a package adds.

    Parameters
    ----------
    names : tuple of str
        Of the package, its host, and the host's distribution.
    replay : callable
        As the package's ``replay`` with the number of a batch, or None where there are all rows.
    as_array : callable
        An array as one of NumPy's, or None of what is no array.
    place : callable
        A value of a loader's as an array of the host's.
    """

    names: tuple[str, str, str]
    replay: Callable[..., Replay]
    as_array: Callable[[Any], Array | None]
    place: Callable[[Any], Any]


def arviz_of(
    host: Host,
    engine: Any,
    target: Any,
    draws: Mapping[str, Any],
    data: Any,
    wanted: Wanted,
    call: tuple[Sequence[Any], Mapping[str, Any], Passes | None],
    traces: Mapping[str, Any],
    statistics_of: Callable[[Any, int], Group],
) -> Any:
    """All groups of draws, of the arguments that a user gave, and what is said of the draws.

    ``statistics_of`` makes figures of draws of a target that evaluates all rows, so many draws at
    once.
    """
    args, kwargs, passes = call
    chunks = {"draw_chunk": wanted.draw_chunk, "data_chunk": wanted.data_chunk}
    for name, count in chunks.items():
        check_count(name, count, optional=True)
    steps = step_group(traces, wanted.losses, host.as_array)
    groups_of = wanted.to_replay()
    options = {"groups": groups_of, "discrete": wanted.discrete or "sample", **chunks}

    chains, num_draws = getattr(engine, "num_chains", 1), len(next(iter(draws.values())))
    model = getattr(target.model, "forward", target.model)
    called = inspect.signature(model), args, kwargs
    named = {} if passes is not None else named_arguments(*called)
    found = {name: host.as_array(value) for name, value in named.items()}
    arguments = {name: value for name, value in found.items() if value is not None}
    kept = None
    numbers = sum(value.size for value in arguments.values())
    if wanted.may_thin and (passes is not None or is_much(num_draws, numbers)):
        # A look without groups tells the shapes of sites, by which it is known how many numbers
        # there will be.
        described = host.replay(target, draws, data, number=None, groups=()).sites
        rows = {} if passes is None else target.over(passes).plates_of_batches(data)
        kept = kept_draws(described, rows, groups_of, num_draws, chains)

    def on_rows(data: Any, number: int | None) -> Replay:
        def at(draws: Mapping[str, Any], **some: Any) -> Replay:
            own = {**options, **some, "number": number, "num_chains": chains}
            own["all_rows"] = number is None
            return host.replay(target, draws, data, **own)

        return at(draws) if kept is None else thinned(at, draws, kept, groups_of)

    replayed = over_batches(on_rows, target, data, passes, host.place)
    filled = told_of_filled(replayed.sites) if wanted.log_likelihood else ""
    if filled:
        warnings.warn(filled, DataWarning, stacklevel=3)
    together = wanted.draw_chunk or max(LEAST_TOGETHER, TOGETHER // max(1, numbers))
    statistics = statistics_of(target.over(passes), together) if wanted.sample_stats else {}
    given = wanted.constant_data
    constants = constant_group(given, *called, replayed, host.as_array, passes)
    arrays = {name: np.asarray(host.as_array(value)) for name, value in draws.items()}
    groups = site_groups(replayed, arrays, engine.target.parameter_sites)
    if not wanted.observed_data:
        groups.pop("observed_data")
    warn_of_draws(replayed, statistics)
    if statistics:
        groups["sample_stats"] = statistics
    groups |= {"constant_data": constants, "optimization": steps}
    return inference_data(
        groups,
        replayed.plate_sizes,
        dims=wanted.dims,
        coords=wanted.coords,
        attributes=fit_attributes(engine, *host.names),
        num_chains=chains,
        # Constants have names of axes also where their group is left out.
        sites=(*replayed.sites, *arguments),
        draws_of={} if kept is None else of_one_chain(kept, chains),
    )


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
    if (hook := getattr(engine, "arviz_attributes", None)) is not None:
        attributes.update(hook())
    if (note := _NOTES.get(str(attributes["sample_kind"]))) is not None:
        attributes.setdefault("sample_note", note)
    return attributes


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
