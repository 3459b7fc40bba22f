"""GSM, BaM and FisherVI for Pyro."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import (
    AutoContinuous,
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    init_to_value,
)
from pyro.optim import CosineAnnealingLR
from scipy.linalg import sqrtm
from torch.distributions import MultivariateNormal, kl_divergence

from ppl_ext.errors import ArgumentError, ModelCheckError, NoisyScoreWarning
from ppl_ext.fisher import NORMS
from pyro_ext.density import LogDensity
from pyro_ext.engine import Engine, seeded_generator
from pyro_ext.gradients import Full, GradientEstimator, Minibatch, Noisy
from pyro_ext.guides import Moments, flat_density
from pyro_ext.score import GSM, BaM, FisherVI, bam, gsm
from pyro_ext.score.bam import bam_update
from pyro_ext.score.fisher import DifferentiableTarget, _reparameterised, fisher_gradient
from pyro_ext.score.gsm import gsm_update
from tests.models import pyro_models, zoo

torch.set_default_dtype(torch.float64)

MEAN = torch.tensor(zoo.GAUSSIAN_5D_MEAN)
COVARIANCE = torch.tensor(zoo.GAUSSIAN_5D_COVARIANCE)
Y = torch.linspace(-2.0, 4.0, 40) + torch.linspace(0.0, 3.0, 40).sin()
COUNTS = torch.tensor([1.0, 0.0, 2.0, 4.0, 1.0])


def gaussian() -> None:
    pyro.sample("z", dist.MultivariateNormal(MEAN, COVARIANCE))


def lognormal() -> None:
    pyro.sample("x", dist.LogNormal(0.3, 0.5))


def conjugate(y: torch.Tensor, batch: int | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", len(y), subsample_size=batch) as rows:
        pyro.sample("y", dist.Normal(mu, 2.0), obs=y[rows])


def counts(y: torch.Tensor, batch: int | None = None) -> None:
    """Three latents, one of them constrained, whose posterior is not Normal."""
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    effect = pyro.sample("effect", dist.Normal(torch.zeros(2), rate).to_event(1))
    with pyro.plate("N", len(y), subsample_size=batch) as rows:
        slope = torch.linspace(-1.0, 1.0, len(y))[rows]
        pyro.sample("y", dist.Poisson(rate * (effect[0] + slope * effect[1]).exp()), obs=y[rows])


def conjugate_posterior(temperature: float = 1.0) -> tuple[float, float]:
    precision = 1 / 9 + len(Y) / 4 / temperature
    return float(Y.sum() / 4 / temperature / precision), precision**-0.5


def moments_of(engine: Any) -> tuple[torch.Tensor, torch.Tensor]:
    mean, scale = engine.density.moments(engine.parameters)
    return mean, torch.diag(scale) if scale.dim() == 1 else scale


def draws_and_scores(
    dim: int, number: int, seed: int = 0
) -> tuple[Moments, torch.Tensor, torch.Tensor]:
    """Moments of a guide, points and scores that have nothing to do with each other."""
    generator = seeded_generator(seed, dim, number)
    root = torch.randn(dim, dim, generator=generator)
    scale = torch.linalg.cholesky(root @ root.T + 0.1 * torch.eye(dim))
    moments = Moments(torch.randn(dim, generator=generator), scale)
    theta = moments.mean + torch.randn(number, dim, generator=generator) @ scale.T
    return moments, theta, 2.0 * torch.randn(number, dim, generator=generator)


def slope(function: Callable[[float], float], step: float = 1e-5) -> float:
    return (function(step) - function(-step)) / (2.0 * step)


# -- GSM: the update ------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_gsm_matches_the_score_at_its_one_draw(dim: int) -> None:
    moments, theta, score = draws_and_scores(dim, 1)
    mean, scale = gsm_update(moments, theta, score)
    found = torch.cholesky_solve((mean - theta[0]).unsqueeze(-1), scale).squeeze(-1)
    torch.testing.assert_close(found, score[0], rtol=1e-8, atol=1e-10)


def test_gsm_is_the_nearest_of_the_normals_that_match() -> None:
    """Along every direction within those Normals the divergence has slope zero and grows."""
    moments, theta, score = draws_and_scores(3, 1)
    present = MultivariateNormal(moments.mean, scale_tril=moments.scale)
    updated = gsm_update(moments, theta, score)
    covariance = updated.scale @ updated.scale.T

    def divergence(change: torch.Tensor) -> float:
        # Every covariance has one mean with which the score at theta is right.
        new = covariance + change
        mean = theta[0] + new @ score[0]
        return float(kl_divergence(present, MultivariateNormal(mean, covariance_matrix=new)))

    for i in range(3):
        for j in range(i + 1):
            direction = torch.zeros(3, 3)
            direction[i, j] = direction[j, i] = float(covariance.diagonal().min()) / 10
            along = functools.partial(lambda h, way: divergence(h * way), way=direction)
            assert abs(slope(along, 1e-3)) < 1e-6
            assert min(along(0.3), along(-0.3)) > along(0.0) + 1e-5


def test_gsm_averages_the_updates_of_its_draws() -> None:
    moments, theta, score = draws_and_scores(4, 3)
    mean, scale = gsm_update(moments, theta, score)
    single = [gsm_update(moments, theta[i : i + 1], score[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(mean, torch.stack([one.mean for one in single]).mean(0))
    covariances = torch.stack([one.scale @ one.scale.T for one in single])
    torch.testing.assert_close(scale @ scale.T, covariances.mean(0))


def test_gsm_gives_nan_for_a_covariance_that_rounding_has_spoilt() -> None:
    # Points ten thousand scales away, whose squares are subtracted from each other in float32.
    generator = seeded_generator(0)
    moments = Moments(torch.zeros(3).float(), torch.eye(3).float())
    spoilt = 0
    for _ in range(20):
        theta, score = torch.randn(2, 1, 3, generator=generator, dtype=torch.float32)
        scale = gsm_update(moments, 1e4 * theta, score).scale
        spoilt += int(scale.isnan().all())
        assert scale.isnan().all() or (scale.isfinite().all() and (scale.diagonal() > 0).all())
    assert spoilt > 0


# -- BaM: the update ------------------------------------------------------------------------------


def batch_and_match_objective(
    moments: Moments, theta: torch.Tensor, score: torch.Tensor, weight: float
) -> Callable[[torch.Tensor, torch.Tensor], float]:
    present = MultivariateNormal(moments.mean, scale_tril=moments.scale)

    def objective(mean: torch.Tensor, covariance: torch.Tensor) -> float:
        fitted = torch.linalg.solve(covariance, (mean - theta).T).T
        residual = fitted - score
        matching = torch.einsum("si,ij,sj->s", residual, covariance, residual).mean()
        new = MultivariateNormal(mean, covariance_matrix=covariance)
        return float(matching + 2.0 / weight * kl_divergence(present, new))

    return objective


@pytest.mark.parametrize(("dim", "number", "weight"), [(3, 2, 0.7), (3, 6, 40.0), (1, 1, 5.0)])
def test_bam_minimises_its_objective(dim: int, number: int, weight: float) -> None:
    moments, theta, score = draws_and_scores(dim, number)
    objective = batch_and_match_objective(moments, theta, score, weight)
    mean, scale = bam_update(moments, theta, score, weight)
    covariance = scale @ scale.T
    least = objective(mean, covariance)
    unit = covariance.diagonal().min().sqrt() / 10
    for i in range(dim):
        change = torch.zeros(dim)
        change[i] = unit
        along = functools.partial(lambda h, way: objective(mean + h * way, covariance), way=change)
        assert abs(slope(along)) < 1e-6 and min(along(0.3), along(-0.3)) > least
        for j in range(i + 1):
            way = torch.zeros(dim, dim)
            way[i, j] = way[j, i] = unit.square()
            along = functools.partial(lambda h, way: objective(mean, covariance + h * way), way=way)
            assert abs(slope(along)) < 1e-6 and min(along(0.3), along(-0.3)) > least


@pytest.mark.parametrize(("number", "weight"), [(1, 3.0), (3, 0.2), (9, 50.0)])
def test_bam_agrees_with_the_dense_formula(number: int, weight: float) -> None:
    moments, theta, score = draws_and_scores(4, number)
    mean, scale = bam_update(moments, theta, score, weight)
    z, g, mu, root = theta.numpy(), score.numpy(), moments.mean.numpy(), moments.scale.numpy()
    ratio = weight / (1.0 + weight)
    g_mean, z_mean = g.mean(0), z.mean(0)
    u = weight * np.cov(g.T, bias=True) + ratio * np.outer(g_mean, g_mean)
    v = root @ root.T + weight * np.cov(z.T, bias=True)
    v = v + ratio * np.outer(mu - z_mean, mu - z_mean)
    identity = np.eye(4)
    expected = 2.0 * v @ np.linalg.inv(identity + sqrtm(identity + 4.0 * u @ v).real)
    np.testing.assert_allclose(scale @ scale.T, expected, rtol=1e-8, atol=1e-10)
    expected_mean = mu / (1.0 + weight) + ratio * (expected @ g_mean + z_mean)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-8, atol=1e-10)
    assert torch.equal(scale, scale.tril()) and (scale.diagonal() > 0).all()


def test_bam_with_one_draw_and_a_great_weight_is_gsm() -> None:
    moments, theta, score = draws_and_scores(3, 1)
    ours, theirs = bam_update(moments, theta, score, 1e12), gsm_update(moments, theta, score)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.scale, theirs.scale, rtol=1e-6, atol=1e-6)


def test_bam_in_float32_holds_with_scores_of_a_hundred_million() -> None:
    moments, theta, score = draws_and_scores(4, 2)
    score = 1e8 * score
    expected = bam_update(moments, theta, score, 8.0)
    single = Moments(*(entry.float() for entry in moments))
    found = bam_update(single, theta.float(), score.float(), 8.0)
    # In units of the present guide, where most directions have not been seen and stay.
    standard = torch.linalg.solve_triangular(moments.scale, expected.scale, upper=False)
    close = torch.linalg.solve_triangular(moments.scale, found.scale.double(), upper=False)
    torch.testing.assert_close(close @ close.T, standard @ standard.T, rtol=0, atol=1e-4)


# -- GSM and BaM: fits ----------------------------------------------------------------------------

MATCHING: list[tuple[type, dict[str, Any], int]] = [
    (GSM, {}, 400),
    (BaM, {}, 80),
    (BaM, {"regularization": 40.0}, 60),
]


@pytest.mark.parametrize(("engine_class", "options", "steps"), MATCHING)
def test_correlated_normal_to_rounding(engine_class: Any, options: Any, steps: int) -> None:
    engine = engine_class(gaussian, seed=0, **options)
    result = engine.run(steps, progress_bar=False)
    mean, scale = moments_of(engine)
    torch.testing.assert_close(mean, MEAN, rtol=0, atol=1e-12)
    torch.testing.assert_close(scale @ scale.T, COVARIANCE, rtol=0, atol=1e-12)
    assert result.losses[0] > 1.0 > 1e-12 > result.losses[-1]
    assert not result.info["rejected"].any()
    # The target's density is normalised, so that log p = log q where the fit is exact.
    np.testing.assert_allclose(result.info["log_p"][-1], result.info["log_q"][-1], atol=1e-10)


@pytest.mark.parametrize(("engine_class", "steps"), [(GSM, 100), (BaM, 400)])
def test_jacobian_temperature_and_rows(engine_class: Any, steps: int) -> None:
    engine = engine_class(lognormal, seed=0)
    engine.run(steps, progress_bar=False)
    mean, scale = moments_of(engine)
    assert mean.item() == pytest.approx(0.3, abs=1e-9)
    assert scale.item() == pytest.approx(0.5, abs=1e-9)
    draws = engine.get_samples(2000)["x"]
    assert draws.log().mean().item() == pytest.approx(0.3, abs=5 * 0.5 / 2000**0.5)

    engine = engine_class(conjugate, seed=0, estimator=Full(), likelihood_temperature=0.2)
    result = engine.run(steps, Y, batch=5, progress_bar=False)
    # The log evidence: the same at every draw, as the fit is exact.
    assert np.ptp(result.info["log_p"][-5:] - result.info["log_q"][-5:]) < 1e-8
    mean, scale = moments_of(engine)
    expected, deviation = conjugate_posterior(0.2)
    assert mean.item() == pytest.approx(expected, abs=1e-9)
    assert scale.item() == pytest.approx(deviation, rel=1e-9)


def test_bam_settles_on_a_posterior_that_is_not_normal() -> None:
    """A step of small weight changes mean and covariance in proportion to what is zero at the end.

    The update is then ``mu + weight Sigma E[s]`` and ``Sigma + weight (Sigma - Sigma E[s s^T]
    Sigma)``, so that E[s] = 0 and Sigma E[s^2] = 1 under the fit, here by quadrature.
    """
    engine = BaM(
        lambda: pyro.sample("x", dist.Gamma(3.0, 1.0)),
        num_samples=64,
        regularization=lambda t: 2.0 / (t + 1),
        seed=0,
    )
    engine.run(600, progress_bar=False)
    mean, scale = (float(entry) for entry in engine.density.moments(engine.parameters))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    # The score of log x under Gamma(3, 1), Jacobian included, in units of the fit.
    score = scale * (3.0 - np.exp(mean + scale * nodes))
    # Weights of 2 / t average about half of the 38,400 scores; those have kurtosis of about 10.
    assert abs(weights @ score) < 4 / 19_200**0.5
    assert weights @ score**2 == pytest.approx(1.0, abs=4 * (9 / 19_200) ** 0.5)


@pytest.mark.parametrize(("engine_class", "steps"), [(GSM, 1000), (BaM, 250)])
def test_noise_breaks_the_covariance(engine_class: Any, steps: int) -> None:
    with pytest.warns(NoisyScoreWarning, match="Noisy gives"):
        engine = engine_class(gaussian, estimator=Noisy(level=1.0), seed=0)
        engine.run(steps, progress_bar=False)
    _, scale = moments_of(engine)
    assert (scale @ scale.T - COVARIANCE).norm() > 0.8 * COVARIANCE.norm()


# -- GSM and BaM: the engine ----------------------------------------------------------------------


@pytest.mark.parametrize("engine_class", [GSM, BaM])
def test_only_exact_scores_pass_without_a_warning(engine_class: Any) -> None:
    with pytest.warns(NoisyScoreWarning, match=r"Minibatch.*estimator=Full\(\).*ProximalScoreVI"):
        engine = engine_class(conjugate, seed=0)
        engine.step(Y, batch=5)
    engine.step(Y, batch=5)  # told once
    with pytest.warns(NoisyScoreWarning):
        engine_class(conjugate, estimator=Minibatch(), seed=0).step(Y, batch=5)
    with pytest.warns(NoisyScoreWarning, match="part of the data"):
        engine_class(by_argument, seed=0).step(Y[:10])
    engine_class(conjugate, estimator=Full(), seed=0).step(Y, batch=5)
    engine_class(conjugate, seed=0).step(Y)


def by_argument(y: torch.Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    with pyro.plate("N", 40, subsample_size=len(y)):
        pyro.sample("y", dist.Normal(mu, 2.0), obs=y)


@pytest.mark.parametrize("engine_class", [GSM, BaM])
def test_guides_that_have_no_closed_form_are_refused(engine_class: Any) -> None:
    refused = (
        AutoDiagonalNormal,
        AutoDiagonalNormal(gaussian),
        AutoNormal(gaussian),
        AutoIAFNormal,
    )
    for guide in refused:
        name = guide.__name__ if isinstance(guide, type) else type(guide).__name__
        expected = rf"Expected AutoMultivariateNormal.*found {name}\..*ProximalScoreVI"
        with pytest.raises(ArgumentError, match=expected):
            engine_class(gaussian, guide)
    assert isinstance(engine_class(gaussian).guide, AutoMultivariateNormal)
    guide = AutoMultivariateNormal(gaussian, init_scale=0.7)
    engine = engine_class(gaussian, guide, seed=0)
    engine.setup()
    torch.testing.assert_close(guide.scale, torch.full((5,), 0.7))
    engine.step()
    torch.testing.assert_close(guide.loc, engine.parameters["loc"])  # the guide holds the fit


@pytest.mark.parametrize(
    ("engine_class", "options", "message"),
    [
        (GSM, {"num_samples": 0}, "num_samples to be an int >= 1"),
        (BaM, {"num_samples": 0}, "num_samples to be an int >= 1"),
        (BaM, {"regularization": 0.0}, "Expected regularization"),
        (BaM, {"regularization": "falling"}, "Expected regularization"),
        (FisherVI, {"norm": "l1"}, "Expected norm to be one of"),
        (FisherVI, {"num_samples": 0}, "num_samples to be an int >= 1"),
        (FisherVI, {"max_dimension": 0}, "max_dimension to be an int >= 1"),
        (FisherVI, {"total_steps": 0}, "total_steps to be an int >= 1"),
    ],
)
def test_options_out_of_range(engine_class: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        engine_class(gaussian, AutoMultivariateNormal, **options)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("decaying", [15.0, 7.5, 5.0]), (0.4, [0.4] * 3), (lambda t: 2.0 + t, [2.0, 3.0, 4.0])],
)
def test_the_regularization_reaches_the_update(
    given: Any, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(moments: Moments, theta: Any, score: Any, weight: float) -> Moments:
        seen.append(weight)
        return bam_update(moments, theta, score, weight)

    monkeypatch.setattr(bam, "bam_update", look)
    BaM(gaussian, num_samples=3, regularization=given, seed=0).run(3, progress_bar=False)
    assert seen == pytest.approx(expected)


def test_the_default_regularization_is_draws_times_latents_at_first() -> None:
    engine = BaM(lognormal, seed=0)
    engine.setup()
    assert engine.num_samples == 8 and engine._weight(8) == 8.0


def test_a_rejected_covariance_leaves_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def spoilt(moments: Moments, theta: Any, score: Any) -> Moments:
        calls.append(Moments(*(entry.clone() for entry in moments)))
        updated = gsm_update(moments, theta, score)
        return Moments(updated.mean, updated.scale * torch.nan) if len(calls) == 2 else updated

    monkeypatch.setattr(gsm, "gsm_update", spoilt)
    engine = GSM(gaussian, seed=0)
    result = engine.run(4, progress_bar=False)
    assert result.info["rejected"].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert torch.equal(calls[1].mean, calls[2].mean)
    assert not torch.equal(calls[2].mean, calls[3].mean)
    assert np.isfinite(result.losses).all() and engine.num_skipped == 0


def make_gsm() -> Engine:
    return GSM(conjugate, seed=0)


def make_bam() -> Engine:
    return BaM(conjugate, seed=0)


def make_fisher() -> Engine:
    return FisherVI(conjugate, AutoDiagonalNormal, num_samples=2, seed=0)


@pytest.mark.parametrize("make", [make_gsm, make_bam, make_fisher])
def test_local_latents_are_refused(make: Callable[[], Engine]) -> None:
    engine = make()
    engine.model = pyro_models.build("local_latents")
    with pytest.raises(ModelCheckError):
        engine.setup(*pyro_models.arguments("local_latents"), **zoo.ZOO["local_latents"].options)


# -- FisherVI: the gradient -----------------------------------------------------------------------


def differentiable(batch: int | None = None, **options: Any) -> tuple[LogDensity, Any, Any]:
    target = LogDensity(counts, (COUNTS,), {"batch": batch}, **options)
    return target, DifferentiableTarget(target), target.bind(COUNTS, batch=batch)


@pytest.mark.parametrize(("evaluation", "chunk"), [("graph", 2), ("handlers", 2), ("loop", None)])
def test_the_target_is_differentiated_twice(evaluation: str, chunk: int | None) -> None:
    """Products with the Hessian against differences of scores, on a minibatch and on all rows."""
    target, twice, data = differentiable(
        3, evaluation=evaluation, data_chunk=chunk, particle_chunk=1, likelihood_temperature=0.5
    )
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


@pytest.mark.parametrize(
    ("guide_class", "norm"),
    [
        (AutoDiagonalNormal, "euclidean"),
        (AutoMultivariateNormal, "euclidean"),
        (AutoMultivariateNormal, "covariance"),
        (AutoLowRankMultivariateNormal, "covariance"),
        (AutoIAFNormal, "euclidean"),
    ],
)
def test_gradient_against_finite_differences(guide_class: Any, norm: str) -> None:
    target, twice, data = differentiable(3)
    density = flat_density(guide_class(counts), (COUNTS,), layout=target.layout, seed=0)
    generator = seeded_generator(5)
    parameters = {
        name: value + 0.2 * torch.randn(value.shape, generator=generator)
        for name, value in density.initial_parameters().items()
    }

    def draw(parameters: Any) -> torch.Tensor:
        return _reparameterised(density, parameters, 3, 2)

    def score(theta: torch.Tensor) -> Any:
        # A fresh generator: the same rows whenever it is asked.
        generator, estimator = seeded_generator(4), Minibatch()
        state = estimator.init(target, data, generator)
        return estimator.estimate(twice, state, theta, data, generator)[0].score, theta.detach()

    value, gradient, theta = fisher_gradient(density, parameters, draw, score, norm)
    residual = density.score(parameters, theta) - score(theta.requires_grad_())[0].detach()
    if norm == "covariance":
        scale = density.moments(parameters).scale
        residual = residual * scale if scale.dim() == 1 else residual @ scale
    torch.testing.assert_close(value, residual.square().sum(-1).mean())

    def along(h: float, name: str, i: int) -> float:
        moved = {key: entry.clone() for key, entry in parameters.items()}
        moved[name].view(-1)[i] += h
        return float(fisher_gradient(density, moved, draw, score, norm)[0])

    for name, entry in gradient.items():
        for i in range(min(entry.numel(), 3)):
            expected = slope(functools.partial(along, name=name, i=i))
            assert float(entry.flatten()[i]) == pytest.approx(expected, rel=1e-5, abs=1e-5), name


@pytest.mark.parametrize("norm", NORMS)
def test_fisher_on_a_correlated_normal(norm: str) -> None:
    """In three dimensions from a standard Normal, where the papers' figures are below 1e-5."""
    mean = torch.tensor([0.5, -1.0, 0.3])
    covariance = torch.tensor([[1.5, 0.5, -0.3], [0.5, 1.2, 0.2], [-0.3, 0.2, 2.0]])

    def model() -> None:
        pyro.sample("z", dist.MultivariateNormal(mean, covariance))

    optim = CosineAnnealingLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}, "T_max": 500}
    )
    start = init_to_value(values={"z": torch.zeros(3)})
    guide = AutoMultivariateNormal(model, init_loc_fn=start, init_scale=1.0)
    engine = FisherVI(model, guide, optim, norm, seed=0)
    result = engine.run(500, progress_bar=False)
    fitted_mean, scale = moments_of(engine)
    fitted = MultivariateNormal(fitted_mean, scale_tril=scale)
    assert float(kl_divergence(MultivariateNormal(mean, covariance), fitted)) < 1e-5
    assert result.losses[-1] < 1e-3 < 0.1 < result.losses[0]
    gap = result.info["log_p"][-10:] - result.info["log_q"][-10:]
    np.testing.assert_allclose(gap, 0.0, atol=0.02)
    assert engine.gradient_evaluations == 1000.0


