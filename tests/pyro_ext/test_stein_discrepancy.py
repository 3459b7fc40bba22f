"""Kernelised Stein discrepancy of particles, guides and positions for Pyro models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import Tensor

from ppl_ext.errors import ArgumentError
from pyro_ext import SVGD, DeepEnsemble, LogDensity, ProximalScoreVI, ksd
from pyro_ext.diagnostics import stein_discrepancy as module
from pyro_ext.diagnostics.stein_discrepancy import SteinDiscrepancy, stein_discrepancy
from pyro_ext.engine import seeded_generator
from pyro_ext.guides import Moments, flat_density
from tests.models import pyro_models, zoo

torch.set_default_dtype(torch.float64)

P, D = 7, 3
N = 40
Y = torch.linspace(-2.0, 4.0, N) + torch.linspace(0.0, 3.0, N).sin()


def conjugate(y: Tensor, batch: int | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", len(y), subsample_size=batch) as rows:
        pyro.sample("y", dist.Normal(mu, 2.0), obs=y[rows])


def conjugate_score(mu: Tensor, temperature: float = 1.0) -> Tensor:
    return -mu / 9 + (Y.sum() - N * mu) / 4 / temperature


def conjugate_guide() -> AutoMultivariateNormal:
    guide = AutoMultivariateNormal(conjugate)
    density = flat_density(guide, (Y,))
    moments = Moments(torch.tensor([1.5]), torch.tensor([[0.4]]))
    density.write_back(density.set_moments(density.initial_parameters(), moments))
    return guide


def points(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Positions and scores that have nothing to do with each other."""
    draws = np.random.default_rng(seed)
    return torch.tensor(draws.normal(size=(P, D))), torch.tensor(draws.normal(size=(P, D)))


def stein_kernel_by_differentiation(x: Tensor, y: Tensor, s: Tensor, t: Tensor, c: float) -> float:
    """k0(x, y) from the definition, with the derivatives of k by automatic differentiation."""

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return (c**2 + (x - y).square().sum()) ** -0.5

    gradients = torch.autograd.functional.jacobian(kernel, (x, y))
    mixed = torch.autograd.functional.hessian(kernel, (x, y))[0][1]
    return float(
        kernel(x, y) * (s @ t) + s @ gradients[1] + t @ gradients[0] + mixed.diagonal().sum()
    )


def slow_discrepancy(positions: Tensor, scores: Tensor, statistic: str, c: float) -> float:
    """The statistic itself, squared, by a double loop."""
    num = len(positions)
    pairs = [(i, j) for i in range(num) for j in range(num) if i != j or statistic == "V"]
    values = [
        stein_kernel_by_differentiation(positions[i], positions[j], scores[i], scores[j], c)
        for i, j in pairs
    ]
    return sum(values) / len(values)


# -- from positions and scores -------------------------------------------------------------------


@pytest.mark.parametrize("statistic", ["U", "V"])
@pytest.mark.parametrize("metric", [None, "whitened", "given"])
def test_it_agrees_with_the_definition(statistic: str, metric: str | None) -> None:
    positions, scores = points()
    given = torch.tensor([0.5, 2.0, 3.0])
    scales = {None: torch.ones(D), "whitened": positions.std(0), "given": given}[metric]
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
    positions = torch.tensor([[0.0], [1.0]])
    found = stein_discrepancy(positions, torch.tensor([[3.0], [-3.0]]), statistic="U", metric=None)
    expected = slow_discrepancy(positions, torch.tensor([[3.0], [-3.0]]), "U", 1.0)
    assert found.squared < 0 and found.value == -math.sqrt(-found.squared)
    np.testing.assert_allclose(found.squared, expected)


def test_one_point_alone() -> None:
    """|s|^2/c + D/c^3."""
    found = stein_discrepancy(
        torch.tensor([[5.0, 1.0]]), torch.tensor([[3.0, 4.0]]), metric=None, scale=2.0
    )
    np.testing.assert_allclose(found.squared, 25 / 2 + 2 / 8)


