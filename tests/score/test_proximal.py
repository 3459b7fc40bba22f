"""Proximal score matching in both packages: fits, the host's verbs, runs, refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from ppl_ext.errors import ArgumentError, ModelCheckError, NonFiniteError
from ppl_ext.score_matching.options import STEPS, GradientSteps, Regression
from tests import score_support as support
from tests import test_contracts as contracts
from tests.backends import use_float64
from tests.guides_support import RATE, check_close, divergence, normal
from tests.score_support import COVARIANCE, MEAN, GuideRun, Noted, Y, guide_of, room
from tests.stein_support import optimizer

use_float64()

each_solver = pytest.mark.parametrize("solver", ["gradient", "regression"])


def solver_of(name: str, num_inner_steps: int) -> GradientSteps | Regression:
    """The solver, with inner steps where it has them."""
    return GradientSteps(num_inner_steps=num_inner_steps) if name == "gradient" else Regression()


def fit(face: Any, model: Any, guide: Any, steps: int, **options: Any) -> GuideRun:
    return GuideRun(face, model, guide, **options).run(steps)


@pytest.mark.parametrize("guide", ["Diagonal", "Multivariate", "LowRankMultivariate"])
def test_inner_gradient_is_that_of_the_two_term_objective(face: Any, guide: str) -> None:
    density = face.density(guide_of(face, f"Auto{guide}Normal", support.gaussian(face)))
    objective = room(face, "score.objective")
    present, parameters = density.initial_parameters(), face.random(density, 0.3)
    theta, score = normal(1, 3, 5), face.array(normal(2, 3, 5))
    present_score = face.array(face.call(density.score, present, theta))
    weight, theta = 0.7, face.array(theta)

    def step(parameters: Any) -> Any:
        target = objective.blended_target(score, present_score, weight)
        return objective.proximal_gradient(density, parameters, theta, target, weight)[1]

    def plain(parameters: Any) -> Any:
        fitted = density.score(parameters, theta)
        pull, match = (((fitted - other) ** 2).sum(-1) for other in (present_score, score))
        return (weight * pull + match).mean()

    check_close(
        face.numpy(face.backend.compiled(step)(parameters)), face.gradient(plain, parameters)
    )


# -- fits ------------------------------------------------------------------------------------------


@pytest.mark.in_one_package
def test_full_normal_on_a_correlated_normal_by_gradient_steps(face: Any) -> None:
    steps = {"pyro": 1200, "numpyro": 4000}[face.name]
    model = support.gaussian(face)
    run = fit(
        face, model, guide_of(face, "AutoMultivariateNormal", model), steps, solver="gradient"
    )
    assert divergence(MEAN, COVARIANCE, run.moments[0], run.covariance) < 1e-4
    assert run.losses.shape == (steps,) and run.losses[-1] < 1e-2 < run.losses[0]
    # With an exact guide log p - log q is the log evidence, zero here, at every point.
    np.testing.assert_allclose((run.info("log_p") - run.info("log_q"))[-20:], 0.0, atol=0.05)


def test_full_normal_on_a_correlated_normal_by_regression(face: Any) -> None:
    model = support.gaussian(face)
    run = fit(face, model, "AutoMultivariateNormal", 300, solver="regression")
    assert divergence(MEAN, COVARIANCE, run.moments[0], run.covariance) < 1e-8


@pytest.mark.in_one_package
@each_solver
def test_diagonal_normal_is_exact_on_a_diagonal_normal(face: Any, solver: str) -> None:
    model = support.independent(face)
    guide = guide_of(face, "AutoDiagonalNormal", model, init_scale=0.5)
    steps = {"gradient": {"pyro": 2500, "numpyro": 3000}[face.name], "regression": 300}[solver]
    run = fit(face, model, guide, steps, solver=solver_of(solver, 10))
    mean, scale = run.moments
    np.testing.assert_allclose(mean, support.CENTER, rtol=0, atol=1e-4)
    np.testing.assert_allclose(np.diag(scale), support.WIDTH, rtol=1e-4)


def test_low_rank_normal_on_a_normal_of_its_form(face: Any) -> None:
    factor, mean = np.array([[1.0], [-0.5], [0.8], [0.0]]), np.array([1.0, 0.0, -1.0, 2.0])
    covariance = factor @ factor.T + np.diag([0.3, 0.5, 0.2, 0.6])
    model = support.correlated(face, mean, covariance)
    guide = guide_of(face, "AutoLowRankMultivariateNormal", model, rank=1, init_scale=0.5)
    run = fit(face, model, guide, {"pyro": 500, "numpyro": 1000}[face.name])
    assert divergence(mean, covariance, run.moments[0], run.covariance) < 1e-4


def test_where_a_structured_normal_comes_to_rest(face: Any) -> None:
    """A matrix normal for a matrix of independent Normals, whose precisions are no outer product.

    The gradient solver's stationary point, tr[dP (Sigma H - I)] = 0, is here the outer product p
    with the row and column sums of the target's precisions h. At ADVI's, tr[dP (Sigma H Sigma -
    Sigma)] = 0, rows and columns of h / p sum to two, which is another point.
    """
    precision = np.array([[1.0, 1.0], [1.0, 0.25]])

    def model() -> None:
        normal = face.dist.Normal(face.zeros(2, 2), face.array(precision**-0.5))
        face.host.sample("z", normal.to_event(2))

    guide = guide_of(face, "AutoMatrixNormal", model, init_scale=1.0)
    density, objective = face.density(guide), room(face, "score.objective")
    start = face.numpy(density.initial_parameters())
    ends = np.cumsum([value.size for value in start.values()])[:-1]

    def parameters(flat: np.ndarray) -> dict[str, Any]:
        parts = zip(start.items(), np.split(flat, ends), strict=True)
        return face.arrays({name: part.reshape(value.shape) for (name, value), part in parts})

    def moments(flat: np.ndarray) -> Any:
        return face.call(density.moments, parameters(flat))

    gradient = face.backend.compiled(
        lambda *given: objective.proximal_gradient(density, *given, 0.0)[1]
    )

    def slope(flat: np.ndarray) -> np.ndarray:
        # Points with the guide's mean and covariance, and scores that are linear: no chance.
        mean, root = moments(flat)
        points = mean + 2.0 * np.concatenate([root.T, -root.T])
        scores = -points * precision.ravel()
        found = face.numpy(gradient(parameters(flat), face.array(points), face.array(scores)))
        return np.concatenate([found[name].ravel() for name in start])

    begin = np.concatenate([value.ravel() for value in start.values()])
    mean, root = moments(optimize.least_squares(slope, begin, xtol=1e-12, gtol=1e-12).x)
    matched = precision.sum(1, keepdims=True) * precision.sum(0) / precision.sum()
    np.testing.assert_allclose(mean, 0.0, atol=1e-5)
    np.testing.assert_allclose(root @ root.T, np.diag(1.0 / matched.ravel()), atol=1e-5)
    assert np.abs((precision / matched).sum(1) - 2.0).max() > 0.05


@pytest.mark.slow
def test_flow_lowers_its_residual(face: Any) -> None:
    def model() -> None:
        gamma = face.dist.Gamma(face.array([2.0, 3.0]), 1.0)
        face.host.sample("x", gamma.to_event(1))

    solver = GradientSteps(num_inner_steps=3, num_samples=8)
    run = fit(face, model, "AutoIAFNormal", {"pyro": 300, "numpyro": 400}[face.name], solver=solver)
    assert np.median(run.losses[-50:]) < 0.3 * np.median(run.losses[:20])
    assert (np.abs(run.samples(4000)["x"].mean(0) - [2.0, 3.0]) < 0.4).all()


@pytest.mark.in_one_package
@each_solver
def test_jacobian_of_a_constrained_site(face: Any, solver: str) -> None:
    run = fit(face, support.lognormal(face), "AutoMultivariateNormal", 400, solver=solver)
    mean, scale = run.moments
    assert mean.item() == pytest.approx(0.3, abs=1e-4)
    assert scale.item() == pytest.approx(0.5, abs=1e-4)
    draws = np.log(run.samples(2000)["x"])
    assert draws.mean() == pytest.approx(0.3, abs=5 * 0.5 / 2000**0.5)


@pytest.mark.in_one_package
@pytest.mark.parametrize(
    ("solver", "guide"),
    [("gradient", "AutoDiagonalNormal"), ("regression", "AutoMultivariateNormal")],
)
def test_minibatch_scores_fit_the_full_posterior(face: Any, solver: str, guide: str) -> None:
    options = {"args": (Y,), "kwargs": {"batch": 5}, "solver": solver}
    run = fit(face, support.conjugate(face), guide, 3000, **options)
    mean, deviation = support.conjugate_posterior()
    # One minibatch score has variance about (N^2/B) var(y)/16 = 35 posterior precisions; the last
    # third of the run averages about 1000 of them.
    assert abs(run.moments[0].item() - mean) < 0.5 * deviation
    assert 0.7 < run.moments[1].item() / deviation < 1.4
    if run.is_pyro:
        evaluations = 3000 * run.engine.plan.num_samples * 5 / 40
        assert run.engine.gradient_evaluations == pytest.approx(evaluations)


def test_full_sweep_and_temperature(face: Any) -> None:
    options = {"args": (Y,), "kwargs": {"batch": 5}, "estimator": face.backend.public.Full()}
    model, guide = support.conjugate(face), "AutoMultivariateNormal"
    run = fit(face, model, guide, 200, solver="regression", likelihood_temperature=0.2, **options)
    mean, deviation = support.conjugate_posterior(0.2)
    assert run.moments[0].item() == pytest.approx(mean, abs=1e-6)
    assert run.moments[1].item() == pytest.approx(deviation, rel=1e-6)


# -- the host --------------------------------------------------------------------------------------


def test_the_result_is_usable_in_the_host(face: Any) -> None:
    model = support.conjugate(face)
    guide = guide_of(face, "AutoMultivariateNormal", model)
    run = fit(face, model, guide, 50, solver=solver_of("gradient", 5), args=(Y,))
    assert not run.is_pyro or not list(face.host.get_param_store().keys())
    given = () if run.is_pyro else (run.host_values,)
    mean, zeros = run.moments[0], face.zeros(3)

    def median(*given: Any) -> float:
        return float(face.numpy(guide.median(*given))["mu"])

    np.testing.assert_allclose(median(*given), mean[0])
    samples = {"mu": face.array(run.samples(200)["mu"])}
    for options in ({"posterior_samples": samples}, {"guide": guide, "num_samples": 200}):
        assert run.predictive(model, zeros, **options)["y"].shape == (200, 3)
    key = () if run.is_pyro else (face.backend.key(),)
    draws = face.numpy(guide.get_posterior(*given).sample(*key, (2000,)))
    assert abs(draws.mean() - mean[0]) < 5 * run.moments[1].item() / 2000**0.5
    before = run.values
    before = {name: value.copy() for name, value in before.items() if name.endswith("loc")}
    after = face.svi_step(run.engine.density, run.parameters, model, *run.args, num_particles=1)
    for name, value in before.items():
        assert 0 < np.abs(after[name] - value).max() < 1.1 * RATE


def test_samples_have_supports_of_their_own(face: Any) -> None:
    def model() -> None:
        a = face.host.sample("a", face.dist.LogNormal(0.0, 1.0))
        face.host.sample("b", face.dist.Uniform(0.0, a))

    run = fit(face, model, "AutoDiagonalNormal", 20)
    draws = run.samples()
    assert draws["a"].shape == draws["b"].shape == (1000,)
    assert (draws["b"] < draws["a"]).all() and (draws["b"] > 0).all()


# -- runs ------------------------------------------------------------------------------------------


def clipped_adam(backend: Any) -> Any:
    kind = backend.host.optim.ClippedAdam
    return kind({"lr": 0.01, "lrd": 0.99}) if backend.is_pyro else kind(0.01)


#: Solvers whose state has more to it than that of the registry's rows.
SOLVERS = {
    "schedule": lambda backend: GradientSteps(optimizer(backend, "adam", 0.01, steps=10, end=0.9)),
    "reuse": lambda _: GradientSteps(sample_reuse=3, clip_norm=1.0),
    "sites": lambda backend: GradientSteps({"m*": clipped_adam(backend), "*": None}),
}


class Case(contracts.Case):
    """The contracts' program, fitted by one of these solvers."""

    def __init__(self, face: Any, solver: str) -> None:
        super().__init__(face.name, "ProximalScoreVI, gradient")

        def options(backend: Any, model: Any, steps: int) -> dict[str, Any]:
            guide = guide_of(face, "AutoMultivariateNormal", model)
            seed = {"seed": 5} if backend.is_pyro else {}
            return {"guide": guide, "solver": SOLVERS[solver](backend), **seed}

        self.row = dataclasses.replace(self.row, options=options)

    def broken(self) -> Any:
        """Data at which scores are finite, and their squares are not."""
        return self.backend.array(np.full_like(contracts.Y, 1e150))

    def bits(self, engine: Any, state: Any) -> list[bytes]:
        """All that the next step needs."""
        optimizer = engine._state.optimizer if self.is_pyro else None
        for adam in optimizer.defaults if optimizer else ():
            for group in adam.param_groups:
                group["lr"] = 0.0  # it is set anew at every iteration
        return super().bits(engine, state)


