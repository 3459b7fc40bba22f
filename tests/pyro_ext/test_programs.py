"""Programs that Pyro allows and that took another way than most: as fast, and right."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_ext import LogDensity, ModelCheckError, fit
from pyro_ext.graphs.own_buffers import OwnBuffers

ROWS = torch.linspace(-1.5, 1.5, 12)


def ordered(x: Tensor) -> None:
    """Pyro's ordered logistic writes its probabilities into zeros."""
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    normal = dist.Normal(torch.zeros(2), 1.0).to_event(1)
    cuts = dist.TransformedDistribution(normal, [dist.transforms.OrderedTransform()])
    cutpoints = pyro.sample("cuts", cuts)
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.OrderedLogistic(slope * x, cutpoints), obs=torch.arange(12) % 3)


def steps(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor], None]:
    """A series that is written step by step."""

    def model(x: Tensor) -> None:
        start = pyro.sample("start", dist.Normal(0.0, 1.0))
        rate = pyro.sample("rate", dist.LogNormal(0.0, 0.5))
        series = make(x)
        series[0] = start
        for step in range(1, len(x)):
            series[step] = 0.9 * series[step - 1] + rate * x[step]
        pyro.sample("y", dist.Normal(series, 1.0).to_event(1), obs=x)

    return model


def counts(x: Tensor) -> None:
    """Torch's multinomial sets logits of -inf, where nothing was counted, to 0 by a mask."""
    shares = pyro.sample("shares", dist.Dirichlet(torch.ones(3)))
    pyro.sample("y", dist.Multinomial(9, shares), obs=torch.tensor([5.0, 4.0, 0.0]))


def masked(x: Tensor) -> None:
    """Rows of a matrix are set by a mask of rows that differs by position."""
    centre = pyro.sample("centre", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    means = x[:, None] * centre
    means[means.sum(-1) < 0.0] = torch.tensor(0.5)
    pyro.sample("y", dist.Normal(means, 1.0).to_event(2), obs=x[:, None].expand(12, 2))


@pytest.mark.parametrize(
    "model",
    [
        ordered,
        counts,
        masked,
        steps(lambda x: torch.zeros(len(x))),
        steps(torch.zeros_like),
        steps(lambda x: x.new_zeros(12)),
        steps(lambda x: torch.full((12,), 0.0)),
    ],
)
def test_what_a_model_writes_into_is_vectorised(model: Any) -> None:
    positions = torch.randn(
        4, 3 if model is ordered else 2, generator=torch.Generator().manual_seed(0)
    )
    found = []
    for evaluation in ("graph", "handlers", "loop"):
        # A slower way would be told by a warning, which is an error in tests.
        target = LogDensity(model, (ROWS,), evaluation=evaluation)
        score = target.score(positions, target.bind(ROWS))
        found.append((score.score, score.log_likelihood))
        assert target.evaluation == evaluation
    for each in found[:2]:
        torch.testing.assert_close(each, found[2], rtol=1e-4, atol=1e-5)


def test_buffers_have_the_types_that_they_would_have() -> None:
    like = torch.zeros(2, dtype=torch.int64)
    made = (
        lambda: torch.zeros(3),
        lambda: torch.ones((2, 3), dtype=torch.bool),
        lambda: torch.full((3,), 7),
        lambda: torch.full((3,), 7.0),
        lambda: torch.zeros_like(like),
        lambda: like.new_full((3,), 2),
    )

    def own(position: Tensor) -> tuple[Tensor, ...]:
        with OwnBuffers(position):
            return tuple(make() for make in made)

    for mine, make in zip(
        torch.func.vmap(own)(torch.zeros(4, 2, dtype=torch.float64)), made, strict=True
    ):
        expected = make()
        assert mine.dtype == expected.dtype and mine.shape == (4, *expected.shape)
        assert (mine == expected).all()


def test_a_latent_mixture_has_its_components_support() -> None:
    weights = dist.Categorical(torch.tensor([0.3, 0.7]))

    def model() -> None:
        parts = dist.Normal(torch.tensor([-1.0, 2.0]), 0.5)
        pyro.sample("x", dist.MixtureSameFamily(weights, parts))
        positive = dist.LogNormal(torch.tensor([0.0, 1.0]), 0.5)
        with pyro.plate("rows", 2):
            pyro.sample("scale", dist.MixtureSameFamily(weights, positive))

    target = LogDensity(model)
    positions = torch.tensor([[0.4, 0.1, -0.6], [-1.0, 0.3, 0.2]])
    values = target.constrain(positions, target.bind())
    torch.testing.assert_close(values["scale"], positions[:, 1:].exp())
    at_x = dist.MixtureSameFamily(weights, dist.Normal(torch.tensor([-1.0, 2.0]), 0.5))
    at_log = dist.MixtureSameFamily(weights, dist.Normal(torch.tensor([0.0, 1.0]), 0.5))
    expected = at_x.log_prob(positions[:, 0]) + at_log.log_prob(positions[:, 1:]).sum(-1)
    torch.testing.assert_close(target.log_density(positions, target.bind()), expected)

    def intervals() -> None:
        parts = dist.Uniform(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0]))
        pyro.sample("x", dist.MixtureSameFamily(weights, parts))

    with pytest.raises(ModelCheckError, match="support with a bijection"):
        LogDensity(intervals)


@pytest.mark.parametrize("centre", [0.5, 3.1])
def test_a_direction_is_an_angle_of_one_turn(centre: float) -> None:
    angles = torch.tensor([-0.4, 0.1, 0.7, -0.2, 0.3, 0.9]) + centre

    def model(y: Tensor) -> None:
        t = pyro.sample("t", dist.VonMises(torch.tensor(0.0), torch.tensor(0.3)))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.VonMises(t, torch.tensor(1.4)), obs=y)

    with pytest.warns(UserWarning, match="cut at -pi and pi"):
        found = fit(model, angles, seed=0, progress_bar=False)
    assert found.verdict.level == "exact"
    draws = found.draws["t"].numpy().astype(np.float64)
    assert np.abs(draws).max() <= math.pi
    grid = np.linspace(-math.pi, math.pi, 10_000, endpoint=False)
    log_density = 0.3 * np.cos(grid) + 1.4 * np.cos(grid[:, None] - angles.numpy()).sum(1)
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    for part in (np.cos, np.sin):
        mean = (weights * part(grid)).sum()
        deviation = np.sqrt((weights * part(grid) ** 2).sum() - mean**2)
        # Four errors of 400 draws.
        assert abs(part(draws).mean() - mean) < 0.2 * deviation


def test_angles_of_other_turns_are_taken_to_the_first() -> None:
    def model() -> None:
        with pyro.plate("rows", 2):
            pyro.sample("t", dist.VonMises(torch.tensor(0.0), torch.tensor(1.0)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        target = LogDensity(model)
    values = torch.tensor([[0.5, -2.0]])
    first = target.unconstrain({"t": values}, target.bind())
    further = target.unconstrain({"t": values + 4.0 * math.pi}, target.bind())
    torch.testing.assert_close(further, first, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(target.constrain(first, target.bind())["t"], values)
