"""Stan programs as NumPyro programs: density, gradient, parameters, engines and refusals."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer import MCMC, NUTS, Predictive
from numpyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)

import numpyro_ext as nx
from ppl_ext.stan import density as stan_density
from ppl_ext.stan import inputs as stan_inputs
from tests.stan_support import (
    B_MEANS,
    DATA,
    DIM,
    PROGRAM,
    SHAPES,
    WHERE,
    Y,
    flat,
    moments,
    needs_stan,
)

jax.config.update("jax_enable_x64", True)

KEY = random.key(0)
MEAN, COVARIANCE = moments()


@pytest.fixture(scope="module")
def program() -> nx.stan.StanProgram:
    return nx.stan.model(PROGRAM, DATA)


def positions(num: int, seed: int = 0) -> jax.Array:
    return random.uniform(random.key(seed), (num, DIM), jnp.float64, -1.0, 1.0)


def native() -> None:
    """The same model in NumPyro's own words."""
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0))
    numpyro.sample("tau", dist.LogNormal(jnp.array([0.0, 1.0]), 0.5).to_event(1))
    covariance = jnp.array([[1.0, 0.8], [0.8, 1.0]])
    numpyro.sample("x", dist.MultivariateNormal(jnp.zeros(2), covariance))
    numpyro.sample("b", dist.Normal(B_MEANS, 0.5).to_event(2))
    with numpyro.plate("rows", len(Y)):
        numpyro.sample("y", dist.Normal(mu, DATA["sd"]), obs=Y)


@needs_stan
def test_names_and_shapes(program: nx.stan.StanProgram) -> None:
    z = positions(5)
    values = program.constrain(z)
    assert program.parameter_sites == tuple(values) == tuple(SHAPES)
    assert {name: value.shape[1:] for name, value in values.items()} == SHAPES
    np.testing.assert_allclose(values["mu"], z[:, 0])
    np.testing.assert_allclose(values["tau"], jnp.exp(z[:, WHERE["tau"]]))
    np.testing.assert_allclose(values["b"], z[:, WHERE["b"]].reshape(-1, 3, 2).mT)
    np.testing.assert_allclose(values["c"], 2.0 * values["b"].mT)
    one = {name: values[name][2] for name in ("mu", "tau", "x", "b")}
    np.testing.assert_allclose(program.unconstrain(one), z[2])


@needs_stan
def test_gradient_is_that_of_finite_differences(program: nx.stan.StanProgram) -> None:
    z, step = positions(3), 1e-5
    steps = step * jnp.eye(DIM)
    ahead, behind = (program.log_density(z[:, None] + sign * steps) for sign in (1.0, -1.0))
    found = jax.vmap(jax.grad(program.log_density))(z)
    np.testing.assert_allclose(found, (ahead - behind) / (2 * step), rtol=1e-7, atol=1e-7)


@needs_stan
def test_density_is_that_of_the_native_program(program: nx.stan.StanProgram) -> None:
    ours, theirs = nx.LogDensity(program, KEY), nx.LogDensity(native, KEY)
    z = positions(6)
    values = ours.constrain(z, ours.bind())
    at = theirs.unconstrain(values, theirs.bind())
    difference = ours.log_density(z, ours.bind()) - theirs.log_density(at, theirs.bind())
    np.testing.assert_allclose(difference, difference[0], rtol=0.0, atol=1e-9)
    # The densities vary by far more than that.
    assert ours.log_density(z, ours.bind()).std() > 1.0


