"""What every Stein kernel offers, and sums and positive multiples of kernels, which are kernels.

The Stein direction of a kernel k at particles z_1..z_P with scores s_1..s_P is

    phi(z_i) = 1/P sum_j [ k(z_j, z_i) s_j + grad_{z_j} k(z_j, z_i) ]

(Liu and Wang 2016, https://arxiv.org/abs/1608.04471, Algorithm 1). Bandwidths and metrics computed
from the particles are constants of a step: they are not differentiated. No kernel of this package
makes an array larger than (P, P) or (P, D).
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.kernels.metric import CoordinatesByMetric
from ppl_ext.errors import ArgumentError
from ppl_ext.kernels import ProductMetric, check_factor, mixture_weights
from ppl_ext.options import describe

KernelState = dict[str, Any]


class Interactions(NamedTuple):
    """A scalar kernel and its gradients at all pairs of P particles.

    Parameters
    ----------
    gram : Array
        k(z_j, z_i), shape (P, P).
    coefficients : Array
        c with grad_{z_j} k(z_j, z_i) = sum_q c_jiq b_q, shape (P, P, Q).
    basis : Array
        b, shape (Q, D).
    """

    gram: Float[Array, "P P"]
    coefficients: Float[Array, "P P Q"]
    basis: Float[Array, "Q D"]

    def repulsion(self) -> Float[Array, "P D"]:
        """sum_j grad_{z_j} k(z_j, z_i), shape (P, D)."""
        return self.coefficients.sum(axis=0) @ self.basis

    def direction(self, scores: Float[Array, "P D"]) -> Float[Array, "P D"]:
        """The Stein direction phi (P, D) of scores (P, D)."""
        return (self.gram.T @ scores + self.repulsion()) / len(scores)


class Kernel(abc.ABC):
    """A positive definite kernel with its Stein direction.

    Kernels are immutable descriptions. What a kernel has to remember between steps, if
    anything, is its state: a pytree of arrays, passed in and handed back.
    """

    def init(self, particles: Float[Array, "P D"]) -> KernelState:
        """State before the first step; empty for kernels that remember nothing."""
        return {}

    def with_sites(self, sites: Mapping[str, slice]) -> Kernel:
        """The kernel for a flat vector in which ``sites`` take these ranges.

        Only kernels that treat sites apart differ from themselves.
        """
        return self

    @abc.abstractmethod
    def direction(
        self, state: KernelState, particles: Float[Array, "P D"], scores: Float[Array, "P D"]
    ) -> tuple[Float[Array, "P D"], KernelState]:
        """Direction phi in which the particles move, an ascent direction.

        Parameters
        ----------
        state : dict
            State from :meth:`init` or from the previous call.
        particles : Array
            Particles, shape (P, D).
        scores : Array
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

    def interactions(self, particles: Float[Array, "P D"]) -> Interactions:
        """Values and gradients at all pairs of particles (P, D), for engines that need each.

        Raises
        ------
        ArgumentError
            The kernel does not offer them.
        """
        return self.interactions_at(CoordinatesByMetric(particles))

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """:meth:`interactions` of the particles that ``points`` are of."""
        raise ArgumentError(
            f"{type(self).__name__} does not offer its gradient at each pair of particles. Use "
            "RBF, IMQ, Linear, or sums and multiples of them."
        )

    @abc.abstractmethod
    def gram(self, state: KernelState, particles: Float[Array, "P D"]) -> Float[Array, "P P"]:
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
        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum((self, other))

    def __mul__(self, factor: float) -> Scaled:
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
            f"Expected kernels of numpyro_ext.kernels{purpose}, found {type(kernel).__name__}. "
            "Wrap a kernel of the host in HostKernel."
        )


