"""Stan programs as Pyro programs: density, gradient, parameters, engines and refusals."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)

import pyro_ext as px
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

torch.set_default_dtype(torch.float64)

MEAN, COVARIANCE = moments()


@pytest.fixture(scope="module")
def program() -> px.stan.StanProgram:
    return px.stan.model(PROGRAM, DATA)


def positions(num: int, seed: int = 0) -> torch.Tensor:
    return 2.0 * torch.rand(num, DIM, generator=torch.Generator().manual_seed(seed)) - 1.0


def native() -> None:
    """The same model in Pyro's own words."""
    mu = pyro.sample("mu", dist.Normal(1.0, 2.0))
    pyro.sample("tau", dist.LogNormal(torch.tensor([0.0, 1.0]), 0.5).to_event(1))
    covariance = torch.tensor([[1.0, 0.8], [0.8, 1.0]])
    pyro.sample("x", dist.MultivariateNormal(torch.zeros(2), covariance))
    pyro.sample("b", dist.Normal(torch.as_tensor(B_MEANS), 0.5).to_event(2))
    with pyro.plate("rows", len(Y)):
        pyro.sample("y", dist.Normal(mu, DATA["sd"]), obs=torch.as_tensor(Y))


@needs_stan
def test_names_and_shapes(program: px.stan.StanProgram) -> None:
    z = positions(5)
    values = program.constrain(z)
    assert program.parameter_sites == tuple(values) == tuple(SHAPES)
    assert {name: tuple(value.shape[1:]) for name, value in values.items()} == SHAPES
    torch.testing.assert_close(values["mu"], z[:, 0])
    torch.testing.assert_close(values["tau"], z[:, WHERE["tau"]].exp())
    torch.testing.assert_close(values["b"], z[:, WHERE["b"]].reshape(-1, 3, 2).mT)
    torch.testing.assert_close(values["c"], 2.0 * values["b"].mT)
    one = {name: values[name][2] for name in ("mu", "tau", "x", "b")}
    torch.testing.assert_close(program.unconstrain(one), z[2])


@needs_stan
def test_gradient_is_that_of_finite_differences(program: px.stan.StanProgram) -> None:
    z, step = positions(3), 1e-5
    steps = step * torch.eye(DIM)
    ahead, behind = (program.log_density(z[:, None] + sign * steps) for sign in (1.0, -1.0))
    found = torch.func.vmap(torch.func.grad(program.log_density))(z)
    torch.testing.assert_close(found, (ahead - behind) / (2 * step), rtol=1e-7, atol=1e-7)


@needs_stan
def test_density_is_that_of_the_native_program(program: px.stan.StanProgram) -> None:
    ours, theirs = px.LogDensity(program), px.LogDensity(native)
    z = positions(6)
    values = ours.constrain(z, ours.bind())
    at = theirs.unconstrain(values, theirs.bind())
    difference = ours.log_density(z, ours.bind()) - theirs.log_density(at, theirs.bind())
    torch.testing.assert_close(difference, difference[:1].expand(6), rtol=0.0, atol=1e-9)
    # The densities vary by far more than that.
    assert ours.log_density(z, ours.bind()).std() > 1.0


@needs_stan
def test_second_derivatives_are_stans(program: px.stan.StanProgram) -> None:
    found = torch.func.jacrev(torch.func.grad(program.log_density))(positions(1)[0])
    expected = -torch.as_tensor(np.linalg.inv(COVARIANCE))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(NotImplementedError, match="third ones were asked for"):
        torch.func.jacrev(torch.func.jacrev(torch.func.grad(program.log_density)))(positions(1)[0])


@needs_stan
@pytest.mark.parametrize("evaluation", ["graph", "handlers", "loop"])
def test_every_evaluation_gives_the_same(program: px.stan.StanProgram, evaluation: str) -> None:
    target = px.LogDensity(program, evaluation=evaluation, particle_chunk=3)
    z = positions(7)
    found = target.score(z, target.bind())
    assert target.evaluation == evaluation
    expected = torch.as_tensor((MEAN - z.numpy()) @ np.linalg.inv(COVARIANCE))
    torch.testing.assert_close(found.score, expected)
    loop = torch.stack([program.log_density(row) for row in z])
    torch.testing.assert_close(found.log_prior + found.log_likelihood, loop)


