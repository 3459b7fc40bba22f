"""The closed-form regression step for low-rank Normal guides in Pyro's package."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from torch.utils._python_dispatch import TorchDispatchMode

from ppl_ext.errors import ArgumentError
from pyro_ext.guides import flat_density
from pyro_ext.score import ProximalScoreVI
from pyro_ext.score.regression.base import restored, saved
from pyro_ext.score.regression.low_rank import (
    LowRankForm,
    LowRankMoments,
    LowRankRegression,
    frame_of,
    observed,
    updated_guide,
)
from pyro_ext.score.regression.pairs import Count, antithetic
from tests.low_rank_support import (
    covariance_of,
    divergence,
    example,
    factor_target,
    least_divergence,
    literal_step,
    other_target,
)
from tests.regression_support import noisy

torch.set_default_dtype(torch.float64)

DIM, RANK = 8, 2


def nothing_seen(dim: int, rank: int) -> LowRankRegression:
    shapes = [(dim,)] * 5 + [(dim, rank)] * 2 + [(rank, rank)] * 2
    return LowRankRegression(Count(), *(torch.zeros(*shape) for shape in shapes))


def moments_of(mean: Any, scale: Any, factor: Any) -> LowRankMoments:
    return LowRankMoments(*(torch.as_tensor(value) for value in (mean, scale, factor)))


def covariance(moments: LowRankMoments) -> np.ndarray:
    return covariance_of(moments.scale.numpy(), moments.factor.numpy())


@functools.cache
def fit(kind: Any, seed: int, level: float, pairs: int, decay: float = 0.9) -> float:
    """KL(q || target) after this many pairs with scores of relative noise."""
    target = kind(seed)
    precision = np.linalg.inv(target[1])
    generator = np.random.default_rng(seed + 1000)
    factor = generator.normal(size=(DIM, RANK))
    moments = moments_of(np.zeros(DIM), np.full(DIM, 0.1), factor)
    state = nothing_seen(DIM, RANK)
    for t in range(pairs):
        noise = torch.tensor(generator.normal(size=(1, DIM)))
        noise += torch.tensor(generator.normal(size=(1, RANK))) @ moments.factor.T
        theta = antithetic(moments.mean + moments.scale * noise, moments.mean)
        score = noisy((target[0] - theta.numpy()) @ precision, level, generator)
        state = observed(state, moments, theta, torch.tensor(score), decay)
        if t >= RANK + 5:
            state, moments = updated_guide(state, moments, 1.25)
    return divergence(moments.mean.numpy(), covariance(moments), target)


def of_the_family(seed: int) -> tuple[np.ndarray, np.ndarray]:
    return factor_target(DIM, RANK, seed)


def of_another_family(seed: int) -> tuple[np.ndarray, np.ndarray]:
    return other_target(DIM, seed)


def diagonal(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    variances = np.exp(generator.uniform(-2, 2, DIM))
    return 2 + generator.normal(size=DIM), np.diag(variances)


@pytest.mark.parametrize(
    ("dim", "rank", "trend", "trust"),
    [(6, 2, 1.3, 50.0), (6, 2, 1.3, 1.25), (5, 3, 0.3, 2.0), (4, 1, 3.0, 1.25)],
)
def test_step_agrees_with_its_definition(dim: int, rank: int, trend: float, trust: float) -> None:
    theta, score, mean, scale, factor = example(dim, rank, trend)
    moments, state = moments_of(mean, scale, factor), nothing_seen(dim, rank)
    for points, scores in zip(torch.tensor(theta), torch.tensor(score), strict=True):
        state = observed(state, moments, points, scores, 0.8)
    updated = updated_guide(state, moments, trust)[1]
    expected = literal_step(theta, score, mean, scale, factor, 0.8, trust)
    np.testing.assert_allclose(updated.mean, expected[0], rtol=1e-8)
    np.testing.assert_allclose(covariance(updated), expected[1], rtol=1e-7, atol=1e-9)


def test_coordinates_of_the_factor_are_standard() -> None:
    _, _, mean, scale, factor = example(5, 2, 1.0)
    moments = moments_of(mean, scale, factor)
    frame = frame_of(moments)
    sigma = torch.tensor(covariance(moments))
    torch.testing.assert_close(frame.to_factor.T @ sigma @ frame.to_factor, torch.eye(2))
    precision = torch.linalg.inv(sigma)
    torch.testing.assert_close(frame.from_factor.T @ precision @ frame.from_factor, torch.eye(2))
    torch.testing.assert_close(sigma @ frame.to_factor, frame.from_factor)


def test_what_was_seen_is_carried_to_the_next_factor() -> None:
    """What is known of a linear score stays exact, however often the basis turned."""
    target = of_another_family(0)
    precision = torch.tensor(np.linalg.inv(target[1]))
    generator = torch.Generator().manual_seed(0)
    moments = moments_of(np.zeros(DIM), np.ones(DIM), np.eye(DIM)[:, :RANK])
    state = nothing_seen(DIM, RANK)
    for t in range(30):
        noise = torch.randn(2, DIM, generator=generator)
        noise += torch.randn(2, RANK, generator=generator) @ moments.factor.T
        theta = antithetic(moments.mean + moments.scale * noise, moments.mean)
        score = (torch.tensor(target[0]) - theta) @ precision
        before = observed(state, moments, theta, score, 0.9)
        state, after = (before, moments) if t < 5 else updated_guide(before, moments, 1.25)
        turn = frame_of(moments).from_factor.T @ frame_of(after).to_factor
        torch.testing.assert_close(state.theta_factor, before.theta_factor @ turn)
        torch.testing.assert_close(state.factor, turn.T @ before.factor @ turn)
        turn = frame_of(moments).to_factor.T @ frame_of(after).from_factor
        torch.testing.assert_close(state.factor_score, turn.T @ before.factor_score @ turn)
        moments = after
    torch.testing.assert_close(state.score_factor, -precision @ state.theta_factor)
    # y is standard for the present guide, of which the averages are made by and by.
    assert (torch.linalg.eigvalsh(state.factor) - 1.0).abs().max() < 0.7


def test_warm_up_takes_a_pair_for_each_regressor_and_five() -> None:
    """The factor's coordinates and the coordinate itself are regressors."""

    def model() -> None:
        pyro.sample("z", dist.Normal(torch.zeros(DIM), 1.0).to_event(1))

    form = LowRankForm(flat_density(AutoLowRankMultivariateNormal(model, rank=RANK), seed=0))
    start = form.density.initial_parameters()
    state, parameters = form.initial(start), start
    generator = torch.Generator().manual_seed(0)
    for pairs in range(1, RANK + 7):
        theta = form.draw(parameters, generator, 2)
        state, parameters = form.update(state, parameters, theta, 1.0 - theta)
        same = [torch.equal(parameters[name], value) for name, value in start.items()]
        assert state.seen.num_pairs == pairs
        assert all(same) if pairs < RANK + 6 else not any(same)


