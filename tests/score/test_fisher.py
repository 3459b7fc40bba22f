"""FisherVI in both packages: its gradient, fits and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError, NoisyScoreWarning
from ppl_ext.score_matching.fisher_divergence import NORMS
from tests import score_support as support
from tests.backends import use_float64
from tests.guides_support import divergence
from tests.score_support import COUNTS, GuideRun, Y, guide_of, room
from tests.stein_support import optimizer

use_float64()

ROWS: dict[str, Any] = {"args": (Y,), "kwargs": {"batch": 5}}


def fisher(face: Any, model: Any, guide: Any, *options: Any, **named: Any) -> GuideRun:
    return GuideRun(face, model, guide, *options, engine="FisherVI", **named)


def falling(face: Any, steps: int) -> Any:
    return optimizer(face.backend, "adam", 0.1, steps=steps, cosine=True)


def problem_of(face: Any, guide: str, estimator: Any) -> tuple[Any, ...]:
    """Density of a guide of the counts, with its draws and scores on fixed noise and rows."""
    model, (y,) = support.counts(face), face.backend.arrays((COUNTS,))
    target, data = face.backend.target(model, (y,), {"batch": 3}, data_chunk=2)
    module = room(face, "score.fisher")
    options = {"num_flows": 1} if "IAF" in guide and face.name == "numpyro" else {}
    density = face.density(guide_of(face, guide, model, **options), y, layout=target.layout)
    if face.name == "pyro":
        twice, key = module.DifferentiableTarget(target), face.backend.key

        def draw(parameters: Any) -> Any:
            return module._reparameterised(density, parameters, 3, 2)

        def score(theta: Any) -> Any:
            # A fresh generator: the same rows whenever it is asked.
            state = estimator.init(target, data, key(4))
            found = estimator.estimate(twice, state, theta, data, key(5))[0].score
            return found, theta.detach()
    else:
        state = estimator.init(target, data, face.backend.key(), 1)

        def draw(parameters: Any) -> Any:
            return density._posterior(parameters).sample(face.backend.key(), (2,))

        def score(theta: Any) -> Any:
            return estimator.estimate(target, state, theta, data)[0].score, theta

    return density, draw, score


def flattened(face: Any, tree: Any) -> tuple[list[np.ndarray], Any]:
    """Arrays of a tree of parameters, and what makes a tree of others."""
    if face.name == "numpyro":
        leaves, structure = face.jax.tree.flatten(tree)
        return face.numpy(leaves), lambda moved: face.jax.tree.unflatten(structure, moved)
    return list(face.numpy(tree).values()), lambda moved: face.arrays(
        dict(zip(tree, moved, strict=True))
    )


@pytest.mark.parametrize(
    ("guide", "norm", "estimator"),
    [
        ("AutoDiagonalNormal", "euclidean", "Minibatch"),
        ("AutoMultivariateNormal", "euclidean", "Minibatch"),
        ("AutoMultivariateNormal", "covariance", "Minibatch"),
        ("AutoLowRankMultivariateNormal", "covariance", "Full"),
        ("AutoIAFNormal", "euclidean", "Minibatch"),
    ],
)
def test_gradient_against_finite_differences(
    face: Any, guide: str, norm: str, estimator: str
) -> None:
    made = getattr(face.backend.public, estimator)()
    density, draw, score = problem_of(face, guide, made)
    parameters = face.random(density, 0.2, seed=5)
    fisher_gradient = room(face, "score.fisher").fisher_gradient

    @face.backend.compiled
    def gradient_at(parameters: Any) -> Any:
        return fisher_gradient(density, parameters, draw, score, norm)

    value, gradient, theta = gradient_at(parameters)
    leaf = theta.clone().requires_grad_() if face.name == "pyro" else theta
    expected, theta = score(leaf)
    residual = face.numpy(density.score(parameters, theta)) - face.numpy(expected)
    if norm == "covariance":
        scale = face.numpy(density.moments(parameters).scale)
        residual = residual * scale if scale.ndim == 1 else residual @ scale
    np.testing.assert_allclose(float(value), np.square(residual).sum(-1).mean(), rtol=1e-9)

    leaves, rebuilt = flattened(face, parameters)
    for number, entry in enumerate(flattened(face, gradient)[0]):
        for i in range(min(entry.size, 3)):

            def along(h: float, number: int = number, i: int = i) -> float:
                moved = [np.array(leaf) for leaf in leaves]
                moved[number].reshape(-1)[i] += h
                return float(gradient_at(rebuilt(moved))[0])

            difference = (along(1e-5) - along(-1e-5)) / 2e-5
            assert entry.ravel()[i] == pytest.approx(difference, rel=1e-5, abs=1e-5)


# -- fits ------------------------------------------------------------------------------------------


@pytest.mark.in_one_package
@pytest.mark.parametrize("norm", NORMS)
def test_fisher_on_a_correlated_normal(face: Any, norm: str) -> None:
    """In three dimensions from a standard Normal, where the papers' figures are below 1e-5."""
    mean = np.array([0.5, -1.0, 0.3])
    covariance = np.array([[1.5, 0.5, -0.3], [0.5, 1.2, 0.2], [-0.3, 0.2, 2.0]])
    model = support.correlated(face, mean, covariance)
    init_to_value = (face.autoguide if face.name == "pyro" else face.infer).init_to_value
    start = init_to_value(values={"z": face.zeros(3)})
    options = {"init_loc_fn": start, "init_scale": 1.0}
    guide = guide_of(face, "AutoMultivariateNormal", model, **options)
    run = fisher(face, model, guide, falling(face, 500), norm).run(500)
    assert divergence(mean, covariance, run.moments[0], run.covariance) < 1e-5
    assert run.losses[-1] < 1e-3 < 0.1 < run.losses[0]
    np.testing.assert_allclose((run.info("log_p") - run.info("log_q"))[-10:], 0.0, atol=0.02)
    if run.is_pyro:
        assert run.engine.gradient_evaluations == 500.0


