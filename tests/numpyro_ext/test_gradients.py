"""Estimators: unbiased over every batch, exact sweeps, and index sets as promised."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers

from numpyro_ext.density import LogDensity
from numpyro_ext.gradients import Full, Minibatch, default_estimator
from ppl_ext.errors import ArgumentError

jax.config.update("jax_enable_x64", True)

KEY = random.key(0)
Y = np.random.default_rng(0).normal(size=(6, 4))


def local_model(y: jax.Array, batch: int | None = None) -> None:
    """Local latents, a masked and scaled observation, factors inside and outside the plate."""
    a = numpyro.sample("a", dist.LogNormal(0.0, 0.5))
    numpyro.factor("outside", -(a**3))
    with numpyro.plate("N", len(y), subsample_size=batch) as rows:
        local = numpyro.sample("local", dist.Uniform(0.0, a))
        numpyro.factor("inside", -jnp.abs(y[rows, 1]) * a)
        with handlers.mask(mask=y[rows, 2] > 0), handlers.scale(scale=1.5):
            numpyro.sample("y", dist.Normal(local, a), obs=y[rows, 0])


def crossed_model(y: jax.Array, rows: int | None = None, columns: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    row_plate = numpyro.plate("rows", y.shape[0], subsample_size=rows, dim=-2)
    with numpyro.plate("columns", y.shape[1], subsample_size=columns, dim=-1) as j:
        beta = numpyro.sample("beta", dist.Exponential(1.0))
        with row_plate as i:
            numpyro.sample("y", dist.Normal(mu + beta, 1.0), obs=y[i[:, None], j])


CASES: dict[str, tuple[Any, dict[str, int]]] = {
    "local": (local_model, {"batch": 2}),
    "crossed": (crossed_model, {"rows": 3, "columns": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_average_over_all_batches_is_the_full_score(name: str) -> None:
    model, options = CASES[name]
    target = LogDensity(model, KEY, (Y,), options)
    data = target.bind(Y, **options)
    z = random.normal(random.key(1), (2, target.dim))
    # Disjoint batches of a shuffled order; several plates give the cross product.
    order = np.random.default_rng(1)
    batches = [
        [
            (plate.name, rows)
            for rows in order.permutation(plate.size).reshape(-1, plate.subsample_size)
        ]
        for plate in target.plates.values()
    ]
    scores = [
        target.score(z, data, {n: jnp.asarray(rows) for n, rows in batch}).score
        for batch in itertools.product(*batches)
    ]
    full = target.full_score(z, data).score
    # The batches differ, or the average would show nothing.
    assert np.std(scores, axis=0).max() > 0.1
    np.testing.assert_allclose(np.mean(scores, axis=0), full, rtol=1e-12, atol=1e-11)


def test_average_over_all_subsets_is_the_full_score_when_batches_do_not_divide() -> None:
    options = {"batch": 4}
    target = LogDensity(local_model, KEY, (Y,), options)
    data = target.bind(Y, **options)
    z = random.normal(random.key(1), (2, target.dim))
    scores = [
        target.score(z, data, {"N": jnp.asarray(rows)}).score
        for rows in itertools.combinations(range(6), 4)
    ]
    full = target.full_score(z, data).score
    np.testing.assert_allclose(np.mean(scores, axis=0), full, rtol=1e-12, atol=1e-11)


def test_reshuffled_batches_cover_an_epoch_without_repeats() -> None:
    target = LogDensity(local_model, KEY, (Y,), {"batch": 2})
    data = target.bind(Y, batch=2)
    estimator = Minibatch()
    state = estimator.init(target, data, random.key(2), 1)
    draw = jax.jit(lambda state: estimator.draw(target, state))
    epochs = []
    for _ in range(20):
        epoch = []
        for _ in range(3):
            indices, state = draw(state)
            epoch.extend(np.asarray(indices["N"]).tolist())
        assert sorted(epoch) == list(range(6))
        epochs.append(tuple(epoch))
    # 20 draws from 720 orders repeat entirely with probability 720 ** -19.
    assert len(set(epochs)) > 1


def test_ragged_epochs_keep_every_row_equally_likely() -> None:
    target = LogDensity(local_model, KEY, (Y,), {"batch": 4})
    data = target.bind(Y, batch=4)
    estimator = Minibatch()
    state = estimator.init(target, data, random.key(3), 1)
    steps = 3000

    def step(state: Any, _: None) -> tuple[Any, jax.Array]:
        indices, state = estimator.draw(target, state)
        return state, indices["N"]

    _, rows = jax.lax.scan(step, state, None, length=steps)
    rows = np.asarray(rows)
    assert all(len(set(batch)) == 4 for batch in rows.tolist())
    frequency = np.bincount(rows.ravel(), minlength=6) / steps
    # Each row is in a batch with probability 4/6, independently over steps (one per epoch).
    error = np.sqrt(4 / 6 * 2 / 6 / steps)
    assert np.abs(frequency - 4 / 6).max() < 5 * error


def test_replacement_draws_rows_independently() -> None:
    target = LogDensity(local_model, KEY, (Y,), {"batch": 4})
    estimator = Minibatch(sampling="replacement")
    state = estimator.init(target, target.bind(Y, batch=4), random.key(4), 1)

    def step(state: Any, _: None) -> tuple[Any, jax.Array]:
        indices, state = estimator.draw(target, state)
        return state, indices["N"]

    steps = 3000
    _, rows = jax.lax.scan(step, state, None, length=steps)
    rows = np.asarray(rows)
    assert rows.min() >= 0 and rows.max() <= 5
    distinct = np.mean([len(set(batch)) == 4 for batch in rows.tolist()])
    expected = 6 * 5 * 4 * 3 / 6**4
    assert abs(distinct - expected) < 5 * np.sqrt(expected * (1 - expected) / steps)


@pytest.mark.parametrize("sampling", ["reshuffle", "replacement"])
def test_minibatch_scores_are_unbiased(sampling: Any) -> None:
    target = LogDensity(crossed_model, KEY, (Y,), {"rows": 4, "columns": 3})
    data = target.bind(Y, rows=4, columns=3)
    estimator = Minibatch(sampling=sampling)
    z = random.normal(random.key(1), (2, target.dim))

    def step(state: Any, _: None) -> tuple[Any, jax.Array]:
        score, state = estimator.estimate(target, state, z, data)
        return state, score.score

    steps = 4000
    _, scores = jax.lax.scan(
        step, estimator.init(target, data, random.key(5), 1), None, length=steps
    )
    full = np.asarray(target.full_score(z, data).score)
    error = np.std(scores, axis=0) / np.sqrt(steps)
    # 10 components; 5 standard errors. Batches of one epoch are not used twice here (4 of 6).
    assert np.all(np.abs(np.mean(scores, axis=0) - full) < 5 * error + 1e-12)


def test_full_is_exact_and_the_same_state_gives_the_same_batch() -> None:
    target = LogDensity(local_model, KEY, (Y,), {"batch": 2})
    data = target.bind(Y, batch=2)
    z = random.normal(random.key(1), (2, target.dim))
    score, state = Full().estimate(target, {}, z, data)
    assert state == {}
    np.testing.assert_array_equal(score.score, target.full_score(z, data).score)
    estimator = Minibatch()
    start = estimator.init(target, data, random.key(2), 1)
    first, _ = estimator.estimate(target, start, z, data)
    again, _ = estimator.estimate(target, start, z, data)
    np.testing.assert_array_equal(first.score, again.score)


def test_default_estimator_and_costs() -> None:
    minibatch = LogDensity(crossed_model, KEY, (Y,), {"rows": 3, "columns": 2})
    assert default_estimator(minibatch) == Minibatch()
    assert Minibatch().evaluations_per_step(minibatch) == pytest.approx(3 / 6 * 2 / 4)
    assert Full().evaluations_per_step(minibatch) == 1.0
    whole = LogDensity(crossed_model, KEY, (Y,))
    assert default_estimator(whole) == Full()

    def batches(y: jax.Array) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", 60, subsample_size=len(y)):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    arguments = LogDensity(batches, KEY, (Y[:, 0],))
    assert default_estimator(arguments) == Full()
    assert Full().evaluations_per_step(arguments) == pytest.approx(0.1)
    for target, words in ((whole, "found none"), (arguments, "passed as arguments")):
        with pytest.raises(ArgumentError, match=words):
            Minibatch().init(target, target.bind(Y), KEY, 1)
    with pytest.raises(ArgumentError, match="'shuffled'"):
        Minibatch(sampling="shuffled")  # type: ignore[arg-type]


def normal_mean(y: jax.Array, batch: int) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("N", len(y), subsample_size=batch) as rows:
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y[rows])


def test_all_positions_see_the_same_rows() -> None:
    y = jnp.arange(12.0)
    target = LogDensity(normal_mean, KEY, (y, 3))
    data = target.bind(y, 3)
    estimator = Minibatch()
    state = estimator.init(target, data, KEY, 1)
    z = jnp.array([[0.5], [-2.0]])
    for _ in range(5):
        score, state = estimator.estimate(target, state, z, data)
        # With other rows the difference would hold the difference of their sums, too.
        np.testing.assert_allclose(score.score[0] - score.score[1], -2.5 * 13, rtol=1e-12)


def test_every_row_is_used_in_an_epoch_that_batches_fill() -> None:
    y = jnp.arange(12.0)
    target = LogDensity(normal_mean, KEY, (y, 3))
    estimator = Minibatch()
    state = estimator.init(target, target.bind(y, 3), KEY, 1)
    for _ in range(3):
        seen: list[int] = []
        for _ in range(4):
            indices, state = estimator.draw(target, state)
            seen += indices["N"].tolist()
        assert sorted(seen) == list(range(12))
