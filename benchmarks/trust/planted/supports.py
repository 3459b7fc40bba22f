"""Constrained sites: Gamma, Beta, Dirichlet, correlation matrices, a support that depends."""

from __future__ import annotations

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Floats, Pathology


def gamma(shape: float, rate: float, dim: int) -> Pathology:
    """Independent Gamma variables."""

    def program(host: Host) -> None:
        with host.plate("coordinates", dim):
            host.sample("x", host.dist.Gamma(host.array(shape), host.array(rate)))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"x": rng.gamma(shape, 1.0 / rate, size=(number, dim))}

    return Pathology(f"gamma-{shape:g}-{dim}d", "support", dim, program, exact)


def beta(first: float, second: float, dim: int) -> Pathology:
    """Independent Beta variables; of shapes below 1 most mass is at both ends."""

    def program(host: Host) -> None:
        with host.plate("coordinates", dim):
            host.sample("x", host.dist.Beta(host.array(first), host.array(second)))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"x": rng.beta(first, second, size=(number, dim))}

    return Pathology(f"beta-{first:g}-{second:g}-{dim}d", "support", dim, program, exact)


def dirichlet(name: str, concentration: Floats) -> Pathology:
    """Shares that sum to one."""

    def program(host: Host) -> None:
        host.sample("p", host.dist.Dirichlet(host.array(concentration)))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"p": rng.dirichlet(concentration, size=number)}

    return Pathology(f"dirichlet-{name}", "support", len(concentration) - 1, program, exact)


def correlations(order: int, concentration: float) -> Pathology:
    """Cholesky factor of a correlation matrix with an LKJ distribution."""

    def program(host: Host) -> None:
        host.sample("L", host.dist.LKJCholesky(order, host.array(concentration)))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"L": lkj_factors(order, concentration, number, rng)}

    dim = order * (order - 1) // 2
    return Pathology(f"lkj-{order}", "support", dim, program, exact)


def lkj_factors(order: int, concentration: float, number: int, rng: np.random.Generator) -> Floats:
    """Cholesky factors (number, d, d) of LKJ correlations, row by row.

    The onion of D. Lewandowski, D. Kurowicka and H. Joe ("Generating random correlation matrices
    based on vines and extended onion method", 2009): row k, counted from 0, has a squared length
    below the diagonal of Beta(k / 2, concentration + (d - 1 - k) / 2) and a uniform direction.
    """
    factors = np.zeros((number, order, order))
    factors[:, 0, 0] = 1.0
    for row in range(1, order):
        squared = rng.beta(0.5 * row, concentration + 0.5 * (order - 1 - row), size=number)
        direction = rng.normal(size=(number, row))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        factors[:, row, :row] = np.sqrt(squared)[:, None] * direction
        factors[:, row, row] = np.sqrt(1.0 - squared)
    return factors


def dependent() -> Pathology:
    """A support that depends on another latent."""

    def program(host: Host) -> None:
        a = host.sample("a", host.dist.LogNormal(0.0, 1.0))
        host.sample("b", host.dist.Uniform(0.0, a))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        a = np.exp(rng.normal(size=number))
        return {"a": a, "b": a * rng.random(number)}

    return Pathology("dependent-uniform", "support", 2, program, exact)


PROBLEMS = (
    gamma(0.3, 1.0, 3),
    gamma(50.0, 0.1, 3),
    beta(0.5, 0.5, 2),
    beta(1.0, 200.0, 2),
    dirichlet("sparse", np.array([0.2, 0.2, 0.5, 1.0, 3.0])),
    dirichlet("plain", np.array([1.5, 3.0, 5.5])),
    correlations(3, 2.0),
    correlations(6, 1.0),
    dependent(),
)
