"""Models that are not the same when they are run again."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.faults.programs import Y, mean
from tests.faults.table import RUNS, Trial, fault

GROUP = "Side effects in the model's body"


def numpy_random(backend: Any) -> Callable[[Any], None]:
    """NumPy's random numbers in the data."""

    def model(y: Any) -> None:
        noise = np.random.normal(size=40)  # noqa: NPY002
        mean(backend)(y + backend.array(noise))

    return model


def python_random(backend: Any) -> Callable[[Any], None]:
    """Python's random numbers in a distribution's parameter."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(random.gauss(0.0, 1.0), 10.0))
        with host.plate("rows", 40):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    return model


def growing_list(backend: Any) -> Callable[[Any], None]:
    """A list that grows with every run."""
    seen: list[int] = []

    def model(y: Any) -> None:
        seen.append(1)
        mean(backend)(y + float(len(seen)))

    return model


def counted_factor(backend: Any) -> Callable[[Any], None]:
    """A counter in a factor."""
    calls = [0]

    def model(y: Any) -> None:
        calls[0] += 1
        mu = backend.host.sample("mu", backend.dist.Normal(0.0, 10.0))
        backend.host.factor("penalty", -calls[0] * mu**2)

    return model


def counted_scale(backend: Any) -> Callable[[Any], None]:
    """A counter in the scale of the observations, as for annealing."""
    calls = [0]

    def model(y: Any) -> None:
        calls[0] += 1
        mu = backend.host.sample("mu", backend.dist.Normal(0.0, 10.0))
        with backend.host.plate("rows", 40), backend.handlers.scale(scale=float(calls[0])):
            backend.host.sample("y", backend.dist.Normal(mu, 1.0), obs=y)

    return model


def random_mask(backend: Any) -> Callable[[Any], None]:
    """Observations that are left out at random."""

    def model(y: Any) -> None:
        kept = backend.array(np.random.random(40)) < 0.5  # noqa: NPY002
        mu = backend.host.sample("mu", backend.dist.Normal(0.0, 10.0))
        with backend.host.plate("rows", 40), backend.handlers.mask(mask=kept):
            backend.host.sample("y", backend.dist.Normal(mu, 1.0), obs=y)

    return model


def random_minibatch(backend: Any) -> Callable[[Any], None]:
    """Rows that the model draws by itself."""

    def model(y: Any) -> None:
        rows = np.random.permutation(40)[:10]  # noqa: NPY002
        mean(backend)(y[rows])

    return model


MODELS: dict[str, tuple[Callable[[Any], Callable[..., None]], str]] = {
    "`np.random` in the data": (numpy_random, "site 'y': observed value, log density"),
    "`random` in a prior": (python_random, "site 'mu': loc"),
    "a growing list that the data depend on": (growing_list, "site 'y': observed value"),
    "a counter in a factor": (counted_factor, "site 'penalty': .*log density"),
    "a counter in a scale": (counted_scale, "site 'y': scale"),
    "observations that are masked at random": (random_mask, "site 'y': (mask|log density)"),
    "a minibatch that the model draws itself": (random_minibatch, "site 'y': observed value"),
}


def _refused(make: Callable[[Any], Callable[..., None]], words: str, trial: Trial) -> None:
    model = make(trial.backend)
    for _ in range(2):
        with trial.refused(f"other results when it is run again.*{words}", "ModelCheckError"):
            trial.run(trial.svgd(model), 3, trial.backend.array(Y))


for _given, (_make, _words) in MODELS.items():
    fault(GROUP, _given)(partial(_refused, _make, _words))


@fault(
    GROUP,
    "dropout in train mode",
    numpyro="a warning: every evaluation uses the same draw",
)
def _dropout(trial: Trial) -> None:
    host, dist, y = trial.backend.host, trial.backend.dist, trial.backend.array(Y)

    def model(y: Any, kept: Callable[[Any], Any]) -> None:
        w = host.sample("w", dist.Normal(0.0, 10.0))
        with host.plate("rows", 40):
            host.sample("y", dist.Normal(w * kept(y), 1.0), obs=y)

    if not trial.is_pyro:
        import jax

        def half(y: Any) -> Any:
            return y * jax.random.bernoulli(host.prng_key(), 0.5, y.shape)

        with trial.warned(r"asks for a random key.*dropout"):
            trial.run(trial.svgd(lambda y: model(y, half)), 2, y)
        return
    import torch

    dropout = torch.nn.Dropout(0.5)
    with trial.refused(
        "site 'y': loc, log density.*Dropout in train mode.*evaluation mode", "ModelCheckError"
    ):
        trial.run(trial.svgd(lambda y: model(y, dropout)), 2, y)
    with trial.refused("Random numbers come from bernoulli", "ModelCheckError"):
        trial.run(trial.svgd(lambda y: model(y, torch.nn.functional.dropout)), 2, y)
    trial.run(trial.svgd(lambda y: model(y, dropout.eval())), 2, y)


@fault(GROUP, "a key of JAX that the model splits outside of itself", pyro=None)
def _kept_key(trial: Trial) -> None:
    import jax

    keys = [jax.random.key(0)]

    def model(y: Any) -> None:
        keys[0], key = jax.random.split(keys[0])
        mean(trial.backend)(y + jax.random.normal(key, y.shape))

    for _ in range(2):
        keys[0] = jax.random.key(0)
        with trial.refused("keeps a value of one run", "ModelCheckError"):
            trial.run(trial.svgd(model), 3, trial.backend.array(Y))


@fault(GROUP, "a list for looking on that nothing depends on, and the host's minibatches", RUNS)
def _looking_on(trial: Trial) -> None:
    seen: list[Any] = []

    def model(y: Any) -> None:
        seen.append(len(seen))
        mean(trial.backend, 10)(y)

    _, result = trial.run(trial.svgd(model), 2, trial.backend.array(Y))
    assert np.isfinite(result.losses).all()
