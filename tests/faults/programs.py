"""Programs that a host refuses, or that mean something else than they seem to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.faults.table import RUNS, Trial, fault

Y = np.linspace(-1.0, 2.0, 40)


def mean(backend: Any, size: int | None = None) -> Callable[[Any], None]:
    """A mean of rows, of which a minibatch has ``size``."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y), subsample_size=size) as rows:
            host.sample("y", dist.Normal(mu, 1.0), obs=y if size is None else y[rows])

    return model


def same_plates(backend: Any) -> Callable[[Any], None]:
    """Two plates of one name."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", 10, subsample_size=5) as rows:
            host.sample("x", dist.Normal(mu, 1.0), obs=y[:10][rows])
        with host.plate("rows", 30, subsample_size=5) as rows:
            host.sample("y", dist.Normal(mu, 1.0), obs=y[10:][rows])

    return model


def crossed(backend: Any) -> Callable[[Any], None]:
    """A column of data under a row of means: 40 x 40 observations."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", 40):
            host.sample("y", dist.Normal(mu * backend.xp.ones(40), 1.0), obs=y[:, None])

    return model


def crossed_without_a_plate(backend: Any) -> Callable[[Any], None]:
    """The same without a plate."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        host.sample("y", dist.Normal(mu * backend.xp.ones(40), 1.0), obs=y[:, None])

    return model


def columns(backend: Any) -> Callable[[Any], None]:
    """A column of data and one of means, in a plate, which makes each column a square."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", 40):
            host.sample("y", dist.Normal(mu * backend.xp.ones((40, 1)), 1.0), obs=y[:, None])

    return model


def column_of_means(backend: Any) -> Callable[[Any], None]:
    """A column of means above a row of data, in a plate."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", 40):
            host.sample("y", dist.Normal(mu * backend.xp.ones((40, 1)), 1.0), obs=y)

    return model


def weighted(backend: Any, where: str) -> Callable[[Any], None]:
    """A column of weights, or of a mask, around a row of data, and weights of a joint density."""
    host, dist, handlers = backend.host, backend.dist, backend.handlers
    ones = backend.xp.ones(40)

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        if where == "scale of a joint density":
            with handlers.scale(scale=0.5 * ones):
                host.sample("y", dist.Normal(mu * ones, 1.0).to_event(1), obs=y)
        elif where == "mask of a joint density":
            with handlers.mask(mask=ones > 0.0):
                host.sample("y", dist.Normal(mu * ones, 1.0).to_event(1), obs=y)
        elif where == "scale":
            with host.plate("rows", 40), handlers.scale(scale=0.5 * ones[:, None]):
                host.sample("y", dist.Normal(mu, 1.0), obs=y)
        else:
            with host.plate("rows", 40), handlers.mask(mask=ones[:, None] > 0.0):
                host.sample("y", dist.Normal(mu, 1.0), obs=y)

    return model


PROGRAMS: dict[str, tuple[Callable[[Any], Callable[..., None]], str]] = {
    "`subsample_size=0`": (lambda b: mean(b, 0), r"subsample_size=0\. Expected from 1 to 40"),
    "`subsample_size=-3`": (lambda b: mean(b, -3), r"subsample_size=-3\. Expected from 1 to 40"),
    "a subsample of 41 of 40 rows": (lambda b: mean(b, 41), r"=41\. Expected from 1 to 40"),
    "two plates of one name": (same_plates, "Multiple plates are named.*rows"),
    "`obs=y[:, None]` under a row of means": (crossed, r"invalid log_prob shape.*\(40, 40\)"),
    "the same without a plate": (crossed_without_a_plate, r"invalid log_prob shape.*\(40, 40\)"),
    "a column of means in a plate": (column_of_means, "each datum counts 40 times"),
    "columns of means and of data in a plate": (columns, "each datum counts 40 times"),
    "a column of weights around rows": (
        lambda b: weighted(b, "scale"),
        r"scale around site 'y' has shape \(40, 1\), .* make \(40, 40\)",
    ),
    "a column as the mask of rows": (
        lambda b: weighted(b, "mask"),
        r"(mask around|log_prob shape).*\(40, 40\)",
    ),
    "weights of rows around a joint density": (
        lambda b: weighted(b, "scale of a joint density"),
        r"scale around site 'y' has shape \(40,\), .* density \(\): .* take to_event off",
    ),
    "a mask of rows around a joint density": (
        lambda b: weighted(b, "mask of a joint density"),
        r"mask around site 'y' has shape \(40,\), .* density \(\): .* take to_event off",
    ),
}


def _refused(make: Callable[[Any], Callable[..., None]], words: str, trial: Trial) -> None:
    with trial.refused(words, "ModelCheckError"):
        trial.run(trial.svgd(make(trial.backend)), 3, trial.backend.array(Y))


for _given, (_make, _words) in PROGRAMS.items():
    fault("Programs", _given)(partial(_refused, _make, _words))


@fault("Programs", "a minibatch of all rows, one plate used twice, data that all groups see", RUNS)
def _taken(trial: Trial) -> None:
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp

    def groups(y: Any) -> None:
        with host.plate("groups", 3, dim=-2):
            mu = host.sample("mu", dist.Normal(0.0, 10.0))
            with host.plate("rows", 40, dim=-1):
                host.sample("y", dist.Normal(mu, 1.0), obs=y)

    def twice(y: Any) -> None:
        rows = host.plate("rows", 40)
        with rows:
            a = host.sample("a", dist.Normal(0.0, 1.0))
        with rows:
            host.sample("y", dist.Normal(a, 1.0), obs=y)

    def number(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(xp.zeros(3), 10.0).to_event(1))
        host.sample("one", dist.Normal(mu, 1.0).to_event(1), obs=y[:3])
        host.sample("all", dist.Normal(mu[0], 1.0), obs=y)
        host.sample("same", dist.Normal(mu, 1.0), obs=y[0])

    for model in (mean(trial.backend, 40), groups, twice, number):
        _, result = trial.run(trial.svgd(model), 2, trial.backend.array(Y))
        assert np.isfinite(result.losses).all()


@fault("Programs", "`run(callback=...)` where the model has a parameter `callback`")
def _own_names(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any, callback: float = 1.0, checkpoint: float = 1.0) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, callback * checkpoint), obs=y)

    y = trial.backend.array(Y)
    # A trial counts steps by a callback of its own.
    for options in ({}, {"checkpoint": trial.folder / "state"}):
        with trial.refused(r"parameters of the model as well.*functools\.partial"):
            trial.run(trial.svgd(model), 2, y, **options)
    bound = partial(model, callback=2.0, checkpoint=1.0)
    trial.run(trial.svgd(bound), 2, y)
    assert trial.steps == 2
