"""Networks that are no programs, and priors that fit no parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ppl_ext.networks import priors
from tests.faults.table import Trial, fault
from tests.networks import networks

GROUP = "Networks as programs"
X, Y = np.zeros((6, 3)), np.zeros(6)


def layered(backend: Any, layer: str) -> Any:
    """A network with a layer in training mode."""
    if backend.is_pyro:
        from torch import nn

        layers = {"norm": nn.BatchNorm1d(4), "dropout": nn.Dropout(0.1)}
        return nn.Sequential(nn.Linear(3, 4), layers[layer], nn.Linear(4, 1))
    from flax import nnx

    rngs = nnx.Rngs(0)
    made = {"norm": nnx.BatchNorm(4, rngs=rngs), "dropout": nnx.Dropout(0.1, rngs=rngs)}
    return nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), made[layer], nnx.Linear(4, 1, rngs=rngs))


def plain(backend: Any) -> Any:
    """A network of one kind of layer."""
    return networks.module(backend, networks.LIBRARIES[backend.name][0])[0]


def regression(
    backend: Any, module: Any, prior: Any, *, inside: bool = False, name: Any = "net"
) -> Callable[..., None]:
    """Rows around the network's output."""
    host, dist = backend.host, backend.dist

    def model(x: Any, y: Any) -> None:
        if not inside:
            net = backend.public.random_module(name, module, prior)
        with host.plate("rows", len(x)):
            if inside:
                net = backend.public.random_module(name, module, prior)
            host.sample("y", dist.Normal(net(x)[:, 0], 1.0), obs=y)

    return model


def _refused(
    make: Callable[[Any], Callable[..., None]], words: str, error: str, trial: Trial
) -> None:
    with trial.refused(words, error):
        trial.run(trial.svgd(make(trial.backend)), 3, *trial.backend.arrays((X, Y)))


def normal(backend: Any) -> Any:
    """A distribution for all parameters."""
    return backend.dist.Normal(0.0, 1.0)


def patterns(backend: Any) -> Mapping[str, Any]:
    """A pattern that fits nothing."""
    return {"tail.*": normal(backend), "*": None}


REFUSALS: dict[str, tuple[Callable[[Any], Callable[..., None]], str, str]] = {
    "a module with batch normalisation in training mode": (
        lambda b: regression(b, layered(b, "norm"), normal(b)),
        r"normalisation by the batch in \['.*1'\].*module\.eval\(\)",
        "ModelCheckError",
    ),
    "a module with dropout in training mode": (
        lambda b: regression(b, layered(b, "dropout"), normal(b)),
        r"dropout in \['.*1'\].*module\.eval\(\)",
        "ModelCheckError",
    ),
    "a pattern that fits no parameter": (
        lambda b: regression(b, plain(b), patterns(b)),
        r"\['tail\.\*'\], which fit none",
        "ArgumentError",
    ),
    "a dictionary of priors that leaves parameters out": (
        lambda b: regression(b, plain(b), {"*bias": normal(b)}),
        "prior for every parameter, found none for",
        "ArgumentError",
    ),
    "`random_module` inside of a plate": (
        lambda b: regression(b, plain(b), normal(b), inside=True),
        "outside of every plate",
        "ArgumentError",
    ),
    "a prior whose shape does not fit a parameter": (
        lambda b: regression(b, plain(b), b.dist.Normal(b.array(np.zeros(7)), 1.0)),
        "can be expanded to the shape",
        "ArgumentError",
    ),
    "a number as a network's prior": (
        lambda b: regression(b, plain(b), 1.0),
        r"to be a distribution, one of priors.*found 1\.0",
        "ArgumentError",
    ),
    "something else as the module": (
        lambda b: regression(b, np.tanh, normal(b)),
        r"Expected module to be a.*Module",
        "ArgumentError",
    ),
    "a horseshoe that expects every input to matter": (
        lambda b: regression(b, plain(b), priors.Horseshoe(priors.global_scale(3, 3, 6))),
        "relevant less than groups=3",
        "ArgumentError",
    ),
}

for _given, (_make, _words, _error) in REFUSALS.items():
    fault(GROUP, _given)(partial(_refused, _make, _words, _error))


@fault(
    GROUP,
    "`random_module` of weights with `requires_grad=False`",
    "a warning that names them: they get priors, and None as a prior holds them",
    numpyro=None,
)
def _frozen(trial: Trial) -> None:
    if not trial.is_pyro:
        return
    module, normal = plain(trial.backend), trial.backend.dist.Normal(0.0, 1.0)
    first, last = next(iter(module.named_parameters()))
    last.requires_grad_(False)
    arrays = trial.backend.arrays((X, Y))
    with trial.warned(rf"requires_grad=False get priors.*{first}", UserWarning):
        trial.run(trial.svgd(regression(trial.backend, module, normal)), 2, *arrays)
    held = trial.svgd(regression(trial.backend, module, {first: None, "*": normal}))
    trial.run(held, 2, *arrays)
    assert f"net.{first}" not in held.target.layout.names


@fault(GROUP, "`predictive_distribution(..., linearize=True)` with draws, which have no mode")
def _without_mode(trial: Trial) -> None:
    model = regression(trial.backend, plain(trial.backend), normal(trial.backend))
    draws = {"w": trial.backend.array(np.zeros(2))}
    with trial.refused("engine with a mode, LaplaceGGN, in place of the draws"):
        predict = trial.public.predictive_distribution
        predict(model, draws, trial.backend.array(X), linearize=True)
