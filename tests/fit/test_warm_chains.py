"""``warm_chains``: the host's chains in the coordinates of what is known, in both packages."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ppl_ext.chains.proposal import Proposal
from ppl_ext.chains.sampler import Kernel
from ppl_ext.chains.symmetry import Exchange, Symmetry
from ppl_ext.errors import DoubtfulFitWarning
from ppl_ext.fit.warm import Tuned, covariance_of, first_points, of_fit, warn_unless_at_rest
from ppl_ext.start.start import Mode, Start
from ppl_ext.statistics.convergence import convergence
from ppl_ext.target.noncentred import standardised
from tests.fit.test_fit import fit_of

#: Two sites against their alphabetical order, of very different widths and nearly in line.
SLOPE, WIDTH, NOISE = 30.0, 5.0, 1.5


def in_line(backend: Any) -> Any:
    host, dist = backend.host, backend.dist

    def model() -> None:
        wide = host.sample("z", dist.Normal(backend.array([1.0, 2.0]), WIDTH).to_event(1))
        host.sample("a", dist.Normal(SLOPE * wide[0], NOISE))

    return model


def covariance() -> np.ndarray:
    factor = np.diag([WIDTH, WIDTH, NOISE])
    factor[2, 0] = SLOPE * WIDTH
    return factor @ factor.T


def chains_of(
    backend: Any, model: Any, start: Any, *args: Any, seed: int = 0, **options: Any
) -> Any:
    """Warm chains of a program, and draws of each site, (chains, draws, ...)."""
    options = {"progress_bar": False, "num_samples": 250, **options}
    if backend.is_pyro:
        mcmc = backend.public.warm_chains(model, start, *args, seed=seed, **options)
    else:
        mcmc = backend.public.warm_chains(backend.key(seed), model, start, *args, **options)
    draws = mcmc.get_samples(group_by_chain=True)
    return mcmc, {name: backend.numpy(value) for name, value in draws.items()}


def check_in_line(draws: dict[str, np.ndarray]) -> None:
    """Means and deviations to five errors of the chains, which move well."""
    flat = np.concatenate([draws["z"], draws["a"][..., None]], -1)
    found = convergence(flat.transpose(1, 0, 2))
    # Independent draws are 1,000; a metric in another order leaves fewer than 30.
    assert found.ess_bulk.min() > 300
    errors = 5.0 / np.sqrt(found.ess_bulk)
    deviations = np.sqrt(np.diag(covariance()))
    means = np.array([1.0, 2.0, SLOPE])
    assert (np.abs(flat.mean((0, 1)) - means) / deviations < errors).all()
    assert (np.abs(flat.std((0, 1)) / deviations - 1.0) < errors).all()


def test_chains_have_the_posterior_of_a_masked_prior(backend: Any) -> None:
    """NumPyro's own potential masks the Jacobian as well: a mean of 0.875 in place of 0.8."""
    host, dist, array = backend.host, backend.dist, backend.array

    def model(y: Any) -> None:
        with backend.handlers.mask(mask=array(np.array(False))):
            p = host.sample("p", dist.Beta(array(5.0), array(5.0)))
        with host.plate("rows", 8):
            host.sample("y", dist.Bernoulli(p), obs=y)

    y = array(np.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]))
    mode = Mode(np.array([1.4]), np.array([[0.8]]), 0.0, 0.0)
    _, draws = chains_of(backend, model, Start((mode,), 0), y, num_samples=500)
    flat = draws["p"].T[..., None]
    error = 5.0 / np.sqrt(convergence(flat).ess_bulk.min())
    assert abs(flat.mean() - 0.8) < 0.12 * error < 0.04


def test_chains_that_have_not_come_to_rest_are_told(backend: Any) -> None:
    """From draws that lie nearly at one point, by orders more narrow than the posterior."""
    host, dist = backend.host, backend.dist

    def model() -> None:
        host.sample("z", dist.Normal(backend.array(2.0), 0.5))

    noise = np.random.default_rng(0).normal(size=100)
    options = {"num_samples": 100, "num_warmup": 40}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", DoubtfulFitWarning)
        _, draws = chains_of(backend, model, {"z": backend.array(2.0 + 1e-7 * noise)}, **options)
    told = [str(each.message) for each in heard if each.category is DoubtfulFitWarning]
    is_right = abs(np.log(draws["z"].std() / 0.5)) < 0.25
    # NumPyro's step size grows far enough.
    assert len(told) == (not is_right)
    assert is_right or "R-hat" in told[0]
    if backend.is_pyro:
        assert not is_right


