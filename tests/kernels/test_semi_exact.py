"""The additive and the semi-exact kernel by their definitions, and Stein's equations at rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from tests.backends import use_float64
from tests.kernel_support import Value, cloud, direction, imq, linear, rbf, stein_direction

use_float64()
pytestmark = pytest.mark.formula


def additive(particles: np.ndarray, width: float = 2.0) -> Value:
    """The mean over coordinates of the sum over knots of products of bumps."""
    mean, deviations = particles.mean(0), particles.std(0)
    spacing = np.sqrt(width) / 2.0
    number = int(np.ceil(3.0 / spacing))
    knots = [m * spacing for m in range(-number, number + 1)]

    def value(x: Any, y: Any) -> Any:
        u, v = (x - mean) / deviations, (y - mean) / deviations
        return sum(
            np.exp(-(((u - t) / spacing) ** 2 + ((v - t) / spacing) ** 2) / 2.0).mean()
            for t in knots
        ) / np.sqrt(np.pi)

    return value


def stretching(particles: np.ndarray, scores: np.ndarray, width: float) -> np.ndarray:
    """The direction of ``Dilation``, one scalar kernel for each coordinate that is stretched."""
    bumps, (num, dim) = additive(particles, width), particles.shape
    mean, deviations = particles.mean(0), particles.std(0)
    phi = np.zeros_like(particles)
    for e in range(dim):

        def value(x: Any, y: Any, e: int = e) -> Any:
            u, v = (x - mean) / deviations, (y - mean) / deviations
            return min(1.0, num / dim**2) * bumps(x, y) * u[e] * v[e]

        phi[:, e] = stein_direction(value, particles, scores)[0][:, e]
    return phi


def projected(kernel: Value, particles: np.ndarray, ridge: float = 0.0) -> Value:
    """The kernel without the affine part in either argument, by least squares."""
    num = len(particles)
    mean, variances = particles.mean(0), particles.var(0)
    penalty = num * ridge * np.diag([0.0, *variances])

    def features(x: Any) -> Any:
        return np.concatenate([np.ones(1), x - mean])

    design = np.array([features(x) for x in particles])
    fit = np.linalg.solve(design.T @ design + penalty, design.T)

    def value(x: Any, y: Any) -> Any:
        at_x, at_y = features(x) @ fit, features(y) @ fit
        pairs = np.array([[kernel(a, b) for b in particles] for a in particles])
        rows = np.array([kernel(x, b) for b in particles])
        columns = np.array([kernel(a, y) for a in particles])
        return kernel(x, y) - at_x @ columns - at_y @ rows + at_x @ pairs @ at_y

    return value


def semi_exact(kernel: Value, particles: np.ndarray, ridge: float = 0.0) -> Value:
    """The semi-exact kernel by its definition."""
    line = linear(np.diag(1 / particles.var(0)), particles.mean(0))
    rest = projected(kernel, particles, ridge)
    weight = min(1.0, 5.0 / particles.shape[1])
    return lambda x, y: 0.5 * line(x, y) + 0.5 * weight * rest(x, y)


@pytest.mark.in_both_packages
@pytest.mark.parametrize(
    ("num", "ridge", "dim"), [(7, None, 3), (7, 0.3, 3), (4, None, 3), (3, 0.2, 3), (9, None, 7)]
)
def test_directions_by_definition(backend, kernels, num, ridge, dim):
    particles, scores = cloud(num, dim)
    particles = particles + 5.0
    used = ridge if ridge is not None else (0.0 if num > dim + 1 else 0.1)
    made = {
        kernels.Additive(): additive(particles),
        kernels.Additive(0.7): additive(particles, 0.7),
        kernels.SemiExact(kernels.IMQ(1.5), ridge): semi_exact(
            imq(np.eye(dim), 1.5), particles, used
        ),
        kernels.SemiExact(kernels.Additive(), ridge): semi_exact(
            additive(particles), particles, used
        ),
    }
    if dim > 5:  # where the weight of the rest is not one; the reference takes seconds
        made = dict(list(made.items())[2:3])

    def every(z: Any, s: Any) -> Any:
        return [
            (
                k.direction(k.init(z), z, s)[0],
                k.gram(k.init(z), z),
                k.interactions(z).gram,
                k.interactions(z).direction(s),
            )
            for k in made
        ]

    found = backend.compiled(every)(backend.array(particles), backend.array(scores))
    for (kernel, value), results in zip(made.items(), found, strict=True):
        phi, gram = stein_direction(value, particles, scores)
        for result, expected in zip(results, (phi, gram, gram, phi), strict=True):
            np.testing.assert_allclose(
                backend.numpy(result), expected, rtol=1e-8, atol=1e-9, err_msg=repr(kernel)
            )


def test_additive_kernel_is_a_mean_of_gaussian_ones(backend, kernels):
    particles = np.random.default_rng(0).normal(size=(9, 2))
    gram = backend.compiled(lambda z: kernels.Additive(1.5).gram({}, z))(backend.array(particles))
    u = (particles - particles.mean(0)) / particles.std(0)
    expected = np.exp(-((u[:, None] - u) ** 2) / 1.5).mean(-1)
    np.testing.assert_allclose(backend.numpy(gram), expected, atol=5e-3)


@pytest.mark.parametrize(("num", "dim"), [(7, 2), (40, 2), (6, 3)])
def test_stretches_by_definition(backend, kernels, num, dim):
    # With and without fewer bumps than particles, and fewer particles than pairs of coordinates.
    particles, scores = cloud(num, dim)
    particles = particles + 5.0
    for kernel in (kernels.Dilation(), kernels.Dilation(0.9)):
        np.testing.assert_allclose(
            direction(backend, kernel, particles, scores),
            stretching(particles, scores, kernel.bandwidth),
            rtol=1e-8,
            atol=1e-9,
        )
        with pytest.raises(ArgumentError, match="values are matrices"):
            kernel.gram({}, backend.array(particles))
    # Terms of a sum have in common what is the same: bumps of two bandwidths are not.
    terms = (kernels.Dilation(), kernels.Additive(0.9), kernels.Dilation(0.9))
    found = direction(backend, sum(terms[1:], terms[0]), particles, scores)
    expected = sum(direction(backend, term, particles, scores) for term in terms)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dim", [3, 30])
def test_kernel_for_hierarchical_models(backend, kernels, dim):
    particles, scores = cloud(3 if dim == 30 else 9, dim)
    weights = np.diag(1.0 / particles.var(0))
    if dim == 30:  # a tenth as many particles as dimensions
        found = direction(backend, kernels.hierarchical_kernel(), particles, scores)
        expected = direction(backend, kernels.RBF(), particles, scores)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        return
    parts = {
        0.25: (rbf(weights, 4.0 * dim), additive(particles, 4.0)),
        0.5: (linear(weights, particles.mean(0)),),
    }
    expected = 0.15 * stretching(particles, scores, 4.0)
    for share, values in parts.items():
        for value in values:
            expected += share * stein_direction(value, particles, scores)[0]
    found = direction(backend, kernels.hierarchical_kernel(), particles, scores)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)


def test_stretches_right_a_neck_that_is_too_thin(backend, kernels):
    # z_2 has the deviation exp(z_1); where z_1 is low the particles are half as far apart.
    generator = np.random.default_rng(1)
    first, second = generator.normal(size=(2, 400))
    z = np.stack([first, second * np.exp(first) * np.where(first < -0.7, 0.5, 1.0)], 1)
    scores = np.stack([z[:, 1] ** 2 * np.exp(-2 * first) - first, -z[:, 1] * np.exp(-2 * first)], 1)
    phi = direction(backend, kernels.Dilation(0.5), z, scores)
    grows = phi[:, 1] * np.sign(z[:, 1] - z[:, 1].mean())
    assert grows[first < -1.0].mean() > 3.0 * abs(grows[np.abs(first) < 0.5].mean())


@pytest.mark.parametrize("inner", ["IMQ", "RBF", "Additive", "Dilation"])
def test_moments_of_a_correlated_normal_are_exact(backend, kernels, inner):
    # With plain gradient steps, no optimizer stands between the direction and rest.
    mean = np.array([1.0, -2.0, 0.5])
    root = np.array([[1.0, 0.0, 0.0], [0.6, 0.5, 0.0], [-0.4, 0.3, 0.8]])
    covariance = root @ root.T
    precision = backend.array(np.linalg.inv(covariance))
    kernel = kernels.SemiExact(getattr(kernels, inner)())
    centre = backend.array(mean)

    def step(z: Any) -> Any:
        for _ in range(20):
            z = z + 0.3 * kernel.direction(kernel.init(z), z, (centre - z) @ precision)[0]
        return z

    compiled = backend.compiled(step)
    z = backend.array(np.random.default_rng(0).normal(size=(12, 3)))
    for _ in range(60):
        z = compiled(z)
    found = backend.numpy(z)
    np.testing.assert_allclose(found.mean(0), mean, atol=1e-6)
    np.testing.assert_allclose(np.cov(found.T, bias=True), covariance, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_particles_that_agree(backend, kernels, dtype):
    particles, scores = cloud(6, 3)
    particles = particles + 1e3
    kernel = kernels.SemiExact(kernels.Additive())
    for equal in (2, 5, 6):
        together = particles.copy()
        together[:equal] = together[0]
        assert np.isfinite(direction(backend, kernel, together, scores, dtype)).all()
    particles[:, 1] = 7.0
    assert np.isfinite(direction(backend, kernel, particles, scores, dtype)).all()


@pytest.mark.in_both_packages
def test_of_a_host_kernel_and_of_groups(backend, kernels):
    particles, scores = cloud(8, 3)
    variances = 1 / particles.var(0)
    grouped = kernels.SemiExact(kernels.Graphical(kernels.IMQ(1.5)))
    phi = direction(
        backend, grouped.with_sites({"a": slice(0, 1), "b": slice(1, 3)}), particles, scores
    )
    one = np.zeros_like(particles)
    for columns in (slice(0, 1), slice(1, 3)):
        # The kernel of a group sees its coordinates; affine functions are of all.
        def seen(x: Any, y: Any, columns: slice = columns) -> Any:
            return imq(np.eye(len(x[columns])), 1.5)(x[columns], y[columns])

        rest = stein_direction(projected(seen, particles), particles, scores)[0]
        one[:, columns] = 0.5 * rest[:, columns]
    line = linear(np.diag(variances), particles.mean(0))
    one += 0.5 * stein_direction(line, particles, scores)[0]
    np.testing.assert_allclose(phi, one, rtol=1e-8, atol=1e-9)


def test_refused(kernels):
    with pytest.raises(ArgumentError, match="not semi-exact itself"):
        kernels.SemiExact(kernels.SemiExact(kernels.RBF()))
    for ridge in (-1.0, 0.0, float("nan"), "small"):
        with pytest.raises(ArgumentError, match="ridge"):
            kernels.SemiExact(kernels.RBF(), ridge)
    with pytest.raises(ArgumentError, match="HostKernel"):
        kernels.SemiExact("rbf")
    for width in (0.0, -1.0, "median"):
        with pytest.raises(ArgumentError, match="bandwidth"):
            kernels.Additive(width)
        with pytest.raises(ArgumentError, match="bandwidth"):
            kernels.Dilation(width)
