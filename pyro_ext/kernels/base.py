"""What every Stein kernel offers, and the distance computation that the radial kernels share.

The Stein direction of a kernel k at particles z_1..z_P with scores s_1..s_P is

    phi(z_i) = 1/P sum_j [ k(z_j, z_i) s_j + grad_{z_j} k(z_j, z_i) ]

(Liu and Wang 2016, Algorithm 1). Bandwidths and metrics computed from the particles are
constants of a step: they are not differentiated. No kernel of this package makes an array
larger than (P, P) or (P, D).
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ppl_ext.errors import ArgumentError
from ppl_ext.options import describe

if TYPE_CHECKING:
    from pyro_ext.kernels.combination import Scaled, Sum
    from pyro_ext.kernels.metric import Frames, ProductMetric

KernelState = dict[str, Any]


class Interactions(NamedTuple):
    """A scalar kernel and its gradients at all pairs of P particles.

    Parameters
    ----------
    gram : Tensor
        k(z_j, z_i), shape (P, P).
    coefficients : Tensor
        c with grad_{z_j} k(z_j, z_i) = sum_q c_jiq b_q, shape (P, P, Q).
    basis : Tensor
        b, shape (Q, D).
    """

    gram: Tensor
    coefficients: Tensor
    basis: Tensor

    def repulsion(self) -> Tensor:
        """sum_j grad_{z_j} k(z_j, z_i), shape (P, D)."""
        return self.coefficients.sum(dim=0) @ self.basis

    def direction(self, scores: Tensor) -> Tensor:
        """The Stein direction phi (P, D) of scores (P, D)."""
        return (self.gram.T @ scores + self.repulsion()) / len(scores)


class Kernel(abc.ABC):
    """A positive definite kernel with its Stein direction.

    Kernels are immutable descriptions. What a kernel has to remember between steps, if
    anything, is its state: a dictionary of tensors, passed in and handed back.
    """

    def init(self, particles: Tensor) -> KernelState:
        """State before the first step; empty for kernels that remember nothing."""
        return {}

    def with_sites(self, sites: Mapping[str, slice]) -> Kernel:
        """The kernel for a flat vector in which ``sites`` take these ranges.

        Only kernels that treat sites apart differ from themselves.
        """
        return self

    @abc.abstractmethod
    def direction(
        self, state: KernelState, particles: Tensor, scores: Tensor
    ) -> tuple[Tensor, KernelState]:
        """Direction phi in which the particles move, an ascent direction.

        Parameters
        ----------
        state : dict
            State from :meth:`init` or from the previous call.
        particles : Tensor
            Particles, shape (P, D).
        scores : Tensor
            Gradients of the log density at the particles, shape (P, D).

        Returns
        -------
        tuple
            phi of shape (P, D), and the next state.
        """

    @property
    def translation_invariant(self) -> bool:
        """Whether k(x, y) is a function of x - y, with what a step holds constant."""
        return False

    def with_curvature(self, metric: ProductMetric) -> Kernel:
        """The kernel with the present curvature for the metric ``"curvature"``.

        Only kernels that have that metric differ from themselves.
        """
        return self

    def interactions(self, particles: Tensor) -> Interactions:
        """Values and gradients at all pairs of particles (P, D), for engines that need each.

        Raises
        ------
        ArgumentError
            The kernel does not offer them.
        """
        from pyro_ext.kernels.metric import Frames

        return self.interactions_in(Frames(particles))

    def interactions_in(self, frames: Frames) -> Interactions:
        """:meth:`interactions` of the particles that ``frames`` are of."""
        raise ArgumentError(
            f"{type(self).__name__} does not offer its gradient at each pair of particles. Use "
            "RBF, IMQ, Linear, or sums and multiples of them."
        )

    @abc.abstractmethod
    def gram(self, state: KernelState, particles: Tensor) -> Tensor:
        """Kernel values at all pairs of particles, shape (P, P).

        Raises
        ------
        ArgumentError
            If the kernel is not scalar valued.
        """

    def __repr__(self) -> str:
        own = dataclasses.is_dataclass(self)
        return describe(self) if own else f"{type(self).__name__}()"

    def __add__(self, other: Kernel) -> Sum:
        from pyro_ext.kernels.combination import Sum

        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum((self, other))

    def __mul__(self, factor: float) -> Scaled:
        from pyro_ext.kernels.combination import Scaled

        if not isinstance(factor, (int, float)):
            return NotImplemented
        return Scaled(self, float(factor))

    __rmul__ = __mul__


def check_kernel(kernel: object, purpose: str = "") -> None:
    """See that an object is a kernel of this package; ``purpose`` says what it is for.

    Raises
    ------
    ArgumentError
        It is something else.
    """
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"Expected kernels of pyro_ext.kernels{purpose}, found {type(kernel).__name__}. "
            "Wrap a kernel of the host in HostKernel."
        )


def centre(particles: Tensor) -> Tensor:
    """Particles (P, D) minus their mean.

    The first particle is subtracted before the mean is taken. Far from the origin that
    difference is exact, whereas a mean of large numbers is not; and coincident particles
    become exact zeros.
    """
    shifted = particles - particles[:1]
    return shifted - shifted.mean(dim=0)


def squared_distances(centred: Tensor, products: Tensor | None = None) -> Tensor:
    """Squared Euclidean distances of all pairs, shape (P, P), by one matrix product.

    Expects centred points of shape (P, D), or their inner products (P, P), because
    |x|^2 + |y|^2 - 2 x.y cancels when the points sit far from the origin. Distances that
    are not above the rounding error of that formula are set to zero, so coincident particles
    have distance zero exactly.
    """
    if products is None:
        products = centred @ centred.T
    norms = products.diagonal()
    totals = norms.unsqueeze(1) + norms
    squared = torch.add(totals, products, alpha=-2.0)
    rounding = 8.0 * torch.finfo(centred.dtype).eps
    return squared.masked_fill(squared <= rounding * totals, 0.0)