def test_fisher_with_temperature_and_all_rows() -> None:
    optim = CosineAnnealingLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}, "T_max": 300}
    )
    guide = AutoDiagonalNormal(conjugate, init_scale=1.0)
    engine = FisherVI(conjugate, guide, optim, estimator=Full(), likelihood_temperature=0.2, seed=0)
    result = engine.run(300, Y, batch=5, progress_bar=False)
    mean, scale = moments_of(engine)
    expected, deviation = conjugate_posterior(0.2)
    assert mean.item() == pytest.approx(expected, abs=1e-3 * deviation)
    assert scale.item() == pytest.approx(deviation, rel=1e-3)
    assert np.ptp(result.info["log_p"][-5:] - result.info["log_q"][-5:]) < 1e-2


def test_fisher_takes_a_flow_and_noise() -> None:
    engine = FisherVI(counts, AutoIAFNormal, num_samples=8, seed=0)
    result = engine.run(60, COUNTS, progress_bar=False)
    assert np.median(result.losses[-20:]) < 0.7 * np.median(result.losses[:10])
    assert not list(pyro.get_param_store().keys())
    engine = FisherVI(conjugate, AutoDiagonalNormal, estimator=Noisy(level=0.5), seed=0)
    with pytest.warns(NoisyScoreWarning, match="Noisy"):
        losses = engine.run(3, Y, batch=5, progress_bar=False).losses
    assert np.isfinite(losses).all()


