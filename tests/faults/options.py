"""Options of engines and samplers that are not what they should be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.backends import backend_of
from tests.faults.programs import Y, mean
from tests.faults.table import RUNS, Trial, fault

NAN = float("nan")

#: Options of SVGD, and words of the refusal.
SVGD: dict[str, tuple[dict[str, Any], str]] = {
    "`num_particles=0`": (
        {"num_particles": 0},
        "Expected num_particles to be an int >= 1, found 0",
    ),
    "`num_particles` as text or a fraction": ({"num_particles": 2.5}, "Expected num_particles"),
    "`kernel='rbf'`": ({"kernel": "rbf"}, "Expected a kernel.*Pass an instance"),
    "`estimator='full'`": ({"estimator": "full"}, "Expected estimator to be a GradientEstimator"),
    "`init_strategy='median'`": ({"init_strategy": "median"}, "init_strategy"),
    "`likelihood_temperature=0`": ({"likelihood_temperature": 0}, "likelihood_temperature.*> 0"),
    "`likelihood_temperature` that is NaN": ({"likelihood_temperature": NAN}, "found nan"),
    "`particle_chunk=0`": ({"particle_chunk": 0}, "Expected particle_chunk to be an int >= 1"),
    "`data_chunk` where no plate is subsampled": ({"data_chunk": 10}, "has nothing to divide"),
    "`reparameterise='yes'`": ({"reparameterise": "yes"}, "Expected reparameterise to be one of"),
    "`on_nonfinite='ignore'`": ({"on_nonfinite": "ignore"}, "one of 'raise', 'skip'"),
}


def _svgd(options: dict[str, Any], words: str, trial: Trial) -> None:
    with trial.refused(words):
        trial.run(trial.svgd(mean(trial.backend), **options), 3, trial.backend.array(Y))


for _given, (_options, _words) in SVGD.items():
    fault("Options", _given)(partial(_svgd, _options, _words))


@fault("Options", "`reparameterise=True` where that makes another program")
def _other_program(trial: Trial) -> None:
    host, dist, array = trial.backend.host, trial.backend.dist, trial.backend.array

    class Bent(dist.Normal):  # type: ignore[misc, name-defined]
        def log_prob(self, value: Any) -> Any:
            return super().log_prob(value) - 0.5 * value**2

    def model(y: Any) -> None:
        s = host.sample("s", dist.HalfNormal(array(1.0)))
        e = host.sample("e", Bent(array(0.0), s))
        host.sample("y", dist.Normal(e, 1.0), obs=y)

    with trial.refused("e non-centred to be the same.*Leave reparameterise out", "ModelCheckError"):
        trial.run(trial.svgd(model, reparameterise=True), 3, array(1.0))


@fault("Options", "an option that no engine has, as `nparticles`", "Python's `TypeError`")
def _unknown(trial: Trial) -> None:
    with pytest.raises(TypeError, match="nparticles"):
        trial.svgd(mean(trial.backend), nparticles=5)


@fault("Options", "`seed=1.5`, or `evaluation='fast'`", numpyro=None)
def _of_pyro(trial: Trial) -> None:
    for option, value in (("seed", 1.5), ("evaluation", "fast")):
        with trial.refused(f"Expected {option} to be"):
            engine = trial.svgd(mean(trial.backend), **{option: value})
            trial.run(engine, 3, trial.backend.array(Y))


@fault("Options", "parts of the other package: a kernel, an estimator, an optimizer")
def _other_package(trial: Trial) -> None:
    other = backend_of("numpyro" if trial.is_pyro else "pyro")
    y = trial.backend.array(Y)
    for option, value, words in (
        ("kernel", other.room("kernels").RBF(), "Expected a kernel"),
        ("estimator", other.room("gradients").Full(), "Expected estimator"),
        ("optim", other.adam(0.1), "optimizer"),
    ):
        with trial.refused(words):
            trial.run(trial.svgd(mean(trial.backend), **{option: value}), 3, y)


@fault("Options", "a class in place of an object: a kernel, an estimator")
def _classes(trial: Trial) -> None:
    for option, value in (
        ("kernel", trial.backend.room("kernels").RBF),
        ("estimator", trial.backend.room("gradients").Full),
    ):
        with trial.refused("Expected"):
            trial.run(trial.svgd(mean(trial.backend), **{option: value}), 3, trial.backend.array(Y))


@fault("Options", "a bandwidth below zero, or of a rule that there is not")
def _bandwidths(trial: Trial) -> None:
    for bandwidth in (-1.0, "silverman"):
        with trial.refused("Expected a bandwidth"):
            trial.backend.room("kernels").RBF(bandwidth)


# -- optimizers ------------------------------------------------------------------------------------


def _rate(rate: float, trial: Trial) -> None:
    with trial.refused("learning rate"):
        engine = trial.svgd(mean(trial.backend), optim=trial.backend.adam(rate))
        trial.run(engine, 3, trial.backend.array(Y))


for _shown, _value in {"0": 0.0, "below 0": -0.1, "NaN": NAN, "infinite": float("inf")}.items():
    fault("Optimizers", f"a learning rate that is {_shown}")(partial(_rate, _value))


@fault("Optimizers", "None, a name or a number in place of an optimizer")
def _no_optimizer(trial: Trial) -> None:
    for optim in (None, "adam", 0.1):
        with trial.refused("optimizer"):
            engine = trial.engine("SVGD", mean(trial.backend), optim, num_particles=3)
            trial.run(engine, 3, trial.backend.array(Y))


@fault("Optimizers", "a schedule that begins at zero", RUNS)
def _warm_up(trial: Trial) -> None:
    optim: Any
    if trial.is_pyro:
        import pyro
        import torch

        optim = pyro.optim.LambdaLR(
            {
                "optimizer": torch.optim.Adam,
                "optim_args": {"lr": 0.1},
                "lr_lambda": lambda step: min(1.0, step / 2.0),
            }
        )
    else:
        import optax

        optim = optax.adam(optax.linear_schedule(0.0, 0.1, 2))
    engine = trial.svgd(mean(trial.backend), optim=optim)
    _, result = trial.run(engine, 4, trial.backend.array(Y))
    assert result.losses[-1] < result.losses[0]


# -- other engines ---------------------------------------------------------------------------------

ENGINES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str]] = {
    "SVGDVR with `anchor_every=0`": ("SVGDVR", ("adam",), {"anchor_every": 0}, "anchor_every"),
    "SVN with a step size below zero": ("SVN", (), {"step_size": -1.0}, "step_size"),
    "LaplaceGGN with a curvature that there is not": (
        "LaplaceGGN",
        ("adam",),
        {"curvature": "hessian"},
        "curvature",
    ),
    "LaplaceGGN with one name for `hyperparameters`": (
        "LaplaceGGN",
        ("adam",),
        {"hyperparameters": "mu"},
        r"sequence of names of sites, such as \['w', 'b'\]",
    ),
    "PSGLD with `decay=2`": ("PSGLD", (1e-3,), {"decay": 2.0}, "decay < 1"),
    "SGHMC with friction below zero": ("SGHMC", (1e-3,), {"friction": -1.0}, "friction"),
    "MCLMC with a step size and no length": (
        "MCLMC",
        (),
        {"step_size": 0.1},
        "step_size and length, or neither",
    ),
    "MCLMC with an energy variance of zero": (
        "MCLMC",
        (),
        {"energy_variance": 0.0},
        "energy_variance",
    ),
    "MCLMC with minibatches, adjusted": (
        "MCLMC",
        (),
        {"estimator": "minibatch", "adjusted": True},
        "Expected no estimator with adjusted=True",
    ),
    "MCLMC with a heat of zero": ("MCLMC", (), {"heat": 0.0}, "heat"),
    "SGHMC with a start that is none": ("SGHMC", (1e-3,), {"start": 3}, "Expected start to be"),
    "CyclicalSGLD with cycles of no steps": ("CyclicalSGLD", (1e-3, 0), {}, "cycle_length"),
}


def _engine(name: str, parts: Any, options: Any, words: str, trial: Trial) -> None:
    made = [trial.backend.adam(0.1) if part == "adam" else part for part in parts]
    with trial.refused(words):
        getattr(trial.public, name)(mean(trial.backend), *made, **options)


for _given, (_name, _parts, _options, _words) in ENGINES.items():
    fault("Engines", _given)(partial(_engine, _name, _parts, _options, _words))


def pair(backend: Any) -> Callable[[Any], None]:
    """Two means that add up."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        a = host.sample("a", dist.Normal(0.0, 1.0))
        b = host.sample("b", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(a + b, 1.0), obs=y)

    return model


