"""SVRG and SAGA: exact where they must be, unbiased to rounding, and less noisy near the anchor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer.autoguide import AutoDiagonalNormal

from numpyro_ext.density import LogDensity
from numpyro_ext.gradients import SAGA, SVRG, GradientEstimator, Noisy
from numpyro_ext.score import ProximalScoreVI
from numpyro_ext.stein import SVGD, SVGDVR
from ppl_ext.errors import ArgumentError

jax.config.update("jax_enable_x64", True)

KEY = random.key(0)
ROWS, BATCH, POSITIONS = 12, 3, 2
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = (X[:, 0] > 0.3).astype(float)
ESTIMATORS: list[GradientEstimator] = [SVRG(100, sampling="cyclic"), SAGA(sampling="cyclic")]


def logistic(x: jax.Array, y: jax.Array, batch: int | None = BATCH) -> None:
    """A prior with a Jacobian, a factor outside the plate, and rows that are not linear."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    weights = numpyro.sample("weights", dist.Normal(0.0, scale).expand([3]).to_event(1))
    numpyro.factor("outside", -(scale**3))
    with numpyro.plate("N", len(y), subsample_size=batch) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])


def setup(temperature: float = 0.7) -> tuple[LogDensity, Any]:
    arguments = (jnp.asarray(X), jnp.asarray(Y))
    target = LogDensity(logistic, KEY, arguments, likelihood_temperature=temperature)
    return target, target.bind(*arguments)


def anchored(estimator: GradientEstimator, z: jax.Array) -> tuple[LogDensity, Any, Any]:
    """The target, its data and the estimator's state after a first step at z."""
    target, data = setup()
    state = estimator.init(target, data, KEY, len(z))
    _, state = estimator.estimate(target, state, z, data)
    return target, data, state


def every_batch(
    estimator: GradientEstimator, target: LogDensity, data: Any, state: Any, z: jax.Array
) -> np.ndarray:
    """Scores (rounds, P, D) from the same state by each batch of one round."""
    scores = []
    for first in range(0, ROWS, BATCH):
        position = {**state["minibatch"], "position N": jnp.asarray(first, jnp.int32)}
        found, _ = estimator.estimate(target, {**state, "minibatch": position}, z, data)
        scores.append(np.asarray(found.score))
    return np.stack(scores)


def positions(seed: int) -> jax.Array:
    return random.normal(random.key(seed), (POSITIONS, 4))


