"""Options of the gradient solver in NumPyro's package, and its long way for long vectors."""

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
from numpyro.infer import autoguide

from numpyro_ext.diagnostics import elbo
from numpyro_ext.guides import AutoGaussianMixture, AutoMatrixNormal, AutoPlanarFlow, normal
from numpyro_ext.score import ProximalScoreVI, gradient_steps, long_vectors
from numpyro_ext.score.gradient_steps import Reused, _remember, _with_reused
from numpyro_ext.score.long_vectors import lean_adam_step
from ppl_ext.errors import ArgumentError
from ppl_ext.score import STEPS, GradientSteps
from tests.models import numpyro_models

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(3)
GUIDES = ["AutoDiagonalNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal"]


def two_sites() -> None:
    """Sites of three and four latents that depend on each other."""
    a = numpyro.sample("layer.a", dist.Normal(jnp.array([1.0, -2.0, 3.0]), 0.7).to_event(1))
    numpyro.sample("layer.b", dist.Normal(a.sum() * jnp.ones(4), 0.5).to_event(1))


#: Options of the engine, the others being the solver's.
ENGINE = {"initial_scale", "on_nonfinite", "total_steps", "estimator"}


def make(guide: Any = "AutoDiagonalNormal", **options: Any) -> ProximalScoreVI:
    if isinstance(guide, str):
        guide = getattr(autoguide, guide)(two_sites)
    engine = {name: options.pop(name) for name in ENGINE & options.keys()}
    return ProximalScoreVI(two_sites, guide, solver=GradientSteps(**options), **engine)


def changes(engine: ProximalScoreVI, steps: int = 1) -> dict[str, np.ndarray]:
    before = engine.init(KEY)
    state = before
    for _ in range(steps):
        state, _ = engine.update(state)
    start, end = before.algorithm.parameters, state.algorithm.parameters
    return {name: np.asarray(end[name] - start[name]) for name in start}