@needs_stan
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = px.stan.model(PROGRAM, DATA, threads=1)
    several = px.stan.model(PROGRAM, DATA, threads=3)
    monkeypatch.setattr("ppl_ext.stan.density.WORTH_A_THREAD", 0.0)
    z = positions(20)
    assert torch.equal(alone.log_density(z), several.log_density(z))
    assert torch.equal(alone.constrain(z)["c"], several.constrain(z)["c"])
    assert several.density._pool is not None and alone.density._pool is None


@needs_stan
def test_rejected_positions_have_no_density(program: px.stan.StanProgram) -> None:
    z = positions(4)
    z[1, 0], z[2, 3] = 41.0, torch.nan
    score = torch.func.vmap(torch.func.grad_and_value(program.log_density))(z)
    assert score[1].isfinite().tolist() == [True, False, False, True]
    assert torch.equal(score[1][1:3], torch.full((2,), -torch.inf))
    assert torch.equal(score[0][1:3], torch.zeros(2, DIM))
    assert torch.equal(score[0][3], torch.func.grad(program.log_density)(z[3]))
    program.log_density(z[1])
    assert program.density.rejection is not None
    assert "mu is too large: 41" in program.density.rejection


@needs_stan
def test_a_step_to_a_rejected_position_is_reported(program: px.stan.StanProgram) -> None:
    engine = px.SVGD(program, pyro.optim.SGD({"lr": 1e5}), num_particles=4, seed=0)
    with pytest.raises(px.NonFiniteError):
        engine.run(5, progress_bar=False)
    assert engine.get_samples()["mu"].isfinite().all()


@needs_stan
def test_single_precision(program: px.stan.StanProgram) -> None:
    target = px.LogDensity(program, dtype=torch.float32)
    z = positions(3).float()
    found = target.score(z, target.bind())
    assert found.score.dtype == torch.float32
    expected = (MEAN - z.double().numpy()) @ np.linalg.inv(COVARIANCE)
    torch.testing.assert_close(
        found.score.double(), torch.as_tensor(expected), rtol=1e-6, atol=1e-6
    )


@needs_stan
def test_draws_and_arviz_have_stans_names() -> None:
    program = px.stan.model(
        PROGRAM, json.dumps({**DATA, "y": Y.tolist()}), generated_quantities=True
    )
    engine = px.SVGD(program, pyro.optim.Adam({"lr": 0.1}), num_particles=6, seed=0)
    engine.run(2, progress_bar=False)
    draws = engine.get_samples()
    shapes = {**SHAPES, "prediction": ()}
    assert {name: tuple(draws[name].shape) for name in shapes} == {
        name: (6, *shape) for name, shape in shapes.items()
    }
    latent = {"unconstrained__": draws["unconstrained__"]}
    again = Predictive(program, posterior_samples=latent)()
    data = px.to_arviz(engine)
    assert set(data.posterior.data_vars) == set(shapes)
    assert set(data.unconstrained_posterior.data_vars) == {"unconstrained__"}
    for name in shapes:
        assert torch.equal(again[name], draws[name])
        np.testing.assert_array_equal(data.posterior[name].values[0], draws[name].numpy())
    # As Stan drops constants: the difference to the native density is one number.
    log_p = program.log_density(draws["unconstrained__"])
    np.testing.assert_allclose(data.sample_stats["log_p"].values[0], log_p.numpy())
    # Noise of its own for each draw, the same whenever it is looked at.
    noise = draws["prediction"] - draws["mu"]
    assert noise.unique().numel() == 6


@needs_stan
def test_svgd_finds_the_means(program: px.stan.StanProgram) -> None:
    engine = px.SVGD(program, pyro.optim.Adam({"lr": 0.2}), num_particles=40, seed=0)
    engine.run(400, progress_bar=False)
    found = flat(engine.get_samples())
    # Of a symmetric posterior the particles' mean is exact where they have come to rest.
    np.testing.assert_allclose(found.mean(0), MEAN, atol=0.05)


