"""The microcanonical kernel in the hosts' ``MCMC``: posteriors, starts, resuming, what it says."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest

from ppl_ext.microcanonical.chains import Microcanonical
from ppl_ext.microcanonical.functions import Eager
from tests.models import zoo
from tests.sgmcmc_support import arguments, chains_of

#: Rows of its plate are drawn.
SUBSAMPLED = "conjugate_normal_subsampled"
MEAN, STD = np.array([1.0, -2.0], np.float32), np.array([0.5, 15.0], np.float32)


@pytest.fixture
def chains(backend: Any) -> Any:
    """Kernels of each package in turn."""
    return chains_of(backend.name)


def require(chains: Any, name: str, draws: dict[str, Any], bias: float) -> None:
    """Moments of the zoo within Monte Carlo error and a bias, in standard deviations."""
    for moment in zoo.ZOO[name].moments():
        values = moment.statistic(draws)
        flat = values.reshape(values.shape[0] * values.shape[1], -1)
        size = chains.effective_sample_size(values.reshape(*values.shape[:2], -1))
        assert np.all(size > 150), (moment.name, size)
        error = bias + 4.0 / np.sqrt(size)
        away = np.abs(flat.mean(0) - np.ravel(moment.mean)) / np.ravel(moment.std)
        assert np.all(away < error), (moment.name, away, error)
        ratio = np.abs(flat.std(0) / np.ravel(moment.std) - 1.0)
        assert np.all(ratio < error), (moment.name, ratio, error)


#: One number; several; a simplex; a support that depends on another site; a network's likelihood.
ZOO = [
    "conjugate_normal_subsampled",
    "gamma_poisson",
    pytest.param("dirichlet", marks=pytest.mark.slow),
    pytest.param("dependent_uniform", marks=pytest.mark.slow),
    pytest.param("logistic_regression", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("adjusted", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_posteriors_of_the_zoo(chains: Any, name: str, adjusted: bool) -> None:
    """With nothing set, from the host's init strategy."""
    model, args, options = arguments(chains, name)
    kernel = chains.public.MCLMC(model, adjusted=adjusted)
    run = chains.sample(
        kernel, args, options, num_samples=200 if adjusted else 400, warmup=300, num_chains=24
    )
    require(chains, name, run.draws, 0.0 if adjusted else 0.08)
    assert not judgement_of(chains, run).doubtful


def test_minibatches_of_the_zoo(chains: Any) -> None:
    """From the host's init strategy, with nothing set."""
    model, args, options = arguments(chains, SUBSAMPLED)
    kernel = chains.public.MCLMC(model, estimator=chains.public.Minibatch(), num_steps=5)
    run = chains.sample(kernel, args, options, num_samples=300, warmup=200, num_chains=24)
    require(chains, SUBSAMPLED, run.draws, 0.12)
    found = judgement_of(chains, run)
    assert not found.doubtful, found
    words = str(found)
    assert "The noise of minibatches makes the variance of" in words
    dynamics = state_of(chains, run).dynamics
    assert float(dynamics.evaluations) == 1 + 2 * 1_000 + 1_500 + 75
    # Rows are drawn anew: chains that had the same ones would differ by their directions alone.
    assert float(dynamics.noise.squares) > 0.0


def judgement_of(chains: Any, run: Any) -> Any:
    kernel = run.mcmc.kernel if chains.backend.is_pyro else run.mcmc.sampler
    return kernel.judgement if chains.backend.is_pyro else kernel.judge(run.mcmc)


def state_of(chains: Any, run: Any) -> Any:
    return run.mcmc.kernel.state if chains.backend.is_pyro else run.mcmc.last_state


