"""What loses something on its way in from within: containers, tables, and what a model holds."""

from __future__ import annotations

import warnings
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.faults.door import (
    DIGITS,
    FIRST,
    KEPT,
    KEYWORDS,
    LOADERS,
    MASKS,
    NOT_TRUSTED,
    OBSERVED,
    call,
    of_index,
    scaled,
)
from tests.faults.programs import Y, mean
from tests.faults.table import RUNS, Trial, fault

HIDDEN = np.ma.masked_array(Y, Y > 1.0)
TIME = FIRST + np.linspace(10.0, 130.0, 40)
WARNED = "a warning: the model may compute with them before the host has them"


# -- keywords ------------------------------------------------------------------------------------


class Called:
    """A program that is an object."""

    def __init__(self, model: Callable[..., None]) -> None:
        self.model = model

    def __call__(self, y: Any, seconds: float = 1.0) -> None:
        self.model(y, seconds=seconds)


@fault(KEYWORDS, "the same of an object that is called, its method, or a model in a handler")
def _of_objects(trial: Trial) -> None:
    model, handlers, y = scaled(trial.backend), trial.backend.handlers, trial.backend.array(Y)
    for program in (
        Called(model),
        Called(model).__call__,
        handlers.condition(model, data={}),
        handlers.scale(handlers.condition(model, data={}), scale=1.0),
        partial(model, budget=1.0),
    ):
        with trial.refused(r"found \['seconds'\].*functools\.partial\(model, seconds="):
            call(trial, "fit", program, y, seconds=3.0, progress_bar=False)


@fault(KEYWORDS, "`fit_many(budget=...)` of a model with that parameter")
def _of_many(trial: Trial) -> None:
    y = trial.backend.array(np.stack([Y, Y]))
    with trial.refused(r"of fit_many alone, found \['budget'\]"):
        call(trial, "fit_many", scaled(trial.backend), y, budget=3.0)


@fault(KEYWORDS, "`Fit.predict(y, site=...)` of a model with that parameter", "the model has it")
def _of_predict(trial: Trial) -> None:
    y = trial.backend.array(Y)
    fit = call(trial, "fit", scaled(trial.backend), y, exact=False, progress_bar=False)
    once, thrice = (fit.predict(y, site=each)["y"].mean() for each in (1.0, 3.0))
    assert abs(thrice - 3.0 * once) < 0.1


# -- masks ---------------------------------------------------------------------------------------

CONTAINERS: dict[str, tuple[Any, str]] = {
    "a dictionary's values": ({"y": HIDDEN}.values(), r"data\[0\]"),
    "a mapping of one's own": (UserDict({"y": HIDDEN}), r"data\['y'\]"),
    "a mapping that cannot be changed": (MappingProxyType({"y": HIDDEN}), r"data\['y'\]"),
    "a list behind 1,500 others": (
        [*(("a", k) for k in range(1_500)), (HIDDEN,)],
        r"data\[1500\]\[0\]",
    ),
}


def _within(data: Any, name: str, trial: Trial) -> None:
    def model(data: Any) -> None:
        raise AssertionError("the model runs")

    with trial.refused(f"found a masked array in argument '{name}'"):
        call(trial, "fit", model, data, progress_bar=False)


for _given, (_data, _name) in CONTAINERS.items():
    fault(MASKS, f"a masked array in {_given}")(partial(_within, _data, _name))


@fault(MASKS, "a masked array in an array of objects, or a hidden entry by itself")
def _of_objects_or_one(trial: Trial) -> None:
    def model(data: Any) -> None:
        raise AssertionError("the model runs")

    both = np.empty(2, object)
    both[0], both[1] = HIDDEN, 1
    with trial.refused("masked array in argument 'data|'data' of type object"):
        call(trial, "fit", model, both, progress_bar=False)
    with trial.refused("masked array in argument 'data'"):
        call(trial, "fit", model, HIDDEN[-1], progress_bar=False)