def test_a_target_of_the_family_is_recovered() -> None:
    """Within a thousandth of a nat; what is left is what the averages have not yet forgotten."""
    for seed in range(3):
        assert -1e-9 < fit(of_the_family, seed, 0.0, 400, 0.6) < 1e-3


def test_any_other_target_is_fitted_as_well_as_the_family_can() -> None:
    """Within three thousandths of a nat of the smallest KL(q || target), which is not zero."""
    for seed in range(2):
        best = least_divergence(of_another_family(seed)[1], RANK)
        assert best > 8e-3
        assert -1e-9 < fit(of_another_family, seed, 0.0, 800, 0.6) - best < 3e-3


def test_a_target_without_factors() -> None:
    """A column of the least length costs 1e-6 / 4 nats."""
    assert fit(diagonal, 0, 0.0, 400) < 1e-5


def test_noise_is_averaged() -> None:
    early = sum(fit(of_the_family, seed, 1.0, 200) for seed in range(2))
    late = sum(fit(of_the_family, seed, 1.0, 1500) for seed in range(2))
    assert late < 0.4 * early


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.1, 1.0, 3.0, 10.0])
def test_no_level_of_noise_makes_it_diverge(level: float) -> None:
    """Better than the start, which is tens of nats away."""
    for seed in range(4):
        assert fit(of_the_family, seed, level, 5000) < fit(of_the_family, seed, 0.0, 0)


def test_a_program() -> None:
    """The engine on a host's program with a positive latent among its latents."""
    target = factor_target(4, 1, 3)

    def model() -> None:
        scale = torch.tensor(np.linalg.cholesky(target[1]))
        z = pyro.sample("z", dist.MultivariateNormal(torch.tensor(target[0]), scale_tril=scale))
        pyro.sample("x", dist.LogNormal(0.5 * z[0], 0.5))

    # The unconstrained x is Normal given z, so that all five latents together are.
    joint = np.zeros((5, 5))
    joint[:4, :4] = target[1]
    joint[4, :4] = joint[:4, 4] = 0.5 * target[1][0]
    joint[4, 4] = 0.25 * target[1][0, 0] + 0.25
    mean = np.append(target[0], 0.5 * target[0][0])
    guide = AutoLowRankMultivariateNormal(model, rank=2)
    engine = ProximalScoreVI(model, guide, solver="regression", seed=0)
    engine.run(400, progress_bar=False)
    found, root = (value.numpy() for value in engine.density.moments(engine._parameters))
    best = least_divergence(joint, 2)
    assert divergence(found, root @ root.T, (mean, joint)) < best + 1e-2


@pytest.mark.parametrize("rank", [3, 4])
def test_a_rank_that_spans_all_latents_is_refused(rank: int) -> None:
    def model() -> None:
        pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).to_event(1))

    guide = AutoLowRankMultivariateNormal(model, rank=rank)
    with pytest.raises(ArgumentError, match="below the number of latents, 3"):
        ProximalScoreVI(model, guide, solver="regression").run(1, progress_bar=False)


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def test_memory_is_linear_in_the_number_of_latents() -> None:
    dim = 500
    generator = torch.Generator().manual_seed(0)
    moments = moments_of(
        torch.zeros(dim), torch.ones(dim), torch.randn(dim, RANK, generator=generator)
    )
    state = nothing_seen(dim, RANK)
    with LargestTensor() as largest:
        for _ in range(5):
            theta = antithetic(torch.randn(2, dim, generator=generator), moments.mean)
            state = observed(state, moments, theta, -theta, 0.9)
        updated_guide(state, moments, 1.25)
    assert largest.elements <= 2 * RANK * dim


def test_saved_and_restored() -> None:
    _, _, mean, scale, factor = example(4, 2, 1.0)
    start = nothing_seen(4, 2)
    points, scores = torch.randn(2, 2, 4)
    state = observed(start, moments_of(mean, scale, factor), points, scores, 0.9)
    again = restored(start, saved(state))
    assert again.seen == state.seen
    for one, two in zip(again[1:], state[1:], strict=True):
        assert torch.equal(one, two)
