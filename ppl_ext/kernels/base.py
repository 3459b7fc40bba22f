"""What every Stein kernel offers, and sums and positive multiples of kernels, which are kernels.

The Stein direction of a kernel k at particles z_1..z_P with scores s_1..s_P is

    phi(z_i) = 1/P sum_j [ k(z_j, z_i) s_j + grad_{z_j} k(z_j, z_i) ]

(Liu and Wang 2016, https://arxiv.org/abs/1608.04471, Algorithm 1). Bandwidths and metrics computed
from the particles are constants of a step: they are not differentiated. No kernel here makes an
array larger than (P, P), (P, D), or, of functions of single coordinates, (P, D, M) with M knots.

Formulas stand here for the arrays of either package. A package has a subclass of :class:`Kernel`
with what computes on its arrays, and each of its kernels inherits from that and from a class of
this folder.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from jaxtyping import Float

from ppl_ext.documented import documents_subclasses
from ppl_ext.errors import ArgumentError
from ppl_ext.kernels.arrays import KernelArrays
from ppl_ext.kernels.coordinates import CoordinatesByMetric
from ppl_ext.kernels.rules import ProductMetric, check_factor, mixture_weights
from ppl_ext.options import describe

KernelState = dict[str, Any]


class Interactions(NamedTuple):
    """A scalar kernel and its gradients at all pairs of P particles.

    Parameters
    ----------
    gram : array
        k(z_j, z_i), shape (P, P).
    coefficients : array
        c with grad_{z_j} k(z_j, z_i) = sum_q c_jiq b_q, shape (P, P, Q).
    basis : array
        b, shape (Q, D).
    """

    gram: Float[Any, "P P"]
    coefficients: Float[Any, "P P Q"]
    basis: Float[Any, "Q D"]

    def repulsion(self) -> Float[Any, "P D"]:
        """sum_j grad_{z_j} k(z_j, z_i), shape (P, D)."""
        return self.coefficients.sum(axis=0) @ self.basis

    def direction(self, scores: Float[Any, "P D"]) -> Float[Any, "P D"]:
        """The Stein direction phi (P, D) of scores (P, D)."""
        # Entry [j, i] is k(z_j, z_i), and the sum is over j.
        return (self.gram.T @ scores + self.repulsion()) / len(scores)


@documents_subclasses
class Kernel(abc.ABC):
    """A positive definite kernel with its Stein direction.

    Kernels are immutable descriptions. What a kernel has to remember between steps, if
    anything, is its state: a dictionary of arrays, passed in and handed back.

    Examples
    --------
    Kernels are added and multiplied by numbers.

    >>> isinstance(RBF() + 0.5 * IMQ(), Kernel)
    True
    """

    arrays: ClassVar[KernelArrays]

    def init(self, particles: Float[Any, "P D"]) -> KernelState:
        """State before the first step; empty for kernels that remember nothing."""
        return {}

    def with_sites(self, sites: Mapping[str, slice]) -> Self:
        """The kernel for a flat vector in which ``sites`` take these ranges.

        Only kernels that treat sites apart differ from themselves.
        """
        return self

    def for_shape(self, num: int, dim: int) -> Any:
        """The kernel for ``num`` particles in ``dim`` dimensions, for all steps of a run.

        Only kernels that choose by these numbers differ from themselves, and what holds them.
        """
        return self

    @abc.abstractmethod
    def direction(
        self, state: KernelState, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        """Direction phi in which the particles move, an ascent direction.

        Parameters
        ----------
        state : dict
            State from :meth:`init` or from the previous call.
        particles : array
            Particles, shape (P, D).
        scores : array
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

    @property
    def divides_coordinates(self) -> bool:
        """Whether processes that have some coordinates of all particles can find the direction.

        Each finds its own coordinates, and they have in common what goes through
        :meth:`KernelArrays.over_coordinates
        <ppl_ext.kernels.arrays.KernelArrays.over_coordinates>`.
        """
        return False

    def with_curvature(self, metric: ProductMetric) -> Self:
        """The kernel with the present curvature for the metric ``"curvature"``.

        Only kernels that have that metric differ from themselves.
        """
        return self

    def interactions(self, particles: Float[Any, "P D"]) -> Interactions:
        """Values and gradients at all pairs of particles (P, D), for engines that need each.

        Raises
        ------
        ArgumentError
            The kernel does not offer them.
        """
        return self.interactions_at(CoordinatesByMetric(self.arrays, particles))

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """:meth:`interactions` of the particles that ``points`` are of."""
        raise ArgumentError(
            f"{type(self).__name__} does not offer its gradient at each pair of particles. Use "
            "RBF, IMQ, Linear, or sums and multiples of them."
        )

    @abc.abstractmethod
    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        """Kernel values at all pairs of particles, shape (P, P).

        Raises
        ------
        ArgumentError
            If the kernel is not scalar valued.
        """

    def __repr__(self) -> str:
        own = dataclasses.is_dataclass(self)
        return describe(self) if own else f"{type(self).__name__}()"

    @classmethod
    def check(cls, kernel: object, purpose: str = "") -> None:
        """See that an object is a kernel of this package; ``purpose`` says what it is for.

        Raises
        ------
        ArgumentError
            It is something else.
        """
        if not (isinstance(kernel, Kernel) and kernel.arrays is cls.arrays):
            raise ArgumentError(
                f"Expected kernels of {cls.arrays.package}.kernels{purpose}, found "
                f"{type(kernel).__name__}. Wrap a kernel of the host in HostKernel."
            )


