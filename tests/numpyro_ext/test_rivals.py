"""GSM, BaM and FisherVI for NumPyro."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import Predictive
from numpyro.infer.autoguide import (
    AutoContinuous,
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from numpyro.infer.initialization import init_to_value
from scipy.linalg import sqrtm

from numpyro_ext.density import LogDensity
from numpyro_ext.gradients import Full, Minibatch, Noisy
from numpyro_ext.guides import Moments, flat_density
from numpyro_ext.score import GSM, BaM, FisherVI, bam, gsm
from numpyro_ext.score.bam import bam_update
from numpyro_ext.score.fisher import fisher_gradient
from numpyro_ext.score.gsm import gsm_update
from ppl_ext.errors import ArgumentError, ModelCheckError, NoisyScoreWarning
from ppl_ext.fisher import NORMS
from tests.models import numpyro_models, zoo

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
MEAN, COVARIANCE = zoo.GAUSSIAN_5D_MEAN, zoo.GAUSSIAN_5D_COVARIANCE
Y = jnp.linspace(-2.0, 4.0, 40) + jnp.sin(jnp.linspace(0.0, 3.0, 40))
COUNTS = jnp.array([1.0, 0.0, 2.0, 4.0, 1.0])


def gaussian() -> None:
    numpyro.sample("z", dist.MultivariateNormal(jnp.asarray(MEAN), jnp.asarray(COVARIANCE)))


def lognormal() -> None:
    numpyro.sample("x", dist.LogNormal(0.3, 0.5))


def conjugate(y: jax.Array, batch: int | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", len(y), subsample_size=batch) as rows:
        numpyro.sample("y", dist.Normal(mu, 2.0), obs=y[rows])


def by_argument(y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("N", 40, subsample_size=len(y)):
        numpyro.sample("y", dist.Normal(mu, 2.0), obs=y)


def counts(y: jax.Array, batch: int | None = None) -> None:
    """Three latents, one of them constrained, whose posterior is not Normal."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    effect = numpyro.sample("effect", dist.Normal(jnp.zeros(2), rate).to_event(1))
    with numpyro.plate("N", len(y), subsample_size=batch) as rows:
        slope = jnp.linspace(-1.0, 1.0, len(y))[rows]
        log_rate = jnp.log(rate) + effect[0] + slope * effect[1]
        numpyro.sample("y", dist.Poisson(jnp.exp(log_rate)), obs=y[rows])


def conjugate_posterior(temperature: float = 1.0) -> tuple[float, float]:
    precision = 1 / 9 + len(Y) / 4 / temperature
    return float(Y.sum() / 4 / temperature / precision), precision**-0.5


def moments_of(engine: Any, state: Any) -> tuple[np.ndarray, np.ndarray]:
    mean, scale = map(np.asarray, engine.density.moments(state.algorithm.parameters))
    return mean, np.diag(scale) if scale.ndim == 1 else scale


def draws_and_scores(dim: int, number: int) -> tuple[Moments, jax.Array, jax.Array]:
    """Moments of a guide, points and scores that have nothing to do with each other."""
    draws = np.random.default_rng([dim, number])
    root = draws.normal(size=(dim, dim))
    scale = np.linalg.cholesky(root @ root.T + 0.1 * np.eye(dim))
    mean = draws.normal(size=dim)
    theta = mean + draws.normal(size=(number, dim)) @ scale.T
    score = 2.0 * draws.normal(size=(number, dim))
    return Moments(jnp.asarray(mean), jnp.asarray(scale)), jnp.asarray(theta), jnp.asarray(score)


# -- GSM and BaM: the updates ----------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 4])
def test_gsm_matches_the_score_at_its_one_draw(dim: int) -> None:
    moments, theta, score = draws_and_scores(dim, 1)
    mean, scale = map(np.asarray, gsm_update(moments, theta, score))
    found = np.linalg.solve(scale @ scale.T, mean - theta[0])
    np.testing.assert_allclose(found, score[0], rtol=1e-8, atol=1e-10)