@pytest.mark.parametrize("estimator", [*ESTIMATORS, SVRG(3), SAGA("replacement")])
def test_the_first_step_is_exact(estimator: GradientEstimator) -> None:
    target, data = setup()
    z = positions(1)
    state = estimator.init(target, data, KEY, POSITIONS)
    found, _ = jax.jit(lambda s: estimator.estimate(target, s, z, data))(state)
    np.testing.assert_allclose(found.score, target.full_score(z, data).score, rtol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_average_over_a_round_is_the_full_score(estimator: GradientEstimator) -> None:
    target, data, state = anchored(estimator, positions(1))
    z = positions(2)
    scores = every_batch(estimator, target, data, state, z)
    assert scores.std(0).max() > 0.1
    np.testing.assert_allclose(scores.mean(0), target.full_score(z, data).score, rtol=1e-11)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_noise_is_proportional_to_the_distance_from_the_anchor(
    estimator: GradientEstimator,
) -> None:
    anchor, apart = positions(1), positions(2)
    target, data, state = anchored(estimator, anchor)
    near, far = (
        every_batch(estimator, target, data, state, anchor + size * apart).std(0)
        for size in (1e-4, 2e-4)
    )
    # The scale's gradient comes from the prior alone, which has no noise.
    np.testing.assert_allclose(far[:, 1:], 2.0 * near[:, 1:], rtol=1e-2)
    np.testing.assert_allclose(far[:, 0], 0.0, atol=1e-12)


def test_anchors_are_renewed_in_time() -> None:
    target, data = setup()
    estimator = SVRG(3)
    state = estimator.init(target, data, KEY, POSITIONS)
    exact = []
    for step in range(9):
        z = positions(step)
        found, state = estimator.estimate(target, state, z, data)
        full = target.full_score(z, data)
        exact.append(np.allclose(found.score, full.score, rtol=1e-9))
        if exact[-1]:
            np.testing.assert_allclose(found.log_likelihood, full.log_likelihood, rtol=1e-9)
            np.testing.assert_array_equal(state["anchor"], z)
    assert exact == [True, False, False] * 3


def test_a_round_fills_the_table_anew() -> None:
    estimator = SAGA("cyclic")
    target, data, state = anchored(estimator, positions(1))
    z = positions(2)
    errors = []
    for _ in range(ROWS // BATCH + 1):
        found, state = estimator.estimate(target, state, z, data)
        errors.append(np.abs(found.score - target.full_score(z, data).score).max())
    # The first step had the first batch of a round.
    assert min(errors[:-1]) > 1e-3 and errors[-1] < 1e-10


def test_rows_drawn_twice_count_once_in_the_table() -> None:
    estimator = SAGA("replacement")
    target, data, state = anchored(estimator, positions(1))
    step = jax.jit(lambda state, z: estimator.estimate(target, state, z, data)[1])
    for seed in range(20):
        state = step(state, positions(seed))
    np.testing.assert_allclose(state["sum"], state["table"].sum(0), rtol=1e-11)


def test_costs_are_stated() -> None:
    target, _ = setup()
    assert SVRG(8).evaluations_per_step(target) == pytest.approx(2 * BATCH / ROWS + 1 / 8)
    assert SAGA().evaluations_per_step(target) == pytest.approx(BATCH / ROWS)


@pytest.mark.parametrize("estimator", [Noisy(SVRG(4), level=0.1), SAGA()])
def test_particles_take_them_and_resume_exactly(
    estimator: GradientEstimator, tmp_path: Path
) -> None:
    def make() -> SVGD:
        return SVGD(logistic, optax.adam(0.1), num_particles=3, estimator=estimator)

    data = jnp.asarray(X), jnp.asarray(Y)
    whole = make().run(KEY, 10, *data, progress_bar=False)
    first, second = make(), make()
    first.save(tmp_path / "state", first.run(KEY, 6, *data, progress_bar=False).state)
    state = second.load(tmp_path / "state", *data)
    rest = second.run(KEY, 4, *data, init_state=state, progress_bar=False)
    assert np.isfinite(whole.losses).all()
    np.testing.assert_array_equal(rest.losses, whole.losses[6:])


def test_guides_take_them() -> None:
    engine = ProximalScoreVI(logistic, AutoDiagonalNormal, estimator=SVRG(4))
    losses = engine.run(KEY, 10, jnp.asarray(X), jnp.asarray(Y), progress_bar=False).losses
    assert np.isfinite(losses).all()


def test_svgd_with_variance_reduction_is_svgd_with_svrg() -> None:
    def run(make: Any, **options: Any) -> Any:
        engine = make(logistic, optax.adam(0.1), num_particles=3, **options)
        return engine.run(KEY, 7, jnp.asarray(X), jnp.asarray(Y), progress_bar=False)

    named, plain = run(SVGDVR, anchor_every=3), run(SVGD, estimator=SVRG(3))
    np.testing.assert_array_equal(named.losses, plain.losses)
    np.testing.assert_array_equal(named.params["particles"], plain.params["particles"])
    with pytest.raises(ArgumentError, match="no estimator with SVGDVR"):
        run(SVGDVR, anchor_every=3, estimator=SVRG(3))


@pytest.mark.parametrize("reset", [False, True])
def test_the_optimizer_starts_anew_at_anchors_if_asked(reset: bool) -> None:
    """Adam's first step moves every coordinate by the learning rate, and later ones by less."""
    engine = SVGDVR(
        logistic, optax.adam(0.1), num_particles=3, anchor_every=3, reset_optimizer=reset
    )
    data = jnp.asarray(X), jnp.asarray(Y)
    state = engine.init(KEY, *data)
    first = []
    for _ in range(9):
        before = engine.particles(state)
        state, _ = engine.update(state, *data)
        moved = np.abs(engine.particles(state) - before)
        first.append(np.allclose(moved, 0.1, rtol=1e-3))
    assert first == ([True, False, False] * 3 if reset else [True] + [False] * 8)


def test_refusals() -> None:
    for bad in (0, 2.5, "8"):
        with pytest.raises(ArgumentError, match="anchor_every to be an int >= 1"):
            SVRG(bad)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="sampling to be one of"):
        SAGA("shuffled")  # type: ignore[arg-type]
    target, data = setup()
    with pytest.raises(
        ArgumentError, match=r"at most max_bytes=1000 .*12 rows times 100 pos.*SVRG"
    ):
        SAGA(max_bytes=1000).init(target, data, KEY, 100)

    def local(y: jax.Array) -> None:
        with numpyro.plate("N", len(y), subsample_size=2) as rows:
            mean = numpyro.sample("local", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])

    def crossed(y: jax.Array) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("a", 4, subsample_size=2, dim=-1) as i:
            with numpyro.plate("b", 3, subsample_size=1, dim=-2) as j:
                numpyro.sample("y", dist.Normal(mean, 1.0), obs=y[j[:, None], i])

    def by_argument(y: jax.Array) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("N", 12, subsample_size=len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    cases = [
        (local, jnp.ones(4), SVRG(2), "no latent inside a subsampled plate with SVRG"),
        (local, jnp.ones(4), SAGA(), "no latent inside a subsampled plate with SAGA"),
        (crossed, jnp.ones((3, 4)), SAGA(), r"one subsampled plate with SAGA.*'a', 'b'"),
        (by_argument, jnp.ones(4), SAGA(), "Minibatch draws the rows"),
    ]
    for model, y, estimator, words in cases:
        target = LogDensity(model, KEY, (y,))
        with pytest.raises(ArgumentError, match=words):
            estimator.init(target, target.bind(y), KEY, 2)
    target = LogDensity(crossed, KEY, (jnp.ones((3, 4)),))
    SVRG(2).init(target, target.bind(jnp.ones((3, 4))), KEY, 2)