def test_a_step_takes_one_evaluation_and_all_chains_one_step_length(chains: Any) -> None:
    kernel = chains.public.MCLMC(chains.normal(MEAN, STD))
    run = chains.sample(kernel, num_samples=60, warmup=300, num_chains=8)
    dynamics = state_of(chains, run).dynamics
    assert float(dynamics.evaluations) == 1 + 360
    assert float(dynamics.moves) == 60
    assert np.ndim(np.asarray(dynamics.step.value)) == 0
    scale = np.asarray(dynamics.scale, float)
    np.testing.assert_allclose(scale / STD, 1.0, rtol=0.4)


@pytest.mark.parametrize("kind", [{}, {"adjusted": True}, {"noisy": True}], ids=str)
def test_moves_are_those_of_numpy(backend: Any, kind: dict[str, bool]) -> None:
    """The same numbers in all three, through a whole warm-up and after it."""
    import jax

    functions = backend.room("sgmcmc.mclmc").FUNCTIONS
    dim, count, total, generator = 3, 4, 50, np.random.default_rng(0)
    std = np.array([0.5, 1.0, 4.0])

    with jax.enable_x64(True):

        def array(value: Any) -> Any:
            if backend.is_pyro:
                import torch

                return torch.as_tensor(np.asarray(value, float))
            return jax.numpy.asarray(value, dtype=float)

        def normal(std: Any) -> Any:
            return lambda z: (-0.5 * ((z / std) ** 2).sum(-1), -z / std**2)

        options: dict[str, Any] = {"variance": 5e-4, "adjusted": False, "epsilon": 1e-16, **kind}
        theirs = Microcanonical(dim, functions, **options)
        ours = Microcanonical(dim, Eager(np), **options)
        z = generator.normal(size=(count, dim))
        noise, spare = generator.normal(size=(count, dim)), np.zeros((count, 0))
        one = ours.first(z, noise, spare, total, normal(std))
        first = (array(z), array(noise), array(spare), total, normal(array(std)))
        two, y = theirs.first(*first), array(z)
        evaluate = normal(array(std))

        def move(dynamics: Any, z: Any, number: Any, noise: Any, chance: Any, share: Any) -> Any:
            draw = lambda: noise  # noqa: E731
            return theirs.move(dynamics, z, number, total, draw, chance, share, evaluate)

        move = move if backend.is_pyro else jax.jit(move)
        for number in range(total + 10):
            noise = generator.normal(size=(count, dim))
            chance, share = np.log(generator.random(count)), np.asarray(generator.random())
            one_move = (number, total, lambda noise=noise: noise, chance, share, normal(std))
            z, one, _ = ours.move(one, z, *one_move)
            y, two, _ = move(two, y, number, array(noise), array(chance), array(share))
            if number < 20 or number == total + 9:
                np.testing.assert_allclose(backend.numpy(y), z, rtol=1e-5, atol=1e-5)
        found = float(two.step.value), float(two.length), float(two.evaluations)
        expected = float(one.step.value), float(one.length), float(one.evaluations)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_given_step_is_not_tuned(chains: Any) -> None:
    kernel = chains.public.MCLMC(chains.normal(MEAN, STD), step_size=0.3, length=2.0, num_steps=3)
    run = chains.sample(kernel, num_samples=30, warmup=20, num_chains=4)
    state = state_of(chains, run)
    assert float(state.dynamics.step.value) == pytest.approx(0.3)
    assert float(state.dynamics.length) == pytest.approx(2.0)
    assert float(state.dynamics.evaluations) == 1 + 3 * 50
    # A draw is three steps of 0.3 away at most, and no less than a turn leaves of one.
    moves = np.linalg.norm(np.diff(run.draws["z"], axis=1), axis=-1)
    assert moves.max() <= 0.9 * 1.0001
    assert moves.max() > 0.6
    # Nor is there need of a warm-up.
    chains.sample(kernel, num_samples=2, warmup=0, num_chains=2)


