"""Proximal score-matching inference for Pyro."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from torch.distributions import MultivariateNormal, kl_divergence

from ppl_ext.errors import ArgumentError, ModelCheckError, NonFiniteError
from ppl_ext.score import GradientSteps, Regression
from pyro_ext.diagnostics import elbo
from pyro_ext.gradients import Full, Noisy
from pyro_ext.guides import AutoGaussianMixture, AutoMatrixNormal, AutoPlanarFlow, flat_density
from pyro_ext.score import ProximalScoreVI, gradient_steps
from pyro_ext.score.objective import blended_target, proximal_gradient
from pyro_ext.score.regression.mixture import MixtureForm
from tests.models import pyro_models, zoo

torch.set_default_dtype(torch.float64)

MEAN = torch.tensor(zoo.GAUSSIAN_5D_MEAN)
COVARIANCE = torch.tensor(zoo.GAUSSIAN_5D_COVARIANCE)
Y = torch.linspace(-2.0, 4.0, 40) + torch.linspace(0.0, 3.0, 40).sin()


def gaussian() -> None:
    pyro.sample("z", dist.MultivariateNormal(MEAN, COVARIANCE))


def independent() -> None:
    scale = torch.tensor([0.3, 1.0, 2.0])
    pyro.sample("z", dist.Normal(torch.tensor([1.0, -2.0, 2.0]), scale).to_event(1))


def lognormal() -> None:
    pyro.sample("x", dist.LogNormal(0.3, 0.5))


def conjugate(y: torch.Tensor, batch: int | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", len(y), subsample_size=batch) as rows:
        pyro.sample("y", dist.Normal(mu, 2.0), obs=y[rows])


def conjugate_posterior(temperature: float = 1.0) -> tuple[float, float]:
    precision = 1 / 9 + len(Y) / 4 / temperature
    return float(Y.sum() / 4 / temperature / precision), precision**-0.5


def moments_of(engine: ProximalScoreVI) -> tuple[torch.Tensor, torch.Tensor]:
    mean, scale = engine.density.moments(engine.parameters)
    return mean, torch.diag(scale) if scale.dim() == 1 else scale


def forward_kl(engine: ProximalScoreVI, mean: torch.Tensor, covariance: torch.Tensor) -> float:
    fitted, scale_tril = moments_of(engine)
    q = MultivariateNormal(fitted.double(), scale_tril=scale_tril.double())
    return float(kl_divergence(MultivariateNormal(mean, covariance), q))


# -- pure functions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "guide_class", [AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal]
)
def test_inner_gradient_is_that_of_the_two_term_objective(guide_class) -> None:
    density = flat_density(guide_class(gaussian), seed=0)
    generator = torch.Generator().manual_seed(0)
    present = density.initial_parameters()
    parameters = {
        name: value + 0.3 * torch.randn(value.shape, generator=generator)
        for name, value in present.items()
    }
    theta = density.sample(present, generator, 3)
    score, weight = torch.randn(3, 5, generator=generator), 0.7
    present_score = density.score(present, theta)
    target = blended_target(score, present_score, weight)
    _, gradient = proximal_gradient(density, parameters, theta, target, weight)

    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    difference = density.score(leaves, theta)
    objective = (
        weight * (difference - present_score).square().sum(-1)
        + (difference - score).square().sum(-1)
    ).mean()
    expected = torch.autograd.grad(objective, list(leaves.values()))
    torch.testing.assert_close(gradient, dict(zip(leaves, expected, strict=True)))


# -- fits ----------------------------------------------------------------------------------------


def test_full_normal_on_a_correlated_normal_by_gradient_steps() -> None:
    engine = ProximalScoreVI(gaussian, AutoMultivariateNormal(gaussian), solver="gradient", seed=0)
    result = engine.run(1200, progress_bar=False)
    assert forward_kl(engine, MEAN, COVARIANCE) < 1e-4
    assert result.losses.shape == (1200,) and result.losses[-1] < 1e-2 < result.losses[0]
    # With an exact guide log p - log q is the log evidence, zero here, at every point.
    gap = result.info["log_p"][-20:] - result.info["log_q"][-20:]
    np.testing.assert_allclose(gap, 0.0, atol=0.05)


def test_full_normal_on_a_correlated_normal_by_regression() -> None:
    engine = ProximalScoreVI(gaussian, AutoMultivariateNormal, solver="regression", seed=0)
    engine.run(300, progress_bar=False)
    assert forward_kl(engine, MEAN, COVARIANCE) < 1e-8


def solver_of(name: str, num_inner_steps: int) -> GradientSteps | Regression:
    """The solver, with inner steps where it has them."""
    return GradientSteps(num_inner_steps=num_inner_steps) if name == "gradient" else Regression()


@pytest.mark.parametrize("solver", ["gradient", "regression"])
def test_diagonal_normal_is_exact_on_a_diagonal_normal(solver) -> None:
    guide = AutoDiagonalNormal(independent, init_scale=0.5)
    engine = ProximalScoreVI(independent, guide, solver=solver_of(solver, 10), seed=0)
    steps = {"gradient": 2500, "regression": 300}[solver]
    engine.run(steps, progress_bar=False)
    mean, scale = engine.density.moments(engine.parameters)
    torch.testing.assert_close(mean, torch.tensor([1.0, -2.0, 2.0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(scale, torch.tensor([0.3, 1.0, 2.0]), atol=0, rtol=1e-4)


def test_low_rank_normal_on_a_normal_of_its_form() -> None:
    factor = torch.tensor([[1.0], [-0.5], [0.8], [0.0]])
    covariance = factor @ factor.T + torch.diag(torch.tensor([0.3, 0.5, 0.2, 0.6]))
    mean = torch.tensor([1.0, 0.0, -1.0, 2.0])

    def model() -> None:
        pyro.sample("z", dist.MultivariateNormal(mean, covariance))

    guide = AutoLowRankMultivariateNormal(model, rank=1, init_scale=0.5)
    engine = ProximalScoreVI(model, guide, seed=0)
    engine.run(500, progress_bar=False)
    assert forward_kl(engine, mean, covariance) < 1e-4


def test_flow_lowers_its_residual() -> None:
    engine = ProximalScoreVI(
        lambda: pyro.sample("x", dist.Gamma(torch.tensor([2.0, 3.0]), 1.0).to_event(1)),
        AutoIAFNormal,
        solver=GradientSteps(num_inner_steps=3, num_samples=8),
        seed=0,
    )
    result = engine.run(300, progress_bar=False)
    assert np.median(result.losses[-50:]) < 0.3 * np.median(result.losses[:20])
    draws = engine.get_samples(4000)["x"]
    assert ((draws.mean(0) - torch.tensor([2.0, 3.0])).abs() < 0.4).all()


@pytest.mark.parametrize("solver", ["gradient", "regression"])
def test_jacobian_of_a_constrained_site(solver) -> None:
    engine = ProximalScoreVI(lognormal, AutoMultivariateNormal, solver=solver, seed=0)
    engine.run(400, progress_bar=False)
    mean, scale = moments_of(engine)
    assert mean.item() == pytest.approx(0.3, abs=1e-4)
    assert scale.item() == pytest.approx(0.5, abs=1e-4)
    draws = engine.get_samples(2000)["x"]
    assert draws.log().mean().item() == pytest.approx(0.3, abs=5 * 0.5 / 2000**0.5)


@pytest.mark.parametrize(
    ("solver", "guide_class"),
    [("gradient", AutoDiagonalNormal), ("regression", AutoMultivariateNormal)],
)
def test_minibatch_scores_fit_the_full_posterior(solver, guide_class) -> None:
    engine = ProximalScoreVI(conjugate, guide_class, solver=solver, seed=0)
    engine.run(3000, Y, batch=5, progress_bar=False)
    mean, deviation = conjugate_posterior()
    fitted, scale = moments_of(engine)
    # One minibatch score has variance about (N^2/B) var(y)/16 = 35 posterior precisions; the last
    # third of the run averages about 1000 of them.
    assert abs(fitted.item() - mean) < 0.5 * deviation
    assert 0.7 < scale.item() / deviation < 1.4
    assert engine.gradient_evaluations == pytest.approx(3000 * engine.plan.num_samples * 5 / 40)


def test_full_sweep_and_temperature() -> None:
    engine = ProximalScoreVI(
        conjugate,
        AutoMultivariateNormal,
        solver="regression",
        estimator=Full(),
        likelihood_temperature=0.2,
        seed=0,
    )
    engine.run(200, Y, batch=5, progress_bar=False)
    mean, deviation = conjugate_posterior(0.2)
    fitted, scale = moments_of(engine)
    assert fitted.item() == pytest.approx(mean, abs=1e-6)
    assert scale.item() == pytest.approx(deviation, rel=1e-6)


# -- the host ------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["gradient", "regression"])
def test_guide_holds_the_fit_and_the_store_stays_empty(solver) -> None:
    guide = AutoMultivariateNormal(conjugate)
    engine = ProximalScoreVI(conjugate, guide, solver=solver_of(solver, 5), seed=0)
    engine.run(300, Y, progress_bar=False)
    assert not list(pyro.get_param_store().keys())
    fitted, scale = moments_of(engine)
    torch.testing.assert_close(guide.median()["mu"], fitted[0])

    for predictive in [
        Predictive(conjugate, posterior_samples=engine.get_samples(2000)),
        Predictive(conjugate, guide=guide, num_samples=2000),
    ]:
        predicted = predictive(torch.zeros(3))
        assert predicted["y"].shape == (2000, 3)
    draws = Predictive(conjugate, guide=guide, num_samples=2000)(Y)["mu"]
    assert abs(draws.mean() - fitted[0]) < 5 * scale.item() / 2000**0.5

    SVI(conjugate, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO()).step(Y)
    moved = guide.median()["mu"] - fitted[0]
    assert 0 < moved.abs() < 1.1e-3


def test_samples_have_supports_of_their_own() -> None:
    def model() -> None:
        a = pyro.sample("a", dist.LogNormal(0.0, 1.0))
        pyro.sample("b", dist.Uniform(0.0, a))

    engine = ProximalScoreVI(model, AutoDiagonalNormal, seed=0)
    engine.run(20, progress_bar=False)
    draws = engine.get_samples(500)
    assert draws["a"].shape == draws["b"].shape == (500,)
    assert (draws["b"] < draws["a"]).all() and (draws["b"] > 0).all()


def test_engine_leaves_other_parameters_alone() -> None:
    pyro.param("mine", torch.tensor(3.0))
    engine = ProximalScoreVI(
        gaussian, AutoLowRankMultivariateNormal, solver=GradientSteps(num_inner_steps=1), seed=0
    )
    engine.run(3, progress_bar=False)
    assert list(pyro.get_param_store().keys()) == ["mine"]


# -- runs ----------------------------------------------------------------------------------------

CASES: list[GradientSteps | Regression] = [
    GradientSteps(num_inner_steps=3),
    Regression(),
    GradientSteps(pyro.optim.ClippedAdam({"lr": 0.01, "lrd": 0.99})),
    GradientSteps(sample_reuse=3, clip_norm=1.0),
    GradientSteps(
        {
            "m*": pyro.optim.ExponentialLR(
                {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.02}, "gamma": 0.9}
            )
        }
    ),
]


@pytest.mark.parametrize("solver", CASES)
def test_resumed_run_is_bit_identical(solver: Any, tmp_path: Path) -> None:
    def make() -> ProximalScoreVI:
        return ProximalScoreVI(conjugate, AutoMultivariateNormal(conjugate), solver=solver, seed=5)

    whole = make()
    losses = whole.run(30, Y, batch=7, progress_bar=False).losses

    first = make()

    def stop(step: int, engine: Any, info: Any) -> bool:
        engine.get_samples(3)  # asking for draws must not change the run
        return step == 13

    path = tmp_path / "state"
    first.run(30, Y, batch=7, progress_bar=False, callback=stop, checkpoint=path)
    assert first.num_steps_taken == 13
    second = make()
    second.load(path)
    rest = second.run(17, Y, batch=7, progress_bar=False).losses
    np.testing.assert_array_equal(np.concatenate([losses[:13], rest]), losses)
    for name, value in whole.parameters.items():
        assert torch.equal(value, second.parameters[name])


def test_step_after_load_keeps_the_run_length(tmp_path: Path) -> None:
    def make(seen: list[tuple[int, int]]) -> ProximalScoreVI:
        def weight(t: int, total: int) -> float:
            seen.append((t, total))
            return 0.5

        guide = AutoDiagonalNormal(conjugate)
        return ProximalScoreVI(
            conjugate, guide, solver=GradientSteps(proximal=weight, num_inner_steps=1), seed=1
        )

    seen: list[tuple[int, int]] = []
    engine = make(seen)
    engine.run(4, Y, progress_bar=False)
    engine.run(4, Y, progress_bar=False, callback=lambda i, *_: i == 6)
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 8), (5, 8)]
    engine.save(tmp_path / "state")
    again: list[tuple[int, int]] = []
    other = make(again)
    other.load(tmp_path / "state")
    assert other.num_steps_taken == 6
    for _ in range(3):
        other.step(Y)
    # After the end of the run T is unknown again.
    assert again == [(6, 8), (7, 8), (8, 0)]
    alone: list[tuple[int, int]] = []
    make(alone).step(Y)
    assert alone == [(0, 0)]


def test_default_learning_rate_falls_along_a_cosine() -> None:
    engine = ProximalScoreVI(independent, AutoDiagonalNormal, solver="gradient", seed=0)
    rates = []

    def look(step: int, engine: Any, info: Any) -> None:
        (optimizer,) = engine._default_optimizers
        rates.append(optimizer.param_groups[0]["lr"])

    engine.run(4, progress_bar=False, callback=look)
    np.testing.assert_allclose(rates, 0.005 * (1 + np.cos(np.pi * np.arange(4) / 4)))


def test_one_model_evaluation_per_iteration_without_its_graph(monkeypatch) -> None:
    engine = ProximalScoreVI(
        independent, AutoDiagonalNormal, solver=GradientSteps(num_inner_steps=7), seed=0
    )
    calls = []
    original = engine._score

    def count(z, data):
        result = original(z, data)
        calls.append(result)
        return result

    monkeypatch.setattr(engine, "_score", count)
    engine.run(4, progress_bar=False)
    assert len(calls) == 4
    assert all(not entry.requires_grad for result in calls for entry in result[:3])


@pytest.mark.parametrize("solver", CASES)
def test_broken_step_leaves_the_state(solver: Any) -> None:
    engine = ProximalScoreVI(conjugate, AutoMultivariateNormal, solver=solver, seed=0)
    engine.run(20, Y, progress_bar=False)
    before = copy.deepcopy(engine._algorithm_state())
    with pytest.raises(NonFiniteError):
        engine.step(torch.full((40,), 1e300))
    after = engine._algorithm_state()
    for part in ("parameters", "optimizer", "solver"):
        assert str(after[part]) == str(before[part])
    engine.run(5, Y, progress_bar=False)


def test_broken_inner_step_leaves_the_state() -> None:
    optim = functools.partial(torch.optim.SGD, lr=1e308)
    guide = AutoMultivariateNormal(conjugate)
    engine = ProximalScoreVI(
        conjugate, guide, solver=GradientSteps(optim), on_nonfinite="skip", seed=0
    )
    result = engine.run(3, Y, progress_bar=False)
    assert np.isnan(result.losses).all() and engine.num_skipped == 3
    assert guide.loc.isfinite().all() and guide.scale.item() == pytest.approx(0.1)


# -- refusals ------------------------------------------------------------------------------------


def test_guides_are_refused_before_any_step() -> None:
    with pytest.raises(ArgumentError, match=r"found AutoNormal: .*AutoDiagonalNormal"):
        ProximalScoreVI(gaussian, AutoNormal(gaussian))
    guide = AutoIAFNormal(gaussian)
    with pytest.raises(ArgumentError, match="solver='gradient', which takes every guide"):
        ProximalScoreVI(gaussian, guide, solver="regression")
    engine = ProximalScoreVI(gaussian, AutoMultivariateNormal(independent))
    with pytest.raises(ArgumentError, match="the same model that the engine is given"):
        engine.run(1, progress_bar=False)


def test_local_latents_in_a_subsampled_plate_are_refused() -> None:
    def model() -> None:
        with pyro.plate("N", 10, subsample_size=3) as rows:
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=Y[rows])

    engine = ProximalScoreVI(model, AutoDiagonalNormal(model))
    with pytest.raises(ModelCheckError, match="z"):
        engine.run(1, progress_bar=False)


@pytest.mark.parametrize("solver", ["gradient", "regression"])
def test_state_of_another_solver_or_guide_is_refused(solver: str, tmp_path: Path) -> None:
    engine = ProximalScoreVI(gaussian, AutoMultivariateNormal, solver=solver_of(solver, 1))
    engine.run(2, progress_bar=False)
    engine.save(tmp_path / "state")
    other = "regression" if solver == "gradient" else "gradient"
    loaded = ProximalScoreVI(gaussian, AutoMultivariateNormal, solver=other)
    loaded.load(tmp_path / "state")
    with pytest.raises(ArgumentError, match="another solver: expected "):
        loaded.run(1, progress_bar=False)
    loaded = ProximalScoreVI(gaussian, AutoDiagonalNormal, solver=solver)
    loaded.load(tmp_path / "state")
    with pytest.raises(ArgumentError, match="another guide: expected AutoDiagonalNormal"):
        loaded.run(1, progress_bar=False)


@pytest.mark.parametrize("option", ["likelihood_temperature", "decay", "trust"])
def test_state_of_other_options_is_refused(option: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "likelihood_temperature": {"likelihood_temperature": 0.5},
        "decay": {"solver": Regression(decay=0.8)},
        "trust": {"solver": Regression(trust=1.5)},
    }
    words = {"likelihood_temperature": "temperature: expected 0.5"}
    engine = ProximalScoreVI(gaussian, AutoDiagonalNormal, seed=0)
    engine.run(2, progress_bar=False)
    engine.save(tmp_path / "state")
    loaded = ProximalScoreVI(gaussian, AutoDiagonalNormal, **options[option])
    loaded.load(tmp_path / "state")
    with pytest.raises(ArgumentError, match=words.get(option, f"another solver: .*{option}=")):
        loaded.run(1, progress_bar=False)


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
    engine.setup()
    plan = engine.plan
    found = plan.num_samples, plan.solver.num_inner_steps, plan.learning_rate, plan.clip_norm
    assert found == expected
    solver = GradientSteps(num_samples=3, num_inner_steps=4, clip_norm=0.5)
    engine = ProximalScoreVI(gaussian, make(gaussian), solver=solver)
    engine.setup()
    assert engine.plan.solver == solver
    engine = ProximalScoreVI(
        gaussian, make(gaussian), solver=GradientSteps(pyro.optim.Adam({"lr": 0.01}))
    )
    engine.setup()
    assert engine.plan.clip_norm is None


@pytest.mark.slow
@pytest.mark.parametrize("name", FLEXIBLE)
def test_default_steps_do_not_break_down_on_a_hierarchical_program(name: str) -> None:
    """Twenty larger steps on two draws did, in the first hundred iterations."""
    model, arguments = (
        pyro_models.eight_schools_noncentered,
        pyro_models.arguments("eight_schools_noncentered"),
    )
    bounds = []
    for guide in (AutoMultivariateNormal(model), FLEXIBLE[name](model)):
        engine = ProximalScoreVI(model, guide, seed=0)
        engine.run(2000, *arguments, progress_bar=False)
        bound = elbo(engine, num_samples=4000)
        bounds.append(bound.value)
    # A richer guide than a Normal, up to the noise of its fit.
    assert bounds[1] > bounds[0] - 0.3


def test_a_flow_is_loaded_with_its_random_order(tmp_path: Path) -> None:
    """It draws an order of the coordinates when it is set up, which is no parameter."""
    engine = ProximalScoreVI(gaussian, AutoIAFNormal(gaussian), seed=0)
    engine.run(4, progress_bar=False)
    engine.save(tmp_path / "state")
    engine.run(3, progress_bar=False)
    points = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    expected = engine.density.log_prob(engine.parameters, points)
    for seed in (1, 2):
        other = ProximalScoreVI(gaussian, AutoIAFNormal(gaussian), seed=seed)
        other.load(tmp_path / "state")
        other.run(3, progress_bar=False)
        torch.testing.assert_close(other.density.log_prob(other.parameters, points), expected)
        assert other.losses == engine.losses


def test_a_guide_with_other_constants_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ProximalScoreVI(gaussian, AutoIAFNormal(gaussian), seed=0)
    engine.run(2, progress_bar=False)
    probe = engine._probe()
    assert probe is not None
    monkeypatch.setattr(engine, "_probe", lambda: probe + 1.0)
    engine.save(tmp_path / "state")
    other = ProximalScoreVI(gaussian, AutoIAFNormal(gaussian), seed=0)
    other.load(tmp_path / "state")
    with pytest.raises(ArgumentError, match="another AutoIAFNormal: .*another density"):
        other.setup()


def test_a_guide_whose_parameters_were_replaced_is_refused() -> None:
    guide = AutoDiagonalNormal(gaussian)
    engine = ProximalScoreVI(gaussian, guide, seed=0, total_steps=20)
    engine.step()
    with torch.no_grad():
        guide.loc.add_(1.0)  # in place: the engine goes on from there
    engine.step()
    guide.scale = 0.5 * torch.ones(5)
    with pytest.raises(ArgumentError, match=r"found others in place of \['scale_unconstrained'\]"):
        engine.step()
    other = ProximalScoreVI(gaussian, guide, seed=0, total_steps=20)
    other.step()
    torch.testing.assert_close(guide.loc, other.parameters["loc"])


def test_wrong_kinds_of_arguments_are_told() -> None:
    with pytest.raises(ArgumentError, match=r"AutoGaussianMixture: .*num_components.*\(model, "):
        ProximalScoreVI(gaussian, AutoGaussianMixture)
    engine = ProximalScoreVI(
        gaussian, AutoDiagonalNormal, solver=GradientSteps({1: None, "*": None})
    )
    with pytest.raises(ArgumentError, match=r"patterns of site names .*\[1, '\*'\]"):
        engine.setup()
    engine = ProximalScoreVI(conjugate, AutoDiagonalNormal, seed=0)
    engine.run(2, Y, progress_bar=False)
    with pytest.raises(ArgumentError, match=r"args to be a tuple.*args=\(x,\)"):
        elbo(engine, args=Y)


def test_steps_after_a_run_still_move_the_guide() -> None:
    engine = ProximalScoreVI(conjugate, AutoDiagonalNormal, seed=0)
    engine.run(5, Y, progress_bar=False)
    before = engine.parameters
    engine.step(Y)
    assert all(not torch.equal(before[name], value) for name, value in engine.parameters.items())


@pytest.mark.parametrize(
    ("given", "expected"), [("linear", [0.0, 0.25, 0.5, 0.75]), (0.4, [0.4] * 4)]
)
def test_the_proximal_weight_reaches_the_steps(
    given: Any, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    blended, used = [], []
    blend, gradient = blended_target, proximal_gradient

    def seen_blend(score: Any, present: Any, weight: float) -> Any:
        blended.append(weight)
        return blend(score, present, weight)

    def seen_gradient(*arguments: Any) -> Any:
        used.append(arguments[-1])
        return gradient(*arguments)

    monkeypatch.setattr(gradient_steps, "blended_target", seen_blend)
    monkeypatch.setattr(gradient_steps, "proximal_gradient", seen_gradient)
    guide = AutoMultivariateNormal(conjugate)
    engine = ProximalScoreVI(
        conjugate, guide, solver=GradientSteps(proximal=given, num_inner_steps=1), seed=0
    )
    engine.run(4, Y, progress_bar=False)
    assert blended == used == pytest.approx(expected)


def test_trust_and_decay_reach_the_closed_form() -> None:
    engine = ProximalScoreVI(
        conjugate, AutoMultivariateNormal, solver=Regression(trust=2.0, decay=0.7), seed=0
    )
    engine.run(1, Y, progress_bar=False)
    assert (engine.plan.executor.form.trust, engine.plan.executor.form.decay) == (2.0, 0.7)


WITH_CLOSED_FORM = {
    "full": AutoMultivariateNormal,
    "diagonal": AutoDiagonalNormal,
    "low_rank": functools.partial(AutoLowRankMultivariateNormal, rank=1),
    "matrix_normal": AutoMatrixNormal,
    "mixture": functools.partial(AutoGaussianMixture, num_components=2),
}


def matrix() -> None:
    scale = torch.linspace(0.3, 2.0, 6).reshape(2, 3)
    pyro.sample("w", dist.Normal(torch.arange(6.0).reshape(2, 3), scale).to_event(2))


def after_fifteen(structure: str, total_steps: int | None = 15, **options: Any) -> torch.Tensor:
    """All parameters of the guide after fifteen single steps with noisy scores."""
    pyro.set_rng_seed(0)
    guide = WITH_CLOSED_FORM[structure](matrix)
    solver, noisy = Regression(num_samples=4, **options), Noisy(level=0.3)
    engine = ProximalScoreVI(
        matrix, guide, solver=solver, seed=0, total_steps=total_steps, estimator=noisy
    )
    for _ in range(15):
        engine.step()
    return torch.cat([value.flatten() for value in engine.parameters.values()])


@pytest.mark.parametrize("structure", WITH_CLOSED_FORM)
def test_closed_forms_follow_trust_decay_and_the_length_of_the_run(structure: str) -> None:
    found = after_fifteen(structure)
    assert torch.equal(after_fifteen(structure), found)

    def difference(other: torch.Tensor) -> float:
        return float((other - found).abs().max())

    assert difference(after_fifteen(structure, trust=1.001)) > 1e-3
    assert (difference(after_fifteen(structure, decay=0.5)) > 1e-3) == (structure != "mixture")
    unknown = after_fifteen(structure, total_steps=None)
    assert (difference(unknown) > 1e-3) == (structure != "low_rank")


def test_the_closed_form_is_given_the_tempered_density(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(y: torch.Tensor) -> None:
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    seen, update = [], MixtureForm.update

    def look(form: Any, state: Any, parameters: Any, *given: Any) -> Any:
        seen.append((given[0][:, 0], given[-1]))
        return update(form, state, parameters, *given)

    monkeypatch.setattr(MixtureForm, "update", look)
    guide = AutoGaussianMixture(model, 2)
    engine = ProximalScoreVI(
        model, guide, solver=Regression(num_samples=8), likelihood_temperature=0.25, seed=0
    )
    engine.step(torch.tensor(2.0))
    ((x, log_density),) = seen
    expected = -0.5 * x.square() - 0.5 * (2.0 - x).square() / 0.25
    assert x.std() > 0.01
    torch.testing.assert_close(log_density - log_density[0], expected - expected[0])


def test_new_parameters_that_are_not_finite_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guide = AutoMultivariateNormal(conjugate)
    engine = ProximalScoreVI(conjugate, guide, solver="regression", seed=0)
    engine.run(10, Y, progress_bar=False)
    before, regression = engine.parameters, str(engine._solver_state)
    update = engine.plan.executor.form.update

    def broken(*given: Any) -> Any:
        state, parameters = update(*given)
        return state, {name: value * torch.nan for name, value in parameters.items()}

    monkeypatch.setattr(engine.plan.executor.form, "update", broken)
    with pytest.raises(NonFiniteError):
        engine.step(Y)
    assert all(torch.equal(engine.parameters[name], value) for name, value in before.items())
    assert torch.equal(guide.loc.detach(), before["loc"])
    assert str(engine._solver_state) == regression


def test_draws_of_a_broken_step_are_not_used_again() -> None:
    def model(size: torch.Tensor) -> None:
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.factor("size", size * x.sum())

    guide = AutoDiagonalNormal(model)
    engine = ProximalScoreVI(
        model, guide, solver=GradientSteps(sample_reuse=3), on_nonfinite="skip", seed=0
    )
    engine.step(torch.tensor(1.0))
    ((theta, score),) = engine._solver_state.reused
    # Its score is finite, and the square of that is not.
    assert np.isnan(engine.step(torch.tensor(1e200))) and engine.num_skipped == 1
    ((theta_after, score_after),) = engine._solver_state.reused
    assert torch.equal(theta_after, theta) and torch.equal(score_after, score)
    engine.step(torch.tensor(1.0))
    assert len(engine._solver_state.reused) == 2


def test_a_broken_inner_step_restores_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ProximalScoreVI(
        conjugate,
        AutoMultivariateNormal(conjugate),
        solver=GradientSteps(num_inner_steps=2),
        on_nonfinite="skip",
        seed=0,
    )
    engine.run(5, Y, progress_bar=False)
    assert engine._optimizer is not None

    def moments() -> str:
        # Without the learning rate, which is set anew at every iteration.
        assert engine._optimizer is not None
        return str([entry["state"] for entry in engine._optimizer.state_dict()["optimizers"]])

    before, parameters = moments(), engine.parameters
    gradient, calls = proximal_gradient, []

    def breaks_later(*arguments: Any) -> Any:
        calls.append(1)
        value, entries = gradient(*arguments)
        return (value * float("nan"), entries) if len(calls) == 2 else (value, entries)

    monkeypatch.setattr(gradient_steps, "proximal_gradient", breaks_later)
    engine.step(Y)
    assert len(calls) == 2 and engine.num_skipped == 1
    assert moments() == before
    assert all(torch.equal(parameters[k], v) for k, v in engine.parameters.items())


def test_draws_go_on_after_loading(tmp_path: Path) -> None:
    engine = ProximalScoreVI(conjugate, AutoDiagonalNormal, seed=0)
    engine.run(3, Y, progress_bar=False)
    engine.get_samples(2)
    engine.save(tmp_path / "state")
    other = ProximalScoreVI(conjugate, AutoDiagonalNormal, seed=1)
    other.load(tmp_path / "state")
    other.setup(Y)
    for name, draws in engine.get_samples(5).items():
        assert torch.equal(other.get_samples(5)[name], draws)


def test_sites_that_cannot_be_drawn_are_told_at_guide_set_up() -> None:
    def improper() -> None:
        support = dist.constraints.positive
        pyro.sample("a", dist.ImproperUniform(support, torch.Size(), torch.Size()))
        pyro.sample("b", dist.Normal(0.0, 1.0))

    with pytest.raises(ArgumentError, match=r"AutoDiagonalNormal could not be set up.*SVGD"):
        ProximalScoreVI(improper, AutoDiagonalNormal, seed=0).step()