@needs_stan
def test_proximal_score_vi_finds_the_moments(program: px.stan.StanProgram) -> None:
    guide = AutoMultivariateNormal(program)
    engine = px.ProximalScoreVI(program, guide, solver=px.Regression(num_samples=64), seed=0)
    engine.run(60, progress_bar=False)
    draws = engine.get_samples(4000)
    found = flat(draws)
    deviation = np.sqrt(np.diag(COVARIANCE))
    assert np.all(np.abs(found.mean(0) - MEAN) < 5.0 * deviation / np.sqrt(4000))
    scaled = np.cov(found.T) / np.outer(deviation, deviation)
    expected = COVARIANCE / np.outer(deviation, deviation)
    assert np.abs(scaled - expected).max() < 5.0 * np.sqrt(2.0 / 4000)


@needs_stan
def test_resuming_is_exact(program: px.stan.StanProgram, tmp_path: Path) -> None:
    def engine() -> px.SVGD:
        return px.SVGD(program, pyro.optim.Adam({"lr": 0.1}), num_particles=5, seed=1)

    whole, first, second = engine(), engine(), engine()
    whole.run(6, progress_bar=False)
    first.run(3, progress_bar=False)
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    second.run(3, progress_bar=False)
    for name, value in whole.get_samples().items():
        assert torch.equal(value, second.get_samples()[name])


@needs_stan
def test_copies_are_the_same_program(program: px.stan.StanProgram) -> None:
    z = positions(2)
    for copied in (copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        assert torch.equal(copied.log_density(z), program.log_density(z))
    assert "11 unconstrained numbers" in repr(program)


@needs_stan
@pytest.mark.parametrize(
    "estimator", [px.Minibatch(), px.SAGA(), px.SVRG(4)], ids=["minibatch", "saga", "svrg"]
)
def test_what_needs_rows_is_refused(program: px.stan.StanProgram, estimator: Any) -> None:
    optim = pyro.optim.Adam({"lr": 0.1})
    with pytest.raises(px.ArgumentError, match="in one piece, as that of a Stan program is"):
        px.SVGD(program, optim, estimator=estimator).run(1, progress_bar=False)


@needs_stan
def test_what_needs_a_likelihood_is_refused(program: px.stan.StanProgram) -> None:
    optim = pyro.optim.Adam({"lr": 0.1})
    with pytest.raises(px.ArgumentError, match="in one piece, as that of a Stan program is"):
        px.SVGDVR(program, optim, anchor_every=4).run(1, progress_bar=False)
    with pytest.raises(px.ArgumentError, match="in one piece, as that of a Stan program is"):
        px.LaplaceGGN(program, _adam(), seed=0).run(1, progress_bar=False)
    with pytest.raises(px.ArgumentError, match="likelihood_temperature=2.0 has nothing to divide"):
        px.LogDensity(program, likelihood_temperature=2.0)


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
    with pytest.raises(px.ArgumentError, match=message) as caught:
        px.stan.model(PROGRAM, data)
    assert "\n" not in str(caught.value)


@needs_stan
def test_an_invalid_program_is_told_with_stans_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.stan"
    file.write_text("parameters { real mu; }\nmodel {\n  mu ~ norml(0, 1);\n}\n")
    with pytest.raises(px.ArgumentError, match=r"'broken.stan', line 3.*norml_lpdf") as caught:
        px.stan.model(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5])
def test_seeds_that_stan_does_not_take(seed: Any) -> None:
    with pytest.raises(px.ArgumentError, match=r"from 0 to 2\*\*32 - 1, found"):
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
    with pytest.raises(px.ArgumentError, match="data 'y', found rows of different lengths"):
        stan_inputs.read_data({"y": [[1.0, 2.0], [3.0]]})


def test_a_program_that_cannot_be_read() -> None:
    with pytest.raises(px.ArgumentError, match="'no-such.stan': No such file"):
        px.stan.model("no-such.stan")


def test_without_bridgestan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bridgestan", None)
    with pytest.raises(ImportError, match=r'pip install "ppl-ext\[stan\]"'):
        px.stan.model(PROGRAM, DATA)


