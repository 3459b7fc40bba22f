"""What only NumPyro's engines of guides have.

Steps are pure functions under ``jax.jit``, draws have keys, and long vectors are updated in place
by an Adam of their own, once it is certain, or has been looked at, that all of it will be finite.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal

from numpyro_ext.guides import normal
from numpyro_ext.score import ProximalScoreVI
from numpyro_ext.score.gradient_steps import Reused, _remember
from numpyro_ext.score.long_vectors import lean_adam_step
from ppl_ext.score_matching.options import GradientSteps
from tests import score_support as support
from tests.backends import use_float64
from tests.guides_support import check_close, face_of
from tests.score_support import GuideRun, by_parts

use_float64()

FACE, KEY = face_of("numpyro"), random.key(0)
Y = jnp.asarray(support.Y)


def test_update_can_be_jitted_and_is_pure() -> None:
    solver, model = GradientSteps(num_inner_steps=2), support.conjugate(FACE)
    engine = ProximalScoreVI(model, AutoMultivariateNormal, solver=solver)
    state = engine.init(KEY, Y)
    first, loss = engine.update(state, Y)
    again, loss_again = jax.jit(engine.update)(state, Y)
    np.testing.assert_allclose(loss, loss_again, rtol=1e-10)
    check_close(first.algorithm.parameters, again.algorithm.parameters, rtol=1e-10, atol=0.0)


def test_results_hold_the_hosts_parameters_and_draws_have_keys() -> None:
    engine = ProximalScoreVI(support.conjugate(FACE), AutoMultivariateNormal)
    result = engine.run(KEY, 3, Y, progress_bar=False)
    assert set(result.params) == {"auto_loc", "auto_scale_tril"}
    check_close(result.params, engine.get_params(result.state), rtol=0.0, atol=0.0)
    one, same, other = (
        engine.get_samples(result.state, key, 5)["mu"] for key in (KEY, KEY, random.key(3))
    )
    np.testing.assert_array_equal(one, same)
    assert not np.any(one == other)


def test_broken_draws_are_not_remembered() -> None:
    ring = Reused(jnp.zeros((2, 1, 2)), jnp.zeros((2, 1, 2)), jnp.asarray(0))
    theta = jnp.ones((1, 2))
    ring = _remember(ring, theta, -theta, jnp.asarray(True))
    broken = _remember(ring, theta * jnp.nan, theta, jnp.asarray(False))
    np.testing.assert_array_equal(broken.theta, ring.theta)
    assert broken.written == ring.written == 1


def test_a_broken_step_by_part_leaves_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    by_parts(FACE, monkeypatch, 3)

    def model(y: jax.Array) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0).expand([7]).to_event(1))
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    engine = ProximalScoreVI(model, AutoDiagonalNormal, solver="gradient", on_nonfinite="skip")
    state = engine.init(KEY, jnp.ones(7))
    state, _ = engine.update(state, jnp.ones(7))
    before = jax.tree.map(np.asarray, (state.algorithm.parameters, state.algorithm.optimizer))
    # Only the last part is broken: the others must not have moved either.
    state, _ = engine.update(state, jnp.ones(7).at[6].set(jnp.inf))
    after = jax.tree.map(np.asarray, (state.algorithm.parameters, state.algorithm.optimizer))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    state, _ = engine.update(state, jnp.ones(7))
    assert (np.asarray(state.algorithm.parameters["auto_loc"]) != before[0]["auto_loc"]).all()


def test_steps_are_looked_at_first_where_no_bound_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bound at infinity the same steps are taken, and one inner step is one."""
    by_parts(FACE, monkeypatch, 3)

    def run() -> GuideRun:
        solver = GradientSteps(num_inner_steps=1)
        return GuideRun(FACE, support.two_sites(FACE), "AutoDiagonalNormal", solver=solver).run(3)

    def unknown(*_: Any) -> jax.Array:
        return jnp.asarray(jnp.inf)

    expected = run()
    monkeypatch.setattr(normal.DiagonalNormalDensity, "largest_gradient", unknown)
    found = run()
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-12)
    np.testing.assert_allclose(found.flat, expected.flat, rtol=1e-12)
    for each in (found, expected):
        assert each.state.algorithm.optimizer.count == 3


def test_the_lean_step_is_adams() -> None:
    gradient, start = random.normal(KEY, (2, 5))
    expected, found = start, start
    adam = optax.adam(0.03)
    host, state = adam.init(start), optax.scale_by_adam().init(start)
    for scale in (1.0, -1e-9, 1e9):
        step, host = adam.update(scale * gradient, host)
        expected = optax.apply_updates(expected, step)
        found, state = lean_adam_step(found, scale * gradient, state, 0.03)
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), state, host[0])