def test_gsm_averages_the_updates_of_its_draws() -> None:
    moments, theta, score = draws_and_scores(4, 3)
    mean, scale = gsm_update(moments, theta, score)
    single = [gsm_update(moments, theta[i : i + 1], score[i : i + 1]) for i in range(3)]
    np.testing.assert_allclose(mean, np.mean([one.mean for one in single], 0))
    covariances = [one.scale @ one.scale.T for one in single]
    np.testing.assert_allclose(scale @ scale.T, np.mean(covariances, 0), rtol=1e-10)


def test_gsm_gives_nan_for_a_covariance_that_rounding_has_spoilt() -> None:
    # Points ten thousand scales away, whose squares are subtracted from each other in float32.
    draws = np.random.default_rng(0)
    moments = Moments(jnp.zeros(3, jnp.float32), jnp.eye(3, dtype=jnp.float32))
    spoilt = 0
    for _ in range(20):
        theta, score = jnp.asarray(draws.normal(size=(2, 1, 3)), jnp.float32)
        scale = np.asarray(gsm_update(moments, 1e4 * theta, score).scale)
        assert np.isnan(scale).any() or (np.isfinite(scale).all() and (np.diag(scale) > 0).all())
        spoilt += int(np.isnan(scale).any())
    assert spoilt > 0


@pytest.mark.parametrize(("number", "weight"), [(1, 3.0), (3, 0.2), (9, 50.0)])
def test_bam_agrees_with_the_dense_formula(number: int, weight: float) -> None:
    moments, theta, score = draws_and_scores(4, number)
    mean, scale = map(np.asarray, bam_update(moments, theta, score, weight))
    z, g, mu, root = map(np.asarray, (theta, score, moments.mean, moments.scale))
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
    assert np.array_equal(scale, np.tril(scale)) and (np.diag(scale) > 0).all()


def test_bam_in_float32_holds_with_scores_of_a_hundred_million() -> None:
    moments, theta, score = draws_and_scores(4, 2)
    score = 1e8 * score
    expected = bam_update(moments, theta, score, 8.0)
    single = jax.tree.map(lambda entry: entry.astype(jnp.float32), (moments, theta, score))
    found = bam_update(*single, 8.0)
    assert found.scale.dtype == jnp.float32
    # In units of the present guide, where most directions have not been seen and stay.
    standard = np.linalg.solve(moments.scale, expected.scale)
    close = np.linalg.solve(moments.scale, found.scale.astype(float))
    np.testing.assert_allclose(close @ close.T, standard @ standard.T, rtol=0, atol=1e-4)


# -- GSM and BaM: fits -----------------------------------------------------------------------------

MATCHING: list[tuple[type, dict[str, Any], int]] = [
    (GSM, {}, 400),
    (BaM, {}, 80),
    (BaM, {"regularization": 40.0}, 60),
]


@pytest.mark.parametrize(("engine_class", "options", "steps"), MATCHING)
def test_correlated_normal_to_rounding(engine_class: Any, options: Any, steps: int) -> None:
    engine = engine_class(gaussian, **options)
    result = engine.run(KEY, steps, progress_bar=False)
    mean, scale = moments_of(engine, result.state)
    np.testing.assert_allclose(mean, MEAN, rtol=0, atol=1e-12)
    np.testing.assert_allclose(scale @ scale.T, COVARIANCE, rtol=0, atol=1e-12)
    assert result.losses[0] > 1.0 > 1e-12 > result.losses[-1]
    assert not result.info["rejected"].any()
    # The target's density is normalised, so that log p = log q where the fit is exact.
    np.testing.assert_allclose(result.info["log_p"][-1], result.info["log_q"][-1], atol=1e-10)


