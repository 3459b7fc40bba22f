"""What only Pyro's engines of guides have.

The guide object is live: the engine writes into its tensors, may find others in their place, and
what the host keeps of its set-up may have to go. Flows draw constants that are no parameters.
Steps change memory, and are undone when they break. Second derivatives are taken by a wrapper.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import autoguide

from ppl_ext.errors import ArgumentError
from ppl_ext.score_matching.options import GradientSteps
from ppl_ext.score_matching.regression.base import Observed
from pyro_ext.density import LogDensity, evaluation, handlers
from pyro_ext.engine import seeded_generator
from pyro_ext.gradients import GradientEstimator
from pyro_ext.score import FisherVI, ProximalScoreVI, gradient_steps, guide_engine
from pyro_ext.score.fisher import DifferentiableTarget
from pyro_ext.score.objective import proximal_gradient
from pyro_ext.score.regression import CLOSED_FORMS, small
from pyro_ext.score.regression.base import restored, saved
from tests import score_support as support
from tests.backends import use_float64
from tests.closed_form_support import density_of
from tests.guides_support import face_of
from tests.score_support import GuideRun

use_float64()

FACE = face_of("pyro")
Y, COUNTS = torch.tensor(support.Y), torch.tensor(support.COUNTS)
gaussian, conjugate, counts, two_sites = (
    make(FACE) for make in (support.gaussian, support.conjugate, support.counts, support.two_sites)
)


# -- the live guide --------------------------------------------------------------------------------


def test_engine_leaves_other_parameters_alone() -> None:
    pyro.param("mine", torch.tensor(3.0))
    solver = GradientSteps(num_inner_steps=1)
    GuideRun(FACE, gaussian, "AutoLowRankMultivariateNormal", solver=solver).run(3)
    assert list(pyro.get_param_store().keys()) == ["mine"]


def test_a_guide_whose_parameters_were_replaced_is_refused() -> None:
    guide = autoguide.AutoDiagonalNormal(gaussian)
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


@pytest.mark.parametrize("engine", [ProximalScoreVI, FisherVI])
def test_two_guides_of_one_name_have_fits_of_their_own(engine: Any) -> None:
    """The host's parameter store has the first guide's parameters under the second one's names."""

    def model(y: torch.Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 10.0).to_event(1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    fits = []
    for rows in (10, 1000, 100):
        y = torch.zeros(rows, 2)
        guide = autoguide.AutoDiagonalNormal(model)
        fitted = engine(model, guide, seed=0)
        fitted.run(40, y, progress_bar=False)
        fits.append((fitted, guide, guide.scale.detach().clone(), y))
        guide(y)  # the host stores the parameters
    for fitted, guide, scale, y in fits:
        guide(y)
        torch.testing.assert_close(guide.scale.detach(), scale)
        torch.testing.assert_close(guide.quantiles([0.5])["mean"][0].detach(), guide.loc.detach())
        draws = fitted.get_samples(num_samples=2000)["mean"]
        torch.testing.assert_close(draws.std(0), scale, rtol=0.1, atol=0.0)
    assert not torch.allclose(fits[0][2], fits[1][2], rtol=0.05)


def test_sites_that_cannot_be_drawn_are_told_at_guide_set_up() -> None:
    def improper() -> None:
        support = dist.constraints.positive
        pyro.sample("a", dist.ImproperUniform(support, torch.Size(), torch.Size()))
        pyro.sample("b", dist.Normal(0.0, 1.0))

    with pytest.raises(ArgumentError, match=r"AutoDiagonalNormal could not be set up.*SVGD"):
        ProximalScoreVI(improper, autoguide.AutoDiagonalNormal, seed=0).step()


def test_the_host_works_on_without_the_values_of_the_set_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = importlib.import_module("pyro_ext.guides.flat_density")
    monkeypatch.setattr(module, "LARGE_SITE", 4)
    guide = autoguide.AutoDiagonalNormal(two_sites)
    GuideRun(FACE, two_sites, guide).run(3)
    value = guide.prototype_trace.nodes["layer.b"]["value"]
    assert value.shape == (4,) and value.untyped_storage().nbytes() == value.element_size()
    assert guide.median()["layer.b"].shape == (4,)
    # Another engine, and the host's own inference, go on from where the guide is.
    before = guide.loc.detach().clone()
    GuideRun(FACE, two_sites, guide)
    assert torch.equal(guide.loc, before)
    pyro.infer.SVI(two_sites, guide, pyro.optim.SGD({"lr": 1e-3}), pyro.infer.Trace_ELBO()).step()


# -- saved states ----------------------------------------------------------------------------------


def test_a_flow_is_loaded_with_its_random_order(tmp_path: Path) -> None:
    """It draws an order of the coordinates when it is set up, which is no parameter."""
    engine = ProximalScoreVI(gaussian, autoguide.AutoIAFNormal(gaussian), seed=0)
    engine.run(4, progress_bar=False)
    engine.save(tmp_path / "state")
    engine.run(3, progress_bar=False)
    points = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    expected = engine.density.log_prob(engine.parameters, points)
    for seed in (1, 2):
        other = ProximalScoreVI(gaussian, autoguide.AutoIAFNormal(gaussian), seed=seed)
        other.load(tmp_path / "state")
        other.run(3, progress_bar=False)
        torch.testing.assert_close(other.density.log_prob(other.parameters, points), expected)
        assert other.losses == engine.losses


def test_a_guide_with_other_constants_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = (GuideRun(FACE, gaussian, "AutoIAFNormal") for _ in range(2))
    probe, plan = guide_engine._probe, run.engine.plan
    assert probe(plan) is not None
    monkeypatch.setattr(guide_engine, "_probe", lambda of: probe(of) + float(of is plan))
    run.run(2)
    other.run(4)
    before = other.flat, other.engine._horizon
    with pytest.raises(ArgumentError, match="another AutoIAFNormal: .*another density"):
        other.load_from(run, tmp_path / "state")
    np.testing.assert_array_equal(other.flat, before[0])
    assert other.engine._horizon == before[1] == 4


def test_draws_go_on_after_loading_and_have_no_part_in_the_run(tmp_path: Path) -> None:
    """NumPyro's draws have keys of their own."""
    run, twin, other = (
        GuideRun(FACE, conjugate, "AutoDiagonalNormal", args=(Y,), seed=seed) for seed in (0, 0, 1)
    )
    run.run(3, callback=lambda *_: run.samples(3) and None)
    np.testing.assert_array_equal(run.losses, twin.run(3).losses)
    other.load_from(run, tmp_path / "state")
    np.testing.assert_array_equal(other.samples(5)["mu"], run.samples(5)["mu"])


@pytest.mark.parametrize("structure", CLOSED_FORMS)
def test_states_of_closed_forms_are_saved_and_restored(structure: str) -> None:
    """Named tuples of tensors, numbers, each other and dictionaries become plain containers."""
    density = density_of(FACE, structure, 2, 3)
    form, parameters = CLOSED_FORMS[structure](density), density.initial_parameters()
    start = form.initial(parameters)
    theta = form.draw(parameters, torch.Generator().manual_seed(0), 4)
    state, _ = form.update(start, parameters, Observed(theta, -theta, 10, -theta.square().sum(-1)))

    def plain(tree: Any) -> bool:
        children = tree.values() if isinstance(tree, dict) else tree
        return not isinstance(tree, tuple | dict | list) or (
            not hasattr(tree, "_asdict") and all(map(plain, children))
        )

    assert plain(saved(state))
    again = restored(start, saved(state))

    def check(one: Any, two: Any) -> None:
        assert type(one) is type(two)
        if isinstance(one, tuple | list):
            for pair in zip(one, two, strict=True):
                check(*pair)
        elif isinstance(one, torch.Tensor):
            assert torch.equal(one, two)
        else:
            assert one == two

    check(again, state)


# Eigenvectors of either sign make low-rank guides of one density, whose later draws differ.
@pytest.mark.parametrize(
    ("guide", "steps"), [("Diagonal", 30), ("Multivariate", 30), ("LowRankMultivariate", 8)]
)
def test_small_guides_are_fitted_by_numpy_as_by_torch(
    guide: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fitted(by_numpy: bool) -> GuideRun:
        run = GuideRun(FACE, gaussian, f"Auto{guide}Normal")
        run.run(steps)
        assert isinstance(run.engine.plan.executor.form, small.SmallForm) == by_numpy
        return run

    def check_same() -> None:
        for one, other in zip(by_numpy.moments, by_torch.moments, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9)

    by_numpy = fitted(True)
    monkeypatch.setattr(small, "SMALL", 0)
    by_torch = fitted(False)
    check_same()
    # A state of one is a state of the other.
    by_torch.load_from(by_numpy, tmp_path / "state")
    by_numpy.run(1)
    by_torch.run(1)
    check_same()


# -- steps in place --------------------------------------------------------------------------------


def test_a_broken_inner_step_restores_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = GradientSteps(num_inner_steps=2)
    options: dict[str, Any] = {"solver": solver, "on_nonfinite": "skip", "args": (Y,)}
    run = GuideRun(FACE, conjugate, "AutoMultivariateNormal", **options).run(5)

    def moments() -> str:
        # Without the learning rate, which is set anew at every iteration.
        return str(
            [part["state"] for part in run.engine._state.optimizer.state_dict()["optimizers"]]
        )

    before, parameters, calls = moments(), run.flat, []

    def breaks_later(*arguments: Any) -> Any:
        calls.append(1)
        value, entries = proximal_gradient(*arguments)
        return (value * float("nan"), entries) if len(calls) == 2 else (value, entries)

    monkeypatch.setattr(gradient_steps, "proximal_gradient", breaks_later)
    run.step()
    assert len(calls) == 2 and run.skipped == 1
    assert moments() == before
    np.testing.assert_array_equal(run.flat, parameters)


MASKS = [True, False, torch.tensor([[True, False] * 3, [True] * 6])]
ONE, EACH = torch.tensor(0.7), torch.linspace(-1.0, 2.0, 12).reshape(2, 6)


@pytest.mark.parametrize("mask", MASKS, ids=["all", "none", "some"])
@pytest.mark.parametrize("scaled", [1.0, 2.5])
@pytest.mark.parametrize(
    ("loc", "scale", "can_be_added"),
    [
        (ONE, torch.tensor(1.3), True),
        (EACH, torch.tensor(1.3), True),
        (EACH[0], torch.tensor(1.3), True),
        (ONE, 1.0 + EACH.square(), False),
    ],
    ids=["one", "locations", "locations of rows", "scales"],
)
def test_priors_added_in_place_are_those_of_the_host(
    mask: Any, scaled: float, loc: Any, scale: Any, can_be_added: bool, monkeypatch: Any
) -> None:
    """A large site with a Normal of one scale; masked or scaled ones go the usual way."""

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
        arguments = loc, scale
        target = LogDensity(model, arguments)
        z = torch.randn(3, 12, generator=torch.Generator().manual_seed(1))
        return target.score(z, target.bind(*arguments))

    expected = figures()
    assert not added
    for room in (handlers, evaluation):
        monkeypatch.setattr(room, "LARGE_SITE", 4)
    for one, two in zip(expected, figures(), strict=True):
        torch.testing.assert_close(one, two)
    assert bool(added) == (can_be_added and mask is True and scaled == 1.0)


# -- second derivatives ----------------------------------------------------------------------------


@pytest.mark.parametrize(("evaluation", "chunk"), [("graph", 2), ("handlers", 2), ("loop", None)])
def test_the_target_is_differentiated_twice(evaluation: str, chunk: int | None) -> None:
    """Products with the Hessian against differences of scores, on a minibatch and on all rows."""
    options = {"evaluation": evaluation, "data_chunk": chunk, "particle_chunk": 1}
    target = LogDensity(counts, (COUNTS,), {"batch": 3}, likelihood_temperature=0.5, **options)
    twice, data = DifferentiableTarget(target), target.bind(COUNTS, batch=3)
    z = torch.randn(2, 3, generator=seeded_generator(1))
    vectors = torch.randn(2, 3, generator=seeded_generator(2))
    rows = {"N": torch.tensor([4, 0, 2])}
    for once, score in [
        (lambda z: target.score(z, data, rows), lambda z: twice.score(z, data, rows)),
        (lambda z: target.full_score(z, data), lambda z: twice.full_score(z, data)),
    ]:
        leaf = z.clone().requires_grad_()
        found = score(leaf)
        assert all(torch.equal(a, b) for a, b in zip(found, once(z), strict=True))
        (product,) = torch.autograd.grad((found.score * vectors).sum(), leaf)
        for i in range(3):
            step = torch.zeros(3)
            step[i] = 1e-5
            difference = (once(z + step).score - once(z - step).score) / 2e-5
            torch.testing.assert_close(
                product[:, i], (difference * vectors).sum(-1), rtol=1e-6, atol=1e-7
            )


def test_the_target_is_differentiated_twice_in_float32() -> None:
    target = LogDensity(conjugate, (Y.float(),), dtype=torch.float32)
    twice = DifferentiableTarget(target)
    z = torch.tensor([[0.5]], dtype=torch.float32, requires_grad=True)
    found = twice.full_score(z, target.bind(Y.float())).score
    (product,) = torch.autograd.grad(found.sum(), z)
    assert product.item() == pytest.approx(-(1 / 9 + 10.0), rel=1e-5)


def test_estimators_that_cannot_be_differentiated_are_refused() -> None:
    class Plain(GradientEstimator):
        def init(self, target: Any, data: Any, generator: Any) -> Any:
            return {}

        def estimate(self, target: Any, state: Any, z: Any, data: Any, generator: Any) -> Any:
            return target.full_score(z.detach(), data), state

        def evaluations_per_step(self, target: Any) -> float:
            return 1.0

    engine = FisherVI(conjugate, autoguide.AutoDiagonalNormal, estimator=Plain(), seed=0)
    with pytest.raises(ArgumentError, match="scores can be differentiated"):
        engine.step(Y)