@needs_stan
@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
def test_second_derivatives_are_stans(program: nx.stan.StanProgram, outer: Any) -> None:
    expected = -np.linalg.inv(COVARIANCE)
    found = jax.vmap(outer(jax.grad(program.log_density)))(positions(2))
    np.testing.assert_allclose(found[1], expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(NotImplementedError, match="third ones were asked for"):
        outer(outer(jax.grad(program.log_density)))(positions(1)[0])


@needs_stan
@pytest.mark.parametrize("chunk", [None, 3])
def test_a_batch_is_its_rows(program: nx.stan.StanProgram, chunk: int | None) -> None:
    target = nx.LogDensity(program, KEY, particle_chunk=chunk)
    z = positions(7)
    found = target.score(z, target.bind())
    np.testing.assert_allclose(found.score, (MEAN - z) @ np.linalg.inv(COVARIANCE))
    loop = jnp.stack([program.log_density(row) for row in z])
    np.testing.assert_allclose(found.log_prior + found.log_likelihood, loop)


@needs_stan
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = nx.stan.model(PROGRAM, DATA, threads=1)
    several = nx.stan.model(PROGRAM, DATA, threads=3)
    monkeypatch.setattr("ppl_ext.stan.density.WORTH_A_THREAD", 0.0)
    z = positions(20)
    np.testing.assert_array_equal(alone.log_density(z), several.log_density(z))
    np.testing.assert_array_equal(alone.constrain(z)["c"], several.constrain(z)["c"])
    assert several.density._pool is not None and alone.density._pool is None


@needs_stan
def test_many_long_rows_come_through(program: nx.stan.StanProgram) -> None:
    """A callback may ask for its arguments while the device is busy with what follows."""
    z = positions(20_000)
    found = jax.jit(jax.vmap(jax.grad(program.log_density)))(z)
    np.testing.assert_allclose(found, (MEAN - z) @ np.linalg.inv(COVARIANCE), atol=1e-9)


@needs_stan
def test_rejected_positions_have_no_density(program: nx.stan.StanProgram) -> None:
    z = positions(4).at[1, 0].set(41.0).at[2, 3].set(jnp.nan)
    value, gradient = jax.vmap(jax.value_and_grad(program.log_density))(z)
    np.testing.assert_array_equal(jnp.isfinite(value), [True, False, False, True])
    np.testing.assert_array_equal(value[1:3], -jnp.inf)
    np.testing.assert_array_equal(gradient[1:3], 0.0)
    np.testing.assert_array_equal(gradient[3], jax.grad(program.log_density)(z[3]))
    program.log_density(z[1]).block_until_ready()
    assert program.density.rejection is not None
    assert "mu is too large: 41" in program.density.rejection


@needs_stan
def test_a_step_to_a_rejected_position_is_reported(program: nx.stan.StanProgram) -> None:
    engine = nx.SVGD(program, numpyro.optim.SGD(1e5), num_particles=4)
    with pytest.raises(nx.NonFiniteError) as caught:
        engine.run(KEY, 5, progress_bar=False)
    assert jnp.isfinite(engine.get_samples(caught.value.state)["mu"]).all()


@needs_stan
def test_single_precision(program: nx.stan.StanProgram) -> None:
    z = positions(3).astype(jnp.float32)
    value, score = jax.vmap(jax.value_and_grad(program.log_density))(z)
    assert value.dtype == score.dtype == jnp.float32
    expected = (MEAN - np.asarray(z, np.float64)) @ np.linalg.inv(COVARIANCE)
    np.testing.assert_allclose(score, expected, rtol=1e-6, atol=1e-6)


@needs_stan
def test_draws_and_arviz_have_stans_names() -> None:
    program = nx.stan.model(
        PROGRAM, json.dumps({**DATA, "y": Y.tolist()}), generated_quantities=True
    )
    engine = nx.SVGD(program, numpyro.optim.Adam(0.1), num_particles=6)
    result = engine.run(KEY, 2, progress_bar=False)
    draws = engine.get_samples(result.state)
    shapes = {**SHAPES, "prediction": ()}
    assert {name: draws[name].shape for name in shapes} == {
        name: (6, *shape) for name, shape in shapes.items()
    }
    again = Predictive(program, posterior_samples=draws)(KEY)
    data = nx.to_arviz(engine, result)
    assert set(data.posterior.data_vars) == set(shapes)
    assert set(data.unconstrained_posterior.data_vars) == {"unconstrained__"}
    for name in shapes:
        np.testing.assert_array_equal(again[name], draws[name])
        np.testing.assert_array_equal(data.posterior[name].values[0], draws[name])
    log_p = program.log_density(draws["unconstrained__"])
    np.testing.assert_allclose(data.sample_stats["log_p"].values[0], log_p)
    # Noise of its own for each draw, the same whenever it is looked at.
    assert len(np.unique(draws["prediction"] - draws["mu"])) == 6


@needs_stan
def test_svgd_finds_the_means(program: nx.stan.StanProgram) -> None:
    engine = nx.SVGD(program, numpyro.optim.Adam(0.2), num_particles=40)
    result = engine.run(KEY, 400, progress_bar=False)
    found = flat(engine.get_samples(result.state))
    # Of a symmetric posterior the particles' mean is exact where they have come to rest.
    np.testing.assert_allclose(found.mean(0), MEAN, atol=0.05)


@needs_stan
def test_proximal_score_vi_finds_the_moments(program: nx.stan.StanProgram) -> None:
    guide = AutoMultivariateNormal(program)
    engine = nx.ProximalScoreVI(program, guide, solver=nx.Regression(num_samples=64))
    result = engine.run(KEY, 60, progress_bar=False)
    found = flat(engine.get_samples(result.state, num_samples=4000))
    deviation = np.sqrt(np.diag(COVARIANCE))
    assert np.all(np.abs(found.mean(0) - MEAN) < 5.0 * deviation / np.sqrt(4000))
    scaled = np.cov(found.T) / np.outer(deviation, deviation)
    expected = COVARIANCE / np.outer(deviation, deviation)
    assert np.abs(scaled - expected).max() < 5.0 * np.sqrt(2.0 / 4000)


@needs_stan
def test_resuming_is_exact(program: nx.stan.StanProgram, tmp_path: Path) -> None:
    def engine() -> nx.SVGD:
        return nx.SVGD(program, numpyro.optim.Adam(0.1), num_particles=5)

    whole = engine()
    at_once = whole.run(KEY, 6, progress_bar=False).state
    first = engine()
    first.save(tmp_path / "state", first.run(KEY, 3, progress_bar=False).state)
    second = engine()
    state = second.load(tmp_path / "state")
    state = second.run(KEY, 3, progress_bar=False, init_state=state).state
    for name, value in whole.get_samples(at_once).items():
        np.testing.assert_array_equal(value, second.get_samples(state)[name])


@needs_stan
def test_copies_are_the_same_program(program: nx.stan.StanProgram) -> None:
    z = positions(2)
    for copied in (copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        np.testing.assert_array_equal(copied.log_density(z), program.log_density(z))
    assert "11 unconstrained numbers" in repr(program)


@needs_stan
@pytest.mark.parametrize(
    "estimator", [nx.Minibatch(), nx.SAGA(), nx.SVRG(4)], ids=["minibatch", "saga", "svrg"]
)
def test_what_needs_rows_is_refused(program: nx.stan.StanProgram, estimator: Any) -> None:
    engine = nx.SVGD(program, numpyro.optim.Adam(0.1), estimator=estimator)
    with pytest.raises(nx.ArgumentError, match="in one piece, as that of a Stan program is"):
        engine.run(KEY, 1, progress_bar=False)


@needs_stan
def test_what_needs_a_likelihood_is_refused(program: nx.stan.StanProgram) -> None:
    optim = numpyro.optim.Adam(0.1)
    with pytest.raises(nx.ArgumentError, match="in one piece, as that of a Stan program is"):
        nx.SVGDVR(program, optim, anchor_every=4).run(KEY, 1, progress_bar=False)
    with pytest.raises(nx.ArgumentError, match="in one piece, as that of a Stan program is"):
        nx.LaplaceGGN(program, optim).run(KEY, 1, progress_bar=False)
    with pytest.raises(nx.ArgumentError, match="likelihood_temperature=2.0 has nothing to divide"):
        nx.LogDensity(program, KEY, likelihood_temperature=2.0)


@needs_stan
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "variable name=N"),
        ({**DATA, "N": 3}, "variable name=y"),
        ({**DATA, "sd": -1.0}, "sd is -1, but must be greater than or equal to 0"),
        ({**DATA, "y": "many"}, "Expected numbers for the Stan data 'y', found str"),
        ("{bad", "no JSON"),
        ("no-such-file.json", "No such file"),
    ],
    ids=["missing", "length", "range", "type", "json", "file"],
)
def test_data_that_do_not_fit(data: Any, message: str) -> None:
    with pytest.raises(nx.ArgumentError, match=message) as caught:
        nx.stan.model(PROGRAM, data)
    assert "\n" not in str(caught.value)