@pytest.mark.parametrize(("engine_class", "steps"), [(GSM, 100), (BaM, 400)])
def test_jacobian_temperature_and_rows(engine_class: Any, steps: int) -> None:
    engine = engine_class(lognormal)
    result = engine.run(KEY, steps, progress_bar=False)
    mean, scale = moments_of(engine, result.state)
    assert mean.item() == pytest.approx(0.3, abs=1e-9)
    assert scale.item() == pytest.approx(0.5, abs=1e-9)
    draws = engine.get_samples(result.state, num_samples=2000)["x"]
    assert jnp.log(draws).mean() == pytest.approx(0.3, abs=5 * 0.5 / 2000**0.5)

    engine = engine_class(conjugate, estimator=Full(), likelihood_temperature=0.2)
    result = engine.run(KEY, steps, Y, batch=5, progress_bar=False)
    # The log evidence: the same at every draw, as the fit is exact.
    assert np.ptp(result.info["log_p"][-5:] - result.info["log_q"][-5:]) < 1e-8
    mean, scale = moments_of(engine, result.state)
    expected, deviation = conjugate_posterior(0.2)
    assert mean.item() == pytest.approx(expected, abs=1e-9)
    assert scale.item() == pytest.approx(deviation, rel=1e-9)
    predictive = Predictive(conjugate, guide=engine.guide, params=result.params, num_samples=7)
    assert predictive(KEY, jnp.zeros(3))["y"].shape == (7, 3)


def test_bam_settles_on_a_posterior_that_is_not_normal() -> None:
    """A step of small weight changes mean and covariance in proportion to what is zero at the end.

    The update is then ``mu + weight Sigma E[s]`` and ``Sigma + weight (Sigma - Sigma E[s s^T]
    Sigma)``, so that E[s] = 0 and Sigma E[s^2] = 1 under the fit, here by quadrature.
    """
    engine = BaM(
        lambda: numpyro.sample("x", dist.Gamma(3.0, 1.0)),
        num_samples=64,
        regularization=lambda t: 2.0 / (t + 1),
    )
    state = engine.run(KEY, 600, progress_bar=False).state
    mean, scale = (entry.item() for entry in moments_of(engine, state))
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
        engine = engine_class(gaussian, estimator=Noisy(level=1.0))
        state = engine.run(KEY, steps, progress_bar=False).state
    _, scale = moments_of(engine, state)
    assert np.linalg.norm(scale @ scale.T - COVARIANCE) > 0.8 * np.linalg.norm(COVARIANCE)


# -- GSM and BaM: the engine -----------------------------------------------------------------------


@pytest.mark.parametrize("engine_class", [GSM, BaM])
def test_only_exact_scores_pass_without_a_warning(engine_class: Any) -> None:
    with pytest.warns(NoisyScoreWarning, match=r"Minibatch.*estimator=Full\(\).*ProximalScoreVI"):
        engine = engine_class(conjugate)
        engine.init(KEY, Y, batch=5)
    engine.init(KEY, Y, batch=5)  # told once
    with pytest.warns(NoisyScoreWarning):
        engine_class(conjugate, estimator=Minibatch()).init(KEY, Y, batch=5)
    with pytest.warns(NoisyScoreWarning, match="part of the data"):
        engine_class(by_argument).init(KEY, Y[:10])
    engine_class(conjugate, estimator=Full()).init(KEY, Y, batch=5)
    engine_class(conjugate).init(KEY, Y)


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
    engine = engine_class(gaussian, AutoMultivariateNormal(gaussian, init_scale=0.7))
    _, scale = moments_of(engine, engine.init(KEY))
    np.testing.assert_allclose(scale, 0.7 * np.eye(5))


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

    def look(moments: Moments, theta: Any, score: Any, weight: Any) -> Moments:
        jax.debug.callback(lambda value: seen.append(float(value)), weight, ordered=True)
        return moments

    monkeypatch.setattr(bam, "bam_update", look)
    engine = BaM(gaussian, num_samples=3, regularization=given)
    engine.run(KEY, 3, progress_bar=False)
    jax.effects_barrier()
    assert seen == pytest.approx(expected)


def test_the_default_regularization_is_draws_times_latents_at_first() -> None:
    engine = BaM(lognormal)
    assert engine.num_samples == 8 and float(engine._weight(8, jnp.asarray(0))) == 8.0


