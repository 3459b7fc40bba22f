"""Coordinates in which a metric, as :mod:`ppl_ext.kernels.rules` has them, is the identity."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxtyping import Float

from ppl_ext.errors import ArgumentError
from ppl_ext.kernels.arrays import KernelArrays, centre
from ppl_ext.kernels.rules import ProductMetric

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Particles in coordinates in which the metric is the identity.

    Parameters
    ----------
    arrays : KernelArrays
    points : array
        u = A (z - c), shape (P, D), with c the mean of the particles; with a metric given by its
        products, which has no A, z - c.
    root : array or None
        A: shape (D,) where it is diagonal, (D, D), or None for the identity.
    weighted : array or None
        W (z - c), shape (P, D), for a metric given by its products.
    """

    arrays: KernelArrays
    points: Float[Any, "P D"]
    root: Float[Any, " ..."] | None = None
    weighted: Float[Any, "P D"] | None = None

    @property
    def partners(self) -> Float[Any, "P D"]:
        """What the inner product with a row of ``points`` is one in the metric with, (P, D)."""
        return self.points if self.weighted is None else self.weighted

    def inner_products(self) -> Float[Any, "P P"]:
        """(z_i - c)' W (z_j - c) for all pairs, shape (P, P)."""
        return self.arrays.over_coordinates(self.arrays.product(self.points, self.partners.T))

    def gradients(self, factor: Float[Any, " ..."] | float = 1.0) -> Float[Any, "P D"]:
        """W (z - c) times a factor, or one for each coordinate of u, shape (P, D)."""
        if self.weighted is not None:
            return self.weighted * factor
        if self.root is None:
            return self.points * factor
        return self.pulled_back(self.points * factor)

    def pulled_back(self, gradients: Float[Any, "P D"]) -> Float[Any, "P D"]:
        """Gradients (P, D) with respect to u as gradients with respect to z: rows times A."""
        if self.root is None:
            return gradients
        return gradients * self.root if self.root.ndim == 1 else gradients @ self.root

    def pushed_forward(self, gradients: Float[Any, "P D"]) -> Float[Any, "P D"]:
        """Gradients (P, D) with respect to z as gradients with respect to u."""
        if self.root is None:
            return gradients
        if self.root.ndim == 1:
            return gradients / self.root
        return self.arrays.functions.linalg.solve(self.root.T, gradients.T).T

    def displaced(self, displacements: Float[Any, "P D"]) -> Float[Any, "P D"]:
        """Displacements (P, D) of u as displacements of z."""
        if self.root is None:
            return displacements
        if self.root.ndim == 1:
            return displacements / self.root
        return self.arrays.functions.linalg.solve(self.root, displacements.T).T


class CoordinatesByMetric:
    """Particles in the coordinates of several metrics, each found once, for the terms of a sum.

    Parameters
    ----------
    arrays : KernelArrays
    particles : array
        Shape (P, D).
    """

    def __init__(self, arrays: KernelArrays, particles: Float[Any, "P D"]) -> None:
        self.arrays, self.particles = arrays, particles
        self._frames: list[tuple[Any, Coordinates]] = []
        self._made: dict[Hashable, Any] = {}

    def frame(self, metric: Any) -> Coordinates:
        """The coordinates of a metric W."""
        for known, frame in self._frames:
            # Arrays are compared by identity: their equality is an array.
            named = isinstance(known, str) and isinstance(metric, str)
            if known is metric or (named and known == metric):
                return frame
        frame = coordinates(self.arrays, metric, self.particles)
        self._frames.append((metric, frame))
        return frame

    def of(self, metric: Any) -> tuple[Coordinates, Float[Any, "P D"]]:
        """The coordinates of a metric W, and W (z - c), shape (P, D)."""
        frame = self.frame(metric)
        return frame, self.once(("gradients", id(frame)), frame.gradients)

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` finds for these particles, found once under a name."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


def coordinates(arrays: KernelArrays, metric: Any, particles: Float[Any, "P D"]) -> Coordinates:
    """Particles (P, D) in the coordinates of a metric.

    Raises
    ------
    ArgumentError
        The metric is ``"covariance"`` and there are no more particles than dimensions, or an
        array does not have D weights.
    """
    centred = centre(particles)
    if metric is None:
        return Coordinates(arrays, centred)
    if isinstance(metric, ProductMetric):
        return Coordinates(arrays, centred, weighted=metric.product(centred))
    if isinstance(metric, str) and metric == "curvature":
        raise ArgumentError(
            "Expected an engine that computes curvature, such as SVN, for a kernel with metric "
            '"curvature". Use "variance" or "covariance" with other engines.'
        )
    if isinstance(metric, str):
        functions = arrays.functions
        variance = (centred**2).mean(axis=0)
        # Where all particles agree the deviations are zero, and any weight will do.
        usable = variance > 4.0 * functions.finfo(variance.dtype).tiny
        root = arrays.inverse_root(functions.where(usable, variance, 1.0))
        if metric == "covariance":
            root = _inverse_root(arrays, centred * root, usable) * root
    else:
        weights = arrays.value_of(metric, particles) if callable(metric) else metric
        root = _root_of(arrays, weights, centred)
    points = centred * root if root.ndim == 1 else centred @ root.T
    return Coordinates(arrays, points, root)


def _inverse_root(arrays: KernelArrays, standardized: Float[Any, "P D"], usable: Any) -> Any:
    """A with A'A the inverse of the correlations of standardized particles (P, D)."""
    num, dim = standardized.shape
    # The mean takes one of the particles: P - 1 directions at most.
    if num <= dim:
        raise ArgumentError(
            f'Expected more particles than the {dim} dimensions for the metric "covariance", '
            f'found {num}: their covariance has no inverse. Use "variance", more particles, or '
            "a metric of your own."
        )
    functions = arrays.functions
    # A multiple of the rounding error of the correlations, for particles in a subspace.
    ridge = 8.0 * dim * functions.finfo(standardized.dtype).eps
    correlations = standardized.T @ standardized / num
    # Coordinates in which all particles agree count as uncorrelated with unit variance.
    added = arrays.as_array(functions.where(usable, ridge, 1.0), standardized)
    factor = arrays.cholesky(correlations + functions.diag(added))
    return arrays.solve_lower(factor, arrays.identity(dim, standardized))


def _root_of(arrays: KernelArrays, weights: Any, centred: Float[Any, "P D"]) -> Any:
    """A with A'A the given metric, which is a vector of weights or a matrix."""
    dim = centred.shape[1]
    weights = arrays.as_array(weights, centred)
    if weights.shape == (dim,):
        return arrays.functions.sqrt(weights)
    if weights.shape == (dim, dim):
        # L L' = W, so that A = L' has A'A = W.
        return arrays.cholesky(0.5 * (weights + weights.T)).T
    raise ArgumentError(
        f"Expected a metric of shape ({dim},), one weight for each flat coordinate, or "
        f"({dim}, {dim}), found {tuple(weights.shape)}."
    )
