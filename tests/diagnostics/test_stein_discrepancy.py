"""Kernelised Stein discrepancy of given scores against its definition, and of fits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ppl_ext.diagnostics import stein_discrepancy as module
from ppl_ext.diagnostics.stein_discrepancy import SteinDiscrepancy, stein_discrepancy
from ppl_ext.errors import ArgumentError
from tests.backends import use_float64
from tests.diagnostics_support import Y, conjugate_score
from tests.models import zoo

use_float64()

P, D = 7, 3


@pytest.fixture
def y(backend: Any) -> Any:
    return backend.array(Y)


def points(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Positions and scores that have nothing to do with each other."""
    draws = np.random.default_rng(seed)
    return draws.normal(size=(P, D)), draws.normal(size=(P, D))


def stein_kernel_by_differentiation(
    x: np.ndarray, y: np.ndarray, s: np.ndarray, t: np.ndarray, c: float
) -> float:
    """k0(x, y) from the definition, with the derivatives of (c^2 + r.r)^(-1/2), r = x - y."""
    r = x - y
    base = c**2 + r @ r
    of_x = -r * base**-1.5
    of_both = np.eye(len(r)) * base**-1.5 - 3.0 * np.outer(r, r) * base**-2.5
    return float(base**-0.5 * (s @ t) - s @ of_x + t @ of_x + np.trace(of_both))


def slow_discrepancy(positions: np.ndarray, scores: np.ndarray, statistic: str, c: float) -> float:
    """The statistic itself, squared, by a double loop."""
    num = len(positions)
    pairs = [(i, j) for i in range(num) for j in range(num) if i != j or statistic == "V"]
    values = [
        stein_kernel_by_differentiation(positions[i], positions[j], scores[i], scores[j], c)
        for i, j in pairs
    ]
    return sum(values) / len(values)


# -- from positions and scores -------------------------------------------------------------------


