"""Draws, fits and data sets that a figure cannot be made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from tests.backends import backend_of
from tests.faults.programs import Y, mean
from tests.faults.table import RUNS, Trial, fault
from tests.stein_support import optimizer

#: Here there are no steps to come before.
REFUSED_AT_ONCE = "refused"


def supports(backend: Any) -> Callable[[Any], None]:
    """Latents on the line, above zero, in the unit interval and on a simplex."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 1.0))
        sigma = host.sample("sigma", dist.HalfNormal(1.0))
        part = host.sample("part", dist.Beta(2.0, 2.0))
        shares = host.sample("shares", dist.Dirichlet(xp.ones(3)))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu + part + shares[..., 0], sigma), obs=y)

    return model


def drawn(**other: Any) -> dict[str, Any]:
    """Six draws of its latents."""
    return {
        "mu": np.linspace(-1.0, 1.0, 6),
        "sigma": np.linspace(0.5, 2.0, 6),
        "part": np.linspace(0.1, 0.9, 6),
        "shares": np.full((6, 3), 1.0 / 3.0),
        **other,
    }


def predicted(trial: Trial, draws: Any, model: Any = None, **options: Any) -> Any:
    """What is predicted for ``Y``."""
    if isinstance(draws, Mapping):
        draws = {
            name: value if isinstance(value, list) else trial.backend.array(value)
            for name, value in draws.items()
        }
    return trial.public.predictive_distribution(
        model or supports(trial.backend), draws, trial.backend.array(Y), **options
    )


ONE_BAD = np.where(np.arange(6) == 2, -1.0, 1.0)

PREDICTIONS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a negative scale among the draws": (
        drawn(sigma=ONE_BAD),
        {},
        r"1 of 6 draws of 'sigma' \(the first is draw 2\)",
    ),
    "NaN among the draws": (
        drawn(mu=np.where(ONE_BAD < 0.0, np.nan, 1.0)),
        {},
        "1 of 6 draws of 'mu'",
    ),
    "infinity among the draws": (
        drawn(mu=np.where(ONE_BAD < 0.0, np.inf, 1.0)),
        {},
        "1 of 6 draws of 'mu'",
    ),
    "a share of 1.5": (drawn(part=np.full(6, 1.5)), {}, "6 of 6 draws of 'part'"),
    "shares that sum to 2": (drawn(shares=np.full((6, 3), 2.0 / 3.0)), {}, "draws of 'shares'"),
    "a latent site without draws": (
        {name: value for name, value in drawn().items() if name != "mu"},
        {},
        r"found (none|neither) for \['mu'\]",
    ),
    "more draws of one site than of another": (
        drawn(mu=np.zeros(5)),
        {},
        "as many as of the others",
    ),
    "no draws, or one without an axis of draws": (drawn(mu=0.0), {}, "as many as of the others"),
    "chains and draws in two axes": (
        {name: np.stack([value, value]) for name, value in drawn().items()},
        {},
        "Chains must be one axis with the draws",
    ),
    "an empty dictionary of draws": ({}, {}, "Expected draws as a mapping"),
    "draws that are a list": ([0.0], {}, "Expected draws as a mapping"),
    "draws that are text": (drawn(mu=["a"] * 6), {}, "to be real numbers"),
    "a site to predict that there is not": (drawn(), {"site": "z"}, "Expected site to be one of"),
    "a latent site to predict": (drawn(), {"site": "mu"}, "Expected site to be one of"),
    "`data_chunk=0`": (drawn(), {"data_chunk": 0}, "Expected data_chunk to be an int >= 1"),
    "a number of draws beside draws": (drawn(), {"num_samples": 3}, "Expected no num_samples with"),
    "values of another shape to be linear at": (
        drawn(),
        {"linearize": drawn(mu=np.zeros(3), sigma=1.0, part=0.5, shares=np.full(3, 1.0 / 3.0))},
        r"site 'mu' in shape \(\), found \(3,\)",
    ),
}


def _predictions(draws: Any, options: dict[str, Any], words: str, trial: Trial) -> None:
    with trial.refused(words):
        predicted(trial, draws, **options)


for _given, (_draws, _options, _words) in PREDICTIONS.items():
    fault("Predictions", _given, REFUSED_AT_ONCE)(partial(_predictions, _draws, _options, _words))