@dataclass(frozen=True, init=False, repr=False)
class Sum(Kernel):
    """Sum of kernels, k = sum_m k_m; written ``RBF() + Linear()``.

    Parameters
    ----------
    kernels : iterable of Kernel
        Terms of the sum; sums within it are flattened.
    """

    kernels: tuple[Kernel, ...]

    def __init__(self, kernels: Iterable[Kernel]) -> None:
        terms: list[Kernel] = []
        for kernel in kernels:
            terms.extend(kernel.kernels if isinstance(kernel, Sum) else (kernel,))
        if not terms:
            raise ArgumentError("Expected at least one kernel in a sum, found none.")
        for kernel in terms:
            check_kernel(kernel)
        object.__setattr__(self, "kernels", tuple(terms))

    def with_sites(self, sites: Mapping[str, slice]) -> Sum:
        """The sum of the terms for these sites."""
        return Sum(kernel.with_sites(sites) for kernel in self.kernels)

    def init(self, particles: Float[Array, "P D"]) -> KernelState:
        """States of the terms, under their positions."""
        return {str(i): kernel.init(particles) for i, kernel in enumerate(self.kernels)}

    def direction(
        self, state: KernelState, particles: Float[Array, "P D"], scores: Float[Array, "P D"]
    ) -> tuple[Float[Array, "P D"], KernelState]:
        """Direction phi, shape (P, D): the sum of the terms' directions."""
        total, states = jnp.zeros_like(particles), {}
        for i, kernel in enumerate(self.kernels):
            phi, states[str(i)] = kernel.direction(state[str(i)], particles, scores)
            total = total + phi
        return total, states

    @property
    def translation_invariant(self) -> bool:
        """Whether all terms are."""
        return all(kernel.translation_invariant for kernel in self.kernels)

    def with_curvature(self, metric: ProductMetric) -> Sum:
        """The sum of the terms with the present curvature."""
        return Sum(kernel.with_curvature(metric) for kernel in self.kernels)

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """Values and gradients at all pairs; see :meth:`Kernel.interactions`."""
        terms: list[Interactions] = []
        for kernel in self.kernels:
            term = kernel.interactions_at(points)
            for i, other in enumerate(terms):
                if other.basis is term.basis:
                    coefficients = other.coefficients + term.coefficients
                    terms[i] = Interactions(other.gram + term.gram, coefficients, other.basis)
                    break
            else:
                terms.append(term)
        return Interactions(
            jnp.stack([term.gram for term in terms]).sum(axis=0),
            jnp.concatenate([term.coefficients for term in terms], axis=-1),
            jnp.concatenate([term.basis for term in terms]),
        )

    def gram(self, state: KernelState, particles: Float[Array, "P D"]) -> Float[Array, "P P"]:
        """Kernel values at all pairs of particles, shape (P, P)."""
        total = jnp.zeros((len(particles), len(particles)), particles.dtype)
        for i, kernel in enumerate(self.kernels):
            total = total + kernel.gram(state[str(i)], particles)
        return total


@dataclass(frozen=True, repr=False)
class Scaled(Kernel):
    """Positive multiple of a kernel; written ``0.5 * Linear()``.

    Parameters
    ----------
    kernel : Kernel
        Kernel to scale.
    factor : float
        Positive and finite; a negative multiple would not be positive definite.
    """

    kernel: Kernel
    factor: float

    def __post_init__(self) -> None:
        check_kernel(self.kernel)
        check_factor(self.factor)

    def with_sites(self, sites: Mapping[str, slice]) -> Scaled:
        """The multiple of the kernel for these sites."""
        return Scaled(self.kernel.with_sites(sites), self.factor)

    def init(self, particles: Float[Array, "P D"]) -> KernelState:
        """State of the scaled kernel."""
        return self.kernel.init(particles)

    def direction(
        self, state: KernelState, particles: Float[Array, "P D"], scores: Float[Array, "P D"]
    ) -> tuple[Float[Array, "P D"], KernelState]:
        """Direction phi, shape (P, D)."""
        phi, state = self.kernel.direction(state, particles, scores)
        return self.factor * phi, state

    @property
    def translation_invariant(self) -> bool:
        """Whether the kernel is."""
        return self.kernel.translation_invariant

    def with_curvature(self, metric: ProductMetric) -> Scaled:
        """The multiple of the kernel with the present curvature."""
        return Scaled(self.kernel.with_curvature(metric), self.factor)

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """Values and gradients at all pairs; see :meth:`Kernel.interactions`."""
        found = self.kernel.interactions_at(points)
        return Interactions(self.factor * found.gram, self.factor * found.coefficients, found.basis)

    def gram(self, state: KernelState, particles: Float[Array, "P D"]) -> Float[Array, "P P"]:
        """Kernel values at all pairs of particles, shape (P, P)."""
        return self.factor * self.kernel.gram(state, particles)


def mixture(kernels: Sequence[Kernel], weights: Sequence[float] | None = None) -> Sum:
    """Mixture of kernels, k = sum_m w_m k_m.

    Parameters
    ----------
    kernels : sequence of Kernel
        The kernels mixed.
    weights : sequence of float, optional
        Positive weights w_m, one for each kernel; scaled to sum to one. Default: all equal.

    Raises
    ------
    ArgumentError
        There is no kernel, the numbers of kernels and weights differ, or a weight is not positive
        and finite.
    """
    kernels = list(kernels) if isinstance(kernels, Iterable) else [kernels]
    shares = mixture_weights(len(kernels), weights)
    return Sum(Scaled(kernel, share) for kernel, share in zip(kernels, shares, strict=True))