def test_a_rejected_covariance_leaves_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(moments: Moments, theta: Any, score: Any) -> Moments:
        mean, scale = gsm_update(moments, theta, score)
        return Moments(mean, jnp.where(theta[0, 0] > moments.mean[0], jnp.nan, scale))

    monkeypatch.setattr(gsm, "gsm_update", spoilt)
    engine = GSM(gaussian)
    state, rejected = engine.init(KEY), []
    result = engine.run(KEY, 12, progress_bar=False, init_state=state)
    assert set(result.info["rejected"]) == {0.0, 1.0}
    for i in range(12):
        following, loss = engine.update(state)
        assert loss == result.losses[i] and np.isfinite(loss)
        same = [np.array_equal(a, b) for a, b in parameters_of(state, following)]
        rejected.append(float(all(same)))
        assert all(same) or not any(same)
        state = following
    assert rejected == result.info["rejected"].tolist() and int(state.skipped) == 0


def parameters_of(*states: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(jax.tree.leaves(s.algorithm.parameters) for s in states), strict=True))


def make_gsm() -> Any:
    return GSM(conjugate)


def make_bam() -> Any:
    return BaM(conjugate)


def make_fisher() -> Any:
    return FisherVI(conjugate, AutoDiagonalNormal, num_samples=2)


@pytest.mark.parametrize("make", [make_gsm, make_bam, make_fisher])
def test_local_latents_are_refused(make: Callable[[], Any]) -> None:
    engine = make()
    engine.model = numpyro_models.build("local_latents")
    arguments, options = numpyro_models.arguments("local_latents"), zoo.ZOO["local_latents"].options
    with pytest.raises(ModelCheckError):
        engine.init(KEY, *arguments, **options)


# -- FisherVI: the gradient ------------------------------------------------------------------------


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
    target = LogDensity(counts, KEY, (COUNTS,), {"batch": 3}, data_chunk=2)
    data = target.bind(COUNTS, batch=3)
    options = {"num_flows": 1} if guide_class is AutoIAFNormal else {}
    density = flat_density(guide_class(counts, **options), KEY, (COUNTS,), layout=target.layout)
    start = density.initial_parameters()
    leaves, structure = jax.tree.flatten(start)
    draws = np.random.default_rng(5)
    leaves = [leaf + 0.2 * draws.normal(size=leaf.shape) for leaf in leaves]
    parameters = jax.tree.unflatten(structure, leaves)
    estimator = Minibatch() if norm == "euclidean" else Full()
    state = estimator.init(target, data, KEY, 1)

    def draw(parameters: Any) -> jax.Array:
        return density._posterior(parameters).sample(KEY, (2,))

    def score(theta: jax.Array) -> Any:
        return estimator.estimate(target, state, theta, data)[0].score, theta

    def gradient_at(parameters: Any) -> Any:
        return fisher_gradient(density, parameters, draw, score, norm)

    compiled = jax.jit(gradient_at)
    value, gradient, theta = compiled(parameters)
    residual = density.score(parameters, theta) - score(theta)[0]
    if norm == "covariance":
        scale = density.moments(parameters).scale
        residual = residual * scale if scale.ndim == 1 else residual @ scale
    np.testing.assert_allclose(value, jnp.square(residual).sum(-1).mean(), rtol=1e-9)

    def along(h: float, number: int, i: int) -> float:
        moved = [np.array(leaf) for leaf in leaves]
        moved[number].reshape(-1)[i] += h
        return float(compiled(jax.tree.unflatten(structure, moved))[0])

    for number, entry in enumerate(jax.tree.leaves(gradient)):
        for i in range(min(entry.size, 3)):
            ahead, behind = (along(h, number, i) for h in (1e-5, -1e-5))
            expected = (ahead - behind) / 2e-5
            assert float(entry.flatten()[i]) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_fisher_on_a_correlated_normal(norm: str) -> None:
    """In three dimensions from a standard Normal, where the papers' figures are below 1e-5."""
    mean = np.array([0.5, -1.0, 0.3])
    covariance = np.array([[1.5, 0.5, -0.3], [0.5, 1.2, 0.2], [-0.3, 0.2, 2.0]])

    def model() -> None:
        numpyro.sample("z", dist.MultivariateNormal(mean, covariance))

    start = init_to_value(values={"z": jnp.zeros(3)})
    guide = AutoMultivariateNormal(model, init_loc_fn=start, init_scale=1.0)
    optim = optax.adam(optax.cosine_decay_schedule(0.1, 500))
    engine = FisherVI(model, guide, optim, norm)
    result = engine.run(KEY, 500, progress_bar=False)
    fitted, scale = moments_of(engine, result.state)
    precision, difference = np.linalg.inv(scale @ scale.T), fitted - mean
    log_ratio = np.linalg.slogdet(scale @ scale.T)[1] - np.linalg.slogdet(covariance)[1]
    square = difference @ precision @ difference
    assert 0.5 * (np.trace(precision @ covariance) + square - 3 + log_ratio) < 1e-5
    assert result.losses[-1] < 1e-3 < 0.1 < result.losses[0]
    gap = result.info["log_p"][-10:] - result.info["log_q"][-10:]
    np.testing.assert_allclose(gap, 0.0, atol=0.02)


