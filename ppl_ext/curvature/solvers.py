"""What iterative solvers find, and a step of conjugate gradients, on either package's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Float


class IterativeSolution(NamedTuple):
    """What an iterative solver found.

    Numbers are a package's own: Python's in Pyro, arrays without axes in NumPyro.

    Parameters
    ----------
    solution : array
    residual : float
        |b - A x| / |b|.
    iterations : int
        Products taken.
    definite : bool
        False if a direction of negative curvature was met; the solution is the last before it.
    """

    solution: Float[Any, " ..."]
    residual: Any
    iterations: Any
    definite: Any


class Conjugate(NamedTuple):
    """Where conjugate gradients are: a solution, its residual b - A x, and where they go next.

    ``fall`` is the product of the residual with itself in the preconditioner's norm.
    """

    solution: Float[Any, " ..."]
    residual: Float[Any, " ..."]
    direction: Float[Any, " ..."]
    fall: Any

    def after(
        self, length: Any, image: Float[Any, " ..."], preconditioner: Callable[[Any], Any]
    ) -> Conjugate:
        """After a step of this length along the direction, whose product with A is ``image``."""
        # By the recurrence and not as b - A x, which would take one more product; the two differ by
        # rounding.
        residual = self.residual - length * image
        scaled = preconditioner(residual)
        fall = (residual * scaled).sum()
        # Conjugate to all directions before it, for which the last alone is needed.
        direction = scaled + (fall / self.fall) * self.direction
        return Conjugate(self.solution + length * self.direction, residual, direction, fall)


def beginning(
    right_side: Float[Any, " ..."], zero: Float[Any, " ..."], preconditioner: Callable[[Any], Any]
) -> Conjugate:
    """Conjugate gradients at a solution of zero."""
    scaled = preconditioner(right_side)
    return Conjugate(zero, right_side, scaled, (right_side * scaled).sum())
