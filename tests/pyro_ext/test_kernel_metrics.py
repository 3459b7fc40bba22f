"""Metrics, preconditioned, random-feature and graphical kernels, against slow definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from ppl_ext.errors import ArgumentError
from pyro_ext.kernels import (
    IMQ,
    RBF,
    Graphical,
    Linear,
    Preconditioned,
    RandomFeature,
    bandwidth,
    mixture,
)
from pyro_ext.stein import SVGD
from tests.pyro_kernel_support import cloud, largest_tensor
from tests.pyro_kernel_support import loop_direction as loop_of

DIM = 3
#: What no kernel takes; of any type, as a user's untyped program has it.
NO_KERNEL: Any = "rbf"


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


MATRIX = tensor([[2.0, 0.7, 0.1], [0.7, 1.0, -0.3], [0.1, -0.3, 0.5]])


def loop_direction(value, particles, scores, *constants):
    """phi and the Gram matrix by definition, for ``value(x, y, *constants)``."""

    def kernel(x, y):
        return value(x, y, *constants)

    gram = torch.stack([torch.stack([kernel(x, y) for x in particles]) for y in particles])
    return loop_of(kernel, particles, scores), gram


def covariance(particles):
    return torch.cov(particles.T, correction=0)


#: Metric -> the matrix W that it stands for.
METRICS = {
    "none": (None, lambda z: torch.eye(DIM, dtype=torch.float64)),
    "variance": ("variance", lambda z: torch.diag(1 / z.var(dim=0, correction=0))),
    "covariance": ("covariance", lambda z: torch.linalg.inv(covariance(z))),
    "vector": (tensor([1.0, 2.0, 3.0]), lambda z: torch.diag(tensor([1.0, 2.0, 3.0]))),
    "matrix": (MATRIX, lambda z: MATRIX),
    "callable": (lambda z: z.abs().mean() * MATRIX, lambda z: z.abs().mean() * MATRIX),
}


def squared(x, y, weights):
    return (x - y) @ weights @ (x - y)


def rbf_value(x, y, weights, width):
    return torch.exp(-squared(x, y, weights) / width)


def imq_value(x, y, weights, width):
    return (1 + squared(x, y, weights) / width) ** -0.3


def linear_value(x, y, weights, centre):
    return 1 + (x - centre) @ weights @ (y - centre) / DIM


class TestMetric:
    @pytest.mark.parametrize("name", METRICS)
    @pytest.mark.parametrize("rule", ["dimension", "median", 1.7])
    def test_directions_against_a_loop(self, name, rule):
        particles, scores = cloud(7, DIM)
        metric, matrix = METRICS[name]
        weights = matrix(particles)
        if rule == "median":
            pairs = [squared(x, y, weights) for i, x in enumerate(particles) for y in particles[:i]]
            width = float(np.median(pairs)) / math.log(len(particles) + 1)
        else:
            width = 2.0 * DIM if rule == "dimension" else rule
        for kernel, value, constant in [
            (RBF(rule, metric), rbf_value, width),
            (IMQ(rule, -0.3, metric), imq_value, width),
            (Linear(metric), linear_value, particles.mean(dim=0)),
        ]:
            phi, _ = kernel.direction({}, particles, scores)
            expected, gram = loop_direction(value, particles, scores, weights, constant)
            np.testing.assert_allclose(phi, expected, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(kernel.gram({}, particles), gram, rtol=1e-8, atol=1e-11)

    @pytest.mark.parametrize("kernel", [RBF, IMQ, Linear])
    def test_values_do_not_depend_on_the_units(self, kernel):
        particles, _ = cloud(9, DIM)
        for metric, change in [
            ("variance", torch.diag(tensor([1e-3, 5.0, 1e4]))),
            ("covariance", tensor([[2.0, 5.0, 0.0], [0.0, 0.2, 3.0], [0.0, 0.0, 1.0]])),
        ]:
            chosen = kernel(metric=metric)
            expected = chosen.gram({}, particles)
            found = chosen.gram({}, particles @ change.T)
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)

    def test_refused(self):
        particles, scores = cloud(5, DIM)
        for make in (RBF, IMQ, Linear):
            with pytest.raises(ArgumentError, match="metric among"):
                make(metric="fisher")
            with pytest.raises(ArgumentError, match="a callable, found int"):
                make(metric=3)
            with pytest.raises(ArgumentError, match=r"shape \(D,\) or \(D, D\)"):
                make(metric=torch.ones((2, 3)))
            for wrong in ([-1.0, 1.0, 1.0], [[1.0, 2.0], [2.0, 1.0]], [[2.0, 1.0], [0.0, 2.0]]):
                with pytest.raises(ArgumentError, match="positive definite"):
                    make(metric=tensor(wrong))
            with pytest.raises(ArgumentError, match=r"shape \(3,\)"):
                make(metric=torch.ones(2)).direction({}, particles, scores)
            with pytest.raises(ArgumentError, match="more particles than the 3 dimensions"):
                make(metric="covariance").direction({}, particles[:3], scores[:3])

    @pytest.mark.parametrize("metric", ["variance", "covariance"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_particles_in_a_subspace(self, metric, dtype):
        particles, scores = cloud(6, DIM, dtype=dtype)
        particles[:, 1], particles[:, 2] = 3.0, 2.0 * particles[:, 0]
        for kernel in (RBF("dimension", metric), IMQ("median", metric=metric), Linear(metric)):
            phi, _ = kernel.direction({}, particles, scores)
            assert phi.dtype == dtype
            assert torch.isfinite(phi).all()


class TestPreconditioned:
    @pytest.mark.parametrize("name", [name for name in METRICS if name != "none"])
    def test_direction_is_that_of_the_matrix_kernel(self, name):
        # K = W^-1 k, so that phi is W^-1 times the direction of k with the same metric.
        particles, scores = cloud(7, DIM)
        metric, matrix = METRICS[name]
        weights = matrix(particles)
        kernel = Preconditioned(RBF("dimension"), metric)
        phi, _ = kernel.direction(kernel.init(particles), particles, scores)
        plain, _ = loop_direction(rbf_value, particles, scores, weights, 2.0 * DIM)
        np.testing.assert_allclose(
            phi, torch.linalg.solve(weights, plain.T).T, rtol=1e-8, atol=1e-10
        )

    def test_steps_follow_any_change_of_coordinates(self):
        particles, scores = cloud(9, DIM)
        change = tensor([[2.0, 5.0, 0.0], [0.0, 0.2, 3.0], [0.0, 0.0, 1.0]])
        kernel = Preconditioned(IMQ() + Linear(None))
        state = kernel.init(particles)
        phi, _ = kernel.direction(state, particles, scores)
        moved, _ = kernel.direction(
            state, particles @ change.T, torch.linalg.solve(change.T, scores.T).T
        )
        np.testing.assert_allclose(moved, phi @ change.T, rtol=1e-6, atol=1e-8)

    def test_particles_that_agree_follow_their_scores(self):
        particles, scores = cloud(7, DIM)
        together = 0.0 * particles + 2.0
        kernel = Preconditioned(RBF())
        phi = kernel.direction(kernel.init(together), together, scores)[0]
        np.testing.assert_allclose(phi, 0.0 * scores + scores.mean(0), rtol=1e-6)

    def test_refused(self):
        with pytest.raises(ArgumentError, match="found None"):
            Preconditioned(RBF(), None)
        with pytest.raises(ArgumentError, match="to precondition, found str"):
            Preconditioned(NO_KERNEL)
        with pytest.raises(ArgumentError, match="values are matrices"):
            Preconditioned(RBF()).gram({}, cloud(5, DIM)[0])


class TestRandomFeature:
    def test_values_approach_the_gaussian_kernel(self):
        particles, _ = cloud(8, DIM)
        errors = []
        for seed in range(10):
            kernel = RandomFeature(4000, 2.5, None, seed)
            found = kernel.gram(kernel.init(particles), particles)
            errors.append(found - RBF(2.5).gram({}, particles))
        # One feature's product has a standard deviation of at most sqrt(3/2) about k.
        error = math.sqrt(1.5 / 4000)
        assert torch.stack(errors).abs().max() < 5 * error
        assert torch.stack(errors).mean(dim=0).abs().max() < 5 * error / math.sqrt(10)

    @pytest.mark.parametrize("name", METRICS)
    def test_direction_against_a_loop(self, name):
        particles, scores = cloud(7, DIM)
        metric, matrix = METRICS[name]
        kernel = RandomFeature(5, "median", metric)
        state = kernel.init(particles)
        root = torch.linalg.cholesky(matrix(particles)).T
        if name == "covariance":
            # Any root gives the same distances, but features are drawn for one of them.
            root = torch.linalg.inv(torch.linalg.cholesky(covariance(particles)))
        centre = particles.mean(dim=0)
        width = bandwidth("median", particles @ root.T)
        slopes = state["frequencies"] * (2 / width).sqrt() @ root

        def value(x, y):
            def features(z):
                return torch.cos(slopes @ (z - centre) + state["offsets"])

            return 2 / 5 * features(x) @ features(y)

        phi, _ = kernel.direction(state, particles, scores)
        expected, gram = loop_direction(value, particles, scores)
        np.testing.assert_allclose(phi, expected, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(kernel.gram(state, particles), gram, rtol=1e-8, atol=1e-10)

    def test_no_array_over_pairs_of_particles(self):
        particles, scores = cloud(40, DIM)
        kernel = RandomFeature(5)
        state = kernel.init(particles)
        largest = largest_tensor(kernel.direction, state, particles, scores)
        assert largest == 40 * 5

    def test_refused(self):
        with pytest.raises(ArgumentError, match="num_features"):
            RandomFeature(0)
        with pytest.raises(ArgumentError, match="one number"):
            RandomFeature(5, "pyro")


SITES = {"a": slice(0, 2), "b": slice(2, 3), "c": slice(3, 6)}


def group_direction(value, particles, scores, own, seen):
    """phi of the coordinates ``own``, whose kernel sees the coordinates ``seen``, by a loop."""
    directions, _ = loop_direction(value, particles[:, seen], scores[:, seen])
    return directions[:, : len(own)]


def value_of_two(x, y):
    return torch.exp(-((x - y) ** 2).sum() / 2.0)


class TestGraphical:
    def test_each_site_apart_by_default(self):
        particles, scores = cloud(6, 6)
        kernel = Graphical(RBF(2.0)).with_sites(SITES)
        phi, _ = kernel.direction(kernel.init(particles), particles, scores)
        for part in SITES.values():
            at = np.arange(part.start, part.stop)
            expected = group_direction(value_of_two, particles, scores, at, at)
            np.testing.assert_allclose(phi[:, at], expected, rtol=1e-9)

    def test_groups_and_neighbours(self):
        particles, scores = cloud(6, 6)
        kernel = Graphical(RBF(2.0), {"ends": ["c", "a"]}, {"ends": ["b"], "b": ["a"]}).with_sites(
            SITES
        )
        phi, _ = kernel.direction(kernel.init(particles), particles, scores)
        ends, b, a = np.array([3, 4, 5, 0, 1]), np.array([2]), np.array([0, 1])
        for own, others in [(ends, b), (b, a)]:
            seen = np.concatenate([own, others])
            expected = group_direction(value_of_two, particles, scores, own, seen)
            np.testing.assert_allclose(phi[:, own], expected, rtol=1e-9)

    def test_kernels_by_group(self):
        particles, scores = cloud(6, 6)
        kernels = {"a": RBF(2.0), "b": Linear(), "c": Preconditioned(RBF(2.0), "variance")}
        kernel = Graphical(kernels).with_sites(SITES)
        phi, _ = kernel.direction(kernel.init(particles), particles, scores)
        for site, part in SITES.items():
            alone = kernels[site]
            z = particles[:, part]
            expected, _ = alone.direction(alone.init(z), z, scores[:, part])
            np.testing.assert_allclose(phi[:, part], expected, rtol=1e-12)

    def test_one_group_is_the_kernel_itself(self):
        particles, scores = cloud(6, 6)
        kernel = Graphical(IMQ(), {"all": ["a", "b", "c"]}).with_sites(SITES)
        phi, _ = kernel.direction(kernel.init(particles), particles, scores)
        np.testing.assert_allclose(phi, IMQ().direction({}, particles, scores)[0], rtol=1e-12)

    def test_refused(self):
        with pytest.raises(ArgumentError, match=r"\['a'\] in two"):
            Graphical(groups={"x": ["a", "b"], "y": ["a"]})
        with pytest.raises(ArgumentError, match=r"not those of ungrouped sites, found \['b'\]"):
            Graphical(groups={"b": ["a"]}).with_sites(SITES)
        with pytest.raises(ArgumentError, match="lists of sites"):
            Graphical(groups={"x": []})
        with pytest.raises(ArgumentError, match="lists of sites"):
            Graphical(groups={"x": "ab"})
        for option in ({"groups": {"x": ["d"]}}, {"neighbours": {"a": ["d"]}}):
            with pytest.raises(ArgumentError, match=r"to name some of.*found \['d'\]"):
                Graphical(**option).with_sites(SITES)
        with pytest.raises(ArgumentError, match=r"found none for \['b', 'c'\]"):
            Graphical({"a": RBF()}).with_sites(SITES)
        with pytest.raises(ArgumentError, match="one for each group"):
            Graphical().with_sites(SITES).gram({}, cloud(5, 6)[0])
        with pytest.raises(ArgumentError, match="found none"):
            Preconditioned(Graphical()).init(cloud(8, 6)[0])

    def test_an_engine_gives_the_sites(self):
        def model():
            pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.sample("scale", dist.LogNormal(0.0, 0.5))

        adam = pyro.optim.Adam({"lr": 0.1})
        with pytest.raises(ArgumentError, match="to name some of"):
            SVGD(model, adam, Graphical(groups={"g": ["y"]})).setup()
        engine = SVGD(model, adam, Graphical(), num_particles=50, seed=0)
        engine.run(500, progress_bar=False)
        logs = engine.get_samples()["scale"].log()
        # The two sites are independent, so each has its own one-dimensional fit.
        assert abs(logs.mean()) < 0.02
        assert logs.std() == pytest.approx(0.5, rel=0.1)


def test_mixtures_weigh_their_kernels() -> None:
    particles, scores = cloud(6, DIM)
    kernel = mixture([RBF(), IMQ()], [1.0, 3.0])
    phi, _ = kernel.direction(kernel.init(particles), particles, scores)
    parts = [k.direction({}, particles, scores)[0] for k in (RBF(), IMQ())]
    np.testing.assert_allclose(phi, 0.25 * parts[0] + 0.75 * parts[1], rtol=1e-12)
    with pytest.raises(ArgumentError, match="one weight for each of 2"):
        mixture([RBF(), IMQ()], [1.0])
    with pytest.raises(ArgumentError, match="at least one kernel"):
        mixture([])
    for weights in ([1.0, -0.5], [-1.0, -3.0], [0.0, 0.0]):
        with pytest.raises(ArgumentError, match="positive finite weights"):
            mixture([RBF(), IMQ()], weights)
    with pytest.raises(ArgumentError, match="HostKernel"):
        mixture([RBF(), NO_KERNEL])