def test_r_hat_of_chains_at_rest_is_seldom_told() -> None:
    generator = np.random.default_rng(0)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for number in (20, 100):
            for _ in range(100):
                warn_unless_at_rest({"z": generator.normal(size=(4, number, 3))}, 1)
    # Each has a chance of 1 in 1,000.
    assert len(heard) <= 2
    apart = generator.normal(size=(4, 100, 2)) + np.arange(4.0)[:, None, None] * [0.0, 1.0]
    with pytest.warns(DoubtfulFitWarning, match=r"R-hat 1\.[2-9].*'z'"):
        warn_unless_at_rest({"z": apart}, 1)
    apart[0, 0, 0] = np.inf
    with pytest.warns(DoubtfulFitWarning, match="not finite in 'z'"):
        warn_unless_at_rest({"z": apart}, 1)


def test_a_start_gives_metric_and_first_points(backend: Any) -> None:
    model = in_line(backend)
    mode = Mode(np.array([1.0, 2.0, SLOPE]), np.linalg.cholesky(covariance()), 0.0, 0.0)
    mcmc, draws = chains_of(backend, model, Start((mode,), 0))
    assert isinstance(mcmc, backend.host.infer.MCMC)
    assert draws["z"].shape == (4, 250, 2)
    check_in_line(draws)
    # Trajectories are short: a few evaluations for each transition.
    if backend.is_pyro:
        assert mcmc.kernel.evaluations < 4 * 400 * 4
    else:
        assert float(mcmc.get_extra_fields()["num_steps"].mean()) < 8.0
    tree = backend.public.to_arviz(mcmc)
    assert tree["posterior"]["z"].shape == (4, 250, 2)
    assert not tree["sample_stats"]["diverging"].any()
    predictive = backend.host.infer.Predictive(model, posterior_samples=mcmc.get_samples())
    again = predictive() if backend.is_pyro else predictive(backend.key(1))
    assert set(again) <= {"z", "a"}


def test_first_points_are_in_all_modes() -> None:
    """Four draws are in that of three quarters of the mass alone a time in three."""
    generator, deviations = np.random.default_rng(0), np.array([1.0, 3.0])
    modes = [(np.zeros(2), 1.1), (np.array([20.0, 0.0]), 0.0)]
    start = Start(tuple(Mode(mean, deviations, log_mass, 0.0) for mean, log_mass in modes), 0)

    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(z)), np.zeros_like(z)

    for _ in range(20):
        points = first_points(start, 4, evaluate, generator)
        assert points.shape == (4, 2)
        assert 0 < (points[:, 0] > 10.0).sum() < 4


def test_draws_and_one_chain(backend: Any) -> None:
    generator = np.random.default_rng(0)
    drawn = generator.multivariate_normal([1.0, 2.0, SLOPE], covariance(), 500)
    given = {"a": backend.array(drawn[:, 2]), "z": backend.array(drawn[:, :2])}
    options = {"num_chains": 1, "num_samples": 1_000}
    _, draws = chains_of(backend, in_line(backend), given, **options)
    check_in_line({name: each.reshape(4, 250, *each.shape[2:]) for name, each in draws.items()})


@pytest.mark.in_one_package
def test_a_fit_that_is_non_centred(backend: Any) -> None:
    host, dist = backend.host, backend.dist
    y = backend.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = backend.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 5.0))
        tau = host.sample("tau", dist.HalfCauchy(backend.array(5.0)))
        with host.plate("schools", 8):
            theta = host.sample("theta", dist.Normal(mu, tau))
            host.sample("y", dist.Normal(theta, error), obs=y)

    fit = fit_of(backend, model, y, exact=False)
    mcmc, draws = chains_of(backend, model, fit, y)
    assert {"mu", "tau", "theta", "theta_decentered"} <= set(draws)
    assert draws["theta"].shape == (4, 250, 8)
    for name, mean, deviation in (("mu", 4.4, 3.3), ("tau", 3.6, 3.2)):
        size = convergence(draws[name].T[..., None]).ess_bulk.min()
        assert abs(draws[name].mean() - mean) < (0.05 + 5.0 / math.sqrt(size)) * deviation
    moved = draws["mu"][..., None] + draws["tau"][..., None] * draws["theta_decentered"]
    np.testing.assert_allclose(draws["theta"], moved, rtol=1e-3, atol=1e-3)
    posterior = backend.public.to_arviz(mcmc, y, sample_stats=False)["posterior"]
    assert posterior["theta"].shape == (4, 250, 8)


