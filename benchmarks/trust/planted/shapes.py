"""Curved and narrow shapes: bananas, rings, ridges, scales far apart, many correlated sites."""

from __future__ import annotations

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Floats, Pathology, gaussian_draws


def banana(strength: float, width: float) -> Pathology:
    """A Normal coordinate, and another near its square, as ordinary sites."""

    def program(host: Host) -> None:
        x = host.sample("x", host.dist.Normal(0.0, 1.0))
        host.sample("y", host.dist.Normal(strength * host.xp.square(x), width))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        x = rng.normal(size=number)
        return {"x": x, "y": strength * x**2 + width * rng.normal(size=number)}

    return Pathology(f"banana-{strength:g}-{width:g}", "curved", 2, program, exact)


def bananas(dim: int, strength: float, width: float) -> Pathology:
    """Pairs of coordinates, each a banana, as one vector and a factor."""
    half = dim // 2

    def program(host: Host) -> None:
        z = host.flat("z", dim)
        x, y = z[:half], z[half:]
        apart = (y - strength * host.xp.square(x)) / width
        host.factor("bananas", -0.5 * (host.xp.square(x).sum() + host.xp.square(apart).sum()))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        x, noise = rng.normal(size=(2, number, half))
        return {"z": np.concatenate([x, strength * x**2 + width * noise], axis=1)}

    return Pathology(f"bananas-{dim}d", "curved", dim, program, exact)


def ring(dim: int, radius: float, width: float) -> Pathology:
    """A circle or a sphere with a Normal profile across."""

    def program(host: Host) -> None:
        z = host.flat("z", dim)
        distance = host.xp.sqrt(host.xp.square(z).sum() + 1e-30)
        host.factor("ring", -0.5 * host.xp.square((distance - radius) / width))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        # The distance has the density r^(D - 1) exp(-(r - radius)^2 / (2 width^2)).
        grid = np.linspace(max(0.0, radius - 9.0 * width), radius + 9.0 * width, 200_001)
        density = grid ** (dim - 1) * np.exp(-0.5 * ((grid - radius) / width) ** 2)
        below = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
        distance = np.interp(rng.random(number), below / below[-1], grid)
        direction = rng.normal(size=(number, dim))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        return {"z": distance[:, None] * direction}

    return Pathology(f"ring-{dim}d-{radius:g}-{width:g}", "ring", dim, program, exact)


def gaussian(name: str, kind: str, mean: Floats, covariance: Floats) -> Pathology:
    """A Normal as one site, with its Cholesky factor."""
    dim, factor = len(mean), np.linalg.cholesky(covariance)

    def program(host: Host) -> None:
        given = host.array(mean), host.array(factor)
        host.sample("x", host.dist.MultivariateNormal(given[0], scale_tril=given[1]))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"x": gaussian_draws(mean, covariance, number, rng)}

    return Pathology(name, kind, dim, program, exact)


def ridge(dim: int, correlation: float) -> Pathology:
    """Unit variances and the same correlation between all."""
    covariance = correlation * np.ones((dim, dim)) + (1.0 - correlation) * np.eye(dim)
    return gaussian(f"ridge-{dim}d-{correlation:g}", "ridge", np.zeros(dim), covariance)


def correlated(dim: int) -> Pathology:
    """Means and scales of different sizes, eigenvalues of the correlations over four decades."""
    rng = np.random.default_rng([dim, 1])
    vectors = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    covariance = (vectors * np.geomspace(1e-2, 1e2, dim)) @ vectors.T
    scales = np.exp(rng.normal(size=dim))
    covariance = scales[:, None] * 0.5 * (covariance + covariance.T) * scales
    return gaussian(f"correlated-{dim}d", "dimension", 3.0 * rng.normal(size=dim), covariance)


def ill_scaled(dim: int) -> Pathology:
    """Independent Normals with standard deviations from 1e-3 to 1e4, means of their size."""
    scales = np.geomspace(1e-3, 1e4, dim)
    means = scales * np.random.default_rng(dim).normal(size=dim)

    def program(host: Host) -> None:
        with host.plate("coordinates", dim):
            host.sample("x", host.dist.Normal(host.array(means), host.array(scales)))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"x": means + scales * rng.normal(size=(number, dim))}

    return Pathology(f"ill-scaled-{dim}d", "scales", dim, program, exact)


PROBLEMS = (
    banana(0.5, 1.0),
    banana(2.0, 0.2),
    bananas(10, 1.0, 0.3),
    ring(2, 5.0, 1.0),
    ring(2, 10.0, 0.3),
    ring(3, 5.0, 0.5),
    ridge(2, 0.999),
    ridge(20, 0.999),
    ill_scaled(8),
    correlated(100),
    correlated(250),
    correlated(500),
)