@fault(MASKS, "a masked array as a parameter's default")
def _default(trial: Trial) -> None:
    def model(y: Any = HIDDEN) -> None:
        raise AssertionError("the model runs")

    with trial.refused("found a masked array in argument 'y'"):
        call(trial, "fit", model, progress_bar=False)


class Study:
    """A program that holds its data."""

    def __init__(self, trial: Trial, y: Any) -> None:
        self.trial, self.y = trial, y

    def model(self) -> None:
        host, dist = self.trial.backend.host, self.trial.backend.dist
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(self.y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=self.trial.backend.xp.asarray(self.y))


@fault(
    MASKS,
    "a masked array that the model closes over, has as a global, or holds as an object",
    pyro="a warning",
    numpyro="a warning, and JAX's own error where an array is made of it",
)
def _held(trial: Trial) -> None:
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp
    y = HIDDEN.copy()

    def closed() -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", 40):
            host.sample("y", dist.Normal(mu, 1.0), obs=xp.asarray(y))

    def of_global() -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", 40):
            host.sample("y", dist.Normal(mu, 1.0), obs=xp.asarray(HIDDEN))

    def tried(model: Callable[..., None]) -> None:
        if trial.is_pyro:
            call(trial, "find_start", model)
        else:
            with pytest.raises(ValueError, match="masked arrays are not supported"):
                call(trial, "find_start", model)

    words = "holds a masked array of NumPy's, '{}'.*hidden entries count as data"
    for model, name in ((closed, "y"), (of_global, "HIDDEN"), (Study(trial, y).model, "trial")):
        if name == "trial":
            name = "y"
        with trial.warned(words.format(name), trial.public.DataWarning):
            tried(model)


@fault(MASKS, "new rows with a mask to `Fit.predict`, or data sets with one to `fit_many`")
def _later(trial: Trial) -> None:
    model, y = mean(trial.backend), trial.backend.array(Y)
    fit = call(trial, "fit", model, y, exact=False, progress_bar=False)
    with trial.refused("found a masked array in argument 'y'"):
        fit.predict(HIDDEN)
    with trial.refused("found a masked array in argument 'y'"):
        call(trial, "fit_many", model, np.ma.stack([HIDDEN, HIDDEN]))


# -- digits --------------------------------------------------------------------------------------


def timed(trial: Trial, take: Callable[[Any], Any]) -> Callable[..., None]:
    """A slope over times that a model takes out of what it is given."""
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp

    def model(data: Any) -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        x = xp.asarray(take(data)) - FIRST
        host.sample("y", dist.Normal(slope * x, 1.0).to_event(1), obs=trial.backend.array(Y))

    return model


@fault(DIGITS, "times in seconds since 1970 as a column of a data frame, to `fit`")
def _column(trial: Trial) -> None:
    import pandas as pd

    with trial.refused("argument 'data'.*of their spread"):
        model = timed(trial, lambda each: each)
        call(trial, "fit", model, pd.Series(TIME), progress_bar=False)


@fault(DIGITS, "such times in a data frame, or an array of xarray's", WARNED, pyro=KEPT)
def _frame(trial: Trial) -> None:
    if trial.is_pyro:
        return
    import pandas as pd
    import xarray as xr

    frame = pd.DataFrame({"t": TIME, "name": "a"})
    with trial.warned(r"argument 'data\['t'\]'.*of their spread", trial.public.DataWarning):
        call(trial, "find_start", timed(trial, lambda each: each["t"].to_numpy()), frame)
    with trial.warned("argument 'data'.*of their spread", trial.public.DataWarning):
        call(trial, "find_start", timed(trial, np.asarray), xr.DataArray(TIME))
    whole = pd.DataFrame({"k": np.arange(40) + 2**40})
    with trial.warned("which would wrap to other numbers", trial.public.DataWarning):
        call(trial, "find_start", timed(trial, lambda each: np.zeros(40) + FIRST), whole)


@dataclass(slots=True)
class Slotted:
    """A time, in an object without a dictionary."""

    t: float


