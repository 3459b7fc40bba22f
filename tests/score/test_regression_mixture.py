"""The closed-form step for mixtures in both packages, against a literal reference, and fits."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.score_matching.options import GradientSteps, Regression
from ppl_ext.score_matching.regression.mixture import progress_of
from tests import mixture_support as support
from tests.backends import use_float64
from tests.closed_form_support import ClosedForm, fitter, latents
from tests.guides_support import check_close
from tests.mixture_support import Mixture, Seen
from tests.score_support import GuideRun, guide_of, room

use_float64()
pytestmark = pytest.mark.formula


def form_of(face: Any) -> ClosedForm:
    return fitter(face, "mixture", support.DIM, num_components=support.NUMBER, init_scale=1.0)


def given(face: Any, mixture: Mixture) -> Any:
    """Parameters with which the guide is this mixture."""
    density = form_of(face).density
    components = room(face, "guides.mixture").Components(*map(face.array, mixture))
    return density.set_components(density.initial_parameters(), components)


def mixture_of(face: Any, parameters: Any) -> Mixture:
    """The mixture that the guide is."""
    return Mixture(*face.numpy(tuple(form_of(face).density.components(parameters))))


def state_of(face: Any, seen: Seen, **entries: Any) -> Any:
    """The state that knows this."""
    form = form_of(face)
    numbers = seen._asdict() | entries
    if face.name == "numpyro":
        numbers = {name: face.array(value) for name, value in numbers.items()}
    arrays = {name: face.array(np.asarray(numbers[name])) for name in seen._fields[1:]}
    state = form.form.initial(form.density.initial_parameters())
    return state._replace(**numbers | arrays)


def update(face: Any, state: Any, mixture: Mixture, *scores: np.ndarray) -> tuple[Any, Mixture]:
    """The state and the mixture after an iteration."""
    theta, score, values = scores
    options = state, given(face, mixture), theta, score, support.TOTAL, values
    state, parameters = form_of(face).update(*options)
    return state, mixture_of(face, parameters)


def assert_same(found: Mixture, expected: Mixture, **tolerance: Any) -> None:
    np.testing.assert_allclose(found.weights, expected.weights, **tolerance)
    check_close(found[1:], expected[1:], **tolerance)


@pytest.mark.in_both_packages
@pytest.mark.parametrize(
    ("iteration", "residual"), [(0, 1.0), (480, 1.0), (500, 1e-4), (800, 0.5), (999, 1e-9)]
)
def test_update_is_that_of_the_reference(face: Any, iteration: int, residual: float) -> None:
    """In the search, at once, at the start of the match, and late in it."""
    mixture, *scores = support.example(iteration)
    cost, square = np.random.default_rng(1).uniform(0.1, 20.0, size=(2, support.NUMBER))
    seen = Seen(iteration, cost, square, residual)
    state, found = update(face, state_of(face, seen), mixture, *scores)
    expected, seen = support.update(mixture, seen, *scores, form_of(face).form.trust)
    # The reference's derivatives are differences.
    assert_same(found, expected, rtol=1e-5, atol=1e-7)
    for name in ("cost", "value_square", "residual"):
        value = face.numpy(getattr(state, name))
        np.testing.assert_allclose(value, getattr(seen, name), rtol=1e-9)
    assert int(state.num_updates) == seen.num_updates


@pytest.mark.parametrize("iteration", [0, 700])
def test_the_target_is_a_fixed_point(face: Any, iteration: int) -> None:
    mixture, theta, _, _ = support.example(2)
    form = form_of(face).form
    state = form.initial(form.density.initial_parameters())
    count = iteration if face.name == "pyro" else face.array(iteration, float)
    scores, values = support.score(mixture, theta), support.log_density(mixture, theta) - 5.0
    state = state._replace(num_updates=count)
    assert_same(update(face, state, mixture, theta, scores, values)[1], mixture, rtol=1e-9)


def test_draws_are_mirrored_pairs_of_each_component(face: Any) -> None:
    mixture, *_ = support.example(3)
    form, parameters = form_of(face).form, given(face, mixture)
    assert form.group(SimpleNamespace(num_components=support.NUMBER)) == 2 * support.NUMBER
    pairs = 20_000
    theta = form.draw(parameters, face.backend.key(), 2 * pairs * support.NUMBER)
    both = face.numpy(theta).reshape(2, pairs, support.NUMBER, support.DIM)
    for half in both - mixture.loc:
        for k, covariance in enumerate(mixture.covariances):
            # Five standard errors of a covariance of so many draws.
            error = 5 * np.sqrt(2.0 / pairs) * np.abs(np.diagonal(covariance)).max()
            np.testing.assert_allclose(half[:, k].T @ half[:, k] / pairs, covariance, atol=error)
    np.testing.assert_allclose(both[0] - mixture.loc, mixture.loc - both[1], atol=1e-12)
    weights = face.numpy(form.weights(parameters, len(theta))).reshape(-1, support.NUMBER)
    np.testing.assert_allclose(weights.sum(0), mixture.weights)
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(weights, np.broadcast_to(mixture.weights / 2 / pairs, weights.shape))


@pytest.mark.parametrize(("iteration", "fresh"), [(48, False), (49, True), (499, False)])
def test_a_component_of_no_use_starts_again(face: Any, iteration: int, fresh: bool) -> None:
    """At the end of a round (of 50 iterations here) that leaves time for another one."""
    mixture, theta, *scores = support.example(4)
    seen = Seen(iteration, np.array([1.0, -1.0, 0.5]), np.zeros(3), 1.0)
    before = state_of(face, seen)
    state, found = update(face, before, mixture, theta, *scores)
    kept, _ = support.update(mixture, seen, theta, *scores, form_of(face).form.trust)
    assert int(state.num_restarts) == fresh
    if not fresh:
        assert_same(found, kept, rtol=1e-5, atol=1e-7)
        return
    np.testing.assert_allclose(found.loc[::2], kept.loc[::2], rtol=1e-5)
    noise = np.linalg.solve(mixture.scale_tril[1], theta[1] - mixture.loc[1])
    center, apart = (face.numpy(getattr(before.start, name)) for name in ("center", "apart"))
    np.testing.assert_allclose(found.loc[1], center + apart * noise, rtol=1e-9)
    # Between a quarter and four times the guide's initial scale, at the golden section.
    share = (5**0.5 - 1.0) / 2.0
    width = np.exp(np.log(0.25) + share * np.log(16.0))
    np.testing.assert_allclose(found.scale_tril[1], width * np.eye(support.DIM), rtol=1e-9)


def test_every_other_component_starts_again_near_the_heaviest(face: Any) -> None:
    mixture, theta, *scores = support.example(4)
    seen = Seen(49, np.array([-1.0, 1.0, 0.5]), np.zeros(3), 1.0)
    state, found = update(face, state_of(face, seen, num_restarts=1), mixture, theta, *scores)
    kept, _ = support.update(mixture, seen, theta, *scores, form_of(face).form.trust)
    assert int(state.num_restarts) == 2
    heaviest = int(kept.weights.argmax())
    assert heaviest == 1
    root = kept.scale_tril[heaviest]
    noise = np.linalg.solve(mixture.scale_tril[0], theta[0] - mixture.loc[0])
    expected = kept.loc[heaviest] + 3.0 * root @ noise
    np.testing.assert_allclose(found.loc[0], expected, rtol=1e-5, atol=1e-6)
    # The second point of the sequence of the golden section, 0.236.
    share = 5**0.5 - 2.0
    expected = np.exp(-share * np.log(4.0)) * root
    np.testing.assert_allclose(found.scale_tril[0], expected, rtol=1e-5, atol=1e-6)


def test_components_of_use_go_on(face: Any) -> None:
    mixture, *scores = support.example(4)
    seen = Seen(49, np.array([1.0, 0.5, 0.5]), np.zeros(3), 1.0)
    state, _ = update(face, state_of(face, seen), mixture, *scores)
    assert int(state.num_restarts) == 0


def test_a_run_of_unknown_length_stays_at_three_quarters(face: Any) -> None:
    for iteration, expected in ((1000, 0.5), (5000, 0.75)):
        count = iteration if face.name == "pyro" else face.array(iteration, float)
        assert float(progress_of(count, 0, 3)[0]) == expected


@pytest.mark.parametrize("below", [10.0, 1e3, 1e9])
def test_a_component_far_below_the_others_loses_its_weight(face: Any, below: float) -> None:
    """As fast as can be, however far below it is."""
    mixture, theta, score, values = support.example(4)
    own = np.arange(len(theta)) % support.NUMBER
    values = np.where(own == 1, values - below, values)
    seen = Seen(600, np.ones(3), np.full(3, below**2), 1.0)
    _, found = update(face, state_of(face, seen), mixture, theta, score, values)
    _, kept = update(
        face, state_of(face, seen), mixture, theta, score, support.log_density(mixture, theta)
    )
    ratios = found.logits - kept.logits
    # The step of the weights is at most 0.1 and falls in the match.
    assert ratios[1] - max(ratios[0], ratios[2]) < -0.04


# -- fits ------------------------------------------------------------------------------------------


@cache
def two_modes(face: Any) -> Any:
    """The target ``TWO_MODES``, with a constant that no score knows."""
    host, dist, array = face.host, face.dist, face.array

    def model() -> None:
        x = host.sample("x", dist.Normal(face.zeros(4), 1.0).mask(False).to_event(1))
        mixture = support.TWO_MODES
        roots = array(mixture.scale_tril)
        components = dist.MultivariateNormal(array(mixture.loc), scale_tril=roots)
        joint = array(np.log(mixture.weights)) + components.log_prob(x[..., None, :])
        largest = joint.max()
        log_density = largest + face.backend.xp.log(face.backend.xp.exp(joint - largest).sum(-1))
        host.factor("target", log_density + 3.0)

    return model


def fitted(face: Any, steps: int, **options: Any) -> tuple[GuideRun, Mixture]:
    guide = guide_of(face, "AutoGaussianMixture", two_modes(face), num_components=2)
    run = GuideRun(face, two_modes(face), guide, **options).run(steps)
    components = face.numpy(tuple(run.engine.density.components(run.parameters)))
    return run, support.in_order(*components)


@pytest.mark.slow
def test_both_modes_are_found_with_their_weights(face: Any) -> None:
    run, found = fitted(face, 1000)
    assert run.engine.plan.solver == Regression(num_samples=4)
    np.testing.assert_allclose(found.weights, support.TWO_MODES.weights, atol=1e-3)
    np.testing.assert_allclose(found.loc, support.TWO_MODES.loc, atol=1e-3)
    np.testing.assert_allclose(found.covariances, support.TWO_MODES.covariances, atol=1e-2)


@pytest.mark.slow
def test_a_regression_of_all_scales_keeps_no_component_where_it_started(face: Any) -> None:
    """Standard deviations of the posterior are from 0.04 to 6,000."""
    host, dist = face.host, face.dist
    draws = np.random.default_rng(0)
    columns = [np.ones(300), *(draws.normal(size=(3, 300)) * np.array([[1.0], [100.0], [0.01]]))]
    features = np.stack(columns, 1)
    y = features @ np.array([-3.0, 2.0, 0.5, 20_000.0]) + 1e3 * draws.normal(size=300)

    def model(x: Any, y: Any) -> None:
        slopes = host.sample("slopes", dist.Normal(face.zeros(4), 1e6).to_event(1))
        scale = host.sample("scale", dist.HalfNormal(1e6))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(x @ slopes, scale), obs=y)

    guide = guide_of(face, "AutoGaussianMixture", model, num_components=3)
    run = GuideRun(face, model, guide, args=(features, y)).run(2000)
    mixture = Mixture(*face.numpy(tuple(run.engine.density.components(run.parameters))))
    expected = np.linalg.lstsq(features, y, rcond=None)[0]
    residual = y - features @ expected
    covariance = np.linalg.inv(features.T @ features) * residual.var()
    for weight, loc in zip(mixture.weights, mixture.loc, strict=True):
        apart = np.abs(loc[:4] - expected) / np.sqrt(np.diag(covariance))
        assert weight < 1e-6 or apart.max() < 2.0, (weight, loc)


@pytest.mark.slow
def test_noise_is_averaged(face: Any) -> None:
    """Scores with noise of half their largest entry: steps get shorter."""
    _, found = fitted(face, 2000, estimator=face.backend.public.Noisy(level=0.5))
    draws = np.random.default_rng(0).normal(size=(2, 4000, 4))
    divergence = 0.0
    target = support.TWO_MODES
    for weight, loc, root, noise in zip(
        *target._replace(logits=target.weights), draws, strict=True
    ):
        theta = loc + noise @ root.T
        gap = support.log_density(target, theta) - support.log_density(found, theta)
        divergence += weight * gap.mean()
    assert divergence < 0.1


@pytest.mark.in_both_packages
def test_other_covariances_have_the_gradient_solver(face: Any) -> None:
    model = latents(face, support.DIM)

    def mixture(covariance: str) -> Any:
        options = {"num_components": 2, "covariance": covariance}
        return guide_of(face, "AutoGaussianMixture", model, **options)

    diagonal, engine = mixture("diag"), face.backend.public.ProximalScoreVI
    assert isinstance(engine(model, diagonal)._chosen_solver(), GradientSteps)
    with pytest.raises(ArgumentError, match="with full covariances"):
        engine(model, mixture("low_rank"), solver="regression")
    with pytest.raises(ArgumentError, match="a num_samples that 4 divides"):
        GuideRun(face, model, mixture("full"), solver=Regression(num_samples=6))
    density = face.density(diagonal)
    with pytest.raises(ArgumentError, match="covariance='full'"):
        density.components(density.initial_parameters())