@fault("Predictions", "draws at the edge of their supports, as rounding leaves them", RUNS)
def _edge(trial: Trial) -> None:
    edge = drawn(part=np.ones(6), shares=np.tile([0.0, 0.0, 1.00001], (6, 1)))
    assert predicted(trial, edge).sizes["draw"] == 6


@fault("Predictions", "draws that are finite in a program whose rows come in chunks", RUNS)
def _chunks(trial: Trial) -> None:
    model = mean(trial.backend, 10)
    assert predicted(trial, {"mu": np.zeros(3)}, model, data_chunk=7).sizes["row"] == 40


def several(backend: Any) -> Callable[..., None]:
    """A prior written as an observation, and two sites that may be observed."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any, y: Any = None, z: Any = None) -> None:
        log_scale = host.sample("log_scale", dist.Normal(0.0, 1.0))
        scale = host.sample("scale", dist.HalfNormal(1.0), obs=xp.exp(log_scale))
        with host.plate("rows", len(x)):
            host.sample("y", dist.Normal(x, scale), obs=y)
            host.sample("z", dist.Bernoulli(logits=scale * x), obs=z)

    return model


HIDDEN: dict[str, tuple[bool, bool, str | None]] = {
    "two observed sites, both without values": (False, False, None),
    "two observed sites, both with values": (True, True, None),
    "two observed sites, the discrete one without values": (True, False, "z"),
    "two observed sites, the continuous one without values": (False, True, "y"),
}


def _hidden(has_y: bool, has_z: bool, site: str | None, trial: Trial) -> None:
    x, draws = trial.backend.array(Y[:5]), {"log_scale": trial.backend.array(np.zeros(2))}
    given = {"y": x if has_y else None, "z": trial.backend.array(np.ones(5)) if has_z else None}

    def found(**options: Any) -> Any:
        model = several(trial.backend)
        return trial.public.predictive_distribution(model, draws, x, **given, **options)

    if site is not None:
        assert found().attrs["site"] == site
        return
    with trial.refused(r"Expected one site to predict, found \['y', 'z'\]"):
        found()
    assert found(site="z").attrs["site"] == "z"


for _given, (_has_y, _has_z, _site) in HIDDEN.items():
    fault(
        "Predictions", _given, REFUSED_AT_ONCE if _site is None else f"predicts that one: {RUNS}"
    )(partial(_hidden, _has_y, _has_z, _site))


@fault("Predictions", "a prior that is written as an observation", REFUSED_AT_ONCE)
def _prior(trial: Trial) -> None:
    x, draws = trial.backend.array(Y[:5]), {"log_scale": trial.backend.array(np.zeros(2))}
    with trial.refused("'scale', whose observed values are computed from latent sites"):
        trial.public.predictive_distribution(several(trial.backend), draws, x, site="scale")


@fault("Predictions", "NaN in the new data", REFUSED_AT_ONCE)
def _broken_rows(trial: Trial) -> None:
    broken = trial.backend.array(np.where(np.arange(40) == 3, np.nan, Y))
    with trial.refused(r"argument 'y' \(1 of 40", "ModelCheckError"):
        trial.public.predictive_distribution(
            mean(trial.backend), {"mu": trial.backend.array(np.zeros(3))}, broken
        )


@fault("Predictions", "units of a scale below zero or of a location that is NaN", REFUSED_AT_ONCE)
def _units(trial: Trial) -> None:
    found = predicted(trial, {"mu": np.zeros(3)}, mean(trial.backend))
    for units, words in (((0.0, -1.0), "positive scale"), ((np.nan, 1.0), "finite location")):
        with trial.refused(words):
            trial.public.to_original_units(found, *units)


@fault("Predictions", "a calibration error of what is no calibration curve", REFUSED_AT_ONCE)
def _no_curve(trial: Trial) -> None:
    found = predicted(trial, {"mu": np.zeros(3)}, mean(trial.backend))
    for curve in (found, {"mean": 1}):
        with trial.refused("Expected the curve that calibration_curve"):
            trial.public.calibration_error(curve)


@fault("Predictions", "figures of what is no predictive distribution", REFUSED_AT_ONCE)
def _no_dataset(trial: Trial) -> None:
    with trial.refused("Expected the dataset that predictive_distribution returns"):
        trial.public.predictive_metrics(5)


# -- fits ------------------------------------------------------------------------------------------


@cache
def fitted(name: str, kind: str) -> tuple[Any, Any, tuple[Any, ...]]:
    """An engine after a few steps, its arguments and, in NumPyro, its state."""
    backend = backend_of(name)
    y, model = backend.array(Y), mean(backend)
    seeds: dict[str, Any] = {"seed": 0} if backend.is_pyro else {}
    if kind == "SVGD":
        adam = optimizer(backend, "adam", 0.05)
        engine = backend.public.SVGD(model, adam, num_particles=3, **seeds)
    else:
        guide = backend.autoguide.AutoDiagonalNormal(model)
        engine = backend.public.ProximalScoreVI(model, guide, **seeds)
    keys = () if backend.is_pyro else (backend.key(),)
    run = engine.run(*keys, 2, y, progress_bar=False)
    return engine, y, () if backend.is_pyro else (run.state,)


#: Figure, kind of the engine, options, words of the refusal.
FIGURES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "the ELBO of particles": ("elbo", "SVGD", {}, "Expected an engine that fits a guide"),
    "Pareto k-hat of particles": ("psis_khat", "SVGD", {}, "Expected an engine that fits a guide"),
    "Pareto k-hat of three draws": (
        "psis_khat",
        "guide",
        {"num_samples": 3},
        "Expected num_samples to be an int >= 25",
    ),
    "the ELBO of no draws": ("elbo", "guide", {"num_samples": 0}, "Expected num_samples"),
    "the ELBO with an array as `args`": ("elbo", "guide", {"args": Y}, r"Write args=\(x,\)"),
    "the ELBO with a model beside an engine": (
        "elbo",
        "guide",
        {"model": print},
        "Leave model out",
    ),
    "the ELBO at a temperature of 0": (
        "elbo",
        "guide",
        {"likelihood_temperature": 0.0},
        "likelihood_temperature",
    ),
    "another number of draws than there are particles": (
        "ksd",
        "SVGD",
        {"num_samples": 100},
        "num_samples",
    ),
    "a statistic that there is not": ("ksd", "SVGD", {"statistic": "W"}, "'U', 'V'"),
    "ArviZ with fewer labels than rows": (
        "to_arviz",
        "SVGD",
        {"coords": {"rows": [1, 2]}},
        "Expected 40 labels",
    ),
    "ArviZ with dimensions of no variable": (
        "to_arviz",
        "SVGD",
        {"dims": {"nothing": ["a"]}},
        "which are no variables",
    ),
    "ArviZ with more dimensions than axes": (
        "to_arviz",
        "SVGD",
        {"dims": {"mu": ["a", "b"]}},
        "Expected 0 dims for 'mu'",
    ),
    "ArviZ with dimensions that are no mapping": (
        "to_arviz",
        "SVGD",
        {"dims": ["rows"]},
        "Expected dims to be a mapping from names to lists",
    ),
    "ArviZ with a dimension that is a number": (
        "to_arviz",
        "SVGD",
        {"dims": {"y": [3]}},
        r"Expected dims\['y'\] to be a list of names",
    ),
    "ArviZ with dimensions that are text": (
        "to_arviz",
        "SVGD",
        {"dims": {"y": "rows"}},
        r"Expected dims\['y'\] to be a list of names",
    ),
    "ArviZ with one dimension twice": (
        "to_arviz",
        "SVGD",
        {"constant_data": {"x": np.zeros((2, 2))}, "dims": {"x": ["a", "a"]}},
        "a name of its own for each axis",
    ),
    "ArviZ with one dimension of two lengths": (
        "to_arviz",
        "SVGD",
        {"constant_data": {"x": np.zeros(2), "z": np.zeros(3)}, "dims": {"x": ["a"], "z": ["a"]}},
        "Expected dimension 'a' to have one length",
    ),
    "ArviZ with a dimension that has a variable's name": (
        "to_arviz",
        "SVGD",
        {"constant_data": {"x": np.zeros(2), "z": np.zeros(3)}, "dims": {"x": ["z"]}},
        "with names that no variable of group constant_data has",
    ),
    "ArviZ with labels that are no mapping": (
        "to_arviz",
        "SVGD",
        {"coords": [1, 2]},
        "Expected coords to be a mapping from names to lists",
    ),
    "ArviZ with labels in two axes": (
        "to_arviz",
        "SVGD",
        {"coords": {"rows": np.zeros((40, 2))}},
        r"Expected coords\['rows'\] to be a list of labels",
    ),
    "ArviZ with constants that are no mapping": (
        "to_arviz",
        "SVGD",
        {"constant_data": [1]},
        "Expected constant_data to be True, False or a mapping",
    ),
    "ArviZ with a constant that is no array": (
        "to_arviz",
        "SVGD",
        {"constant_data": {"x": [[1], [2, 3]]}},
        r"Expected constant_data\['x'\] to be an array of numbers or texts",
    ),
    "ArviZ with one number as losses": (
        "to_arviz",
        "SVGD",
        {"losses": 1.0},
        "Expected losses to be a sequence with one for each step",
    ),
    "ArviZ by chunks of no draws": (
        "to_arviz",
        "SVGD",
        {"draw_chunk": 0},
        "Expected draw_chunk to be an int >= 1",
    ),
    "ArviZ by chunks of no rows": (
        "to_arviz",
        "SVGD",
        {"data_chunk": 0},
        "Expected data_chunk to be an int >= 1",
    ),
}


def _figure(name: str, kind: str, options: dict[str, Any], words: str, trial: Trial) -> None:
    engine, y, state = fitted(trial.backend.name, kind)
    arguments = (y,) if name == "to_arviz" else ()
    with trial.refused(words):
        getattr(trial.public, name)(engine, *state, *arguments, **options)


for _given, (_name, _kind, _given_options, _words) in FIGURES.items():
    fault("Figures", _given, REFUSED_AT_ONCE)(
        partial(_figure, _name, _kind, _given_options, _words)
    )

POSITIONS: dict[str, tuple[Any, str]] = {
    "positions with NaN": (np.asarray([[0.0], [np.nan], [1.0]]), "Expected finite positions"),
    "one position": (np.zeros((1, 1)), "at least 2 points"),
    "positions that are all the same": (np.zeros((5, 1)), "Expected draws that vary"),
    "positions of another dimension": (np.zeros((5, 2)), r"positions of shape \(P, 1\)"),
}


def _positions(values: Any, words: str, trial: Trial) -> None:
    with trial.refused(words):
        trial.public.ksd(
            np.asarray(values, np.float32),
            model=mean(trial.backend),
            args=(trial.backend.array(Y),),
        )


for _given, (_values, _words) in POSITIONS.items():
    fault("Figures", f"Stein discrepancy of {_given}", REFUSED_AT_ONCE)(
        partial(_positions, _values, _words)
    )


@fault("Figures", "Stein discrepancy of positions without a model", REFUSED_AT_ONCE)
def _no_target(trial: Trial) -> None:
    with trial.refused("either target=.* or model="):
        trial.public.ksd(np.zeros((5, 1), np.float32))


@fault("Figures", "Stein discrepancy of draws by site", REFUSED_AT_ONCE)
def _by_site(trial: Trial) -> None:
    engine, y, state = fitted(trial.backend.name, "SVGD")
    draws = engine.get_samples(*state)
    with trial.refused(r"array of positions \(P, D\) in unconstrained space, found"):
        trial.public.ksd(draws)
    positions = engine.target.unconstrain(draws, engine.target.bind(y))
    trial.public.ksd(positions, target=engine.target, args=(y,), statistic="V")


@fault("Figures", "`to_arviz` without the run's result before the model's arguments", pyro=None)
def _no_result(trial: Trial) -> None:
    engine, y, _ = fitted("numpyro", "SVGD")
    for given in ((y,), (y, y), ()):
        with trial.refused("state of SVGD as the second argument.*arguments come after it"):
            trial.public.to_arviz(engine, *given)


@fault("Figures", "`to_arviz` with a result before the model's arguments", RUNS, numpyro=None)
def _result(trial: Trial) -> None:
    engine, y, _ = fitted("pyro", "SVGD")
    run = engine.run(0, y, progress_bar=False)
    tree = trial.public.to_arviz(engine, run, y)
    np.testing.assert_allclose(tree["observed_data"]["y"], Y, rtol=1e-6)


@fault("Figures", "`to_arviz` of rows that do not fit each other", REFUSED_AT_ONCE)
def _rows(trial: Trial) -> None:
    x, y = trial.backend.array(Y[:5]), trial.backend.array(np.zeros(5))
    engine = trial.svgd(line(trial.backend))
    state, _ = trial.run(engine, 1, x, y)
    of_state = () if trial.is_pyro else (state,)
    trial.steps = 0
    words, error = (
        ("at site 'y'", "ModelCheckError") if trial.is_pyro else ("plate 'rows'", "ArgumentError")
    )
    with trial.refused(words, error):
        trial.public.to_arviz(engine, *of_state, x, trial.backend.array(np.zeros(8)))


@fault("Figures", "`to_arviz` without the observations, which could be summed out", REFUSED_AT_ONCE)
def _no_observations(trial: Trial) -> None:
    x, y = trial.backend.array(Y[:5]), trial.backend.array(np.ones(5))
    engine = trial.svgd(line(trial.backend, binary=True))
    state, _ = trial.run(engine, 1, x, y)
    trial.steps = 0
    with trial.refused("Expected the observations of site 'y'"):
        trial.public.to_arviz(engine, *(() if trial.is_pyro else (state,)), x)


def line(backend: Any, binary: bool = False) -> Callable[..., None]:
    """A line through the origin, or the logarithm of odds."""
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any = None) -> None:
        w = host.sample("w", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(x)):
            fn = dist.Bernoulli(logits=w * x) if binary else dist.Normal(w * x, 1.0)
            host.sample("y", fn, obs=y)

    return model


@fault("Figures", "`start=`, an option of a run, among those of an engine", REFUSED_AT_ONCE)
def _start(trial: Trial) -> None:
    with trial.refused(r"Expected start= in run.*Write engine\.run\(\.\.\., start='host'\)"):
        trial.svgd(mean(trial.backend), start="host")


@fault("Figures", "text in place of an engine or a guide", REFUSED_AT_ONCE)
def _text(trial: Trial) -> None:
    state = () if trial.is_pyro else ({},)
    with trial.refused("Expected an autoguide object"):
        trial.public.elbo("engine", *state)
    with trial.refused("Expected an engine with a target and get_samples"):
        trial.public.to_arviz("engine")


@fault("Figures", "a guide without its model, or one that nobody has fitted", REFUSED_AT_ONCE)
def _no_model(trial: Trial) -> None:
    guide = trial.backend.autoguide.AutoDiagonalNormal(mean(trial.backend))
    with trial.refused("Expected the model of|Expected a guide that has been fitted"):
        trial.public.elbo(guide, *(() if trial.is_pyro else ({},)))


@fault("Figures", "draws of an engine that has not run", "`RuntimeError`, which says what to call")
def _not_run(trial: Trial) -> None:
    engine, state = trial.svgd(mean(trial.backend)), () if trial.is_pyro else (None,)
    with pytest.raises(RuntimeError, match=r"has not seen the model's arguments yet\. Call"):
        engine.get_samples(*state)


@fault("Figures", "-1 or 100 draws of three particles", REFUSED_AT_ONCE)
def _numbers(trial: Trial) -> None:
    engine, _, state = fitted(trial.backend.name, "SVGD")
    for number in (-1, 100):
        with trial.refused("Expected num_samples to be None or the number of particles, 3"):
            engine.get_samples(*state, num_samples=number)


@fault("Figures", "no state, or a result's losses alone, beside an engine", pyro=None)
def _no_state(trial: Trial) -> None:
    engine, _, _ = fitted("numpyro", "guide")
    for state in (None, [1.0]):
        with trial.refused("Expected the state of ProximalScoreVI as the second argument"):
            trial.public.elbo(engine, state)


@fault("Figures", "`to_arviz` of an engine without the model's arguments, which it knows", RUNS)
def _no_arguments(trial: Trial) -> None:
    engine, _, state = fitted(trial.backend.name, "SVGD")
    tree = trial.public.to_arviz(engine, *state)
    np.testing.assert_allclose(tree["observed_data"]["y"], Y, rtol=1e-6)


@fault("Figures", "Pareto k-hat of the Gaussian of LaplaceGGN", RUNS)
def _laplace(trial: Trial) -> None:
    # The posterior is Normal: the Gaussian at its mode is the posterior, and every ratio the same.
    model, y = mean(trial.backend), trial.backend.array(Y)
    engine = trial.engine("LaplaceGGN", model, trial.backend.adam(0.3))
    state, _ = trial.run(engine, 150, y)
    of_state = () if trial.is_pyro else (state,)
    evidence = float(engine.log_marginal_likelihood(*of_state))
    bound = trial.public.elbo(engine, *of_state, num_samples=100)
    np.testing.assert_allclose(bound.value, evidence, rtol=1e-3)
    assert trial.public.psis_khat(engine, *of_state, num_samples=200).khat < 0.5


def _checked(trial: Trial, draws: Any, model: Any = None) -> Any:
    """The verdict of ``check`` on draws of a program of the observations."""
    keys = () if trial.is_pyro else (trial.backend.key(),)
    given = {name: trial.backend.array(value) for name, value in draws.items()}
    program = model or mean(trial.backend)
    return trial.public.check(
        *keys, given, program, trial.backend.array(Y), budget=500, progress_bar=False
    )


@fault("Figures", "one draw for `check`", REFUSED_AT_ONCE)
def _one_draw(trial: Trial) -> None:
    with trial.refused("two draws or more of each chain, found 1 in all"):
        _checked(trial, {"mu": np.array([0.5])})


@fault(
    "Figures", "a negative rate among 200 draws, given to `check`", '"not trusted", with a count'
)
def _negative_rate(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        rate = host.sample("rate", dist.Gamma(trial.backend.array(2.0), 1.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(0.0, rate), obs=y)

    draws = np.random.default_rng(0).gamma(4.0, 0.5, 200)
    draws[7] = -1.0
    verdict = _checked(trial, {"rate": draws}, model)
    assert verdict.level == "not trusted"
    assert "1 of 200 draws lie outside of their supports, most in 'rate'" in str(verdict)


def _probability(trial: Trial) -> Callable[[Any], None]:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        part = host.sample("part", dist.Beta(2.0, 2.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(part, 1.0), obs=y)

    return model


def _shares(trial: Trial) -> Callable[[Any], None]:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        shares = host.sample("shares", dist.Dirichlet(trial.backend.xp.ones(3)))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(shares[..., 0], 1.0), obs=y)

    return model


@fault(
    "Figures",
    "probabilities of 1.03, or shares that sum to 1.1, given to `check`",
    '"not trusted", with a count',
)
def _outside(trial: Trial) -> None:
    rng = np.random.default_rng(0)
    part, shares = rng.beta(8.0, 8.0, 1_000), rng.dirichlet([3.0, 5.0, 3.0], 1_000)
    part[:3], shares[:3] = 1.03, 1.1 * shares[:3]
    for name, values, model in (("part", part, _probability), ("shares", shares, _shares)):
        verdict = _checked(trial, {name: values}, model(trial))
        assert verdict.level == "not trusted"
        words = f"3 of 1000 draws lie outside of their supports, most in '{name}'"
        assert words in str(verdict)


@fault("Figures", "draws that are NaN among 1,000, given to `check`", '"not trusted", with a share')
def _nan_draws(trial: Trial) -> None:
    mu = np.random.default_rng(0).normal(0.5, 0.16, 1_000)
    mu[:2] = np.nan
    verdict = _checked(trial, {"mu": mu})
    assert verdict.level == "not trusted" and "0.2% of the draws are not finite" in str(verdict)


@fault(
    "Figures",
    "right draws of a Cholesky factor, of which the support fixes entries, given to `check`",
    RUNS,
)
def _factors(trial: Trial) -> None:
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp

    def model(y: Any) -> None:
        factor = host.sample("factor", dist.LKJCholesky(2, 1.0))
        host.sample("y", dist.MultivariateNormal(xp.zeros(2), scale_tril=factor), obs=y[:2])

    y = trial.backend.array(np.array([1.0, 1.0]))
    keys = () if trial.is_pyro else (trial.backend.key(),)
    fit = trial.public.fit(*keys, model, y, progress_bar=False)
    right = trial.backend.numpy(fit.draws["factor"])[:1_000].copy()
    options: dict[str, Any] = {"progress_bar": False}
    given = {"factor": trial.backend.array(right)}
    assert trial.public.check(*keys, given, model, y, **options).trusted
    point = {"factor": trial.backend.array(np.repeat(right[:1], 100, 0))}
    verdict = trial.public.check(*keys, point, model, y, **options)
    assert "are one number" in str(verdict)