@pytest.mark.parametrize("given", ["draws", "search"])
def test_chains_start_where_they_are_told(chains: Any, given: str) -> None:
    """From draws at a distance: each chain from one of them."""
    draws = {"z": np.array([[9.0, 1.0], [-8.0, 2.0], [7.0, -30.0]], np.float32)}
    start: Any = draws if given == "draws" else "search"
    model = chains.normal(MEAN, STD)
    kernel = chains.public.MCLMC(model, start=start, step_size=1e-6, length=1.0)
    run = chains.sample(kernel, num_samples=1, warmup=0, num_chains=3)
    found = run.draws["z"][:, 0]
    if given == "draws":
        np.testing.assert_allclose(np.sort(found, 0), np.sort(draws["z"], 0), atol=1e-4)
    else:
        assert np.abs((found - MEAN) / STD).max() < 4.5
        assert np.ptp(found[:, 1]) > 1.0


def test_other_kernels_start_there_too(chains: Any) -> None:
    draws = {"z": np.array([[9.0, 1.0], [-8.0, 2.0]], np.float32)}
    kernel = chains.public.SGLD(chains.normal(MEAN, STD), 1e-10, start=draws)
    run = chains.sample(kernel, num_samples=1, warmup=0, num_chains=2)
    np.testing.assert_allclose(np.sort(run.draws["z"][:, 0], 0), np.sort(draws["z"], 0), atol=1e-2)
    with pytest.raises(chains.public.ArgumentError, match="Expected start to be"):
        chains.public.SGLD(chains.normal(MEAN, STD), 1e-10, start=3)


#: Moves of all kinds, by their options.
KINDS = [{}, {"adjusted": True}, {"estimator": "Minibatch"}]


def kernel_of(chains: Any, model: Any, options: dict[str, Any]) -> Any:
    public = chains.public
    given = {
        name: getattr(public, value)() for name, value in options.items() if name != "adjusted"
    }
    return public.MCLMC(model, **{**options, **given})


@pytest.mark.parametrize("kind", KINDS, ids=["steps", "adjusted", "minibatches"])
def test_numpyro_resumes_to_the_last_bit(kind: dict[str, Any]) -> None:
    import jax
    from numpyro.infer import MCMC

    chains = chains_of("numpyro")
    model, args, options = arguments(chains, SUBSAMPLED if "estimator" in kind else "gamma_poisson")
    kernel = kernel_of(chains, model, kind)

    def mcmc(num_samples: int) -> Any:
        return MCMC(
            kernel,
            num_warmup=40,
            num_samples=num_samples,
            num_chains=2,
            chain_method="vectorized",
            progress_bar=False,
        )

    (site,) = zoo_sites(model, args, options)
    whole = mcmc(20)
    whole.run(jax.random.PRNGKey(0), *args, **options)
    first = mcmc(10)
    first.run(jax.random.PRNGKey(0), *args, **options)
    saved = pickle.loads(pickle.dumps(first.last_state))
    second = mcmc(10)
    second.post_warmup_state = saved
    second.run(saved.rng_key, *args, **options)
    halves = [each.get_samples(group_by_chain=True)[site] for each in (first, second)]
    np.testing.assert_array_equal(
        np.concatenate(halves, 1), whole.get_samples(group_by_chain=True)[site]
    )


def zoo_sites(model: Any, args: Any, options: Any) -> list[str]:
    from numpyro import handlers

    trace = handlers.trace(handlers.seed(model, 0)).get_trace(*args, **options)
    return [
        name for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]
    ]