GUIDES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "None or a name in place of a guide": (lambda guides, b: None, "Expected an autoguide object"),
    "a guide of another model": (
        lambda guides, b: guides.AutoDiagonalNormal(pair(b)),
        "Make the guide from the same model",
    ),
    "a guide that is a point": (
        lambda guides, b: guides.AutoDelta(mean(b)),
        "a point estimate has no density",
    ),
    "a guide that works site by site": (
        lambda guides, b: guides.AutoNormal(mean(b)),
        "AutoDiagonalNormal is its flat equal",
    ),
    "a hand-written guide": (
        lambda guides, b: lambda y: b.host.sample("mu", b.dist.Normal(0.0, 1.0)),
        "Expected an autoguide object",
    ),
}


def _guide(make: Callable[[Any, Any], Any], words: str, trial: Trial) -> None:
    with trial.refused(words):
        guide = make(trial.backend.autoguide, trial.backend)
        engine = trial.engine("ProximalScoreVI", mean(trial.backend), guide)
        trial.run(engine, 3, trial.backend.array(Y))


for _given, (_make, _words) in GUIDES.items():
    fault("Guides", f"{_given}, in `ProximalScoreVI`")(partial(_guide, _make, _words))


@fault("Guides", "a guide of the program as written, with `reparameterise=True`")
def _guide_as_written(trial: Trial) -> None:
    model = mean(trial.backend)
    with trial.refused("Pass AutoDiagonalNormal, or lambda model"):
        guide = trial.backend.autoguide.AutoDiagonalNormal(model)
        trial.engine("ProximalScoreVI", model, guide, reparameterise=True)


