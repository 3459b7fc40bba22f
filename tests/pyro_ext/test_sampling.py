"""Families whose values fill a tensor in place are drawn at many draws at once, and rightly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import Tensor

from pyro_ext.density.sampling import sampled

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
    alone = torch.stack([family(at[0]).sample() for _ in range(NUMBER)])
    assert together.shape == alone.shape
    for one, other in zip(together.T.numpy(), alone.T.numpy(), strict=True):
        assert stats.ks_2samp(one, other).pvalue > 1e-3
    assert abs(stats.spearmanr(together[1:, 0], together[:-1, 0]).statistic) < 0.06


def test_a_value_outside_of_such_a_run_is_the_familys_own() -> None:
    family = dist.Laplace(torch.zeros(4), 1.0)
    torch.manual_seed(0)
    expected = family.sample()
    torch.manual_seed(0)
    assert torch.equal(sampled(family), expected)


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
