"""Matrix-valued kernels with a constant preconditioner, K(x, y) = W^-1 k(A x, A y), A'A = W."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float

from ppl_ext.errors import ArgumentError
from ppl_ext.kernels.base import Kernel, KernelState
from ppl_ext.kernels.coordinates import coordinates
from ppl_ext.kernels.rules import check_metric


@dataclass(frozen=True, eq=False, repr=False)
class Preconditioned(Kernel):
    """Stein direction of a kernel in the coordinates u = A (z - c) of a metric.

    This is the matrix-valued kernel of Wang, Tang, Bajaj and Liu 2019 ("Stein variational
    gradient descent with matrix-valued kernels", https://arxiv.org/abs/1910.12794, section 4.1)
    with the preconditioner W. Scores are preconditioned along with the kernel: with W near the
    target's curvature all directions of a Gaussian are approached at one rate. Give the engine
    plain gradient descent, because an adaptive optimizer rescales each coordinate of what it is
    given.

    Parameters
    ----------
    kernel : Kernel
        Kernel k in the coordinates u. Kernels that treat sites apart have none there.
    metric : str, array or callable, default "covariance"
        W; see :mod:`ppl_ext.kernels.rules`. Not ``"curvature"``, of which no root A is known.

    Raises
    ------
    ArgumentError
        The kernel is no Kernel of this package, or the metric is none or no metric.

    Examples
    --------
    >>> Preconditioned(RBF()).metric
    'covariance'
    """

    kernel: Any
    metric: Any = "covariance"

    def __post_init__(self) -> None:
        self.check(self.kernel, " to precondition")
        if self.metric is None:
            raise ArgumentError("Expected a metric to precondition with, found None.")
        if isinstance(self.metric, str) and self.metric == "curvature":
            raise ArgumentError(
                "Expected a metric W whose root A is known, found 'curvature', of which SVN alone "
                "has products. Use 'covariance' or 'variance', an array or a function of the "
                "particles; or SVN, whose steps are Newton's already, with RBF(metric='curvature')."
            )
        check_metric(self.metric)

    def init(self, particles: Float[Any, "P D"]) -> KernelState:
        """State of the kernel in the coordinates of the metric."""
        return self.kernel.init(coordinates(self.arrays, self.metric, particles).points)

    def direction(
        self, state: KernelState, particles: Float[Any, "P D"], scores: Float[Any, "P D"]
    ) -> tuple[Float[Any, "P D"], KernelState]:
        frame = coordinates(self.arrays, self.metric, particles)
        phi, state = self.kernel.direction(state, frame.points, frame.pushed_forward(scores))
        return frame.displaced(phi), state

    def gram(self, state: KernelState, particles: Float[Any, "P D"]) -> Float[Any, "P P"]:
        """Not defined.

        Raises
        ------
        ArgumentError
            Always: the values are matrices.
        """
        raise ArgumentError(
            "Expected a scalar kernel, found Preconditioned, whose values are matrices. Give the "
            "metric to the kernel itself, such as RBF(metric=...)."
        )