@needs_stan
def test_an_invalid_program_is_told_with_stans_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.stan"
    file.write_text("parameters { real mu; }\nmodel {\n  mu ~ norml(0, 1);\n}\n")
    with pytest.raises(nx.ArgumentError, match=r"'broken.stan', line 3.*norml_lpdf") as caught:
        nx.stan.model(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5])
def test_seeds_that_stan_does_not_take(seed: Any) -> None:
    with pytest.raises(nx.ArgumentError, match=r"from 0 to 2\*\*32 - 1, found"):
        stan_density.StanDensity(Path("none.so"), "", name="one", seed=seed)


def test_the_value_of_rejected_positions() -> None:
    """Minus infinity where Stan raises an error or finds no number, and what it said is kept."""

    def log_density(z: np.ndarray) -> float:
        if z[0] < 0.0:
            raise RuntimeError("log_density() failed: Exception: scale is negative")
        return float("nan") if z[0] > 9.0 else float(z.sum())

    density = object.__new__(stan_density.StanDensity)
    density.dim, density.name, density.threads, density.rejection = 2, "one", 1, None
    density._model = SimpleNamespace(log_density=log_density)
    np.testing.assert_array_equal(
        density.value([[1.0, 2.0], [-1.0, 2.0], [10.0, 2.0]]), [3.0, -np.inf, -np.inf]
    )
    assert density.rejection == "scale is negative"


def test_ragged_data_are_told() -> None:
    with pytest.raises(nx.ArgumentError, match="data 'y', found rows of different lengths"):
        stan_inputs.read_data({"y": [[1.0, 2.0], [3.0]]})


