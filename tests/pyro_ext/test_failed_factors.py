"""Linear algebra of a batch in which one matrix has no result: NaN there, the others as alone."""

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

from pyro_ext import LogDensity, ModelCheckError, fit
from pyro_ext.density.failed_factors import _WITH_NAN, FailedFactors
from tests.fit_support import check_weighted

GOOD = torch.tensor([[2.0, 0.3, 0.1], [0.3, 1.5, 0.2], [0.1, 0.2, 1.1]])
NAN = torch.full((3, 3), torch.nan)
#: What has no factor or inverse, beside what has entries that are not finite.
SINGULAR = ("solve", "inv", "inverse", "lu_factor", "slogdet", "logdet", "matrix_power")
WITHOUT = {"cholesky": -GOOD} | dict.fromkeys((*SINGULAR, "cholesky_inverse"), torch.zeros(3, 3))

#: Whole numbers, which cannot be NaN.
RANK = torch.linalg.matrix_rank
OF_NUMBERS = [function for function in _WITH_NAN if function is not RANK]
OPTIONS = {
    torch.linalg.solve: (torch.ones(3),),
    torch.linalg.lstsq: (torch.ones(3, 1),),
    torch.linalg.matrix_norm: (2,),
    torch.linalg.norm: (2,),
    **dict.fromkeys((torch.norm, Tensor.norm), ("nuc",)),
    **dict.fromkeys((torch.linalg.matrix_power, torch.matrix_power, Tensor.matrix_power), (-2,)),
}


def _sum(function: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    options = OPTIONS.get(function, ())

    def of(matrix: Tensor) -> Tensor:
        found = function(matrix, *options)
        parts = [found] if isinstance(found, Tensor) else found
        # Absolute values: an eigenvector may have either sign.
        of = [each.abs().sum() for each in parts if each.dtype not in (torch.int32, torch.int64)]
        return torch.stack(of).sum()

    return of


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@pytest.mark.parametrize("function", OF_NUMBERS, ids=lambda function: function.__name__)
def test_only_the_matrix_at_fault_is_nan(function: Callable[..., Any]) -> None:
    of = torch.func.grad_and_value(_sum(function))
    name = function.__name__.removeprefix("linalg_")
    alone = [of(each) for each in (GOOD, 2.0 * GOOD)]
    for bad in (WITHOUT.get(name, NAN), NAN):
        batch = torch.stack([GOOD, bad, 2.0 * GOOD])
        with FailedFactors():
            gradients, values = torch.func.vmap(of)(batch)
        assert values[1].isnan() and gradients[1].isnan().all()
        for number, (gradient, value) in zip((0, 2), alone, strict=True):
            torch.testing.assert_close(values[number], value)
            torch.testing.assert_close(gradients[number], gradient)


def test_a_rank_is_that_of_each_matrix() -> None:
    with FailedFactors():
        found = RANK(torch.stack([GOOD, NAN, torch.ones(3, 3)]))
    assert found[[0, 2]].tolist() == [3, 1]


def test_norms_have_the_axes_that_are_asked_for() -> None:
    batch = torch.stack([GOOD, 2.0 * GOOD]).movedim(0, 1)  # matrices on the first and last axis
    for options in ({}, {"keepdim": True}):
        for norm in (torch.linalg.norm, torch.linalg.matrix_norm):
            for kind in (2, -2, "nuc", "fro"):
                expected = norm(batch, kind, dim=(0, 2), **options)
                with FailedFactors():
                    found = norm(batch, kind, dim=(0, 2), **options)
                torch.testing.assert_close(found, expected)
        with FailedFactors():
            found = torch.norm(batch, "nuc", dim=(0, 2), **options)
        torch.testing.assert_close(found, torch.norm(batch, "nuc", dim=(0, 2), **options))
    with FailedFactors():
        assert torch.linalg.norm(torch.ones(4), 2) == torch.norm(torch.ones(4)) == 2.0
        assert torch.norm(torch.ones(2, 3, 3)) == torch.tensor(18.0).sqrt()
        assert torch.linalg.matrix_power(torch.zeros(2, 2), 2).tolist() == [[0.0] * 2] * 2


def process(y: Tensor) -> None:
    """A Gaussian process whose covariance has no factor far from the posterior."""
    length = pyro.sample("length", dist.Gamma(20.0, 4.0))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    x = torch.linspace(-8.0, 8.0, len(y))
    square = (x[:, None] - x) ** 2 / length[..., None, None] ** 2
    covariance = torch.exp(-0.5 * square) + noise[..., None, None] ** 2 * torch.eye(len(x))
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), covariance), obs=y)


@pytest.mark.parametrize("evaluation", ["graph", "handlers", "loop"])
def test_a_position_without_a_factor_leaves_the_others(evaluation: Any) -> None:
    y = torch.sin(0.6 * torch.linspace(-8.0, 8.0, 12))
    target = LogDensity(process, (y,), evaluation=evaluation)
    data = target.bind(y)
    # A length of e^10 and no noise: rows of ones.
    positions = torch.tensor([[1.2, -1.0], [10.0, -30.0], [1.4, -0.5]])
    found = target.score(positions, data)
    alone = target.score(positions[[0, 2]], data)
    torch.testing.assert_close(found.score[[0, 2]], alone.score)
    torch.testing.assert_close(found.log_likelihood[[0, 2]], alone.log_likelihood)
    assert found.score[1].isnan().all() and found.log_likelihood[1].isnan()
    assert target.evaluation == evaluation


def test_a_fit_passes_by_positions_without_a_factor() -> None:
    x = np.linspace(-8.0, 8.0, 12)
    y = np.sin(0.6 * x) + 0.3 * np.random.default_rng(3).normal(size=12)
    found = fit(process, torch.tensor(y, dtype=torch.float32), seed=0, progress_bar=False)
    assert found.verdict.level == "exact"
    lengths, noises = np.meshgrid(np.linspace(1.0, 9.0, 120), np.linspace(0.02, 2.5, 120))
    covariances = np.exp(-0.5 * (x[:, None] - x) ** 2 / lengths[..., None, None] ** 2)
    covariances = covariances + noises[..., None, None] ** 2 * np.eye(12)
    columns = np.broadcast_to(y[:, None], (*lengths.shape, 12, 1))
    squares = (y * np.linalg.solve(covariances, columns)[..., 0]).sum(-1)
    log_density = -0.5 * (np.linalg.slogdet(covariances)[1] + squares)
    log_density += stats.gamma(20.0, scale=0.25).logpdf(lengths) - 0.5 * noises**2
    for name, grid in (("length", lengths), ("noise", noises)):
        check_weighted(found.draws[name].numpy(), grid, log_density)


def test_a_factor_that_never_exists_is_refused() -> None:
    def model() -> None:
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        factor = torch.linalg.cholesky(-torch.eye(2) - x**2)
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(2), scale_tril=factor), obs=x * 0)

    with pytest.raises(ModelCheckError, match="valid parameters of every distribution"):
        LogDensity(model)
