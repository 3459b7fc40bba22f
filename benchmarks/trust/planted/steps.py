"""Densities with a jump, of which no gradient tells."""

from __future__ import annotations

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Pathology


def halves(dim: int, weight: float) -> Pathology:
    """A unit Normal whose half with a positive first coordinate has another weight."""
    height = float(np.log(weight / (1.0 - weight)))

    def program(host: Host) -> None:
        z = host.sample("z", host.dist.Normal(host.array(np.zeros(dim)), 1.0).to_event(1))
        heights = host.array(np.array([0.0, height]))
        host.factor("step", host.xp.where(z[0] > 0.0, heights[1], heights[0]))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        z = rng.normal(size=(number, dim))
        side = np.where(rng.random(number) < weight, 1.0, -1.0)
        z[:, 0] = side * np.abs(z[:, 0])
        return {"z": z}

    return Pathology(f"step-{weight:g}-{dim}d", "discontinuity", dim, program, exact, smooth=False)


def boxes(shares: tuple[float, ...]) -> Pathology:
    """A density on (0, 1) of a few steps, by a Uniform site and a factor."""
    count, total = len(shares), sum(shares)

    def program(host: Host) -> None:
        u = host.sample("u", host.dist.Uniform(host.array(0.0), host.array(1.0)))
        logs = host.array(np.log(np.array(shares)))
        edges = host.array(np.arange(1, count) / count)
        rises = logs[1:] - logs[:-1]
        zeros = host.xp.zeros_like(rises)
        host.factor("boxes", logs[0] + host.xp.where(u > edges, rises, zeros).sum())

    def exact(number: int, rng: np.random.Generator) -> Draws:
        chosen = rng.choice(count, size=number, p=np.array(shares) / total)
        return {"u": (chosen + rng.random(number)) / count}

    name = f"boxes-{count}"
    return Pathology(name, "discontinuity", 1, program, exact, smooth=False)


PROBLEMS = (halves(2, 0.8), halves(5, 0.999), boxes((1.0, 8.0, 1.0, 30.0)))
