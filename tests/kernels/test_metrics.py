"""Metrics, preconditioned, random-feature and graphical kernels, against slow definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from tests.backends import use_float64
from tests.kernel_support import (
    cloud,
    direction,
    imq,
    largest_array,
    linear,
    median_width,
    of_kernel,
    rbf,
    stein_direction,
)

use_float64()
pytestmark = pytest.mark.formula

DIM = 3
#: What no kernel takes; of any type, as a user's untyped program has it.
NO_KERNEL: Any = "rbf"
MATRIX = np.array([[2.0, 0.7, 0.1], [0.7, 1.0, -0.3], [0.1, -0.3, 0.5]])
VECTOR = np.array([1.0, 2.0, 3.0])
CHANGE = np.array([[2.0, 5.0, 0.0], [0.0, 0.2, 3.0], [0.0, 0.0, 1.0]])


def covariance(particles: np.ndarray) -> np.ndarray:
    return np.cov(particles.T, bias=True)


#: Metric -> what is given for it, and the matrix W that it stands for.
METRICS: dict[str, tuple[Any, Any]] = {
    "none": (lambda array: None, lambda z: np.eye(DIM)),
    "variance": (lambda array: "variance", lambda z: np.diag(1 / z.var(axis=0))),
    "covariance": (lambda array: "covariance", lambda z: np.linalg.inv(covariance(z))),
    "vector": (lambda array: array(VECTOR), lambda z: np.diag(VECTOR)),
    "matrix": (lambda array: array(MATRIX), lambda z: MATRIX),
    "callable": (
        lambda array: lambda z: abs(z).mean() * array(MATRIX),
        lambda z: np.abs(z).mean() * MATRIX,
    ),
}


def metric_of(backend: Any, name: str, particles: np.ndarray) -> tuple[Any, np.ndarray]:
    """A metric, and its matrix at the particles."""
    given, matrix = METRICS[name]
    return given(backend.array), matrix(particles)


class TestMetric:
    @pytest.mark.in_both_packages
    @pytest.mark.parametrize("name", METRICS)
    def test_directions_against_a_loop(self, backend, kernels, name):
        particles, scores = cloud(7, DIM)
        particles = particles + 5.0
        metric, weights = metric_of(backend, name, particles)
        rules = {"dimension": 2.0 * DIM, "median": median_width(particles, weights), 1.7: 1.7}
        made = {kernels.Linear(metric): linear(weights, particles.mean(axis=0))}
        for rule, width in rules.items():
            made[kernels.RBF(rule, metric)] = rbf(weights, width)
            made[kernels.IMQ(rule, -0.3, metric)] = imq(weights, width, -0.3)

        def every(z: Any, s: Any) -> Any:
            return [(kernel.direction({}, z, s)[0], kernel.gram({}, z)) for kernel in made]

        found = backend.compiled(every)(backend.array(particles), backend.array(scores))
        for value, pair in zip(made.values(), found, strict=True):
            phi, gram = map(backend.numpy, pair)
            expected = stein_direction(value, particles, scores)
            np.testing.assert_allclose(phi, expected[0], rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(gram, expected[1], rtol=1e-8, atol=1e-11)

    @pytest.mark.parametrize("metric", ["variance", "covariance"])
    def test_values_do_not_depend_on_the_units(self, backend, kernels, metric):
        particles, _ = cloud(9, DIM)
        change = np.diag([1e-3, 5.0, 1e4]) if metric == "variance" else CHANGE
        made = [kernel(metric=metric) for kernel in (kernels.RBF, kernels.IMQ, kernels.Linear)]
        compiled = backend.compiled(lambda z: [kernel.gram({}, z) for kernel in made])
        expected = compiled(backend.array(particles))
        found = compiled(backend.array(particles @ change.T))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(
                backend.numpy(one), backend.numpy(other), rtol=1e-6, atol=1e-8
            )

    def test_refused(self, backend, kernels):
        array, (particles, scores) = backend.array, map(backend.array, cloud(5, DIM))
        for make in (kernels.RBF, kernels.IMQ, kernels.Linear):
            with pytest.raises(ArgumentError, match="metric among"):
                make(metric="fisher")
            with pytest.raises(ArgumentError, match="a callable, found 3"):
                make(metric=3)
            with pytest.raises(ArgumentError, match=r"shape \(D,\) or \(D, D\)"):
                make(metric=array(np.ones((2, 3))))
            for wrong in ([-1.0, 1.0, 1.0], [[1.0, 2.0], [2.0, 1.0]], [[2.0, 1.0], [0.0, 2.0]]):
                with pytest.raises(ArgumentError, match="positive definite"):
                    make(metric=array(wrong))
            with pytest.raises(ArgumentError, match=r"shape \(3,\)"):
                make(metric=array(np.ones(2))).direction({}, particles, scores)
            with pytest.raises(ArgumentError, match="more particles than the 3 dimensions"):
                make(metric="covariance").direction({}, particles[:3], scores[:3])
            with pytest.raises(ArgumentError, match="computes curvature"):
                make(metric="curvature").direction({}, particles, scores)

    @pytest.mark.parametrize("metric", ["variance", "covariance"])
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_particles_in_a_subspace(self, backend, kernels, metric, dtype):
        particles, scores = cloud(6, DIM)
        particles[:, 1], particles[:, 2] = 3.0, 2.0 * particles[:, 0]
        RBF, IMQ, Linear = kernels.RBF, kernels.IMQ, kernels.Linear
        made = (RBF("dimension", metric), IMQ("median", metric=metric), Linear(metric))
        compiled = backend.compiled(lambda z, s: [k.direction({}, z, s)[0] for k in made])
        found = compiled(backend.array(particles, dtype), backend.array(scores, dtype))
        for phi in map(backend.numpy, found):
            assert phi.dtype == dtype
            assert np.isfinite(phi).all()


class TestPreconditioned:
    def test_direction_is_that_of_the_matrix_kernel(self, backend, kernels):
        # K = W^-1 k, so that phi is W^-1 times the direction of k with the same metric.
        particles, scores = cloud(7, DIM)
        names = [name for name in METRICS if name != "none"]
        metrics = [metric_of(backend, name, particles) for name in names]
        made = [kernels.Preconditioned(kernels.RBF("dimension"), metric) for metric, _ in metrics]
        compiled = backend.compiled(
            lambda z, s: [kernel.direction(kernel.init(z), z, s)[0] for kernel in made]
        )
        found = compiled(backend.array(particles), backend.array(scores))
        for phi, (_, weights) in zip(found, metrics, strict=True):
            plain, _ = stein_direction(rbf(weights, 2.0 * DIM), particles, scores)
            expected = np.linalg.solve(weights, plain.T).T
            np.testing.assert_allclose(backend.numpy(phi), expected, rtol=1e-8, atol=1e-10)

    def test_steps_follow_any_change_of_coordinates(self, backend, kernels):
        particles, scores = cloud(9, DIM)
        kernel = kernels.Preconditioned(kernels.IMQ() + kernels.Linear(None))
        phi = direction(backend, kernel, particles, scores)
        changed = np.linalg.solve(CHANGE.T, scores.T).T
        moved = direction(backend, kernel, particles @ CHANGE.T, changed)
        np.testing.assert_allclose(moved, phi @ CHANGE.T, rtol=1e-6, atol=1e-8)

    def test_particles_that_agree_follow_their_scores(self, backend, kernels):
        particles, scores = cloud(7, DIM)
        kernel = kernels.Preconditioned(kernels.RBF())
        phi = direction(backend, kernel, 0.0 * particles + 2.0, scores)
        np.testing.assert_allclose(phi, 0.0 * scores + scores.mean(0), rtol=1e-6)

    def test_refused(self, backend, kernels):
        RBF, Preconditioned = kernels.RBF, kernels.Preconditioned
        with pytest.raises(ArgumentError, match="found None"):
            Preconditioned(RBF(), None)
        with pytest.raises(ArgumentError, match="found 'curvature'.*Use 'covariance'"):
            Preconditioned(RBF(), "curvature")
        with pytest.raises(ArgumentError, match="to precondition, found str"):
            Preconditioned(NO_KERNEL)
        with pytest.raises(ArgumentError, match="values are matrices"):
            Preconditioned(RBF()).gram({}, backend.array(cloud(5, DIM)[0]))


class TestRandomFeature:
    def test_values_approach_the_gaussian_kernel(self, backend, kernels):
        particles, _ = cloud(8, DIM)
        made = [kernels.RandomFeature(4000, 2.5, None, seed) for seed in range(10)]
        compiled = backend.compiled(lambda z: [kernel.gram(kernel.init(z), z) for kernel in made])
        exact = np.array([[rbf(np.eye(DIM), 2.5)(x, y) for x in particles] for y in particles])
        errors = [backend.numpy(gram) - exact for gram in compiled(backend.array(particles))]
        # One feature's product has a standard deviation of at most sqrt(3/2) about k.
        error = math.sqrt(1.5 / 4000)
        assert np.abs(errors).max() < 5 * error
        assert np.abs(np.mean(errors, axis=0)).max() < 5 * error / math.sqrt(10)

    @pytest.mark.parametrize("name", METRICS)
    def test_direction_against_a_loop(self, backend, kernels, name):
        particles, scores = cloud(7, DIM)
        metric, weights = metric_of(backend, name, particles)
        kernel = kernels.RandomFeature(5, "median", metric)
        state = backend.compiled(kernel.init)(backend.array(particles))
        # Any root gives the same distances, but features are drawn for one of them.
        root = np.linalg.cholesky(weights).T
        if name == "covariance":
            root = np.linalg.inv(np.linalg.cholesky(covariance(particles)))
        centre, offsets = particles.mean(axis=0), backend.numpy(state["offsets"])
        width = median_width(particles, weights)
        slopes = backend.numpy(state["frequencies"]) * math.sqrt(2 / width) @ root

        def value(x, y):
            def features(z):
                return np.cos(slopes @ (z - centre) + offsets)

            return 2 / 5 * features(x) @ features(y)

        phi, gram = of_kernel(backend, kernel, particles, scores)
        expected = stein_direction(value, particles, scores)
        np.testing.assert_allclose(phi, expected[0], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(gram, expected[1], rtol=1e-8, atol=1e-10)

    @pytest.mark.in_both_packages
    def test_no_array_over_pairs_of_particles(self, backend, kernels):
        particles, scores = map(backend.array, cloud(40, DIM))
        kernel = kernels.RandomFeature(5)
        state = kernel.init(particles)
        assert largest_array(backend, kernel.direction, state, particles, scores) == 40 * 5

    def test_refused(self, kernels):
        with pytest.raises(ArgumentError, match="num_features"):
            kernels.RandomFeature(0)
        with pytest.raises(ArgumentError, match="one number"):
            kernels.RandomFeature(5, "pyro")


SITES = {"a": slice(0, 2), "b": slice(2, 3), "c": slice(3, 6)}


def group_direction(particles, scores, own, seen):
    """phi of the coordinates ``own``, whose kernel sees the coordinates ``seen``, by a loop."""
    value = rbf(np.eye(len(seen)), 2.0)
    return stein_direction(value, particles[:, seen], scores[:, seen])[0][:, : len(own)]


class TestGraphical:
    def test_groups_and_neighbours(self, backend, kernels):
        particles, scores = cloud(6, 6)
        each = {name: np.arange(part.start, part.stop) for name, part in SITES.items()}
        apart = kernels.Graphical(kernels.RBF(2.0)).with_sites(SITES)
        phi = direction(backend, apart, particles, scores)
        for at in each.values():
            expected = group_direction(particles, scores, at, at)
            np.testing.assert_allclose(phi[:, at], expected, rtol=1e-9)
        groups, neighbours = {"ends": ["c", "a"]}, {"ends": ["b"], "b": ["a"]}
        kernel = kernels.Graphical(kernels.RBF(2.0), groups, neighbours).with_sites(SITES)
        phi = direction(backend, kernel, particles, scores)
        ends = np.concatenate([each["c"], each["a"]])
        for own, others in [(ends, each["b"]), (each["b"], each["a"])]:
            expected = group_direction(particles, scores, own, np.concatenate([own, others]))
            np.testing.assert_allclose(phi[:, own], expected, rtol=1e-9)

    def test_kernels_by_group(self, backend, kernels):
        particles, scores = cloud(6, 6)
        by_group = {
            "a": kernels.RBF(2.0),
            "b": kernels.Linear(),
            "c": kernels.Preconditioned(kernels.RBF(2.0), "variance"),
        }
        kernel = kernels.Graphical(by_group).with_sites(SITES)
        phi = direction(backend, kernel, particles, scores)
        for site, part in SITES.items():
            expected = direction(backend, by_group[site], particles[:, part], scores[:, part])
            np.testing.assert_allclose(phi[:, part], expected, rtol=1e-12)

    def test_one_group_is_the_kernel_itself(self, backend, kernels):
        particles, scores = cloud(6, 6)
        kernel = kernels.Graphical(kernels.IMQ(), {"all": ["a", "b", "c"]}).with_sites(SITES)
        phi = direction(backend, kernel, particles, scores)
        expected = direction(backend, kernels.IMQ(), particles, scores)
        np.testing.assert_allclose(phi, expected, rtol=1e-12)

    def test_refused(self, backend, kernels):
        Graphical, array = kernels.Graphical, backend.array
        with pytest.raises(ArgumentError, match=r"\['a'\] in two"):
            Graphical(groups={"x": ["a", "b"], "y": ["a"]})
        with pytest.raises(ArgumentError, match=r"not those of ungrouped sites, found \['b'\]"):
            Graphical(groups={"b": ["a"]}).with_sites(SITES)
        for wrong in ({"x": []}, {"x": "ab"}, ["a"]):
            with pytest.raises(ArgumentError, match="lists of sites"):
                Graphical(groups=wrong)
        for option in ({"groups": {"x": ["d"]}}, {"neighbours": {"a": ["d"]}}):
            with pytest.raises(ArgumentError, match=r"to name some of.*found \['d'\]"):
                Graphical(**option).with_sites(SITES)
        with pytest.raises(ArgumentError, match=r"found none for \['b', 'c'\]"):
            Graphical({"a": kernels.RBF()}).with_sites(SITES)
        with pytest.raises(ArgumentError, match="one for each group"):
            Graphical().with_sites(SITES).gram({}, array(cloud(5, 6)[0]))
        with pytest.raises(ArgumentError, match="found none"):
            kernels.Preconditioned(Graphical()).init(array(cloud(8, 6)[0]))

    @pytest.mark.in_both_packages
    def test_an_engine_gives_the_sites(self, backend, kernels):
        def model() -> None:
            backend.host.sample("x", backend.dist.Normal(0.0, 1.0))
            backend.host.sample("scale", backend.dist.LogNormal(0.0, 0.5))

        adam, kernel = backend.adam(0.1), kernels.Graphical()
        fit = backend.fit("SVGD", model, adam, kernel, num_particles=50, steps=500)
        logs = np.log(fit.samples["scale"])
        # The two sites are independent, so each has its own one-dimensional fit.
        assert abs(logs.mean()) < 0.02
        assert logs.std() == pytest.approx(0.5, rel=0.1)
