"""A draw whose score is 1e32 among sound ones, in every closed form and in GSM and BaM."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)

from numpyro_ext.guides import AutoGaussianMixture, AutoMatrixNormal
from numpyro_ext.guides.flat_density import flat_density
from numpyro_ext.score import GSM, BaM
from numpyro_ext.score.overflow import judged
from numpyro_ext.score.regression import CLOSED_FORMS, structure_of
from ppl_ext.regression.overflow import LENIENCE, SPOILT, WILD

jax.config.update("jax_enable_x64", True)

MEAN = np.array([1.0, -2.0, 0.5, 3.0])
# Of a row and a column factor, so that every family has it.
SCALE = np.array([0.5, 0.1, 1.0, 0.2])
TOTAL = 300


def rows() -> None:
    numpyro.sample("z", dist.Normal(jnp.zeros((2, 2)), 1.0).to_event(2))


def low_rank(model: Any) -> Any:
    return AutoLowRankMultivariateNormal(model, rank=1)


def mixture(model: Any) -> Any:
    return AutoGaussianMixture(model, 2)


GUIDES = [AutoDiagonalNormal, AutoMultivariateNormal, low_rank, AutoMatrixNormal, mixture]


@pytest.mark.parametrize("make", GUIDES)
def test_every_closed_form_leaves_it_out(make: Any) -> None:
    """The very first draw, one in the search for the target, and one when that has been found."""
    guide = make(rows)
    density = flat_density(guide, random.key(0))
    structure = structure_of(guide)
    assert structure is not None
    form, start = CLOSED_FORMS[structure](density), density.initial_parameters()

    @jax.jit
    def fit(wild: Any) -> Any:
        def step(carry: Any, turn: tuple[Any, Any]) -> tuple[Any, Any]:
            state, parameters = carry
            t, key = turn
            theta = form.draw(parameters, key, 4)
            score = (MEAN - theta) / SCALE**2
            score = score.at[0, 1].set(jnp.where(t == wild, 1e32, score[0, 1]))
            value = -0.5 * jnp.square((theta - MEAN) / SCALE).sum(-1)
            return form.update(state, parameters, theta, score, TOTAL, value), None

        turns = jnp.arange(TOTAL), random.split(random.key(1), TOTAL)
        parameters = jax.lax.scan(step, (form.initial(start), start), turns)[0][1]
        return density.sample(parameters, random.key(2), 20_000)

    for wild in (0, 20, 200):
        draws = np.asarray(fit(wild))
        # One per cent of a standard deviation is its Monte Carlo error.
        np.testing.assert_allclose((draws.mean(0) - MEAN) / SCALE, 0.0, atol=0.1)
        np.testing.assert_allclose(draws.std(0) / SCALE, 1.0, atol=0.1)


@pytest.mark.parametrize("engine_class", [GSM, BaM])
def test_matches_leave_it_out(engine_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def model() -> None:
        numpyro.sample("z", dist.Normal(jnp.asarray(MEAN), SCALE).to_event(1))

    engine = engine_class(model)
    run = engine.run(random.key(0), 100, progress_bar=False)
    before = run.state
    estimate = type(engine.plan.estimator).estimate

    def overflowing(*args: Any) -> Any:
        score, state = estimate(*args)
        return score._replace(score=score.score.at[0, 1].set(1e32)), state

    monkeypatch.setattr(type(engine.plan.estimator), "estimate", overflowing)
    after, _, info = engine._step(engine.plan, before, engine.target.bind())
    assert info["rejected"] == 1.0
    for name, value in after.algorithm.parameters.items():
        np.testing.assert_array_equal(value, before.algorithm.parameters[name])
    seen, then = before.algorithm.score_square, after.algorithm.score_square
    np.testing.assert_allclose(then, LENIENCE * seen)
    monkeypatch.undo()
    assert engine._step(engine.plan, after, engine.target.bind())[2]["rejected"] == 0.0


def test_where_the_limits_are() -> None:
    one, zero = jnp.asarray(1.0), jnp.asarray(0.0)
    assert judged(one, one * 0.9 * WILD).sound and judged(one, one * 1.1 * WILD).wild
    assert judged(one * 0.9 * SPOILT, one).sound and judged(one * 1.1 * SPOILT, one).spoilt
    # Flat densities, and the first scores.
    assert judged(zero, one).sound and judged(one, zero).sound
