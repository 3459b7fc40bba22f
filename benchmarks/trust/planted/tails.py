"""Tails: heavy ones, and skewed ones of logarithms."""

from __future__ import annotations

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Pathology


def student(dim: int, freedom: float) -> Pathology:
    """Independent Student's t; of one degree of freedom, Cauchy."""

    def program(host: Host) -> None:
        with host.plate("coordinates", dim):
            host.sample("x", host.dist.StudentT(freedom, 0.0, 1.0))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"x": rng.standard_t(freedom, size=(number, dim))}

    kind = "cauchy" if freedom == 1.0 else f"student-{freedom:g}df"
    return Pathology(f"{kind}-{dim}d", "heavy tails", dim, program, exact)


def joint_student(dim: int, freedom: float) -> Pathology:
    """A multivariate t, by a factor: all coordinates are large together."""

    def program(host: Host) -> None:
        z = host.flat("z", dim)
        spread = 1.0 + host.xp.square(z).sum() / freedom
        host.factor("t", -0.5 * (freedom + dim) * host.xp.log(spread))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        scale = np.sqrt(freedom / rng.chisquare(freedom, size=(number, 1)))
        return {"z": scale * rng.normal(size=(number, dim))}

    return Pathology(f"joint-student-{freedom:g}df-{dim}d", "heavy tails", dim, program, exact)


def log_gamma(dim: int, shape: float) -> Pathology:
    """Logarithms of Gamma variables, by a factor: one tail is exponential, the other much less."""

    def program(host: Host) -> None:
        z = host.flat("z", dim)
        host.factor("log gamma", (shape * z - host.xp.exp(z)).sum())

    def exact(number: int, rng: np.random.Generator) -> Draws:
        # Of a small shape the variable itself may be 0 in floating point: that of shape + 1 times
        # a uniform one to the power 1 / shape.
        larger = np.log(rng.gamma(shape + 1.0, size=(number, dim)))
        return {"z": larger + np.log(rng.random((number, dim))) / shape}

    return Pathology(f"log-gamma-{shape:g}-{dim}d", "skew", dim, program, exact)


def lognormal(dim: int, spread: float) -> Pathology:
    """Lognormal variables, whose logarithms are Normal: hard only for what forgets the Jacobian."""

    def program(host: Host) -> None:
        with host.plate("coordinates", dim):
            host.sample("x", host.dist.LogNormal(0.0, spread))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"x": np.exp(spread * rng.normal(size=(number, dim)))}

    return Pathology(f"lognormal-{spread:g}-{dim}d", "skew", dim, program, exact)


PROBLEMS = (
    student(1, 1.0),
    student(5, 1.0),
    student(5, 3.0),
    joint_student(10, 3.0),
    log_gamma(2, 0.3),
    log_gamma(10, 1.0),
    lognormal(3, 2.0),
)
