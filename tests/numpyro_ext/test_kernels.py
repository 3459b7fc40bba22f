"""Kernels of NumPyro and of its peers, and how the median is found under compilation."""

from __future__ import annotations

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

from numpyro_ext.kernels import IMQ, RBF, HostKernel, Linear, RandomFeature, as_kernel, bandwidth
from numpyro_ext.kernels.arrays import order_statistic
from ppl_ext.errors import ArgumentError
from tests.kernel_support import cloud as arrays
from tests.kernel_support import stein_direction

jax.config.update("jax_enable_x64", True)

FOUR_POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 4.0], [4.0, 2.0]])


def cloud(num: int, dim: int) -> tuple[jax.Array, ...]:
    return tuple(map(jnp.asarray, arrays(num, dim)))


@pytest.mark.parametrize("particles", [FOUR_POINTS, *(cloud(n, 3)[0] for n in (2, 3, 20))])
def test_named_rules_are_the_peers(particles):
    particles = jnp.asarray(particles)
    host = median_bandwidth(particles, lambda n: 1 / jnp.log(n))
    np.testing.assert_allclose(bandwidth("numpyro", particles), host, rtol=1e-10)
    peer = median_heuristic({}, particles)["length_scale"]
    np.testing.assert_allclose(bandwidth("blackjax", particles), peer, rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_order_statistic_is_exact(dtype):
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
            return np.exp(-((np.asarray(scores) @ (x - y)) ** 2).mean() / 6)

        expected, _ = stein_direction(value, np.asarray(particles), np.asarray(scores))
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

    def test_refused(self):
        guide = AutoNormal(lambda: None)
        with pytest.raises(ArgumentError, match="compares the Gaussian guides"):
            as_kernel(ProbabilityProductKernel(guide))


@pytest.mark.parametrize(
    "kernel",
    [
        RBF() + Linear(),
        RBF("dimension", "variance"),
        RBF("median", "covariance"),
        RandomFeature(10),
    ],
    ids=repr,
)
def test_under_jit(kernel):
    particles, scores = cloud(8, 3)
    state = kernel.init(particles)
    phi, _ = jax.jit(kernel.direction)(state, particles, scores)
    expected, _ = kernel.direction(state, particles, scores)
    np.testing.assert_allclose(phi, expected, rtol=1e-9)


def test_host_kernels_are_wrapped():
    adapter = as_kernel(IMQKernel())
    assert repr(adapter) == "HostKernel(kernel=IMQKernel, seed=0)"
    assert repr(adapter.with_sites({"z": slice(0, 2)})) == repr(adapter)