def test_fisher_with_temperature_and_all_rows() -> None:
    optim = optax.adam(optax.cosine_decay_schedule(0.1, 500))
    guide = AutoDiagonalNormal(conjugate, init_scale=1.0)
    engine = FisherVI(conjugate, guide, optim, estimator=Full(), likelihood_temperature=0.2)
    result = engine.run(KEY, 500, Y, batch=5, progress_bar=False)
    mean, scale = moments_of(engine, result.state)
    expected, deviation = conjugate_posterior(0.2)
    assert mean.item() == pytest.approx(expected, abs=1e-3 * deviation)
    assert scale.item() == pytest.approx(deviation, rel=1e-3)
    assert np.ptp(result.info["log_p"][-5:] - result.info["log_q"][-5:]) < 1e-2


def test_fisher_takes_noise() -> None:
    engine = FisherVI(conjugate, AutoDiagonalNormal, estimator=Noisy(level=0.5))
    with pytest.warns(NoisyScoreWarning, match="Noisy"):
        losses = engine.run(KEY, 3, Y, batch=5, progress_bar=False).losses
    assert np.isfinite(losses).all()


# -- FisherVI: refusals ----------------------------------------------------------------------------


def test_large_models_are_refused_before_the_guide_is_set_up() -> None:
    guide = AutoMultivariateNormal(gaussian)
    with pytest.raises(ArgumentError, match=r"max_dimension=4 .*found 5.*Pass max_dimension=5"):
        FisherVI(gaussian, guide, max_dimension=4).init(KEY)
    assert guide.prototype_trace is None
    FisherVI(gaussian, guide, max_dimension=5).init(KEY)


class Spots(AutoContinuous):
    """A mixture, whose draws have no derivative in the weights."""

    def _get_posterior(self) -> Any:
        loc = numpyro.param("auto_loc", jnp.arange(2.0 * self.latent_dim).reshape(2, -1))
        components = dist.Normal(loc, 1.0).to_event(1)
        return dist.MixtureSameFamily(dist.Categorical(probs=jnp.ones(2) / 2), components)


def test_guides_without_reparameterised_draws_or_covariance_are_refused() -> None:
    with pytest.raises(ArgumentError, match="reparameterised, found Spots.*ProximalScoreVI"):
        FisherVI(gaussian, Spots).init(KEY)
    engine = FisherVI(gaussian, AutoIAFNormal(gaussian, num_flows=1), norm="covariance")
    with pytest.raises(ArgumentError, match=r"norm='covariance', found AutoIAFNormal.*euclidean"):
        engine.init(KEY)


def test_state_of_another_norm_is_refused(tmp_path: Path) -> None:
    engine = FisherVI(conjugate, AutoDiagonalNormal, norm="covariance")
    engine.save(tmp_path / "state", engine.init(KEY, Y))
    other = FisherVI(conjugate, AutoDiagonalNormal)
    with pytest.raises(ArgumentError, match="another norm: expected euclidean, found covariance"):
        other.load(tmp_path / "state", Y)


def test_fisher_warns_of_minibatches_only() -> None:
    with pytest.warns(NoisyScoreWarning, match="FisherVI.*Minibatch.*variance of the scores"):
        FisherVI(conjugate, AutoDiagonalNormal).init(KEY, Y, batch=5)
    FisherVI(conjugate, AutoDiagonalNormal).init(KEY, Y)


def test_warnings_have_a_class_of_their_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoisyScoreWarning)
        GSM(conjugate).init(KEY, Y, batch=5)
