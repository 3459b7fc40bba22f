"""Kernels of both packages: bandwidth rules by hand, directions by a double loop over particles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.kernels.rules import BANDWIDTH_RULES, METRICS
from tests.backends import use_float64
from tests.kernel_support import (
    cloud,
    direction,
    imq,
    largest_array,
    linear,
    of_kernel,
    rbf,
    stein_direction,
    width_of,
)

use_float64()
pytestmark = pytest.mark.formula

# Squared distances of the six pairs: 1, 16, 20, 17, 13, 20.
FOUR_POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 4.0], [4.0, 2.0]])


def widths(backend: Any, kernels: Any, rules: Any, particles: np.ndarray) -> list[np.ndarray]:
    """Bandwidths of several rules, in one compiled program."""
    compiled = backend.compiled(lambda z: [kernels.bandwidth(rule, z) for rule in rules])
    return [backend.numpy(width) for width in compiled(backend.array(particles))]


class TestBandwidth:
    def test_four_points_by_hand(self, backend, kernels):
        expected = {
            # Middle values of 1 13 16 17 20 20.
            "median": 0.5 * (16 + 17) / math.log(5),
            "blackjax": (0.5 * (4 + math.sqrt(17))) ** 2 / math.log(4),
            # Middle values of 0 0 0 0 1 1 13 13 16 16 17 17 20 20 20 20.
            "dartml": 0.5 * (13 + 16) / math.log(5),
            "numpyro": (0.5 * (math.sqrt(13) + 4)) ** 2 / math.log(4),
            # By coordinate: the lower middle of 0 1 1 9 16 16, and of 0 4 4 4 16 16.
            "pyro": [1 / math.log(5), 4 / math.log(5)],
            "dimension": 4.0,
            "wide": 8.0,
            2.5: 2.5,
            # A callable sees the particles as they are.
            (lambda z: (z**2).mean()): (FOUR_POINTS**2).mean(),
        }
        assert set(expected) >= set(BANDWIDTH_RULES)
        for found, value in zip(
            widths(backend, kernels, expected, FOUR_POINTS), expected.values(), strict=True
        ):
            np.testing.assert_allclose(found, value, rtol=1e-12)

    @pytest.mark.in_both_packages
    @pytest.mark.parametrize("num", [2, 3, 4, 5, 20, 21])
    def test_against_sorting(self, backend, kernels, num):
        particles, _ = cloud(num, 3, seed=num)
        found = widths(backend, kernels, BANDWIDTH_RULES, particles)
        for rule, width in zip(BANDWIDTH_RULES, found, strict=True):
            np.testing.assert_allclose(width, width_of(rule, particles), rtol=1e-10, err_msg=rule)

    @pytest.mark.parametrize("equal", [5, 6])
    def test_coincident_particles(self, backend, kernels, equal):
        particles = np.random.default_rng(1).normal(size=(6, 3))
        particles[:equal] = particles[0]
        found = widths(backend, kernels, BANDWIDTH_RULES, particles)
        for rule, width in zip(BANDWIDTH_RULES, found, strict=True):
            np.testing.assert_allclose(width, width_of(rule, particles), rtol=1e-9, err_msg=rule)

    def test_tied_middle_values(self, backend, kernels):
        # The four sides of a square and its two diagonals: 1 1 1 1 2 2.
        square = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        (found,) = widths(backend, kernels, ["median"], square)
        np.testing.assert_allclose(found, 1 / math.log(5))

    @pytest.mark.parametrize("rule", ["silverman", -1.0, 0.0, math.inf, math.nan, None, True])
    def test_refused(self, kernels, rule):
        for kernel in (kernels.RBF, kernels.IMQ):
            with pytest.raises(ArgumentError, match=r"Expected .* bandwidth"):
                kernel(bandwidth=rule)

    def test_callable_of_wrong_shape(self, backend, kernels):
        with pytest.raises(ArgumentError, match=r"shape \(\) or \(3,\), found \(5, 3\)"):
            direction(backend, kernels.RBF(bandwidth=lambda z: z), *cloud(5, 3))


class TestDirection:
    @pytest.mark.in_both_packages
    @pytest.mark.parametrize("shape", [(1, 3), (2, 3), (7, 3), (6, 1), (4, 9)])
    def test_radial_kernels(self, backend, kernels, shape):
        particles, scores = cloud(*shape)
        particles = particles + 50.0

        def spread(z: Any) -> Any:
            return (z**2).mean(0) + 1.0

        values = {rule: width_of(rule, particles) for rule in BANDWIDTH_RULES}
        # A callable of a kernel sees centred particles.
        values |= {1.7: 1.7, spread: spread(particles - particles.mean(0))}
        made: dict[Any, Any] = {}
        for rule, width in values.items():
            weights = np.diag(np.broadcast_to(1.0 / width, shape[1:]))
            made[kernels.RBF(rule)] = rbf(weights)
            made[kernels.IMQ(rule)] = imq(weights)
            made[kernels.IMQ(rule, exponent=-0.8)] = imq(weights, exponent=-0.8)

        def every(z: Any, s: Any) -> Any:
            return [(k.direction(k.init(z), z, s)[0], k.gram(k.init(z), z)) for k in made]

        found = backend.compiled(every)(backend.array(particles), backend.array(scores))
        for (kernel, value), (phi, gram) in zip(made.items(), found, strict=True):
            expected = stein_direction(value, particles, scores)
            named = {"err_msg": repr(kernel)}
            np.testing.assert_allclose(
                backend.numpy(phi), expected[0], rtol=1e-9, atol=1e-11, **named
            )
            np.testing.assert_allclose(
                backend.numpy(gram), expected[1], rtol=1e-9, atol=1e-12, **named
            )

    @pytest.mark.parametrize("shape", [(2, 3), (7, 3), (6, 1), (4, 9)])
    def test_linear_kernel(self, backend, kernels, shape):
        particles, scores = cloud(*shape)
        fixed = np.linspace(0.2, 3.0, shape[1])
        for kernel, weights in [
            (kernels.Linear(), 1 / np.var(particles, axis=0)),
            (kernels.Linear(metric=None), np.ones_like(fixed)),
            (kernels.Linear(metric=backend.array(fixed)), fixed),
        ]:
            phi, gram = of_kernel(backend, kernel, particles, scores)
            value = linear(np.diag(weights), particles.mean(0))
            expected = stein_direction(value, particles, scores)
            np.testing.assert_allclose(phi, expected[0], rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(gram, expected[1], rtol=1e-9, atol=1e-12)

    def test_sums_and_multiples(self, backend, kernels):
        RBF, IMQ, Linear = kernels.RBF, kernels.IMQ, kernels.Linear
        particles, scores = cloud(6, 3)
        identity, variances = np.eye(3), np.diag(1 / particles.var(0))
        first = rbf(identity, width_of("median", particles))
        others = imq(identity, 2.0), linear(variances, particles.mean(0))

        def value(x, y):
            return first(x, y) + 0.25 * (others[0](x, y) + others[1](x, y))

        kernel = RBF() + 0.25 * (IMQ(bandwidth=2.0) + Linear())
        phi, gram = of_kernel(backend, kernel, particles, scores)
        expected = stein_direction(value, particles, scores)
        np.testing.assert_allclose(phi, expected[0], rtol=1e-9)
        np.testing.assert_allclose(gram, expected[1], rtol=1e-9)
        assert len((RBF() + IMQ() + Linear()).kernels) == 3

    def test_terms_of_a_sum_have_metrics_of_their_own(self, backend, kernels):
        particles, scores = np.random.default_rng(0).normal(size=(2, 9, 3))
        parts = [kernels.RBF(metric="variance"), kernels.IMQ(metric="covariance")]
        expected = sum(direction(backend, part, particles, scores) for part in parts)
        found = direction(backend, kernels.Sum(parts), particles, scores)
        np.testing.assert_allclose(found, expected, rtol=1e-12)

    def test_mixtures_weigh_their_kernels(self, backend, kernels):
        particles, scores = cloud(6, 3)
        parts = [kernels.RBF(), kernels.IMQ()]
        phi = direction(backend, kernels.mixture(parts, [1.0, 3.0]), particles, scores)
        one, other = (direction(backend, kernel, particles, scores) for kernel in parts)
        np.testing.assert_allclose(phi, 0.25 * one + 0.75 * other, rtol=1e-12)

    def test_refused(self, backend, kernels):
        RBF, IMQ = kernels.RBF, kernels.IMQ
        for factor in (0.0, -1.0, math.nan, math.inf):
            with pytest.raises(ArgumentError, match="positive finite factor"):
                kernels.Scaled(RBF(), factor)
        for exponent in (0.0, -1.0, 0.5):
            with pytest.raises(ArgumentError, match="exponent between -1 and 0"):
                IMQ(exponent=exponent)
        for empty in (kernels.Sum, kernels.mixture):
            with pytest.raises(ArgumentError, match="at least one kernel"):
                empty(())
        with pytest.raises(ArgumentError, match="one weight for each of 2"):
            kernels.mixture([RBF(), IMQ()], [1.0])
        for weights in ([1.0, -0.5], [-1.0, -3.0], [0.0, 0.0]):
            with pytest.raises(ArgumentError, match="positive finite weights"):
                kernels.mixture([RBF(), IMQ()], weights)
        with pytest.raises(ArgumentError, match="HostKernel"):
            kernels.mixture([RBF(), "rbf"])
        with pytest.raises(ArgumentError, match=r"RBF\(\), not a class"):
            kernels.as_kernel(RBF)

    def test_one_particle_follows_its_score(self, backend, kernels):
        RBF, IMQ = kernels.RBF, kernels.IMQ
        particles, scores = cloud(1, 4)
        for kernel in (RBF(), RBF("pyro"), IMQ(), kernels.Linear(), 0.5 * RBF() + 0.5 * IMQ()):
            phi = direction(backend, kernel, particles, scores)
            np.testing.assert_allclose(phi, scores, rtol=1e-12, err_msg=repr(kernel))

    def test_a_direction_of_ones_own_counts_in_sums_and_multiples(self, backend, kernels):
        """Of a kernel that derives from one of the package's, which has another direction."""

        class Weaker(kernels.RBF):
            def direction(self, state, particles, scores):
                phi, state = super().direction(state, particles, scores)
                return 0.1 * phi, state

        particles, scores = cloud(6, 3)
        weaker, linear = Weaker(2.0), kernels.Linear()
        made = [kernels.RBF(2.0), linear, linear + weaker, linear + 0.5 * weaker, 0.5 * weaker]
        radial, straight, *found = (direction(backend, each, particles, scores) for each in made)
        expected = [straight + 0.1 * radial, straight + 0.05 * radial, 0.05 * radial]
        np.testing.assert_allclose(found, expected, rtol=1e-12)

    @pytest.mark.parametrize("kind", ["Sum", "Scaled"])
    def test_sums_and_multiples_with_a_direction_of_their_own_are_terms(
        self, backend, kernels, kind
    ):
        class Weaker(getattr(kernels, kind)):
            def direction(self, state, particles, scores):
                phi, state = super().direction(state, particles, scores)
                return 0.1 * phi, state

        particles, scores = cloud(6, 3)
        linear, radial = kernels.Linear(), kernels.RBF(2.0)
        weaker = Weaker([radial]) if kind == "Sum" else Weaker(radial, 1.0)
        for term in (weaker, 1.0 * weaker):
            made = (linear, radial, linear + term, kernels.mixture([linear, term]))
            straight, own, both, half = (
                direction(backend, each, particles, scores) for each in made
            )
            np.testing.assert_allclose(both, straight + 0.1 * own, rtol=1e-12)
            np.testing.assert_allclose(2.0 * half, straight + 0.1 * own, rtol=1e-12)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_coincident_particles(self, backend, kernels, dtype):
        RBF, Linear = kernels.RBF, kernels.Linear
        made = [*(RBF(rule) for rule in BANDWIDTH_RULES), kernels.IMQ(), Linear(), RBF() + Linear()]
        particles, scores = cloud(6, 3)
        compiled = backend.compiled(
            lambda z, s: [kernel.direction(kernel.init(z), z, s)[0] for kernel in made]
        )
        for equal in (2, 4, 5, 6):
            together = particles + 1e3
            together[:equal] = together[0]
            found = compiled(backend.array(together, dtype), backend.array(scores, dtype))
            for kernel, phi in zip(made, map(backend.numpy, found), strict=True):
                assert phi.dtype == dtype
                assert np.isfinite(phi).all()
                # Particles in one place with scores of their own still share one direction.
                shared = np.broadcast_to(phi[0], (equal, 3))
                np.testing.assert_allclose(phi[:equal], shared, rtol=1e-3, atol=1e-4)
                if equal == 6:
                    # All in one place: k = 1 everywhere and nothing repels.
                    count = len(kernel.kernels) if isinstance(kernel, kernels.Sum) else 1
                    expected = np.broadcast_to(count * scores.mean(axis=0), scores.shape)
                    np.testing.assert_allclose(phi, expected, rtol=1e-5, err_msg=repr(kernel))

    @pytest.mark.in_both_packages
    def test_float32_far_from_the_origin(self, backend, kernels):
        particles, scores = (each.astype("float32") for each in cloud(20, 5))
        particles = particles + np.float32(1e4)
        made = [kernels.RBF(), kernels.RBF("pyro"), kernels.IMQ(), kernels.Linear()]
        compiled = backend.compiled(lambda z, s: [kernel.direction({}, z, s)[0] for kernel in made])
        single, double = (
            compiled(backend.array(particles, dtype), backend.array(scores, dtype))
            for dtype in ("float32", "float64")
        )
        for kernel, phi, expected in zip(made, single, double, strict=True):
            phi = backend.numpy(phi)
            assert phi.dtype == np.float32
            # Float32 rounds the squared distances at a relative 1e-6; uncentred it would be 10.
            np.testing.assert_allclose(
                phi, backend.numpy(expected), rtol=1e-4, atol=1e-4, err_msg=repr(kernel)
            )

    @pytest.mark.in_both_packages
    @pytest.mark.parametrize("shape", [(40, 3), (5, 200)])
    def test_memory(self, backend, kernels, shape):
        RBF = kernels.RBF
        particles, scores = (backend.array(each) for each in cloud(*shape))
        num, dim = shape
        for kernel in (
            RBF(),
            kernels.IMQ(),
            kernels.Linear(),
            RBF("pyro"),
            kernels.as_kernel(None),
        ):
            state = kernel.init(particles)
            largest = largest_array(backend, kernel.direction, state, particles, scores)
            assert 0 < largest <= max(num * num, num * dim), kernel

    def test_particles_repel(self, backend, kernels):
        for kernel in (kernels.RBF(), kernels.IMQ()):
            phi = direction(backend, kernel, np.array([[0.0], [1.0]]), np.zeros((2, 1)))
            assert phi[0, 0] < 0 < phi[1, 0]

    def test_interactions_sum_to_the_direction(self, backend, kernels):
        RBF, IMQ = kernels.RBF, kernels.IMQ
        particles, scores = np.random.default_rng(1).normal(size=(2, 7, 3))
        made = (RBF("pyro"), IMQ("pyro"), RBF() + 0.5 * kernels.Linear())

        def both(z: Any, s: Any) -> Any:
            return [
                (kernel.interactions(z).direction(s), kernel.direction(kernel.init(z), z, s)[0])
                for kernel in made
            ]

        for pair in backend.compiled(both)(backend.array(particles), backend.array(scores)):
            found, expected = map(backend.numpy, pair)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(("num", "dim"), [(8, 1), (4, 4), (5, 49), (5, 50)])
    def test_default_for_few_particles(self, backend, kernels, num, dim):
        # One coordinate, too few particles for pairs of coordinates, and for any spread.
        particles, scores = np.random.default_rng(0).normal(size=(2, num, dim))
        if dim == 50:
            value = rbf(np.eye(dim), width_of("median", particles))
        else:
            weights = np.diag(1.0 / particles.var(0))
            parts = imq(weights, 2.0 * dim), linear(weights, particles.mean(0))

            def value(x, y):
                return 0.5 * parts[0](x, y) + 0.5 * parts[1](x, y)

        assert repr(kernels.as_kernel(None)) == repr(kernels.default_kernel())
        assert not kernels.default_kernel().translation_invariant  # the linear term is not
        kernel = kernels.default_kernel().with_sites({"z": slice(0, dim)})
        phi, gram = of_kernel(backend, kernel, particles, scores)
        expected = stein_direction(value, particles, scores)
        np.testing.assert_allclose(phi, expected[0], rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(gram, expected[1], rtol=1e-7)
        found = backend.compiled(lambda z: kernel.interactions(z).gram)(backend.array(particles))
        np.testing.assert_allclose(backend.numpy(found), gram, rtol=1e-7)

    @pytest.mark.parametrize(("num", "dim"), [(5, 4), (3, 2)])
    def test_default_for_many_particles(self, backend, kernels, num, dim):
        particles, scores = np.random.default_rng(0).normal(size=(2, num, dim))
        kernel = kernels.default_kernel()
        found = direction(backend, kernel, particles, scores)
        expected = direction(backend, kernels.hierarchical_kernel(), particles, scores)
        np.testing.assert_array_equal(found, expected)
        if num > dim:
            # With fewer particles this kernel is the same, and the default is not.
            few = particles[: dim**2 // 4], scores[: dim**2 // 4]
            terms = kernels.hierarchical_kernel().many
            np.testing.assert_array_equal(
                direction(backend, kernels.hierarchical_kernel(), *few),
                direction(backend, terms, *few),
            )
        # Its values are matrices: engines that need numbers say so before their first step.
        z = backend.array(particles)
        with pytest.raises(ArgumentError, match="values are matrices"):
            kernel.gram(kernel.init(z), z)
        with pytest.raises(ArgumentError, match="where particles are many. Use mixture"):
            kernel.interactions(z)


class TestHostKernels:
    def made(self, backend, kernels):
        """Wrapped: a kernel of all coordinates together, and one of a kernel for each."""
        if backend.is_pyro:
            from pyro.infer.svgd import RBFSteinKernel

            modes = ("multivariate", "univariate")
            return [kernels.HostKernel(RBFSteinKernel(), mode=mode) for mode in modes]
        from numpyro.contrib.einstein import RBFKernel

        return [kernels.HostKernel(RBFKernel(mode=mode)) for mode in ("norm", "vector")]

    def test_coincident_and_single_particles(self, backend, kernels):
        particles, scores = cloud(6, 3)
        for kernel in self.made(backend, kernels):
            for equal in (2, 5, 6):
                together = particles.copy()
                together[:equal] = together[0]
                phi = direction(backend, kernel, together, scores)
                assert np.isfinite(phi).all()
            np.testing.assert_allclose(phi, np.broadcast_to(scores.mean(0), scores.shape))
            phi = direction(backend, kernel, particles[:1], scores[:1])
            np.testing.assert_allclose(phi, scores[:1])

    @pytest.mark.in_both_packages
    def test_wrapped_or_refused(self, backend, kernels):
        whole, by_coordinate = self.made(backend, kernels)
        assert kernels.as_kernel(whole.kernel).kernel is whole.kernel
        particles = backend.array(cloud(4, 3)[0])
        words = "one kernel for each coordinate" if backend.is_pyro else "no single Gram matrix"
        with pytest.raises(ArgumentError, match=words):
            by_coordinate.gram(by_coordinate.init(particles), particles)
        with pytest.raises(ArgumentError, match="SteinKernel"):
            kernels.HostKernel(kernels.RBF())


@pytest.mark.in_both_packages
def test_descriptions_are_readable_and_the_same_in_every_process(backend, kernels) -> None:
    RBF, Linear = kernels.RBF, kernels.Linear

    def width(particles: Any) -> float:
        return 1.0

    name = width.__qualname__
    assert repr(RBF()) == "RBF(bandwidth='median', metric=None)"
    assert repr(kernels.IMQ(width)) == f"IMQ(bandwidth={name}, exponent=-0.5, metric=None)"
    assert repr(RBF() + 0.5 * Linear(None)) == (
        "Sum(kernels=(RBF(bandwidth='median', metric=None), "
        "Scaled(kernel=Linear(metric=None), factor=0.5)))"
    )
    assert repr(Linear(backend.array([1.0, 2.0]))) == "Linear(metric=[1.0, 2.0])"
    long = [repr(Linear(backend.array(np.full(9, value)))) for value in (1.0, 2.0)]
    assert long[0] != long[1] and "shape (9,)" in long[0]
    both = RBF() + Linear()
    assert kernels.as_kernel(both) is both


def test_both_packages_have_the_same_names() -> None:
    numpyro_kernels = pytest.importorskip("numpyro_ext.kernels")
    pyro_kernels = pytest.importorskip("pyro_ext.kernels")
    assert pyro_kernels.__all__ == numpyro_kernels.__all__
    assert numpyro_kernels.METRICS == METRICS