def _adam(rate: float = 0.05) -> Any:
    return pyro.optim.Adam({"lr": rate})


ENGINES = {
    "WGD": lambda program: px.WGD(program, _adam(), num_particles=40, seed=0),
    "DeepEnsemble": lambda program: px.DeepEnsemble(program, _adam(), seed=0),
    "SVN": lambda program: px.SVN(program, num_particles=40, seed=0),
    "SVN, diagonal": lambda program: px.SVN(program, num_particles=40, curvature="diag", seed=0),
    "GSM": lambda program: px.GSM(program, AutoMultivariateNormal(program), seed=0),
    "BaM": lambda program: px.BaM(program, AutoMultivariateNormal(program), seed=0),
    "FisherVI": lambda program: px.FisherVI(
        program, AutoMultivariateNormal(program, init_scale=1.0), _adam(), num_samples=16, seed=0
    ),
    "ProximalScoreVI": lambda program: px.ProximalScoreVI(
        program,
        AutoMultivariateNormal(program),
        solver=px.GradientSteps(_adam(0.01), num_samples=64),
        seed=0,
    ),
    "diagonal": lambda program: px.ProximalScoreVI(
        program,
        AutoDiagonalNormal(program),
        solver=px.GradientSteps(_adam(0.01), num_samples=64),
        seed=0,
    ),
    "low rank": lambda program: px.ProximalScoreVI(
        program,
        AutoLowRankMultivariateNormal(program, rank=2),
        solver=px.GradientSteps(_adam(0.01), num_samples=64),
        seed=0,
    ),
    "mixture": lambda program: px.ProximalScoreVI(
        program,
        px.AutoGaussianMixture(program, 2),
        solver=px.GradientSteps(_adam(0.01), num_samples=64),
        seed=0,
    ),
    "planar": lambda program: px.ProximalScoreVI(
        program,
        px.AutoPlanarFlow(program),
        solver=px.GradientSteps(_adam(0.01), num_samples=64),
        seed=0,
    ),
    "Noisy": lambda program: px.SVGD(
        program, _adam(), num_particles=40, estimator=px.Noisy(level=0.1), seed=0
    ),
    "inductor": lambda program: px.SVGD(
        program, _adam(), num_particles=40, evaluation="inductor", seed=0
    ),
}


# A Newton step takes as many products with second derivatives as there are parameters.
STEPS = {"SVN": 40, "SVN, diagonal": 40}


@needs_stan
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_finds_the_means(program: px.stan.StanProgram, name: str) -> None:
    engine: Any = ENGINES[name](program)
    engine.run(STEPS.get(name, 1000), progress_bar=False)
    draws = engine.get_samples() if hasattr(engine, "num_particles") else engine.get_samples(4000)
    found = flat(draws)
    deviation = np.sqrt(np.diag(COVARIANCE))
    # Stochastic fits stay within a fraction of a posterior's deviation of its mean.
    np.testing.assert_allclose((found.mean(0) - MEAN) / deviation, 0.0, atol=0.35)


@needs_stan
@pytest.mark.slow
def test_programs_without_data_and_with_a_narrow_support() -> None:
    """A simplex, whose unconstrained size is below its own, and a program that starts nowhere."""
    simplex = px.stan.model(
        "parameters { simplex[3] p; } model { p ~ dirichlet([2, 3, 4]'); }", threads=2
    )
    assert simplex.density.dim == 2 and simplex.density.shapes == {"p": (3,)}
    engine = px.SVN(simplex, num_particles=50, seed=0)
    engine.run(100, progress_bar=False)
    found = engine.get_samples()["p"]
    torch.testing.assert_close(found.sum(1), torch.ones(50))
    torch.testing.assert_close(found.mean(0), torch.tensor([2.0, 3.0, 4.0]) / 9, atol=0.03, rtol=0)
    with pytest.warns(UserWarning, match="no finite density at 100 random positions.*too small"):
        px.stan.model(
            "parameters { real a; }\n"
            'model { if (a < 50) reject("a is too small"); a ~ normal(0, 1); }'
        )
    with pytest.raises(px.ArgumentError, match="Expected a Stan program with parameters"):
        px.stan.model("model { }")