@fault("Guides", "a guide's class, which is made with the engine's model", RUNS)
def _guide_class(trial: Trial) -> None:
    guide = trial.backend.autoguide.AutoDiagonalNormal
    engine = trial.engine("ProximalScoreVI", mean(trial.backend), guide)
    _, result = trial.run(engine, 2, trial.backend.array(Y))
    assert np.isfinite(result.losses).all()


# -- chains ----------------------------------------------------------------------------------------


def chains(trial: Trial, kernel: Any, number: int = 20, *args: Any) -> Any:
    """The host's MCMC (in Pyro ours) after a run on the model's arguments, ``Y`` if none."""
    args = args or (trial.backend.array(Y),)
    if trial.is_pyro:
        mcmc = trial.public.MCMC(kernel, number, 5, disable_progbar=True)
        mcmc.run(*args)
        return mcmc
    from numpyro.infer import MCMC

    mcmc = MCMC(kernel, num_warmup=5, num_samples=number, progress_bar=False)
    mcmc.run(trial.backend.key(), *args)
    return mcmc


def _step_size(value: Any, words: str, trial: Trial) -> None:
    with trial.refused(words):
        chains(trial, trial.public.SGLD(mean(trial.backend), value))


for _shown, (_size, _words) in {
    "0": (0, "step_size.*> 0"),
    "NaN": (NAN, "step_size.*> 0"),
    "text": ("x", "step_size.*> 0"),
    "a schedule that gives NaN": (lambda step: NAN, "found nan at step 0"),
    "a schedule without a parameter": (lambda: 1e-3, "a function of other parameters"),
}.items():
    fault("Chains", f"SGLD whose step size is {_shown}")(partial(_step_size, _size, _words))


@fault(
    "Chains",
    "SGLD whose schedule turns NaN after ten steps",
    pyro="`DivergenceWarning` at the end of the run, and from `to_arviz`, with the number",
    numpyro="`DivergenceWarning` at the first such step, and from `to_arviz`, with the number",
)
def _diverging(trial: Trial) -> None:
    xp = trial.backend.xp

    def late(step: Any) -> Any:
        if trial.is_pyro:
            return 1e-3 if step < 10 else NAN
        return xp.where(step < 10, 1e-3, xp.nan)

    kernel = trial.public.SGLD(mean(trial.backend), late)
    warning = trial.public.DivergenceWarning
    words = "15 of 25 steps of SGLD were" if trial.is_pyro else "Step 11 of SGLD was"
    with trial.warned(f"{words} not finite", warning):
        mcmc = chains(trial, kernel)
        figures = None if trial.is_pyro else mcmc.get_extra_fields()["diverging"]
    assert figures is None or int(figures.sum()) == 15
    with trial.warned("15 of 20 draws diverged", warning):
        found = trial.public.to_arviz(mcmc)
    assert int(np.asarray(found["sample_stats"]["diverging"]).sum()) == 15


@fault("Chains", "a kernel of the other package", numpyro=None)
def _other_kernel(trial: Trial) -> None:
    kernel = backend_of("numpyro").public.SGLD(mean(trial.backend), 1e-3)
    with trial.refused("Expected a kernel of this package"):
        chains(trial, kernel)