@fault(DIGITS, "such times in a list of records", WARNED)
def _records(trial: Trial) -> None:
    rows = [{"t": float(each), "name": "a"} for each in TIME]
    with trial.warned(r"argument 'data\[:\]\['t'\]'.*of their spread", trial.public.DataWarning):
        call(trial, "find_start", timed(trial, lambda each: [row["t"] for row in each]), rows)
    objects = [Slotted(float(each)) for each in TIME]
    with trial.warned(r"argument 'data\[:\]\.t'.*of their spread", trial.public.DataWarning):
        call(trial, "find_start", timed(trial, lambda each: [row.t for row in each]), objects)


@fault(
    DIGITS,
    "such times, or whole numbers beyond 32 bits, that the model closes over",
    WARNED,
    pyro=KEPT,
)
def _closed(trial: Trial) -> None:
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp
    time, codes = TIME.copy(), np.arange(40) + 2**40

    def of_times() -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        x = xp.asarray(time) - FIRST
        host.sample("y", dist.Normal(slope * x, 1.0).to_event(1), obs=trial.backend.array(Y))

    def of_codes() -> None:
        mu = host.sample("mu", dist.Normal(0.0, 1.0))
        x = xp.asarray(codes - codes.min())
        host.sample("y", dist.Normal(mu + 0.0 * x, 1.0).to_event(1), obs=trial.backend.array(Y))

    for model, words in ((of_times, "'time'.*of their spread"), (of_codes, "'codes'.*would wrap")):
        if trial.is_pyro:
            with warnings.catch_warnings():
                warnings.simplefilter("error", trial.public.DataWarning)
                call(trial, "find_start", model)
        else:
            with trial.warned(words, trial.public.DataWarning):
                call(trial, "find_start", model)


@fault(DIGITS, "whole numbers beyond 32 bits to `fit`: the argument is named", pyro=KEPT)
def _whole_of_fit(trial: Trial) -> None:
    if trial.is_pyro:
        return
    with trial.refused("in argument 'y', which would wrap"):
        call(trial, "fit", mean(trial.backend), np.arange(5) + 2**40, progress_bar=False)


@fault(DIGITS, "a number that single precision does not reach, such as 1e300", pyro=KEPT)
def _too_large(trial: Trial) -> None:
    if trial.is_pyro:
        return
    y = np.array([*Y[:-1], 1e300])
    with trial.refused("found 1e\\+300 in argument 'y', which would be infinite"):
        call(trial, "fit", mean(trial.backend), y, progress_bar=False)


@fault(DIGITS, "such times as new rows to `Fit.predict`, as an array or a column")
def _predicted(trial: Trial) -> None:
    import pandas as pd

    host, dist = trial.backend.host, trial.backend.dist

    def model(x: Any) -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(x)):
            host.sample("y", dist.Normal(slope * x, 1.0), obs=None)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = call(trial, "fit", model, trial.backend.array(Y), exact=False, progress_bar=False)
    for rows in (TIME, pd.Series(TIME)):
        with trial.refused("argument 'x'.*of their spread"):
            fit.predict(rows)


@fault("Data", "an iterator, which the first run of a model uses up")
def _iterator(trial: Trial) -> None:
    def model(data: Any) -> None:
        raise AssertionError("the model runs")

    for each in (iter([Y]), (row for row in Y), map(float, Y)):
        with trial.refused("the same whenever the model is run, found .* in argument 'data'"):
            call(trial, "fit", model, each, progress_bar=False)


@fault("Data", "an array without axes", RUNS)
def _without_axes(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(shift: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 1.0))
        host.sample(
            "y", dist.Normal(mu, 1.0), obs=trial.backend.array(np.array(1.0)) + float(2) * 0
        )

    fit = call(trial, "fit", model, np.array(3.0), exact=False, progress_bar=False)
    assert abs(trial.backend.numpy(fit.draws["mu"]).mean() - 0.5) < 0.1


# -- what is observed ------------------------------------------------------------------------------


