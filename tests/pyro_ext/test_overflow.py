"""A draw whose score is 1e32 among sound ones, in every closed form and in GSM and BaM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)

from ppl_ext.regression.overflow import LENIENCE, SPOILT, WILD
from pyro_ext.guides import AutoGaussianMixture, AutoMatrixNormal
from pyro_ext.guides.flat_density import flat_density
from pyro_ext.score import GSM, BaM
from pyro_ext.score.overflow import judged
from pyro_ext.score.regression import CLOSED_FORMS, structure_of

MEAN = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
# Of a row and a column factor, so that every family has it.
SCALE = torch.tensor([0.5, 0.1, 1.0, 0.2], dtype=torch.float64)
TOTAL = 300


def rows() -> None:
    zero = torch.zeros(2, 2, dtype=torch.float64)
    pyro.sample("z", dist.Normal(zero, torch.ones_like(zero)).to_event(2))


def low_rank(model: Any) -> Any:
    return AutoLowRankMultivariateNormal(model, rank=1)


def mixture(model: Any) -> Any:
    return AutoGaussianMixture(model, 2)


GUIDES = [AutoDiagonalNormal, AutoMultivariateNormal, low_rank, AutoMatrixNormal, mixture]


@pytest.mark.parametrize("make", GUIDES)
@pytest.mark.parametrize("wild", [0, 200])
@torch.no_grad()
def test_every_closed_form_leaves_it_out(make: Any, wild: int) -> None:
    """The very first draw, and one when the target has been found."""
    pyro.set_rng_seed(0)
    guide = make(rows)
    density = flat_density(guide)
    structure = structure_of(guide)
    assert structure is not None
    form, parameters = CLOSED_FORMS[structure](density), density.initial_parameters()
    parameters = {name: value.double() for name, value in parameters.items()}
    state = form.initial(parameters)
    generator = torch.Generator().manual_seed(1)
    for t in range(TOTAL):
        theta = form.draw(parameters, generator, 4)
        score = (MEAN - theta) / SCALE**2
        value = -0.5 * ((theta - MEAN) / SCALE).square().sum(-1)
        if t == wild:
            score[0, 1] = 1e32
        state, parameters = form.update(state, parameters, theta, score, TOTAL, value)
    draws = density.sample(parameters, generator, 20_000)
    # One per cent of a standard deviation is its Monte Carlo error.
    np.testing.assert_allclose((draws.mean(0) - MEAN) / SCALE, 0.0, atol=0.1)
    np.testing.assert_allclose(draws.std(0) / SCALE, 1.0, atol=0.1)


@pytest.mark.parametrize("engine_class", [GSM, BaM])
def test_matches_leave_it_out(engine_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def model() -> None:
        pyro.sample("z", dist.Normal(MEAN, SCALE).to_event(1))

    engine = engine_class(model, seed=0, dtype=torch.float64)
    engine.run(100, progress_bar=False)
    before, seen = engine.parameters, engine._score_square
    estimate = engine._score

    def overflowing(*arguments: Any) -> Any:
        found = estimate(*arguments)
        score = found.score.clone()
        score[0, 1] = 1e32
        return found._replace(score=score)

    monkeypatch.setattr(engine, "_score", overflowing)
    assert engine.run(1, progress_bar=False).info["rejected"].tolist() == [1.0]
    for name, value in engine.parameters.items():
        assert torch.equal(value, before[name])
    assert engine._score_square == pytest.approx(LENIENCE * seen)
    monkeypatch.undo()
    assert engine.run(1, progress_bar=False).info["rejected"].tolist() == [0.0]


def test_where_the_limits_are() -> None:
    assert judged(1.0, 0.9 * WILD).sound and judged(1.0, 1.1 * WILD).wild
    assert judged(0.9 * SPOILT, 1.0).sound and judged(1.1 * SPOILT, 1.0).spoilt
    # Flat densities, and the first scores.
    assert judged(0.0, 1.0).sound and judged(1.0, 0.0).sound
