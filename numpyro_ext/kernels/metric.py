"""Coordinates in which a kernel's metric, as :mod:`ppl_ext.kernels` has them, is the identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float

from numpyro_ext.kernels.distances import centre
from ppl_ext.errors import ArgumentError
from ppl_ext.kernels import ProductMetric

Metric: TypeAlias = "str | Array | Callable[[Array], Array] | ProductMetric | None"


class Coordinates(NamedTuple):
    """Particles in coordinates in which the metric is the identity.

    Parameters
    ----------
    points : Array
        u = A (z - c), shape (P, D), with c the mean of the particles; with a metric given by its
        products, which has no A, z - c.
    root : Array or None
        A: shape (D,) where it is diagonal, (D, D), or None for the identity.
    weighted : Array or None
        W (z - c), shape (P, D), for a metric given by its products.
    """

    points: Float[Array, "P D"]
    root: Float[Array, ...] | None
    weighted: Float[Array, "P D"] | None = None

    @property
    def partners(self) -> Float[Array, "P D"]:
        """What the inner product with a row of ``points`` is one in the metric with, (P, D)."""
        return self.points if self.weighted is None else self.weighted

    def inner_products(self) -> Float[Array, "P P"]:
        """(z_i - c)' W (z_j - c) for all pairs, shape (P, P)."""
        # Accelerators multiply in reduced precision unless told otherwise, which the
        # cancellation in squared distances does not forgive.
        return jnp.matmul(self.points, self.partners.T, precision="highest")

    def gradients(self, factor: Float[Array, ...] | float = 1.0) -> Float[Array, "P D"]:
        """W (z - c) times a factor, or one for each coordinate of u, shape (P, D)."""
        if self.weighted is not None:
            return self.weighted * factor
        return self.pulled_back(self.points * factor)

    def pulled_back(self, gradients: Float[Array, "P D"]) -> Float[Array, "P D"]:
        """Gradients (P, D) with respect to u as gradients with respect to z: rows times A."""
        if self.root is None:
            return gradients
        return gradients * self.root if self.root.ndim == 1 else gradients @ self.root

    def pushed_forward(self, gradients: Float[Array, "P D"]) -> Float[Array, "P D"]:
        """Gradients (P, D) with respect to z as gradients with respect to u."""
        if self.root is None:
            return gradients
        if self.root.ndim == 1:
            return gradients / self.root
        return jnp.linalg.solve(self.root.T, gradients.T).T

    def displaced(self, displacements: Float[Array, "P D"]) -> Float[Array, "P D"]:
        """Displacements (P, D) of u as displacements of z."""
        if self.root is None:
            return displacements
        if self.root.ndim == 1:
            return displacements / self.root
        return jnp.linalg.solve(self.root, displacements.T).T


class CoordinatesByMetric:
    """Particles in the coordinates of several metrics, each found once.

    Parameters
    ----------
    particles : Array
        Shape (P, D).
    """

    def __init__(self, particles: Array) -> None:
        self.particles = particles
        self._found: list[tuple[Metric, Coordinates, Array]] = []

    def of(self, metric: Metric) -> tuple[Coordinates, Array]:
        """The coordinates of a metric W, and W (z - c), shape (P, D)."""
        for known, frame, gradients in self._found:
            named = isinstance(known, str) and isinstance(metric, str)
            if known is metric or (named and known == metric):
                return frame, gradients
        frame = coordinates(metric, self.particles)
        self._found.append((metric, frame, frame.gradients()))
        return self._found[-1][1:]


def coordinates(metric: Metric, particles: Float[Array, "P D"]) -> Coordinates:
    """Particles (P, D) in the coordinates of a metric.

    Raises
    ------
    ArgumentError
        The metric is ``"covariance"`` and there are no more particles than dimensions, or an
        array does not have D weights.
    """
    centred = centre(particles)
    if metric is None:
        return Coordinates(centred, None)
    if isinstance(metric, ProductMetric):
        return Coordinates(centred, None, metric.product(centred))
    if isinstance(metric, str) and metric == "curvature":
        raise ArgumentError(
            "Expected an engine that computes curvature, such as SVN, for a kernel with metric "
            '"curvature". Use "variance" or "covariance" with other engines.'
        )
    if isinstance(metric, str):
        variance = (centred**2).mean(axis=0)
        # Where all particles agree the deviations are zero, and any weight will do.
        usable = variance > 4.0 * jnp.finfo(variance.dtype).tiny
        root = jnp.where(usable, variance, 1.0) ** -0.5
        if metric == "covariance":
            root = _inverse_root(centred * root, usable) * root
    else:
        root = _root_of(metric(particles) if callable(metric) else metric, centred)
    points = centred * root if root.ndim == 1 else centred @ root.T
    return Coordinates(points, root)


def _inverse_root(standardized: Array, usable: Array) -> Array:
    """A with A'A the inverse of the correlations of standardized particles (P, D)."""
    num, dim = standardized.shape
    if num <= dim:
        raise ArgumentError(
            f'Expected more particles than the {dim} dimensions for the metric "covariance", '
            f'found {num}: their covariance has no inverse. Use "variance", more particles, or '
            "a metric of your own."
        )
    identity = jnp.eye(dim, dtype=standardized.dtype)
    # A multiple of the rounding error of the correlations, for particles in a subspace.
    ridge = 8.0 * dim * jnp.finfo(standardized.dtype).eps
    correlations = standardized.T @ standardized / num
    # Coordinates in which all particles agree count as uncorrelated with unit variance.
    correlations = correlations + jnp.diag(jnp.where(usable, ridge, 1.0))
    return solve_triangular(jnp.linalg.cholesky(correlations), identity, lower=True)


def _root_of(weights: Array, centred: Array) -> Array:
    """A with A'A the given metric, which is a vector of weights or a matrix."""
    dim = centred.shape[1]
    weights = jnp.asarray(weights, centred.dtype)
    if weights.shape == (dim,):
        return jnp.sqrt(weights)
    if weights.shape == (dim, dim):
        return jnp.linalg.cholesky(0.5 * (weights + weights.T)).T
    raise ArgumentError(
        f"Expected a metric of shape ({dim},), one weight for each flat coordinate, or "
        f"({dim}, {dim}), found {weights.shape}."
    )
