"""Stochastic gradient MCMC in both packages: stationary moments, cycles, broken steps, errors."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest

from ppl_ext.sgmcmc.energies import Energies
from ppl_ext.sgmcmc.schedules import warn_of_broken_draws
from tests.models import zoo
from tests.sgmcmc_support import (
    arguments,
    chains_of,
    hamiltonian_covariance,
    langevin_variance,
    require_moments,
)

MEAN, STD = np.array([1.0, -2.0], np.float32), np.array([0.5, 1.5], np.float32)


@pytest.fixture
def chains(backend: Any) -> Any:
    """Kernels of each package in turn."""
    return chains_of(backend.name)


@pytest.mark.parametrize("step_size", [0.2, pytest.param(0.05, marks=pytest.mark.slow)])
def test_langevin_has_the_variance_of_its_step_size(chains: Any, step_size: float) -> None:
    """The bias, α / (2 v) relative at first order, is there in full, at two step sizes."""
    kernel = chains.public.SGLD(chains.normal(MEAN, STD), step_size)
    run = chains.sample(kernel, num_samples=3000, warmup=500, num_chains=20)
    expected = langevin_variance(STD.astype(float) ** 2, step_size)
    assert expected[0] / STD[0] ** 2 - 1.0 == pytest.approx(step_size / (2 * 0.25), rel=0.7)
    require_moments(chains, run.draws["z"], MEAN, expected)


def test_noise_of_the_scores_adds_its_part(chains: Any) -> None:
    kernel = chains.public.SGLD(chains.normal(MEAN, STD), 0.1, estimator=chains.noisy(4.0))
    run = chains.sample(kernel, num_samples=2000, warmup=200, num_chains=20)
    expected = langevin_variance(STD.astype(float) ** 2, 0.1, noise=4.0)
    require_moments(chains, run.draws["z"], MEAN, expected)


def test_the_preconditioner_is_held_after_the_warm_up(chains: Any) -> None:
    kernel = chains.public.PSGLD(chains.normal(MEAN, STD), 0.1, decay=0.995)
    run = chains.sample(kernel, num_samples=3000, warmup=1000, num_chains=20)
    squares, weight = _dynamics(run)[:2]
    # Nothing has moved since the warm-up.
    short = chains.sample(kernel, num_samples=1, warmup=1000, num_chains=20)
    for one, two in zip(_dynamics(run), _dynamics(short), strict=True):
        np.testing.assert_array_equal(one, two)
    preconditioner = 1.0 / (1e-5 + np.sqrt((squares / weight).astype(float)))
    # The mean square of the score is near 1 / v, so that G is near the standard deviation.
    assert np.all(np.abs(preconditioner.mean(0) / STD - 1.0) < 0.2)
    draws = run.draws["z"]
    expected = np.mean(
        [langevin_variance(STD.astype(float) ** 2, 0.1, 0.0, row) for row in preconditioner], 0
    )
    require_moments(chains, draws, MEAN, expected)


#: Of a few steps, in which no chain settles.
short_warm_up = pytest.mark.filterwarnings("ignore:PSGLD holds its preconditioner")


def test_a_warm_up_that_has_not_settled_is_told(chains: Any) -> None:
    """From twenty and thirteen standard deviations away, with steps of 0.03, it takes 1,000."""
    public, start = chains.public, {"z": np.array([[11.0, 18.0]], np.float32)}

    def run(warmup: int, step_size: float = 0.03, **options: Any) -> Any:
        kernel = public.PSGLD(chains.normal(MEAN, STD), step_size, **options)
        return chains.sample(kernel, num_samples=2000, warmup=warmup, initial=start).draws["z"]

    words = r"on their way in . of 2 coordinates, most in site 'z'.* is (0\.9|1\.0)"
    with (
        pytest.warns(public.DoubtfulFitWarning, match="still on their way"),
        pytest.warns(public.ConvergenceWarning, match=words),
    ):
        away = run(200)
    # The draws take the rest of the way.
    assert np.abs((away.mean((0, 1)) - MEAN) / STD).max() > 1.0
    # Warnings are errors here: a warm-up that has settled gives none, and one that holds nothing
    # none of its own.
    settled = run(4000, 0.1)
    assert np.all(np.abs(settled.mean((0, 1)) - MEAN) < 0.5 * STD)
    with pytest.warns(public.DoubtfulFitWarning, match="still on their way"):
        run(10, adapt="always")


@short_warm_up
@pytest.mark.parametrize("adapt", ["warmup", "always"])
def test_preconditioned_steps_follow_the_recursion(chains: Any, adapt: str) -> None:
    """Without noise, by hand: G = 1 / (damping + the root of the mean square of the scores)."""
    options = {"decay": 0.8, "damping": 0.3, "adapt": adapt}
    kernel = chains.public.PSGLD(chains.normal(MEAN, STD), 0.1, **options)
    kernel._temperature = lambda step: 0.0
    start = {"z": np.array([[4.0, 1.0]], np.float32)}
    draws = chains.sample(kernel, num_samples=4, warmup=3, initial=start).draws["z"][0]
    z = start["z"][0].astype(float)
    squares, weight = np.zeros(2), 0.0
    for step in range(7):
        score = (MEAN - z) / STD**2
        if step < 3 or adapt == "always":
            squares, weight = 0.8 * squares + 0.2 * score**2, 0.8 * weight + 0.2
        z = z + 0.1 / (0.3 + np.sqrt(squares / weight)) * score
        if step >= 3:
            np.testing.assert_allclose(draws[step - 3], z, rtol=1e-5)


def test_momentum_is_exact_for_a_normal_target_at_a_long_step(chains: Any) -> None:
    """With mass and friction of their own, and a step that the Euler scheme would not survive."""
    mass = np.array([4.0, 0.5], np.float32)
    kernel = chains.public.SGHMC(
        chains.normal(MEAN, STD), 0.7, friction=3.0, mass=mass, num_steps=2
    )
    run = chains.sample(kernel, num_samples=3000, warmup=200, num_chains=20)
    require_moments(chains, run.draws["z"], MEAN, STD.astype(float) ** 2)


@pytest.mark.in_one_package
def test_friction_takes_out_the_heat_of_noisy_scores(chains: Any) -> None:
    """The stationary covariance of the recursion; without friction there is none."""
    model, noise, step = chains.normal(MEAN[:1], STD[:1]), 20.0, 0.2
    kernel = chains.public.SGHMC(model, step, friction=2.0, estimator=chains.noisy(noise))
    run = chains.sample(kernel, num_samples=3000, warmup=200, num_chains=20)
    expected = hamiltonian_covariance(0.25, step, 2.0, 1.0, noise)[0, 0]
    assert 1.5 < expected / 0.25 < 3.0
    require_moments(chains, run.draws["z"], MEAN[:1], expected)
    naive = chains.public.SGHMC(model, step, friction=1e-6, estimator=chains.noisy(noise))
    with pytest.warns(chains.public.DoubtfulFitWarning, match="have run off"):
        run = chains.sample(naive, num_samples=3000, warmup=200, num_chains=20)
    heated = run.draws["z"][:, -500:].var()
    assert heated > 100 * 0.25


@pytest.mark.in_one_package
def test_minibatches_of_a_conjugate_normal(chains: Any) -> None:
    """Rows with replacement add N² / B times the rows' variance; a control variate takes all."""
    model, args, options = arguments(chains, "conjugate_normal_subsampled")
    rows = zoo.normal_rows()
    (moment,) = zoo.ZOO["conjugate_normal"].moments()
    variance, step = np.asarray(moment.std) ** 2, 0.02
    noise = 12**2 / 5 * rows.var()
    public = chains.public
    plain = public.SGLD(model, step, estimator=public.Minibatch("replacement"))
    run = chains.sample(plain, args, options, num_samples=3000, warmup=200, num_chains=20)
    require_moments(chains, run.draws["mu"], moment.mean, langevin_variance(variance, step, noise))
    # The scores of a Normal mean differ by what does not depend on the row.
    anchored = public.SGLD(model, step, estimator=public.ControlVariate({"mu": np.float32(0.3)}))
    run = chains.sample(anchored, args, options, num_samples=3000, warmup=200, num_chains=20)
    require_moments(chains, run.draws["mu"], moment.mean, langevin_variance(variance, step))