def test_the_derivatives_are_those_of_the_kernel() -> None:
    """By differences: of k in x, in y, and in both."""
    x, y, s, t = np.random.default_rng(0).normal(size=(4, D))

    def kernel(x: np.ndarray, y: np.ndarray) -> float:
        return float((0.7**2 + (x - y) @ (x - y)) ** -0.5)

    step, axes = 1e-4, np.eye(D)

    def of_x(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        both = [(kernel(x + step * e, y), kernel(x - step * e, y)) for e in axes]
        return np.array([(above - below) / (2 * step) for above, below in both])

    of_y = np.array([kernel(x, y + step * e) - kernel(x, y - step * e) for e in axes]) / (2 * step)
    mixed = sum(of_x(x, y + step * e) @ e - of_x(x, y - step * e) @ e for e in axes) / (2 * step)
    expected = kernel(x, y) * (s @ t) + s @ of_y + t @ of_x(x, y) + mixed
    np.testing.assert_allclose(
        stein_kernel_by_differentiation(x, y, s, t, 0.7), expected, rtol=1e-5
    )


@pytest.mark.parametrize("statistic", ["U", "V"])
@pytest.mark.parametrize("metric", [None, "whitened", "given"])
def test_it_agrees_with_the_definition(statistic: str, metric: str | None, backend) -> None:
    positions, scores = points()
    given = np.array([0.5, 2.0, 3.0])
    scales = {None: np.ones(D), "whitened": positions.std(0, ddof=1), "given": given}[metric]
    found = stein_discrepancy(
        backend.array(positions),
        backend.array(scores),
        statistic=statistic,
        metric=backend.array(given) if metric == "given" else metric,
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
    positions, scores = np.array([[0.0], [1.0]]), np.array([[3.0], [-3.0]])
    found = stein_discrepancy(positions, scores, statistic="U", metric=None)
    assert found.squared < 0 and found.value == -math.sqrt(-found.squared)
    np.testing.assert_allclose(found.squared, slow_discrepancy(positions, scores, "U", 1.0))


def test_one_point_alone() -> None:
    """|s|^2/c + D/c^3."""
    found = stein_discrepancy([[5.0, 1.0]], [[3.0, 4.0]], metric=None, scale=2.0)
    np.testing.assert_allclose(found.squared, 25 / 2 + 2 / 8)


@pytest.mark.parametrize("block", [1, 5, 64, 1024])
def test_blocks_do_not_change_the_result(block: int) -> None:
    positions, scores = np.random.default_rng(1).normal(size=(2, 64, 5))
    for statistic in ("U", "V"):
        whole = stein_discrepancy(positions, scores, statistic=statistic)
        parts = stein_discrepancy(positions, scores, statistic=statistic, block=block)
        np.testing.assert_allclose(parts.squared, whole.squared, rtol=1e-11)


def test_no_array_of_pairs_is_larger_than_a_block(monkeypatch) -> None:
    shapes = []
    kernel = module._stein_kernel

    def recorded(*arguments: Any) -> np.ndarray:
        shapes.append(kernel(*arguments).shape)
        return kernel(*arguments)

    monkeypatch.setattr(module, "_stein_kernel", recorded)
    stein_discrepancy(*points(), block=3)
    assert sorted(shapes) == sorted([(3, 3)] * 3 + [(3, 1)] * 2 + [(1, 1)])


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
    units = np.array([1e-3, 1.0, 1e4])
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
    positions = np.repeat(100.0 * draws.normal(size=(2, 37)), 2, axis=0)
    scores = draws.normal(size=(4, 37))
    found = stein_discrepancy(positions, scores, metric=None, scale=1e-6)
    expected = slow_discrepancy(positions, scores, "V", 1e-6)
    np.testing.assert_allclose(found.squared, expected, rtol=1e-9)


# -- from fits -----------------------------------------------------------------------------------


def test_particles_are_taken_as_they_are(host, y) -> None:
    fit, ksd = host.particles(8, y, 10, steps=5), host.public.ksd
    particles = host.positions(fit)
    for options in ({}, {"statistic": "U"}, {"metric": None, "scale": 0.3}, {"draw_chunk": 3}):
        found = ksd(*fit, **options)
        options.pop("draw_chunk", None)
        expected = stein_discrepancy(particles, conjugate_score(particles), **options)
        np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-9)
    assert ksd(*fit).statistic == "V" and ksd(*fit, num_samples=8).num_samples == 8
    np.testing.assert_array_equal(host.positions(fit), particles)
    with pytest.raises(ArgumentError, match="number of points, 8, found 9"):
        ksd(*fit, num_samples=9)
    if host.backend.name == "numpyro":
        with pytest.raises(ArgumentError, match="state of SVGD as the second argument"):
            ksd(fit[0])


def test_a_guide_is_drawn_from(host, y) -> None:
    ksd, metric = host.public.ksd, host.backend.array([0.3])
    options = {"metric": metric, **host.seed(0)}
    engine = host.conjugate_engine(1.5, 0.4, y, 10)
    found = ksd(*engine, **options)
    assert found.statistic == "U" and found.num_samples == 1000
    guide = host.conjugate_guide(y, 1.5, 0.4)
    of_guide = ksd(*guide, model=host.conjugate, args=(y,), **options)
    np.testing.assert_allclose(of_guide.value, found.value, rtol=1e-9)
    rng, expected, scales = np.random.default_rng(5), [], np.array([0.3])
    for _ in range(20):
        draws = 1.5 + 0.4 * rng.normal(size=(1000, 1))
        of_draws = stein_discrepancy(draws, conjugate_score(draws), statistic="U", metric=scales)
        expected.append(of_draws.value)
    assert abs(found.value - np.mean(expected)) < 4 * np.std(expected)
    assert np.mean(expected) > 8 * np.std(expected)
    few = ksd(*engine, num_samples=50)
    assert few.num_samples == 50 and few == ksd(*engine, num_samples=50)
    assert ksd(*engine, num_samples=50, **host.seed(1)) != few


def test_positions_come_with_a_target_or_a_model(host, y) -> None:
    positions = np.linspace(0.0, 2.0, 9)[:, None]
    expected = stein_discrepancy(positions, conjugate_score(positions))
    target, _ = host.backend.target(host.conjugate, (y, 10), data_chunk=16)
    for given in (positions, host.backend.array(positions)):
        found = host.public.ksd(given, target=target, args=(y, 10))
        np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    found = host.public.ksd(positions, model=host.conjugate, args=(y,), kwargs={"batch": 7})
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    assert found.statistic == "V"


def test_the_temperature_is_the_target_s_unless_given(host, y) -> None:
    positions = np.linspace(0.0, 2.0, 9)[:, None]
    target, _ = host.backend.target(host.conjugate, (y, 10), likelihood_temperature=4.0)
    for asked, temperature in ((None, 4.0), (4.0, 4.0), (1.0, 1.0), (2.5, 2.5)):
        found = host.public.ksd(
            positions, target=target, args=(y, 10), likelihood_temperature=asked
        )
        expected = stein_discrepancy(positions, conjugate_score(positions, temperature))
        np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    guide = host.conjugate_engine(1.5, 0.4, y, likelihood_temperature=4.0)
    options = {"metric": None, **host.seed(0)}
    own = host.public.ksd(*guide, **options)
    assert own == host.public.ksd(*guide, likelihood_temperature=4.0, **options)
    of_model = host.public.ksd(*guide, likelihood_temperature=1.0, **options)
    plain = host.public.ksd(*host.conjugate_engine(1.5, 0.4, y), **options)
    np.testing.assert_allclose(of_model.value, plain.value, rtol=1e-9)
    assert abs(own.value / of_model.value - 1) > 0.1


def test_local_latents_have_their_full_length(host) -> None:
    name, ksd, backend = "local_latents", host.public.ksd, host.backend
    arguments, options = backend.models.arguments(name), zoo.ZOO[name].options
    full = zoo.ZOO[name].full_options
    target, _ = backend.target(backend.models.build(name), arguments, options)
    whole, _ = backend.target(backend.models.build(name), arguments, full)
    positions = np.random.default_rng(4).normal(size=(6, target.dim))
    found = ksd(positions, target=target, args=arguments, kwargs=options)
    expected = ksd(positions, target=whole, args=arguments, kwargs=full)
    assert target.local_sites
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)


