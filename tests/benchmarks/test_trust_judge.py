"""Right and wrong draws are told apart: false alarms and power of the judge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.trust.effective import autocorrelation_time, distinct, effective_number
from benchmarks.trust.judge import (
    Judgement,
    is_unstable,
    judge,
    kolmogorov_distances,
    quantile_tolerances,
)

Floats = NDArray[np.float64]
Sampler = Callable[[np.random.Generator, tuple[int, int]], Floats]

SHAPES: dict[str, Sampler] = {
    "Normal": lambda generator, size: generator.normal(size=size),
    "Exponential": lambda generator, size: generator.exponential(size=size),
    "Cauchy": lambda generator, size: generator.standard_cauchy(size=size),
    "t with 3 df": lambda generator, size: generator.standard_t(3, size=size),
    "lognormal": lambda generator, size: generator.lognormal(0.0, 1.5, size=size),
    "two modes": lambda generator, size: (
        generator.normal(size=size) + 10.0 * (generator.random(size) < 0.2)
    ),
    "U-shaped": lambda generator, size: generator.beta(0.5, 0.5, size=size),
}


def columns(draws: Floats) -> dict[str, Floats]:
    """By name."""
    return {f"x{i}": column for i, column in enumerate(draws.T)}


def judged(draws: Floats, reference: Floats) -> Judgement:
    return judge(columns(draws), columns(reference))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dim", [1, 20])
def test_exact_draws_are_right(shape: str, dim: int) -> None:
    """Of 400 at least 99 % are, as of more."""
    generator = np.random.default_rng(1)
    reference = SHAPES[shape](generator, (4_000, dim))
    for number, runs in ((400, 100), (4_000, 10)):
        wrong = [
            found.reasons
            for _ in range(runs)
            if not (found := judged(SHAPES[shape](generator, (number, dim)), reference)).right
        ]
        assert len(wrong) <= 0.01 * runs, wrong


def test_slow_chains_of_400_effective_draws_are_right() -> None:
    """An autoregression with an integrated time of 10, four chains one after the other."""
    generator = np.random.default_rng(2)
    factor = 9.0 / 11.0
    noise = generator.normal(size=(1_200, 4, 50)) * np.sqrt(1.0 - factor**2)
    noise[0] /= np.sqrt(1.0 - factor**2)
    for step in range(1, len(noise)):
        noise[step] += factor * noise[step - 1]
    chains = noise[:1_000].transpose(1, 0, 2).reshape(4_000, 50)
    numbers = effective_number(chains)
    np.testing.assert_allclose(np.median(numbers), 400.0, rtol=0.15)
    reference = generator.normal(size=(4_000, 1))
    wrong = [run for run in range(50) if not judged(chains[:, [run]], reference).right]
    assert len(wrong) <= 1


WRONG: dict[str, Callable[[Floats, np.random.Generator], Floats]] = {
    "shifted by 0.3 sd": lambda z, _: z + 0.3 * np.eye(len(z.T))[0],
    "sd ratio 0.7": lambda z, _: z * np.where(np.arange(len(z.T)) == 0, 0.7, 1.0),
    "sd ratio 1.4": lambda z, _: z * np.where(np.arange(len(z.T)) == 0, 1.4, 1.0),
    "tail cut": lambda z, _: np.where(np.abs(z) > 1.5, 1.5 * np.sign(z) * np.abs(z) ** -1.0, z),
    "not finite": lambda z, _: np.where(np.arange(len(z))[:, None] == 7, np.nan, z),
    "infinite": lambda z, _: np.where(np.arange(len(z))[:, None] == 7, np.inf, z),
    "collapsed": lambda z, _: 0.0 * z,
    # Mean and standard deviation are right.
    "two spikes": lambda z, _: np.sign(z),
}


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize(("number", "dim"), [(400, 1), (1_000, 1), (1_000, 10), (4_000, 100)])
def test_wrong_draws_are_wrong(fault: str, number: int, dim: int) -> None:
    generator = np.random.default_rng(3)
    found = []
    for _ in range(20 if dim < 100 else 5):
        reference = generator.normal(size=(10_000, dim))
        found.append(
            judged(WRONG[fault](generator.normal(size=(number, dim)), generator), reference)
        )
    # At 400 effective draws a shift of 0.3 is six standard errors, of which the rule allows three.
    least = 0.9 if number == 400 else 1.0
    assert np.mean([not judgement.right for judgement in found]) >= least
    assert all(judgement.reasons for judgement in found if not judgement.right)


def test_a_tail_cut_at_two_deviations_is_wrong() -> None:
    """Both tails, of 5 % of the mass together: the standard deviation is 0.88 of the true one."""
    generator = np.random.default_rng(4)
    for _ in range(20):
        draws = generator.normal(size=(30_000, 1))
        found = judged(draws[np.abs(draws) < 2.0][:, None], generator.normal(size=(20_000, 1)))
        assert not found.right and found.deviation is not None
        assert found.deviation.is_out and abs(found.deviation.value - 0.88) < 0.02


@pytest.mark.parametrize("weight", [0.5, 0.8])
def test_one_mode_of_two_is_wrong(weight: float) -> None:
    generator = np.random.default_rng(5)
    reference = generator.normal(size=(4_000, 2))
    reference[generator.random(4_000) > weight] += 10.0
    for number in (400, 4_000):
        assert not judged(generator.normal(size=(number, 2)), reference).right


@pytest.mark.parametrize("shape", ["Cauchy", "t with 3 df", "lognormal"])
def test_heavy_tails_are_judged_by_quantiles(shape: str) -> None:
    """And faults of the size that moments would have are seen."""
    generator = np.random.default_rng(6)
    reference = SHAPES[shape](generator, (10_000, 1))
    quartiles = np.quantile(reference, [0.25, 0.5, 0.75])
    width = (quartiles[2] - quartiles[0]) / 1.35
    for change in (lambda x: x + 0.3 * width, lambda x: quartiles[1] + 0.7 * (x - quartiles[1])):
        found = judged(change(SHAPES[shape](generator, (4_000, 1))), reference)
        assert found.by_quantiles == ("x0",) and found.mean is None and found.deviation is None
        assert not found.right and found.quantile is not None


def test_moments_are_known_of_light_tails() -> None:
    generator = np.random.default_rng(7)
    for size in (1_000, 10_000):
        light = ["Normal", "two modes", "U-shaped"] + ["Exponential"] * (size > 9_000)
        for shape in light:
            draws = [SHAPES[shape](generator, (size, 1))[:, 0] for _ in range(20)]
            assert np.mean([is_unstable(column) for column in draws]) <= 0.05
        for shape in ("Cauchy", "t with 3 df", "lognormal"):
            draws = [SHAPES[shape](generator, (size, 1))[:, 0] for _ in range(20)]
            assert np.mean([is_unstable(column) for column in draws]) >= (
                0.9 if size < 9_000 else 1
            )


def test_figures_by_hand() -> None:
    reference = np.repeat(np.array([0.0, 1.0, 2.0, 3.0]), 1_000)
    draws = np.repeat(np.array([1.0, 2.0, 3.0, 4.0]), 1_000)
    rows = np.random.default_rng(0).permutation(4_000)
    found = judge({"x": draws[rows]}, {"x": reference[rows]}, effective=4_000)
    deviation = np.sqrt(1.25)
    assert found.mean is not None and found.deviation is not None and found.kolmogorov is not None
    np.testing.assert_allclose(found.mean.value, 1.0 / deviation)
    np.testing.assert_allclose(found.deviation.value, 1.0)
    np.testing.assert_allclose(found.kolmogorov.value, 0.25)
    assert found.figures()["mean error of"] == "x" and not found.right
    assert kolmogorov_distances(np.zeros((5, 1)), np.ones((5, 1)))[0] == 1.0
    # Density of a standard Normal at its median, times 0.1.
    np.testing.assert_allclose(quantile_tolerances()[2], 0.0398942, rtol=1e-5)
    np.testing.assert_allclose(quantile_tolerances()[0], 0.1 * 1.6449 * 0.10314, rtol=1e-4)


def test_a_constant_of_the_reference_must_be_met() -> None:
    generator = np.random.default_rng(8)
    free = generator.normal(size=1_000)
    fixed = {"x": free, "one": np.ones(1_000)}
    assert judge(fixed, fixed, effective=1_000, reference_effective=1_000).right
    assert not judge({"x": free, "one": free}, fixed).right
    assert judge({"one": np.ones(9)}, {"one": np.ones(9)}).right


def test_what_cannot_be_judged_is_refused() -> None:
    good = {"x": np.arange(9.0)}
    with pytest.raises(ValueError, match="found none of y"):
        judge(good, {"y": np.arange(9.0)})
    with pytest.raises(ValueError, match="finite"):
        judge(good, {"x": np.full(9, np.nan)})
    with pytest.raises(ValueError, match="one length"):
        judge({"x": np.zeros(1)}, good)


def test_effective_numbers() -> None:
    generator = np.random.default_rng(9)
    independent = generator.normal(size=(4_000, 3))
    assert (effective_number(independent) > 3_500).all()
    # Resampled out of a thousand: 1 / (1 / 4,000 + 1 / 1,000).
    np.testing.assert_allclose(distinct(generator.integers(0, 1_000, 4_000) * 1.0), 800, rtol=0.05)
    # Chains that have not met, one after the other.
    apart = generator.normal(size=(4, 1_000, 1)) + np.array([0.0, 9.0, 0.0, 9.0])[:, None, None]
    assert effective_number(apart.reshape(4_000, 1))[0] < 20
    assert autocorrelation_time(np.ones((10, 1)))[0] == 10.0