@fault(OBSERVED, "`check`, `refit` and `fit_many` of a minibatch as arguments", NOT_TRUSTED)
def _batch(trial: Trial) -> None:
    model, array = of_index(trial.backend), trial.backend.array
    rows = np.linspace(-1.0, 2.0, 20)
    draws = {"mu": array(np.random.default_rng(0).normal(0.5, 0.1, 200))}
    fit = call(trial, "fit", model, array(np.linspace(-1, 2, 100)), exact=False, progress_bar=False)
    words = "of which the arguments hold 20: each counts 5 times"

    def fits() -> Any:
        rows_of_two = array(np.stack([rows, rows]))
        return call(trial, "fit_many", model, rows_of_two, exact=False, progress_bar=False)[0]

    for verb in (
        lambda: call(trial, "check", draws, model, array(rows), progress_bar=False),
        lambda: fit.refit(array(rows), progress_bar=False).verdict,
        lambda: fits().verdict,
    ):
        with trial.warned(words, trial.public.DataWarning):
            verdict = verb()
        assert verdict.level == "not trusted" and words in verdict.reasons[0]


@fault(
    OBSERVED,
    "data that the model closes over, changed before `Fit.more`",
    "draws of the data that were fitted, or refused",
)
def _closed_over(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist
    data = {"y": trial.backend.array(Y)}

    def model() -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", 40):
            host.sample("y", dist.Normal(mu, 1.0), obs=data["y"])

    fit = call(trial, "fit", model, progress_bar=False)
    data["y"] = data["y"] + 1.0
    try:
        fit = fit.more(256, progress_bar=False)
    except trial.public.ArgumentError:
        pass
    assert abs(trial.backend.numpy(fit.draws["mu"]).mean() - Y.mean()) < 0.04


@fault(OBSERVED, "data of a dictionary, changed in place or put anew before `Fit.more`")
def _of_dictionary(trial: Trial) -> None:
    model = mean(trial.backend)
    for is_new in (False, True):
        y = Y.astype(np.float32)
        data = {"y": trial.backend.array(y) if trial.is_pyro else y}
        fit = call(trial, "fit", lambda given: model(given["y"]), data, progress_bar=False)
        if is_new:
            data["y"] = data["y"] + 1.0
        else:
            data["y"] += 1.0
        with trial.refused("changed in place since"):
            fit.more(64, progress_bar=False)


ROWS: dict[str, Callable[[Trial, Any], Any]] = {
    "divides the rows of its minibatch by their spread": lambda t, x: x / x.std(),
    "sorts the rows of its minibatch": lambda t, x: (
        t.backend.xp.sort(x)[0] if t.is_pyro else t.backend.xp.sort(x)
    ),
    "adds up the rows of its minibatch": lambda t, x: t.backend.xp.cumsum(x, 0),
    "makes shares of the rows of its minibatch": lambda t, x: (
        t.backend.xp.exp(x) / t.backend.xp.exp(x).sum()
    ),
}


def _mixes(change: Callable[[Trial, Any], Any], trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(x: Any, y: Any) -> None:
        w = host.sample("w", dist.Normal(0.0, 1.0))
        with host.plate("rows", 40, subsample_size=8) as rows:
            host.sample("y", dist.Normal(w * change(trial, x[rows]), 1.0), obs=y[rows])

    x, y = trial.backend.array(np.cos(np.arange(40.0)) + 1.5), trial.backend.array(Y)
    with trial.warned("depends on the other rows of its minibatch", trial.public.DataWarning):
        trial.run(trial.svgd(model), 2, x, y)


for _given, _change in ROWS.items():
    fault(OBSERVED, f"a model that {_given}", "a warning: minibatches have another posterior")(
        partial(_mixes, _change)
    )


@fault(LOADERS, "a masked array in the batches of a loader, or in a dictionary of them")
def _masked_batches(trial: Trial) -> None:
    model = mean(trial.backend)
    for program, batch in ((model, HIDDEN), (lambda given: model(given["y"]), {"y": HIDDEN})):
        with trial.refused("found a masked array in argument"):
            call(trial, "fit", program, batches=[(batch,)], progress_bar=False)