def test_a_program_that_cannot_be_read() -> None:
    with pytest.raises(nx.ArgumentError, match="'no-such.stan': No such file"):
        nx.stan.model("no-such.stan")


def test_without_bridgestan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bridgestan", None)
    with pytest.raises(ImportError, match=r'pip install "ppl-ext\[stan\]"'):
        nx.stan.model(PROGRAM, DATA)


def _adam(rate: float = 0.05) -> Any:
    return numpyro.optim.Adam(rate)


ENGINES = {
    "WGD": lambda program: nx.WGD(program, _adam(), num_particles=40),
    "DeepEnsemble": lambda program: nx.DeepEnsemble(program, _adam()),
    "SVN": lambda program: nx.SVN(program, num_particles=40),
    "SVN, diagonal": lambda program: nx.SVN(program, num_particles=40, curvature="diag"),
    "GSM": lambda program: nx.GSM(program, AutoMultivariateNormal(program)),
    "BaM": lambda program: nx.BaM(program, AutoMultivariateNormal(program)),
    "FisherVI": lambda program: nx.FisherVI(
        program, AutoMultivariateNormal(program, init_scale=1.0), _adam(), num_samples=16
    ),
    "ProximalScoreVI": lambda program: nx.ProximalScoreVI(
        program,
        AutoMultivariateNormal(program),
        solver=nx.GradientSteps(_adam(0.01), num_samples=64),
    ),
    "diagonal": lambda program: nx.ProximalScoreVI(
        program, AutoDiagonalNormal(program), solver=nx.GradientSteps(_adam(0.01), num_samples=64)
    ),
    "low rank": lambda program: nx.ProximalScoreVI(
        program,
        AutoLowRankMultivariateNormal(program, rank=2),
        solver=nx.GradientSteps(_adam(0.01), num_samples=64),
    ),
    "mixture": lambda program: nx.ProximalScoreVI(
        program,
        nx.AutoGaussianMixture(program, 2),
        solver=nx.GradientSteps(_adam(0.01), num_samples=64),
    ),
    "planar": lambda program: nx.ProximalScoreVI(
        program, nx.AutoPlanarFlow(program), solver=nx.GradientSteps(_adam(0.01), num_samples=64)
    ),
    "Noisy": lambda program: nx.SVGD(
        program, _adam(), num_particles=40, estimator=nx.Noisy(level=0.1)
    ),
}


# A Newton step takes as many products with second derivatives as there are parameters.
STEPS = {"SVN": 40, "SVN, diagonal": 40}


@needs_stan
@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_finds_the_means(program: nx.stan.StanProgram, name: str) -> None:
    engine: Any = ENGINES[name](program)
    result = engine.run(KEY, STEPS.get(name, 1000), progress_bar=False)
    num_samples = None if hasattr(engine, "num_particles") else 4000
    found = flat(engine.get_samples(result.state, num_samples=num_samples))
    deviation = np.sqrt(np.diag(COVARIANCE))
    # Stochastic fits stay within a fraction of a posterior's deviation of its mean.
    np.testing.assert_allclose((found.mean(0) - MEAN) / deviation, 0.0, atol=0.35)


@needs_stan
@pytest.mark.slow
def test_the_hosts_nuts_takes_it(program: nx.stan.StanProgram) -> None:
    mcmc = MCMC(NUTS(program), num_warmup=300, num_samples=1000, progress_bar=False)
    mcmc.run(KEY)
    found = flat(mcmc.get_samples())
    deviation = np.sqrt(np.diag(COVARIANCE))
    # A chain of NUTS on a Gaussian has at least a third of its draws' worth.
    np.testing.assert_allclose((found.mean(0) - MEAN) / deviation, 0.0, atol=5.0 / np.sqrt(333))


@needs_stan
@pytest.mark.slow
def test_programs_without_data_and_with_a_narrow_support() -> None:
    """A simplex, whose unconstrained size is below its own, and a program that starts nowhere."""
    simplex = nx.stan.model(
        "parameters { simplex[3] p; } model { p ~ dirichlet([2, 3, 4]'); }", threads=2
    )
    assert simplex.density.dim == 2 and simplex.density.shapes == {"p": (3,)}
    engine = nx.SVN(simplex, num_particles=50)
    result = engine.run(KEY, 100, progress_bar=False)
    found = engine.get_samples(result.state)["p"]
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(found.mean(0), np.array([2.0, 3.0, 4.0]) / 9, atol=0.03)
    with pytest.warns(UserWarning, match="no finite density at 100 random positions.*too small"):
        nx.stan.model(
            "parameters { real a; }\n"
            'model { if (a < 50) reject("a is too small"); a ~ normal(0, 1); }'
        )
    with pytest.raises(nx.ArgumentError, match="Expected a Stan program with parameters"):
        nx.stan.model("model { }")
