"""Arguments of a model and of a run that are not what they should be."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.engine_support import Verbs
from tests.faults.programs import Y, mean
from tests.faults.table import RUNS, Trial, fault
from tests.stein_support import optimizer

OWN = "the model's own error, before the first step"


def slope(backend: Any, size: int | None = None, plate: int | None = None) -> Callable[..., None]:
    """A line through the origin, of which a minibatch has ``size`` rows."""
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any) -> None:
        w = host.sample("w", dist.Normal(0.0, 1.0))
        with host.plate("rows", plate or len(y), subsample_size=size) as rows:
            seen = (x, y) if size is None else (x[rows], y[rows])
            host.sample("y", dist.Normal(w * seen[0], 1.0), obs=seen[1])

    return model


def weights(backend: Any) -> Callable[..., None]:
    """A linear regression, whose matrix product takes one type of numbers in torch."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any, y: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(3), 1.0).to_event(1))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model


def of(backend: Any, body: Callable[..., Any]) -> Callable[[Any], None]:
    """A model of one argument: ``body(host, distributions, xp, y)`` gives its mean."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(y: Any) -> None:
        mu = body(host, dist, xp, y)
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    return model


def normal(host: Any, dist: Any) -> Any:
    return host.sample("mu", dist.Normal(0.0, 10.0))


# -- data ------------------------------------------------------------------------------------------

BROKEN = np.where(np.arange(40) == 3, np.nan, Y)

#: Input: arguments of ``slope``, words of the refusal and its class.
DATA: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "NaN in a covariate": (
        (BROKEN, Y),
        {},
        r"argument 'x' \(1 of 40, the first at \[3\]\)",
        "ModelCheckError",
    ),
    "NaN in the observations": (
        (Y, BROKEN),
        {},
        r"argument 'y' \(1 of 40, the first at \[3\]\)",
        "ModelCheckError",
    ),
    "infinite observations": (
        (Y, np.where(np.arange(40) == 3, np.inf, Y)),
        {},
        r"argument 'y' \(1 of 40",
        "ModelCheckError",
    ),
    "data without rows": (
        (Y[:0], Y[:0]),
        {},
        "size of plate should be positive|size 0",
        "ModelCheckError",
    ),
    "30 rows of a covariate beside 40 observations": (
        (Y[:30], Y),
        {},
        "Shape mismatch|does not fit plate 'rows'",
        "ArgumentError",
    ),
    "an argument missing": ((Y,), {}, "missing a required argument: 'y'", "ArgumentError"),
    "one argument too many": ((Y, Y, Y), {}, "too many positional arguments", "ArgumentError"),
    "a keyword that the model does not have": (
        (Y, Y),
        {"foo": 3},
        "unexpected keyword argument 'foo'",
        "ArgumentError",
    ),
}


def _data(arguments: Any, named: Any, words: str, error: str, trial: Trial) -> None:
    arrays = map(trial.backend.array, arguments)
    with trial.refused(words, error):
        trial.run(trial.svgd(slope(trial.backend)), 3, *arrays, **named)


for _given, (_arguments, _named, _words, _error) in DATA.items():
    fault("Data", _given)(partial(_data, _arguments, _named, _words, _error))


@fault("Data", "a plate of 50 rows over data of 40, with and without a minibatch")
def _long_plate(trial: Trial) -> None:
    y = trial.backend.array(Y)
    with trial.refused("Shape mismatch|does not fit plate 'rows'"):
        trial.run(trial.svgd(slope(trial.backend, plate=50)), 3, y, y)
    kind = "ArgumentError" if trial.is_pyro else "ModelCheckError"
    with trial.refused("fewer rows|only 40 rows", kind):
        trial.run(trial.svgd(slope(trial.backend, 10, 50)), 3, y, y)


@fault(
    "Data",
    "NaN in a row that comes with a later minibatch",
    "`NonFiniteError` at that step, which names the argument; the state before it is kept",
)
def _late(trial: Trial) -> None:
    x, y = np.tile(Y, 5), np.tile(Y, 5)
    x[170] = np.nan
    engine = trial.svgd(slope(trial.backend, 40))
    with trial.refused(r"argument 'x' \(1 of 200, the first at \[170\]\)", "NonFiniteError"):
        trial.run(engine, 100, trial.backend.array(x), trial.backend.array(y))


@fault("Data", "observations that are all empty, without a plate")
def _no_observations(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        mu = normal(host, dist)
        host.sample("y", dist.Normal(mu, 1.0).expand([len(y)]).to_event(1), obs=y)

    with trial.refused("every observed site are empty: 'y'", "ModelCheckError"):
        trial.run(trial.svgd(model), 3, trial.backend.array(Y[:0]))


@fault("Data", "text or None where the model wants an array", OWN)
def _no_arrays(trial: Trial) -> None:
    for x in ("text", None):
        with pytest.raises(TypeError):
            trial.run(trial.svgd(slope(trial.backend)), 3, x, trial.backend.array(Y))
    assert not trial.steps


@fault("Data", "a list of numbers where the model wants an array")
def _a_list(trial: Trial) -> None:
    with trial.refused("Argument 'x' is a list of numbers"):
        trial.run(trial.svgd(slope(trial.backend)), 3, [1.0, 2.0], trial.backend.array(Y))


@fault("Data", "an array that NumPy masks")
def _masked(trial: Trial) -> None:
    y = np.ma.masked_array(Y, Y > 1.0)
    with trial.refused("found a masked array"):
        trial.run(trial.svgd(slope(trial.backend)), 3, y, y)


@fault("Data", "classes from 0 to 3 of three, or 7 of 5 trials")
def _classes(trial: Trial) -> None:
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp

    def classes(y: Any) -> None:
        logits = host.sample("logits", dist.Normal(xp.zeros(3), 1.0).to_event(1))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Categorical(logits=logits), obs=y)

    def trials(y: Any) -> None:
        part = host.sample("part", dist.Beta(1.0, 1.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Binomial(5, part), obs=y)

    for model, seen in ((classes, np.arange(4)), (trials, np.asarray([1.0, 7.0]))):
        with trial.refused("'y'", "ModelCheckError"):
            trial.run(trial.svgd(model), 3, trial.backend.array(seen))


@fault("Data", "a mask that hides every observation", "runs; the posterior is the prior")
def _hidden(trial: Trial) -> None:
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp

    def model(y: Any) -> None:
        mu = normal(host, dist)
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1.0).mask(xp.zeros(len(y)) > 1.0), obs=y)

    _, result = trial.run(trial.svgd(model), 2, trial.backend.array(Y))
    assert np.isfinite(result.losses).all()


@fault("Data", "a covariate that is constant, or an improper prior that the data bound", RUNS)
def _constant(trial: Trial) -> None:
    dist = trial.backend.dist
    flat = of(
        trial.backend,
        lambda host, *_: host.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ())),
    )
    y = trial.backend.array(Y)
    _, result = trial.run(trial.svgd(flat), 2, y)
    assert np.isfinite(result.losses).all()
    ones = trial.backend.array(np.ones(40))
    _, result = trial.run(trial.svgd(slope(trial.backend)), 2, ones, y)
    assert np.isfinite(result.losses).all()


# -- types -----------------------------------------------------------------------------------------

CAST = {
    "pyro": "refused before the first step, with the type to cast to",
    "numpyro": "cast, as NumPyro does",
}


def _typed(kind: str, trial: Trial) -> None:
    rows = np.linspace(-4.0, 4.0, 120).reshape(40, 3).astype(kind)
    if not trial.is_pyro:
        _, result = trial.run(trial.svgd(weights(trial.backend)), 2, rows, rows[:, 0])
        assert np.isfinite(result.losses).all()
        return
    import torch

    x = torch.as_tensor(rows)
    with trial.refused(rf"argument 'x' of torch\.{kind}.*x\.float\(\)", "ModelCheckError"):
        trial.run(trial.svgd(weights(trial.backend)), 2, x, x[:, 0])
    assert trial.refusals == [0]
    _, result = trial.run(trial.svgd(weights(trial.backend)), 2, x.float(), x[:, 0].float())
    assert np.isfinite(result.losses).all()


for _kind in ("float64", "int64", "float16"):
    fault("Types", f"{_kind} data in a matrix product with float32 weights", **CAST)(
        partial(_typed, _kind)
    )


@fault("Types", "float64 or whole numbers elementwise, beside float32 latents", RUNS)
def _elementwise(trial: Trial) -> None:
    for kind in ("float64", "int64"):
        rows = trial.backend.array(np.linspace(-4.0, 4.0, 40).astype(kind))
        _, result = trial.run(trial.svgd(slope(trial.backend)), 2, rows, rows)
        assert np.isfinite(result.losses).all()


@fault("Types", "`dtype=torch.float64` with float64 data", RUNS, numpyro=None)
def _double(trial: Trial) -> None:
    import torch

    x = torch.linspace(-4.0, 4.0, 120, dtype=torch.float64).reshape(40, 3)
    engine = trial.svgd(weights(trial.backend), dtype=torch.float64)
    trial.run(engine, 2, x, x[:, 0])
    assert engine.get_samples()["w"].dtype == torch.float64


@fault("Types", "`dtype` that is text, or of whole numbers", numpyro=None)
def _no_dtype(trial: Trial) -> None:
    import torch

    for dtype in ("float64", torch.int64):
        with trial.refused("Expected dtype to be a torch.dtype of real numbers"):
            trial.run(trial.svgd(mean(trial.backend), dtype=dtype), 2, trial.backend.array(Y))


# -- models ----------------------------------------------------------------------------------------


@fault("Models", "`model=None`, or its name")
def _no_model(trial: Trial) -> None:
    for model in (None, "model"):
        with trial.refused("Expected model to be a callable"):
            trial.svgd(model)
        with trial.refused("Expected model to be a callable"):
            trial.public.SGLD(model, 1e-3)


@fault("Models", "one latent of length zero beside others", RUNS)
def _zero_length(trial: Trial) -> None:
    def both(host: Any, dist: Any, xp: Any, y: Any) -> Any:
        nothing = host.sample("nothing", dist.Normal(xp.zeros(0), 1.0).to_event(1))
        return normal(host, dist) + nothing.sum()

    engine = trial.svgd(of(trial.backend, both))
    state, _ = trial.run(engine, 2, trial.backend.array(Y))
    draws = engine.get_samples(*(() if trial.is_pyro else (state,)))
    assert draws["nothing"].shape == (3, 0)


@fault("Models", "latents of length zero alone")
def _nothing(trial: Trial) -> None:
    model = of(
        trial.backend,
        lambda host, dist, xp, y: host.sample(
            "no", dist.Normal(xp.zeros(0), 1.0).to_event(1)
        ).sum(),
    )
    with trial.refused("found no latent variables", "ModelCheckError"):
        trial.run(trial.svgd(model), 3, trial.backend.array(Y))


@fault(
    "Models",
    "an argument that the model changes in place",
    "refused before the first step",
    numpyro="runs, and is right: arrays cannot be changed, and the caller's is a copy",
)
def _in_place(trial: Trial) -> None:
    def less(host: Any, dist: Any, xp: Any, y: Any) -> Any:
        y -= 1.0
        return normal(host, dist)

    y = trial.backend.array(Y)
    model = of(trial.backend, less)
    if trial.is_pyro:
        with trial.refused("changes its argument 'y' in place", "ModelCheckError"):
            trial.run(trial.svgd(model), 3, y)
        return
    trial.run(trial.svgd(model), 3, y)
    np.testing.assert_allclose(y, Y, rtol=1e-6)


@fault("Models", "a dictionary that the model takes things out of", RUNS)
def _dictionary(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(data: Any) -> None:
        y = data.pop("y")
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(normal(host, dist), 1.0), obs=y)

    data = {"y": trial.backend.array(Y)}
    _, result = trial.run(trial.svgd(model), 2, data)
    assert np.isfinite(result.losses).all() and list(data) == ["y"]


def _by_numpy(host: Any, dist: Any, xp: Any, y: Any) -> Any:
    mu = normal(host, dist)
    return float(np.sin(mu.numpy() if hasattr(mu, "numpy") else np.asarray(mu)))


def _by_float(host: Any, dist: Any, xp: Any, y: Any) -> Any:
    return float(normal(host, dist))


@fault("Models", "a latent value that goes through NumPy, as in Pyro's `inclined_plane`")
def _numpy(trial: Trial) -> None:
    with trial.refused("cannot be differentiated|cannot differentiate", "ModelCheckError"):
        trial.run(trial.svgd(of(trial.backend, _by_numpy)), 3, trial.backend.array(Y))


@fault("Models", "a latent value that is taken out by `float`")
def _float(trial: Trial) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's on the conversion, ours on slower ways
        with trial.refused("cannot be differentiated|needs the concrete value", "ModelCheckError"):
            trial.run(trial.svgd(of(trial.backend, _by_float)), 3, trial.backend.array(Y))


@fault(
    "Models",
    "a latent value that goes through a callback of JAX, or a loop of unknown length",
    pyro=None,
)
def _callback(trial: Trial) -> None:
    import jax

    def called(host: Any, dist: Any, xp: Any, y: Any) -> Any:
        mu = normal(host, dist)
        shape = jax.ShapeDtypeStruct((), mu.dtype)
        return jax.pure_callback(np.sin, shape, mu, vmap_method="sequential")

    def looped(host: Any, dist: Any, xp: Any, y: Any) -> Any:
        return jax.lax.while_loop(lambda v: v < 1.0, lambda v: v + 1.0, normal(host, dist))

    for body in (called, looped):
        with trial.refused("cannot be differentiated", "ModelCheckError"):
            trial.run(trial.svgd(of(trial.backend, body)), 3, trial.backend.array(Y))


@fault(
    "Models",
    "a network whose weights have no prior",
    "runs with the weights held; one warning names the network and how many numbers it has",
)
def _held(trial: Trial) -> None:
    host, xp = trial.backend.host, trial.backend.xp

    def network(host_: Any, dist: Any, xp_: Any, y: Any) -> Any:
        weights = [host.param(f"net.layer{n}.weight", xp.ones((3, 2))) for n in range(8)]
        return normal(host_, dist) + sum(each.sum() for each in weights)

    warning = trial.public.HeldParameterWarning
    with trial.warned(r"'net' \(8 arrays of 48 numbers\) \(48 numbers in all\)", warning):
        trial.run(trial.svgd(of(trial.backend, network)), 2, trial.backend.array(Y))

    def shift(host_: Any, dist: Any, xp_: Any, y: Any) -> Any:
        return normal(host_, dist) + host.param("shift", xp.zeros(()))

    with trial.warned(r"values: shift \(1 number\)", warning):
        trial.run(trial.svgd(of(trial.backend, shift)), 2, trial.backend.array(Y))


@fault(
    "Models",
    "`LaplaceGGN` on a distribution that is not built from its parameters, such as a censored one",
    pyro=None,
)
def _censored(trial: Trial) -> None:
    host, dist, array = trial.backend.host, trial.backend.dist, trial.backend.array

    def model(times: Any, censored: Any) -> None:
        loc = host.sample("loc", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(times)):
            times_of = dist.RightCensoredDistribution(dist.LogNormal(loc, 1.0), censored)
            host.sample("times", times_of, obs=times)

    engine = trial.engine("LaplaceGGN", model, optimizer(trial.backend, "adam", 0.05))
    args = array(np.array([0.5, 2.0, 3.0])), array(np.array([0, 1, 0]))
    with trial.refused("found RightCensoredDistribution .* register_output_fisher"):
        trial.run(engine, 3, *args)


@fault("Models", "a prior whose mean is a held parameter, in `LaplaceGGN`", RUNS)
def _held_in_prior(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        mean = host.param("mean", trial.backend.array(np.array(3.0)))
        mu = host.sample("mu", dist.Normal(mean, 0.01))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    engine = trial.engine("LaplaceGGN", model, optimizer(trial.backend, "adam", 0.3))
    with trial.warned("mean", trial.public.HeldParameterWarning):
        state, _ = trial.run(engine, 100, trial.backend.array(Y))
    draws = Verbs(trial.backend, ()).samples(engine, state)["mu"]
    assert abs(draws.mean() - 3.0) < 0.05 and 0.005 < draws.std() < 0.02


@fault("Models", "a gradient that is NaN where the density is finite")
def _no_gradient(trial: Trial) -> None:
    def at_zero(host: Any, dist: Any, xp: Any, y: Any) -> Any:
        return xp.sqrt(xp.abs(0.0 * normal(host, dist)))

    with trial.refused("gradient", "ModelCheckError"):
        trial.run(trial.svgd(of(trial.backend, at_zero)), 3, trial.backend.array(Y))


@fault("Models", "a generator in place of a function, which samples nothing")
def _generator(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> Any:
        yield normal(host, dist)

    with trial.refused("found no latent variables", "ModelCheckError"):
        trial.run(trial.svgd(model), 3, trial.backend.array(Y))


# -- distributions ---------------------------------------------------------------------------------

PARAMETERS: dict[str, tuple[Callable[..., Any], str]] = {
    "a prior with a negative scale": (
        lambda host, dist, *_: host.sample("mu", dist.Normal(0.0, -1.0)),
        "scale.*(constraint|invalid)|invalid scale",
    ),
    "a prior whose scale is NaN": (
        lambda host, dist, *_: host.sample("mu", dist.Normal(0.0, float("nan"))),
        "scale.*(constraint|invalid)|invalid scale",
    ),
    "a Uniform from 1 to 0": (
        lambda host, dist, *_: host.sample("mu", dist.Uniform(1.0, 0.0)),
        "constraint|valid initial parameters",
    ),
}


def _parameters(body: Callable[..., Any], words: str, trial: Trial) -> None:
    with trial.refused(words, "ModelCheckError"):
        trial.run(trial.svgd(of(trial.backend, body)), 3, trial.backend.array(Y))


for _given, (_body, _words) in PARAMETERS.items():
    fault("Distributions", _given)(partial(_parameters, _body, _words))


@fault("Distributions", "observations outside the support, as negative counts")
def _outside(trial: Trial) -> None:
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp

    def positive(y: Any) -> None:
        mu = normal(host, dist)
        with host.plate("rows", len(y)):
            host.sample("y", dist.HalfNormal(xp.exp(mu)), obs=y)

    def counts(y: Any) -> None:
        mu = normal(host, dist)
        with host.plate("rows", len(y)):
            host.sample("y", dist.Poisson(xp.exp(mu)), obs=y)

    for model in (positive, counts):
        with trial.refused("'y'", "ModelCheckError"):
            trial.run(trial.svgd(model), 3, trial.backend.array(Y))


@fault("Distributions", "a scale of 1e-30, at which no density is finite")
def _tiny(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        mu = normal(host, dist)
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1e-30), obs=y)

    with trial.refused("valid initial parameters.*'y'", "ModelCheckError"):
        trial.run(trial.svgd(model), 3, trial.backend.array(Y))


# -- runs ------------------------------------------------------------------------------------------


def _steps(steps: Any, trial: Trial) -> None:
    with trial.refused("Expected num_steps"):
        trial.run(trial.svgd(mean(trial.backend)), steps, trial.backend.array(Y))


for _shown, _steps_given in {
    "2**40": 2**40,
    "-1": -1,
    "2.5": 2.5,
    "3.0": 3.0,
    "'10'": "10",
    "None": None,
    "True": True,
}.items():
    fault("Runs", f"`num_steps={_shown}`")(partial(_steps, _steps_given))


@fault("Runs", "no steps at all, or a NumPy integer", RUNS)
def _few(trial: Trial) -> None:
    y = trial.backend.array(Y)
    for steps in (0, np.int64(2)):
        _, result = trial.run(trial.svgd(mean(trial.backend)), steps, y)
        assert len(result.losses) == steps


@fault("Runs", "a callback that cannot be called, or not with three arguments")
def _no_callback(trial: Trial) -> None:
    for callback in (5, lambda step: None):
        with trial.refused("Expected callback to be a function of three arguments"):
            verbs = Verbs(trial.backend, (trial.backend.array(Y),))
            verbs.run(trial.svgd(mean(trial.backend)), 3, callback=callback)


@fault("Runs", "`callback_every=0`, a checkpoint that is no path")
def _run_options(trial: Trial) -> None:
    y = trial.backend.array(Y)
    for options in ({"callback_every": 0}, {"checkpoint": 5}):
        with trial.refused(f"Expected {next(iter(options))} to be"):
            trial.run(trial.svgd(mean(trial.backend)), 3, y, **options)


@fault("Runs", "a key that is forgotten, is a number, or stands behind the steps", pyro=None)
def _no_key(trial: Trial) -> None:
    engine, y, key = trial.svgd(mean(trial.backend)), trial.backend.array(Y), trial.backend.key()
    for arguments, words in (
        ((3, y), "after the key"),
        ((0, 3, y), "Expected rng_key to be a JAX key"),
        ((3, key, y), "after the key"),
    ):
        with trial.refused(words):
            engine.run(*arguments, progress_bar=False)


@fault("Runs", "an `init_state` that is none", pyro=None)
def _no_state(trial: Trial) -> None:
    with trial.refused("Expected an EngineState"):
        trial.run(trial.svgd(mean(trial.backend)), 3, trial.backend.array(Y), state=5)
