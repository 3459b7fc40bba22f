"""A kernel for each group of sites, which may see neighbouring sites (message passing)."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from ppl_ext.errors import ArgumentError
from ppl_ext.kernels.base import Kernel, KernelState
from ppl_ext.kernels.groups import check_groups, check_kernels_of_groups, coordinates_of_groups


@dataclass(frozen=True, eq=False, repr=False)
class Graphical(Kernel):
    """Stein directions by groups of sites.

    The coordinates of a group move by

        phi_g(z_i) = 1/P sum_j [ k_g(z_j, z_i) s_{j,g} + grad_{z_{j,g}} k_g(z_j, z_i) ]

    where k_g sees the group's coordinates and those of its neighbours only. In many dimensions a
    kernel on few of them keeps its repulsion. If the neighbours of a group are its Markov blanket,
    this is message passing SVGD (Zhuo et al. 2018, https://arxiv.org/abs/1711.04425; Wang, Zeng
    and Liu 2018, https://arxiv.org/abs/1711.07168). Without neighbours a
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

    Examples
    --------
    >>> Graphical(RBF()).kernel
    RBF(bandwidth='median', metric=None)
    """

    #: The kernel of all groups unless told otherwise.
    default: ClassVar[type[Any]]

    kernel: Any = None
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    neighbours: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sites: Mapping[str, slice] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kernel is None:
            object.__setattr__(self, "kernel", self.default())
        kernels = self.kernel.values() if isinstance(self.kernel, Mapping) else (self.kernel,)
        for kernel in kernels:
            self.check(kernel, " for the groups")
        check_groups(self.groups, self.neighbours)

    def with_sites(self, sites: Mapping[str, slice]) -> Self:
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
    def _ranges(self) -> dict[str, tuple[Any, NDArray[np.int64], int]]:
        """By group: its kernel, the coordinates that it sees, and how many of them are its own.

        Those that are its own come first.
        """
        groups = coordinates_of_groups(self.groups, self.neighbours, self.sites)
        kernels = self.kernel
        if not isinstance(kernels, Mapping):
            kernels = dict.fromkeys(groups, kernels)
        check_kernels_of_groups(kernels, groups)
        return {name: (kernels[name], group.seen, group.size) for name, group in groups.items()}

    def init(self, particles: Float[Any, "P D"]) -> KernelState:
        """States of the groups' kernels, by group."""
        ranges = self._ranges
        return {name: kernel.init(particles[:, at]) for name, (kernel, at, _) in ranges.items()}

    def direction(
        self, state: KernelState, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        total, states = self.arrays.functions.zeros_like(particles), {}
        for name, (kernel, at, size) in self._ranges.items():
            phi, states[name] = kernel.direction(state[name], particles[:, at], scores[:, at])
            total = self._with_columns(total, at[:size], phi[:, :size])
        return total, states

    @staticmethod
    @abc.abstractmethod
    def _with_columns(total: Any, at: NDArray[np.int64], values: Any) -> Any:
        """``total`` with these values in the columns ``at``; ``total`` itself may be changed."""

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        """Not defined.

        Raises
        ------
        ArgumentError
            Always: each group has a kernel of its own.
        """
        raise ArgumentError(
            "Expected a scalar kernel, found Graphical, which has one for each group of sites."
        )