def flat(values: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([value.ravel() for value in values.values()])


# -- optimizers by site ---------------------------------------------------------------------------


@pytest.mark.parametrize("guide", GUIDES)
def test_sites_move_as_with_their_optimizer_alone(guide: str) -> None:
    """One inner step: the entries of each site are those of a run with its rate for all."""
    optim = {"*.b": numpyro.optim.SGD(0.01), "*": optax.sgd(0.1)}
    mixed = changes(make(guide, optim=optim, num_inner_steps=1))
    fast, slow = (
        changes(make(guide, optim=optax.sgd(rate), num_inner_steps=1)) for rate in (0.1, 0.01)
    )
    for name, value in mixed.items():
        owner = np.arange(len(value)) if len(value) == 7 else None
        if owner is None:
            # The host's vector: rows below the diagonal, then the diagonal.
            owner = np.concatenate([np.tril_indices(7, -1)[0], np.arange(7)])
        first = owner < 3
        np.testing.assert_allclose(value[first], fast[name][first], rtol=1e-10)
        np.testing.assert_allclose(value[~first], slow[name][~first], rtol=1e-10)
        assert abs(value[first]).max() > 0


def test_one_optimizer_for_all_sites_by_pattern_is_that_optimizer() -> None:
    optims = (numpyro.optim.Adam(0.02), {"layer.?": numpyro.optim.Adam(0.02)})
    one, two = (changes(make("AutoMultivariateNormal", optim=optim), 4) for optim in optims)
    np.testing.assert_allclose(flat(one), flat(two), rtol=1e-10)


def test_the_default_stands_for_none() -> None:
    default, mapped = (changes(make(optim=optim), 3) for optim in (None, {"*": None}))
    np.testing.assert_allclose(flat(default), flat(mapped), rtol=1e-10)


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        ({}, "empty mapping"),
        ({"*.a": None}, r"none of \['\*.a'\] for \['layer.b'\]. Add '\*'"),
        ({"layer.*": None, "head.*": None}, r"found \['head.\*'\], which match none"),
    ],
)
def test_patterns_that_fit_no_site_are_refused(patterns: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        make(optim=patterns).init(KEY)


def test_parameters_of_no_site_need_the_rest_pattern() -> None:
    with pytest.raises(ArgumentError, match=r"belong to no single site.*Add '\*'"):
        make(AutoPlanarFlow(two_sites), optim={"layer.*": optax.sgd(0.1)}).init(KEY)
    mixture = AutoGaussianMixture(two_sites, 2)
    make(mixture, optim={"*.a": optax.sgd(0.01), "*": optax.sgd(0.0)}).init(KEY)


# -- clipping, start, reuse ------------------------------------------------------------------------


@pytest.mark.parametrize("guide", GUIDES[:2])
def test_long_gradients_are_shortened_to_the_norm(guide: str) -> None:
    given: dict[str, Any] = {"optim": optax.sgd(1.0), "num_inner_steps": 1}
    whole = flat(changes(make(guide, **given)))
    length = np.linalg.norm(whole)
    assert length > 1.0
    short = flat(changes(make(guide, clip_norm=0.1, **given)))
    np.testing.assert_allclose(short, 0.1 * whole / length, rtol=1e-9, atol=1e-14)
    same = flat(changes(make(guide, clip_norm=1e9, **given)))
    np.testing.assert_allclose(same, whole, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("guide", GUIDES)
def test_initial_scale_is_the_standard_deviation_of_every_coordinate(guide: str) -> None:
    engine = make(guide, initial_scale=0.03)
    state = engine.init(KEY)
    scale = engine.density.moments(state.algorithm.parameters).scale
    deviations = scale if scale.ndim == 1 else jnp.sqrt(jnp.square(scale).sum(-1))
    np.testing.assert_allclose(deviations, 0.03, rtol=1e-6)


def test_initial_scale_of_a_matrix_normal() -> None:
    def model() -> None:
        numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
        numpyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    engine = ProximalScoreVI(model, AutoMatrixNormal, initial_scale=0.03)
    state = engine.init(KEY)
    scale = engine.density.moments(state.algorithm.parameters).scale
    np.testing.assert_allclose(scale, 0.03 * np.eye(9), rtol=1e-6)


def test_guides_that_have_no_scale_to_set_are_told() -> None:
    with pytest.raises(ArgumentError, match=r"with initial_scale, found AutoPlanarFlow"):
        make(AutoPlanarFlow(two_sites), initial_scale=0.1).init(KEY)


def test_reused_draws_are_those_of_the_last_iterations() -> None:
    ring = Reused(jnp.zeros((2, 1, 2)), jnp.zeros((2, 1, 2)), jnp.asarray(0))
    for t in range(1, 6):
        theta = jnp.full((1, 2), float(t))
        used, scores = _with_reused(ring, theta, -theta)
        np.testing.assert_array_equal(scores, -used)
        expected = {t, max(t - 1, 1), max(t - 2, 1)} if t > 2 else {t, 1}
        assert used.shape == (3, 2) and set(np.asarray(used[:, 0]).tolist()) == expected
        assert used[0, 0] == t
        ring = _remember(ring, theta, -theta, jnp.asarray(True))
    broken = _remember(ring, theta * jnp.nan, theta, jnp.asarray(False))
    np.testing.assert_array_equal(broken.theta, ring.theta)
    assert broken.written == ring.written


def test_a_fit_with_reused_draws_finds_the_target() -> None:
    mean, deviations = jnp.array([0.5, -0.3, 0.2]), jnp.array([0.3, 0.5, 0.2])

    def model() -> None:
        numpyro.sample("z", dist.Normal(mean, deviations).to_event(1))

    engine = ProximalScoreVI(
        model, autoguide.AutoDiagonalNormal, solver=GradientSteps(sample_reuse=4)
    )
    state = engine.run(KEY, 3000, progress_bar=False).state
    assert state.algorithm.reused.theta.shape == (3, 1, 3)
    found = engine.density.moments(state.algorithm.parameters)
    np.testing.assert_allclose(found.mean, mean, atol=1e-2)
    np.testing.assert_allclose(found.scale, deviations, rtol=1e-2)


# -- long vectors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_samples": 3, "proximal": 0.7}, {"sample_reuse": 2}])
def test_steps_by_part_are_the_plain_ones(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven coordinates in parts of three, so that the last part overlaps the one before."""
    monkeypatch.setattr(normal, "LONG", 3)
    plain = make(**options)
    state = plain.init(KEY)
    assert not plain.plan.keeps_state
    expected = plain.run(KEY, 6, progress_bar=False)
    monkeypatch.setattr(gradient_steps, "LONG", 3)
    monkeypatch.setattr(long_vectors, "PART", 3)
    engine = make(**options)
    engine.init(KEY)
    assert engine.plan.keeps_state
    found = engine.run(KEY, 6, progress_bar=False)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-10)
    for name, figures in expected.info.items():
        np.testing.assert_allclose(found.info[name], figures, rtol=1e-10)
    before = state.algorithm.parameters
    for name, value in expected.state.algorithm.parameters.items():
        np.testing.assert_allclose(found.state.algorithm.parameters[name], value, rtol=1e-10)
        assert not np.allclose(before[name], value)


def test_a_broken_step_by_part_leaves_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normal, "LONG", 3)
    monkeypatch.setattr(gradient_steps, "LONG", 3)
    monkeypatch.setattr(long_vectors, "PART", 3)

    def model(y: jax.Array) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0).expand([7]).to_event(1))
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    engine = ProximalScoreVI(
        model, autoguide.AutoDiagonalNormal, solver="gradient", on_nonfinite="skip"
    )
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
    for module, name in ((normal, "LONG"), (gradient_steps, "LONG"), (long_vectors, "PART")):
        monkeypatch.setattr(module, name, 3)
    expected = make(num_inner_steps=1).run(KEY, 3, progress_bar=False)

    def unknown(*_: Any) -> jax.Array:
        return jnp.asarray(jnp.inf)

    monkeypatch.setattr(normal.DiagonalNormalDensity, "largest_gradient", unknown)
    found = make(num_inner_steps=1).run(KEY, 3, progress_bar=False)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-12)
    assert found.state.algorithm.optimizer.count == expected.state.algorithm.optimizer.count == 3
    for name, value in expected.params.items():
        np.testing.assert_allclose(found.params[name], value, rtol=1e-12)


def test_the_lean_step_is_adams() -> None:
    gradient, start = jax.random.normal(KEY, (2, 5))
    expected, found = start, start
    adam = optax.adam(0.03)
    host, state = adam.init(start), optax.scale_by_adam().init(start)
    for scale in (1.0, -1e-9, 1e9):
        step, host = adam.update(scale * gradient, host)
        expected = optax.apply_updates(expected, step)
        found, state = lean_adam_step(found, scale * gradient, state, 0.03)
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), state, host[0])


# -- defaults ------------------------------------------------------------------------------------


def scalar() -> None:
    numpyro.sample("x", dist.Normal(1.0, 0.5))


def test_few_coordinates_do_not_fall_into_the_neck_of_a_funnel() -> None:
    """The centred eight schools, whose density has its mode where tau is 0.

    The best diagonal fit has a bound of about -34.6, one in the neck of -48.
    """
    model, args = (
        numpyro_models.eight_schools_centered,
        numpyro_models.arguments("eight_schools_centered"),
    )
    engine = ProximalScoreVI(model, autoguide.AutoDiagonalNormal(model))
    result = engine.run(KEY, 2000, *args, progress_bar=False)
    assert elbo(engine, result.state).value > -37.0


def test_a_factor_that_spans_everything_has_the_gradient_solver() -> None:
    guide = autoguide.AutoLowRankMultivariateNormal(scalar)
    engine = ProximalScoreVI(scalar, guide)
    engine.init(KEY)
    assert engine.plan.solver == GradientSteps().resolved(STEPS["normal"])
    engine = ProximalScoreVI(scalar, guide, solver="regression")
    with pytest.raises(ArgumentError, match="Expected a rank below the number of latents, 1,"):
        engine.init(KEY)


def test_a_single_component_is_fitted() -> None:
    engine = ProximalScoreVI(scalar, AutoGaussianMixture(scalar, 1))
    result = engine.run(KEY, 300, progress_bar=False)
    draws = engine.get_samples(result.state, KEY, 4000)["x"]
    assert abs(float(draws.mean()) - 1.0) < 5 * 0.5 / 4000**0.5
    assert abs(float(draws.std()) - 0.5) < 5 * 0.5 / 8000**0.5


def test_steps_after_a_run_keep_what_it_found() -> None:
    """Twenty time constants in the run; after it, a draw's noise in as many more."""
    scale = jnp.linspace(0.5, 2.0, 20)

    def model() -> None:
        numpyro.sample("x", dist.Normal(jnp.zeros(20), scale).to_event(1))

    engine = ProximalScoreVI(model, autoguide.AutoDiagonalNormal(model))
    state = engine.run(KEY, 400, progress_bar=False).state
    for _ in range(200):
        state, _ = engine.update(state)
    found = engine.get_params(state)["auto_scale"]
    np.testing.assert_allclose(found / scale, 1.0, atol=0.02)