@pytest.mark.parametrize("solver", SOLVERS)
def test_runs_go_on_and_broken_steps_leave_no_trace(face: Any, solver: str, tmp_path: Path) -> None:
    case = Case(face, solver)
    contracts.test_a_killed_run_goes_on_to_the_last_bit(case, tmp_path)
    contracts.test_a_step_that_is_not_finite_leaves_the_state(case)


def test_the_length_of_the_run_reaches_the_proximal_weight(face: Any, tmp_path: Path) -> None:
    def made(**options: Any) -> tuple[GuideRun, Noted]:
        noted = Noted(face)

        def weight(t: Any, total: Any) -> float:
            noted.add(t, total)
            return 0.5

        solver = GradientSteps(proximal=weight, num_inner_steps=1)
        model = support.conjugate(face)
        run = GuideRun(face, model, "AutoDiagonalNormal", solver=solver, args=(Y,), **options)
        return run, noted

    run, noted = made()
    run.step()
    assert noted.found == [(0, 0)]  # T is not known
    run.run(3)
    assert noted.found[1:] == [(1, 4), (2, 4), (3, 4)]
    before = run.flat
    run.step()
    # The run and its T are over, and the guide still moves.
    assert noted.found[4:] == [(4, 0)] and (run.flat != before).all()
    run.run(4, callback=lambda step, *_: step == 7, callback_every=7)
    assert noted.found[5:] == [(5, 9), (6, 9)]
    other, noted = made(total_steps=20)
    other.load_from(run, tmp_path / "state")
    for _ in range(3):
        other.step()
    assert noted.found == [(7, 9), (8, 9), (9, 20)]
    run, noted = made(total_steps=8)
    run.step()
    assert noted.found == [(0, 8)]


