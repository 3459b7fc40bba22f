"""Options of the gradient solver in both packages: optimizers by site, clipping, start, reuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.score_matching.options import GradientSteps
from tests.backends import use_float64
from tests.score_support import (
    GuideRun,
    Noted,
    by_parts,
    guide_of,
    normal_model,
    room,
    two_sites,
)
from tests.stein_support import optimizer

use_float64()

GUIDES = ["AutoDiagonalNormal", "AutoMultivariateNormal", "AutoLowRankMultivariateNormal"]


def make(face: Any, guide: Any = "AutoDiagonalNormal", **options: Any) -> GuideRun:
    """The program of two sites, fitted by gradient steps of these options."""
    engine = {name: options.pop(name) for name in ("initial_scale",) if name in options}
    face.host.set_rng_seed(0) if face.name == "pyro" else None
    return GuideRun(face, two_sites(face), guide, solver=GradientSteps(**options), seed=3, **engine)


def sgd(face: Any, rate: float) -> Any:
    return optimizer(face.backend, "sgd", rate)


def changes(run: GuideRun, steps: int = 1) -> dict[str, np.ndarray]:
    """What some steps add to the guide's parameters."""
    before = {name: value.copy() for name, value in run.values.items()}
    for _ in range(steps):
        run.step()
    return {name: value - before[name] for name, value in run.values.items()}


