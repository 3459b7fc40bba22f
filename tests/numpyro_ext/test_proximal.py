"""Proximal score-matching inference for NumPyro."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from numpyro_ext.diagnostics import elbo
from numpyro_ext.gradients import Full
from numpyro_ext.guides import (
    AutoGaussianMixture,
    AutoMatrixNormal,
    AutoPlanarFlow,
    flat_density,
    normal,
)
from numpyro_ext.score import ProximalScoreVI, gradient_steps, long_vectors
from numpyro_ext.score.objective import blended_target, proximal_gradient
from numpyro_ext.score.regression import CLOSED_FORMS
from numpyro_ext.score.regression.mixture import MixtureForm
from ppl_ext.errors import ArgumentError, ModelCheckError, NonFiniteError
from ppl_ext.score import GradientSteps, Regression
from tests.models import numpyro_models, zoo

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
MEAN, COVARIANCE = zoo.GAUSSIAN_5D_MEAN, zoo.GAUSSIAN_5D_COVARIANCE
Y = jnp.linspace(-2.0, 4.0, 40) + jnp.sin(jnp.linspace(0.0, 3.0, 40))


def gaussian() -> None:
    numpyro.sample("z", dist.MultivariateNormal(jnp.asarray(MEAN), jnp.asarray(COVARIANCE)))


def independent() -> None:
    scale = jnp.array([0.3, 1.0, 2.0])
    numpyro.sample("z", dist.Normal(jnp.array([1.0, -2.0, 2.0]), scale).to_event(1))


def lognormal() -> None:
    numpyro.sample("x", dist.LogNormal(0.3, 0.5))


def conjugate(y: jax.Array, batch: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", len(y), subsample_size=batch) as rows:
        numpyro.sample("y", dist.Normal(mu, 2.0), obs=y[rows])


def conjugate_posterior(temperature: float = 1.0) -> tuple[float, float]:
    precision = 1 / 9 + len(Y) / 4 / temperature
    return float(Y.sum() / 4 / temperature / precision), precision**-0.5


def moments_of(engine: ProximalScoreVI, state: Any) -> tuple[np.ndarray, np.ndarray]:
    mean, scale = map(np.asarray, engine.density.moments(state.algorithm.parameters))
    return mean, np.diag(scale) if scale.ndim == 1 else scale


def kl_normal(mean: Any, covariance: Any, other_mean: Any, other_covariance: Any) -> float:
    precision, difference = np.linalg.inv(other_covariance), other_mean - mean
    log_ratio = np.linalg.slogdet(other_covariance)[1] - np.linalg.slogdet(covariance)[1]
    square = difference @ precision @ difference
    return 0.5 * (np.trace(precision @ covariance) + square - len(mean) + log_ratio)


def forward_kl(engine: ProximalScoreVI, state: Any, mean: Any, covariance: Any) -> float:
    fitted, scale_tril = moments_of(engine, state)
    return kl_normal(mean, covariance, fitted, scale_tril @ scale_tril.T)


# -- pure functions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "guide_class", [AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal]
)
def test_inner_gradient_is_that_of_the_two_term_objective(guide_class) -> None:
    density = flat_density(guide_class(gaussian), KEY)
    present = density.initial_parameters()
    parameters = {
        name: value + 0.3 * jax.random.normal(jax.random.key(i), value.shape)
        for i, (name, value) in enumerate(present.items())
    }
    theta = density.sample(present, KEY, 3)
    score, weight = jax.random.normal(KEY, (3, 5)), 0.7
    present_score = density.score(present, theta)
    target = blended_target(score, present_score, weight)
    step = jax.jit(lambda p: proximal_gradient(density, p, theta, target, weight))
    _, gradient = step(parameters)

    def objective(parameters):
        fitted = density.score(parameters, theta)
        return (
            weight * jnp.square(fitted - present_score).sum(-1) + jnp.square(fitted - score).sum(-1)
        ).mean()

    expected = jax.jit(jax.grad(objective))(parameters)
    for name, value in expected.items():
        np.testing.assert_allclose(gradient[name], value, rtol=1e-8, atol=1e-10)


# -- fits ------------------------------------------------------------------------------------------


def test_full_normal_on_a_correlated_normal_by_gradient_steps() -> None:
    engine = ProximalScoreVI(gaussian, AutoMultivariateNormal(gaussian), solver="gradient")
    result = engine.run(KEY, 2000, progress_bar=False)
    assert forward_kl(engine, result.state, MEAN, COVARIANCE) < 1e-4
    assert result.losses.shape == (2000,) and result.losses[-1] < 1e-2 < result.losses[0]
    # With an exact guide log p - log q is the log evidence, zero here, at every point.
    gap = result.info["log_p"][-20:] - result.info["log_q"][-20:]
    np.testing.assert_allclose(gap, 0.0, atol=0.05)


def test_full_normal_on_a_correlated_normal_by_regression() -> None:
    engine = ProximalScoreVI(gaussian, AutoMultivariateNormal, solver="regression")
    result = engine.run(KEY, 300, progress_bar=False)
    assert forward_kl(engine, result.state, MEAN, COVARIANCE) < 1e-8


def solver_of(name: str, num_inner_steps: int) -> GradientSteps | Regression:
    """The solver, with inner steps where it has them."""
    return GradientSteps(num_inner_steps=num_inner_steps) if name == "gradient" else Regression()


@pytest.mark.parametrize("solver", ["gradient", "regression"])
def test_diagonal_normal_is_exact_on_a_diagonal_normal(solver) -> None:
    guide = AutoDiagonalNormal(independent, init_scale=0.5)
    engine = ProximalScoreVI(independent, guide, solver=solver_of(solver, 10))
    result = engine.run(KEY, {"gradient": 3000, "regression": 300}[solver], progress_bar=False)
    mean, scale = engine.density.moments(result.state.algorithm.parameters)
    np.testing.assert_allclose(mean, [1.0, -2.0, 2.0], atol=1e-4)
    np.testing.assert_allclose(scale, [0.3, 1.0, 2.0], rtol=1e-4)


def test_low_rank_normal_on_a_normal_of_its_form() -> None:
    factor = np.array([[1.0], [-0.5], [0.8], [0.0]])
    covariance = factor @ factor.T + np.diag([0.3, 0.5, 0.2, 0.6])
    mean = np.array([1.0, 0.0, -1.0, 2.0])

    def model() -> None:
        numpyro.sample("z", dist.MultivariateNormal(mean, covariance))

    guide = AutoLowRankMultivariateNormal(model, rank=1, init_scale=0.5)
    engine = ProximalScoreVI(model, guide)
    result = engine.run(KEY, 1000, progress_bar=False)
    assert forward_kl(engine, result.state, mean, covariance) < 1e-4


def test_flow_lowers_its_residual() -> None:
    engine = ProximalScoreVI(
        lambda: numpyro.sample("x", dist.Gamma(jnp.array([2.0, 3.0]), 1.0).to_event(1)),
        AutoIAFNormal,
        solver=GradientSteps(num_inner_steps=3, num_samples=8),
    )
    result = engine.run(KEY, 400, progress_bar=False)
    assert np.median(result.losses[-50:]) < 0.3 * np.median(result.losses[:20])
    draws = engine.get_samples(result.state, KEY, 4000)["x"]
    assert (jnp.abs(draws.mean(0) - jnp.array([2.0, 3.0])) < 0.4).all()


@pytest.mark.parametrize("solver", ["gradient", "regression"])
def test_jacobian_of_a_constrained_site(solver) -> None:
    engine = ProximalScoreVI(lognormal, AutoMultivariateNormal, solver=solver)
    result = engine.run(KEY, 400, progress_bar=False)
    mean, scale = moments_of(engine, result.state)
    assert mean.item() == pytest.approx(0.3, abs=1e-4)
    assert scale.item() == pytest.approx(0.5, abs=1e-4)
    draws = engine.get_samples(result.state, num_samples=2000)["x"]
    assert jnp.log(draws).mean() == pytest.approx(0.3, abs=5 * 0.5 / 2000**0.5)


@pytest.mark.parametrize(
    ("solver", "guide_class"),
    [("gradient", AutoDiagonalNormal), ("regression", AutoMultivariateNormal)],
)
def test_minibatch_scores_fit_the_full_posterior(solver, guide_class) -> None:
    engine = ProximalScoreVI(conjugate, guide_class, solver=solver)
    result = engine.run(KEY, 3000, Y, batch=5, progress_bar=False)
    mean, deviation = conjugate_posterior()
    fitted, scale = moments_of(engine, result.state)
    # One minibatch score has variance about (N^2/B) var(y)/16 = 35 posterior precisions; the last
    # third of the run averages about 1000 of them.
    assert abs(fitted.item() - mean) < 0.5 * deviation
    assert 0.7 < scale.item() / deviation < 1.4


def test_full_sweep_and_temperature() -> None:
    engine = ProximalScoreVI(
        conjugate,
        AutoMultivariateNormal,
        solver="regression",
        estimator=Full(),
        likelihood_temperature=0.2,
    )
    result = engine.run(KEY, 200, Y, batch=5, progress_bar=False)
    mean, deviation = conjugate_posterior(0.2)
    fitted, scale = moments_of(engine, result.state)
    assert fitted.item() == pytest.approx(mean, abs=1e-6)
    assert scale.item() == pytest.approx(deviation, rel=1e-6)


# -- the host --------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["gradient", "regression"])
def test_result_is_usable_in_the_host(solver) -> None:
    guide = AutoMultivariateNormal(conjugate)
    engine = ProximalScoreVI(conjugate, guide, solver=solver_of(solver, 5))
    result = engine.run(KEY, 300, Y, progress_bar=False)
    fitted, scale = moments_of(engine, result.state)
    params = result.params
    assert set(params) == {"auto_loc", "auto_scale_tril"}
    np.testing.assert_allclose(guide.median(params)["mu"], fitted[0])
    for predictive in [
        Predictive(conjugate, posterior_samples=engine.get_samples(result.state, KEY, 2000)),
        Predictive(conjugate, guide=guide, params=params, num_samples=2000),
    ]:
        assert predictive(KEY, jnp.zeros(3))["y"].shape == (2000, 3)
    draws = guide.sample_posterior(KEY, params, sample_shape=(2000,))["mu"]
    assert abs(draws.mean() - fitted[0]) < 5 * scale.item() / 2000**0.5

    svi = SVI(conjugate, guide, numpyro.optim.Adam(1e-3), Trace_ELBO())
    state, _ = svi.update(svi.init(KEY, Y, init_params=params), Y)
    moved = guide.median(svi.get_params(state))["mu"] - fitted[0]
    assert 0 < abs(moved) < 1.1e-3


def test_samples_have_supports_of_their_own() -> None:
    def model() -> None:
        a = numpyro.sample("a", dist.LogNormal(0.0, 1.0))
        numpyro.sample("b", dist.Uniform(0.0, a))

    engine = ProximalScoreVI(model, AutoDiagonalNormal)
    result = engine.run(KEY, 20, progress_bar=False)
    draws = engine.get_samples(result.state)
    assert draws["a"].shape == draws["b"].shape == (1000,)
    assert (draws["b"] < draws["a"]).all() and (draws["b"] > 0).all()
    other = engine.get_samples(result.state, jax.random.key(3))
    assert not np.array_equal(draws["a"], other["a"])


# -- runs ------------------------------------------------------------------------------------------

CASES: list[GradientSteps | Regression] = [
    GradientSteps(num_inner_steps=3),
    Regression(),
    GradientSteps(optax.adam(optax.exponential_decay(0.01, 10, 0.9))),
    GradientSteps(sample_reuse=3, clip_norm=1.0),
    GradientSteps({"m*": numpyro.optim.Adam(0.02), "*": None}),
    GradientSteps(numpyro.optim.ClippedAdam(0.01)),
]


def assert_identical(first: Any, second: Any) -> None:
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("solver", CASES[:-1])
def test_resumed_run_is_bit_identical(solver: Any, tmp_path: Path) -> None:
    def make() -> ProximalScoreVI:
        return ProximalScoreVI(conjugate, AutoMultivariateNormal(conjugate), solver=solver)

    engine = make()
    whole = engine.run(KEY, 30, Y, batch=7, progress_bar=False)
    path = tmp_path / "state"
    first = engine.run(
        KEY,
        30,
        Y,
        batch=7,
        progress_bar=False,
        callback=lambda step, state, info: step == 13,
        callback_every=13,
        checkpoint=path,
    )
    assert int(first.state.step) == 13
    second = make()
    state = second.load(path, Y, batch=7)
    rest = second.run(KEY, 17, Y, batch=7, progress_bar=False, init_state=state)
    np.testing.assert_array_equal(np.concatenate([whole.losses[:13], rest.losses]), whole.losses)
    assert_identical(rest.state, whole.state)


def test_run_length_reaches_the_proximal_weight() -> None:
    def weight_in(engine: ProximalScoreVI, state: Any) -> float:
        solver, total = engine._chosen_solver(), engine._total(state)
        return float(solver.weight(state.step, total, engine._progress(state)))

    engine = ProximalScoreVI(conjugate, AutoDiagonalNormal, solver=GradientSteps(num_inner_steps=1))
    state = engine.init(KEY, Y)
    assert weight_in(engine, state) == 0.0
    state, _ = engine.update(state, Y)
    assert weight_in(engine, state) == 0.0  # T is not known
    result = engine.run(KEY, 3, Y, progress_bar=False, init_state=state)
    assert int(result.state.horizon) == 4
    assert weight_in(engine, result.state._replace(step=jnp.asarray(3))) == 0.75
    assert weight_in(engine, result.state) == 0.0  # the run and its T are over

    engine = ProximalScoreVI(conjugate, AutoDiagonalNormal, solver="gradient", total_steps=8)
    # The run is over, but its horizon of 4 steps is still in the state.
    assert weight_in(engine, result.state) == 0.5
    state, _ = engine.update(engine.init(KEY, Y), Y)
    assert weight_in(engine, state) == 0.125
    engine = ProximalScoreVI(
        conjugate, AutoDiagonalNormal, solver=GradientSteps(proximal=lambda t, total: t + total)
    )
    assert weight_in(engine, state._replace(horizon=jnp.asarray(5))) == 6.0
    engine = ProximalScoreVI(conjugate, AutoDiagonalNormal, solver=GradientSteps(proximal=0.25))
    assert weight_in(engine, state) == 0.25


def test_steps_after_a_run_still_move_the_guide() -> None:
    engine = ProximalScoreVI(conjugate, AutoDiagonalNormal, solver="gradient")
    result = engine.run(KEY, 3, Y, progress_bar=False)
    state, _ = engine.update(result.state, Y)
    for name, value in result.state.algorithm.parameters.items():
        assert np.all(np.asarray(state.algorithm.parameters[name]) != np.asarray(value))


def test_proximal_weight_reaches_the_inner_steps() -> None:
    def moved(weight: float, inner: int) -> np.ndarray:
        engine = ProximalScoreVI(
            conjugate,
            AutoDiagonalNormal,
            solver=GradientSteps(numpyro.optim.SGD(1e-6), proximal=weight, num_inner_steps=inner),
        )
        start = engine.init(KEY, Y)
        state, _ = engine.update(start, Y)
        before, after = start.algorithm.parameters, state.algorithm.parameters
        return np.concatenate([np.ravel(after[name] - before[name]) for name in before])

    # The pull is zero where the guide stands, so only the second inner step feels it.
    np.testing.assert_allclose(moved(9.0, 1), moved(0.0, 1), rtol=1e-9)
    free, held = moved(0.0, 2), moved(9.0, 2)
    assert np.linalg.norm(held) < 0.999 * np.linalg.norm(free)


def test_update_can_be_jitted_and_is_pure() -> None:
    engine = ProximalScoreVI(
        conjugate, AutoMultivariateNormal, solver=GradientSteps(num_inner_steps=2)
    )
    state = engine.init(KEY, Y)
    first, loss = engine.update(state, Y)
    again, loss_again = jax.jit(engine.update)(state, Y)
    np.testing.assert_allclose(loss, loss_again, rtol=1e-10)
    for name, value in first.algorithm.parameters.items():
        np.testing.assert_allclose(value, again.algorithm.parameters[name], rtol=1e-10)


def test_one_model_evaluation_per_iteration_and_no_retrace() -> None:
    runs = []

    def counted() -> None:
        runs.append(0)
        independent()

    engine = ProximalScoreVI(
        counted, AutoDiagonalNormal(independent), solver=GradientSteps(num_inner_steps=7)
    )
    state = engine.init(KEY)
    before = len(runs)
    for _ in range(3):
        state, _ = engine.update(state)
    # The score of the one batch, traced once, whatever the number of inner and outer steps.
    assert len(runs) - before <= 2


@pytest.mark.parametrize("solver", CASES[1::2])
def test_broken_step_leaves_the_fit(solver: Any) -> None:
    engine = ProximalScoreVI(conjugate, AutoMultivariateNormal, solver=solver)
    state = engine.run(KEY, 20, Y, progress_bar=False).state
    with pytest.raises(NonFiniteError) as caught:
        engine.run(KEY, 3, jnp.full((40,), 1e300), progress_bar=False, init_state=state)
    assert_identical(caught.value.state.algorithm, state.algorithm)


# -- refusals --------------------------------------------------------------------------------------


def test_guides_are_refused_before_any_step() -> None:
    with pytest.raises(ArgumentError, match=r"found AutoNormal: .*AutoDiagonalNormal"):
        ProximalScoreVI(gaussian, AutoNormal(gaussian))
    guide = AutoIAFNormal(gaussian)
    with pytest.raises(ArgumentError, match="solver='gradient', which takes every guide"):
        ProximalScoreVI(gaussian, guide, solver="regression")
    engine = ProximalScoreVI(gaussian, AutoMultivariateNormal(independent))
    with pytest.raises(ArgumentError, match="the same model that the engine is given"):
        engine.init(KEY)


def test_local_latents_in_a_subsampled_plate_are_refused() -> None:
    def model() -> None:
        with numpyro.plate("N", 10, subsample_size=3) as rows:
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=Y[rows])

    engine = ProximalScoreVI(model, AutoDiagonalNormal(model))
    with pytest.raises(ModelCheckError, match="z"):
        engine.init(KEY)


def test_state_of_another_solver_or_guide_is_refused(tmp_path: Path) -> None:
    engine = ProximalScoreVI(gaussian, AutoMultivariateNormal, solver="gradient")
    result = engine.run(KEY, 2, progress_bar=False)
    engine.save(tmp_path / "state", result.state)
    for other, words in [
        (
            ProximalScoreVI(gaussian, AutoMultivariateNormal, solver="regression"),
            "another solver: expected Regression.*, found GradientSteps",
        ),
        (
            ProximalScoreVI(gaussian, AutoDiagonalNormal, solver="gradient"),
            "another guide: expected AutoDiagonalNormal, found AutoMultivariateNormal",
        ),
    ]:
        with pytest.raises(ArgumentError, match=words):
            other.load(tmp_path / "state")


@pytest.mark.parametrize("option", ["likelihood_temperature", "decay", "trust"])
def test_state_of_other_options_is_refused(option: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "likelihood_temperature": {"likelihood_temperature": 0.5},
        "decay": {"solver": Regression(decay=0.8)},
        "trust": {"solver": Regression(trust=1.5)},
    }
    words = {"likelihood_temperature": "temperature: expected 0.5"}
    engine = ProximalScoreVI(gaussian, AutoDiagonalNormal)
    engine.save(tmp_path / "state", engine.run(KEY, 2, progress_bar=False).state)
    loaded = ProximalScoreVI(gaussian, AutoDiagonalNormal, **options[option])
    with pytest.raises(ArgumentError, match=words.get(option, f"another solver: .*{option}=")):
        loaded.load(tmp_path / "state")


def test_wrong_kinds_of_arguments_are_told() -> None:
    with pytest.raises(ArgumentError, match=r"AutoGaussianMixture: .*num_components.*\(model, "):
        ProximalScoreVI(gaussian, AutoGaussianMixture)
    engine = ProximalScoreVI(
        gaussian, AutoDiagonalNormal, solver=GradientSteps({1: None, "*": None})
    )
    with pytest.raises(ArgumentError, match=r"patterns of site names .*\[1, '\*'\]"):
        engine.init(KEY)
    engine = ProximalScoreVI(conjugate, AutoDiagonalNormal)
    state = engine.run(KEY, 2, Y, progress_bar=False).state
    with pytest.raises(ArgumentError, match=r"args to be a tuple.*args=\(x,\)"):
        elbo(engine, state, args=Y)


def test_trust_and_decay_reach_the_closed_form() -> None:
    engine = ProximalScoreVI(
        conjugate, AutoMultivariateNormal, solver=Regression(trust=2.0, decay=0.7)
    )
    engine.run(KEY, 1, Y, progress_bar=False)
    assert (engine.plan.executor.form.trust, engine.plan.executor.form.decay) == (2.0, 0.7)


FLEXIBLE: dict[str, Any] = {
    "low-rank mixture": lambda model: AutoGaussianMixture(model, 2, "low_rank"),
    "planar flow": AutoPlanarFlow,
    "host's flow": AutoIAFNormal,
}
GRADIENT_DEFAULTS: list[tuple[Any, tuple[int, int, float, float | None]]] = [
    (AutoDiagonalNormal, (1, 2, 0.01, None)),
    (AutoMultivariateNormal, (2, 20, 0.01, None)),
    (functools.partial(AutoGaussianMixture, num_components=2), (2, 20, 0.01, None)),
    (FLEXIBLE["low-rank mixture"], (8, 2, 0.005, 1.0)),
    (FLEXIBLE["planar flow"], (8, 2, 0.005, 1.0)),
    (FLEXIBLE["host's flow"], (16, 1, 0.002, 1.0)),
]


@pytest.mark.parametrize(("make", "expected"), GRADIENT_DEFAULTS)
def test_default_steps_of_the_gradient_solver(make: Any, expected: tuple[Any, ...]) -> None:
    engine = ProximalScoreVI(gaussian, make(gaussian), solver="gradient")
    engine.init(KEY)
    plan = engine.plan
    found = plan.num_samples, plan.solver.num_inner_steps, plan.learning_rate, plan.clip_norm
    assert found == expected
    solver = GradientSteps(num_samples=3, num_inner_steps=4, clip_norm=0.5)
    engine = ProximalScoreVI(gaussian, make(gaussian), solver=solver)
    engine.init(KEY)
    assert engine.plan.solver == solver
    engine = ProximalScoreVI(gaussian, make(gaussian), solver=GradientSteps(optax.adam(0.01)))
    engine.init(KEY)
    assert engine.plan.clip_norm is None


@pytest.mark.slow
@pytest.mark.parametrize("name", FLEXIBLE)
def test_default_steps_do_not_break_down_on_a_hierarchical_program(name: str) -> None:
    """Twenty larger steps on two draws did, in the first hundred iterations."""
    model, arguments = (
        numpyro_models.eight_schools_noncentered,
        numpyro_models.arguments("eight_schools_noncentered"),
    )
    bounds = []
    for guide in (AutoMultivariateNormal(model), FLEXIBLE[name](model)):
        engine = ProximalScoreVI(model, guide)
        state = engine.run(KEY, 2000, *arguments, progress_bar=False).state
        bound = elbo(engine, state, num_samples=4000)
        bounds.append(bound.value)
    # A richer guide than a Normal, up to the noise of its fit.
    assert bounds[1] > bounds[0] - 0.3


WITH_CLOSED_FORM = {
    "full": AutoMultivariateNormal,
    "diagonal": AutoDiagonalNormal,
    "low_rank": functools.partial(AutoLowRankMultivariateNormal, rank=1),
    "matrix_normal": AutoMatrixNormal,
    "mixture": functools.partial(AutoGaussianMixture, num_components=2),
}


@pytest.mark.parametrize("structure", WITH_CLOSED_FORM)
def test_closed_forms_follow_trust_decay_and_the_length_of_the_run(structure: str) -> None:
    mean, scale = jnp.arange(6.0), jnp.linspace(0.3, 2.0, 6)

    def model() -> None:
        prior = dist.Normal(mean.reshape(2, 3), scale.reshape(2, 3))
        numpyro.sample("w", prior.to_event(2))

    density = flat_density(WITH_CLOSED_FORM[structure](model), KEY)
    start = density.initial_parameters()

    # Trust and decay are traced too, so that all is compiled once.
    @jax.jit
    def after_fifteen(trust: Any, decay: Any, total: Any) -> Any:
        form = CLOSED_FORMS[structure](density, decay, trust)

        def step(carry: Any, key: Any) -> tuple[Any, None]:
            state, parameters = carry
            theta = form.draw(parameters, key, 4)
            noise = jax.random.normal(jax.random.fold_in(key, 1), theta.shape)
            score = (mean - theta) / jnp.square(scale) + noise
            log_density = -0.5 * jnp.square((mean - theta) / scale).sum(-1)
            return form.update(state, parameters, theta, score, total, log_density), None

        keys = jax.random.split(KEY, 15)
        return jax.lax.scan(step, (form.initial(start), start), keys)[0][1]

    def difference(other: Any) -> float:
        gaps = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), found, other)
        return float(max(jax.tree.leaves(gaps)))

    found = after_fifteen(1.25, 0.9, 15)
    assert difference(after_fifteen(1.001, 0.9, 15)) > 1e-3
    assert (difference(after_fifteen(1.25, 0.5, 15)) > 1e-3) == (structure != "mixture")
    assert (difference(after_fifteen(1.25, 0.9, 0)) > 1e-3) == (structure != "low_rank")


def test_the_length_of_the_run_reaches_the_closed_form() -> None:
    def after_eight(total_steps: int | None) -> Any:
        guide = AutoDiagonalNormal(independent)
        engine = ProximalScoreVI(independent, guide, total_steps=total_steps)
        state = engine.init(KEY)
        for _ in range(8):
            state, _ = engine.update(state)
        return state.algorithm.parameters

    known, unknown = after_eight(8), after_eight(None)
    assert all(np.abs(known[name] - value).max() > 1e-3 for name, value in unknown.items())


def test_the_closed_form_is_given_the_tempered_density(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(y: jax.Array) -> None:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)

    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def look(form: Any, state: Any, parameters: Any, *given: Any) -> Any:
        jax.debug.callback(lambda *each: seen.append(each), given[0][:, 0], given[-1])
        return state, parameters

    monkeypatch.setattr(MixtureForm, "update", look)
    guide = AutoGaussianMixture(model, 2)
    engine = ProximalScoreVI(
        model, guide, solver=Regression(num_samples=8), likelihood_temperature=0.25
    )
    engine.update(engine.init(KEY, jnp.asarray(2.0)), jnp.asarray(2.0))
    jax.effects_barrier()
    x, log_density = (np.asarray(each) for each in seen[0])
    expected = -0.5 * np.square(x) - 0.5 * np.square(2.0 - x) / 0.25
    assert x.std() > 0.01
    np.testing.assert_allclose(log_density - log_density[0], expected - expected[0], rtol=1e-9)


def test_new_parameters_that_are_not_finite_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = ProximalScoreVI(conjugate, AutoMultivariateNormal, solver="regression")
    state = engine.init(KEY, Y)
    update = engine.plan.executor.form.update

    def broken(*given: Any) -> Any:
        regression, parameters = update(*given)
        return regression, {name: value * jnp.nan for name, value in parameters.items()}

    monkeypatch.setattr(engine.plan.executor.form, "update", broken)
    with pytest.raises(NonFiniteError) as caught:
        engine.run(KEY, 1, Y, progress_bar=False, init_state=state)
    assert_identical(caught.value.state.algorithm, state.algorithm)


@pytest.mark.parametrize("by_part", [False, True])
def test_draws_of_a_broken_step_are_not_used_again(
    by_part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(size: jax.Array) -> None:
        x = numpyro.sample("x", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        numpyro.factor("size", size * x.sum())

    if by_part:
        for module, name in ((normal, "LONG"), (gradient_steps, "LONG"), (long_vectors, "PART")):
            monkeypatch.setattr(module, name, 2)
    guide = AutoDiagonalNormal(model)
    engine = ProximalScoreVI(
        model, guide, solver=GradientSteps(sample_reuse=3), on_nonfinite="skip"
    )
    state, _ = engine.update(engine.init(KEY, jnp.asarray(1.0)), jnp.asarray(1.0))
    assert engine.plan.keeps_state == by_part
    before = jax.tree.map(np.asarray, state.algorithm.reused)
    # Its score is finite, and the square of that is not.
    state, loss = engine.update(state, jnp.asarray(1e200))
    assert np.isnan(loss) and int(state.skipped) == 1
    assert_identical(state.algorithm.reused, before)
    state, _ = engine.update(state, jnp.asarray(1.0))
    assert int(state.algorithm.reused.written) == 2