def test_default_learning_rate_falls_along_a_cosine(face: Any) -> None:
    given = optimizer(face.backend, "adam", 0.01, steps=4, cosine=True)
    default, expected = (
        fit(face, support.independent(face), "AutoDiagonalNormal", 4, solver=solver)
        for solver in (
            GradientSteps(num_inner_steps=1),
            GradientSteps(given, num_inner_steps=1),
        )
    )
    np.testing.assert_allclose(default.flat, expected.flat, rtol=1e-10)


def test_one_model_evaluation_per_iteration_without_its_graph(
    face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, full = Noted(face), face.backend.public.Full
    estimate = full.estimate

    def count(*given: Any) -> Any:
        found, state = estimate(*given)
        assert not any(getattr(entry, "requires_grad", False) for entry in found)
        noted.add(found.score)
        return found, state

    monkeypatch.setattr(full, "estimate", count)
    model = support.correlated(face, np.zeros(2), np.eye(2))
    fit(face, model, "AutoDiagonalNormal", 4, solver=GradientSteps(num_inner_steps=7))
    assert len(noted.found) == 4


def test_a_broken_inner_step_leaves_the_state(face: Any) -> None:
    solver = GradientSteps(optimizer(face.backend, "sgd", 1e308))
    options = {"solver": solver, "on_nonfinite": "skip", "args": (Y,)}
    run = GuideRun(face, support.conjugate(face), "AutoMultivariateNormal", **options)
    before = run.flat
    run.run(3)
    assert np.isnan(run.losses).all() and run.skipped == 3
    np.testing.assert_array_equal(run.flat, before)


def test_new_parameters_that_are_not_finite_are_not_taken(
    face: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = support.conjugate(face)
    options: dict[str, Any] = {"solver": "regression", "args": (Y,)}
    run = fit(face, model, "AutoMultivariateNormal", 10, **options)
    broken = GuideRun(face, model, "AutoMultivariateNormal", **options)
    form = broken.engine.plan.executor.form
    update = form.update

    def spoilt(*given: Any) -> Any:
        state, parameters = update(*given)
        return state, {name: value * np.nan for name, value in parameters.items()}

    monkeypatch.setattr(form, "update", spoilt)
    broken.load_from(run, tmp_path / "state")
    before = broken.algorithm()
    with pytest.raises(NonFiniteError) as caught:
        broken.run(1)
    if not broken.is_pyro:
        broken.state = caught.value.state
    assert broken.algorithm() == before
    np.testing.assert_array_equal(broken.flat, run.flat)


@pytest.mark.parametrize("parts", [False, True])
def test_draws_of_a_broken_step_are_not_used_again(
    face: Any, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(size: Any) -> None:
        x = face.host.sample("x", face.dist.Normal(face.zeros(3), 1.0).to_event(1))
        face.host.factor("size", size * x.sum())

    if parts:
        support.by_parts(face, monkeypatch, 2)
    one, large = (face.array(value) for value in (1.0, 1e200))
    options = {"solver": GradientSteps(sample_reuse=3), "on_nonfinite": "skip", "args": (1.0,)}
    run = GuideRun(face, model, "AutoDiagonalNormal", **options)
    run.step(one)
    if not run.is_pyro:
        assert run.engine.plan.keeps_state == parts
    before = run.reused
    # Its score is finite, and the square of that is not.
    assert len(before) == 1 and np.isnan(run.step(large)) and run.skipped == 1
    check_close(run.reused, before, rtol=0.0, atol=0.0)
    run.step(one)
    assert len(run.reused) == 2


def test_steps_after_a_run_keep_what_it_found(face: Any) -> None:
    """Twenty time constants in the run; after it, a draw's noise in as many more."""
    scale = np.linspace(0.5, 2.0, 20)
    model = support.normal_model(face, (0.0,) * 20, tuple(scale))
    run = fit(face, model, "AutoDiagonalNormal", 400)
    before = run.flat
    for _ in range(200):
        run.step()
    np.testing.assert_allclose(np.diag(run.moments[1]) / scale, 1.0, rtol=0, atol=0.02)
    assert (run.flat != before).all()


# -- what reaches the solvers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"), [("linear", [0.0, 0.25, 0.5, 0.75]), (0.4, [0.4] * 4)]
)
def test_the_proximal_weight_reaches_the_steps(
    face: Any, given: Any, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = room(face, "score.gradient_steps")
    blended, used = Noted(face), Noted(face)
    blend, gradient = steps.blended_target, steps.proximal_gradient

    def seen_blend(score: Any, present: Any, weight: Any) -> Any:
        blended.add(weight)
        return blend(score, present, weight)

    def seen_gradient(*arguments: Any) -> Any:
        used.add(arguments[-1])
        return gradient(*arguments)

    monkeypatch.setattr(steps, "blended_target", seen_blend)
    monkeypatch.setattr(steps, "proximal_gradient", seen_gradient)
    solver = GradientSteps(proximal=given, num_inner_steps=1)
    options: dict[str, Any] = {"solver": solver, "args": (Y,)}
    run = fit(face, support.conjugate(face), "AutoMultivariateNormal", 4, **options)
    run.step()  # after the run T is not known, and the weight is that of the start
    for noted in (blended, used):
        found = [float(weight) for (weight,) in noted.found]
        assert found == pytest.approx([*expected, expected[0]])


def test_trust_decay_and_the_length_of_the_run_reach_the_closed_form(face: Any) -> None:
    model, guide = support.independent(face), "AutoDiagonalNormal"
    run = GuideRun(face, model, guide, solver=Regression(trust=2.0, decay=0.7))
    assert (run.engine.plan.executor.form.trust, run.engine.plan.executor.form.decay) == (2.0, 0.7)

    def after_eight(total_steps: int | None) -> np.ndarray:
        run = GuideRun(face, model, guide, total_steps=total_steps)
        for _ in range(8):
            run.step()
        return run.flat

    # Steps of the scale are half of what is seen, up to the trust, or a hundredth of it.
    assert np.abs(after_eight(8) - after_eight(None)).max() > 0.1


def test_the_closed_form_is_given_the_tempered_density(
    face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(y: Any) -> None:
        x = face.host.sample("x", face.dist.Normal(0.0, 1.0))
        face.host.sample("y", face.dist.Normal(x, 1.0), obs=y)

    noted = Noted(face)

    def look(form: Any, state: Any, parameters: Any, given: Any) -> Any:
        noted.add(given.theta[:, 0], given.log_density)
        return state, parameters

    kind = room(face, "score.regression.mixture").MixtureForm
    monkeypatch.setattr(kind, "update", look)
    guide = guide_of(face, "AutoGaussianMixture", model, num_components=2)
    solver = Regression(num_samples=8)
    run = GuideRun(face, model, guide, solver=solver, likelihood_temperature=0.25, args=(2.0,))
    run.step()
    ((x, log_density),) = noted.found
    expected = -0.5 * np.square(x) - 0.5 * np.square(2.0 - x) / 0.25
    assert x.std() > 0.01
    np.testing.assert_allclose(log_density - log_density[0], expected - expected[0], rtol=1e-9)


# -- refusals --------------------------------------------------------------------------------------


def test_guides_are_refused_before_any_step(face: Any) -> None:
    engine, gaussian = face.backend.public.ProximalScoreVI, support.gaussian(face)
    with pytest.raises(ArgumentError, match=r"found AutoNormal: .*AutoDiagonalNormal"):
        engine(gaussian, guide_of(face, "AutoNormal", gaussian))
    with pytest.raises(ArgumentError, match="solver='gradient', which takes every guide"):
        engine(gaussian, guide_of(face, "AutoIAFNormal", gaussian), solver="regression")
    with pytest.raises(ArgumentError, match=r"AutoGaussianMixture: .*num_components.*\(model, "):
        engine(gaussian, face.guides.AutoGaussianMixture)
    other = guide_of(face, "AutoMultivariateNormal", support.independent(face))
    with pytest.raises(ArgumentError, match="the same model that the engine is given"):
        GuideRun(face, gaussian, other)


def test_local_latents_in_a_subsampled_plate_are_refused(face: Any) -> None:
    def model() -> None:
        with face.host.plate("N", 10, subsample_size=3) as rows:
            z = face.host.sample("z", face.dist.Normal(0.0, 1.0))
            face.host.sample("y", face.dist.Normal(z, 1.0), obs=face.array(Y)[rows])

    with pytest.raises(ModelCheckError, match="z"):
        GuideRun(face, model, "AutoDiagonalNormal")


def test_states_of_other_solvers_guides_and_options_are_refused(face: Any, tmp_path: Path) -> None:
    model, full, diagonal = support.gaussian(face), "AutoMultivariateNormal", "AutoDiagonalNormal"
    path = tmp_path / "state"

    def made(guide: str, solver: Any) -> GuideRun:
        return GuideRun(face, model, guide, solver=solver)

    default, few = Regression(), GradientSteps(num_inner_steps=1)
    gradient, regression = made(full, few), made(diagonal, default)
    for saved, loaded, words in [
        (gradient, made(full, default), "another solver: expected Regr.*, found GradientSteps"),
        (made(full, default), gradient, "another solver: expected Grad.*, found Regression"),
        (gradient, made(diagonal, few), "guide: expected AutoDiag.*, found AutoMultivariateN"),
        (regression, made(diagonal, Regression(decay=0.8)), "another solver: .*decay="),
        (regression, made(diagonal, Regression(trust=1.5)), "another solver: .*trust="),
    ]:
        with pytest.raises(ArgumentError, match=words):
            loaded.load_from(saved, path)


def test_arguments_of_diagnostics_are_a_tuple(face: Any) -> None:
    run = fit(face, support.conjugate(face), "AutoDiagonalNormal", 2, args=(Y,))
    state = () if run.is_pyro else (run.state,)
    with pytest.raises(ArgumentError, match=r"args to be a tuple.*args=\(x,\)"):
        room(face, "diagnostics").elbo(run.engine, *state, args=face.array(Y))


# -- defaults --------------------------------------------------------------------------------------

DEFAULTS = [
    ("AutoDiagonalNormal", {}, (1, 2, 0.01, None)),
    ("AutoMultivariateNormal", {}, (8, 2, 0.005, 1.0)),
    ("AutoGaussianMixture", {"num_components": 2}, (2, 20, 0.01, None)),
    ("AutoGaussianMixture", {"num_components": 2, "covariance": "low_rank"}, (8, 2, 0.005, 1.0)),
    ("AutoPlanarFlow", {}, (8, 2, 0.005, 1.0)),
    ("AutoIAFNormal", {}, (16, 1, 0.002, 1.0)),
]
#: Guides that take small steps on many draws.
FLEXIBLE = [(name, options) for name, options, steps in DEFAULTS if steps[3] is not None]


@pytest.mark.parametrize(("name", "options", "expected"), DEFAULTS)
def test_default_steps_of_the_gradient_solver(
    face: Any, name: str, options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    density = face.density(guide_of(face, name, support.gaussian(face), **options))
    plan = room(face, "score.gradient_steps").GradientSolver.plan

    def found(solver: Any) -> tuple[Any, ...]:
        steps = solver.options
        return steps.num_samples, steps.num_inner_steps, solver.learning_rate, steps.clip_norm

    assert found(plan(GradientSteps(), density)) == expected
    given = GradientSteps(num_samples=3, num_inner_steps=4, clip_norm=0.5)
    assert plan(given, density).options == given
    assert plan(GradientSteps(face.backend.adam(0.01)), density).options.clip_norm is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), FLEXIBLE)
def test_default_steps_do_not_break_down_on_a_hierarchical_program(
    face: Any, name: str, options: dict[str, Any]
) -> None:
    """Twenty larger steps on two draws did, in the first hundred iterations."""
    models = face.backend.models
    model = models.eight_schools_noncentered
    guides = guide_of(face, "AutoMultivariateNormal", model), guide_of(face, name, model, **options)
    bounds = [
        bound_of(fit(face, model, guide, 2000, args=models.arguments("eight_schools_noncentered")))
        for guide in guides
    ]
    # A richer guide than a Normal, up to the noise of its fit.
    assert bounds[1] > bounds[0] - 0.3


def bound_of(run: GuideRun) -> float:
    """Bound on the log evidence, of 4,000 draws."""
    state = () if run.is_pyro else (run.state,)
    return float(room(run.face, "diagnostics").elbo(run.engine, *state, num_samples=4000).value)


def test_few_coordinates_do_not_fall_into_the_neck_of_a_funnel(face: Any) -> None:
    """The centred eight schools, whose density has its mode where tau is 0.

    The best diagonal fit has a bound of about -34.6, one in the neck of -48.
    """
    models = face.backend.models
    args = models.arguments("eight_schools_centered")
    run = fit(face, models.eight_schools_centered, "AutoDiagonalNormal", 2000, args=args)
    assert bound_of(run) > -37.0


def test_a_factor_that_spans_everything_has_the_gradient_solver(face: Any) -> None:
    model = support.normal_model(face, (0.0,) * 3, (1.0,) * 3)
    for rank in (3, 4):
        guide = guide_of(face, "AutoLowRankMultivariateNormal", model, rank=rank)
        run = GuideRun(face, model, guide)
        assert run.engine.plan.solver == GradientSteps().resolved(STEPS["flexible"])
        with pytest.raises(ArgumentError, match="Expected a rank below the number of latents, 3,"):
            GuideRun(face, model, guide, solver="regression")


@pytest.mark.library_start
def test_gradient_steps_stand_the_noise_of_minibatches(face: Any) -> None:
    """A regression of eight weights with a full guide and the defaults, from the default start."""
    rows, dim = 2000, 8
    draws = np.random.default_rng(0)
    x = draws.normal(size=(rows, dim)) @ np.linalg.cholesky(0.7 + 0.3 * np.eye(dim)).T
    y = x @ draws.normal(size=dim) + draws.normal(size=rows)
    precision = np.eye(dim) + x.T @ x
    mean = np.linalg.solve(precision, x.T @ y)

    def model(x: Any, y: Any) -> None:
        w = face.host.sample("w", face.dist.Normal(face.zeros(dim), 1.0).to_event(1))
        with face.host.plate("N", rows, subsample_size=64) as i:
            face.host.sample("y", face.dist.Normal(x[i] @ w, 1.0), obs=y[i])

    run = GuideRun(
        face,
        model,
        guide_of(face, "AutoMultivariateNormal", model),
        args=(x, y),
        solver="gradient",
        estimator=face.backend.public.Minibatch(),
    ).run(500)
    apart = run.moments[0] - mean
    ratio = np.linalg.eigvals(precision @ run.covariance).real
    divergence = 0.5 * (apart @ precision @ apart + (ratio - 1.0 - np.log(ratio)).sum())
    # Two draws with twenty steps at 0.01 end above 100.
    assert divergence < 1.0


def test_a_single_component_is_fitted(face: Any) -> None:
    def scalar() -> None:
        face.host.sample("x", face.dist.Normal(1.0, 0.5))

    guide = guide_of(face, "AutoGaussianMixture", scalar, num_components=1)
    draws = fit(face, scalar, guide, 300).samples(4000)["x"]
    assert abs(draws.mean() - 1.0) < 5 * 0.5 / 4000**0.5
    assert abs(draws.std() - 0.5) < 5 * 0.5 / 8000**0.5
