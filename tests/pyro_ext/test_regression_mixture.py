"""The closed-form step for mixtures, against a literal reference, and fits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from ppl_ext.errors import ArgumentError
from ppl_ext.score import GradientSteps, Regression
from pyro_ext.gradients import Noisy
from pyro_ext.guides import AutoGaussianMixture
from pyro_ext.guides.flat_density import flat_density
from pyro_ext.guides.mixture import Components
from pyro_ext.score import ProximalScoreVI
from pyro_ext.score.regression.mixture import MixtureForm, _progress
from tests import mixture_support as support

torch.set_default_dtype(torch.float64)


def model(dim: int = support.DIM) -> None:
    pyro.sample("x", dist.Normal(torch.zeros(dim), 1.0).to_event(1))


def two_modes() -> None:
    """The target ``TWO_MODES``, with a constant that no score knows."""
    mixture = Components(*map(torch.tensor, support.TWO_MODES))
    x = pyro.sample("x", dist.Normal(torch.zeros(4), 1.0).mask(False).to_event(1))
    components = dist.MultivariateNormal(mixture.loc, scale_tril=mixture.scale_tril)
    joint = mixture.logits.log_softmax(-1) + components.log_prob(x.unsqueeze(-2))
    pyro.factor("target", joint.logsumexp(-1) + 3.0)


def make(number: int = support.NUMBER, **options: Any) -> tuple[Any, Any]:
    pyro.set_rng_seed(0)
    guide = AutoGaussianMixture(model, number, **({"init_scale": 1.0} | options))
    density = flat_density(guide)
    return MixtureForm(density), density.initial_parameters()


def given(form: MixtureForm, parameters: Any, mixture: support.Mixture) -> Any:
    """Parameters with which the guide is this mixture."""
    return form.density.set_components(parameters, Components(*map(torch.tensor, mixture)))


def assert_same(components: Components, mixture: support.Mixture, **tolerance: Any) -> None:
    np.testing.assert_allclose(components.logits.softmax(-1), mixture.weights, **tolerance)
    np.testing.assert_allclose(components.loc, mixture.loc, **tolerance)
    np.testing.assert_allclose(components.scale_tril, mixture.scale_tril, **tolerance)


def updated_by(
    form: MixtureForm, state: Any, parameters: Any, theta: Any, scores: Any, values: Any
) -> Any:
    points, gradients, densities = map(torch.tensor, (theta, scores, values))
    with torch.no_grad():
        return form.update(state, parameters, points, gradients, support.TOTAL, densities)


def fitted(guide: AutoGaussianMixture) -> support.Mixture:
    posterior = guide.get_posterior()
    arrays = (getattr(posterior, name).detach() for name in Components._fields)
    return support.in_order(*arrays)


@pytest.mark.parametrize(
    ("iteration", "residual"), [(0, 1.0), (480, 1.0), (500, 1e-4), (800, 0.5), (999, 1e-9)]
)
def test_update_is_that_of_the_reference(iteration: int, residual: float) -> None:
    """In the search, at once, at the start of the match, and late in it."""
    mixture, theta, scores, values = support.example(iteration)
    form, parameters = make()
    parameters = given(form, parameters, mixture)
    generator = np.random.default_rng(1)
    cost, square = generator.uniform(0.1, 20.0, size=(2, support.NUMBER))
    seen = support.Seen(iteration, cost, square, residual)
    state = form.initial(parameters)._replace(
        num_updates=iteration,
        cost=torch.tensor(cost),
        value_square=torch.tensor(square),
        residual=torch.tensor(residual),
    )
    state, parameters = updated_by(form, state, parameters, theta, scores, values)
    mixture, seen = support.update(mixture, seen, theta, scores, values, form.trust)
    # The reference's derivatives are differences.
    assert_same(form.density.components(parameters), mixture, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(state.cost, seen.cost, rtol=1e-9)
    np.testing.assert_allclose(state.value_square, seen.value_square, rtol=1e-9)
    np.testing.assert_allclose(state.residual, seen.residual, rtol=1e-9)
    assert state.num_updates == seen.num_updates


@pytest.mark.parametrize("iteration", [0, 700])
def test_the_target_is_a_fixed_point(iteration: int) -> None:
    mixture, theta, _, _ = support.example(2)
    form, parameters = make()
    parameters = given(form, parameters, mixture)
    state = form.initial(parameters)._replace(num_updates=iteration)
    scores, values = support.score(mixture, theta), support.log_density(mixture, theta) - 5.0
    _, parameters = updated_by(form, state, parameters, theta, scores, values)
    assert_same(form.density.components(parameters), mixture, rtol=1e-9, atol=1e-10)


def test_draws_are_mirrored_pairs_of_each_component() -> None:
    mixture, *_ = support.example(3)
    form, parameters = make()
    parameters = given(form, parameters, mixture)
    assert form.group(SimpleNamespace(num_components=support.NUMBER)) == 2 * support.NUMBER
    pairs = 20_000
    theta = form.draw(parameters, torch.Generator().manual_seed(0), 2 * pairs * support.NUMBER)
    both = theta.numpy().reshape(2, pairs, support.NUMBER, support.DIM)
    for half in both - mixture.loc:
        for k, covariance in enumerate(mixture.covariances):
            # Five standard errors of a covariance of so many draws.
            error = 5 * np.sqrt(2.0 / pairs) * np.abs(np.diagonal(covariance)).max()
            np.testing.assert_allclose(half[:, k].T @ half[:, k] / pairs, covariance, atol=error)
    np.testing.assert_allclose(both[0] - mixture.loc, mixture.loc - both[1], atol=1e-12)
    weights = form.weights(parameters, len(theta)).reshape(-1, support.NUMBER)
    np.testing.assert_allclose(weights.sum(0), mixture.weights)
    assert float(weights.sum()) == pytest.approx(1.0)
    np.testing.assert_allclose(weights, np.broadcast_to(mixture.weights / 2 / pairs, weights.shape))


@pytest.mark.parametrize(("iteration", "fresh"), [(48, False), (49, True), (499, False)])
def test_a_component_of_no_use_starts_again(iteration: int, fresh: bool) -> None:
    """At the end of a round (of 50 iterations here) that leaves time for another one."""
    mixture, theta, scores, values = support.example(4)
    form, parameters = make()
    state = form.initial(parameters)
    parameters = given(form, parameters, mixture)
    cost = torch.tensor([1.0, -1.0, 0.5])
    state = state._replace(num_updates=iteration, cost=cost)
    state = state._replace(residual=torch.tensor(1.0))
    updated, parameters = updated_by(form, state, parameters, theta, scores, values)
    found = form.density.components(parameters)
    kept, _ = support.update(
        mixture,
        support.Seen(iteration, cost.numpy(), np.zeros(3), 1.0),
        theta,
        scores,
        values,
        form.trust,
    )
    assert int(updated.num_restarts) == fresh
    if not fresh:
        assert_same(found, kept, rtol=1e-5, atol=1e-7)
        return
    np.testing.assert_allclose(found.loc[::2], kept.loc[::2], rtol=1e-5)
    noise = np.linalg.solve(mixture.scale_tril[1], theta[1] - mixture.loc[1])
    np.testing.assert_allclose(
        found.loc[1], state.start.center + state.start.apart * torch.tensor(noise), rtol=1e-9
    )
    # Between a quarter and four times the guide's initial scale, at the golden section.
    share = (5**0.5 - 1.0) / 2.0
    width = np.exp(np.log(0.25) + share * np.log(16.0))
    np.testing.assert_allclose(found.scale_tril[1], width * np.eye(support.DIM), rtol=1e-9)


def test_every_other_component_starts_again_near_the_heaviest() -> None:
    mixture, theta, scores, values = support.example(4)
    form, parameters = make()
    state = form.initial(parameters)
    parameters = given(form, parameters, mixture)
    cost = torch.tensor([-1.0, 1.0, 0.5])
    state = state._replace(num_updates=49, num_restarts=1, cost=cost)
    updated, parameters = updated_by(form, state, parameters, theta, scores, values)
    found = form.density.components(parameters)
    seen = support.Seen(49, np.asarray(cost), np.zeros(3), 1.0)
    kept, _ = support.update(mixture, seen, theta, scores, values, form.trust)
    assert int(updated.num_restarts) == 2
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


def test_components_of_use_go_on() -> None:
    mixture, theta, scores, values = support.example(4)
    form, parameters = make()
    state = form.initial(parameters)
    parameters = given(form, parameters, mixture)
    state = state._replace(num_updates=49, cost=torch.tensor([1.0, 0.5, 0.5]))
    updated, _ = updated_by(form, state, parameters, theta, scores, values)
    assert int(updated.num_restarts) == 0


def test_a_run_of_unknown_length_stays_at_three_quarters() -> None:
    assert float(_progress(1000, 0, 3)[0]) == 0.5
    assert float(_progress(5000, 0, 3)[0]) == 0.75


def test_both_modes_are_found_with_their_weights() -> None:
    guide = AutoGaussianMixture(two_modes, 2)
    engine = ProximalScoreVI(two_modes, guide, seed=0)
    engine.run(1000, progress_bar=False)
    assert engine.plan.solver == Regression(num_samples=4)
    found = fitted(guide)
    np.testing.assert_allclose(found.weights, support.TWO_MODES.weights, atol=1e-3)
    np.testing.assert_allclose(found.loc, support.TWO_MODES.loc, atol=1e-3)
    np.testing.assert_allclose(found.covariances, support.TWO_MODES.covariances, atol=1e-2)


def test_noise_is_averaged() -> None:
    """Scores with noise of half their largest entry: steps get shorter."""
    guide = AutoGaussianMixture(two_modes, 2)
    engine = ProximalScoreVI(two_modes, guide, estimator=Noisy(level=0.5), seed=0)
    engine.run(2000, progress_bar=False)
    found = fitted(guide)
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


def test_other_covariances_and_the_gradient_solver() -> None:
    engine = ProximalScoreVI(model, AutoGaussianMixture(model, 2, "diag"))
    engine.setup()
    assert isinstance(engine.plan.solver, GradientSteps)
    with pytest.raises(ArgumentError, match="with full covariances"):
        guide = AutoGaussianMixture(model, 2, "low_rank")
        ProximalScoreVI(model, guide, solver="regression").setup()
    with pytest.raises(ArgumentError, match="a num_samples that 6 divides"):
        ProximalScoreVI(
            model, AutoGaussianMixture(model, 3), solver=Regression(num_samples=4)
        ).setup()
    form, parameters = make(2, covariance="diag")
    with pytest.raises(ArgumentError, match="covariance='full'"):
        form.density.components(parameters)
