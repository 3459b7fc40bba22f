"""A kernel for each group of sites, which may see neighbouring sites (message passing)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from numpyro_ext.kernels.base import Kernel, KernelState, check_kernel
from numpyro_ext.kernels.rbf import RBF
from ppl_ext.errors import ArgumentError


@dataclass(frozen=True, eq=False, repr=False)
class Graphical(Kernel):
    """Stein directions by groups of sites.

    The coordinates of a group move by

        phi_g(z_i) = 1/P sum_j [ k_g(z_j, z_i) s_{j,g} + grad_{z_{j,g}} k_g(z_j, z_i) ]

    where k_g sees the group's coordinates and those of its neighbours only. In many dimensions a
    kernel on few of them keeps its repulsion. If the neighbours of a group are its Markov blanket,
    this is message passing SVGD (Zhuo et al. 2018, "Message passing Stein variational gradient
    descent"; Wang, Zeng and Liu 2018, "Stein variational message passing"). Without neighbours a
    group ignores all others, which is right where the groups are independent under the target,
    and otherwise loses their correlation.

    Parameters
    ----------
    kernel : Kernel or mapping of str to Kernel, optional
        Kernel of all groups, or of each group by name. Default: :class:`RBF`.
    groups : mapping of str to sequence of str, optional
        Sites of each group, by the group's name. A site in none is a group of its own, under its
        own name; by default all are.
    neighbours : mapping of str to sequence of str, optional
        Further sites that a group's kernel sees, by the group's name.

    Raises
    ------
    ArgumentError
        A kernel is none of this package, or a site is in two groups; at the first step, a name is
        no site or no group of the model.
    """

    kernel: Kernel | Mapping[str, Kernel] = field(default_factory=RBF)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    neighbours: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sites: Mapping[str, slice] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        kernels = self.kernel.values() if isinstance(self.kernel, Mapping) else (self.kernel,)
        for kernel in kernels:
            check_kernel(kernel, " for the groups")
        for option in ("groups", "neighbours"):
            value = getattr(self, option)
            if not isinstance(value, Mapping):
                raise ArgumentError(
                    f"Expected {option} to map names of groups to lists of sites, found "
                    f"{type(value).__name__}."
                )
            for group, sites in value.items():
                if isinstance(sites, str) or not isinstance(sites, Sequence) or not sites:
                    raise ArgumentError(
                        f"Expected {option} to map names of groups to lists of sites, found "
                        f"{sites!r} for {group!r}."
                    )
        members = [site for sites in self.groups.values() for site in sites]
        twice = sorted({site for site in members if members.count(site) > 1})
        if twice:
            raise ArgumentError(f"Expected each site in one group at most, found {twice} in two.")

    def with_sites(self, sites: Mapping[str, slice]) -> Graphical:
        """The kernel for a flat vector in which ``sites`` take these ranges.

        Raises
        ------
        ArgumentError
            A group, a neighbour or a kernel is for something that is not there.
        """
        chosen = dataclasses.replace(self, sites=dict(sites))
        chosen._ranges  # noqa: B018 - checks the names
        return chosen

    @cached_property
    def _ranges(self) -> dict[str, tuple[Kernel, NDArray[np.int64], int]]:
        """By group: its kernel, the coordinates that it sees, and how many of them are its own.

        Those that are its own come first.
        """
        if self.sites is None:
            raise ArgumentError(
                "Expected the ranges of the sites, found none. Engines give them; by hand, call "
                "with_sites. Inside of a Preconditioned or another Graphical kernel there are none."
            )
        grouped = {site for sites in self.groups.values() for site in sites}
        alone = {site: (site,) for site in self.sites if site not in grouped}
        clash = sorted(set(self.groups) & set(alone))
        if clash:
            raise ArgumentError(
                f"Expected names of groups that are not those of ungrouped sites, found {clash}. "
                "Name these groups otherwise, or put the sites into a group."
            )
        members = {**{name: tuple(sites) for name, sites in self.groups.items()}, **alone}
        self._check("groups", grouped, self.sites)
        self._check("neighbours", set(self.neighbours), members)
        for sites in self.neighbours.values():
            self._check("neighbours", set(sites), self.sites)
        if isinstance(self.kernel, Mapping):
            self._check("kernel", set(self.kernel), members)
            missing = sorted(set(members) - set(self.kernel))
            if missing:
                raise ArgumentError(f"Expected a kernel for each group, found none for {missing}.")
        ranges = {}
        for name, own in members.items():
            others = tuple(site for site in self.neighbours.get(name, ()) if site not in own)
            kernel = self.kernel[name] if isinstance(self.kernel, Mapping) else self.kernel
            seen = [self._coordinates(site) for site in dict.fromkeys((*own, *others))]
            size = sum(len(self._coordinates(site)) for site in own)
            ranges[name] = kernel, np.concatenate(seen), size
        return ranges

    def _coordinates(self, site: str) -> NDArray[np.int64]:
        assert self.sites is not None
        part = self.sites[site]
        return np.arange(part.start, part.stop)

    @staticmethod
    def _check(option: str, names: set[str], known: Mapping[str, object]) -> None:
        unknown = sorted(names - set(known))
        if unknown:
            raise ArgumentError(
                f"Expected {option} to name some of {sorted(known)}, found {unknown}."
            )

    def init(self, particles: Array) -> KernelState:
        """States of the groups' kernels, by group."""
        ranges = self._ranges
        return {name: kernel.init(particles[:, at]) for name, (kernel, at, _) in ranges.items()}

    def direction(
        self, state: KernelState, particles: Array, scores: Array
    ) -> tuple[Array, KernelState]:
        """Direction phi, shape (P, D); see :meth:`Kernel.direction`."""
        total, states = jnp.zeros_like(particles), {}
        for name, (kernel, at, size) in self._ranges.items():
            phi, states[name] = kernel.direction(state[name], particles[:, at], scores[:, at])
            total = total.at[:, at[:size]].set(phi[:, :size])
        return total, states

    def gram(self, state: KernelState, particles: Array) -> Array:
        """Not defined.

        Raises
        ------
        ArgumentError
            Always: each group has a kernel of its own.
        """
        raise ArgumentError(
            "Expected a scalar kernel, found Graphical, which has one for each group of sites."
        )
