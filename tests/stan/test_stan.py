"""Stan programs as programs of both hosts: density, gradient, parameters, engines and refusals."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError, NonFiniteError
from ppl_ext.stan import density as stan_density
from ppl_ext.stan import inputs as stan_inputs
from tests.backends import backend_of, use_float64
from tests.fit.test_fit import fit_of
from tests.gradients_support import Estimation
from tests.stan_support import (
    B_MEANS,
    DATA,
    DIM,
    PROGRAM,
    REJECTING,
    SHAPES,
    WHERE,
    Y,
    flat,
    moments,
    needs_stan,
)
from tests.stein_support import Run

use_float64()

MEAN, COVARIANCE = moments()
PRECISION = np.linalg.inv(COVARIANCE)
DEVIATION = np.sqrt(np.diag(COVARIANCE))
IN_ONE_PIECE = "in one piece, as that of a Stan program is"


@cache
def program_of(package: str) -> Any:
    return backend_of(package).public.stan.model(PROGRAM, DATA)


@pytest.fixture
def program(backend: Any) -> Any:
    return program_of(backend.name)


def positions(num: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (num, DIM))


def density_and_gradient(backend: Any, program: Any) -> Callable[[np.ndarray], tuple[Any, ...]]:
    """Of positions (P, D)."""
    transforms = backend.transforms
    both = transforms.grad_and_value if backend.is_pyro else transforms.value_and_grad
    function = backend.compiled(transforms.vmap(both(program.log_density)))

    def found(z: np.ndarray) -> tuple[Any, ...]:
        parts = function(backend.array(z, z.dtype.name))
        return tuple(map(backend.numpy, parts[::-1] if backend.is_pyro else parts))

    return found


@needs_stan
def test_names_and_shapes(backend: Any, program: Any) -> None:
    z = positions(5)
    given = program.constrain(backend.array(z))
    values = {name: backend.numpy(value) for name, value in given.items()}
    assert program.parameter_sites == tuple(values) == tuple(SHAPES)
    assert {name: value.shape[1:] for name, value in values.items()} == SHAPES
    np.testing.assert_allclose(values["mu"], z[:, 0])
    np.testing.assert_allclose(values["tau"], np.exp(z[:, WHERE["tau"]]))
    np.testing.assert_allclose(values["b"], z[:, WHERE["b"]].reshape(-1, 3, 2).swapaxes(1, 2))
    np.testing.assert_allclose(values["c"], 2.0 * values["b"].swapaxes(1, 2))
    one = {name: given[name][2] for name in ("mu", "tau", "x", "b")}
    np.testing.assert_allclose(program.unconstrain(one), z[2])


@needs_stan
def test_gradient_is_that_of_finite_differences(backend: Any, program: Any) -> None:
    z, step = positions(3), 1e-5
    steps = step * np.eye(DIM)
    ahead, behind = (
        backend.numpy(program.log_density(backend.array(z[:, None] + sign * steps)))
        for sign in (1.0, -1.0)
    )
    _, found = density_and_gradient(backend, program)(z)
    np.testing.assert_allclose(found, (ahead - behind) / (2 * step), rtol=1e-7, atol=1e-7)


@needs_stan
def test_density_is_that_of_the_native_program(backend: Any, program: Any) -> None:
    host, dist, array = backend.host, backend.dist, backend.array

    def native() -> None:
        mu = host.sample("mu", dist.Normal(1.0, 2.0))
        host.sample("tau", dist.LogNormal(array(np.array([0.0, 1.0])), 0.5).to_event(1))
        covariance = array(np.array([[1.0, 0.8], [0.8, 1.0]]))
        host.sample("x", dist.MultivariateNormal(array(np.zeros(2)), covariance))
        host.sample("b", dist.Normal(array(B_MEANS), 0.5).to_event(2))
        with host.plate("rows", len(Y)):
            host.sample("y", dist.Normal(mu, DATA["sd"]), obs=array(Y))

    (ours, data), (theirs, other) = backend.target(program), backend.target(native)
    z = array(positions(6))
    at = theirs.unconstrain(ours.constrain(z, data), other)
    found = backend.numpy(ours.log_density(z, data))
    difference = found - backend.numpy(theirs.log_density(at, other))
    np.testing.assert_allclose(difference, difference[0], rtol=0.0, atol=1e-9)
    # The densities vary by far more than that.
    assert found.std() > 1.0


@needs_stan
def test_second_derivatives_are_stans(backend: Any, program: Any) -> None:
    # torch's functions of a user have no derivatives in forward mode.
    for mode in ("jacrev",) if backend.is_pyro else ("jacrev", "jacfwd"):
        outer, vmap = getattr(backend.transforms, mode), backend.transforms.vmap
        second = outer(backend.transforms.grad(program.log_density))
        found = backend.numpy(vmap(second)(backend.array(positions(2))))
        for each in found:
            np.testing.assert_allclose(each, -PRECISION, rtol=1e-6, atol=1e-6)
        with pytest.raises(NotImplementedError, match="third ones were asked for"):
            outer(second)(backend.array(positions(1)[0]))


@needs_stan
@pytest.mark.parametrize("chunk", [None, 3])
def test_a_batch_is_its_rows(backend: Any, program: Any, chunk: int | None) -> None:
    z = positions(7)
    loop = np.array([program.log_density(backend.array(row)) for row in z])
    for evaluation in ("graph", "handlers", "loop") if backend.is_pyro else ("",):
        options = {"evaluation": evaluation} if evaluation else {}
        target, data = backend.target(program, particle_chunk=chunk, **options)
        found = target.score(backend.array(z), data)
        np.testing.assert_allclose(found.score, (MEAN - z) @ PRECISION)
        np.testing.assert_allclose(found.log_prior + found.log_likelihood, loop)
        assert not evaluation or target.evaluation == evaluation


@needs_stan
def test_threads_change_nothing(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, several = (backend.public.stan.model(PROGRAM, DATA, threads=number) for number in (1, 3))
    monkeypatch.setattr("ppl_ext.stan.density.WORTH_A_THREAD", 0.0)
    z = backend.array(positions(20))
    np.testing.assert_array_equal(alone.log_density(z), several.log_density(z))
    np.testing.assert_array_equal(alone.constrain(z)["c"], several.constrain(z)["c"])
    assert several.density._pool is not None and alone.density._pool is None


@needs_stan
def test_many_long_rows_come_through(backend: Any, program: Any) -> None:
    """A callback of JAX may ask for its arguments while the device is busy with what follows."""
    z = positions(20_000)
    _, found = density_and_gradient(backend, program)(z)
    np.testing.assert_allclose(found, (MEAN - z) @ PRECISION, atol=1e-9)


@needs_stan
def test_rejected_positions_have_no_density(backend: Any, program: Any) -> None:
    z = positions(4)
    z[1, 0], z[2, 3] = 41.0, np.nan
    value, gradient = density_and_gradient(backend, program)(z)
    np.testing.assert_array_equal(np.isfinite(value), [True, False, False, True])
    np.testing.assert_array_equal(value[1:3], -np.inf)
    np.testing.assert_array_equal(gradient[1:3], 0.0)
    alone = backend.transforms.grad(program.log_density)(backend.array(z[3]))
    np.testing.assert_array_equal(gradient[3], backend.numpy(alone))
    backend.numpy(program.log_density(backend.array(z[1])))
    assert program.density.rejection is not None
    assert "mu is too large: 41" in program.density.rejection


@needs_stan
def test_a_step_to_a_rejected_position_is_reported(backend: Any, program: Any) -> None:
    sgd = backend.host.optim.SGD
    run = Run(
        backend, "SVGD", program, sgd({"lr": 1e5}) if backend.is_pyro else sgd(1e5), num_particles=4
    )
    with pytest.raises(NonFiniteError) as caught:
        run.run(5)
    if not backend.is_pyro:
        run.state = caught.value.state
    assert np.isfinite(run.samples()["mu"]).all()


@needs_stan
def test_single_precision(backend: Any, program: Any) -> None:
    z = positions(3).astype(np.float32)
    expected = (MEAN - z.astype(float)) @ PRECISION
    value, score = density_and_gradient(backend, program)(z)
    assert value.dtype == score.dtype == np.float32
    np.testing.assert_allclose(score, expected, rtol=1e-6, atol=1e-6)
    if backend.is_pyro:  # whose precision is an option of the target's
        target, data = backend.target(program, dtype=backend.xp.float32)
        score = backend.numpy(target.score(backend.array(z, "float32"), data).score)
        assert score.dtype == np.float32
        np.testing.assert_allclose(score, expected, rtol=1e-6, atol=1e-6)


@needs_stan
def test_draws_and_arviz_have_stans_names(backend: Any) -> None:
    text = json.dumps({**DATA, "y": Y.tolist()})
    program = backend.public.stan.model(PROGRAM, text, generated_quantities=True)
    run = Run(backend, "SVGD", program, backend.adam(0.1), num_particles=6).run(2)
    draws, shapes = run.samples(), {**SHAPES, "prediction": ()}
    assert {name: draws[name].shape for name in shapes} == {
        name: (6, *shape) for name, shape in shapes.items()
    }
    keys = () if backend.is_pyro else (backend.key(),)
    z = backend.array(draws["unconstrained__"])
    again = backend.host.infer.Predictive(program, posterior_samples={"unconstrained__": z})(*keys)
    data = backend.public.to_arviz(run.engine, *(() if backend.is_pyro else (run.state,)))
    assert set(data.posterior.data_vars) == set(shapes)
    assert set(data.unconstrained_posterior.data_vars) == {"unconstrained__"}
    for name in shapes:
        np.testing.assert_array_equal(again[name], draws[name])
        np.testing.assert_array_equal(data.posterior[name].values[0], draws[name])
    # As Stan drops constants: the difference to the native density is one number.
    np.testing.assert_allclose(data.sample_stats["log_p"].values[0], program.log_density(z))
    # Noise of its own for each draw, the same whenever it is looked at.
    assert len(np.unique(draws["prediction"] - draws["mu"])) == 6


@needs_stan
def test_a_fit_has_stans_parameters(backend: Any, program: Any, tmp_path: Path) -> None:
    fit = fit_of(backend, program)
    assert fit.verdict.trusted
    draws = {name: backend.numpy(value) for name, value in fit.draws.items()}
    assert {name: draws[name].shape[1:] for name in SHAPES} == SHAPES
    assert np.all(np.abs(flat(draws).mean(0) - MEAN) < 4.0 * DEVIATION / np.sqrt(400))
    np.testing.assert_allclose(draws["c"], 2.0 * draws["b"].transpose(0, 2, 1))
    fit.save(tmp_path / "fit")
    assert set(backend.public.load_fit(tmp_path / "fit", program).draws) == set(draws)


@needs_stan
def test_rejected_generated_quantities_leave_the_parameters(backend: Any, tmp_path: Path) -> None:
    program = backend.public.stan.model(REJECTING, generated_quantities=True)
    z = np.array([[1.0], [2.5], [1.5], [3.0]])
    with pytest.warns(UserWarning, match="at 2 of 4 positions.*the parameters are kept.*is high"):
        found = program.constrain(backend.array(z))
    values = {name: backend.numpy(value) for name, value in found.items()}
    np.testing.assert_array_equal(values["mu"], z[:, 0])
    np.testing.assert_array_equal(values["twice"], 2.0 * z[:, 0])
    expected = np.where(z > 2.0, np.nan, z + 1.0).repeat(2, 1)
    np.testing.assert_array_equal(values["next"], expected)
    # It is not said again of fewer.
    program.constrain(backend.array(z[:2]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fit = fit_of(backend, program)
        verdict = backend.public.check(
            *(() if backend.is_pyro else (backend.key(1),)), fit, program
        )
    assert fit.verdict.level == "exact" and verdict.trusted
    draws = backend.numpy(fit.draws["mu"])
    # Of the Normal(2, 1), within four errors of 400 draws; half of it is rejected.
    assert abs(draws.mean() - 2.0) < 0.2 and draws.std() == pytest.approx(1.0, abs=0.15)
    np.testing.assert_array_equal(np.isnan(backend.numpy(fit.draws["next"]))[:, 0], draws > 2.0)
    fit.save(tmp_path / "fit.npz")
    loaded = backend.public.load_fit(tmp_path / "fit.npz")
    np.testing.assert_array_equal(loaded.draws["next"], backend.numpy(fit.draws["next"]))


def test_files_may_have_braces_in_their_names_and_a_byte_order_mark(tmp_path: Path) -> None:
    folder = tmp_path / "run {1}"
    folder.mkdir()
    program, data = folder / "m{a}.stan", folder / "data {1}.json"
    program.write_text(REJECTING, encoding="utf-8-sig")
    data.write_text('{"N": 3}', encoding="utf-8-sig")
    for kind in (str, Path):
        assert stan_inputs.read_program(kind(program)) == (REJECTING, "m{a}.stan")
        assert stan_inputs.read_data(kind(data)) == '{"N": 3}'
    assert stan_inputs.read_program("parameters { real mu; }")[1] == "program"
    # Longer than a path may be.
    long = json.dumps({"y": list(range(5_000))})
    assert stan_inputs.read_data(long) == long


@needs_stan
def test_svgd_finds_the_means_and_resumes(backend: Any, program: Any, tmp_path: Path) -> None:
    half = Run(backend, "SVGD", program, backend.adam(0.2), num_particles=40).run(200)
    resumed = half.saved_and_loaded(tmp_path / "state").run(200).samples()
    draws = half.run(200).samples()
    for name, value in draws.items():
        np.testing.assert_array_equal(value, resumed[name])
    # Of a symmetric posterior the particles' mean is exact where they have come to rest.
    np.testing.assert_allclose(flat(draws).mean(0), MEAN, atol=0.05)


@needs_stan
def test_proximal_score_vi_finds_the_moments(backend: Any, program: Any) -> None:
    guide = backend.autoguide.AutoMultivariateNormal(program)
    solver = backend.public.Regression(num_samples=64)
    fit = backend.fit("ProximalScoreVI", program, guide, solver=solver, steps=60, draws=4000)
    found = flat(fit.samples)
    assert np.all(np.abs(found.mean(0) - MEAN) < 5.0 * DEVIATION / np.sqrt(4000))
    scaled = np.cov(found.T) / np.outer(DEVIATION, DEVIATION)
    expected = COVARIANCE / np.outer(DEVIATION, DEVIATION)
    assert np.abs(scaled - expected).max() < 5.0 * np.sqrt(2.0 / 4000)


@needs_stan
def test_copies_are_the_same_program(backend: Any, program: Any) -> None:
    z = backend.array(positions(2))
    for copied in (copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        np.testing.assert_array_equal(copied.log_density(z), program.log_density(z))
    assert "11 unconstrained numbers" in repr(program)


@needs_stan
def test_both_packages_have_the_same_program() -> None:
    z, both = positions(5), []
    for backend in map(backend_of, ("pyro", "numpyro")):
        program = backend.public.stan.model(PROGRAM, DATA, generated_quantities=True, seed=3)
        parameters = program.constrain(backend.array(z))
        both.append((program, density_and_gradient(backend, program)(z), parameters))
    (ours, found, values), (theirs, expected, others) = both
    assert ours.parameter_sites == theirs.parameter_sites
    assert ours.density.settings == theirs.density.settings
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    for name, value in values.items():
        np.testing.assert_array_equal(value, others[name])


@needs_stan
def test_what_needs_rows_or_a_likelihood_is_refused(backend: Any, program: Any) -> None:
    public = backend.public
    for estimator in (public.Minibatch(), public.SAGA(), public.SVRG(4)):
        with pytest.raises(ArgumentError, match=IN_ONE_PIECE):
            Estimation(backend, estimator, *backend.target(program))
    for engine, options in (("SVGDVR", {"anchor_every": 4}), ("LaplaceGGN", {})):
        with pytest.raises(ArgumentError, match=IN_ONE_PIECE):
            backend.fit(engine, program, backend.adam(0.1), steps=1, **options)
    with pytest.raises(ArgumentError, match=r"likelihood_temperature=2.0 has nothing to divide"):
        backend.target(program, likelihood_temperature=2.0)


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
def test_data_that_do_not_fit(backend: Any, data: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        backend.public.stan.model(PROGRAM, data)
    assert "\n" not in str(caught.value)


@needs_stan
def test_an_invalid_program_is_told_with_stans_line(backend: Any, tmp_path: Path) -> None:
    file = tmp_path / "broken.stan"
    file.write_text("parameters { real mu; }\nmodel {\n  mu ~ norml(0, 1);\n}\n")
    with pytest.raises(ArgumentError, match=r"'broken.stan', line 3.*norml_lpdf") as caught:
        backend.public.stan.model(file)
    assert "\n" not in str(caught.value)


def test_a_program_that_cannot_be_read(backend: Any) -> None:
    with pytest.raises(ArgumentError, match="'no-such.stan': No such file"):
        backend.public.stan.model("no-such.stan")


def test_without_bridgestan(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bridgestan", None)
    with pytest.raises(ImportError, match=r'pip install "ppl-ext\[stan\]"'):
        backend.public.stan.model(PROGRAM, DATA)


# -- what no host has a part in --------------------------------------------------------------------


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5])
def test_seeds_that_stan_does_not_take(seed: Any) -> None:
    with pytest.raises(ArgumentError, match=r"from 0 to 2\*\*32 - 1, found"):
        stan_density.StanDensity(Path("none.so"), "", name="one", seed=seed)


def test_rejected_positions_without_stan() -> None:
    """Minus infinity where Stan raises an error or finds no number, and what it said is kept."""

    def log_density(z: np.ndarray) -> float:
        if z[0] < 0.0:
            raise RuntimeError("log_density() failed: Exception: scale is negative")
        return float("nan") if z[0] > 9.0 else float(z.sum())

    def log_density_gradient(z: np.ndarray, out: np.ndarray) -> tuple[float, np.ndarray]:
        out[:] = 1.0  # written before the error is raised
        return log_density(z), out

    density = object.__new__(stan_density.StanDensity)
    density.dim, density.name, density.threads, density.rejection = 2, "one", 1, None

    def hessian_product(z: np.ndarray, v: np.ndarray, out: np.ndarray) -> tuple[float, np.ndarray]:
        out[:] = v
        return log_density(z), out

    density._model = SimpleNamespace(
        log_density=log_density,
        log_density_gradient=log_density_gradient,
        log_density_hessian_vector_product=hessian_product,
    )
    z = [[1.0, 2.0], [-1.0, 2.0], [10.0, 2.0]]
    value, gradient = density.value_and_gradient(z)
    for found in (value, density.value(z)):
        np.testing.assert_array_equal(found, [3.0, -np.inf, -np.inf])
    for found in (gradient, density.hessian_product(z, np.ones((3, 2)))):
        np.testing.assert_array_equal(found, [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    assert density.rejection == "scale is negative"


def test_ragged_data_are_told() -> None:
    with pytest.raises(ArgumentError, match="data 'y', found rows of different lengths"):
        stan_inputs.read_data({"y": [[1.0, 2.0], [3.0]]})


# -- every engine ----------------------------------------------------------------------------------


def guided(guide: str, **options: Any) -> Callable[[Any, Any], Any]:
    """A guide engine's options: a guide of the host's or of the package's."""

    def given(backend: Any, program: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        public, own = backend.public, getattr(backend.public, guide, None)
        made = (own or getattr(backend.autoguide, guide))(program, **options)
        return (made,), {"solver": public.GradientSteps(backend.adam(0.01), num_samples=64)}

    return given


def matched(backend: Any, program: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (backend.autoguide.AutoMultivariateNormal(program),), {}


def fisher(backend: Any, program: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    guide = backend.autoguide.AutoMultivariateNormal(program, init_scale=1.0)
    return (guide, backend.adam(0.05)), {"num_samples": 16}


def particles(number: int | None = 40, **options: Any) -> Callable[[Any, Any], Any]:
    def given(backend: Any, program: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named = options if number is None else {"num_particles": number, **options}
        return (backend.adam(0.05),), named

    return given


def noisy(backend: Any, program: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return particles(estimator=backend.public.Noisy(level=0.1))(backend, program)


#: Name of the engine, what it is given, and steps. A Newton step takes as many products with
#: second derivatives as there are parameters.
ENGINES: dict[str, tuple[str, Callable[[Any, Any], Any], int]] = {
    "WGD": ("WGD", particles(), 1000),
    "DeepEnsemble": ("DeepEnsemble", particles(None), 1000),
    "SVN": ("SVN", lambda *_: ((), {"num_particles": 40}), 40),
    "SVN, diagonal": ("SVN", lambda *_: ((), {"num_particles": 40, "curvature": "diag"}), 40),
    "GSM": ("GSM", matched, 1000),
    "BaM": ("BaM", matched, 1000),
    "FisherVI": ("FisherVI", fisher, 1000),
    "ProximalScoreVI": ("ProximalScoreVI", guided("AutoMultivariateNormal"), 1000),
    "diagonal": ("ProximalScoreVI", guided("AutoDiagonalNormal"), 1000),
    "low rank": ("ProximalScoreVI", guided("AutoLowRankMultivariateNormal", rank=2), 1000),
    "mixture": ("ProximalScoreVI", guided("AutoGaussianMixture", num_components=2), 1000),
    "planar": ("ProximalScoreVI", guided("AutoPlanarFlow"), 1000),
    "Noisy": ("SVGD", noisy, 1000),
    "inductor": ("SVGD", particles(evaluation="inductor"), 1000),
}


@needs_stan
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_finds_the_means(backend: Any, program: Any, name: str) -> None:
    if name == "inductor" and not backend.is_pyro:
        pytest.skip("an evaluation of torch's")
    engine, options, steps = ENGINES[name]
    given, named = options(backend, program)
    draws = None if hasattr(getattr(backend.public, engine), "particles") else 4000
    fit = backend.fit(engine, program, *given, steps=steps, draws=draws, **named)
    # Stochastic fits stay within a fraction of a posterior's deviation of its mean.
    np.testing.assert_allclose((flat(fit.samples).mean(0) - MEAN) / DEVIATION, 0.0, atol=0.35)


@needs_stan
@pytest.mark.slow
def test_the_hosts_nuts_takes_it(backend: Any, program: Any) -> None:
    NUTS, MCMC = backend.host.infer.NUTS, backend.host.infer.MCMC
    if backend.is_pyro:
        backend.host.set_rng_seed(0)
        mcmc = MCMC(NUTS(program), 1000, 300, disable_progbar=True)
        mcmc.run()
    else:
        mcmc = MCMC(NUTS(program), num_warmup=300, num_samples=1000, progress_bar=False)
        mcmc.run(backend.key())
    draws = mcmc.get_samples()
    # Pyro's chains hold no deterministic sites.
    draws = draws if "mu" in draws else program.constrain(draws["unconstrained__"])
    # A chain of NUTS on a Gaussian has at least a third of its draws' worth.
    error = (flat(draws).mean(0) - MEAN) / DEVIATION
    np.testing.assert_allclose(error, 0.0, atol=5.0 / np.sqrt(333))


@needs_stan
@pytest.mark.slow
def test_programs_without_data_and_with_a_narrow_support(backend: Any) -> None:
    """A simplex, whose unconstrained size is below its own, and a program that starts nowhere."""
    model = backend.public.stan.model
    simplex = model("parameters { simplex[3] p; } model { p ~ dirichlet([2, 3, 4]'); }", threads=2)
    assert simplex.density.dim == 2 and simplex.density.shapes == {"p": (3,)}
    found = backend.fit("SVN", simplex, num_particles=50, steps=100).samples["p"]
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(found.mean(0), np.array([2.0, 3.0, 4.0]) / 9, atol=0.03)
    with pytest.warns(UserWarning, match="no finite density at 100 random positions.*too small"):
        model(
            "parameters { real a; }\n"
            'model { if (a < 50) reject("a is too small"); a ~ normal(0, 1); }'
        )
    with pytest.raises(ArgumentError, match="Expected a Stan program with parameters"):
        model("model { }")
