"""Engines that are pickled or copied, before and after a run."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from tests.backends import backend_of
from tests.engine_support import Verbs
from tests.faults.table import Trial, fault

GROUP = "Copies and pickles"
EXACT = "draws alike and goes on alike, without touching the first"
Y = np.linspace(-1.0, 2.0, 12)


def _mean(package: str, y: Any) -> None:
    """A mean of rows: a function of a module, which plain pickle finds again."""
    backend = backend_of(package)
    host, dist = backend.host, backend.dist
    mu = host.sample("mu", dist.Normal(0.0, 10.0))
    with host.plate("rows", len(y), subsample_size=6) as rows:
        host.sample("y", dist.Normal(mu, 1.0), obs=y[rows])


@cache
def model_of(package: str) -> Callable[[Any], None]:
    return partial(_mean, package)


def engines(trial: Trial) -> dict[str, Callable[[], Any]]:
    """Engines by name, each with options of its own."""
    backend, public = trial.backend, trial.public
    model, auto = model_of(backend.name), backend.autoguide

    def fitted(name: str, guide: Any, **options: Any) -> Callable[[], Any]:
        return lambda: trial.engine(name, model, guide(model), **options)

    return {
        "SVGD": lambda: trial.svgd(model, estimator=public.SAGA()),
        "SVN": lambda: trial.engine("SVN", model, num_particles=3),
        "ProximalScoreVI": fitted("ProximalScoreVI", auto.AutoDiagonalNormal),
        "FisherVI": fitted("FisherVI", auto.AutoDiagonalNormal, estimator=public.Full()),
    }


#: Engines whose copies are made as those of others here.
LIKE_OTHERS = ("SVN", "FisherVI")
#: Optimizers of NumPyro and optax are functions inside of functions.
CLOUD = ("SVGD",)


def _pickled(trial: Trial, name: str, engine: Any) -> Any:
    if trial.is_pyro or name not in CLOUD:
        return pickle.loads(pickle.dumps(engine))
    with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
        pickle.dumps(engine)
    return pickle.loads(pytest.importorskip("cloudpickle").dumps(engine))


def _copied(name: str, copier: Callable[[Trial, str, Any], Any], trial: Trial) -> None:
    verbs, make = Verbs(trial.backend, (trial.backend.array(Y),)), engines(trial)[name]
    before, state = make(), None
    fresh = copier(trial, name, before)
    runs = [verbs.bits(each, verbs.run(each, 3)[0]) for each in (before, fresh)]
    assert runs[0] == runs[1]
    if trial.is_pyro:
        engine, other = before, copier(trial, name, before)
    else:
        engine = before
        state, _ = verbs.run(engine, 3)
        other = copier(trial, name, engine)
    draws = [verbs.samples(each, state) for each in (engine, other)]
    assert all(np.array_equal(draws[0][site], draws[1][site]) for site in draws[0])
    here = verbs.bits(engine, state)
    there, _ = verbs.run(other, 3, state)
    assert verbs.bits(engine, state) == here
    on, _ = verbs.run(engine, 3, state)
    assert verbs.bits(engine, on) == verbs.bits(other, there)


for _name in ("SVGD", "SVN", "ProximalScoreVI", "FisherVI"):
    _how = EXACT + " (`cloudpickle`: its optimizer is a local function)"
    fault(
        GROUP,
        f"`{_name}` by `pickle`",
        EXACT,
        numpyro=_how if _name in CLOUD else EXACT,
        slow=_name in LIKE_OTHERS,
    )(partial(_copied, _name, _pickled))
for _name in ("SVGD",):
    fault(GROUP, f"`{_name}` by `copy.copy` and `copy.deepcopy`", EXACT)(
        partial(_copied, _name, lambda trial, name, engine: copy.copy(copy.deepcopy(engine)))
    )


@fault(
    GROUP, "an engine of a model that is a local function, by `pickle`", "pickle's error says so"
)
def _local(trial: Trial) -> None:
    def model(y: Any) -> None:
        _mean(trial.backend.name, y)

    engine = trial.engine("SVN", model, num_particles=3)
    with pytest.raises((AttributeError, pickle.PicklingError), match=r"local object.*model"):
        pickle.dumps(engine)


@fault(GROUP, "a parameter that the process has changed since the engine was pickled", EXACT)
def _held(trial: Trial) -> None:
    backend = trial.backend
    verbs, model = Verbs(backend, (backend.array(Y),)), partial(_held_mean, backend.name)
    with trial.warned("held"):
        engine = trial.engine("SVN", model, num_particles=3)
        state, _ = verbs.run(engine, 3)
        file = pickle.dumps(engine)
        other = pickle.loads(file)
        if trial.is_pyro:
            backend.host.param("centre", backend.array(5.0))
        try:
            there, _ = verbs.run(other, 3, state)
        finally:
            if trial.is_pyro:
                backend.host.clear_param_store()
        on, _ = verbs.run(engine, 3, state)
    assert verbs.bits(engine, on) == verbs.bits(other, there)


def _held_mean(package: str, y: Any) -> None:
    backend = backend_of(package)
    host, dist = backend.host, backend.dist
    mu = host.sample("mu", dist.Normal(host.param("centre", backend.array(1.0)), 0.1))
    with host.plate("rows", len(y)):
        host.sample("y", dist.Normal(mu, 10.0), obs=y)
