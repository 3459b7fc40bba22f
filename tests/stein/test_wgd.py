"""WGD's direction in both packages against equation 14 of its paper, in a double loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backends import use_float64
from tests.kernel_support import Value, cloud, gradient, imq, median_width, rbf
from tests.stein_support import Run, optimizer

use_float64()

MEAN, PRECISION = np.array([0.5, -1.0, 0.3]), np.array([4.0, 1.0, 0.25])
#: Five particles in no symmetry.
PARTICLES = cloud(5, 3)[0]
IDENTITY = np.eye(3)


def wgd_direction(kernel: Value, particles: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """s(z_i) - sum_j grad_{z_i} k(z_i, z_j) / sum_j k(z_i, z_j)."""
    direction = scores.copy()
    for i, own in enumerate(particles):
        density = sum(kernel(own, other) for other in particles)
        slope = sum(gradient(kernel, own, other) for other in particles)
        direction[i] -= slope / density
    return direction


def of_two(x: np.ndarray, y: np.ndarray) -> Any:
    return rbf(IDENTITY, 0.7)(x, y) + 0.5 * imq(IDENTITY, 2.0)(x, y)


@pytest.mark.parametrize("name", ["default", "sum"])
def test_a_step_follows_the_score_and_leaves_the_others(backend: Any, name: str) -> None:
    public = backend.public
    kernel, expected = {
        "default": (None, rbf(IDENTITY, median_width(PARTICLES, IDENTITY))),
        "sum": (public.RBF(0.7) + 0.5 * public.IMQ(2.0), of_two),
    }[name]

    def model() -> None:
        normal = backend.dist.Normal(backend.array(MEAN), backend.array(PRECISION**-0.5))
        backend.host.sample("z", normal.to_event(1))

    rate = 0.01
    sgd = optimizer(backend, "sgd", rate)
    run = Run(backend, "WGD", model, sgd, kernel, num_particles=5, start=PARTICLES)
    run.step()
    direction = wgd_direction(expected, PARTICLES, -PRECISION * (PARTICLES - MEAN))
    found = (run.particles - PARTICLES) / rate
    np.testing.assert_allclose(found, direction, rtol=1e-9)
    # The others push: each particle is farther from their mean than its score alone takes it.
    away = found + PRECISION * (PARTICLES - MEAN)
    assert ((away * (PARTICLES - PARTICLES.mean(0))).sum(1) > 0.0).sum() >= 4
