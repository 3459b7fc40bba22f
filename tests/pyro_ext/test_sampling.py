"""Families whose values fill a tensor in place are drawn at many draws at once, and rightly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import Tensor

from pyro_ext.density import replay as replays
from pyro_ext.density.sampling import sampled
from pyro_ext.diagnostics.predictive import predictions, predictive_distribution

NUMBER = 4000
ONE = torch.ones(3)
#: Of a location, which each draw has of its own.
FAMILIES: dict[str, Callable[[Tensor], Any]] = {
    "StudentT": lambda at: dist.StudentT(5.0, at, 2.0).expand([3]),
    "Laplace": lambda at: dist.Laplace(at, 2.0).expand([3]).to_event(1),
    "Cauchy": lambda at: dist.Cauchy(at, 2.0).expand([3]),
    "Exponential": lambda at: dist.Exponential(1.0 + at).expand([3]),
    "Geometric": lambda at: dist.Geometric(logits=at).expand([3]),
    "Weibull": lambda at: dist.Weibull(1.0 + at, 2.0).expand([3]),
    "LowRankMultivariateNormal": lambda at: dist.LowRankMultivariateNormal(
        at * ONE, torch.ones(3, 1), ONE
    ),
    "Beta": lambda at: dist.Beta(at, 2.0).expand([3]),
    "Dirichlet": lambda at: dist.Dirichlet(torch.stack([at, 1.0 + at, 0.01 * at])),
    "LKJCholesky": lambda at: dist.LKJCholesky(3, at),
    "BetaBinomial": lambda at: dist.BetaBinomial(at, 2.0, 10).expand([3]),
    "DirichletMultinomial": lambda at: dist.DirichletMultinomial(at * ONE, 10),
    "Multinomial": lambda at: dist.Multinomial(10, logits=torch.stack([at, -at, 0.0 * at])),
    "VonMises": lambda at: dist.VonMises(at, 1.0 + at).expand([3]).to_event(1),
    "Stable": lambda at: dist.Stable(1.5, 0.1, 1.0 + at, at).expand([3]),
    "Stable near 1": lambda at: dist.Stable(1.0, 0.1, 1.0, at, coords="S").expand([3]),
    "ProjectedNormal": lambda at: dist.ProjectedNormal(at * ONE),
    "transformed": lambda at: dist.TransformedDistribution(
        dist.Beta(at * ONE, 2.0), dist.transforms.AffineTransform(1.0, 2.0)
    ),
    "mixture": lambda at: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(3, 2)), dist.Beta(at.expand(3, 2), torch.tensor([2.0, 9.0]))
    ),
    "masked": lambda at: dist.Laplace(at * ONE, 1.0).mask(torch.tensor(True)),
    "MultivariateNormal": lambda at: dist.MultivariateNormal(at * ONE, torch.eye(3)),
    "MultivariateStudentT": lambda at: dist.MultivariateStudentT(
        torch.tensor(5.0), at * ONE, torch.eye(3)
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop because")
@pytest.mark.parametrize("name", FAMILIES)
def test_many_draws_at_once_have_the_familys_distribution(name: str) -> None:
    family = FAMILIES[name]
    torch.manual_seed(0)
    at = torch.full((NUMBER,), 0.7)
    together = torch.func.vmap(lambda at: sampled(family(at)), randomness="different")(at)
    torch.manual_seed(1)
    alone = family(at[0]).sample(torch.Size([NUMBER]))
    assert together.shape == alone.shape and together.dtype == alone.dtype
    together, alone = (each.reshape(NUMBER, -1) for each in (together, alone))
    for one, other in zip(together.T.numpy(), alone.T.numpy(), strict=True):
        assert stats.ks_2samp(one, other).pvalue > 1e-3
    if name == "LKJCholesky":  # whose first number is 1
        together = together[:, 3:]
    assert abs(stats.spearmanr(together[1:, 0], together[:-1, 0]).statistic) < 0.06


def test_a_value_outside_of_such_a_run_is_the_familys_own() -> None:
    family = dist.Laplace(torch.zeros(4), 1.0)
    torch.manual_seed(0)
    expected = family.sample()
    torch.manual_seed(0)
    assert torch.equal(sampled(family), expected)


def test_a_program_that_fills_a_tensor_is_run_at_many_draws_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an ordered logistic fills its probabilities, and a user's program its own."""
    monkeypatch.setattr(replays, "_tell_of_time", lambda *told: pytest.fail(str(told)))

    def model(x: Tensor, y: Tensor | None = None) -> None:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        table = torch.zeros(len(x))
        table[1:] = slope
        table += 0.5
        with pyro.plate("rows", len(x)):
            pyro.deterministic("table", table)
            cuts = torch.tensor([-1.0, 1.0])
            pyro.sample("y", dist.OrderedLogistic(slope * x, cuts), obs=y)

    x, slope = torch.tensor([-1.0, 0.0, 2.0]), torch.linspace(0.9, 1.1, NUMBER)
    found = predictions(model, {"slope": slope}, (x,), {})
    expected = slope[:, None] * torch.tensor([0.0, 1.0, 1.0]) + 0.5
    assert np.allclose(found["table"], expected)
    below = torch.sigmoid(torch.tensor([[-1.0], [1.0]]) - x)
    for value, share in enumerate([below[0], below[1] - below[0], 1.0 - below[1]]):
        assert np.allclose((found["y"] == value).mean(0), share, atol=4.5 * 0.5 / NUMBER**0.5)


def test_distributions_at_new_rows_are_those_of_many_draws_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replays, "_tell_of_time", lambda *told: pytest.fail(str(told)))

    def model(x: Tensor, y: Tensor | None = None) -> None:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            mean = pyro.deterministic("mu", slope * x)
            new = pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
            pyro.deterministic("excess", new - mean)

    x, slope = torch.tensor([-1.0, 0.0, 2.0]), torch.linspace(0.9, 1.1, 9)
    found = predictive_distribution(model, {"slope": slope}, x)
    assert set(found) == {"mean", "variance", "mu"}
    assert np.allclose(found["mean"], slope[:, None] * x)


def test_what_a_users_own_family_fills_is_left_to_it() -> None:
    class Own(dist.Normal):
        def sample(self, sample_shape: Any = ()) -> Tensor:
            value = torch.zeros(4)
            value.normal_()
            return value

    family = Own(0.0, 1.0)
    assert sampled(family).abs().sum() > 0.0
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda at: sampled(family) + at, randomness="different")(torch.zeros(2))
