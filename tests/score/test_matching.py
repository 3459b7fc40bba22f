"""GSM and BaM in both packages: their updates, fits, refusals and what reaches the update."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.linalg import sqrtm

from ppl_ext.errors import ArgumentError, ModelCheckError, NoisyScoreWarning
from tests import score_support as support
from tests.backends import use_float64
from tests.guides_support import check_close, divergence
from tests.models import zoo
from tests.score_support import (
    COVARIANCE,
    MEAN,
    GuideRun,
    Noted,
    Y,
    draws_and_scores,
    guide_of,
    room,
    updated,
)

use_float64()

each_engine = pytest.mark.parametrize("engine", ["GSM", "BaM"])
ROWS: dict[str, Any] = {"args": (Y,), "kwargs": {"batch": 5}}


def slope(function: Callable[[float], float], step: float = 1e-5) -> float:
    return (function(step) - function(-step)) / (2.0 * step)


def symmetric_directions(dim: int, size: float) -> np.ndarray:
    """Changes of one entry of a covariance, and of its mirror image."""
    pairs = itertools.combinations_with_replacement(np.eye(dim), 2)
    return size * np.stack([np.maximum(np.outer(a, b), np.outer(b, a)) for a, b in pairs])


# -- GSM: the update -------------------------------------------------------------------------------


@pytest.mark.formula
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_gsm_matches_the_score_at_its_one_draw(face: Any, dim: int) -> None:
    given = draws_and_scores(dim, 1)
    mean, scale = updated(face, "gsm", *given)
    found = np.linalg.solve(scale @ scale.T, mean - given[2][0])
    np.testing.assert_allclose(found, given[3][0], rtol=1e-8, atol=1e-10)


@pytest.mark.formula
def test_gsm_is_the_nearest_of_the_normals_that_match(face: Any) -> None:
    """Along every direction within those Normals the divergence has slope zero and grows."""
    mean, scale, theta, score = draws_and_scores(3, 1)
    _, root = updated(face, "gsm", mean, scale, theta, score)
    covariance = root @ root.T

    def away(change: np.ndarray) -> float:
        # Every covariance has one mean with which the score at theta is right.
        new = covariance + change
        return divergence(mean, scale @ scale.T, theta[0] + new @ score[0], new)

    for direction in root @ symmetric_directions(3, 0.1) @ root.T:
        assert abs(slope(lambda h, way=direction: away(h * way), 1e-3)) < 1e-6
        assert min(away(0.3 * direction), away(-0.3 * direction)) > away(0.0 * direction) + 1e-5


@pytest.mark.formula
def test_gsm_averages_the_updates_of_its_draws(face: Any) -> None:
    mean, scale, theta, score = draws_and_scores(4, 3)
    found = updated(face, "gsm", mean, scale, theta, score)
    single = [
        updated(face, "gsm", mean, scale, theta[i : i + 1], score[i : i + 1]) for i in range(3)
    ]
    np.testing.assert_allclose(found[0], np.mean([mean for mean, _ in single], 0))
    covariances = [scale @ scale.T for _, scale in single]
    np.testing.assert_allclose(found[1] @ found[1].T, np.mean(covariances, 0), rtol=1e-10)


def test_gsm_gives_nan_for_a_covariance_that_rounding_has_spoilt(face: Any) -> None:
    # Points ten thousand scales away, whose squares are subtracted from each other in float32.
    draws, spoilt = np.random.default_rng(0), 0
    update = room(face, "score.matching").gsm_update
    start = (face.backend.array(each, "float32") for each in (np.zeros(3), np.eye(3)))
    moments = face.guides.Moments(*start)
    for _ in range(20):
        theta, score = draws.normal(size=(2, 1, 3))
        given = (face.backend.array(each, "float32") for each in (1e4 * theta, score))
        scale = face.numpy(update(moments, *given).scale)
        broken = np.isnan(scale[np.tril_indices(3)]).all()
        spoilt += broken
        assert broken or (np.isfinite(scale).all() and (np.diag(scale) > 0).all())
    assert spoilt > 0


def test_gsm_does_not_depend_on_the_units_of_latents(face: Any) -> None:
    units = np.array([1e-4, 1.0, 1e4])
    mean, scale, theta, score = draws_and_scores(3, 2)
    update = room(face, "score.matching").gsm_update

    def in_units(unit: np.ndarray) -> np.ndarray:
        given = unit * mean, unit[:, None] * scale, unit * theta, score / unit
        mu, root, *seen = (face.backend.array(each, "float32") for each in given)
        return np.asarray(face.numpy(update(face.guides.Moments(mu, root), *seen).scale))

    np.testing.assert_allclose(in_units(units), units[:, None] * in_units(np.ones(3)), rtol=1e-3)


# -- BaM: the update -------------------------------------------------------------------------------


@pytest.mark.formula
@pytest.mark.parametrize(("dim", "number", "weight"), [(3, 2, 0.7), (3, 6, 40.0), (1, 1, 5.0)])
def test_bam_minimises_its_objective(face: Any, dim: int, number: int, weight: float) -> None:
    present, scale, theta, score = draws_and_scores(dim, number)
    mean, root = updated(face, "bam", present, scale, theta, score, weight=weight)
    covariance = root @ root.T

    def objective(mean: np.ndarray, covariance: np.ndarray) -> float:
        residual = np.linalg.solve(covariance, (mean - theta).T).T - score
        matching = np.einsum("si,ij,sj->s", residual, covariance, residual).mean()
        pull = divergence(present, scale @ scale.T, mean, covariance)
        return float(matching + 2.0 / weight * pull)

    least = objective(mean, covariance)
    unit = covariance.diagonal().min() ** 0.5 / 10
    for change in unit * np.eye(dim):
        along = lambda h, way=change: objective(mean + h * way, covariance)  # noqa: E731
        assert abs(slope(along)) < 1e-6 and min(along(0.3), along(-0.3)) > least
    for change in symmetric_directions(dim, unit**2):
        along = lambda h, way=change: objective(mean, covariance + h * way)  # noqa: E731
        assert abs(slope(along)) < 1e-6 and min(along(0.3), along(-0.3)) > least


@pytest.mark.parametrize(("number", "weight"), [(1, 3.0), (3, 0.2), (9, 50.0)])
def test_bam_agrees_with_the_dense_formula(face: Any, number: int, weight: float) -> None:
    mu, root, z, g = draws_and_scores(4, number)
    mean, scale = updated(face, "bam", mu, root, z, g, weight=weight)
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


@pytest.mark.formula
def test_bam_with_one_draw_and_a_great_weight_is_gsm(face: Any) -> None:
    given = draws_and_scores(3, 1)
    found = updated(face, "bam", *given, weight=1e12)
    check_close(found, updated(face, "gsm", *given), rtol=1e-6, atol=1e-6)


def test_bam_in_float32_holds_with_scores_of_a_hundred_million(face: Any) -> None:
    mean, scale, theta, score = draws_and_scores(4, 2)
    score = 1e8 * score
    expected = updated(face, "bam", mean, scale, theta, score, weight=8.0)[1]
    given = [face.backend.array(each, "float32") for each in (mean, scale, theta, score)]
    update = room(face, "score.matching").bam_update
    found = face.numpy(update(face.guides.Moments(*given[:2]), *given[2:], 8.0).scale)
    assert found.dtype == np.float32
    # In units of the present guide, where most directions have not been seen and stay.
    standard, close = np.linalg.solve(scale, expected), np.linalg.solve(scale, found.astype(float))
    np.testing.assert_allclose(close @ close.T, standard @ standard.T, rtol=0, atol=1e-4)


# -- fits ------------------------------------------------------------------------------------------

MATCHING = [("GSM", {}, 400), ("BaM", {}, 80), ("BaM", {"regularization": 40.0}, 60)]


@pytest.mark.parametrize(("engine", "options", "steps"), MATCHING)
def test_correlated_normal_to_rounding(
    face: Any, engine: str, options: dict[str, Any], steps: int
) -> None:
    run = GuideRun(face, support.gaussian(face), engine=engine, **options).run(steps)
    np.testing.assert_allclose(run.moments[0], MEAN, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.covariance, COVARIANCE, rtol=0, atol=1e-12)
    assert run.losses[0] > 1.0 > 1e-12 > run.losses[-1]
    assert not run.info("rejected").any()
    # The target's density is normalised, so that log p = log q where the fit is exact.
    np.testing.assert_allclose(run.info("log_p")[-1], run.info("log_q")[-1], atol=1e-10)


@pytest.mark.parametrize(("engine", "steps"), [("GSM", 100), ("BaM", 400)])
def test_jacobian_temperature_and_rows(face: Any, engine: str, steps: int) -> None:
    run = GuideRun(face, support.lognormal(face), engine=engine).run(steps)
    mean, scale = run.moments
    assert mean.item() == pytest.approx(0.3, abs=1e-9)
    assert scale.item() == pytest.approx(0.5, abs=1e-9)
    draws = np.log(run.samples(2000)["x"])
    assert draws.mean() == pytest.approx(0.3, abs=5 * 0.5 / 2000**0.5)

    model, options = support.conjugate(face), {"estimator": face.backend.public.Full(), **ROWS}
    run = GuideRun(face, model, engine=engine, likelihood_temperature=0.2, **options).run(steps)
    # The log evidence: the same at every draw, as the fit is exact.
    assert np.ptp((run.info("log_p") - run.info("log_q"))[-5:]) < 1e-8
    mean, scale = run.moments
    expected, deviation = support.conjugate_posterior(0.2)
    assert mean.item() == pytest.approx(expected, abs=1e-9)
    assert scale.item() == pytest.approx(deviation, rel=1e-9)
    options = {"guide": run.engine.guide, "num_samples": 7}
    assert run.predictive(model, face.zeros(3), **options)["y"].shape == (7, 3)


def test_bam_settles_on_a_posterior_that_is_not_normal(face: Any) -> None:
    """A step of small weight changes mean and covariance in proportion to what is zero at the end.

    The update is then ``mu + weight Sigma E[s]`` and ``Sigma + weight (Sigma - Sigma E[s s^T]
    Sigma)``, so that E[s] = 0 and Sigma E[s^2] = 1 under the fit, here by quadrature.
    """

    def model() -> None:
        face.host.sample("x", face.dist.Gamma(3.0, 1.0))

    options = {"num_samples": 64, "regularization": lambda t: 2.0 / (t + 1)}
    run = GuideRun(face, model, engine="BaM", **options).run(600)
    mean, scale = (entry.item() for entry in run.moments)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    # The score of log x under Gamma(3, 1), Jacobian included, in units of the fit.
    score = scale * (3.0 - np.exp(mean + scale * nodes))
    # Weights of 2 / t average about half of the 38,400 scores; those have kurtosis of about 10.
    assert abs(weights @ score) < 4 / 19_200**0.5
    assert weights @ score**2 == pytest.approx(1.0, abs=4 * (9 / 19_200) ** 0.5)


@pytest.mark.parametrize(("engine", "steps"), [("GSM", 1000), ("BaM", 250)])
def test_noise_breaks_the_covariance(face: Any, engine: str, steps: int) -> None:
    noisy = face.backend.public.Noisy(level=1.0)
    with pytest.warns(NoisyScoreWarning, match="Noisy gives"):
        run = GuideRun(face, support.gaussian(face), engine=engine, estimator=noisy).run(steps)
    assert np.linalg.norm(run.covariance - COVARIANCE) > 0.8 * np.linalg.norm(COVARIANCE)


# -- the engine ------------------------------------------------------------------------------------


@each_engine
def test_only_exact_scores_pass_without_a_warning(face: Any, engine: str) -> None:
    public, model = face.backend.public, support.conjugate(face)

    def by_argument(y: Any) -> None:
        mu = face.host.sample("mu", face.dist.Normal(0.0, 3.0))
        with face.host.plate("N", 40, subsample_size=len(y)):
            face.host.sample("y", face.dist.Normal(mu, 2.0), obs=y)

    with pytest.warns(NoisyScoreWarning, match=r"Minibatch.*estimator=Full\(\).*ProximalScoreVI"):
        run = GuideRun(face, model, engine=engine, **ROWS)
    run.meet()  # told once
    with pytest.warns(NoisyScoreWarning):
        GuideRun(face, model, engine=engine, estimator=public.Minibatch(), **ROWS)
    with pytest.warns(NoisyScoreWarning, match="part of the data"):
        GuideRun(face, by_argument, engine=engine, args=(Y[:10],))
    GuideRun(face, model, engine=engine, estimator=public.Full(), **ROWS)
    GuideRun(face, model, engine=engine, args=(Y,))
    # Of a class of their own.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoisyScoreWarning)
        GuideRun(face, model, engine=engine, **ROWS)


@each_engine
def test_guides_that_have_no_closed_form_are_refused(face: Any, engine: str) -> None:
    make, model = getattr(face.backend.public, engine), support.gaussian(face)
    for name, *given in (
        ("AutoDiagonalNormal",),
        ("AutoDiagonalNormal", model),
        ("AutoNormal", model),
        ("AutoIAFNormal", model),
    ):
        expected = rf"Expected AutoMultivariateNormal.*found {name}\..*ProximalScoreVI"
        with pytest.raises(ArgumentError, match=expected):
            make(model, guide_of(face, name, *given))
    assert isinstance(make(model).guide, face.autoguide.AutoMultivariateNormal)
    guide = guide_of(face, "AutoMultivariateNormal", model, init_scale=0.7)
    run = GuideRun(face, model, guide, engine=engine)
    np.testing.assert_allclose(run.moments[1], 0.7 * np.eye(5))


@pytest.mark.formula
@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("GSM", {"num_samples": 0}, "num_samples to be an int >= 1"),
        ("BaM", {"num_samples": 0}, "num_samples to be an int >= 1"),
        ("BaM", {"regularization": 0.0}, "Expected regularization"),
        ("BaM", {"regularization": "falling"}, "Expected regularization"),
        ("FisherVI", {"norm": "l1"}, "Expected norm to be one of"),
        ("FisherVI", {"num_samples": 0}, "num_samples to be an int >= 1"),
        ("FisherVI", {"max_dimension": 0}, "max_dimension to be an int >= 1"),
        ("FisherVI", {"total_steps": 0}, "total_steps to be an int >= 1"),
    ],
)
def test_options_out_of_range(
    face: Any, engine: str, options: dict[str, Any], message: str
) -> None:
    make, guide = getattr(face.backend.public, engine), face.autoguide.AutoMultivariateNormal
    with pytest.raises(ArgumentError, match=message):
        make(support.gaussian(face), guide, **options)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("decaying", [15.0, 7.5, 5.0]), (0.4, [0.4] * 3), (lambda t: 2.0 + t, [2.0, 3.0, 4.0])],
)
def test_the_regularization_reaches_the_update(
    face: Any, given: Any, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, bam = Noted(face), room(face, "score.matching")

    def look(moments: Any, theta: Any, score: Any, weight: Any) -> Any:
        noted.add(weight)
        return moments

    monkeypatch.setattr(bam, "bam_update", look)
    options = {"num_samples": 3, "regularization": given}
    GuideRun(face, support.gaussian(face), engine="BaM", **options).run(3)
    assert [float(weight) for (weight,) in noted.found] == pytest.approx(expected)


def test_the_default_regularization_is_draws_times_latents_at_first(face: Any) -> None:
    engine = GuideRun(face, support.lognormal(face), engine="BaM").engine
    step = () if face.name == "pyro" else (face.array(0),)
    assert engine.num_samples == 8 and float(engine._weight(8, *step)) == 8.0


def test_a_rejected_covariance_leaves_the_guide(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gsm, xp = room(face, "score.matching"), face.backend.xp
    update = gsm.gsm_update

    def spoilt(moments: Any, theta: Any, score: Any) -> Any:
        mean, scale = update(moments, theta, score)
        broken = xp.where(theta[0, 0] > moments.mean[0], np.nan, 1.0)
        return face.guides.Moments(mean, scale * broken)

    monkeypatch.setattr(gsm, "gsm_update", spoilt)
    run = GuideRun(face, support.gaussian(face), engine="GSM")
    stayed: list[float] = []
    for _ in range(12):
        before = run.values
        before = {name: value.copy() for name, value in before.items()}
        run.run(1)
        same = [np.array_equal(before[name], value) for name, value in run.values.items()]
        assert all(same) or not any(same)
        stayed.append(float(all(same)))
    assert set(stayed) == {0.0, 1.0} and stayed == run.info("rejected").tolist()
    assert np.isfinite(run.losses).all() and run.skipped == 0


@pytest.mark.parametrize("engine", ["GSM", "BaM", "FisherVI"])
def test_local_latents_are_refused(face: Any, engine: str) -> None:
    models, options = face.backend.models, zoo.ZOO["local_latents"].options
    model, args = models.build("local_latents"), models.arguments("local_latents")
    guide = "AutoDiagonalNormal" if engine == "FisherVI" else None
    with pytest.raises(ModelCheckError):
        GuideRun(face, model, guide, engine=engine, args=args, kwargs=options)
