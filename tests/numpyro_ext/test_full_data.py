"""SVRG on models whose batches are their arguments: exact sweeps over the arguments of all rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random

from numpyro_ext.density import LogDensity
from numpyro_ext.gradients import SVRG
from numpyro_ext.gradients.full_data import exact_score
from numpyro_ext.stein import SVGD, SVGDVR
from ppl_ext.errors import ArgumentError

jax.config.update("jax_enable_x64", True)

KEY = random.key(0)
ROWS, BATCH = 12, 3
X = jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, 3)))
Y = (X[:, 0] > 0.3).astype(float)


def by_argument(x: jax.Array, y: jax.Array) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    weights = numpyro.sample("weights", dist.Normal(0.0, scale).expand([3]).to_event(1))
    with numpyro.plate("N", ROWS, subsample_size=len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def by_index(x: jax.Array, y: jax.Array) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    weights = numpyro.sample("weights", dist.Normal(0.0, scale).expand([3]).to_event(1))
    with numpyro.plate("N", len(y), subsample_size=BATCH) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])


def batches(*sizes: int) -> list[tuple[jax.Array, jax.Array]]:
    ends = np.cumsum(sizes)
    return [
        (X[end - size : end], Y[end - size : end]) for end, size in zip(ends, sizes, strict=True)
    ]


ALIKE = batches(3, 3, 3, 3)


@pytest.mark.parametrize("parts", [batches(12), ALIKE, batches(5, 5, 2), batches(1, 4, 1, 4, 2)])
def test_sweeps_are_exact(parts: list) -> None:
    target = LogDensity(by_argument, KEY, ALIKE[0], likelihood_temperature=0.7)
    reference = LogDensity(by_index, KEY, (X, Y), likelihood_temperature=0.7)
    z = random.normal(KEY, (2, 4))
    expected = reference.full_score(z, reference.bind(X, Y))
    found = jax.jit(lambda z: exact_score(target, z, tuple(parts)))(z)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)


@pytest.mark.parametrize("full_data", [(X, Y), ALIKE, iter(ALIKE)])
def test_the_average_over_a_round_is_the_full_score(full_data) -> None:
    estimator = SVRG(100, full_data=full_data)
    target = LogDensity(by_argument, KEY, ALIKE[0])
    anchor, z = random.normal(KEY, (2, 2, 4))
    first = target.bind(*ALIKE[0])
    state = estimator.init(target, first, KEY, 2)
    exact, state = estimator.estimate(target, state, anchor, first)
    np.testing.assert_allclose(
        exact.score, exact_score(target, anchor, ((X, Y),)).score, rtol=1e-11
    )
    scores = [
        np.asarray(estimator.estimate(target, state, z, target.bind(*batch))[0].score)
        for batch in ALIKE
    ]
    assert np.std(scores, axis=0).max() > 0.1
    full = exact_score(target, z, ((X, Y),)).score
    np.testing.assert_allclose(np.mean(scores, axis=0), full, rtol=1e-11)


@pytest.mark.parametrize("full_data", [(X, Y), ALIKE])
def test_steps_are_those_of_rows_that_the_engine_draws(full_data) -> None:
    optim = optax.adam(0.05)
    ours = SVGDVR(by_argument, optim, num_particles=5, anchor_every=3, full_data=full_data)
    theirs = SVGD(by_index, optim, num_particles=5, estimator=SVRG(3, "cyclic"))
    state, other = ours.init(KEY, *ALIKE[0]), theirs.init(KEY, X, Y)
    for step in range(8):
        state, loss = ours.update(state, *ALIKE[step % len(ALIKE)])
        other, expected = theirs.update(other, X, Y)
        np.testing.assert_allclose(loss, expected, rtol=1e-9)
    np.testing.assert_allclose(ours.particles(state), theirs.particles(other), rtol=1e-9)


@pytest.mark.parametrize("full_data", [(X, Y), ALIKE])
def test_costs_are_sweeps_over_all_rows(full_data) -> None:
    target = LogDensity(by_argument, KEY, ALIKE[0])
    estimator = SVRG(8, full_data=full_data)
    assert estimator.evaluations_per_step(target) == 2.0 * BATCH / ROWS + 1 / 8


def test_refusals() -> None:
    target = LogDensity(by_argument, KEY, ALIKE[0])
    data = target.bind(*ALIKE[0])
    with pytest.raises(ArgumentError, match="Expected full_data with a model whose batches"):
        SVRG(3).init(target, data, KEY, 2)
    with pytest.raises(ArgumentError, match=r"12\] in all, found 9"):
        SVRG(3, full_data=ALIKE[:3]).init(target, data, KEY, 2)
    drawn = LogDensity(by_index, KEY, (X, Y))
    with pytest.raises(ArgumentError, match="Expected no full_data"):
        SVRG(3, full_data=(X, Y)).init(drawn, drawn.bind(X, Y), KEY, 2)
    for wrong in (X, [], 3, [X, Y]):
        with pytest.raises(ArgumentError, match="to be a tuple of the model's arguments"):
            SVRG(3, full_data=wrong)
    with pytest.raises(ArgumentError, match="leading axes"):
        SVRG(3, full_data=(1.0, "a"))
    with pytest.raises(ArgumentError, match=r"leading axes \[1, 12\]"):
        SVRG(3, full_data=(X, Y[:1]))

    def unscaled(x: jax.Array, y: jax.Array) -> None:
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("N", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    target = LogDensity(unscaled, KEY, ALIKE[0])
    with pytest.raises(ArgumentError, match="scales its batches up to all rows"):
        SVRG(3, full_data=ALIKE).init(target, target.bind(*ALIKE[0]), KEY, 2)


def test_keyword_arguments_reach_the_sweep() -> None:
    def model(x: jax.Array, y: jax.Array, sigma: float = 1.0) -> None:
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("N", ROWS, subsample_size=len(x)):
            numpyro.sample("y", dist.Normal(x @ weights, sigma), obs=y)

    target = LogDensity(model, KEY, ALIKE[0])
    data, every = target.bind(*ALIKE[0], sigma=2.0), target.bind(X, Y, sigma=2.0)
    z = random.normal(KEY, (2, 3))
    estimator = SVRG(3, full_data=ALIKE)
    state = estimator.init(target, data, KEY, 2)
    found, _ = estimator.estimate(target, state, z, data)
    np.testing.assert_allclose(found.score, target.score(z, every).score, rtol=1e-10)