@pytest.mark.in_one_package
@pytest.mark.parametrize("anchored", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_batches_from_a_list(chains: Any, anchored: bool) -> None:
    model, args, _ = arguments(chains, "logistic_regression_batch_arguments")
    size = len(args[0]) // 2
    batches = [tuple(a[k * size : (k + 1) * size] for a in args) for k in range(2)]
    estimator = chains.public.BatchArguments(batches)
    if anchored:
        kernel = chains.public.SGHMC(model, 0.1, friction=10.0, estimator=estimator, num_steps=5)
        run = chains.sample(kernel, batches[0], num_samples=300, warmup=50, num_chains=12)
        mode = {name: value.mean((0, 1)).astype(np.float32) for name, value in run.draws.items()}
        estimator = chains.public.ControlVariate(mode, batches=batches)
    kernel = chains.public.SGHMC(model, 0.1, friction=10.0, estimator=estimator, num_steps=5)
    run = chains.sample(kernel, batches[0], num_samples=300, warmup=50, num_chains=12)
    _near_logistic(chains, run.draws)


@pytest.mark.in_one_package
@pytest.mark.parametrize("estimator", ["minibatch", pytest.param("svrg", marks=pytest.mark.slow)])
def test_logistic_regression_with_minibatches(chains: Any, estimator: str) -> None:
    model, args, options = arguments(chains, "logistic_regression_subsampled")
    chosen = chains.public.SVRG(4) if estimator == "svrg" else None
    kernel = chains.public.SGHMC(model, 0.1, friction=10.0, estimator=chosen)
    run = chains.sample(kernel, args, options, num_samples=1500, warmup=300, num_chains=10)
    _near_logistic(chains, run.draws)


def _near_logistic(chains: Any, draws: dict[str, Any]) -> None:
    """Within Monte Carlo error and 0.1 standard deviations, the heat of the minibatches' noise."""
    for moment in zoo.ZOO["logistic_regression"].moments():
        values = moment.statistic(draws)
        flat = values.reshape(values.shape[0] * values.shape[1], -1)
        size = chains.effective_sample_size(values.reshape(*values.shape[:2], -1))
        assert np.all(size > 200), size
        error = 4.0 / np.sqrt(size)
        bias = np.abs(flat.mean(0) - np.ravel(moment.mean)) / np.ravel(moment.std)
        assert np.all(bias < 0.1 + error), (moment.name, bias)
        ratio = np.abs(flat.std(0) / np.ravel(moment.std) - 1.0)
        assert np.all(ratio < 0.1 + error), (moment.name, ratio)


@pytest.mark.in_one_package
def test_supports_that_depend_on_other_sites(chains: Any) -> None:
    model, args, options = arguments(chains, "dependent_uniform")
    kernel = chains.public.SGHMC(model, 0.3, friction=1.0)
    run = chains.sample(kernel, args, options, num_samples=3000, warmup=300, num_chains=10)
    assert np.all((run.draws["b"] > 0) & (run.draws["b"] < run.draws["a"]))
    for moment in zoo.ZOO["dependent_uniform"].moments():
        values = moment.statistic(run.draws)
        size = chains.effective_sample_size(values.reshape(*values.shape[:2], -1))
        error = 0.05 + 4.0 / np.sqrt(size)
        assert np.all(np.abs(values.mean((0, 1)) - moment.mean) / moment.std < error), moment.name


@pytest.mark.in_one_package
def test_cycles_find_both_modes_where_langevin_dynamics_finds_one(chains: Any) -> None:
    """Ten chains from one mode, 4,000 steps each."""
    model, start = chains.two_modes(5.0), {"z": np.full(10, 5.0, np.float32)}
    cyclical = chains.public.CyclicalSGLD(model, 1.5, cycle_length=200, exploration=0.75)
    assert cyclical.draws_per_cycle == 50
    run = chains.sample(cyclical, num_samples=1000, num_chains=10, initial=start)
    assert np.sum((run.draws["z"].min(1) < -3) & (run.draws["z"].max(1) > 3)) >= 9
    np.testing.assert_array_equal(run.figures["cycle"][0], np.repeat(np.arange(20), 50))
    # Draws are of the modes, not of the way between them.
    assert np.mean(np.abs(np.abs(run.draws["z"]) - 5.0) < 3.0) > 0.97
    plain = chains.public.SGLD(model, 0.05)
    run = chains.sample(plain, num_samples=4000, num_chains=10, initial=start)
    assert np.sum(run.draws["z"].min(1) < -3) <= 1


def test_cycles_with_momentum_find_both_modes(chains: Any) -> None:
    """Momentum does not heat up at long steps, so that the exploring noise is made hotter."""
    model, start = chains.two_modes(5.0), {"z": np.full(10, 5.0, np.float32)}
    options = {"exploration": 0.5, "exploration_temperature": 6.0}
    kernel = chains.public.CyclicalSGHMC(model, 0.5, 200, **options)
    run = chains.sample(kernel, num_samples=1000, num_chains=10, initial=start)
    assert np.sum((run.draws["z"].min(1) < -3) & (run.draws["z"].max(1) > 3)) >= 9
    np.testing.assert_array_equal(run.figures["cycle"][0], np.repeat(np.arange(10), 100))
    # The square of the step falls along the cosine, and draws of the cold half are of the modes.
    np.testing.assert_allclose(float(kernel.step_size(50)) ** 2, 0.125 * (1.0 + np.sqrt(0.5)))
    cold = run.draws["z"].reshape(10, 10, 100)[:, :, 50:]
    assert np.mean(np.abs(np.abs(cold) - 5.0) < 3.0) > 0.97
    plain = chains.public.SGHMC(model, 0.5)
    run = chains.sample(plain, num_samples=2000, num_chains=10, initial=start)
    assert np.sum(run.draws["z"].min(1) < -3) <= 1


@pytest.mark.in_one_package
@pytest.mark.parametrize("noise", [0.0, 4.0])
def test_replicas_give_modes_their_masses(chains: Any, noise: float) -> None:
    """One to nine, five standard deviations apart, all chains from the mode with one."""
    model, start = chains.two_modes(2.5, weight=0.1), {"z": np.full(30, 2.5, np.float32)}
    estimator = chains.noisy_energies(noise) if noise else None
    options = {"num_steps": 5, "estimator": estimator}
    kernel = chains.public.ReplicaExchangeSGLD(model, 0.05, (1.0, 2.0, 4.0), **options)
    run = chains.sample(kernel, num_samples=800, warmup=200, num_chains=30, initial=start)
    z, state = run.draws["z"], _state(run)
    assert abs(np.mean(z > 0.0) - 0.1) < 0.03
    # Exchanges that were too frequent would make draws too hot; the steps heat by 2.5 %.
    grid = np.linspace(-10.0, 0.0, 2001)
    density = 0.1 * np.exp(-0.5 * (grid - 2.5) ** 2) + 0.9 * np.exp(-0.5 * (grid + 2.5) ** 2)
    mean = np.average(grid, weights=density)
    expected = np.average((grid - mean) ** 2, weights=density)
    assert abs(z[z < 0.0].var() / expected - 1.025) < 0.05
    rates = kernel.exchange_rates(state)
    assert rates.shape == (30, 2)
    assert np.all((rates > 0.2) & (rates < 0.95))
    # Half the variance of one energy, of two each.
    variance = np.asarray(state.replicas["variance"]).mean()
    assert variance == pytest.approx(noise / 2.0, rel=0.1, abs=1e-6)


def test_replicas_have_the_variance_of_their_temperature(chains: Any) -> None:
    temperatures, start = (1.0, 1.5, 3.0), {"z": np.tile(MEAN, (800, 1))}
    kernel = chains.public.ReplicaExchangeSGLD(chains.normal(MEAN, STD), 0.05, temperatures)
    run = chains.sample(kernel, num_samples=40, num_chains=800, initial=start)
    hot = np.asarray(_state(run).replicas["z"], float)
    cold = langevin_variance(STD.astype(float) ** 2, 0.05)
    for temperature, z in zip(
        temperatures, (run.draws["z"][:, -1], *hot.swapaxes(0, 1)), strict=True
    ):
        ratio = z.var(0) / (temperature * cold)
        assert np.all(np.abs(ratio - 1.0) < 4.0 * np.sqrt(2.0 / 800)), (temperature, ratio)


@pytest.mark.slow
def test_replicas_with_minibatches(chains: Any) -> None:
    """Anchored scores are exact for a Normal mean, and energies are not."""
    model, args, options = arguments(chains, "conjugate_normal_subsampled")
    (moment,) = zoo.ZOO["conjugate_normal"].moments()
    estimator = chains.public.ControlVariate({"mu": np.float32(0.3)})
    kernel = chains.public.ReplicaExchangeSGLD(
        model, 0.02, (1.0, 2.0, 4.0), num_steps=4, estimator=estimator
    )
    run = chains.sample(kernel, args, options, num_samples=1500, warmup=200, num_chains=20)
    expected = langevin_variance(np.asarray(moment.std) ** 2, 0.02)
    require_moments(chains, run.draws["mu"], moment.mean, expected)
    assert np.asarray(_state(run).replicas["variance"]).min() > 0.0


def test_exploring_without_noise_is_gradient_ascent(chains: Any) -> None:
    kernel = chains.public.CyclicalSGLD(
        chains.normal(MEAN, STD), 0.1, 10, exploration=0.9, exploration_temperature=0.0
    )
    start = {"z": np.array([[4.0, 1.0]], np.float32)}
    run = chains.sample(kernel, num_samples=1, initial=start)
    z = start["z"][0].astype(float)
    steps = 0.05 * (np.cos(np.pi * np.arange(10) / 10) + 1.0)
    for step in steps[:9]:
        z = z + step * (MEAN - z) / STD**2
    noise = np.sqrt(2.0 * steps[9])
    last = z + steps[9] * (MEAN - z) / STD**2
    assert np.all(np.abs(run.draws["z"][0, 0] - last) < 5.0 * noise)
    assert np.all(np.abs(run.draws["z"][0, 0] - last) > 1e-3 * noise)


def test_a_step_that_is_not_finite_is_not_taken(chains: Any) -> None:
    kernel = chains.public.SGHMC(chains.normal(MEAN, STD), 0.1, estimator=chains.broken())
    with told(chains, "3 of 18 steps"):
        run = chains.sample(kernel, num_samples=9, num_chains=2)
    expected = np.zeros((2, 9), bool)
    expected[1, 2::3] = True
    np.testing.assert_array_equal(run.figures["diverging"], expected)
    draws = run.draws["z"]
    assert np.isfinite(draws).all()
    same = np.all(draws[:, 1:] == draws[:, :-1], axis=-1)
    np.testing.assert_array_equal(same, expected[:, 1:])
    np.testing.assert_array_equal(_state(run).num_diverging, [0, 3])
    # A draw of several steps tells of each.
    kernel = chains.public.SGHMC(
        chains.normal(MEAN, STD), 0.1, estimator=chains.broken(), num_steps=4
    )
    with told(chains, "4 of 24 steps"):
        run = chains.sample(kernel, num_samples=3, num_chains=2)
    np.testing.assert_array_equal(run.figures["diverging"], [[False] * 3, [True] * 3])


def test_steps_from_where_the_density_is_not_finite_are_told(chains: Any) -> None:
    """A score of zero leads on as anywhere, but the draw is none of the posterior's."""
    host, dist, xp = chains.backend.host, chains.backend.dist, chains.backend.xp

    def model() -> None:
        z = host.sample("z", dist.Normal(0.0, 1.0))
        zero = chains.backend.array(0.0)
        host.factor("positive", xp.where(z > 0.0, zero, zero - np.inf))

    kernel = chains.public.SGLD(model, 0.1)
    warned = chains.public.DivergenceWarning, chains.public.DoubtfulFitWarning
    with pytest.warns(warned):
        run = chains.sample(kernel, num_samples=40, warmup=5)
    outside = run.draws["z"][0, :-1] <= 0.0
    assert outside.any() and not outside.all()
    np.testing.assert_array_equal(run.figures["diverging"][0, 1:], outside)


def test_draws_where_the_density_overflows_are_marked(chains: Any) -> None:
    """The score of a Normal is finite where its square is not, and leads back."""
    start = {"z": np.full((1, 2), 1e25, np.float32)}
    kernel = chains.public.SGLD(chains.normal(MEAN, 0.0 * STD + 1.0), 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = chains.sample(kernel, num_samples=120, initial=start)
    before = np.concatenate([start["z"], run.draws["z"][0, :-1].astype(np.float32)])
    with np.errstate(over="ignore"):
        overflows = ~np.isfinite((before**2).sum(1))
    assert 5 < overflows.sum() < 60
    np.testing.assert_array_equal(run.figures["diverging"][0], overflows)


def test_overflows_of_the_warm_up_do_not_speak_against_draws(chains: Any) -> None:
    start = {"z": np.full((1, 2), 1e25, np.float32)}
    kernel = chains.public.SGLD(chains.normal(MEAN, 0.0 * STD + 1.0), 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = chains.sample(kernel, num_samples=150, warmup=450, initial=start)
    assert not run.figures["diverging"].any()
    assert not _judgement(chains, kernel, run).reasons


def test_a_chain_that_runs_off_is_told(chains: Any) -> None:
    """One step leads so far that every later one is not finite, and the noise overflows."""
    backend = chains.backend
    y = np.linspace(-3.0, 3.0, 200)

    def model(y: Any) -> None:
        scale = backend.host.sample("scale", backend.dist.LogNormal(backend.array(0.0), 1.0))
        with backend.host.plate("rows", len(y)):
            backend.host.sample("y", backend.dist.Normal(0.0, scale), obs=y)

    kernel = chains.public.SGLD(model, 10.0)
    warned = chains.public.DivergenceWarning, chains.public.DoubtfulFitWarning
    with pytest.warns(warned) as heard:
        run = chains.sample(
            kernel, (backend.array(y),), num_samples=20, initial={"scale": np.array([-1.0])}
        )
    broken = ~np.isfinite(run.draws["scale"])
    assert broken.any()
    assert any("not finite" in str(each.message) for each in heard)
    found = {"scale": run.draws["scale"].reshape(-1)}
    with pytest.warns(chains.public.DoubtfulFitWarning, match=f"{broken.sum()} of 20 draws"):
        warn_of_broken_draws("SGLD", found)


def test_draws_that_spread_beyond_a_posterior_are_told(chains: Any) -> None:
    """A chain on its way from 600 standard deviations; from near, warnings are errors here."""
    kernel = chains.public.SGHMC(chains.normal(MEAN, STD), 0.02)
    away, near = np.array([[300.0, -2.0], MEAN]), np.stack([MEAN, MEAN])
    with pytest.warns(chains.public.DoubtfulFitWarning, match="1 of 2 chains have run off"):
        run = chains.sample(kernel, num_samples=300, warmup=9, num_chains=2, initial={"z": away})
    found = _judgement(chains, kernel, run)
    assert found.doubtful and found.draws == 600
    # Without a warm-up the way is asked for: it is judged, and not warned of.
    run = chains.sample(kernel, num_samples=300, num_chains=2, initial={"z": away})
    assert _judgement(chains, kernel, run).doubtful
    run = chains.sample(kernel, num_samples=300, num_chains=2, initial={"z": near})
    found = _judgement(chains, kernel, run)
    # In so few steps the chains do not agree on places.
    assert not any("run off" in each for each in found.reasons)
    assert "standard deviation of" in found.told[0] and "minibatches make" not in str(found)
    # The same chain is right once its warm-up takes the way, and few draws are not judged.
    chains.sample(kernel, num_samples=300, warmup=2000, num_chains=1, initial={"z": away[:1]})
    run = chains.sample(kernel, num_samples=20, num_chains=2, initial={"z": near})
    assert "Not judged" in _judgement(chains, kernel, run).told[0]


@pytest.mark.parametrize("name", ["SGLD", "PSGLD", "SGHMC"])
def test_the_heat_of_minibatches_is_told(chains: Any, name: str) -> None:
    """A mean of 200 rows by 5: the scores' noise is known, and the variance that it makes."""
    backend, public = chains.backend, chains.public
    y = np.random.default_rng(1).normal(1.0, 2.0, 200)

    def model(y: Any) -> None:
        mean = backend.host.sample("mean", backend.dist.Normal(0.0, 10.0))
        with backend.host.plate("rows", len(y), subsample_size=5) as rows:
            backend.host.sample("y", backend.dist.Normal(mean, 2.0), obs=y[rows])

    noise = (200.0**2 / 5.0 - 200.0) * y.var() / 2.0**4  # of sums without replacement
    steps = {"SGLD": (0.002, 0.0002), "PSGLD": (0.1, 0.01), "SGHMC": (0.02, 0.001)}[name]
    friction = {"friction": 3.0} if name == "SGHMC" else {}
    heats = []
    for step, doubtful in zip(steps, (True, False), strict=True):
        kernel = getattr(public, name)(model, step, **friction, start={"mean": np.float32(1.0)})
        options = {"num_samples": 300, "warmup": 400, "num_chains": 30}
        if doubtful:
            with pytest.warns(public.DoubtfulFitWarning, match="noise of minibatches.*'mean'"):
                run = chains.sample(kernel, (backend.array(y),), **options)
            widened = run.draws["mean"].var() * (200.0 / 4.0 + 0.01)
        else:
            with warnings.catch_warnings():
                # Steps are too short for chains to agree.
                warnings.simplefilter("ignore", public.DoubtfulFitWarning)
                run = chains.sample(kernel, (backend.array(y),), **options)
        found = _judgement(chains, kernel, run)
        assert any("noise of minibatches" in each for each in found.reasons) == doubtful
        line = next(each for each in found.reasons + found.told if "makes the" in each)
        heats.append(float(line.split("some ")[1].split(" times")[0]) - 1.0)
    # Of so many scores the variance is known to a tenth or so.
    per_step = {
        "SGLD": 0.5 * noise,
        "PSGLD": 0.5 * noise / np.sqrt(noise + 200.0 / 4.0),
        "SGHMC": noise / (2.0 * 3.0),
    }[name]
    np.testing.assert_allclose(heats, per_step * np.array(steps), rtol=0.35)
    assert widened == pytest.approx(1.0 + heats[0], rel=0.35)


@pytest.mark.parametrize("name", ["SGHMC", "MCLMC"])
def test_chains_in_modes_of_equal_height_do_not_agree(chains: Any, name: str) -> None:
    """Of which log densities say nothing; of the weights of a network places say nothing."""
    backend, public = chains.backend, chains.public

    def model() -> None:
        halves = backend.dist.Categorical(backend.array(np.array([0.5, 0.5])))
        parts = backend.dist.Normal(backend.array(np.array([-9.0, 9.0])), 1.0)
        place = backend.host.sample("place", backend.dist.MixtureSameFamily(halves, parts))
        backend.host.sample("y", backend.dist.Normal(0.0 * place, 1.0), obs=backend.array(0.0))

    options = {"warmup": 300, "num_samples": 400, "num_chains": 4}
    for sides, apart in (([9.0] * 4, False), ([9.0, -9.0] * 2, True)):
        kernel = getattr(public, name)(model, *([0.3] if name == "SGHMC" else []))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", public.DoubtfulFitWarning)
            run = chains.sample(kernel, initial={"place": np.array(sides)}, **options)
        found = _judgement(chains, kernel, run)
        assert any("R-hat of 'place' is" in each for each in found.reasons) == apart, found
        if apart:
            kernel._is_network = True
            assert kernel._doubts(run.draws["place"].reshape(4, -1, 1), None) == ()


def test_chains_beyond_bounds_are_told(chains: Any) -> None:
    backend, public = chains.backend, chains.public

    def model(y: Any) -> None:
        slope = backend.host.sample("slope", backend.dist.Normal(0.0, 1.0))
        with backend.host.plate("rows", 2):
            rate = 0.5 + slope * backend.array(np.array([1.0, -1.0]))
            backend.host.sample("y", backend.dist.Poisson(rate), obs=y)

    kernel = public.SGLD(model, 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", public.DoubtfulFitWarning)
        run = chains.sample(
            kernel, (backend.array(np.zeros(2)),), num_samples=200, warmup=100, num_chains=2
        )
    found = _judgement(chains, kernel, run)
    assert any("parameter 'rate' of 'y' lies out of the bounds" in each for each in found.reasons)


def test_pyros_own_chains_are_judged_once() -> None:
    import pyro.infer

    chains = chains_of("pyro")
    kernel = chains.public.SGHMC(chains.normal(MEAN, STD), 0.02, start={"z": MEAN + 300.0})
    mcmc = pyro.infer.MCMC(kernel, 200, 9, disable_progbar=True)
    with pytest.warns(chains.public.DoubtfulFitWarning, match="still on their way") as said:
        mcmc.run()
    assert sum(each.category is chains.public.DoubtfulFitWarning for each in said) == 1
    assert kernel.judgement.doubtful


def _judgement(chains: Any, kernel: Any, run: Any) -> Any:
    return kernel.judge() if chains.backend.is_pyro else kernel.judge(run.mcmc)


def test_the_noise_of_minibatches_is_no_spread(backend: Any) -> None:
    """Sums that go with the chain are those over all draws, in each package's arrays."""
    generator = np.random.default_rng(0)
    values = generator.normal(50.0, 1.0, (3, 400)) + np.array([0.0, 30.0, 0.0])[
        :, None
    ] * generator.normal(size=(3, 400))
    values[2] += np.linspace(0.0, 100.0, 400)
    energies = Energies.none(backend.array(np.zeros(3)))
    cycle = backend.array(np.array([False] * 3))
    for energy in np.concatenate([np.full((3, 50), 1e6), values], 1).T:
        energies = energies.after(backend.array(energy), 100, noisy=True)
        energies = energies.after(backend.array(energy + 1e6), 100, cycle)
    whole = Energies.of(values, noisy=True)
    assert float(np.asarray(energies.seen)[0]) == 900.0
    for one, two in zip(energies[1:], whole[1:], strict=True):
        np.testing.assert_allclose(np.asarray(one), two, rtol=1e-3)
    # Independent draws differ by no more than noise would; those of a trend by 29 nats.
    assert whole.variance()[0] < 0.0 and whole.variance()[1] < 0.0
    assert np.sqrt(whole.variance()[2]) == pytest.approx(100.0 / np.sqrt(12.0), rel=0.02)
    np.testing.assert_array_equal(np.asarray(energies.beyond(20)), [False, False, True])
    np.testing.assert_array_equal(np.asarray(energies.beyond(60)), [False] * 3)
    # Exact energies have no noise that could explain the second chain's.
    np.testing.assert_array_equal(Energies.of(values).beyond(20), [False, True, True])
    values[0, 7] = np.inf
    assert Energies.of(values, noisy=True).beyond(20)[0]


def told(chains: Any, words: str) -> Any:
    """See that steps that are not finite are told: by NumPyro the first, since its MCMC tells
    kernels of no end, by Pyro their number."""
    first = r"Step \d+ of SGHMC was not finite"
    match = words if chains.backend.is_pyro else first
    return pytest.warns(chains.public.DivergenceWarning, match=match)


def _state(run: Any) -> Any:
    """The state of the chains at the end."""
    return run.mcmc.kernel.state if hasattr(run.mcmc, "kernel") else run.mcmc.last_state


def _dynamics(run: Any) -> list[np.ndarray]:
    """What PSGLD keeps of the scores at the end, mean squares and their weight first."""
    found = _state(run).dynamics
    return [np.asarray(each) for each in (found.values() if isinstance(found, dict) else found)]


def test_the_potential_energy_is_that_of_the_tempered_density(chains: Any) -> None:
    model, args, _ = arguments(chains, "conjugate_normal")
    kernel = chains.public.SGLD(model, 1e-3, likelihood_temperature=2.0)
    run = chains.sample(kernel, args, num_samples=1, initial={"mu": np.array([0.7], np.float32)})
    rows = zoo.normal_rows()
    log_prior = -0.5 * (0.7 / 3.0) ** 2 - np.log(3.0) - 0.5 * np.log(2 * np.pi)
    log_likelihood = -0.5 * np.sum((rows - 0.7) ** 2) - 6.0 * np.log(2 * np.pi)
    energy = np.asarray(_state(run).potential_energy).reshape(-1)
    np.testing.assert_allclose(energy, [-(log_prior + log_likelihood / 2.0)], rtol=1e-5)


def test_chains_draw_rows_of_their_own(chains: Any) -> None:
    """From one start and without noise, chains differ by their minibatches alone."""
    public = chains.public
    model, args, options = arguments(chains, "logistic_regression_subsampled")
    given, rows, _ = arguments(chains, "logistic_regression_batch_arguments")
    batches = [tuple(a[k * 15 : (k + 1) * 15] for a in rows) for k in range(4)]
    anchor = {"w": np.ones(3, np.float32), "b": np.float32(1.0)}
    start = {"w": np.zeros((3, 3), np.float32), "b": np.zeros(3, np.float32)}
    for estimator in (None, public.SVRG(50), public.ControlVariate(anchor)):
        kernel = public.SGLD(model, 0.01, estimator=estimator)
        kernel._temperature = lambda step: 0.0
        run = chains.sample(kernel, args, options, num_samples=9, num_chains=3, initial=start)
        assert len(np.unique(run.draws["b"][:, -1])) == 3
    for estimator in (
        public.BatchArguments(batches),
        public.ControlVariate(anchor, batches=batches),
    ):
        kernel = public.SGLD(given, 0.01, estimator=estimator)
        kernel._temperature = lambda step: 0.0
        run = chains.sample(kernel, batches[0], num_samples=9, num_chains=3, initial=start)
        # All four batches come up in the first round, in an order that is likely to differ.
        assert len(np.unique(run.draws["b"][:, 1])) > 1
    with pytest.raises(chains.public.ArgumentError, match="SAGA, which draws one set"):
        kernel = chains.public.SGLD(model, 0.01, estimator=chains.public.SAGA())
        chains.sample(kernel, args, options, num_samples=1, num_chains=3)


def test_thinning_keeps_every_other_draw(chains: Any) -> None:
    start = {"z": np.zeros((1, 2), np.float32)}
    kernel = chains.public.SGLD(chains.normal(MEAN, STD), 0.1)
    every = chains.sample(kernel, num_samples=8, warmup=2, initial=start).draws["z"]
    kept = chains.sample(kernel, num_samples=4, warmup=2, thinning=2, initial=start).draws["z"]
    np.testing.assert_allclose(kept, every[:, 1::2], rtol=1e-6)
    cyclical = chains.public.CyclicalSGLD(chains.normal(MEAN, STD), 0.1, 4, exploration=0.25)
    labels = chains.sample(cyclical, num_samples=6, thinning=2).figures["cycle"][0]
    np.testing.assert_array_equal(labels, np.repeat(np.arange(4), 3)[1::2])


def test_a_kernel_serves_other_data(chains: Any) -> None:
    """Longer data are taken whole, and a run before keeps its own."""
    model, (rows,), options = arguments(chains, "conjugate_normal_subsampled")
    estimator = chains.public.ControlVariate({"mu": np.float32(1.0)})
    kernel = chains.public.SGLD(model, 1e-7, estimator=estimator)
    first = chains.sample(kernel, (rows[:7],), options, num_samples=2)
    again = chains.sample(kernel, (rows,), options, num_samples=2)
    assert kernel.target.plates["N"].size == 12
    assert chains.public.to_arviz(first.mcmc).log_likelihood["y"].shape == (1, 2, 7)
    assert chains.public.to_arviz(again.mcmc).log_likelihood["y"].shape == (1, 2, 12)


def test_kernels_can_be_sent_to_other_processes(chains: Any) -> None:
    public = chains.public
    for step in (0.1, public.polynomial_decay(0.1), public.cosine_cycles(0.1, 5)):
        copy = pickle.loads(pickle.dumps(public.SGLD(print, step)))
        assert float(copy.step_size(3)) == float(public.SGLD(print, step).step_size(3))


#: Kernels that keep more than positions, and their options.
RESUMED = [("PSGLD", ()), ("ReplicaExchangeSGLD", ((1.0, 2.0, 4.0),))]


@short_warm_up
@pytest.mark.parametrize(("name", "given"), RESUMED)
def test_numpyro_resumes_to_the_last_bit(name: str, given: tuple[Any, ...]) -> None:
    import jax
    from numpyro.infer import MCMC

    chains = chains_of("numpyro")
    model, args, options = arguments(chains, "conjugate_normal_subsampled")
    kernel = getattr(chains.public, name)(model, 0.01, *given)

    def mcmc(num_samples: int) -> Any:
        return MCMC(kernel, num_warmup=10, num_samples=num_samples, progress_bar=False)

    whole = mcmc(20)
    whole.run(jax.random.PRNGKey(0), *args, **options)
    first = mcmc(10)
    first.run(jax.random.PRNGKey(0), *args, **options)
    saved = pickle.loads(pickle.dumps(first.last_state))
    second = mcmc(10)
    second.post_warmup_state = saved
    second.run(saved.rng_key, *args, **options)
    joined = np.concatenate([first.get_samples()["mu"], second.get_samples()["mu"]])
    np.testing.assert_array_equal(joined, whole.get_samples()["mu"])


@short_warm_up
@pytest.mark.parametrize(("name", "given"), RESUMED)
def test_pyro_resumes_to_the_last_bit(tmp_path: Any, name: str, given: tuple[Any, ...]) -> None:
    import torch

    chains = chains_of("pyro")
    model, args, options = arguments(chains, "conjugate_normal_subsampled")

    def kernel() -> Any:
        return getattr(chains.public, name)(model, 0.01, *given)

    whole = chains.sample(kernel(), args, options, num_samples=20, warmup=10, num_chains=2)
    first = chains.sample(kernel(), args, options, num_samples=10, warmup=10, num_chains=2)
    torch.save(first.mcmc.kernel.state_dict(), tmp_path / "chains.pt")
    state = torch.load(tmp_path / "chains.pt", weights_only=False)
    resumed = kernel()
    resumed.load_state_dict(state)
    second = chains.sample(resumed, args, options, num_samples=10, num_chains=2, seed=5)
    joined = np.concatenate([first.draws["mu"], second.draws["mu"]], 1)
    np.testing.assert_array_equal(joined, whole.draws["mu"])
    with pytest.raises(
        chains.public.ArgumentError, match=f"Expected a state of SGLD, found {name}"
    ):
        chains.public.SGLD(model, 0.01).load_state_dict(state)
    other = kernel()
    other.load_state_dict(state)
    with pytest.raises(chains.public.ArgumentError, match="'chains': 2"):
        chains.sample(other, args, options, num_samples=1, num_chains=3)


def test_pyros_saved_state_stays_as_it_was_saved() -> None:
    """SAGA's table is written into by whoever goes on: the chain itself, and one from the state."""
    chains = chains_of("pyro")
    host, dist = chains.backend.host, chains.backend.dist
    y = chains.backend.array(np.linspace(0.0, 3.0, 12))

    def model(y: Any) -> None:
        z = host.sample("z", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(y), subsample_size=3) as rows:
            # Scores of a square differ from row to row, and so do entries of the table.
            host.sample("y", dist.Normal(z**2, 1.0), obs=y[rows])

    def kernel() -> Any:
        return chains.public.SGLD(model, 0.01, estimator=chains.public.SAGA())

    first = chains.sample(kernel(), (y,), num_samples=10).mcmc.kernel
    state = first.state_dict()
    expected = [first.draw().z.item() for _ in range(10)]
    for _ in range(2):
        resumed = kernel()
        resumed.load_state_dict(state)
        found = chains.sample(resumed, (y,), num_samples=10).draws["z"]
        np.testing.assert_array_equal(found[0], expected)


def test_pyros_own_mcmc_runs_the_kernels(monkeypatch: Any) -> None:
    import pyro
    import torch
    from pyro.infer import MCMC

    chains = chains_of("pyro")
    model, args, options = arguments(chains, "dependent_uniform")
    pyro.set_rng_seed(0)
    start = {"a": torch.tensor([0.3, -0.3]), "b": torch.tensor([0.1, 0.2])}
    kernel = chains.public.SGLD(model, 1e-8)
    # One core is left for the main process; with chains in processes this would test less.
    monkeypatch.setattr(torch.multiprocessing, "cpu_count", lambda: 2)
    with pytest.warns(UserWarning, match="sequentially"):
        mcmc = MCMC(kernel, 4, 2, start, num_chains=2)
    mcmc.run(*args, **options)
    draws = mcmc.get_samples(group_by_chain=True)
    assert draws["a"].shape == (2, 4)
    # Steps this short leave the chains at their starts: b is uniform below a.
    a = torch.tensor([0.3, -0.3]).exp()
    torch.testing.assert_close(draws["a"][:, 0], a, rtol=2e-3, atol=0.0)
    b = torch.tensor([0.1, 0.2]).sigmoid() * a
    torch.testing.assert_close(draws["b"][:, 0], b, rtol=2e-3, atol=0.0)
    assert set(mcmc.diagnostics()) >= {"a", "b", "divergences", "step_size", "cycle"}


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_numpyros_other_ways_of_running_chains() -> None:
    """The same keys give the same chains, however they are run."""
    import jax
    from numpyro.infer import MCMC

    chains = chains_of("numpyro")
    kernel = chains.public.SGLD(chains.normal(MEAN, STD), 0.1)
    draws = []
    for method in ("vectorized", "sequential", jax.vmap):
        mcmc = MCMC(
            kernel,
            num_warmup=2,
            num_samples=5,
            num_chains=3,
            chain_method=method,
            progress_bar=False,
            jit_model_args=method == "vectorized",
        )
        mcmc.run(jax.random.key(1))
        draws.append(np.asarray(mcmc.get_samples(group_by_chain=True)["z"]))
    np.testing.assert_allclose(draws[1], draws[0], rtol=1e-5)
    np.testing.assert_allclose(draws[2], draws[0], rtol=1e-5)


def test_what_arviz_gets(chains: Any) -> None:
    model, args, options = arguments(chains, "logistic_regression_subsampled")
    kernel = chains.public.CyclicalSGLD(model, 0.05, 10)
    run = chains.sample(kernel, args, options, num_samples=6, num_chains=2)
    data = chains.public.to_arviz(run.mcmc)
    assert dict(data.posterior.sizes)["chain"] == 2
    assert dict(data.posterior.sizes)["draw"] == 6
    for name, values in run.draws.items():
        np.testing.assert_allclose(data.posterior[name].values, values, rtol=1e-6)
    np.testing.assert_array_equal(data.sample_stats["cycle"].values, run.figures["cycle"])
    assert data.sample_stats["diverging"].shape == (2, 6)
    # All rows, also of a model that draws some.
    assert data.log_likelihood["y"].shape == (2, 6, 60)
    assert data.posterior.attrs["sample_kind"] == "Markov chains"
    assert data.posterior.attrs["engine"] == "CyclicalSGLD"
    few = chains.public.to_arviz(run.mcmc, num_samples=4)
    assert dict(few.posterior.sizes)["chain"] == 2 and dict(few.posterior.sizes)["draw"] == 2


def test_what_arviz_gets_of_the_hosts_kernels(chains: Any) -> None:
    model, args, _ = arguments(chains, "conjugate_normal")
    if chains.backend.is_pyro:
        import pyro
        from pyro.infer import HMC, MCMC

        pyro.set_rng_seed(0)
        mcmc: Any = MCMC(HMC(model, step_size=0.1, num_steps=2), 5, 2, disable_progbar=True)
        mcmc.run(*args)
    else:
        import jax
        from numpyro.infer import HMC, MCMC

        mcmc = MCMC(
            HMC(model, num_steps=2, trajectory_length=None),
            num_warmup=2,
            num_samples=5,
            progress_bar=False,
        )
        mcmc.run(jax.random.key(0), *args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", chains.public.DivergenceWarning)  # the step is too long
        data = chains.public.to_arviz(mcmc)
    assert data.posterior["mu"].shape == (1, 5)
    assert data.log_likelihood["y"].shape == (1, 5, 12)
    assert data.sample_stats["diverging"].shape == (1, 5)


def test_statistics_alone_are_no_draws() -> None:
    from pyro.infer.mcmc import HMC, StreamingMCMC

    import pyro_ext as px

    model, args, _ = arguments(chains_of("pyro"), "conjugate_normal")
    mcmc = StreamingMCMC(HMC(model, step_size=0.1, num_steps=2), 2, warmup_steps=1)
    with pytest.raises(px.ArgumentError, match="statistics of them alone"):
        px.to_arviz(mcmc, *args)


def test_a_falling_step_size_is_taken(chains: Any) -> None:
    """Without noise, by hand: steps of gradient ascent of the sizes of the schedule."""
    kernel = chains.public.SGLD(chains.normal(MEAN, STD), lambda step: 0.2 / (1.0 + step))
    kernel._temperature = lambda step: 0.0
    start = {"z": np.array([[4.0, 1.0]], np.float32)}
    draws = chains.sample(kernel, num_samples=3, initial=start).draws["z"][0]
    z = start["z"][0].astype(float)
    for step in range(3):
        z = z + 0.2 / (1.0 + step) * (MEAN - z) / STD**2
        np.testing.assert_allclose(draws[step], z, rtol=1e-5)


def test_bad_input_is_refused_before_any_step(chains: Any) -> None:
    public, model = chains.public, chains.normal(MEAN, STD)
    refused: list[tuple[Any, str]] = [
        (lambda: public.SGLD(model, -0.1), "step_size to be a finite number > 0"),
        (lambda: public.SGLD(model, 0.1, estimator="svrg"), "GradientEstimator"),
        (lambda: public.PSGLD(model, 0.1, decay=1.0), "decay < 1"),
        (lambda: public.PSGLD(model, 0.1, adapt="never"), "adapt"),
        (lambda: public.SGHMC(model, 0.1, friction=0.0), "friction"),
        (lambda: public.CyclicalSGLD(model, lambda step: 0.1, 10), "largest step size"),
        (lambda: public.CyclicalSGLD(model, 0.1, 10, exploration=1.0), "exploration < 1"),
        (lambda: public.CyclicalSGHMC(model, 0.1, 10, num_steps=2), "no num_steps"),
        (lambda: public.ReplicaExchangeSGLD(model, 0.1, (2.0, 4.0)), "rise from 1"),
        (lambda: public.ReplicaExchangeSGLD(model, 0.1, (1.0, 4.0, 4.0)), "rise from 1"),
        (lambda: public.ReplicaExchangeSGLD(model, 0.1, (1.0,)), "rise from 1"),
        (lambda: public.ReplicaExchangeSGLD(model, 0.1, 2.0), "rise from 1"),
        (lambda: public.ReplicaExchangeSGLD(model, 0.1, (1.0, 2.0), num_steps=0), "num_steps"),
        (lambda: public.polynomial_decay(1.0, power=0.4), "power"),
        (lambda: public.ControlVariate([1.0]), "map each latent site"),
        (lambda: chains.sample(public.PSGLD(model, 0.1), num_samples=1), "warm-up"),
        (
            lambda: chains.sample(public.SGHMC(model, 0.1, mass=[1.0, 2.0, 3.0]), num_samples=1),
            "mass to be positive",
        ),
        (
            lambda: chains.sample(public.SGHMC(model, 0.1, mass={"z": [1.0] * 3}), num_samples=1),
            "mass of site 'z'",
        ),
        (
            lambda: chains.sample(public.SGHMC(model, 0.1, mass="a"), num_samples=1),
            "mass to hold numbers",
        ),
        (
            lambda: chains.sample(
                public.SGLD(model, 0.1), num_samples=1, initial={"z": np.zeros((1, 3), np.float32)}
            ),
            "init",
        ),
    ]
    for call, message in refused:
        with pytest.raises(public.ArgumentError, match=message):
            call()


def test_a_batch_as_argument_is_not_taken_for_all_rows(chains: Any) -> None:
    model, args, _ = arguments(chains, "logistic_regression_batch_arguments")
    batch = tuple(a[:15] for a in args)
    with pytest.raises(chains.public.ArgumentError, match="BatchArguments"):
        chains.sample(chains.public.SGLD(model, 0.1), batch, num_samples=1)
    wrong = chains.public.BatchArguments([batch, batch])
    with pytest.raises(chains.public.ArgumentError, match="once"):
        chains.sample(chains.public.SGLD(model, 0.1, estimator=wrong), batch, num_samples=1)