# -- FisherVI: refusals ---------------------------------------------------------------------------


def test_large_models_are_refused_before_the_guide_is_set_up() -> None:
    guide = AutoMultivariateNormal(gaussian)
    engine = FisherVI(gaussian, guide, max_dimension=4)
    with pytest.raises(ArgumentError, match=r"max_dimension=4 .*found 5.*Pass max_dimension=5"):
        engine.setup()
    assert guide.prototype_trace is None
    FisherVI(gaussian, guide, max_dimension=5).setup()


class Spots(AutoContinuous):
    """A mixture, whose draws have no derivative in the weights."""

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        self.loc = torch.nn.Parameter(torch.randn(2, self.latent_dim))

    def get_posterior(self, *args: Any, **kwargs: Any) -> Any:
        components = dist.Independent(dist.Normal(self.loc, 1.0), 1)
        return dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), components)


def test_guides_without_reparameterised_draws_or_covariance_are_refused() -> None:
    engine = FisherVI(gaussian, Spots)
    with pytest.raises(ArgumentError, match="reparameterised, found Spots.*ProximalScoreVI"):
        engine.setup()
    engine = FisherVI(gaussian, AutoIAFNormal, norm="covariance")
    with pytest.raises(ArgumentError, match=r"norm='covariance', found AutoIAFNormal.*euclidean"):
        engine.setup()


