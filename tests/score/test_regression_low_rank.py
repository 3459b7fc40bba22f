"""The closed-form regression step for low-rank Normal guides, in both packages."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from ppl_ext.score_matching.regression.low_rank import LowRankMoments
from tests.backends import use_float64
from tests.closed_form_support import density_of, fitter, lost_nats, mirrored
from tests.guides_support import check_close, divergence, normal
from tests.kernel_support import largest_array
from tests.low_rank_support import (
    covariance_of,
    example,
    factor_target,
    least_divergence,
    literal_step,
    other_target,
)
from tests.score_support import GuideRun, guide_of, room

use_float64()
pytestmark = pytest.mark.formula

DIM, RANK = 8, 2


class Step:
    """The two halves of an iteration, each one program for all tests."""

    def __init__(self, face: Any) -> None:
        self.face, self.form = face, room(face, "score.regression").CLOSED_FORMS["low_rank"]
        self.observed, self.updated = (
            face.backend.compiled(each) for each in (self.form.observed, self.form.updated_guide)
        )

    def moments(self, mean: Any, scale: Any, factor: Any) -> Any:
        """The guide's moments, of the framework."""
        return LowRankMoments(*map(self.face.array, (mean, scale, factor)))

    def nothing_seen(self, dim: int, rank: int) -> Any:
        """The state before any scores."""
        density = density_of(self.face, "low_rank", dim, rank=rank)
        return self.form(density).initial(density.initial_parameters())

    def observe(self, state: Any, moments: Any, theta: Any, score: Any, decay: float) -> Any:
        """The state with these scores."""
        return self.observed(state, moments, self.face.array(theta), self.face.array(score), decay)


@cache
def step_of(face: Any) -> Step:
    return Step(face)


def covariance(face: Any, moments: Any) -> np.ndarray:
    return covariance_of(face.numpy(moments.scale), face.numpy(moments.factor))


def of_the_family(seed: int) -> tuple[np.ndarray, np.ndarray]:
    return factor_target(DIM, RANK, seed)


def of_another_family(seed: int) -> tuple[np.ndarray, np.ndarray]:
    return other_target(DIM, seed)


