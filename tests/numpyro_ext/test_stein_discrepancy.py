"""Kernelised Stein discrepancy of particles, guides and positions for NumPyro models."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import Array
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

from numpyro_ext import SVGD, DeepEnsemble, LogDensity, ProximalScoreVI, ksd
from numpyro_ext.diagnostics import stein_discrepancy as module
from numpyro_ext.diagnostics.stein_discrepancy import SteinDiscrepancy, stein_discrepancy
from numpyro_ext.guides import Moments, flat_density
from ppl_ext.errors import ArgumentError
from tests.models import numpyro_models, zoo

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
P, D = 7, 3
N = 40
Y = jnp.linspace(-2.0, 4.0, N) + jnp.sin(jnp.linspace(0.0, 3.0, N))


def conjugate(y: Array, batch: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", len(y), subsample_size=batch) as rows:
        numpyro.sample("y", dist.Normal(mu, 2.0), obs=y[rows])


def conjugate_score(mu: Array, temperature: float = 1.0) -> Array:
    return -mu / 9 + (Y.sum() - N * mu) / 4 / temperature


def conjugate_guide() -> tuple[AutoMultivariateNormal, dict[str, Any]]:
    guide = AutoMultivariateNormal(conjugate)
    density = flat_density(guide, KEY, (Y,))
    moments = Moments(jnp.array([1.5]), jnp.array([[0.4]]))
    return guide, density.write_back(density.set_moments(density.initial_parameters(), moments))


def points(seed: int = 0) -> tuple[Array, Array]:
    """Positions and scores that have nothing to do with each other."""
    draws = np.random.default_rng(seed)
    return jnp.asarray(draws.normal(size=(P, D))), jnp.asarray(draws.normal(size=(P, D)))


def base_kernel(x: Array, y: Array, c: Array) -> Array:
    return (c**2 + jnp.square(x - y).sum()) ** -0.5


@jax.jit
def stein_kernel_by_differentiation(x: Array, y: Array, s: Array, t: Array, c: Array) -> Array:
    """k0(x, y) from the definition, with the derivatives of k by automatic differentiation."""
    of_x, of_y = jax.grad(base_kernel, (0, 1))(x, y, c)
    mixed = jax.jacobian(jax.grad(base_kernel, 0), 1)(x, y, c)
    return base_kernel(x, y, c) * (s @ t) + s @ of_y + t @ of_x + jnp.trace(mixed)


def slow_discrepancy(positions: Array, scores: Array, statistic: str, c: float) -> float:
    """The statistic itself, squared, by a double loop."""
    num = len(positions)
    pairs = [(i, j) for i in range(num) for j in range(num) if i != j or statistic == "V"]
    values = [
        stein_kernel_by_differentiation(positions[i], positions[j], scores[i], scores[j], c)
        for i, j in pairs
    ]
    return float(sum(values)) / len(values)


# -- from positions and scores -------------------------------------------------------------------


@pytest.mark.parametrize("statistic", ["U", "V"])
@pytest.mark.parametrize("metric", [None, "whitened", "given"])
def test_it_agrees_with_the_definition(statistic: str, metric: str | None) -> None:
    positions, scores = points()
    given = jnp.array([0.5, 2.0, 3.0])
    scales = {None: jnp.ones(D), "whitened": positions.std(0, ddof=1), "given": given}[metric]
    found = stein_discrepancy(
        positions,
        scores,
        statistic=statistic,
        metric=given if metric == "given" else metric,
        scale=0.7,
        block=3,
    )
    expected = slow_discrepancy(positions / scales, scores * scales, statistic, 0.7)
    assert isinstance(found, SteinDiscrepancy)
    assert (found.statistic, found.num_samples) == (statistic, P)
    np.testing.assert_allclose(found.squared, expected, rtol=1e-11)
    np.testing.assert_allclose(found.value * abs(found.value), expected, rtol=1e-11)


def test_the_value_has_the_sign_of_the_u_statistic() -> None:
    """Two points whose scores point at each other's far side."""
    positions, scores = jnp.array([[0.0], [1.0]]), jnp.array([[3.0], [-3.0]])
    found = stein_discrepancy(positions, scores, statistic="U", metric=None)
    expected = slow_discrepancy(positions, scores, "U", 1.0)
    assert found.squared < 0 and found.value == -math.sqrt(-found.squared)
    np.testing.assert_allclose(found.squared, expected)


def test_one_point_alone() -> None:
    """|s|^2/c + D/c^3."""
    found = stein_discrepancy(
        jnp.array([[5.0, 1.0]]), jnp.array([[3.0, 4.0]]), metric=None, scale=2.0
    )
    np.testing.assert_allclose(found.squared, 25 / 2 + 2 / 8)


@pytest.mark.parametrize("block", [24, 64])
def test_blocks_do_not_change_the_result(block: int) -> None:
    draws = np.random.default_rng(1)
    positions, scores = draws.normal(size=(2, 64, 5))
    for statistic in ("U", "V"):
        whole = stein_discrepancy(positions, scores, statistic=statistic)
        parts = stein_discrepancy(positions, scores, statistic=statistic, block=block)
        np.testing.assert_allclose(parts.squared, whole.squared, rtol=1e-11)


