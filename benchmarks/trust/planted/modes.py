"""Separate Normal modes: two and eight, at several distances and of several weights."""

from __future__ import annotations

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Floats, Pathology
from benchmarks.trust.planted.widths import Mixture


def mixture(name: str, kind: str, weights: Floats, means: Floats, scales: Floats) -> Pathology:
    """A mixture of K Normals with weights (K,), means (K, D) and standard deviations (K,)."""
    dim = means.shape[1]

    logs = np.log(weights) - dim * np.log(scales)

    def program(host: Host) -> None:
        z = host.flat("z", dim)
        apart = (z - host.array(means)) / host.array(scales[:, None])
        parts = host.array(logs) - 0.5 * host.xp.square(apart).sum(-1)
        host.factor("modes", host.log_sum_exp(parts))

    # `flat` has draws of a unit Normal, though not its density.
    of_normals = Mixture(weights, means, scales[:, None, None] * np.eye(dim), prior=1.0)

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"z": of_normals.draw(number, rng)}

    return Pathology(name, kind, dim, program, exact, reach=of_normals.least_reach)


def two_modes(dim: int, distance: float, weight: float) -> Pathology:
    """Unit Normals on a diagonal, as many standard deviations apart, the first of this weight."""
    step = np.full(dim, 0.5 * distance / np.sqrt(dim))
    return mixture(
        f"two-modes-{dim}d-{distance:g}sd-{weight:g}",
        "modes",
        np.array([weight, 1.0 - weight]),
        np.stack([-step, step]),
        np.ones(2),
    )


def eight_modes(dim: int, distance: float, *, equal: bool = True) -> Pathology:
    """Eight unit Normals on a circle, neighbours as many standard deviations apart."""
    angles = 2.0 * np.pi * np.arange(8) / 8.0
    radius = 0.5 * distance / np.sin(np.pi / 8.0)
    means = np.zeros((8, dim))
    means[:, 0], means[:, 1] = radius * np.cos(angles), radius * np.sin(angles)
    weights = np.ones(8) if equal else np.arange(1.0, 9.0)
    shares = "equal" if equal else "unequal"
    name = f"eight-modes-{dim}d-{distance:g}sd-{shares}"
    return mixture(name, "modes", weights / weights.sum(), means, np.ones(8))


def wrong_mode(dim: int, broad: float, weight: float) -> Pathology:
    """A broad mode of little weight around the start, a narrow one of most of it away from there.

    Paths from near the origin end in the broad one.
    """
    means = np.stack([np.zeros(dim), np.full(dim, 6.0 * broad / np.sqrt(dim))])
    return mixture(
        f"wrong-mode-{dim}d-{broad:g}sd-{weight:g}",
        "wrong mode",
        np.array([weight, 1.0 - weight]),
        means,
        np.array([broad, 0.1]),
    )


PROBLEMS = (
    two_modes(2, 6.0, 0.5),
    two_modes(2, 6.0, 0.8),
    two_modes(2, 10.0, 0.5),
    two_modes(2, 10.0, 0.95),
    two_modes(2, 20.0, 0.5),
    two_modes(2, 20.0, 0.8),
    two_modes(2, 20.0, 0.95),
    two_modes(10, 6.0, 0.5),
    two_modes(10, 6.0, 0.95),
    two_modes(10, 10.0, 0.8),
    two_modes(10, 20.0, 0.5),
    eight_modes(2, 6.0),
    eight_modes(2, 10.0, equal=False),
    eight_modes(2, 20.0),
    eight_modes(10, 6.0, equal=False),
    eight_modes(10, 10.0),
    wrong_mode(2, 3.0, 0.05),
    wrong_mode(5, 5.0, 0.2),
)
