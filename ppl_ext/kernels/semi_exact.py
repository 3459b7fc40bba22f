"""Any kernel, with Stein's equations of mean and covariance held exactly.

At a fixed point of SVGD Stein's identity holds on the span of the functions k(., z_i), in which
affine functions are not. So mean and covariance come out nearly right with most kernels, and not
exactly. Here a kernel's functions lose their affine part, and the linear kernel gives it back:

    k_s(x, y) = 1/2 l(x, y) + w/2 ((I - A) k (I - A)')(x, y)

with l the :class:`~ppl_ext.kernels.linear.Linear` kernel and (A f)(x) the affine function that is
nearest to f at the P particles. Both terms are positive definite, and so is k_s. Let the columns of
U be the affine functions at the particles, which are 1 and the coordinates of z, and let Pi be the
projection on their span. Since

    (A f)(x) = sum_m w_m(x) f(z_m),    w_m(x) = 1/P + (x - c)' S^-1 (z_m - c) / P,

with c and S the mean and the covariance of the particles, the Stein direction of k_s is

    phi = 1/2 phi_l[s] + w/2 (I - Pi) phi_k[(I - Pi) s - S^-1 (z - c)].

The first summand lies in the span of U, the second is orthogonal to it. Where phi is zero both are,
and phi_l = 0 says, with more particles than dimensions, that the mean score is zero and that the
mean of score times deviation is minus the identity. On a Normal target these are its mean and its
covariance. For integrals this is the idea of semi-exact control functionals (South, Karvonen,
Nemeth, Girolami and Oates 2022, https://arxiv.org/abs/2002.00033).

The weight w does not move the fixed point, and decides on how soon either half gets there. The
linear kernel divides by D: in many dimensions each of its directions is slow, and what k still
does would disturb mean and covariance. So w is min(1, 5 / D).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from jaxtyping import Float

from ppl_ext.errors import ArgumentError
from ppl_ext.kernels.arrays import KernelArrays
from ppl_ext.kernels.base import Interactions, Kernel, KernelState
from ppl_ext.kernels.coordinates import CoordinatesByMetric, coordinates
from ppl_ext.kernels.rules import ProductMetric
from ppl_ext.options import check_number

#: Ridge where there are no more particles than affine functions.
FEW_PARTICLES = 0.1
#: Dimensions from which on the kernel's weight falls as one over their number.
EVEN_DIMENSIONS = 5


class AffineFunctions(NamedTuple):
    """What of functions on P particles is affine.

    Parameters
    ----------
    basis : array
        Columns that span the linear functions of centred particles, orthonormal but for the
        ridge, shape (P, D).
    slopes : array
        S^-1 (z - c), shape (P, D).
    """

    basis: Float[Any, "P Q"]
    slopes: Float[Any, "P D"]

    def removed(self, values: Float[Any, "P n"]) -> Float[Any, "P n"]:
        """(I - Pi) times values (P, n)."""
        # The constant functions first; the basis is of centred particles, and orthogonal to them.
        centred = values - values.mean(axis=0)
        return centred - self.basis @ (self.basis.T @ centred)


def weight_of(particles: Float[Any, "P D"]) -> float:
    """Weight of the kernel beside the linear one."""
    return float(min(1.0, EVEN_DIMENSIONS / particles.shape[1]))


def affine_functions(
    arrays: KernelArrays, particles: Float[Any, "P D"], ridge: float | None
) -> AffineFunctions:
    """The affine functions at particles (P, D), with a ridge in units of their variances."""
    functions = arrays.functions
    frame = coordinates(arrays, "variance", particles)
    num, dim = frame.points.shape
    # Rounding errors alone would decide on directions in which the particles do not differ.
    least = 8.0 * functions.finfo(frame.points.dtype).eps
    if ridge is None:
        ridge = 0.0 if num > dim + 1 else FEW_PARTICLES
    # The points' products are P times the covariance, and so is the ridge, hence P in its root.
    weight = (num * max(ridge, least)) ** 0.5
    identity = arrays.identity(dim, frame.points)
    # QR of the points above a root of the ridge gives what Cholesky of their products would,
    # without the square of the condition number.
    stacked = functions.concatenate([frame.points, weight * identity], axis=0)
    orthonormal, triangle = functions.linalg.qr(stacked)
    basis = orthonormal[:num]
    # S^-1 (z - c) is P Q R^-T in units of the deviations.
    inverse = arrays.solve_lower(triangle.T, identity)
    return AffineFunctions(basis, frame.pulled_back(num * (basis @ inverse)))


@dataclass(frozen=True, repr=False)
class SemiExact(Kernel):
    """A kernel whose Stein equations of mean and covariance hold exactly at a fixed point.

    Each package's ``SemiExact`` has the whole text.
    """

    linear: ClassVar[type[Any]]

    kernel: Any
    ridge: float | None = None

    def __post_init__(self) -> None:
        self.check(self.kernel, " to take the affine part off")
        if isinstance(self.kernel, SemiExact):
            raise ArgumentError(
                "Expected a kernel that is not semi-exact itself, found SemiExact. Give it the "
                "kernel alone."
            )
        check_number("ridge", self.ridge, optional=True)

    @property
    def _linear(self) -> Any:
        return self.linear()

    def init(self, particles: Float[Any, "P D"]) -> KernelState:
        """State of the kernel."""
        return self.kernel.init(particles)

    def with_sites(self, sites: Mapping[str, slice]) -> Self:
        """The same of the kernel for these sites."""
        return type(self)(self.kernel.with_sites(sites), self.ridge)

    def with_curvature(self, metric: ProductMetric) -> Self:
        """The same of the kernel with the present curvature."""
        return type(self)(self.kernel.with_curvature(metric), self.ridge)

    def direction(
        self, state: KernelState, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        affine = affine_functions(self.arrays, particles, self.ridge)
        moments, _ = self._linear.direction({}, particles, scores)
        rest = affine.removed(scores) - affine.slopes
        phi, state = self.kernel.direction(state, particles, rest)
        return 0.5 * moments + 0.5 * weight_of(particles) * affine.removed(phi), state

    def interactions_at(self, points: CoordinatesByMetric) -> Interactions:
        """Values and gradients at all pairs; see :meth:`Kernel.interactions`."""
        functions = self.arrays.functions
        affine = affine_functions(self.arrays, points.particles, self.ridge)
        linear = self._linear.interactions_at(points)
        found = self.kernel.interactions_at(points)
        num, weight = len(found.gram), weight_of(points.particles)
        # (I - A) k (I - A)' at the particles: Pi is taken off each argument, of a symmetric matrix.
        once = affine.removed(found.gram)
        gram = affine.removed(once.T)
        # Of the second argument, which is put first: (P_i, P_j, Q).
        swapped = found.coefficients.swapaxes(0, 1).reshape(num, -1)
        own = affine.removed(swapped).reshape(num, num, -1).swapaxes(0, 1)
        # grad w_m is the same everywhere, S^-1 (z_m - c) / P.
        shared = functions.broadcast_to(-once[None] / num, (num, num, num))
        rest = weight * functions.concatenate([own, shared], axis=-1)
        return Interactions(
            0.5 * (linear.gram + weight * gram),
            0.5 * functions.concatenate([linear.coefficients, rest], axis=-1),
            functions.concatenate([linear.basis, found.basis, affine.slopes], axis=0),
        )

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        affine = affine_functions(self.arrays, particles, self.ridge)
        own = affine.removed(affine.removed(self.kernel.gram(state, particles)).T)
        return 0.5 * (self._linear.gram({}, particles) + weight_of(particles) * own)