def test_no_array_of_pairs_is_larger_than_a_block(monkeypatch) -> None:
    shapes = []
    kernel = module._stein_kernel

    def recorded(*arguments: Any) -> Array:
        found = kernel(*arguments)
        shapes.append(found.shape)
        return found

    monkeypatch.setattr(module, "_stein_kernel", recorded)
    # So that every kind of block is traced here.
    jax.clear_caches()
    stein_discrepancy(*points(), block=3)
    assert set(shapes) == {(3, 3), (3, 1), (1, 1)}


def test_its_mean_under_the_target_is_zero() -> None:
    """The U-statistic of independent draws of a correlated Normal; it has no bias."""
    draws = np.random.default_rng(2)
    root = np.array([[1.0, 0.0], [0.8, 0.6]])
    precision = np.linalg.inv(root @ root.T)
    values = []
    for _ in range(300):
        z = draws.normal(size=(40, 2)) @ root.T
        values.append(stein_discrepancy(z, -z @ precision, statistic="U", metric=None).squared)
    error = np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values)) < 4 * error
    # The trace term alone is far larger: its omission or a wrong sign would show.
    assert error < 0.01


@pytest.mark.parametrize("metric", [None, "whitened"])
def test_it_grows_when_draws_are_shifted_or_shrunk(metric: str | None) -> None:
    z = np.random.default_rng(3).normal(size=(400, 2))

    def of(draws: np.ndarray) -> float:
        return stein_discrepancy(draws, -draws, statistic="U", metric=metric).value

    right = of(z)
    assert right < 0.1
    shifted = [of(z + shift) for shift in (0.3, 0.6, 1.2)]
    shrunk = [of(factor * z) for factor in (0.8, 0.5, 0.2)]
    spread = [of(factor * z) for factor in (1.3, 2.0)]
    for values in (shifted, shrunk, spread):
        assert right < values[0] and values == sorted(values)
        assert values[0] > 0.1


def test_whitening_makes_it_free_of_units() -> None:
    positions, scores = points()
    units = jnp.array([1e-3, 1.0, 1e4])
    one = stein_discrepancy(positions, scores)
    other = stein_discrepancy(positions * units, scores / units)
    np.testing.assert_allclose(one.value, other.value, rtol=1e-10)
    plain = [
        stein_discrepancy(positions, scores, metric=None).value,
        stein_discrepancy(positions * units, scores / units, metric=None).value,
    ]
    assert abs(plain[1] / plain[0] - 1) > 0.5


def test_points_far_from_the_origin_lose_no_precision() -> None:
    positions, scores = points()
    near = stein_discrepancy(positions, scores, metric=None)
    far = stein_discrepancy(positions + 2.0**26, scores, metric=None)
    # The positions themselves are rounded to 2^-26.
    np.testing.assert_allclose(far.value, near.value, rtol=1e-6)


def test_coincident_points_have_distance_zero() -> None:
    """Also where rounding gives them another, which a small scale would see."""
    draws = np.random.default_rng(5)
    positions = jnp.asarray(np.repeat(100.0 * draws.normal(size=(2, 37)), 2, axis=0))
    scores = jnp.asarray(draws.normal(size=(4, 37)))
    found = stein_discrepancy(positions, scores, metric=None, scale=1e-6)
    expected = slow_discrepancy(positions, scores, "V", 1e-6)
    np.testing.assert_allclose(found.squared, expected, rtol=1e-9)


# -- from fits -----------------------------------------------------------------------------------


def test_particles_are_taken_as_they_are() -> None:
    engine = SVGD(conjugate, numpyro.optim.Adam(0.1), num_particles=8)
    result = engine.run(KEY, 5, Y, 10, progress_bar=False)
    particles = engine.particles(result.state)
    for options in ({}, {"statistic": "U"}, {"metric": None, "scale": 0.3}, {"draw_chunk": 4}):
        found = ksd(engine, result.state, **options)
        options.pop("draw_chunk", None)
        expected = stein_discrepancy(particles, conjugate_score(particles), **options)
        np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-9)
    assert ksd(engine, result).statistic == "V"
    assert ksd(engine, result, num_samples=8).num_samples == 8
    with pytest.raises(ArgumentError, match="number of points, 8, found 9"):
        ksd(engine, result, num_samples=9)
    with pytest.raises(ArgumentError, match="state of SVGD as the second argument"):
        ksd(engine)


def test_a_guide_is_drawn_from() -> None:
    metric = jnp.array([0.3])
    guide, params = conjugate_guide()
    engine = ProximalScoreVI(conjugate, guide)
    state = engine.init(KEY, Y, 10)
    parameters = engine.density.from_host(params)
    state = state._replace(algorithm=state.algorithm._replace(parameters=parameters))
    found = ksd(engine, state, metric=metric, rng_key=KEY)
    assert found.statistic == "U" and found.num_samples == 1000
    of_guide = ksd(guide, params, model=conjugate, args=(Y,), metric=metric, rng_key=KEY)
    np.testing.assert_allclose(of_guide.value, found.value, rtol=1e-9)
    draws = 1.5 + 0.4 * jax.random.normal(jax.random.key(5), (4000, 1))
    expected = stein_discrepancy(draws, conjugate_score(draws), statistic="U", metric=metric)
    many = ksd(engine, state, metric=metric, num_samples=4000)
    assert abs(many.value / expected.value - 1) < 0.1 and expected.value > 0.3
    assert ksd(engine, state) == ksd(engine, state) != ksd(engine, state, rng_key=KEY)


