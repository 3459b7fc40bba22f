"""Names of axes and labels along them, held against a program before it is fitted."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from ppl_ext.diagnostics.fit_groups import site_groups
from ppl_ext.diagnostics.inference_data import named_arguments, named_groups
from ppl_ext.diagnostics.replay import Replay
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.fit.problem.views import NO_NAMES, Names
from ppl_ext.fit.verdict.verdict import SiteFigures, Value

#: Of a target, draws by site, bound data and ``groups=()``: its sites; nothing is computed.
Describe = Callable[..., Replay]


def named_ways(ways: Iterator[Problem], describe: Describe, *, refuses: bool) -> Iterator[Problem]:
    """Ways to write a program, with the labels of its sites in their views.

    Parameters
    ----------
    ways : iterator of Problem
    describe : callable
    refuses : bool
        Whether names that do not fit the program are an error, or are left to whoever uses them.

    Raises
    ------
    ArgumentError
        ``dims`` or ``coords`` do not fit the program.
    """
    first = next(ways)
    views = first.views
    if views is None or not views.names.given or views.batches is not None:
        yield from chain([first], ways)
        return
    names = views.names
    try:
        names = replace(names, labels=_labels(first, describe, names))
    except ArgumentError:
        if refuses:
            raise
    for way in chain([first], ways):
        assert way.views is not None
        yield replace(way, views=replace(way.views, names=names))


def with_names(ways: Callable[..., Iterator[Problem]], describe: Describe) -> Callable[..., Any]:
    """The same ways for other arguments, whose names of axes are left to whoever uses them."""

    def named(*args: Any, **options: Any) -> Iterator[Problem]:
        return named_ways(ways(*args, **options), describe, refuses=False)

    return named


def _labels(problem: Problem, describe: Describe, names: Names) -> dict[str, list[Any]]:
    """Labels along the axes of each site of the posterior."""
    target, views = problem.target, problem.views
    assert views is not None
    # At a fixed point: random numbers drawn here would change those that the fit draws.
    draws = problem.values(np.zeros((1, problem.dim)))
    found = describe(target, draws, problem.data, groups=())

    def empty(kind: str) -> dict[str, np.ndarray]:
        # One number that is repeated without being copied: shapes are all that is asked for.
        lead = () if kind == "observed" else (1,)
        kinds = {"deterministic": ("deterministic", "computed")}.get(kind, (kind,))
        return {
            name: np.broadcast_to(np.zeros(()), (*lead, *site.shape))
            for name, site in found.sites.items()
            if site.kind in kinds
        }

    densities = {
        name: np.broadcast_to(np.zeros(()), (1, *site.likelihood[0]))
        for name, site in found.sites.items()
        if site.kind in ("observed", "computed", "marginal")
    }
    replayed = replace(
        found,
        deterministic=empty("deterministic"),
        discrete={},
        predictive={name: value[None] for name, value in empty("observed").items()},
        log_likelihood=densities,
        observed=empty("observed"),
    )
    model = getattr(target.model, "forward", target.model)
    arguments = named_arguments(inspect.signature(model), views.args, views.kwargs)
    groups, safe = named_groups(
        site_groups(replayed, empty("latent"), target.parameter_sites),
        found.plate_sizes,
        dims=names.dims,
        coords=names.coords,
        sites=(*found.sites, *arguments),
    )
    arrays, labels = groups["posterior"]
    # Without the first two axes, which are chain and draw.
    return {
        name: [labels[axis] for axis in arrays[safe.given[name]][0][2:]]
        for name in found.sites
        if safe.given.get(name) in arrays
    }


def names_of(problem: Problem) -> Names:
    """The names that a problem has in its views."""
    return NO_NAMES if problem.views is None else problem.views.names


def with_labels(
    sites: Mapping[str, SiteFigures], labels: Mapping[str, Sequence[Sequence[Any]]]
) -> dict[str, SiteFigures]:
    """Figures by site with the labels of single numbers in place of their places."""

    def renamed(name: str, value: Value) -> Value:
        at = _at(labels, name, value.name.removeprefix(name).strip("[]"))
        return replace(value, name=f"{name}[{at}]") if at else value

    return {
        name: replace(site, values=tuple(renamed(name, value) for value in site.values))
        for name, site in sites.items()
    }


#: A single number of a site, as sentences name it.
_NUMBER = re.compile(r"'([^'\[\]]+)\[([\d, ]+)\]'")


def told_with_labels(
    sentences: Sequence[str], labels: Mapping[str, Sequence[Sequence[Any]]]
) -> tuple[str, ...]:
    """Sentences with the labels of single numbers in place of their places, as tables have them."""

    def renamed(found: re.Match[str]) -> str:
        at = _at(labels, found[1], found[2])
        return f"'{found[1]}[{at}]'" if at else found[0]

    return tuple(_NUMBER.sub(renamed, each) for each in sentences)


def _at(labels: Mapping[str, Sequence[Sequence[Any]]], name: str, places: str) -> str:
    """Labels of a number of a site at these places along its axes; nothing where there are none."""
    numbers, axes = places.split(", "), labels.get(name, ())
    if len(numbers) != len(axes) or not all(each.isdigit() for each in numbers):
        return ""
    return ", ".join(str(axis[int(each)]) for axis, each in zip(axes, numbers, strict=True))