@pytest.mark.parametrize("block", [1, 5, 64, 1024])
def test_blocks_do_not_change_the_result(block: int) -> None:
    draws = np.random.default_rng(1)
    positions, scores = torch.tensor(draws.normal(size=(2, 64, 5)))
    for statistic in ("U", "V"):
        whole = stein_discrepancy(positions, scores, statistic=statistic)
        parts = stein_discrepancy(positions, scores, statistic=statistic, block=block)
        np.testing.assert_allclose(parts.squared, whole.squared, rtol=1e-11)


def test_no_array_of_pairs_is_larger_than_a_block(monkeypatch) -> None:
    shapes = []
    kernel = module._stein_kernel

    def recorded(*arguments: Any) -> Tensor:
        shapes.append(tuple(kernel(*arguments).shape))
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
        found = stein_discrepancy(
            torch.tensor(z), torch.tensor(-z @ precision), statistic="U", metric=None
        )
        values.append(found.squared)
    error = np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values)) < 4 * error
    # The trace term alone is far larger: its omission or a wrong sign would show.
    assert error < 0.01


@pytest.mark.parametrize("metric", [None, "whitened"])
def test_it_grows_when_draws_are_shifted_or_shrunk(metric: str | None) -> None:
    z = torch.tensor(np.random.default_rng(3).normal(size=(400, 2)))

    def of(draws: Tensor) -> float:
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
    units = torch.tensor([1e-3, 1.0, 1e4])
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
    positions = torch.tensor(np.repeat(100.0 * draws.normal(size=(2, 37)), 2, axis=0))
    scores = torch.tensor(draws.normal(size=(4, 37)))
    found = stein_discrepancy(positions, scores, metric=None, scale=1e-6)
    expected = slow_discrepancy(positions, scores, "V", 1e-6)
    np.testing.assert_allclose(found.squared, expected, rtol=1e-9)


# -- from fits -----------------------------------------------------------------------------------


def test_particles_are_taken_as_they_are() -> None:
    engine = SVGD(conjugate, pyro.optim.Adam({"lr": 0.1}), num_particles=8, seed=0)
    engine.run(5, Y, 10, progress_bar=False)
    particles = engine.particles
    for options in ({}, {"statistic": "U"}, {"metric": None, "scale": 0.3}, {"draw_chunk": 3}):
        found = ksd(engine, **options)
        options.pop("draw_chunk", None)
        expected = stein_discrepancy(particles, conjugate_score(particles), **options)
        np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-9)
    assert ksd(engine).statistic == "V" and ksd(engine, num_samples=8).num_samples == 8
    assert torch.equal(engine.particles, particles)
    with pytest.raises(ArgumentError, match="number of points, 8, found 9"):
        ksd(engine, num_samples=9)


def test_a_guide_is_drawn_from() -> None:
    guide = conjugate_guide()
    engine = ProximalScoreVI(conjugate, guide, seed=0)
    engine.setup(Y, 10)
    found = ksd(engine, metric=torch.tensor([0.3]))
    assert found.statistic == "U" and found.num_samples == 1000
    of_guide = ksd(guide, model=conjugate, args=(Y,), metric=torch.tensor([0.3]))
    np.testing.assert_allclose(of_guide.value, found.value, rtol=1e-9)
    draws = 1.5 + 0.4 * torch.randn(4000, 1, generator=seeded_generator(5))
    expected = stein_discrepancy(
        draws, conjugate_score(draws), statistic="U", metric=torch.tensor([0.3])
    )
    many = ksd(engine, metric=torch.tensor([0.3]), num_samples=4000)
    assert abs(many.value / expected.value - 1) < 0.1 and expected.value > 0.3
    assert ksd(engine, num_samples=50).num_samples == 50
    assert ksd(engine, num_samples=50, seed=1) != ksd(engine, num_samples=50)