def direction_at_points(
    kernel: Any, state: KernelState, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
) -> tuple[Float[Any, "P D"], KernelState]:
    """``direction`` of the kernels that find it by a method ``direction_at``.

    That takes :class:`CoordinatesByMetric` of the particles in their place. Terms of a sum have the
    same, and find in common what they can.
    """
    points = CoordinatesByMetric(kernel.arrays, particles)
    return kernel.direction_at(state, points, scores)


class OfKernels(Kernel):
    """A kernel that is made of others: what holds of all of them holds of it."""

    @property
    @abc.abstractmethod
    def parts(self) -> tuple[Any, ...]:
        """The kernels."""

    @abc.abstractmethod
    def _each(self, change: Callable[[Any], Any]) -> Self:
        """The same of kernels that are changed."""

    @property
    def translation_invariant(self) -> bool:
        """Whether all kernels are."""
        return all(each.translation_invariant for each in self.parts)

    @property
    def divides_coordinates(self) -> bool:
        """Whether all kernels do."""
        return all(each.divides_coordinates for each in self.parts)

    def with_sites(self, sites: Mapping[str, slice]) -> Self:
        """The same of the kernels for these sites."""
        return self._each(lambda kernel: kernel.with_sites(sites))

    def for_shape(self, num: int, dim: int) -> Any:
        """The same of the kernels for so many particles and dimensions."""
        return self._each(lambda kernel: kernel.for_shape(num, dim))

    def with_curvature(self, metric: ProductMetric) -> Self:
        """The same of the kernels with the present curvature."""
        return self._each(lambda kernel: kernel.with_curvature(metric))


