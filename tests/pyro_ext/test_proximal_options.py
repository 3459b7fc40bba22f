"""Options of the gradient solver in Pyro's package, and its long way for long vectors."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import autoguide

from ppl_ext.errors import ArgumentError
from ppl_ext.score import STEPS, GradientSteps
from pyro_ext.density import evaluation, handlers
from pyro_ext.diagnostics import elbo
from pyro_ext.guides import AutoGaussianMixture, AutoMatrixNormal, AutoPlanarFlow
from pyro_ext.score import ProximalScoreVI, gradient_steps, objective
from pyro_ext.score.gradient_steps import GradientSolver
from tests.models import pyro_models

torch.set_default_dtype(torch.float64)

GUIDES = ["AutoDiagonalNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal"]


def two_sites() -> None:
    """Sites of three and four latents that depend on each other."""
    a = pyro.sample("layer.a", dist.Normal(torch.tensor([1.0, -2.0, 3.0]), 0.7).to_event(1))
    pyro.sample("layer.b", dist.Normal(a.sum() * torch.ones(4), 0.5).to_event(1))


#: Options of the engine, the others being the solver's.
ENGINE = {"initial_scale", "on_nonfinite", "total_steps", "estimator"}


def make(guide: Any = "AutoDiagonalNormal", **options: Any) -> ProximalScoreVI:
    # Equal starts: the hosts' low-rank guide draws its factor.
    torch.manual_seed(0)
    if isinstance(guide, str):
        guide = getattr(autoguide, guide)(two_sites)
    engine = {name: options.pop(name) for name in ENGINE & options.keys()}
    return ProximalScoreVI(two_sites, guide, solver=GradientSteps(**options), seed=3, **engine)


def sgd(rate: float) -> Any:
    return functools.partial(torch.optim.SGD, lr=rate)


def changes(engine: ProximalScoreVI, steps: int = 1) -> dict[str, torch.Tensor]:
    engine.setup()
    before = engine.parameters
    for _ in range(steps):
        engine.step()
    return {name: value - before[name] for name, value in engine.parameters.items()}


# -- optimizers by site ---------------------------------------------------------------------------


@pytest.mark.parametrize("guide", GUIDES)
def test_sites_move_as_with_their_optimizer_alone(guide: str) -> None:
    """One inner step: the entries of each site are those of a run with its rate for all."""
    options: dict[str, Any] = {"num_inner_steps": 1}
    mixed = changes(make(guide, optim={"*.b": sgd(0.01), "*": sgd(0.1)}, **options))
    fast, slow = (changes(make(guide, optim=sgd(rate), **options)) for rate in (0.1, 0.01))
    for name, value in mixed.items():
        assert torch.equal(value[:3], fast[name][:3]) and value[:3].abs().max() > 0
        torch.testing.assert_close(value[3:], slow[name][3:])


def test_one_optimizer_for_all_sites_by_pattern_is_that_optimizer() -> None:
    alike = [
        changes(make("AutoMultivariateNormal", optim=optim), 4)
        for optim in (pyro.optim.Adam({"lr": 0.02}), {"layer.?": pyro.optim.Adam({"lr": 0.02})})
    ]
    for name, value in alike[0].items():
        torch.testing.assert_close(value, alike[1][name])


def test_the_default_stands_for_none() -> None:
    default, mapped = (changes(make(optim=optim), 3) for optim in (None, {"*": None}))
    for name, value in default.items():
        torch.testing.assert_close(value, mapped[name])


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
        make(optim=patterns).setup()


def test_parameters_of_no_site_need_the_rest_pattern() -> None:
    flow = AutoPlanarFlow(two_sites)
    with pytest.raises(ArgumentError, match=r"belong to no single site.*Add '\*'"):
        make(flow, optim={"layer.*": sgd(0.1)}).setup()
    make(AutoGaussianMixture(two_sites, 2), optim={"*.a": sgd(0.01), "*": sgd(0.0)}).setup()


# -- clipping, start, reuse ------------------------------------------------------------------------


@pytest.mark.parametrize("guide", GUIDES[:2])
def test_long_gradients_are_shortened_to_the_norm(guide: str) -> None:
    given: dict[str, Any] = {"optim": sgd(1.0), "num_inner_steps": 1}
    whole = torch.cat([v.flatten() for v in changes(make(guide, **given)).values()])
    short = torch.cat([v.flatten() for v in changes(make(guide, clip_norm=0.1, **given)).values()])
    assert float(whole.norm()) > 1.0
    torch.testing.assert_close(short, 0.1 * whole / whole.norm())
    same = torch.cat([v.flatten() for v in changes(make(guide, clip_norm=1e9, **given)).values()])
    torch.testing.assert_close(same, whole)


@pytest.mark.parametrize("guide", GUIDES)
def test_initial_scale_is_the_standard_deviation_of_every_coordinate(guide: str) -> None:
    engine = make(guide, initial_scale=0.03)
    engine.setup()
    scale = engine.density.moments(engine.parameters).scale
    deviations = scale if scale.ndim == 1 else scale.square().sum(-1).sqrt()
    torch.testing.assert_close(deviations, torch.full((7,), 0.03))


def test_initial_scale_of_a_matrix_normal() -> None:
    def model() -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
        pyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    engine = ProximalScoreVI(model, AutoMatrixNormal, initial_scale=0.03)
    engine.setup()
    scale = engine.density.moments(engine.parameters).scale
    torch.testing.assert_close(scale, 0.03 * torch.eye(9))


def test_guides_that_have_no_scale_to_set_are_told() -> None:
    with pytest.raises(ArgumentError, match=r"with initial_scale, found AutoPlanarFlow"):
        make(AutoPlanarFlow(two_sites), initial_scale=0.1).setup()


def test_reused_draws_are_those_of_the_last_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.Tensor] = []
    gradient = objective.proximal_gradient

    def seen(density: Any, parameters: Any, theta: torch.Tensor, *rest: Any) -> Any:
        used.append(theta)
        return gradient(density, parameters, theta, *rest)

    monkeypatch.setattr(gradient_steps, "proximal_gradient", seen)
    engine = make("AutoMultivariateNormal", sample_reuse=3, num_inner_steps=1, num_samples=2)
    for _ in range(4):
        engine.step()
    fresh = [theta[:2] for theta in used]
    for t, theta in enumerate(used):
        assert theta.shape == (6, 7)
        missing = max(2 - t, 0)
        expected = [fresh[t]] * (1 + missing) + [fresh[s] for s in (t - 1, t - 2) if s >= 0]
        assert torch.equal(theta, torch.cat(expected))


def test_the_host_works_on_without_the_values_of_the_set_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = importlib.import_module("pyro_ext.guides.flat_density")
    monkeypatch.setattr(module, "LARGE_SITE", 4)
    guide = autoguide.AutoDiagonalNormal(two_sites)
    make(guide).run(3, progress_bar=False)
    value = guide.prototype_trace.nodes["layer.b"]["value"]
    assert value.shape == (4,) and value.untyped_storage().nbytes() == value.element_size()
    assert guide.median()["layer.b"].shape == (4,)
    # Another engine, and the host's own inference, go on from where the guide is.
    before = guide.loc.detach().clone()
    make(guide).setup()
    assert torch.equal(guide.loc, before)
    pyro.infer.SVI(two_sites, guide, pyro.optim.SGD({"lr": 1e-3}), pyro.infer.Trace_ELBO()).step()


# -- long vectors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_samples": 3, "proximal": 0.7},
        {"sample_reuse": 2},
        {
            "optim": pyro.optim.ExponentialLR(
                {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.05}, "gamma": 0.9}
            )
        },
        {"optim": {"*.a": pyro.optim.Adam({"lr": 0.1}), "*": None}},
    ],
)
def test_steps_by_part_are_the_plain_ones(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plain way copies what it may have to restore, and takes all coordinates together."""
    plain = make(**options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient_steps, "_cannot_break", lambda *_: False)
        expected = plain.run(6, progress_bar=False)
    monkeypatch.setattr(gradient_steps, "PART_LENGTH", 2)
    taken, by_part = [], GradientSolver._steps_by_part

    def counted(self: GradientSolver, *arguments: Any) -> Any:
        taken.append(1)
        return by_part(self, *arguments)

    monkeypatch.setattr(GradientSolver, "_steps_by_part", counted)
    engine = make(**options)
    found = engine.run(6, progress_bar=False)
    assert len(taken) == 6 and engine._optimizer is not None
    assert len(engine._optimizer.parts) >= 4
    torch.testing.assert_close(torch.tensor(found.losses), torch.tensor(expected.losses))
    for name, figures in expected.info.items():
        torch.testing.assert_close(torch.tensor(found.info[name]), torch.tensor(figures))
    for name, value in plain.parameters.items():
        torch.testing.assert_close(engine.parameters[name], value)


