"""Stein kernels: bandwidth rules by hand, directions by a slow autograd loop, host kernels."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVGD as HostSVGD
from pyro.infer.svgd import IMQSteinKernel, RBFSteinKernel

from ppl_ext.errors import ArgumentError
from pyro_ext.kernels import (
    BANDWIDTH_RULES,
    IMQ,
    RBF,
    HostKernel,
    Linear,
    Scaled,
    Sum,
    as_kernel,
    bandwidth,
    default_kernel,
)
from tests.pyro_kernel_support import cloud, largest_tensor, loop_direction

# Squared distances of the six pairs: 1, 16, 20, 17, 13, 20.
FOUR_POINTS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 4.0], [4.0, 2.0]], dtype=torch.float64)


def rbf_value(rule, particles):
    width = bandwidth(rule, particles)
    return lambda x, y: torch.exp(-((x - y) ** 2 / width).sum())


def imq_value(rule, exponent, particles):
    width = bandwidth(rule, particles)
    return lambda x, y: (1 + ((x - y) ** 2 / width).sum()) ** exponent


def linear_value(weights, particles):
    centre = particles.mean(dim=0)
    return lambda x, y: 1 + ((x - centre) * weights * (y - centre)).sum() / len(weights)


class TestBandwidth:
    @pytest.mark.parametrize(
        ("rule", "expected"),
        [
            # Middle values of 1 13 16 17 20 20.
            ("median", 0.5 * (16 + 17) / math.log(5)),
            ("blackjax", (0.5 * (4 + math.sqrt(17))) ** 2 / math.log(4)),
            # Middle values of 0 0 0 0 1 1 13 13 16 16 17 17 20 20 20 20.
            ("dartml", 0.5 * (13 + 16) / math.log(5)),
            ("numpyro", (0.5 * (math.sqrt(13) + 4)) ** 2 / math.log(4)),
            # By coordinate: the lower middle of 0 1 1 9 16 16, and of 0 4 4 4 16 16.
            ("pyro", [1 / math.log(5), 4 / math.log(5)]),
            ("dimension", 4.0),
            (2.5, 2.5),
            (lambda z: z.var(), None),
        ],
    )
    def test_four_points_by_hand(self, rule, expected):
        if expected is None:
            expected = FOUR_POINTS.var()
        expected = torch.as_tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(bandwidth(rule, FOUR_POINTS), expected, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("num", [2, 3, 4, 5, 20, 21])
    def test_against_sorting(self, num):
        particles, _ = cloud(num, 3, seed=num)
        array = particles.numpy()
        squared = ((array[:, None] - array) ** 2).sum(-1)
        pairs = squared[np.triu_indices(num, 1)]
        expected = {
            "median": np.median(pairs) / np.log(num + 1),
            "blackjax": np.median(np.sqrt(pairs)) ** 2 / np.log(num),
            "dartml": np.median(squared) / np.log(num + 1),
            "numpyro": np.median(np.sqrt(squared)) ** 2 / np.log(num) + np.finfo(float).eps,
        }
        for rule, value in expected.items():
            np.testing.assert_allclose(bandwidth(rule, particles).item(), value, rtol=1e-10)

    @pytest.mark.parametrize("num", [2, 3, 4, 5, 20, 21])
    def test_pyro_rule_is_the_hosts(self, num):
        particles, _ = cloud(num, 3, seed=num)
        differences = particles.unsqueeze(0) - particles.unsqueeze(1)
        expected = RBFSteinKernel()._bandwidth(differences**2)
        torch.testing.assert_close(bandwidth("pyro", particles), expected, rtol=1e-12, atol=0)

    def test_pyro_rule_on_four_points_is_the_hosts(self):
        differences = FOUR_POINTS.unsqueeze(0) - FOUR_POINTS.unsqueeze(1)
        expected = RBFSteinKernel()._bandwidth(differences**2)
        torch.testing.assert_close(bandwidth("pyro", FOUR_POINTS), expected, rtol=1e-14, atol=0)

    def test_tied_middle_values(self):
        # The four sides of a square and its two diagonals: 1 1 1 1 2 2.
        square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        torch.testing.assert_close(bandwidth("median", square).item(), 1 / math.log(5))

    @pytest.mark.parametrize("rule", ["silverman", -1.0, 0.0, math.inf, math.nan, None, True])
    def test_refused(self, rule):
        for kernel in (RBF, IMQ):
            with pytest.raises(ArgumentError, match=r"Expected .* bandwidth"):
                kernel(bandwidth=rule)

    def test_callable_of_wrong_shape(self):
        particles, scores = cloud(5, 3)
        with pytest.raises(ArgumentError, match=r"shape \(\) or \(3,\), found \(5, 3\)"):
            RBF(bandwidth=lambda z: z).direction({}, particles, scores)


class TestDirection:
    @pytest.mark.parametrize("shape", [(1, 3), (2, 3), (7, 3), (6, 1), (4, 9)])
    @pytest.mark.parametrize("rule", [*BANDWIDTH_RULES, 1.7, lambda z: z.var(0) + 1.0])
    def test_radial_kernels(self, shape, rule):
        # One particle has no variance; its bandwidth does not matter.
        particles, scores = cloud(*shape)
        if callable(rule) and shape[0] == 1:
            rule = 1.0
        for kernel, value in [
            (RBF(rule), rbf_value(rule, particles)),
            (IMQ(rule), imq_value(rule, -0.5, particles)),
            (IMQ(rule, exponent=-0.8), imq_value(rule, -0.8, particles)),
        ]:
            state = kernel.init(particles)
            phi, state = kernel.direction(state, particles, scores)
            expected = loop_direction(value, particles, scores)
            torch.testing.assert_close(phi, expected, rtol=1e-9, atol=1e-11)
            gram = torch.stack([torch.stack([value(x, y) for y in particles]) for x in particles])
            torch.testing.assert_close(kernel.gram(state, particles), gram, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("shape", [(2, 3), (7, 3), (4, 9)])
    def test_linear_kernel(self, shape):
        particles, scores = cloud(*shape)
        fixed = torch.linspace(0.2, 3.0, shape[1], dtype=torch.float64)
        for kernel, weights in [
            (Linear(), 1 / particles.var(dim=0, unbiased=False)),
            (Linear(metric=None), torch.ones_like(fixed)),
            (Linear(metric=fixed), fixed),
        ]:
            value = linear_value(weights, particles)
            phi, _ = kernel.direction({}, particles, scores)
            expected = loop_direction(value, particles, scores)
            torch.testing.assert_close(phi, expected, rtol=1e-9, atol=1e-11)
            gram = torch.stack([torch.stack([value(x, y) for y in particles]) for x in particles])
            torch.testing.assert_close(kernel.gram({}, particles), gram, rtol=1e-9, atol=1e-12)

    def test_sums_and_multiples(self):
        particles, scores = cloud(6, 3)
        kernel = RBF() + 0.25 * (IMQ(bandwidth=2.0) + Linear())
        rbf = rbf_value("median", particles)
        imq = imq_value(2.0, -0.5, particles)
        linear = linear_value(1 / particles.var(dim=0, unbiased=False), particles)

        def value(x, y):
            return rbf(x, y) + 0.25 * (imq(x, y) + linear(x, y))

        state = kernel.init(particles)
        phi, state = kernel.direction(state, particles, scores)
        torch.testing.assert_close(phi, loop_direction(value, particles, scores))
        gram = torch.stack([torch.stack([value(x, y) for y in particles]) for x in particles])
        torch.testing.assert_close(kernel.gram(state, particles), gram)
        assert len((RBF() + IMQ() + Linear()).kernels) == 3

    @pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
    def test_factor_refused(self, factor):
        with pytest.raises(ArgumentError, match="positive finite factor"):
            Scaled(RBF(), factor)

    def test_empty_sum_refused(self):
        with pytest.raises(ArgumentError, match="at least one kernel"):
            Sum(())

    @pytest.mark.parametrize("exponent", [0.0, -1.0, 0.5])
    def test_exponent_refused(self, exponent):
        with pytest.raises(ArgumentError, match="exponent between -1 and 0"):
            IMQ(exponent=exponent)

    def test_metric_refused(self):
        with pytest.raises(ArgumentError, match="metric"):
            Linear(metric="hessian")
        particles, scores = cloud(5, 3)
        with pytest.raises(ArgumentError, match=r"shape \(3,\)"):
            Linear(metric=torch.ones(2)).direction({}, particles, scores)

    @pytest.mark.parametrize(
        "kernel", [RBF(), RBF("pyro"), IMQ(), Linear(), 0.5 * RBF() + 0.5 * IMQ()], ids=repr
    )
    def test_one_particle_follows_its_score(self, kernel):
        particles, scores = cloud(1, 4)
        phi, _ = kernel.direction(kernel.init(particles), particles, scores)
        torch.testing.assert_close(phi, scores)

    @pytest.mark.parametrize(
        "kernel",
        [*(RBF(rule) for rule in BANDWIDTH_RULES), IMQ(), Linear(), RBF() + Linear()],
        ids=repr,
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_coincident_particles(self, kernel, dtype):
        particles, scores = cloud(6, 3, dtype=dtype)
        for equal in (2, 4, 5, 6):
            together = (particles + 1e3).clone()
            together[:equal] = together[0]
            phi, _ = kernel.direction(kernel.init(together), together, scores)
            assert phi.isfinite().all()
            # Particles in one place with scores of their own still share one direction.
            torch.testing.assert_close(phi[:equal], phi[:1].expand(equal, 3), rtol=1e-3, atol=1e-4)
        # All in one place: k = 1 everywhere and nothing repels.
        expected = scores.mean(dim=0).expand_as(scores)
        count = len(kernel.kernels) if isinstance(kernel, Sum) else 1
        torch.testing.assert_close(phi, count * expected)

    @pytest.mark.parametrize("kernel", [RBF(), RBF("pyro"), IMQ(), Linear()], ids=repr)
    def test_float32_far_from_the_origin(self, kernel):
        particles, scores = cloud(20, 5, dtype=torch.float32)
        particles = particles + 1e4
        phi, _ = kernel.direction({}, particles, scores)
        expected, _ = kernel.direction({}, particles.double(), scores.double())
        # Float32 rounds the squared distances at a relative 1e-6; uncentred it would be 10.
        torch.testing.assert_close(phi.double(), expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(
        "kernel", [RBF(), IMQ(), Linear(), RBF("pyro"), default_kernel()], ids=repr
    )
    @pytest.mark.parametrize("shape", [(40, 3), (5, 200)])
    def test_memory(self, kernel, shape):
        particles, scores = cloud(*shape)
        state = kernel.init(particles)
        largest = largest_tensor(kernel.direction, state, particles, scores)
        num, dim = shape
        assert 0 < largest <= max(num * num, num * dim)

    def test_particles_repel(self):
        particles = torch.tensor([[0.0], [1.0]])
        for kernel in (RBF(), IMQ()):
            phi, _ = kernel.direction({}, particles, torch.zeros(2, 1))
            assert phi[0] < 0 < phi[1]


def host_displacement(kernel, mode, particles):
    """Where Pyro's own SVGD moves the particles of a one-site model with SGD at rate 1."""
    pyro.clear_param_store()
    precision = torch.tensor([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])
    target = dist.MultivariateNormal(
        torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64),
        precision_matrix=precision.double(),
    )

    def model():
        pyro.sample("z", target)

    optim = pyro.optim.SGD({"lr": 1.0})
    host = HostSVGD(model, kernel, optim, len(particles), max_plate_nesting=0, mode=mode)
    host.guide()
    pyro.param("svgd_particles").data = particles.reshape(-1).clone()
    host.step()
    moved = pyro.param("svgd_particles").detach().reshape(particles.shape)
    pyro.clear_param_store()
    inputs = particles.clone().requires_grad_()
    (scores,) = torch.autograd.grad(target.log_prob(inputs).sum(), inputs)
    return moved - particles, scores