def test_a_fit_whose_entries_are_standardised_given_their_data(backend: Any) -> None:
    """Chains move in the same entries; the sites as written come of these."""
    host, dist = backend.host, backend.dist
    y, error = np.array([0.2, 1.4, 0.9, -1.0]), np.repeat([0.05, 1.5], 2)

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 2.0))
        scale = host.sample("scale", dist.HalfNormal(backend.array(1.0)))
        with host.plate("groups", 4):
            effect = host.sample("effect", dist.Normal(mean, scale))
            host.sample("y", dist.Normal(effect, backend.array(error)), obs=y)

    fit = fit_of(backend, model, backend.array(y), exact=False)
    mcmc, draws = chains_of(backend, model, fit, backend.array(y))
    told = fit.climbed.problem.entry_data["effect"]
    given = draws["mean"][..., None], draws["scale"][..., None]
    _, _, mean, deviation = standardised(*given, *told)
    expected = mean + deviation * draws["effect_decentered"]
    np.testing.assert_allclose(draws["effect"], expected, rtol=1e-3, atol=1e-3)
    posterior = backend.public.to_arviz(mcmc, backend.array(y), sample_stats=False)["posterior"]
    assert posterior["effect"].shape == (4, 250, 4)


def correlated(backend: Any) -> Any:
    host, dist = backend.host, backend.dist
    factor = backend.array([[3.0, 0.0], [2.7, 0.4]])

    def model() -> None:
        mean = backend.array([1.0, -1.0])
        host.sample("x", dist.MultivariateNormal(mean, scale_tril=factor))

    return model


def check_correlated(draws: dict[str, np.ndarray]) -> None:
    flat = draws["x"]
    size = convergence(flat.transpose(1, 0, 2)).ess_bulk.min()
    assert size > 150
    deviations = np.array([3.0, math.hypot(2.7, 0.4)])
    assert (np.abs(flat.mean((0, 1)) - [1.0, -1.0]) / deviations < 5.0 / math.sqrt(size)).all()
    assert (np.abs(flat.std((0, 1)) / deviations - 1.0) < 5.0 / math.sqrt(size)).all()


@pytest.mark.parametrize("family", ["AutoMultivariateNormal", "AutoGaussianMixture"])
def test_guides_and_engines_give_metrics(backend: Any, family: str) -> None:
    model = correlated(backend)
    check_correlated(chains_of(backend, model, fitted_by_engine(backend, model, family))[1])


@pytest.mark.in_one_package
def test_a_flow_carries_chains(backend: Any) -> None:
    """Through a flow that is not fitted, which no chain may notice in the end."""
    model, flow = correlated(backend), backend.public.AutoPlanarFlow
    guide = flow(model, 2)
    if backend.is_pyro:
        guide()
        given: Any = guide
    else:
        svi = backend.host.infer.SVI(
            model, guide, backend.host.optim.Adam(0.02), backend.host.infer.Trace_ELBO()
        )
        given = (guide, svi.get_params(svi.init(backend.key(0))))
    _, draws = chains_of(backend, model, given, num_samples=500)
    flat = draws["x"]
    size = convergence(flat.transpose(1, 0, 2)).ess_bulk.min()
    assert size > 100
    deviations = np.array([3.0, math.hypot(2.7, 0.4)])
    assert (np.abs(flat.mean((0, 1)) - [1.0, -1.0]) / deviations < 5.0 / math.sqrt(size)).all()
    assert (np.abs(flat.std((0, 1)) / deviations - 1.0) < 5.0 / math.sqrt(size)).all()


def fitted_by_engine(backend: Any, model: Any, family: str) -> Any:
    """A guide that an engine has fitted, or the engine, as warm_chains takes them."""
    if family == "AutoGaussianMixture":
        guide = backend.public.AutoGaussianMixture(model, 2)
    else:
        guide = getattr(backend.autoguide, family)(model)
    engine = backend.public.ProximalScoreVI(model, guide)
    is_guide = family == "AutoMultivariateNormal"
    if backend.is_pyro:
        engine.run(50, progress_bar=False)
        return guide if is_guide else engine
    result = engine.run(backend.key(0), 50, progress_bar=False)
    return (guide, engine.get_params(result.state)) if is_guide else (engine, result)


def test_what_is_no_start_is_refused(backend: Any) -> None:
    model, refused = correlated(backend), backend.public.ArgumentError
    good = Start((Mode(np.zeros(2), np.eye(2), 0.0, 0.0),), 0)
    short = Start((Mode(np.zeros(3), np.eye(3), 0.0, 0.0),), 0)
    named = Start(good.modes, 0, {"other": 2})
    far = Start((Mode(np.full(2, np.inf), np.eye(2), 0.0, 0.0),), 0)
    for start, options, told in (
        (short, {}, "found one of 3"),
        (named, {}, "found one of {'other': 2}"),
        (far, {}, "are finite, found 0"),
        ({"y": np.zeros((20, 2))}, {}, "'x'"),
        ("host", {}, "knows of the posterior"),
        (3.0, {}, "found 3.0"),
        (good, {"num_samples": 0}, "num_samples"),
        (good, {"num_chains": 0}, "num_chains"),
        (good, {"num_warmup": -1}, "num_warmup"),
        (good, {"target_accept_prob": 1.5}, "target_accept_prob"),
    ):
        with pytest.raises(refused, match=told):
            chains_of(backend, model, start, **options)
    with pytest.raises(refused, match="evaluates all rows"):
        chains_of(backend, subsampling(backend), good, backend.array(np.zeros(40)))


