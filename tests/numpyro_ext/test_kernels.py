"""Stein kernels: bandwidth rules by hand, directions by a slow autodiff loop, host kernels."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.vi.svgd import median_heuristic
from numpyro.contrib.einstein import (
    GraphicalKernel,
    IMQKernel,
    LinearKernel,
    MixtureKernel,
    ProbabilityProductKernel,
    RandomFeatureKernel,
    RBFKernel,
)
from numpyro.contrib.einstein.stein_kernels import RadialGaussNewtonKernel, SteinKernel
from numpyro.contrib.einstein.stein_util import median_bandwidth
from numpyro.infer.autoguide import AutoNormal

from numpyro_ext.kernels import (
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
from numpyro_ext.kernels.bandwidth import order_statistic
from ppl_ext.errors import ArgumentError
from tests.numpyro_kernel_support import cloud, largest_array, loop_direction

jax.config.update("jax_enable_x64", True)

# Squared distances of the six pairs: 1, 16, 20, 17, 13, 20.
FOUR_POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 4.0], [4.0, 2.0]])


def rbf_value(x, y, width):
    return jnp.exp(-((x - y) ** 2 / width).sum())


def imq_value(x, y, width, exponent):
    return (1 + ((x - y) ** 2 / width).sum()) ** exponent


def linear_value(x, y, centre, weights):
    return 1 + ((x - centre) * weights * (y - centre)).sum() / len(weights)


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
            (lambda z: z.var(), FOUR_POINTS.var()),
        ],
    )
    def test_four_points_by_hand(self, rule, expected):
        found = bandwidth(rule, jnp.asarray(FOUR_POINTS))
        np.testing.assert_allclose(found, expected, rtol=1e-12)

    @pytest.mark.parametrize("num", [2, 3, 4, 5, 20])
    def test_against_sorting(self, num):
        particles, _ = cloud(num, 3, seed=num)
        squared = np.array(((particles[:, None] - particles) ** 2).sum(-1))
        pairs = squared[np.triu_indices(num, 1)]
        expected = {
            "median": np.median(pairs) / np.log(num + 1),
            "dartml": np.median(squared) / np.log(num + 1),
        }
        for rule, value in expected.items():
            np.testing.assert_allclose(bandwidth(rule, particles), value, rtol=1e-10)

    @pytest.mark.parametrize("particles", [FOUR_POINTS, *(cloud(n, 3)[0] for n in (2, 3, 20))])
    def test_named_rules_are_the_peers(self, particles):
        particles = jnp.asarray(particles)
        host = median_bandwidth(particles, lambda n: 1 / jnp.log(n))
        np.testing.assert_allclose(bandwidth("numpyro", particles), host, rtol=1e-10)
        peer = median_heuristic({}, particles)["length_scale"]
        np.testing.assert_allclose(bandwidth("blackjax", particles), peer, rtol=1e-10)

    def test_tied_middle_values(self):
        # The four sides of a square and its two diagonals: 1 1 1 1 2 2.
        square = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        np.testing.assert_allclose(bandwidth("median", square), 1 / math.log(5))

    @pytest.mark.parametrize("rule", ["silverman", -1.0, 0.0, math.inf, math.nan, None, True])
    def test_refused(self, rule):
        for kernel in (RBF, IMQ):
            with pytest.raises(ArgumentError, match=r"Expected .* bandwidth"):
                kernel(bandwidth=rule)

    def test_callable_of_wrong_shape(self):
        particles, scores = cloud(5, 3)
        with pytest.raises(ArgumentError, match=r"shape \(\) or \(3,\), found \(5, 3\)"):
            RBF(bandwidth=lambda z: z).direction({}, particles, scores)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_order_statistic_is_exact(self, dtype):
        generator = np.random.default_rng(3)
        cases = [
            generator.exponential(size=101),
            10.0 ** generator.uniform(-30, 30, size=64),
            generator.integers(0, 4, size=50),
            np.array([0.0, -0.0, 0.0, 1.0, np.inf]),
            np.full(9, 0.1),
            np.array([3.5]),
        ]
        for case in cases:
            values = case.astype(dtype)
            every = jax.vmap(order_statistic, in_axes=(None, 0))
            found = every(jnp.asarray(values), jnp.arange(len(values)))
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, np.sort(values))


class TestDirection:
    @pytest.mark.parametrize("shape", [(2, 3), (7, 3), (4, 9)])
    @pytest.mark.parametrize("rule", [*BANDWIDTH_RULES, 1.7, lambda z: z.var(0) + 1.0])
    def test_radial_kernels(self, shape, rule):
        particles, scores = cloud(*shape)
        width = np.broadcast_to(bandwidth(rule, particles), shape[1:])
        for kernel, value, constants in [
            (RBF(rule), rbf_value, (width,)),
            (IMQ(rule, exponent=-0.8), imq_value, (width, -0.8)),
        ]:
            phi, state = kernel.direction(kernel.init(particles), particles, scores)
            expected, gram = loop_direction(value, particles, scores, *constants)
            np.testing.assert_allclose(phi, expected, rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(kernel.gram(state, particles), gram, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("shape", [(2, 3), (7, 3), (4, 9)])
    def test_linear_kernel(self, shape):
        particles, scores = cloud(*shape)
        fixed = np.linspace(0.2, 3.0, shape[1])
        for kernel, weights in [
            (Linear(), 1 / np.var(particles, axis=0)),
            (Linear(metric=None), np.ones_like(fixed)),
            (Linear(metric=fixed), fixed),
        ]:
            centre = np.mean(particles, axis=0)
            phi, _ = kernel.direction({}, particles, scores)
            expected, gram = loop_direction(linear_value, particles, scores, centre, weights)
            np.testing.assert_allclose(phi, expected, rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(kernel.gram({}, particles), gram, rtol=1e-9, atol=1e-12)

    def test_sums_and_multiples(self):
        particles, scores = cloud(6, 3)
        kernel = RBF() + 0.25 * (IMQ(bandwidth=2.0) + Linear())
        width = bandwidth("median", particles)
        linear = particles.mean(axis=0), 1 / particles.var(axis=0)

        def value(x, y):
            others = imq_value(x, y, 2.0, -0.5) + linear_value(x, y, *linear)
            return rbf_value(x, y, width) + 0.25 * others

        phi, state = kernel.direction(kernel.init(particles), particles, scores)
        expected, gram = loop_direction(value, particles, scores)
        np.testing.assert_allclose(phi, expected, rtol=1e-9)
        np.testing.assert_allclose(kernel.gram(state, particles), gram, rtol=1e-9)
        assert len((RBF() + IMQ() + Linear()).kernels) == 3

    def test_under_jit(self):
        particles, scores = cloud(6, 3)
        kernel = RBF() + Linear()
        state = kernel.init(particles)
        phi, _ = jax.jit(kernel.direction)(state, particles, scores)
        expected, _ = kernel.direction(state, particles, scores)
        np.testing.assert_allclose(phi, expected, rtol=1e-12)

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
            Linear(metric=jnp.ones(2)).direction({}, particles, scores)

    @pytest.mark.parametrize(
        "kernel", [RBF(), RBF("pyro"), IMQ(), Linear(), 0.5 * RBF() + 0.5 * IMQ()], ids=repr
    )
    def test_one_particle_follows_its_score(self, kernel):
        particles, scores = cloud(1, 4)
        phi, _ = kernel.direction(kernel.init(particles), particles, scores)
        np.testing.assert_allclose(phi, scores, rtol=1e-12)

    @pytest.mark.parametrize(
        "kernel",
        [*(RBF(rule) for rule in BANDWIDTH_RULES), IMQ(), Linear(), RBF() + Linear()],
        ids=repr,
    )
    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
    def test_coincident_particles(self, kernel, dtype):
        particles, scores = cloud(6, 3, dtype=dtype)
        direction = jax.jit(kernel.direction)
        for equal in (2, 4, 5, 6):
            together = (particles + 1e3).at[:equal].set(particles[0] + 1e3)
            phi, _ = direction(kernel.init(together), together, scores)
            assert phi.dtype == dtype
            assert jnp.isfinite(phi).all()
            # Particles in one place with scores of their own still share one direction.
            shared = np.broadcast_to(phi[0], (equal, 3))
            np.testing.assert_allclose(phi[:equal], shared, rtol=1e-3, atol=1e-4)
        # All in one place: k = 1 everywhere and nothing repels.
        count = len(kernel.kernels) if isinstance(kernel, Sum) else 1
        expected = np.broadcast_to(count * scores.mean(axis=0), scores.shape)
        np.testing.assert_allclose(phi, expected, rtol=1e-5)

    @pytest.mark.parametrize("kernel", [RBF(), RBF("pyro"), IMQ(), Linear()], ids=repr)
    def test_float32_far_from_the_origin(self, kernel):
        particles, scores = cloud(20, 5, dtype=jnp.float32)
        particles = particles + 1e4
        phi, _ = kernel.direction({}, particles, scores)
        double = jnp.float64
        expected, _ = kernel.direction({}, particles.astype(double), scores.astype(double))
        assert phi.dtype == jnp.float32
        # Float32 rounds the squared distances at a relative 1e-6; uncentred it would be 10.
        np.testing.assert_allclose(phi, expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(
        "kernel", [RBF(), IMQ(), Linear(), RBF("pyro"), default_kernel()], ids=repr
    )
    @pytest.mark.parametrize("shape", [(40, 3), (5, 200)])
    def test_memory(self, kernel, shape):
        particles, scores = cloud(*shape)
        state = kernel.init(particles)
        largest = largest_array(kernel.direction, state, particles, scores)
        num, dim = shape
        assert 0 < largest <= max(num * num, num * dim)

    def test_particles_repel(self):
        particles = jnp.array([[0.0], [1.0]])
        for kernel in (RBF(), IMQ()):
            phi, _ = kernel.direction({}, particles, jnp.zeros((2, 1)))
            assert phi[0, 0] < 0 < phi[1, 0]


class Asymmetric(SteinKernel):
    """A matrix kernel that is neither symmetric nor stationary, so that no index may be mixed."""

    mode = "matrix"

    def compute(self, rng_key, particles, particle_info, loss_fn):
        weights = jnp.arange(1.0, 1.0 + particles.shape[1] ** 2).reshape(particles.shape[1], -1)

        def kernel(x, y):
            return jnp.exp(-((x - y) ** 2).sum()) * weights + jnp.outer(x**2, y) + x**3

        return kernel


def host_loop(host, kernel, particles, scores):
    """phi of a host kernel function by loops over particles and coordinates."""
    dim = particles.shape[1]
    directions = np.zeros(particles.shape)
    particles, scores = np.asarray(particles), np.asarray(scores)
    value_and_slope = jax.jit(lambda x, y: (kernel(x, y), jax.jacrev(kernel)(x, y)))
    for i, to in enumerate(particles):
        for source, score in zip(particles, scores, strict=True):
            value, slope = map(np.asarray, value_and_slope(source, to))
            for a in range(dim):
                if host.mode == "norm":
                    directions[i, a] += value * score[a] + slope[a]
                elif host.mode == "vector":
                    directions[i, a] += value[a] * score[a] + slope[a, a]
                else:
                    for b in range(dim):
                        directions[i, a] += value[a, b] * score[b] + slope[a, b, b]
    return directions / len(particles)


class TestHostKernels:
    @pytest.mark.parametrize(
        "host",
        [
            RBFKernel(),
            RBFKernel(mode="vector"),
            RBFKernel(mode="matrix"),
            RBFKernel(mode="matrix", matrix_mode="vector_diag"),
            IMQKernel(),
            IMQKernel(mode="vector", const=0.7, expon=-0.3),
            LinearKernel(),
            MixtureKernel([0.3, 0.7], [RBFKernel(), IMQKernel()]),
            Asymmetric(),
        ],
    )
    def test_every_mode_against_a_loop(self, host):
        particles, scores = cloud(5, 3)
        adapter = HostKernel(host)
        phi, _ = jax.jit(adapter.direction)(adapter.init(particles), particles, scores)
        kernel = host.compute(None, particles, {"particles": (0, 3)}, None)
        expected = host_loop(host, kernel, particles, scores)
        np.testing.assert_allclose(phi, expected, rtol=1e-9, atol=1e-11)

    @pytest.mark.parametrize("num", [1, 7])
    def test_host_kernels_that_ours_reproduce(self, num):
        particles, scores = cloud(num, 3)
        for host, ours in [
            (RBFKernel(), RBF("numpyro")),
            (IMQKernel(const=1.0, expon=-0.4), IMQ(bandwidth=1.0, exponent=-0.4)),
        ]:
            adapter = HostKernel(host)
            state = adapter.init(particles)
            phi, _ = adapter.direction(state, particles, scores)
            expected, _ = ours.direction({}, particles, scores)
            np.testing.assert_allclose(phi, expected, rtol=1e-9, atol=1e-12)
            gram = adapter.gram(state, particles)
            np.testing.assert_allclose(gram, ours.gram({}, particles), rtol=1e-9)

    def test_random_features_are_drawn_once(self):
        particles, scores = cloud(5, 3)
        adapter = HostKernel(RandomFeatureKernel(), seed=1)

        @jax.jit
        def run(particles, scores):
            state = adapter.init(particles)
            first, state = adapter.direction(state, particles, scores)
            second, _ = adapter.direction(state, particles, scores)
            return first, second

        first, second = run(particles, scores)
        np.testing.assert_array_equal(first, second)
        kernel = adapter.kernel.compute(None, particles, {}, None)
        expected = host_loop(adapter.kernel, kernel, particles, scores)
        np.testing.assert_allclose(first, expected, rtol=1e-9)

    def test_radial_gauss_newton_sees_the_scores(self):
        particles, scores = cloud(5, 3)
        adapter = HostKernel(RadialGaussNewtonKernel())
        phi, _ = adapter.direction(adapter.init(particles), particles, scores)

        def value(x, y):
            return jnp.exp(-((scores @ (x - y)) ** 2).mean() / 6)

        expected, _ = loop_direction(value, particles, scores)
        np.testing.assert_allclose(phi, expected, rtol=1e-9)

    def test_graphical_kernel_treats_sites_apart(self):
        particles, scores = cloud(5, 3)
        sites = {"a": slice(0, 1), "b": slice(1, 3)}
        host = GraphicalKernel(local_kernel_fns={"b_auto_loc": IMQKernel()})
        adapter = as_kernel(host, sites)
        phi, _ = adapter.direction(adapter.init(particles), particles, scores)
        a, _ = RBF("numpyro").direction({}, particles[:, :1], scores[:, :1])
        b, _ = IMQ(bandwidth=1.0).direction({}, particles[:, 1:], scores[:, 1:])
        np.testing.assert_allclose(phi, jnp.concatenate([a, b], axis=1), rtol=1e-9)

    @pytest.mark.parametrize("mode", ["norm", "vector"])
    def test_coincident_particles(self, mode):
        particles, scores = cloud(6, 3)
        adapter = HostKernel(RBFKernel(mode=mode))
        for equal in (2, 5, 6):
            together = particles.at[:equal].set(particles[0])
            phi, _ = adapter.direction(adapter.init(together), together, scores)
            assert jnp.isfinite(phi).all()

    def test_gram_of_a_vector_kernel_is_refused(self):
        particles, _ = cloud(4, 3)
        adapter = HostKernel(RBFKernel(mode="vector"))
        with pytest.raises(ArgumentError, match="no single Gram matrix"):
            adapter.gram(adapter.init(particles), particles)

    def test_refused(self):
        with pytest.raises(ArgumentError, match="SteinKernel"):
            HostKernel(RBF())
        guide = AutoNormal(lambda: None)
        with pytest.raises(ArgumentError, match="compares the Gaussian guides"):
            as_kernel(ProbabilityProductKernel(guide))

    @pytest.mark.parametrize("kernel", [RBF("pyro"), IMQ("pyro"), RBF() + 0.5 * Linear()], ids=repr)
    def test_interactions_sum_to_the_direction(self, kernel):
        particles, scores = (
            jnp.asarray(each) for each in np.random.default_rng(1).normal(size=(2, 7, 3))
        )
        expected, _ = kernel.direction(kernel.init(particles), particles, scores)
        found = kernel.interactions(particles).direction(scores)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("dim", [49, 50])
    def test_default_for_few_particles(self, dim):
        values = np.random.default_rng(0).normal(size=(2, 5, dim))
        particles, scores = (jnp.asarray(each) for each in values)
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
        host = RBFKernel()
        assert as_kernel(host).kernel is host
        with pytest.raises(ArgumentError, match=r"RBF\(\), not a class"):
            as_kernel(RBF)


def test_descriptions_are_readable_and_the_same_in_every_process() -> None:
    def width(particles: jax.Array) -> float:
        return 1.0

    name = width.__qualname__
    assert repr(RBF()) == "RBF(bandwidth='median', metric=None)"
    assert repr(IMQ(width)) == f"IMQ(bandwidth={name}, exponent=-0.5, metric=None)"
    assert repr(RBF() + 0.5 * Linear(None)) == (
        "Sum(kernels=(RBF(bandwidth='median', metric=None), "
        "Scaled(kernel=Linear(metric=None), factor=0.5)))"
    )
    assert repr(Linear(jnp.array([1.0, 2.0]))) == "Linear(metric=[1.0, 2.0])"
    long = [repr(Linear(jnp.full(9, value))) for value in (1.0, 2.0)]
    assert long[0] != long[1] and "shape (9,)" in long[0]
    host = as_kernel(IMQKernel())
    assert repr(host) == "HostKernel(kernel=IMQKernel, seed=0)"
    assert repr(host.with_sites({"z": slice(0, 2)})) == repr(host)
