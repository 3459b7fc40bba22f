"""Funnels (R. Neal, "Slice sampling", 2003): a scale of unknown size, in both parameterisations."""

from __future__ import annotations

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Pathology

#: Standard deviation of the log variance.
SPREAD = 3.0


def centred(dim: int) -> Pathology:
    """The effects have the unknown scale themselves, as ordinary sites in a plate."""

    def program(host: Host) -> None:
        v = host.sample("v", host.dist.Normal(0.0, SPREAD))
        with host.plate("effects", dim - 1):
            host.sample("x", host.dist.Normal(0.0, host.xp.exp(0.5 * v)))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        v = SPREAD * rng.normal(size=number)
        noise = rng.normal(size=(number, dim - 1))
        return {"v": v, "x": np.exp(0.5 * v)[:, None] * noise}

    return Pathology(f"funnel-centred-{dim}d", "funnel", dim, program, exact)


def non_centred(dim: int) -> Pathology:
    """The same with standardised effects: independent Normals, which everything should fit."""

    def program(host: Host) -> None:
        v = host.sample("v", host.dist.Normal(0.0, SPREAD))
        with host.plate("effects", dim - 1):
            unit = host.sample("e", host.dist.Normal(0.0, 1.0))
            host.deterministic("x", host.xp.exp(0.5 * v) * unit)

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"v": SPREAD * rng.normal(size=number), "e": rng.normal(size=(number, dim - 1))}

    return Pathology(f"funnel-non-centred-{dim}d", "funnel", dim, program, exact)


def as_factor(dim: int) -> Pathology:
    """A funnel as one vector and a factor, which no reparameterisation of sites can see."""

    def program(host: Host) -> None:
        z = host.flat("z", dim)
        v, x = z[0], z[1:]
        scaled = host.xp.square(x).sum() * host.xp.exp(-v)
        scale = host.xp.square(v) / SPREAD**2
        host.factor("funnel", -0.5 * (scale + scaled + (dim - 1) * v))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        v = SPREAD * rng.normal(size=(number, 1))
        return {"z": np.concatenate([v, np.exp(0.5 * v) * rng.normal(size=(number, dim - 1))], 1)}

    return Pathology(f"funnel-factor-{dim}d", "funnel", dim, program, exact)


PROBLEMS = (
    centred(3),
    centred(10),
    centred(50),
    non_centred(3),
    non_centred(10),
    non_centred(50),
    as_factor(3),
)