def test_positions_come_with_a_target_or_a_model() -> None:
    positions = torch.linspace(0.0, 2.0, 9).unsqueeze(1)
    expected = stein_discrepancy(positions, conjugate_score(positions))
    target = LogDensity(conjugate, (Y, 10), data_chunk=16)
    for given in (positions, positions.numpy()):
        found = ksd(given, target=target, args=(Y, 10))
        np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    found = ksd(positions, model=conjugate, args=(Y,), kwargs={"batch": 7})
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    assert found.statistic == "V"


def test_the_temperature_is_the_target_s_unless_given() -> None:
    positions = torch.linspace(0.0, 2.0, 9).unsqueeze(1)
    target = LogDensity(conjugate, (Y, 10), likelihood_temperature=4.0)
    for asked, temperature in ((None, 4.0), (4.0, 4.0), (1.0, 1.0), (2.5, 2.5)):
        found = ksd(positions, target=target, args=(Y, 10), likelihood_temperature=asked)
        expected = stein_discrepancy(positions, conjugate_score(positions, temperature))
        np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)


def test_local_latents_have_their_full_length() -> None:
    name = "local_latents"
    arguments, options = pyro_models.arguments(name), zoo.ZOO[name].options
    target = LogDensity(pyro_models.build(name), arguments, options)
    whole = LogDensity(pyro_models.build(name), arguments, zoo.ZOO[name].full_options)
    positions = torch.tensor(np.random.default_rng(4).normal(size=(6, target.dim)))
    found = ksd(positions, target=target, args=arguments, kwargs=options)
    expected = ksd(positions, target=whole, args=arguments, kwargs=zoo.ZOO[name].full_options)
    assert target.local_sites
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)


def test_an_ensemble_of_one_needs_no_whitening() -> None:
    engine = DeepEnsemble(conjugate, pyro.optim.Adam({"lr": 0.1}), num_particles=1, seed=0)
    engine.setup(Y)
    with pytest.raises(ArgumentError, match="2 points for metric='whitened'"):
        ksd(engine)
    score = float(conjugate_score(engine.particles))
    np.testing.assert_allclose(ksd(engine, metric=None).squared, score**2 + 1)


# -- refusals ------------------------------------------------------------------------------------


def test_bad_options_are_refused() -> None:
    positions, scores = points()
    for options, message in (
        ({"statistic": "W"}, "statistic to be one of"),
        ({"metric": "fisher"}, "'whitened', None or a tensor"),
        ({"metric": torch.ones(2)}, r"3 positive finite scales.*shape \(2,\)"),
        ({"metric": torch.tensor([1.0, 0.0, 1.0])}, "3 positive finite scales"),
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
    still = positions.clone()
    still[:, 1] = 0.1
    with pytest.raises(ArgumentError, match="1 of 3 coordinates that do not"):
        stein_discrepancy(still, scores)
    scores[2, 1] = math.nan
    with pytest.raises(ArgumentError, match="finite scores, found 1 of 7"):
        stein_discrepancy(positions, scores)


def test_what_cannot_be_a_fit_is_refused() -> None:
    positions = torch.zeros(4, 1)
    target = LogDensity(conjugate, (Y,))
    guide = conjugate_guide()
    engine = ProximalScoreVI(conjugate, guide, seed=0)
    engine.setup(Y)
    for arguments, options, message in (
        ((positions,), {}, "found neither"),
        ((positions,), {"target": target, "model": conjugate}, "found both"),
        ((torch.zeros(4, 2),), {"target": target, "args": (Y,)}, r"\(P, 1\), found \(4, 2\)"),
        ((torch.zeros(4),), {"target": target, "args": (Y,)}, r"\(P, 1\), found \(4,\)"),
        ((engine,), {"target": target}, "found it with ProximalScoreVI"),
        ((guide,), {}, "Pass model="),
        ((AutoNormal(conjugate),), {"model": conjugate, "args": (Y,)}, "site by site"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ksd(*arguments, **options)