@pytest.mark.parametrize("kind", KINDS, ids=["steps", "adjusted", "minibatches"])
def test_pyro_resumes_to_the_last_bit(tmp_path: Any, kind: dict[str, Any]) -> None:
    import torch

    chains = chains_of("pyro")
    adjusted = kind.get("adjusted", False)
    model, args, options = arguments(
        chains, SUBSAMPLED if "estimator" in kind else "conjugate_normal"
    )

    def kernel(adjusted: bool = adjusted) -> Any:
        if "estimator" in kind and not adjusted:
            return kernel_of(chains, model, kind)
        return chains.public.MCLMC(model, adjusted=adjusted)

    settings = {"warmup": 40, "num_chains": 2}
    whole = chains.sample(kernel(), args, options, num_samples=20, **settings)
    first = chains.sample(kernel(), args, options, num_samples=10, **settings)
    torch.save(first.mcmc.kernel.state_dict(), tmp_path / "chains.pt")
    state = torch.load(tmp_path / "chains.pt", weights_only=False)
    resumed = kernel()
    resumed.load_state_dict(state)
    second = chains.sample(resumed, args, options, num_samples=10, num_chains=2, seed=5)
    joined = np.concatenate([first.draws["mu"], second.draws["mu"]], 1)
    np.testing.assert_array_equal(joined, whole.draws["mu"])
    other = kernel(not adjusted)
    other.load_state_dict(state)
    with pytest.raises(chains.public.ArgumentError, match="Expected a saved state of"):
        chains.sample(other, args, options, num_samples=1, num_chains=2)


def test_steps_that_are_too_long_are_told(chains: Any) -> None:
    """With fixed steps of seven standard deviations, of which few diverge."""
    std = np.ones(20, np.float32)
    kernel = chains.public.MCLMC(chains.normal(0.0 * std, std), step_size=7.0, length=20.0)
    with pytest.warns(chains.public.DoubtfulFitWarning, match="steps are too long there"):
        run = chains.sample(kernel, num_samples=120, warmup=0, num_chains=4)
    found = judgement_of(chains, run)
    assert found.doubtful
    assert "variance of up to" in str(found)
    assert run.draws["z"].std() > 1.1


def test_the_energys_variance_of_one_number_is_that_of_two(chains: Any) -> None:
    """A spare coordinate moves with it: so steps are tuned, and so is it told."""
    kernel = chains.public.MCLMC(chains.normal(np.zeros(1, np.float32), np.ones(1, np.float32)))
    run = chains.sample(kernel, num_samples=200, warmup=200, num_chains=4)
    dynamics = state_of(chains, run).dynamics
    squares = np.asarray(chains.backend.numpy(dynamics.squares), float)
    figure = squares.max() / float(dynamics.moves) / 2
    assert f"a variance of up to {figure:.2g} for each" in str(judgement_of(chains, run))


def test_chains_that_stand_still_are_told(chains: Any) -> None:
    """Far from the mass scores are so noisy that the bound on noise leaves no step."""
    host, dist, array = chains.backend.host, chains.backend.dist, chains.backend.array
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 2))
    y = x @ [1.0, -0.5] + 0.5 * generator.normal(size=200)

    def model(x: Any, y: Any) -> None:
        weights = host.sample("weights", dist.Normal(array(np.zeros(2)), 1.0).to_event(1))
        scale = host.sample("scale", dist.HalfNormal(array(1.0)))
        with host.plate("rows", 200, subsample_size=20) as i:
            host.sample("y", dist.Normal(x[i] @ weights, scale), obs=y[i])

    kernel = chains.public.MCLMC(model, estimator=chains.public.Minibatch())
    with pytest.warns(chains.public.DoubtfulFitWarning, match="The chains stand still"):
        run = chains.sample(kernel, (array(x), array(y)), num_samples=60, warmup=200, num_chains=4)
    assert judgement_of(chains, run).doubtful


def test_moves_that_diverge_are_told_and_not_taken(chains: Any) -> None:
    """The density ends at 3: no step beyond it is taken."""
    host, dist, xp = chains.backend.host, chains.backend.dist, chains.backend.xp

    def model() -> None:
        z = host.sample("z", dist.Normal(xp.zeros(3), xp.ones(3)).to_event(1))
        host.factor("wall", xp.where((z > 0.5).any(-1), -xp.inf * xp.ones(()), xp.zeros(())))

    start = {"z": -np.ones((4, 3), np.float32)}
    kernel = chains.public.MCLMC(model, step_size=1.0, length=5.0)
    with pytest.warns(chains.public.DivergenceWarning, match="diverged"), warnings.catch_warnings():
        warnings.simplefilter("ignore", chains.public.DoubtfulFitWarning)
        run = chains.sample(kernel, num_samples=150, warmup=0, num_chains=4, initial=start)
    assert run.draws["z"].max() <= 0.5
    assert run.figures["diverging"].any()
    assert not run.figures["diverging"].all()
    found = judgement_of(chains, run)
    assert found.doubtful
    assert any("diverged" in each for each in found.reasons)