def subsampling(backend: Any) -> Any:
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mean = host.sample("mean", dist.Normal(0.0, 1.0))
        with host.plate("rows", 40, subsample_size=10) as rows:
            host.sample("y", dist.Normal(mean, 1.0), obs=y[rows])

    return model


def test_a_fit_of_another_model_is_refused(backend: Any) -> None:
    fit = fit_of(backend, correlated(backend), exact=False)
    with pytest.raises(backend.public.ArgumentError, match="a fit of this model"):
        chains_of(backend, in_line(backend), fit)


def test_step_sizes_are_adapted_and_then_stay() -> None:
    """Of a Normal ten times as wide as it is taken for; acceptance to chance and adaptation."""
    generator, scale = np.random.default_rng(0), np.array([0.1, 0.2, 0.1])

    def density(z: np.ndarray) -> Any:
        return -0.5 * np.square(z / (10.0 * scale)).sum(-1), -z / np.square(10.0 * scale)

    chains = Tuned(density, scale, generator.normal(size=(8, 3)) * scale, 200, 0.7, generator)
    for _ in range(200):
        chains()
    step, chances = chains.step_size, [chains()[0].mean() for _ in range(200)]
    assert chains.step_size == step
    assert np.mean(chances) == pytest.approx(0.7, abs=0.1)
    # A quarter of the period that the density has, not of that which it was taken to have.
    assert 5.0 < chains.length / (math.pi / 2) < 20.0


def test_metrics_of_several_normals_are_local() -> None:
    """Their own widths, by weight, and not the distance between them."""
    near = Mode(np.zeros(2), np.array([[2.0, 0.0], [1.0, 1.0]]), math.log(3.0), 0.0)
    far = Mode(np.full(2, 50.0), 4.0 * np.eye(2), 0.0, 0.0)
    found = covariance_of(Start((near, far), 0))
    np.testing.assert_allclose(found, [[7.0, 1.5], [1.5, 5.5]])
    flat = Mode(np.zeros(2), np.ones(2), 0.0, 0.0)
    np.testing.assert_allclose(covariance_of(Start((near, flat), 0)), [3.25, 1.75])


def test_a_fit_whose_jumps_come_from_a_mixture_gives_the_covariance_of_its_draws() -> None:
    """Components of a mixture are no modes: they are more than the metrics, which is one."""
    modes = tuple(Mode(np.full(2, float(k)), np.eye(2), 0.0, 0.0) for k in range(3))
    proposal = Proposal(modes, np.full(3, 1.0 / 3.0))
    kernel = Kernel(lambda z: (z[:, 0], z), proposal, [np.eye(2)], np.ones(1), 0.5, is_mixture=True)
    draws = np.random.default_rng(0).normal(size=(200, 4, 2)) * np.array([1.0, 3.0])
    climbed = SimpleNamespace(
        positions=draws,
        sampled=SimpleNamespace(kernel=kernel),
        evidence=SimpleNamespace(modes=SimpleNamespace(number=2)),
        symmetry=None,
    )
    start = of_fit(cast(Any, SimpleNamespace(climbed=climbed)))
    np.testing.assert_allclose(np.sqrt(np.diag(covariance_of(start))), [1.0, 3.0], rtol=0.15)


def test_chains_from_a_fit_begin_with_labels_in_order() -> None:
    """Else their coordinates would be those of the distance between orders, which no chain goes."""
    exchange = Exchange((0, 1), (("x", 0),), (), "x", (0, 1), (0, 1))
    symmetry = Symmetry((exchange,), lambda z: {"x": z}, lambda values: values["x"])
    draws = np.array([-9.0, 9.0]) + np.random.default_rng(0).normal(size=(200, 4, 2))
    climbed = SimpleNamespace(
        positions=symmetry.shuffled(draws),
        sampled=None,
        evidence=SimpleNamespace(modes=SimpleNamespace(number=1)),
        symmetry=symmetry,
    )
    start = of_fit(cast(Any, SimpleNamespace(climbed=climbed)))
    np.testing.assert_allclose(np.sqrt(np.diag(covariance_of(start))), 1.0, rtol=0.15)
    assert symmetry.is_ordered(start.draw(16)).all()