def test_estimators_that_cannot_be_differentiated_are_refused() -> None:
    class Plain(GradientEstimator):
        def init(self, target: Any, data: Any, generator: Any) -> Any:
            return {}

        def estimate(self, target: Any, state: Any, z: Any, data: Any, generator: Any) -> Any:
            return target.full_score(z.detach(), data), state

        def evaluations_per_step(self, target: Any) -> float:
            return 1.0

    engine = FisherVI(conjugate, AutoDiagonalNormal, estimator=Plain(), seed=0)
    with pytest.raises(ArgumentError, match="scores can be differentiated"):
        engine.step(Y)


def test_state_of_another_norm_is_refused(tmp_path: Path) -> None:
    engine = FisherVI(conjugate, AutoDiagonalNormal, norm="covariance", seed=0)
    engine.run(2, Y, progress_bar=False)
    engine.save(tmp_path / "state")
    other = FisherVI(conjugate, AutoDiagonalNormal, seed=0)
    other.load(tmp_path / "state")
    with pytest.raises(ArgumentError, match="another norm: expected euclidean, found covariance"):
        other.setup(Y)


def test_fisher_warns_of_minibatches_only() -> None:
    with pytest.warns(NoisyScoreWarning, match="FisherVI.*Minibatch.*variance of the scores"):
        FisherVI(conjugate, AutoDiagonalNormal, seed=0).step(Y, batch=5)
    FisherVI(conjugate, AutoDiagonalNormal, seed=0).step(Y)


def test_warnings_have_a_class_of_their_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoisyScoreWarning)
        GSM(conjugate, seed=0).step(Y, batch=5)