def test_chains_in_two_modes_are_doubtful(chains: Any) -> None:
    """Of different heights, so that the log density tells them apart."""
    kernel = chains.public.MCLMC(chains.two_modes(12.0, 0.9))
    start = {"z": np.array([12.0, 12.0, -12.0, -12.0], np.float32)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", chains.public.DoubtfulFitWarning)
        run = chains.sample(kernel, num_samples=200, warmup=100, num_chains=4, initial=start)
    found = judgement_of(chains, run)
    assert any("R-hat of the log density" in each for each in found.reasons), found


def test_what_cannot_be_is_refused(chains: Any) -> None:
    public, model = chains.public, chains.normal(MEAN, STD)
    for options, words in (
        ({"adjusted": "yes"}, "adjusted"),
        ({"num_steps": 0}, "num_steps"),
        ({"energy_variance": 0.0}, "energy_variance"),
        ({"step_size": 0.1}, "step_size and length, or neither"),
        ({"step_size": -0.1, "length": 1.0}, "step_size"),
        ({"estimator": public.Minibatch(), "adjusted": True}, "Expected no estimator with adj"),
        ({"heat": 0.0}, "heat"),
    ):
        with pytest.raises(public.ArgumentError, match=words):
            public.MCLMC(model, **options)
    with pytest.raises(public.ArgumentError, match="Expected a warm-up"):
        chains.sample(public.MCLMC(model), num_samples=2, warmup=0)


def test_a_batch_is_not_taken_for_all_rows(chains: Any) -> None:
    model, args, _ = arguments(chains, "logistic_regression_batch_arguments")
    batch = tuple(each[:20] for each in args)
    with pytest.raises(chains.public.ArgumentError, match="the arguments hold a batch"):
        chains.sample(chains.public.MCLMC(model), batch, num_samples=2, warmup=10)


def test_kernels_can_be_sent_to_other_processes(chains: Any) -> None:
    model, args, options = arguments(chains, "conjugate_normal")
    kernel = pickle.loads(pickle.dumps(chains.public.MCLMC(model, adjusted=True)))
    run = chains.sample(kernel, args, options, num_samples=3, warmup=10, num_chains=2)
    assert np.isfinite(run.draws["mu"]).all()


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_numpyros_other_ways_of_running_chains() -> None:
    import jax
    from numpyro.infer import MCMC

    chains = chains_of("numpyro")
    # A start is drawn by a key that has a value.
    for method, start in (("sequential", {"z": MEAN + np.eye(2)}), (jax.vmap, None)):
        mcmc = MCMC(
            chains.public.MCLMC(chains.normal(MEAN, STD), start=start),
            num_warmup=60,
            num_samples=20,
            num_chains=2,
            chain_method=method,
            progress_bar=False,
        )
        mcmc.run(jax.random.key(0))
        assert np.isfinite(mcmc.get_samples()["z"]).all()


def test_pyros_own_mcmc_runs_the_kernel() -> None:
    import pyro
    from pyro.infer import MCMC

    chains = chains_of("pyro")
    pyro.set_rng_seed(0)
    mcmc = MCMC(chains.public.MCLMC(chains.normal(MEAN, STD)), 30, 30, disable_progbar=True)
    mcmc.run()
    assert np.isfinite(np.asarray(mcmc.get_samples()["z"])).all()
    assert "potential_energy" in mcmc.diagnostics()