def test_one_particle_needs_no_whitening(host, y) -> None:
    positions = np.array([[0.7]])
    options = {"model": host.conjugate, "args": (y,)}
    with pytest.raises(ArgumentError, match="2 points for metric='whitened'"):
        host.public.ksd(positions, **options)
    score = conjugate_score(positions).item()
    found = host.public.ksd(positions, metric=None, **options)
    np.testing.assert_allclose(found.squared, score**2 + 1)


# -- refusals ------------------------------------------------------------------------------------


def test_bad_options_are_refused() -> None:
    positions, scores = points()
    for options, message in (
        ({"statistic": "W"}, "statistic to be one of"),
        ({"metric": "fisher"}, "'whitened', None or an array"),
        ({"metric": np.ones(2)}, r"3 positive finite scales.*shape \(2,\)"),
        ({"metric": np.array([1.0, 0.0, 1.0])}, "3 positive finite scales"),
        ({"scale": 0.0}, "scale to be a finite number > 0"),
        ({"scale": math.inf}, "scale to be a finite number > 0"),
        ({"block": 0}, "block to be an int"),
    ):
        with pytest.raises(ArgumentError, match=message):
            stein_discrepancy(positions, scores, **options)
    with pytest.raises(ArgumentError, match="2 points for the U-statistic"):
        stein_discrepancy(positions[:1], scores[:1], statistic="U", metric=None)
    with pytest.raises(ArgumentError, match=r"one shape \(P, D\)"):
        stein_discrepancy(positions, scores[:, :2])
    still = positions.copy()
    still[:, 1] = 0.1
    with pytest.raises(ArgumentError, match="1 of 3 coordinates that do not"):
        stein_discrepancy(still, scores)
    for name, broken in (("positions", positions.copy()), ("scores", scores.copy())):
        broken[2, 1] = math.nan
        both = (broken, scores) if name == "positions" else (positions, broken)
        with pytest.raises(ArgumentError, match=f"finite {name}, found 1 of 7"):
            stein_discrepancy(*both)


def test_what_cannot_be_a_fit_is_refused(host, y) -> None:
    positions = host.backend.array(np.zeros((4, 1)))
    target, _ = host.backend.target(host.conjugate, (y,))
    guide, engine = host.conjugate_guide(y, 0.0, 1.0), host.conjugate_engine(0.0, 1.0, y)
    given = {"target": target, "args": (y,)}
    of_model = {"model": host.conjugate, "args": (y,)}
    per_site = host.autoguide.AutoNormal(host.conjugate)
    zeros = host.backend.array(np.zeros((4, 2)))
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((positions,), {}, "found neither"),
        ((positions,), {"target": target, "model": host.conjugate}, "found both"),
        ((zeros,), given, r"\(P, 1\), found \(4, 2\)"),
        ((zeros[:, 0],), given, r"\(P, 1\), found \(4,\)"),
        (engine, {"target": target}, "found it with ProximalScoreVI"),
        (guide, {}, "Pass model="),
        ((per_site, *guide[1:]), of_model, "site by site"),
    ]
    if host.backend.name == "numpyro":
        cases.append(((positions, engine[1]), {"target": target}, "no state with positions"))
    for arguments, options, message in cases:
        with pytest.raises(ArgumentError, match=message):
            host.public.ksd(*arguments, **options)


# -- p-values ------------------------------------------------------------------------------------


def p_values(null: str, correlation: float, scale: float, number: int = 60) -> np.ndarray:
    """Of standard Normals that a chain of this correlation draws, times a scale."""
    draws, found = np.random.default_rng(11), []
    for _ in range(number):
        x = draws.normal(size=(200, 2))
        for row in range(1, len(x)):
            x[row] = correlation * x[row - 1] + math.sqrt(1.0 - correlation**2) * x[row]
        result = stein_discrepancy(scale * x, -scale * x, statistic="U", metric=None, null=null)
        assert result.p_value is not None
        found.append(result.p_value)
    return np.array(found)


def test_p_values_of_right_draws_are_seldom_small() -> None:
    """Below 0.1 in one of ten, with chains taken for what they are; and wrong draws are seen."""
    assert (p_values("independent", 0.0, 1.0) < 0.1).mean() < 0.25
    assert (p_values("chain", 0.8, 1.0) < 0.1).mean() < 0.25
    assert (p_values("independent", 0.8, 1.0) < 0.1).mean() > 0.5
    assert (p_values("independent", 0.0, 0.6, 20) < 0.05).all()
    assert (p_values("chain", 0.5, 0.4, 20) < 0.05).mean() > 0.8


def test_blocks_change_no_p_value() -> None:
    x, s = points()
    one, many = (stein_discrepancy(x, s, null="independent", block=size) for size in (64, 2))
    assert one.p_value == many.p_value
    with pytest.raises(ArgumentError, match="null"):
        stein_discrepancy(x, s, null="exact")


def test_particles_have_no_p_value() -> None:
    with pytest.raises(ArgumentError, match="no independent draws and no chain"):
        module.check_not_particles("independent", object())
    module.check_not_particles(None, object())