@dataclass(frozen=True, init=False, repr=False)
class Sum(OfKernels):
    """Sum of kernels, k = sum_m k_m; written ``RBF() + Linear()``.

    Parameters
    ----------
    kernels : iterable of Kernel
        Terms of the sum; sums within it are flattened.
    """

    kernels: tuple[Any, ...]

    direction = direction_at_points

    def __init__(self, kernels: Iterable[Any]) -> None:
        terms: list[Any] = []
        for kernel in kernels:
            # A user's subclass with a direction of its own is one term.
            is_plain = isinstance(kernel, Sum) and type(kernel).direction is Sum.direction
            terms.extend(kernel.kernels if is_plain else (kernel,))
        if not terms:
            raise ArgumentError("Expected at least one kernel in a sum, found none.")
        for kernel in terms:
            self.check(kernel)
        object.__setattr__(self, "kernels", tuple(terms))

    @classmethod
    def mixture(cls, kernels: Sequence[Any], weights: Sequence[float] | None = None) -> Self:
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
            There is no kernel, the numbers of kernels and weights differ, or a weight is not
            positive and finite.
        """
        kernels = list(kernels) if isinstance(kernels, Iterable) else [kernels]
        shares = mixture_weights(len(kernels), weights)
        for kernel in kernels:
            cls.check(kernel)
        return cls(share * kernel for kernel, share in zip(kernels, shares, strict=True))

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.kernels

    def _each(self, change: Callable[[Any], Any]) -> Self:
        found = copy.copy(self)
        # A term that becomes a sum stays one term, with its own state.
        object.__setattr__(found, "kernels", tuple(change(kernel) for kernel in self.kernels))
        return found

    def init(self, particles: Float[Any, "P D"]) -> KernelState:
        """States of the terms, under their positions."""
        return {str(i): kernel.init(particles) for i, kernel in enumerate(self.kernels)}

    def direction_at(
        self, state: KernelState, points: CoordinatesByMetric, scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        """Direction phi, shape (P, D): the sum of the terms' directions."""
        total, states = self.arrays.functions.zeros_like(points.particles), {}
        for i, kernel in enumerate(self.kernels):
            # Most terms are multiples, whose own method would be one call more.
            scaled = isinstance(kernel, Scaled) and type(kernel).direction is Scaled.direction
            term = kernel.kernel if scaled else kernel
            # A user's kernel that derives from one of these may have a direction of its own.
            if type(term).direction is direction_at_points:
                phi, states[str(i)] = term.direction_at(state[str(i)], points, scores)
            else:
                phi, states[str(i)] = term.direction(state[str(i)], points.particles, scores)
            phi = kernel.factor * phi if scaled else phi
            total = total + phi
        return total, states

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """Values and gradients at all pairs; see :meth:`Kernel.interactions`."""
        terms: list[Interactions] = []
        for kernel in self.kernels:
            term = kernel.interactions_at(points)
            for i, other in enumerate(terms):
                # Terms in one metric have the very same array as basis, by
                # ``CoordinatesByMetric.of``, and need its Q columns once.
                if other.basis is term.basis:
                    coefficients = other.coefficients + term.coefficients
                    terms[i] = Interactions(other.gram + term.gram, coefficients, other.basis)
                    break
            else:
                terms.append(term)
        functions = self.arrays.functions
        return Interactions(
            functions.stack([term.gram for term in terms]).sum(axis=0),
            functions.concatenate([term.coefficients for term in terms], axis=-1),
            functions.concatenate([term.basis for term in terms]),
        )

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        """Kernel values at all pairs of particles, shape (P, P)."""
        values = [kernel.gram(state[str(i)], particles) for i, kernel in enumerate(self.kernels)]
        return sum(values[1:], values[0])


@dataclass(frozen=True, repr=False)
class Scaled(OfKernels):
    """Positive multiple of a kernel; written ``0.5 * Linear()``.

    Parameters
    ----------
    kernel : Kernel
        Kernel to scale.
    factor : float
        Positive and finite; a negative multiple would not be positive definite.
    """

    kernel: Any
    factor: float

    def __post_init__(self) -> None:
        self.check(self.kernel)
        check_factor(self.factor)

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.kernel,)

    def _each(self, change: Callable[[Any], Any]) -> Self:
        return type(self)(change(self.kernel), self.factor)

    def init(self, particles: Float[Any, "P D"]) -> KernelState:
        """State of the scaled kernel."""
        return self.kernel.init(particles)

    def direction(
        self, state: KernelState, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        """Direction phi, shape (P, D)."""
        phi, state = self.kernel.direction(state, particles, scores)
        return self.factor * phi, state

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """Values and gradients at all pairs; see :meth:`Kernel.interactions`."""
        found = self.kernel.interactions_at(points)
        return Interactions(self.factor * found.gram, self.factor * found.coefficients, found.basis)

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        """Kernel values at all pairs of particles, shape (P, P)."""
        return self.factor * self.kernel.gram(state, particles)
