"""Coordinates of groups of sites, each of which has a kernel, and the checks of their names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_ext.errors import ArgumentError
from ppl_ext.options import described


class Group(NamedTuple):
    """The coordinates of a group of sites.

    Parameters
    ----------
    seen : array of int
        Coordinates that the group's kernel sees, its own first.
    size : int
        How many of them are its own.
    """

    seen: NDArray[np.int64]
    size: int


def check_groups(
    groups: Mapping[str, Sequence[str]], neighbours: Mapping[str, Sequence[str]]
) -> None:
    """See that groups and neighbours map names to lists of sites, with a site in one group only.

    Raises
    ------
    ArgumentError
        They do not, or a site is in two groups.
    """
    for option, value in (("groups", groups), ("neighbours", neighbours)):
        lists = value.items() if isinstance(value, Mapping) else [("", value)]
        for group, sites in lists:
            if not group or isinstance(sites, str) or not isinstance(sites, Sequence) or not sites:
                raise ArgumentError(
                    f"Expected {option} to map names of groups to lists of sites, found "
                    f"{described(sites)}{f' for {group!r}' if group else ''}."
                )
    members = [site for sites in groups.values() for site in sites]
    if twice := sorted({site for site in members if members.count(site) > 1}):
        raise ArgumentError(f"Expected each site in one group at most, found {twice} in two.")


def coordinates_of_groups(
    groups: Mapping[str, Sequence[str]],
    neighbours: Mapping[str, Sequence[str]],
    sites: Mapping[str, slice] | None,
) -> dict[str, Group]:
    """The coordinates of each group; a site in none is a group of its own, under its own name.

    Raises
    ------
    ArgumentError
        There are no sites, or a group or a neighbour is for something that is not there.
    """
    if sites is None:
        raise ArgumentError(
            "Expected the ranges of the sites, found none. Engines give them; by hand, call "
            "with_sites. Inside of a Preconditioned or another Graphical kernel there are none."
        )
    grouped = {site for members in groups.values() for site in members}
    alone = {site: (site,) for site in sites if site not in grouped}
    if clash := sorted(set(groups) & set(alone)):
        raise ArgumentError(
            f"Expected names of groups that are not those of ungrouped sites, found {clash}. "
            "Name these groups otherwise, or put the sites into a group."
        )
    members = {**{name: tuple(own) for name, own in groups.items()}, **alone}
    check_known("groups", grouped, sites)
    check_known("neighbours", neighbours, members)
    for others in neighbours.values():
        check_known("neighbours", others, sites)
    ranges = {name: np.arange(part.start, part.stop) for name, part in sites.items()}
    found = {}
    for name, own in members.items():
        # A neighbour that is also a member comes once, among the members.
        seen = [ranges[site] for site in dict.fromkeys((*own, *neighbours.get(name, ())))]
        found[name] = Group(np.concatenate(seen), sum(len(ranges[site]) for site in own))
    return found


def check_kernels_of_groups(kernels: Collection[str], groups: Collection[str]) -> None:
    """See that there is a kernel for each group, and for nothing else.

    Raises
    ------
    ArgumentError
        There is not.
    """
    check_known("kernel", kernels, groups)
    if missing := sorted(set(groups) - set(kernels)):
        raise ArgumentError(f"Expected a kernel for each group, found none for {missing}.")


def check_known(option: str, names: Collection[str], known: Collection[str]) -> None:
    """See that an option names nothing but what is known.

    Raises
    ------
    ArgumentError
        It does.
    """
    if unknown := sorted(set(names) - set(known)):
        raise ArgumentError(f"Expected {option} to name some of {sorted(known)}, found {unknown}.")
