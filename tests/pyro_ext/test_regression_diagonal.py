"""The closed form for diagonal Normal guides in Pyro's package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_ext.guides import Moments
from pyro_ext.score.regression.base import restored, saved
from pyro_ext.score.regression.diagonal import (
    DiagonalForm,
    DiagonalRegression,
    observe,
    schedule,
    updated_moments,
)
from pyro_ext.score.regression.pairs import antithetic
from tests.regression_support import (
    curve,
    diagonal_loss,
    example,
    literal_diagonal_step,
    normal_target,
)

torch.set_default_dtype(torch.float64)


class Plain:
    """A density whose parameters are the moments."""

    def mean(self, parameters: dict[str, Tensor]) -> Tensor:
        return parameters["mean"]

    def moments(self, parameters: dict[str, Tensor]) -> Moments:
        return Moments(parameters["mean"], parameters["scale"])

    def set_moments(self, parameters: dict[str, Tensor], moments: Moments) -> dict[str, Tensor]:
        return {"mean": moments.mean, "scale": moments.scale}


# It has what the form asks of a guide's density, and is not one.
PLAIN: Any = Plain()


def fit(score: Callable[[Tensor], Tensor], mean: Tensor, total: int, known: bool = True) -> Moments:
    """The guide after ``total`` pairs of score(theta), from standard deviations of 0.1."""
    form = DiagonalForm(PLAIN)
    parameters = {"mean": mean, "scale": torch.full_like(mean, 0.1)}
    state = form.initial(parameters)
    for _ in range(total):
        draw = parameters["mean"] + parameters["scale"] * torch.randn(1, len(mean))
        theta = antithetic(draw, parameters["mean"])
        state, parameters = form.update(
            state, parameters, theta, score(theta), total if known else 0
        )
    return Moments(parameters["mean"], parameters["scale"])


def losses(level: float, total: int, seeds: int, known: bool = True) -> list[float]:
    """Nats lost on correlated Normal targets of three dimensions.

    Coordinates do not know each other, so that all targets are fitted as one long vector.
    """
    targets = [normal_target(3, seed) for seed in range(seeds)]
    target_means = torch.tensor(np.stack([mean for mean, _ in targets]))
    precisions = torch.tensor(np.stack([np.linalg.inv(covariance) for _, covariance in targets]))

    def score(theta: Tensor) -> Tensor:
        offset = target_means - theta.reshape(2, seeds, 3)
        exact = torch.einsum("kni,nij->knj", offset, precisions)
        size = level * exact.abs().amax(-1, keepdim=True)
        return (exact + size * torch.randn(exact.shape)).reshape(2, -1)

    torch.manual_seed(0)
    found = fit(score, torch.zeros(3 * seeds), total, known)
    means, scales = (moment.reshape(seeds, 3).numpy() for moment in found)
    return [
        diagonal_loss(mean, scale, *target)
        for mean, scale, target in zip(means, scales, targets, strict=True)
    ]


def empty(dim: int) -> DiagonalRegression:
    return DiagonalForm(PLAIN).initial({"mean": torch.zeros(dim)})


@pytest.mark.parametrize(
    ("total", "trust", "shared"),
    [
        (12, 50.0, 0.0),
        (20, 50.0, 0.0),
        (20, 1.25, 0.0),
        (600, 50.0, 0.0),
        (600, 50.0, 1e5),
        (0, 50.0, 0.0),
    ],
)
def test_one_update_agrees_with_its_definition(total: int, trust: float, shared: float) -> None:
    """Also where noise that the two scores of a pair share is great beside the posterior."""
    theta, score, mean, factor = example(20, 1.0)
    noise = np.random.default_rng(7).normal(size=(len(score), 1, 20)) * np.geomspace(1e-6, 1, 20)
    score = score + shared * noise
    scale = np.diagonal(factor).copy()
    moments, state = Moments(torch.tensor(mean), torch.tensor(scale)), empty(20)
    for t, (points, scores) in enumerate(zip(theta, score, strict=True)):
        now = schedule(t, total, 20)
        state = observe(state, moments, torch.tensor(points), torch.tensor(scores), 0.8, now)
    found = updated_moments(state, moments, now, trust)
    expected = literal_diagonal_step(theta, score, mean, scale, total, 0.8, trust)
    np.testing.assert_allclose(found.mean, expected[0], rtol=1e-10)
    np.testing.assert_allclose(found.scale, expected[1], rtol=1e-10)
    assert (np.abs(expected[0] - mean) > 1e-9).all() and (expected[1] != scale).all()


def test_no_update_before_six_pairs() -> None:
    form = DiagonalForm(PLAIN)
    parameters = {"mean": torch.zeros(2), "scale": torch.ones(2)}
    state = form.initial(parameters)
    for _ in range(6):
        assert float(parameters["mean"].abs().max()) == 0.0
        theta = antithetic(torch.randn(1, 2), torch.zeros(2))
        state, parameters = form.update(state, parameters, theta, 1.0 - theta, 100)
    assert (parameters["mean"] > 0).all()


def test_the_mean_moves_at_most_one_standard_deviation() -> None:
    scale = np.asarray([0.5, 2.0])
    moments, state = Moments(torch.zeros(2), torch.tensor(scale)), empty(2)
    for t in range(9):
        now = schedule(t, 12, 2)
        theta = antithetic(moments.scale * torch.randn(1, 2), moments.mean)
        state = observe(state, moments, theta, torch.tensor([1e4, -1e4]) - theta, 0.9, now)
    state = state._replace(score_noise=torch.zeros(2))
    found = updated_moments(state, moments, now, 1.25)
    np.testing.assert_allclose(found.mean, scale * [1, -1])


def test_the_temperature_rises_to_one_at_half_of_the_run() -> None:
    for dim, cold in ((10, 1.0), (50, 0.04), (1000, 1e-3)):
        found = [schedule(t, 200, dim).temperature for t in (0, 50, 100, 150)]
        np.testing.assert_allclose(found, [cold, cold**0.5, 1.0, 1.0])


def test_what_is_warm_stays_warm() -> None:
    """In a longer run that follows, where the schedule would be cold again."""
    dim, draws = 50, np.random.default_rng(0)
    form = DiagonalForm(PLAIN)
    parameters = {"mean": torch.zeros(dim), "scale": torch.ones(dim)}
    state = form.initial(parameters)
    for t in range(21):
        moments, before = form.density.moments(parameters), state
        theta = antithetic(
            moments.mean + moments.scale * torch.as_tensor(draws.normal(size=(1, dim))),
            moments.mean,
        )
        # Noise that the scores share, great enough to count by its root in the cold.
        score = 1e4 * torch.as_tensor(draws.normal(size=(1, dim))) - theta
        state, parameters = form.update(state, parameters, theta, score, 20 if t < 20 else 4000)
    now = schedule(20, 4000, dim)
    assert now.temperature < 0.1 and now.coldness > 0.9
    now = now._replace(temperature=1.0, coldness=0.0)
    seen = observe(before, moments, theta, score, form.decay, now)
    expected = updated_moments(seen, moments, now, form.trust)
    assert state.temperature == 1.0
    np.testing.assert_allclose(parameters["mean"], expected.mean, rtol=1e-9)
    np.testing.assert_allclose(parameters["scale"], expected.scale, rtol=1e-9)


def test_an_independent_normal_is_exact() -> None:
    """Without noise twenty time constants leave e^-20 of the start and e^-10 of the cold half."""
    scale, mean = torch.tensor([0.03, 0.3, 3.0, 0.1]), torch.tensor([0.2, -1.0, 4.0, -0.3])
    found = fit(lambda theta: (mean - theta) / scale.square(), torch.zeros(4), 300)
    np.testing.assert_allclose((found.mean - mean) / scale, 0.0, atol=1e-3)
    np.testing.assert_allclose(found.scale / scale, 1.0, atol=1e-3)


def test_a_correlated_normal_gets_the_diagonal_of_its_precision() -> None:
    """Draws make e noisy: a relative variance of about 20 / T in each precision."""
    assert max(losses(0.0, 1500, 10)) < 3 * 20 / 1500


def test_a_run_of_unknown_length_converges() -> None:
    assert max(losses(0.0, 3000, 10, known=False)) < 0.03


def test_noise_is_averaged() -> None:
    assert float(np.mean(losses(1.0, 3000, 10))) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.1, 1.0, 3.0, 10.0])
def test_no_level_of_noise_makes_it_diverge(level: float) -> None:
    """Within a nat of the best diagonal fit in twenty seeds."""
    assert max(losses(level, 50_000, 20)) < 1.0


def test_a_network_does_not_collapse_to_the_prior() -> None:
    """Its mean prediction follows the curve; the prior's is constant, with an error of one."""
    x, y = (torch.tensor(values) for values in curve(0))
    hidden = 20

    def predicted(theta: Tensor) -> Tensor:
        w1, b1, w2 = theta[..., : 3 * hidden].reshape(-1, 3, hidden).unbind(1)
        layer = torch.relu(x[None] * w1[:, None] + b1[:, None])
        return torch.einsum("snh,sh->sn", layer, w2)

    def score(theta: Tensor) -> Tensor:
        theta = theta.clone().requires_grad_()
        rows, log_noise = torch.randperm(100)[:20], theta[:, -1]
        residual = (y - predicted(theta))[:, rows] / log_noise.exp()[:, None]
        likelihood = -0.5 * residual.square().sum(1) - len(rows) * log_noise
        prior = -0.5 * theta[:, :-1].square().sum(1) - 0.5 * log_noise.exp().square() + log_noise
        return torch.autograd.grad((5 * likelihood + prior).sum(), theta)[0]

    torch.manual_seed(1)
    found = fit(score, torch.randn(3 * hidden + 1), 1500)
    draws = found.mean + found.scale * torch.randn(200, len(found.mean))
    assert float((predicted(draws).mean(0) - y).square().mean().sqrt()) < 0.4


def test_saved_and_restored() -> None:
    form = DiagonalForm(PLAIN)
    parameters = {"mean": torch.zeros(2), "scale": torch.ones(2)}
    start = form.initial(parameters)
    state, _ = form.update(start, parameters, torch.randn(2, 2), torch.randn(2, 2), 10)
    again = restored(start, saved(state))
    assert again.seen == state.seen and type(again.seen) is type(state.seen)
    for one, two in zip(again[1:], state[1:], strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(two))
