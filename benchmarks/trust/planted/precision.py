"""Traps for single precision, and priors of the wrong scale."""

from __future__ import annotations

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Floats, Pathology


def normal_mean(
    name: str,
    kind: str,
    truth: float,
    noise: float,
    prior_mean: float,
    prior: float,
    dim: int = 1,
    rows: int = 100,
    *,
    single: bool = True,
) -> Pathology:
    """Means of rows of Normals with known noise; the posterior is Normal."""
    rng = np.random.default_rng([dim, 7])
    data = truth + noise * rng.normal(size=(rows, dim))

    def program(host: Host, y: Floats) -> None:
        dist = host.dist
        with host.plate("coordinates", dim):
            mu = host.sample("mu", dist.Normal(prior_mean, prior))
            with host.plate("rows", rows):
                host.sample("y", dist.Normal(mu, noise), obs=y)

    precision = prior**-2 + rows * noise**-2
    mean = (prior_mean * prior**-2 + data.sum(0) * noise**-2) / precision

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"mu": mean + rng.normal(size=(number, dim)) / np.sqrt(precision)}

    return Pathology(name, kind, dim, program, exact, (data,), single=single)


def tiny(scale: float, dim: int, *, single: bool = True) -> Pathology:
    """A narrow Normal. The square of a scale of 1e-22 is no number of single precision."""

    def program(host: Host) -> None:
        with host.plate("coordinates", dim):
            host.sample("x", host.dist.Normal(0.0, scale))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"x": scale * rng.normal(size=(number, dim))}

    return Pathology(f"tiny-{scale:g}", "float32", dim, program, exact, single=single)


def large_counts(rows: int, size: float) -> Pathology:
    """A rate of large counts: terms of the density are millions, its width in them a few units."""
    counts = np.random.default_rng(8).poisson(size, rows).astype(float)

    def program(host: Host, counts: Floats) -> None:
        dist = host.dist
        rate = host.sample("rate", dist.Gamma(host.array(2.0), host.array(1e-3)))
        with host.plate("rows", rows):
            host.sample("counts", dist.Poisson(rate), obs=counts)

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"rate": rng.gamma(2.0 + counts.sum(), 1.0 / (1e-3 + rows), size=number)}

    return Pathology("large-counts", "float32", 1, program, exact, (counts,))


PROBLEMS = (
    # Neighbouring numbers of single precision are 0.06 apart there, the posterior's deviation 0.1.
    normal_mean("offset-1e6", "float32", 1e6, 1.0, 1e6, 10.0, single=False),
    normal_mean("offset-1e4", "float32", 1e4, 1.0, 0.0, 1e5),
    tiny(1e-8, 2),
    tiny(1e-22, 2, single=False),
    large_counts(100, 1e5),
    normal_mean("prior-too-wide", "prior scale", 300.0, 0.05, 0.0, 1e4, dim=5),
    normal_mean("prior-too-narrow", "prior scale", 1.0, 10.0, 0.0, 1e-2, dim=5),
    normal_mean("prior-far-away", "prior scale", 50.0, 1.0, 0.0, 1.0, dim=5),
)
