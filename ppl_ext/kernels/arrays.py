"""What the kernels' formulas need of a package's arrays beyond what all arrays share."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from jaxtyping import Float

from ppl_ext.documented import documents_subclasses


@documents_subclasses
class KernelArrays(abc.ABC):
    """What computes on the arrays of one package.

    Arrays of both packages share their operators, ``.mT``, ``.T``, ``.ndim``, and ``.sum`` and
    ``.mean`` with ``axis`` and ``keepdims``. The rest is here.

    Parameters
    ----------
    package : str
        Name of the package, for messages.
    functions : module
        ``torch`` or ``jax.numpy``, for those functions that have one name and meaning in both.
    """

    package: str
    functions: Any

    @abc.abstractmethod
    def as_array(self, value: Any, like: Any) -> Any:
        """A value as an array of the type of numbers and on the device of ``like``."""

    @abc.abstractmethod
    def identity(self, size: int, like: Any) -> Any:
        """The identity matrix, of the type of numbers and on the device of ``like``."""

    @abc.abstractmethod
    def inverse_root(self, values: Any) -> Any:
        """One over the square root of each value."""

    @abc.abstractmethod
    def product(self, left: Any, right: Any) -> Any:
        """Product of two matrices in full precision, whatever else the device multiplies in."""

    @abc.abstractmethod
    def cholesky(self, matrix: Any) -> Any:
        """Lower Cholesky factor, not a number where the matrix has none.

        A step that is not finite is the engine's to report.
        """

    @abc.abstractmethod
    def solve_lower(self, factor: Any, right: Any) -> Any:
        """Solution of a lower triangular system for the columns of ``right``."""

    @abc.abstractmethod
    def value_of(self, metric: Callable[[Any], Any], particles: Any) -> Any:
        """A metric's value at the particles, as a constant."""

    @abc.abstractmethod
    def squared_distances(
        self, centred: Float[Any, "P D"], products: Float[Any, "P P"] | None = None
    ) -> Float[Any, "P P"]:
        """Squared Euclidean distances of all pairs, shape (P, P), by one matrix product.

        Expects centred points of shape (P, D), or their inner products (P, P), because
        |x|^2 + |y|^2 - 2 x.y cancels when the points sit far from the origin. Distances that
        are not above the rounding error of that formula are set to zero, so coincident particles
        have distance zero exactly.
        """

    def over_coordinates(self, total: Float[Any, "P P"]) -> Float[Any, "P P"]:
        """A sum over the coordinates that are here, with those that other processes have.

        With ``Sharding(exchange="all-to-all")`` each process of Pyro has some coordinates of all
        particles. What a kernel sums over coordinates goes through here.
        """
        return total

    def num_coordinates(self, particles: Float[Any, "P D"]) -> int:
        """The number of all coordinates, with those that other processes have."""
        return int(particles.shape[1])

    def num_filled(self, particles: Float[Any, "P D"]) -> int:
        """The number of last columns that are no coordinates, and make those of processes alike."""
        return 0

    @abc.abstractmethod
    def of_pairs(self, matrix: Float[Any, "P P"]) -> Any:
        """The entries of a matrix for the pairs i<j, in one vector."""

    @abc.abstractmethod
    def order_statistics(self, values: Any, ranks: tuple[int | None, int | None]) -> Any:
        """Values of two equal or neighbouring ranks (from 0, ascending); None stands for zero.

        The values are not negative. By selection, because a sort would be the dearest part of a
        step.
        """

    @abc.abstractmethod
    def by_coordinate(self, function: Callable[[Any], Any], points: Float[Any, "P D"]) -> Any:
        """A function's values (D,) for the columns of points, one at a time.

        All of them at once would take (P, P, D).
        """


def centre(particles: Float[Any, "P D"]) -> Float[Any, "P D"]:
    """Particles (P, D) minus their mean.

    The first particle is subtracted before the mean is taken. Far from the origin that
    difference is exact, whereas a mean of large numbers is not; and coincident particles
    become exact zeros.
    """
    shifted = particles - particles[:1]
    return shifted - shifted.mean(axis=0)