def test_the_bound_on_gradients_holds() -> None:
    """Largest entry of any gradient within reach of the present parameters, by trying."""
    engine = make()
    engine.setup()
    density, parameters = engine.density, engine.parameters
    generator = torch.Generator().manual_seed(0)
    theta = density.sample(parameters, generator, 2)
    score = 5.0 * torch.randn(2, 7, generator=generator)
    reach = 0.3
    bound = density.largest_gradient(parameters, theta, score, reach)
    largest = 0.0
    for _ in range(200):
        near = {
            name: value + reach * (2 * torch.rand(7, generator=generator) - 1)
            for name, value in parameters.items()
        }
        present = density.score(parameters, theta)
        target = torch.lerp(score, present, float(torch.rand((), generator=generator)))
        _, gradient = density.mean_square_residual(near, theta, target)
        largest = max(largest, *(float(entry.abs().max()) for entry in gradient.values()))
    assert largest <= bound < 1e6


MASKS = [True, False, torch.tensor([[True, False] * 3, [True] * 6])]


@pytest.mark.parametrize("mask", MASKS, ids=["all", "none", "some"])
@pytest.mark.parametrize("scaled", [1.0, 2.5])
def test_priors_added_in_place_are_those_of_the_host(
    mask: Any, scaled: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large site with one Normal for all entries; masked or scaled ones go the usual way."""

    def model(loc: torch.Tensor, scale: torch.Tensor) -> None:
        with pyro.poutine.mask(mask=mask), pyro.poutine.scale(scale=scaled):
            w = pyro.sample("w", dist.Normal(loc, scale).expand([2, 6]))
        pyro.sample("y", dist.Normal(w.sin().sum(), 0.3), obs=torch.tensor(1.5))

    added: list[Any] = []
    add = evaluation.add_normal

    def counted(*arguments: Any) -> Any:
        added.append(arguments)
        return add(*arguments)

    monkeypatch.setattr(evaluation, "add_normal", counted)

    def figures() -> Any:
        engine = ProximalScoreVI(model, autoguide.AutoDiagonalNormal(model), seed=0)
        engine.setup(torch.tensor(0.7), torch.tensor(1.3))
        z = torch.randn(3, 12, generator=torch.Generator().manual_seed(1))
        return engine.target.score(z, engine.data)

    expected = figures()
    assert not added
    monkeypatch.setattr(handlers, "LARGE_SITE", 4)
    for one, two in zip(expected, figures(), strict=True):
        torch.testing.assert_close(one, two)
    assert bool(added) == (mask is True and scaled == 1.0)


# -- defaults ------------------------------------------------------------------------------------


def scalar() -> None:
    pyro.sample("x", dist.Normal(1.0, 0.5))


def test_few_coordinates_do_not_fall_into_the_neck_of_a_funnel() -> None:
    """The centred eight schools, whose density has its mode where tau is 0.

    The best diagonal fit has a bound of about -34.6, one in the neck of -48.
    """
    model, args = (
        pyro_models.eight_schools_centered,
        pyro_models.arguments("eight_schools_centered"),
    )
    engine = ProximalScoreVI(model, autoguide.AutoDiagonalNormal(model), seed=0)
    engine.run(2000, *args, progress_bar=False)
    assert elbo(engine).value > -37.0


def test_a_factor_that_spans_everything_has_the_gradient_solver() -> None:
    guide = autoguide.AutoLowRankMultivariateNormal(scalar)
    engine = ProximalScoreVI(scalar, guide, seed=0)
    engine.setup()
    assert engine.plan.solver == GradientSteps().resolved(STEPS["normal"])
    engine = ProximalScoreVI(scalar, guide, solver="regression")
    with pytest.raises(ArgumentError, match="Expected a rank below the number of latents, 1,"):
        engine.setup()


def test_a_single_component_is_fitted() -> None:
    engine = ProximalScoreVI(scalar, AutoGaussianMixture(scalar, 1), seed=0)
    engine.run(300, progress_bar=False)
    draws = engine.get_samples(4000)["x"]
    assert abs(float(draws.mean()) - 1.0) < 5 * 0.5 / 4000**0.5
    assert abs(float(draws.std()) - 0.5) < 5 * 0.5 / 8000**0.5


def test_steps_after_a_run_keep_what_it_found() -> None:
    """Twenty time constants in the run; after it, a draw's noise in as many more."""
    scale = torch.linspace(0.5, 2.0, 20)

    def model() -> None:
        pyro.sample("x", dist.Normal(torch.zeros(20), scale).to_event(1))

    guide = autoguide.AutoDiagonalNormal(model)
    engine = ProximalScoreVI(model, guide, seed=0)
    engine.run(400, progress_bar=False)
    for _ in range(200):
        engine.step()
    torch.testing.assert_close(guide.scale.detach() / scale, torch.ones(20), rtol=0, atol=0.02)