def test_positions_come_with_a_target_or_a_model() -> None:
    positions = jnp.linspace(0.0, 2.0, 9)[:, None]
    expected = stein_discrepancy(positions, conjugate_score(positions))
    target = LogDensity(conjugate, KEY, (Y, 10), data_chunk=16)
    for given in (positions, np.asarray(positions)):
        found = ksd(given, target=target, args=(Y, 10))
        np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    found = ksd(positions, model=conjugate, args=(Y,), kwargs={"batch": 7})
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    assert found.statistic == "V"


def test_the_temperature_is_the_target_s_unless_given() -> None:
    positions = jnp.linspace(0.0, 2.0, 9)[:, None]
    target = LogDensity(conjugate, KEY, (Y, 10), likelihood_temperature=4.0)
    for asked, temperature in ((None, 4.0), (4.0, 4.0), (1.0, 1.0), (2.5, 2.5)):
        found = ksd(positions, target=target, args=(Y, 10), likelihood_temperature=asked)
        expected = stein_discrepancy(positions, conjugate_score(positions, temperature))
        np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)


def test_local_latents_have_their_full_length() -> None:
    name = "local_latents"
    arguments, options = numpyro_models.arguments(name), zoo.ZOO[name].options
    full = zoo.ZOO[name].full_options
    target = LogDensity(numpyro_models.build(name), KEY, arguments, options)
    whole = LogDensity(numpyro_models.build(name), KEY, arguments, full)
    positions = np.random.default_rng(4).normal(size=(6, target.dim))
    found = ksd(positions, target=target, args=arguments, kwargs=options)
    expected = ksd(positions, target=whole, args=arguments, kwargs=full)
    assert target.local_sites
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)


def test_an_ensemble_of_one_needs_no_whitening() -> None:
    engine = DeepEnsemble(conjugate, numpyro.optim.Adam(0.1), num_particles=1)
    state = engine.init(KEY, Y)
    with pytest.raises(ArgumentError, match="2 points for metric='whitened'"):
        ksd(engine, state)
    score = float(conjugate_score(engine.particles(state))[0, 0])
    np.testing.assert_allclose(ksd(engine, state, metric=None).squared, score**2 + 1)


# -- refusals ------------------------------------------------------------------------------------


def test_bad_options_are_refused() -> None:
    positions, scores = points()
    for options, message in (
        ({"statistic": "W"}, "statistic to be one of"),
        ({"metric": "fisher"}, "'whitened', None or an array"),
        ({"metric": jnp.ones(2)}, r"3 positive finite scales.*shape \(2,\)"),
        ({"metric": np.array([1.0, 0.0, 1.0])}, "3 positive finite scales"),
        ({"scale": 0.0}, "positive finite scale"),
        ({"scale": math.inf}, "positive finite scale"),
        ({"block": 0}, "block to be an int"),
    ):
        with pytest.raises(ArgumentError, match=message):
            stein_discrepancy(positions, scores, **options)
    with pytest.raises(ArgumentError, match="2 points for the U-statistic"):
        stein_discrepancy(positions[:1], scores[:1], statistic="U", metric=None)
    with pytest.raises(ArgumentError, match=r"one shape \(P, D\)"):
        stein_discrepancy(positions, scores[:, :2])
    with pytest.raises(ArgumentError, match="1 of 3 coordinates that do not"):
        stein_discrepancy(positions.at[:, 1].set(0.1), scores)
    with pytest.raises(ArgumentError, match="finite scores, found 1 of 7"):
        stein_discrepancy(positions, scores.at[2, 1].set(jnp.nan))


def test_what_cannot_be_a_fit_is_refused() -> None:
    positions = jnp.zeros((4, 1))
    target = LogDensity(conjugate, KEY, (Y,))
    guide, params = conjugate_guide()
    engine = ProximalScoreVI(conjugate, guide)
    state = engine.init(KEY, Y)
    for arguments, options, message in (
        ((positions,), {}, "found neither"),
        ((positions,), {"target": target, "model": conjugate}, "found both"),
        ((positions, state), {"target": target}, "no state with positions"),
        ((jnp.zeros((4, 2)),), {"target": target, "args": (Y,)}, r"\(P, 1\), found \(4, 2\)"),
        ((jnp.zeros(4),), {"target": target, "args": (Y,)}, r"\(P, 1\), found \(4,\)"),
        ((engine, state), {"target": target}, "found it with ProximalScoreVI"),
        ((guide, params), {}, "Pass model="),
        ((AutoNormal(conjugate), params), {"model": conjugate, "args": (Y,)}, "site by site"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ksd(*arguments, **options)