def diagonal(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    variances = np.exp(generator.uniform(-2, 2, DIM))
    return 2 + generator.normal(size=DIM), np.diag(variances)


@cache
def fit(face: Any, kind: Any, seed: int, level: float, pairs: int, decay: float = 0.9) -> float:
    """KL(q || target) after this many pairs with scores of relative noise."""
    form = fitter(face, "low_rank", DIM, rank=RANK)
    factor = np.random.default_rng(seed + 1000).normal(size=(DIM, RANK))
    values = {"loc": np.zeros(DIM), "scale": np.full(DIM, 0.1), "cov_factor": factor}
    start = face.constrained(form.density, values)
    return lost_nats(form, start, kind(seed), level, seed, pairs, total=0, decay=decay)


@pytest.mark.in_both_packages
@pytest.mark.parametrize(
    ("dim", "rank", "trend", "trust"),
    [(6, 2, 1.3, 50.0), (6, 2, 1.3, 1.25), (5, 3, 0.3, 2.0), (4, 1, 3.0, 1.25)],
)
def test_step_agrees_with_its_definition(
    face: Any, dim: int, rank: int, trend: float, trust: float
) -> None:
    theta, score, mean, scale, factor = example(dim, rank, trend)
    step = step_of(face)
    moments, state = step.moments(mean, scale, factor), step.nothing_seen(dim, rank)
    for points, scores in zip(theta, score, strict=True):
        state = step.observe(state, moments, points, scores, 0.8)
    updated = step.updated(state, moments, trust)[1]
    expected = literal_step(theta, score, mean, scale, factor, 0.8, trust)
    np.testing.assert_allclose(face.numpy(updated.mean), expected[0], rtol=1e-8)
    np.testing.assert_allclose(covariance(face, updated), expected[1], rtol=1e-7, atol=1e-9)


def test_coordinates_of_the_factor_are_standard(face: Any) -> None:
    _, _, mean, scale, factor = example(5, 2, 1.0)
    step = step_of(face)
    moments = step.moments(mean, scale, factor)
    frame, sigma = face.numpy(step.form.frame_of(moments)), covariance(face, moments)
    inside = frame.from_factor.T @ np.linalg.inv(sigma) @ frame.from_factor
    found = frame.to_factor.T @ sigma @ frame.to_factor, inside, sigma @ frame.to_factor
    check_close(found, (np.eye(2), np.eye(2), frame.from_factor), rtol=1e-10, atol=1e-12)


def test_what_was_seen_is_carried_to_the_next_factor(face: Any) -> None:
    """What is known of a linear score stays exact, however often the basis turned."""
    target, step, generator = of_another_family(0), step_of(face), np.random.default_rng(0)
    precision, frame_of = np.linalg.inv(target[1]), face.backend.compiled(step.form.frame_of)
    moments = step.moments(np.zeros(DIM), np.ones(DIM), np.eye(DIM)[:, :RANK])
    state = step.nothing_seen(DIM, RANK)
    for t in range(30):
        mean, root = face.numpy(moments.mean), np.linalg.cholesky(covariance(face, moments))
        theta = mirrored(mean + generator.normal(size=(2, DIM)) @ root.T, mean)
        before = step.observe(state, moments, theta, (target[0] - theta) @ precision, 0.9)
        state, after = (before, moments) if t < 5 else step.updated(before, moments, 1.25)
        old, new = (face.numpy(frame_of(each)) for each in (moments, after))
        known, seen = face.numpy(before), face.numpy(state)
        turn = old.from_factor.T @ new.to_factor
        back = old.to_factor.T @ new.from_factor
        found = seen.theta_factor, seen.factor, seen.factor_score
        expected = (
            known.theta_factor @ turn,
            turn.T @ known.factor @ turn,
            back.T @ known.factor_score @ back,
        )
        check_close(found, expected, rtol=1e-7, atol=1e-10)
        moments = after
    check_close([seen.score_factor], [-precision @ seen.theta_factor], rtol=1e-7, atol=1e-9)
    # y is standard for the present guide, of which the averages are made by and by.
    assert np.abs(np.linalg.eigvalsh(seen.factor) - 1.0).max() < 0.7


def test_warm_up_takes_a_pair_for_each_regressor_and_five(face: Any) -> None:
    """The factor's coordinates and the coordinate itself are regressors."""
    form = fitter(face, "low_rank", DIM, rank=RANK)
    start = face.random(form.density, 0.3)
    state, values = form.form.initial(start), face.numpy(start)
    for pairs in range(1, RANK + 7):
        theta = normal(pairs, 1, DIM)
        theta = mirrored(theta, face.numpy(form.density.mean(start)))
        state, moved = form.update(state, start, theta, 1.0 - theta)
        same = [np.array_equal(face.numpy(moved[name]), values[name]) for name in values]
        assert int(state.seen.num_pairs) == pairs
        assert all(same) if pairs < RANK + 6 else not any(same)


def test_a_target_of_the_family_is_recovered(face: Any) -> None:
    """Within a thousandth of a nat; what is left is what the averages have not yet forgotten."""
    for seed in range(3):
        assert -1e-9 < fit(face, of_the_family, seed, 0.0, 400, 0.6) < 1e-3


@pytest.mark.in_one_package
def test_any_other_target_is_fitted_as_well_as_the_family_can(face: Any) -> None:
    """Within three thousandths of a nat of the smallest KL(q || target), which is not zero."""
    for seed in range(2):
        best = least_divergence(of_another_family(seed)[1], RANK)
        assert best > 8e-3
        assert -1e-9 < fit(face, of_another_family, seed, 0.0, 800, 0.6) - best < 3e-3


def test_a_target_without_factors(face: Any) -> None:
    """A column of the least length costs 1e-6 / 4 nats."""
    assert fit(face, diagonal, 0, 0.0, 400) < 1e-5


@pytest.mark.slow
def test_noise_is_averaged(face: Any) -> None:
    early = sum(fit(face, of_the_family, seed, 1.0, 200) for seed in range(2))
    late = sum(fit(face, of_the_family, seed, 1.0, 1500) for seed in range(2))
    assert late < 0.4 * early


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.1, 1.0, 3.0, 10.0])
def test_no_level_of_noise_makes_it_diverge(face: Any, level: float) -> None:
    """Better than the start, which is tens of nats away."""
    for seed in range(4):
        start = fit(face, of_the_family, seed, 0.0, 0)
        assert fit(face, of_the_family, seed, level, 5000) < start


@pytest.mark.in_both_packages
def test_a_program(face: Any) -> None:
    """The engine on a host's program with a positive latent among its latents."""
    target = factor_target(4, 1, 3)

    def model() -> None:
        normal = face.dist.MultivariateNormal(*map(face.array, target))
        z = face.host.sample("z", normal)
        face.host.sample("x", face.dist.LogNormal(0.5 * z[0], 0.5))

    # The unconstrained x is Normal given z, so that all five latents together are.
    joint = np.zeros((5, 5))
    joint[:4, :4] = target[1]
    joint[4, :4] = joint[:4, 4] = 0.5 * target[1][0]
    joint[4, 4] = 0.25 * target[1][0, 0] + 0.25
    mean = np.append(target[0], 0.5 * target[0][0])
    guide = guide_of(face, "AutoLowRankMultivariateNormal", model, rank=2)
    run = GuideRun(face, model, guide, solver="regression").run(400)
    best = least_divergence(joint, 2)
    assert divergence(run.moments[0], run.covariance, mean, joint) < best + 1e-2


@pytest.mark.in_both_packages
def test_memory_is_linear_in_the_number_of_latents(face: Any) -> None:
    dim, step = 500, step_of(face)
    moments = step.moments(np.zeros(dim), np.ones(dim), normal(0, dim, RANK))
    state, draws = step.nothing_seen(dim, RANK), mirrored(normal(1, 2, dim), 0.0)

    def both(state: Any, moments: Any, theta: Any) -> Any:
        for _ in range(5):
            state = step.form.observed(state, moments, theta, -theta, 0.9)
        return step.form.updated_guide(state, moments, 1.25)

    given = state, moments, face.array(draws)
    assert largest_array(face.backend, both, *given) <= 2 * RANK * dim