def flat(values: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([value.ravel() for value in values.values()])


# -- optimizers by site ----------------------------------------------------------------------------


@pytest.mark.parametrize("guide", GUIDES)
def test_sites_move_as_with_their_optimizer_alone(face: Any, guide: str) -> None:
    """One inner step: the entries of each site are those of a run with its rate for all."""
    mixed, fast, slow = (
        changes(make(face, guide, optim=optim, num_inner_steps=1))
        for optim in (
            {"*.b": sgd(face, 0.01), "*": sgd(face, 0.1)},
            sgd(face, 0.1),
            sgd(face, 0.01),
        )
    )
    for name, value in mixed.items():
        owner = np.arange(7)
        if value.shape == (28,):
            # NumPyro's vector: rows below the diagonal, then the diagonal.
            owner = np.concatenate([np.tril_indices(7, -1)[0], owner])
        first = owner < 3
        np.testing.assert_allclose(value[first], fast[name][first], rtol=1e-10)
        np.testing.assert_allclose(value[~first], slow[name][~first], rtol=1e-10)
        assert np.abs(value[first]).max() > 0


def test_mappings_that_say_nothing_new_change_nothing(face: Any) -> None:
    """One optimizer for all sites by pattern is that optimizer, and the default stands for None."""
    adam = face.backend.adam(0.02)
    for guide, plain, mapped in [
        ("AutoMultivariateNormal", adam, {"layer.?": adam}),
        ("AutoDiagonalNormal", None, {"*": None}),
    ]:
        one, two = (changes(make(face, guide, optim=optim), 3) for optim in (plain, mapped))
        np.testing.assert_allclose(flat(one), flat(two), rtol=1e-10)


def test_patterns_that_do_not_fit_are_refused(face: Any) -> None:
    """The rest is tested on ``match_sites``."""
    with pytest.raises(ArgumentError, match=r"none of \['\*.a'\] for \['layer.b'\]. Add '\*'"):
        make(face, optim={"*.a": None})
    with pytest.raises(ArgumentError, match=r"patterns of site names .*\[1, '\*'\]"):
        make(face, optim={1: None, "*": None})


def test_parameters_of_no_site_need_the_rest_pattern(face: Any) -> None:
    model, rate = two_sites(face), sgd(face, 0.1)
    flow = guide_of(face, "AutoPlanarFlow", model)
    with pytest.raises(ArgumentError, match=r"belong to no single site.*Add '\*'"):
        make(face, flow, optim={"layer.*": rate})
    mixture = guide_of(face, "AutoGaussianMixture", model, num_components=2)
    make(face, mixture, optim={"*.a": rate, "*": sgd(face, 0.0)})


# -- clipping, start, reuse ------------------------------------------------------------------------


@pytest.mark.parametrize("guide", GUIDES[:2])
def test_long_gradients_are_shortened_to_the_norm(face: Any, guide: str) -> None:
    whole, short, same = (
        flat(changes(make(face, guide, optim=sgd(face, 1.0), num_inner_steps=1, clip_norm=norm)))
        for norm in (None, 0.1, 1e9)
    )
    length = np.linalg.norm(whole)
    assert length > 1.0
    np.testing.assert_allclose(short, 0.1 * whole / length, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(same, whole, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("guide", GUIDES)
def test_initial_scale_is_the_standard_deviation_of_every_coordinate(face: Any, guide: str) -> None:
    run = make(face, guide, initial_scale=0.03)
    np.testing.assert_allclose(np.sqrt(np.diag(run.covariance)), 0.03, rtol=1e-6)


def test_initial_scale_of_a_matrix_normal(face: Any) -> None:
    def model() -> None:
        normal = face.dist.Normal(0.0, 1.0)
        face.host.sample("w", normal.expand([2, 3]).to_event(2))
        face.host.sample("b", normal.expand([3]).to_event(1))

    run = GuideRun(face, model, "AutoMatrixNormal", initial_scale=0.03)
    np.testing.assert_allclose(run.moments[1], 0.03 * np.eye(9), rtol=1e-6)


def test_guides_that_have_no_scale_to_set_are_told(face: Any) -> None:
    with pytest.raises(ArgumentError, match=r"with initial_scale, found AutoPlanarFlow"):
        make(face, guide_of(face, "AutoPlanarFlow", two_sites(face)), initial_scale=0.1)


def test_reused_draws_are_those_of_the_last_iterations(
    face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, noted = room(face, "score.gradient_steps"), Noted(face)
    gradient = steps.proximal_gradient

    def seen(density: Any, parameters: Any, theta: Any, *rest: Any) -> Any:
        noted.add(theta)
        return gradient(density, parameters, theta, *rest)

    monkeypatch.setattr(steps, "proximal_gradient", seen)
    run = make(face, GUIDES[1], sample_reuse=3, num_inner_steps=1, num_samples=2)
    for _ in range(4):
        run.step()
    used = [theta.reshape(3, -1).tolist() for (theta,) in noted.found]
    fresh = [blocks[0] for blocks in used]
    assert len(used) == 4
    for t, blocks in enumerate(used):
        earlier = [fresh[s] for s in (t - 1, t - 2) if s >= 0]
        # The present draws stand in for those that are missing.
        assert sorted(blocks) == sorted(earlier + [fresh[t]] * (3 - len(earlier)))
    for (theta, score), expected in zip(run.reused, fresh[:1:-1], strict=True):
        np.testing.assert_array_equal(theta.ravel(), expected)
        np.testing.assert_allclose(score, run.score(theta), rtol=1e-9)


@pytest.mark.in_one_package
def test_a_fit_with_reused_draws_finds_the_target(face: Any) -> None:
    mean, deviations = (0.5, -0.3, 0.2), (0.3, 0.5, 0.2)
    model, solver = normal_model(face, mean, deviations), GradientSteps(sample_reuse=4)
    run = GuideRun(face, model, "AutoDiagonalNormal", solver=solver).run(3000)
    assert [theta.shape for theta, _ in run.reused] == [(1, 3)] * 3
    np.testing.assert_allclose(run.moments[0], mean, rtol=0, atol=1e-2)
    np.testing.assert_allclose(np.diag(run.moments[1]), deviations, rtol=1e-2)


# -- long vectors ----------------------------------------------------------------------------------

ADAM = {"optim": lambda face: optimizer(face.backend, "adam", 0.05, steps=10, end=0.35)}
SITES = {"optim": lambda face: {"*.a": face.backend.adam(0.1), "*": None}}


@pytest.mark.parametrize(
    "options", [{}, {"num_samples": 3, "proximal": 0.7}, {"sample_reuse": 2}, ADAM, SITES]
)
def test_steps_by_part_are_the_plain_ones(
    face: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven coordinates in parts of two or three, of which the last may overlap another."""
    is_pyro, steps = face.name == "pyro", room(face, "score.gradient_steps")
    if "optim" in options:
        if not is_pyro:
            pytest.skip("NumPyro's long vectors are for the default optimizer")
        options = {"optim": options["optim"](face)}
    taken: list[int] = []
    if is_pyro:
        # Draws are made by piece in both, here and below.
        by_parts(face, monkeypatch, 2)
    with pytest.MonkeyPatch.context() as patch:
        if is_pyro:
            # The plain way copies what it may have to restore, and takes all together.
            patch.setattr(steps, "_cannot_break", lambda *_: False)
            by_part = steps.steps_by_part

            def counted(*given: Any) -> Any:
                taken.append(1)
                return by_part(*given)

            monkeypatch.setattr(steps, "steps_by_part", counted)
        else:
            monkeypatch.setattr(room(face, "guides.normal"), "LONG", 3)
        plain = make(face, **options)
        assert is_pyro or not plain.engine.plan.keeps_state
        start = plain.flat
        plain.run(6)
    assert not taken
    if not is_pyro:
        by_parts(face, monkeypatch, 3)
    run = make(face, **options).run(6)
    if is_pyro:
        assert len(taken) == 6
    else:
        assert run.engine.plan.keeps_state
    np.testing.assert_allclose(run.losses, plain.losses, rtol=1e-10)
    for name in ("log_p", "log_q"):
        np.testing.assert_allclose(run.info(name), plain.info(name), rtol=1e-10)
    np.testing.assert_allclose(run.flat, plain.flat, rtol=1e-10)
    assert not np.isclose(run.flat, start).any()


def test_the_bound_on_gradients_holds(face: Any) -> None:
    """Largest entry of any gradient within reach of the present parameters, by trying."""
    density = face.density(guide_of(face, "AutoDiagonalNormal", two_sites(face)))
    parameters, reach, generator = density.initial_parameters(), 0.3, np.random.default_rng(0)
    theta = face.array(face.draws(density, parameters, 2))
    score = face.array(5.0 * generator.normal(size=(2, 7)))
    bound = float(density.largest_gradient(parameters, theta, score, reach))
    present = face.array(face.numpy(density.score(parameters, theta)))
    gradient = face.backend.compiled(density.mean_square_residual)
    largest = 0.0
    for _ in range(200):
        near = {
            name: value + face.array(reach * generator.uniform(-1.0, 1.0, size=7))
            for name, value in parameters.items()
        }
        target = score + generator.uniform() * (present - score)
        found = face.numpy(gradient(near, theta, target)[1])
        largest = max(largest, *(np.abs(entry).max() for entry in found.values()))
    assert largest <= bound < 1e6