def test_fisher_with_temperature_and_all_rows(face: Any) -> None:
    steps, model = {"pyro": 300, "numpyro": 500}[face.name], support.conjugate(face)
    guide = guide_of(face, "AutoDiagonalNormal", model, init_scale=1.0)
    options = {"estimator": face.backend.public.Full(), "likelihood_temperature": 0.2, **ROWS}
    run = fisher(face, model, guide, falling(face, steps), **options).run(steps)
    expected, deviation = support.conjugate_posterior(0.2)
    assert run.moments[0].item() == pytest.approx(expected, abs=1e-3 * deviation)
    assert run.moments[1].item() == pytest.approx(deviation, rel=1e-3)
    assert np.ptp((run.info("log_p") - run.info("log_q"))[-5:]) < 1e-2


def test_fisher_takes_a_flow_and_noise(face: Any) -> None:
    model = support.counts(face)
    options = {} if face.name == "pyro" else {"num_flows": 1}
    guide = guide_of(face, "AutoIAFNormal", model, **options)
    run = fisher(face, model, guide, num_samples=8, args=(COUNTS,)).run(60)
    assert np.median(run.losses[-20:]) < 0.7 * np.median(run.losses[:10])
    assert not run.is_pyro or not list(face.host.get_param_store().keys())
    noisy, model = face.backend.public.Noisy(level=0.5), support.conjugate(face)
    with pytest.warns(NoisyScoreWarning, match="Noisy"):
        run = fisher(face, model, "AutoDiagonalNormal", estimator=noisy, **ROWS).run(3)
    assert np.isfinite(run.losses).all()


# -- refusals --------------------------------------------------------------------------------------


def test_large_models_are_refused_before_the_guide_is_set_up(face: Any) -> None:
    model = support.gaussian(face)
    guide = guide_of(face, "AutoMultivariateNormal", model)
    with pytest.raises(ArgumentError, match=r"max_dimension=4 .*found 5.*Pass max_dimension=5"):
        fisher(face, model, guide, max_dimension=4)
    assert guide.prototype_trace is None
    fisher(face, model, guide, max_dimension=5)


def spots(face: Any) -> type:
    """A mixture, whose draws have no derivative in the weights."""

    def posterior(loc: Any) -> Any:
        components = face.dist.Normal(loc, 1.0).to_event(1)
        weights = face.dist.Categorical(face.ones(2) / 2)
        return face.dist.MixtureSameFamily(weights, components)

    class Spots(face.autoguide.AutoContinuous):  # type: ignore[misc]
        def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
            super()._setup_prototype(*args, **kwargs)
            if face.name == "pyro":
                import torch

                self.loc = torch.nn.Parameter(torch.randn(2, self.latent_dim))

        def get_posterior(self, *args: Any, **kwargs: Any) -> Any:
            return posterior(self.loc)

        def _get_posterior(self) -> Any:
            start = face.array(np.arange(2.0 * self.latent_dim).reshape(2, -1))
            return posterior(face.host.param("auto_loc", start))

    return Spots


def test_guides_without_reparameterised_draws_or_covariance_are_refused(face: Any) -> None:
    model = support.gaussian(face)
    with pytest.raises(ArgumentError, match="reparameterised, found Spots.*ProximalScoreVI"):
        fisher(face, model, spots(face))
    with pytest.raises(ArgumentError, match=r"norm='covariance', found AutoIAFNormal.*euclidean"):
        fisher(face, model, "AutoIAFNormal", norm="covariance")


def test_state_of_another_norm_is_refused(face: Any, tmp_path: Path) -> None:
    model, guide = support.conjugate(face), "AutoDiagonalNormal"
    run = fisher(face, model, guide, norm="covariance", args=(Y,))
    other = fisher(face, model, guide, args=(Y,))
    with pytest.raises(ArgumentError, match="another norm: expected euclidean, found covariance"):
        other.load_from(run, tmp_path / "state")


def test_fisher_warns_of_minibatches_only(face: Any) -> None:
    model, guide = support.conjugate(face), "AutoDiagonalNormal"
    with pytest.warns(NoisyScoreWarning, match="FisherVI.*Minibatch.*variance of the scores"):
        fisher(face, model, guide, **ROWS)
    fisher(face, model, guide, args=(Y,))
