"""Fewer draws of the groups that have a number for each row, where all would be very many."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_ext.diagnostics.fit import evenly_spaced, of_each_chain
from ppl_ext.diagnostics.replay import Replay, SiteDescription

#: By what a replay computes for each row, the group that it goes to.
POINTWISE = {"log_likelihood": "log_likelihood", "predictive": "posterior_predictive"}
#: Numbers of a group from which on it has fewer draws, and as many draws as it has at least.
MOST_NUMBERS, LEAST_DRAWS = 2**25, 100


def is_much(num_draws: int, numbers: int) -> bool:
    """Whether a group with so many numbers of each draw would hold very many."""
    return num_draws * numbers > MOST_NUMBERS


def kept_draws(
    sites: Mapping[str, SiteDescription],
    rows: Mapping[str, int],
    wanted: Collection[str],
    num_draws: int,
    num_chains: int,
) -> NDArray[np.int64] | None:
    """Which draws the groups have that have a number for each row; None where they have all.

    What is left out is said by a warning.

    Parameters
    ----------
    sites : mapping of str to SiteDescription
    rows : mapping of str to int
        Of plates whose rows come from a loader, all of them.
    wanted : collection of str
        What a replay computes.
    num_draws, num_chains : int
    """
    every = [site.with_rows(rows) for site in sites.values()]
    observed = [site for site in every if site.kind in ("observed", "marginal")]
    each = {
        "log_likelihood": sum(math.prod(site.likelihood[0]) for site in observed),
        "predictive": sum(math.prod(site.shape) for site in observed if site.kind == "observed"),
    }
    most = max((each[name] for name in each.keys() & wanted), default=0)
    if not is_much(num_draws, most):
        return None
    few = of_each_chain(max(LEAST_DRAWS, MOST_NUMBERS // most), num_chains)
    assert few is not None
    if few >= num_draws:
        return None
    groups = " and ".join(POINTWISE[name] for name in POINTWISE if name in wanted)
    warnings.warn(
        f"Of the {num_draws:,} draws {few:,}, evenly spaced, are in {groups}: each has {most:,} "
        f"numbers there. Pass num_samples={num_draws} for all draws, or switch off what is not "
        "needed, such as posterior_predictive=False.",
        UserWarning,
        stacklevel=4,
    )
    return evenly_spaced(num_draws, few, "")


def thinned(
    replay: Callable[..., Replay],
    draws: Mapping[str, Any],
    kept: NDArray[np.int64],
    groups: Collection[str],
) -> Replay:
    """A replay of all draws, and of those that are kept for what has a number for each row.

    Parameters
    ----------
    replay : callable
        Of draws and ``groups``.
    draws : mapping of str to array
    kept : int array
        Places of some of them.
    groups : collection of str
    """
    few = replay(
        {name: value[kept] for name, value in draws.items()},
        groups=[each for each in groups if each in POINTWISE],
    )
    found = replay(draws, groups=[each for each in groups if each not in POINTWISE])
    outside = dict(found.outside)
    for name, flags in few.outside.items():
        # Where nothing else depends on draws, the few alone were held against the supports.
        outside.setdefault(name, np.zeros(len(draws[name]), bool))[kept] |= flags
    return replace(
        found, log_likelihood=few.log_likelihood, predictive=few.predictive, outside=outside
    )


def of_one_chain(kept: NDArray[np.int64], num_chains: int) -> dict[str, NDArray[np.int64]]:
    """By group the draws of each chain that it has, where some are kept of all."""
    return dict.fromkeys(POINTWISE.values(), kept[: len(kept) // num_chains])