class TestHostKernels:
    @pytest.mark.parametrize("mode", ["univariate", "multivariate"])
    @pytest.mark.parametrize(
        "host", [RBFSteinKernel(), IMQSteinKernel(), IMQSteinKernel(0.8, -0.7)]
    )
    def test_moves_as_pyros_driver(self, host, mode):
        particles, _ = cloud(7, 3)
        expected, scores = host_displacement(host, mode, particles)
        phi, _ = HostKernel(host, mode=mode).direction({}, particles, scores)
        torch.testing.assert_close(phi, expected, rtol=1e-9, atol=1e-11)

    @pytest.mark.parametrize("num", [2, 7])
    def test_univariate_against_autograd(self, num):
        particles, scores = cloud(num, 3)
        phi, _ = HostKernel(RBFSteinKernel()).direction({}, particles, scores)
        width = bandwidth("pyro", particles)
        for d in range(3):
            one, one_score = particles[:, d : d + 1], scores[:, d : d + 1]
            expected = loop_direction(rbf_value(width[d].item(), one), one, one_score)
            torch.testing.assert_close(phi[:, d : d + 1], expected, rtol=1e-9, atol=1e-11)

    def test_multivariate_is_our_pyro_rule(self):
        particles, scores = cloud(7, 3)
        host = HostKernel(RBFSteinKernel(), mode="multivariate")
        ours = RBF("pyro")
        torch.testing.assert_close(
            host.direction({}, particles, scores)[0], ours.direction({}, particles, scores)[0]
        )
        torch.testing.assert_close(host.gram({}, particles), ours.gram({}, particles))

    @pytest.mark.parametrize("mode", ["univariate", "multivariate"])
    def test_coincident_and_single_particles(self, mode):
        particles, scores = cloud(6, 3)
        kernel = HostKernel(RBFSteinKernel(), mode=mode)
        for equal in (2, 5, 6):
            together = particles.clone()
            together[:equal] = together[0]
            phi, _ = kernel.direction({}, together, scores)
            assert phi.isfinite().all()
        torch.testing.assert_close(phi, scores.mean(dim=0).expand_as(scores))
        phi, _ = kernel.direction({}, particles[:1], scores[:1])
        torch.testing.assert_close(phi, scores[:1])

    def test_gram_of_many_kernels_is_refused(self):
        particles, _ = cloud(4, 3)
        with pytest.raises(ArgumentError, match="one kernel for each coordinate"):
            HostKernel(RBFSteinKernel()).gram({}, particles)

    def test_refused(self):
        with pytest.raises(ArgumentError, match="SteinKernel"):
            HostKernel(RBF())
        with pytest.raises(ArgumentError, match="mode"):
            HostKernel(RBFSteinKernel(), mode="matrix")

    @pytest.mark.parametrize("kernel", [RBF("pyro"), IMQ("pyro"), RBF() + 0.5 * Linear()], ids=repr)
    def test_interactions_sum_to_the_direction(self, kernel):
        particles, scores = (
            torch.from_numpy(each) for each in np.random.default_rng(1).normal(size=(2, 7, 3))
        )
        expected, _ = kernel.direction(kernel.init(particles), particles, scores)
        found = kernel.interactions(particles).direction(scores)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("dim", [49, 50])
    def test_default_for_few_particles(self, dim):
        values = np.random.default_rng(0).normal(size=(2, 5, dim))
        particles, scores = (torch.from_numpy(each) for each in values)
        wide = 0.5 * IMQ("dimension", metric="variance") + 0.5 * Linear()
        plain = RBF() if dim == 50 else wide
        expected, _ = plain.direction(plain.init(particles), particles, scores)
        assert not default_kernel().translation_invariant  # the linear term is not
        kernel = default_kernel().with_sites({"z": slice(0, dim)})
        found, _ = kernel.direction(kernel.init(particles), particles, scores)
        np.testing.assert_allclose(found, expected)
        gram = kernel.gram(kernel.init(particles), particles)
        np.testing.assert_allclose(gram, kernel.interactions(particles).gram)

    def test_as_kernel(self):
        assert repr(as_kernel(None)) == repr(default_kernel())
        kernel = RBF() + Linear()
        assert as_kernel(kernel) is kernel
        host = RBFSteinKernel()
        assert as_kernel(host).kernel is host
        with pytest.raises(ArgumentError, match=r"RBF\(\), not a class"):
            as_kernel(RBF)
