"""Coordinates in which a kernel's metric, as :mod:`ppl_ext.kernels` has them, is the identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.errors import ArgumentError
from ppl_ext.kernels import ProductMetric
from pyro_ext.kernels.distances import centre

Metric: TypeAlias = "str | Tensor | Callable[[Tensor], Tensor] | ProductMetric | None"


class Coordinates(NamedTuple):
    """Particles in coordinates in which the metric is the identity.

    Parameters
    ----------
    points : Tensor
        u = A (z - c), shape (P, D), with c the mean of the particles; with a metric given by its
        products, which has no A, z - c.
    root : Tensor or None
        A: shape (D,) where it is diagonal, (D, D), or None for the identity.
    weighted : Tensor or None
        W (z - c), shape (P, D), for a metric given by its products.
    """

    points: Float[Tensor, "P D"]
    root: Float[Tensor, ...] | None
    weighted: Float[Tensor, "P D"] | None = None

    @property
    def partners(self) -> Float[Tensor, "P D"]:
        """What the inner product with a row of ``points`` is one in the metric with, (P, D)."""
        return self.points if self.weighted is None else self.weighted

    def inner_products(self) -> Float[Tensor, "P P"]:
        """(z_i - c)' W (z_j - c) for all pairs, shape (P, P)."""
        return self.points @ self.partners.T

    def gradients(self, factor: Float[Tensor, ...] | float = 1.0) -> Float[Tensor, "P D"]:
        """W (z - c) times a factor, or one for each coordinate of u, shape (P, D)."""
        if self.weighted is not None:
            return self.weighted * factor
        return self.pulled_back(self.points * factor)

    def pulled_back(self, gradients: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """Gradients (P, D) with respect to u as gradients with respect to z: rows times A."""
        if self.root is None:
            return gradients
        return gradients * self.root if self.root.dim() == 1 else gradients @ self.root

    def pushed_forward(self, gradients: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """Gradients (P, D) with respect to z as gradients with respect to u."""
        if self.root is None:
            return gradients
        if self.root.dim() == 1:
            return gradients / self.root
        return torch.linalg.solve(self.root.T, gradients.T).T

    def displaced(self, displacements: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """Displacements (P, D) of u as displacements of z."""
        if self.root is None:
            return displacements
        if self.root.dim() == 1:
            return displacements / self.root
        return torch.linalg.solve(self.root, displacements.T).T


class CoordinatesByMetric:
    """Particles in the coordinates of several metrics, each found once.

    Parameters
    ----------
    particles : Tensor
        Shape (P, D).
    """

    def __init__(self, particles: Tensor) -> None:
        self.particles = particles
        self._found: list[tuple[Metric, Coordinates, Tensor]] = []

    def of(self, metric: Metric) -> tuple[Coordinates, Tensor]:
        """The coordinates of a metric W, and W (z - c), shape (P, D)."""
        for known, frame, gradients in self._found:
            named = isinstance(known, str) and isinstance(metric, str)
            if known is metric or (named and known == metric):
                return frame, gradients
        frame = coordinates(metric, self.particles)
        self._found.append((metric, frame, frame.gradients()))
        return self._found[-1][1:]


def coordinates(metric: Metric, particles: Float[Tensor, "P D"]) -> Coordinates:
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
        variance = centred.square().mean(dim=0)
        # Where all particles agree the deviations are zero, and any weight will do.
        usable = variance > 4.0 * torch.finfo(variance.dtype).tiny
        root = torch.where(usable, variance, 1.0).rsqrt()
        if metric == "covariance":
            root = _inverse_root(centred * root, usable) * root
    else:
        root = _root_of(_called(metric, particles) if callable(metric) else metric, centred)
    points = centred * root if root.dim() == 1 else centred @ root.T
    return Coordinates(points, root)


def _inverse_root(standardized: Tensor, usable: Tensor) -> Tensor:
    """A with A'A the inverse of the correlations of standardized particles (P, D)."""
    num, dim = standardized.shape
    if num <= dim:
        raise ArgumentError(
            f'Expected more particles than the {dim} dimensions for the metric "covariance", '
            f'found {num}: their covariance has no inverse. Use "variance", more particles, or '
            "a metric of your own."
        )
    identity = torch.eye(dim, dtype=standardized.dtype, device=standardized.device)
    # A multiple of the rounding error of the correlations, for particles in a subspace.
    ridge = 8.0 * dim * torch.finfo(standardized.dtype).eps
    correlations = standardized.T @ standardized / num
    # Coordinates in which all particles agree count as uncorrelated with unit variance.
    correlations = correlations + torch.where(usable, ridge, 1.0).diag().to(correlations)
    return torch.linalg.solve_triangular(_cholesky(correlations), identity, upper=False)


def _root_of(weights: Tensor, centred: Tensor) -> Tensor:
    """A with A'A the given metric, which is a vector of weights or a matrix."""
    dim = centred.shape[1]
    weights = torch.as_tensor(weights, dtype=centred.dtype, device=centred.device)
    if weights.shape == (dim,):
        return weights.sqrt()
    if weights.shape == (dim, dim):
        return _cholesky(0.5 * (weights + weights.T)).T
    raise ArgumentError(
        f"Expected a metric of shape ({dim},), one weight for each flat coordinate, or "
        f"({dim}, {dim}), found {tuple(weights.shape)}."
    )


def _cholesky(matrix: Tensor) -> Tensor:
    """Lower Cholesky factor, not a number where the matrix has none.

    A step that is not finite is the engine's to report, as a matrix that is no metric is in JAX.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where(failed == 0, factor, torch.nan)


def _called(metric: Callable[[Tensor], Tensor], particles: Tensor) -> Tensor:
    """A metric's value; it may differentiate, and change the copy that it is given."""
    with torch.enable_grad():
        return torch.as_tensor(metric(particles.detach().clone())).detach()
