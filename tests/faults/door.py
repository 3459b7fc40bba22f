"""Arguments that would lose something on their way in, and keywords that two could mean."""

from __future__ import annotations

import operator
import warnings
from collections import deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.faults.options import chains
from tests.faults.programs import Y, mean
from tests.faults.table import REFUSED, RUNS, Trial, fault

KEYWORDS = "Keywords of the model and of the library"
DIGITS = "Numbers that lose digits"
MASKS = "Masked arrays"
SEEDS = "Seeds and keys"
OBSERVED = "What is observed"
FIRST = 1_700_000_000.0


def call(trial: Trial, verb: str, *args: Any, **options: Any) -> Any:
    """A function of the public face, with a key first in NumPyro."""
    keys = () if trial.is_pyro else (trial.backend.key(),)
    return getattr(trial.public, verb)(*keys, *args, **options)


# -- keywords ------------------------------------------------------------------------------------


def scaled(backend: Any) -> Callable[..., None]:
    """A mean whose model has parameters named as options of the library are."""
    host, dist = backend.host, backend.dist

    def model(
        y: Any,
        seconds: float = 1.0,
        budget: float = 1.0,
        site: float = 1.0,
        observed: float = 1.0,
        num_samples: float = 1.0,
        start: float = 1.0,
        state: float = 1.0,
        rng_key: float = 1.0,
        seed: float = 1.0,
        path: float = 1.0,
    ) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu * seconds * budget * site * seed, 1.0), obs=y)

    return model


def _draws(trial: Trial) -> dict[str, Any]:
    return {"mu": trial.backend.array(np.linspace(0.0, 1.0, 50))}


#: Entry point: a keyword, and the call with it.
ENTRIES: dict[str, tuple[str, Callable[..., Any]]] = {
    "fit": ("seconds", lambda t, m, y, **k: call(t, "fit", m, y, progress_bar=False, **k)),
    "check": ("budget", lambda t, m, y, **k: call(t, "check", _draws(t), m, y, **k)),
    "find_start": (
        "seed",
        lambda t, m, y, **k: call(t, "find_start", m, y, **k),
    ),
    "warm_chains": (
        "num_samples",
        lambda t, m, y, **k: call(t, "warm_chains", m, _draws(t), y, **k),
    ),
    "refit": (
        "seconds",
        lambda t, m, y, **k: call(t, "fit", m, y, exact=False, progress_bar=False).refit(y, **k),
    ),
    "calibrate": ("observed", lambda t, m, y, **k: call(t, "calibrate", m, y, **k)),
    "predictive_distribution": (
        "site",
        lambda t, m, y, **k: t.public.predictive_distribution(m, _draws(t), y, **k),
    ),
    "to_arviz": (
        "num_samples",
        lambda t, m, y, **k: t.public.to_arviz(t.svgd(m), *(() if t.is_pyro else (None,)), y, **k),
    ),
    "run": ("start", lambda t, m, y, **k: t.run(t.svgd(m), 2, y, **k)),
    "load_fit": ("path", lambda t, m, y, **k: t.public.load_fit("fit", m, y, **k)),
}


def _swallowed(verb: str, keyword: str, entry: Callable[..., Any], trial: Trial) -> None:
    if keyword == "seed" and not trial.is_pyro:
        return
    model, y = scaled(trial.backend), trial.backend.array(Y)
    words = rf"of {verb} alone, found \['{keyword}'\].*functools\.partial\(model, {keyword}="
    with trial.refused(words):
        entry(trial, model, y, **{keyword: 2.0})


for _verb, (_keyword, _entry) in ENTRIES.items():
    # NumPyro's find_start has no option of its own that a model may have, but for its key.
    _of_numpyro = None if _verb == "find_start" else REFUSED
    fault(
        KEYWORDS, f"`{_verb}({_keyword}=...)` of a model with that parameter", numpyro=_of_numpyro
    )(partial(_swallowed, _verb, _keyword, _entry))


@fault(KEYWORDS, "the same, bound by `functools.partial`", RUNS)
def _bound(trial: Trial) -> None:
    y = trial.backend.array(np.full(50, 6.0))
    fit = call(
        trial,
        "fit",
        partial(scaled(trial.backend), seconds=3.0),
        y,
        seconds=60.0,
        progress_bar=False,
    )
    # The prior is next to flat: the mean of the data, over the scale.
    assert abs(trial.backend.numpy(fit.draws["mu"]).mean() - 2.0) < 0.02


# -- masks ---------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["x", "y"])


@dataclass
class Record:
    """Data of a study."""

    y: Any


class Slots:
    """An object without a dictionary."""

    __slots__ = ("y",)

    def __init__(self, y: Any) -> None:
        self.y = y


#: Container of a masked array, the name that it has there, and how a model takes it out.
CONTAINERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a dictionary": (lambda y: {"y": y}, r"data\['y'\]"),
    "a tuple": (lambda y: (y,), r"data\[0\]"),
    "a named tuple": (lambda y: Pair(1.0, y), r"data\.y"),
    "a dataclass": (Record, r"data\.y"),
    "an object": (lambda y: SimpleNamespace(y=y), r"data\.y"),
    "an object with slots": (Slots, r"data\.y"),
    "a deque": (lambda y: deque([y]), r"data\[0\]"),
    "a list in a dictionary": (lambda y: {"all": [1, y]}, r"data\['all'\]\[1\]"),
}


def _masked_within(hold: Callable[[Any], Any], name: str, trial: Trial) -> None:
    def model(data: Any) -> None:
        raise AssertionError("the model runs")

    masked = np.ma.masked_array(Y, Y > 1.0)
    words = f"found a masked array in argument '{name}'"
    for given in ({"args": (hold(masked),)}, {"kwargs": {"data": hold(masked)}}):
        args, kwargs = given.get("args", ()), given.get("kwargs", {})
        with trial.refused(words):
            trial.run(trial.svgd(model), 2, *args, **kwargs)  # type: ignore[arg-type]
    with trial.refused(words):
        call(trial, "fit", model, hold(masked), progress_bar=False)


for _given, (_hold, _name) in CONTAINERS.items():
    fault(MASKS, f"a masked array in {_given}")(partial(_masked_within, _hold, _name))


# -- digits --------------------------------------------------------------------------------------


def line(backend: Any) -> Callable[..., None]:
    """A slope over time since the first hour."""
    host, dist = backend.host, backend.dist

    def model(time: Any, y: Any) -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(slope * (time - FIRST), 1.0), obs=y)

    return model


KEPT = "(tensors keep their type)"


@fault(DIGITS, "times in seconds since 1970 of NumPy's float64", pyro=KEPT)
def _clock(trial: Trial) -> None:
    time = FIRST + np.linspace(10.0, 130.0, 40)
    if trial.is_pyro:
        import torch

        fit = call(trial, "fit", line(trial.backend), torch.as_tensor(time), trial.backend.array(Y))
        x = time - FIRST
        right = x @ Y / (x @ x + 1.0)
        draws = trial.backend.numpy(fit.draws["slope"])
        assert abs(draws.mean() - right) < 0.2 / np.sqrt(x @ x)
        return
    with trial.refused("argument 'time'.*of their spread.*enable_x64.*astype"):
        trial.run(trial.svgd(line(trial.backend)), 2, time, Y)


@fault(
    DIGITS,
    "the same in a dictionary, object, list or table, or as one of two columns",
    pyro=KEPT,
)
def _clock_within(trial: Trial) -> None:
    if trial.is_pyro:
        return
    time = FIRST + np.linspace(10.0, 130.0, 40)

    def model(data: Any) -> None:
        raise AssertionError("the model runs")

    columns = np.stack([Y, time], 1)
    table = np.rec.fromarrays([Y, time], names="y,t")
    for given, name in (
        ({"t": time}, r"data\['t'\]"),
        (columns, "data"),
        (time.tolist(), "data"),
        (table, r"data\['t'\]"),
        (SimpleNamespace(t=[Y, time]), r"data\.t\[1\]"),
    ):
        with trial.refused(f"argument '{name}'"):
            trial.run(trial.svgd(model), 2, data=given)


@fault(DIGITS, "float64 that single precision holds, or a constant column of it", RUNS)
def _held(trial: Trial) -> None:
    rng = np.random.default_rng(0)
    for y in (
        np.array([*rng.normal(size=39), 1e6]),
        0.1 + np.zeros(40),
        np.array([0.1 + 0.2, *[0.3] * 39]),
        rng.uniform(2000.0, 2020.0, 40),
        np.where(rng.uniform(size=40) < 0.9, 0.0, rng.normal(size=40)),
    ):
        given = trial.backend.array(y) if trial.is_pyro else y
        _, result = trial.run(trial.svgd(mean(trial.backend)), 1, given)
        assert np.isfinite(result.losses).all()


@fault(DIGITS, "whole numbers beyond 32 bits", pyro=KEPT)
def _whole(trial: Trial) -> None:
    if trial.is_pyro:
        return
    for y in (np.arange(5) + 2**40, np.arange(5, dtype=np.uint64) + 2**40, -(2**40) + np.arange(5)):
        with trial.refused("which would wrap to other numbers"):
            trial.run(trial.svgd(mean(trial.backend)), 2, y)
        with trial.refused("which would wrap to other numbers"):
            call(trial, "find_start", mean(trial.backend), y)


@fault(
    DIGITS,
    "whole numbers above 2^24 that lie close together",
    "a warning: a type with a fraction rounds them",
)
def _large_whole(trial: Trial) -> None:
    time = 1_700_000_000 + np.arange(40)
    array, y = trial.backend.array(time), trial.backend.array(Y)
    for given in (array,) if trial.is_pyro else (time, array):
        with trial.warned("large beside their spread", trial.public.DataWarning):
            call(trial, "find_start", line(trial.backend), given, y)


@fault(
    DIGITS,
    "such times in a list, or whole ones",
    pyro="a warning: torch makes single precision of a list",
    numpyro="refused; a warning of whole numbers that 32 bits hold",
)
def _clock_list(trial: Trial) -> None:
    time = (FIRST + np.linspace(10.0, 130.0, 40)).tolist()
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp

    def model(time: Any, y: Any) -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        x = xp.asarray(time).reshape(-1) - FIRST
        host.sample("y", dist.Normal(slope * x, 1.0).to_event(1), obs=y)

    for given in (time, [[each] for each in time]):
        if trial.is_pyro:
            with trial.warned("argument 'time'.*of their spread", trial.public.DataWarning):
                call(trial, "find_start", model, given, trial.backend.array(Y))
        else:
            with trial.refused("argument 'time'.*of their spread"):
                call(trial, "find_start", model, given, trial.backend.array(Y))
    whole = [int(each) for each in time]
    with trial.warned("whole numbers of argument 'time'", trial.public.DataWarning):
        call(trial, "find_start", model, whole, trial.backend.array(Y))
    if not trial.is_pyro:
        with trial.refused("which would wrap"):
            call(trial, "find_start", model, [2**40 + each for each in whole], Y)
        with trial.refused("which would wrap to other numbers. Pass float"):
            call(trial, "find_start", mean(trial.backend), 2**40)


@fault("Data", "numbers in the byte order of another machine", pyro="torch's own error")
def _byte_order(trial: Trial) -> None:
    if not trial.is_pyro:
        with trial.refused("argument 'y' of type >f4.*newbyteorder"):
            call(trial, "find_start", mean(trial.backend), Y.astype(">f4"))


@fault(KEYWORDS, "a parameter `model` of the model, by keyword")
def _model_twice(trial: Trial) -> None:
    def model(y: Any, model: float = 1.0) -> None:
        raise AssertionError("the model runs")

    with trial.refused(r"\['model'\] by position and by keyword.*partial\(model, model="):
        call(trial, "fit", model, trial.backend.array(Y), model=2.0)


class Clock:
    """Times that a model asks for."""

    def __init__(self, time: Any) -> None:
        self.time = time

    def __call__(self) -> Any:
        return self.time


@fault(
    DIGITS,
    "such times bound by `functools.partial`, or in an object that the model calls",
    "a warning: the model may centre them before the host has them",
    pyro=KEPT,
)
def _clock_bound(trial: Trial) -> None:
    time, y = FIRST + np.linspace(10.0, 130.0, 40), trial.backend.array(Y)
    host, dist, xp = trial.backend.host, trial.backend.dist, trial.backend.xp

    def model(clock: Any, y: Any) -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        x = xp.asarray(clock() if callable(clock) else clock) - FIRST
        host.sample("y", dist.Normal(slope * x, 1.0).to_event(1), obs=y)

    for program, args, name in (
        (partial(model, time), (y,), "clock"),
        (partial(partial(model, y=y), clock=time), (), "clock"),
        (model, (Clock(time), y), r"clock\.time"),
        (model, (partial(operator.itemgetter(0), [time]), y), r"clock\.args\[0\]\[0\]"),
    ):
        if trial.is_pyro:
            with warnings.catch_warnings():
                warnings.simplefilter("error", trial.public.DataWarning)
                call(trial, "find_start", program, *args)
        else:
            with trial.warned(f"argument '{name}'", trial.public.DataWarning):
                call(trial, "find_start", program, *args)


@fault("Data", "a masked array that `functools.partial` binds, or an object that the model calls")
def _masked_bound(trial: Trial) -> None:
    hidden, model = np.ma.masked_array(Y, Y > 0.0), mean(trial.backend)
    for program, args in ((partial(model, hidden), ()), (model, (Clock(hidden),))):
        with trial.refused("without a mask of NumPy's own.*mask\\(mask=~hidden\\)"):
            call(trial, "find_start", program, *args)


@fault(DIGITS, "such times in the batches of a loader", pyro=REFUSED)
def _clock_of_loader(trial: Trial) -> None:
    time, y = FIRST + np.linspace(10.0, 130.0, 40), Y.astype(np.float32)
    host, dist = trial.backend.host, trial.backend.dist

    def model(time: Any, y: Any) -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        with host.plate("rows", 40, subsample_size=len(y)):
            host.sample("y", dist.Normal(slope * (time - FIRST), 1.0), obs=y)

    loader = [(time[rows], y[rows]) for rows in np.split(np.arange(40), 4)]
    with trial.refused("of their spread"):
        trial.run(trial.svgd(model), 2, batches=loader)
    with trial.refused("of their spread"):
        call(trial, "fit", model, batches=loader, progress_bar=False)


@fault(DIGITS, "such times as one of two rows of features", pyro=KEPT)
def _clock_in_rows(trial: Trial) -> None:
    if trial.is_pyro:
        return
    features = np.stack([FIRST + np.linspace(10.0, 130.0, 40), np.arange(40.0)])
    host, dist = trial.backend.host, trial.backend.dist

    def model(x: Any, y: Any) -> None:
        slope = host.sample("slope", dist.Normal(0.0, 1.0))
        host.sample("y", dist.Normal(slope * (x[0] - FIRST), 1.0).to_event(1), obs=y)

    with trial.refused("argument 'x'.*of their spread"):
        trial.run(trial.svgd(model), 2, features, Y)


@fault(DIGITS, "numbers that lose a part of their digits", "a warning", pyro=KEPT)
def _some_digits(trial: Trial) -> None:
    if trial.is_pyro:
        return
    y = 120_000.0 + np.random.default_rng(0).normal(size=200)
    with trial.warned("of their spread.*Centre them", trial.public.DataWarning):
        call(trial, "find_start", mean(trial.backend), y)


@fault(DIGITS, "features most of which are next to zero, such as of narrow kernels", RUNS)
def _next_to_zero(trial: Trial) -> None:
    x = np.random.default_rng(0).uniform(-5.0, 5.0, 40)
    features = np.exp(-0.5 * ((x[:, None] - np.linspace(-5.0, 5.0, 12)) / 0.15) ** 2)
    given = trial.backend.array(features) if trial.is_pyro else features
    y = trial.backend.array(Y) if trial.is_pyro else Y
    host, dist = trial.backend.host, trial.backend.dist

    def model(x: Any, y: Any) -> None:
        slopes = host.sample("slopes", dist.Normal(trial.backend.xp.zeros(12), 1.0).to_event(1))
        host.sample("y", dist.Normal(x @ slopes, 1.0).to_event(1), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trial.run(trial.svgd(model), 2, given, y)


@fault(DIGITS, "names in place of numbers, with which the model computes")
def _names(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any, names: Any) -> None:
        mean = host.sample("m", dist.Normal(trial.backend.array(0.0), 1.0))
        host.sample("y", dist.Normal(mean * names, 1.0), obs=y[0])

    with trial.refused("Argument 'names' is a numpy.ndarray of <U1"):
        trial.run(trial.svgd(model), 2, trial.backend.array(Y), np.array(["a", "b"]))


@fault(DIGITS, "whole numbers beyond 32 bits in a later batch of a loader", pyro=KEPT)
def _whole_of_loader(trial: Trial) -> None:
    if trial.is_pyro:
        return
    y = np.arange(40)
    y[35] = 2**40
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 1.0))
        with host.plate("rows", 40, subsample_size=len(y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    loader = [(y[rows],) for rows in np.split(np.arange(40), 4)]
    with trial.refused("would wrap"):
        call(trial, "fit", model, batches=loader, progress_bar=False)


# -- what is observed ------------------------------------------------------------------------------


@fault(OBSERVED, "observations left out", "the prior: a warning, and a reason in the verdict")
def _nothing(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(n: int, y: Any = None) -> None:
        mu = host.sample("mu", dist.Normal(3.0, 2.0))
        with host.plate("rows", n):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    with trial.warned("observes nothing", trial.public.DataWarning):
        fit = call(trial, "fit", model, 3, progress_bar=False)
    assert fit.verdict.trusted and any("observes nothing" in each for each in fit.verdict.reasons)
    # The prior's own mean, to within three errors of 400 effective draws.
    assert abs(trial.backend.numpy(fit.draws["mu"]).mean() - 3.0) < 0.3
    draws = {name: value[:500] for name, value in fit.draws.items()}
    with trial.warned("observes nothing", trial.public.DataWarning):
        verdict = call(trial, "check", draws, model, 3, progress_bar=False)
    assert any("observes nothing" in each for each in verdict.reasons)


@fault(OBSERVED, "an engine without observations", "the prior: one warning, before the first step")
def _nothing_of_engine(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(n: int, y: Any = None) -> None:
        mu = host.sample("mu", dist.Normal(3.0, 2.0))
        with host.plate("rows", n):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    def told_by(run: Callable[[], Any]) -> int:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            run()
        return sum("observes nothing" in str(each.message) for each in found)

    seen = trial.backend.array(Y)
    for engine in (trial.svgd(model), trial.engine("GSM", model)):
        assert told_by(lambda e=engine: trial.run(e, 2, 3)) == 1
        assert told_by(lambda e=engine: trial.run(e, 2, 3)) == 0
    assert told_by(lambda: trial.run(trial.svgd(model), 2, len(Y), y=seen)) == 0
    named = trial.svgd(model)
    assert told_by(lambda: call(trial, "fit", model, 3, engine=named, progress_bar=False)) == 1
    for kernel in (trial.public.SGLD(model, 1e-2), trial.public.MCLMC(model)):
        assert told_by(lambda k=kernel: chains(trial, k, 20, 3)) == 1


UNTOUCHED = "the prior: a warning, and a reason in the verdict"


def hidden(backend: Any, how: str) -> Callable[..., None]:
    """A mean whose rows a mask hides, or that is not the mean of any row."""
    host, dist = backend.host, backend.dist
    mask = host.poutine.mask if backend.is_pyro else host.handlers.mask

    def model(y: Any, seen: Any = None) -> None:
        mu = host.sample("mu", dist.Normal(3.0, 2.0))
        rows = host.plate("rows", len(y))
        if how == "mask":
            with rows, mask(mask=seen):
                host.sample("y", dist.Normal(mu, 1.0), obs=y)
        elif how == "obs_mask":
            with rows:
                host.sample("y", dist.Normal(mu, 1.0), obs=y, obs_mask=seen)
        else:
            with rows:
                host.sample("y", dist.Normal(0.0, 1.0), obs=y)

    return model


def _untouched(how: str, trial: Trial) -> None:
    model, none = hidden(trial.backend, how), np.zeros(len(Y), bool)
    y, seen = trial.backend.array(Y), trial.backend.array(none)
    with trial.warned("tell nothing of any latent", trial.public.DataWarning):
        fit = call(trial, "fit", model, y, seen, progress_bar=False)
    assert fit.verdict.trusted and any("tell nothing" in each for each in fit.verdict.reasons)
    # The prior's own mean, to within three errors of 400 effective draws.
    assert abs(trial.backend.numpy(fit.draws["mu"]).mean() - 3.0) < 0.3
    if how != "other":
        none[0] = True
        fit = call(trial, "fit", model, y, trial.backend.array(none), progress_bar=False)
        assert not any("tell nothing" in each for each in fit.verdict.reasons)


for _given, _how in {
    "observations that a mask hides, all of them": "mask",
    "`obs_mask=` that hides all rows": "obs_mask",
    "observations whose distribution has no latent site in it": "other",
}.items():
    fault(OBSERVED, _given, UNTOUCHED)(partial(_untouched, _how))


@fault(OBSERVED, "a latent site whose part in the likelihood is lost in rounding", RUNS)
def _hardly_touched(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 1e6))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1e6), obs=y)

    fit = call(trial, "fit", model, trial.backend.array(np.zeros(8)), progress_bar=False)
    assert not any("tell nothing" in each for each in fit.verdict.reasons)


@fault(OBSERVED, "a program with a factor alone", RUNS)
def _factor(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model() -> None:
        mu = host.sample("mu", dist.Normal(0.0, 1.0))
        host.factor("f", -0.5 * (mu - 2.0) ** 2)

    fit = call(trial, "fit", model, progress_bar=False)
    assert not any("observes nothing" in each for each in fit.verdict.reasons)
    assert abs(trial.backend.numpy(fit.draws["mu"]).mean() - 1.0) < 0.15


NOT_TRUSTED = 'a warning; "not trusted", with the rows of how many'


def of_index(backend: Any) -> Callable[..., None]:
    """A mean of the rows of an index, or of the rows that are given."""
    host, dist = backend.host, backend.dist

    def model(y: Any, index: Any = None) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 2.0))
        options = {"subsample_size": len(y)} if index is None else {"subsample": index}
        with host.plate("rows", 100, **options) as rows:
            host.sample("y", dist.Normal(mu, 1.0), obs=y if index is None else y[rows])

    return model


def _batch(by_index: bool, trial: Trial) -> None:
    array = trial.backend.array
    y = np.linspace(-1.0, 2.0, 100)
    args = (array(y), array(np.arange(20))) if by_index else (array(y[:20]),)
    words = "100 rows, of which the arguments hold 20: each counts 5 times"
    with trial.warned(words, trial.public.DataWarning):
        fit = call(trial, "fit", of_index(trial.backend), *args, progress_bar=False)
    assert fit.verdict.level == "not trusted" and words in fit.verdict.reasons[0]
    more = fit.more(64, progress_bar=False)
    assert more.verdict.level == "not trusted" and words in more.verdict.reasons[0]


fault(OBSERVED, "`fit` of a minibatch as arguments", NOT_TRUSTED)(partial(_batch, False))
fault(OBSERVED, "`fit` of `plate(subsample=index)`", NOT_TRUSTED, numpyro=None)(
    partial(_batch, True)
)


@fault(OBSERVED, "`warm_chains` of a minibatch as arguments")
def _warm(trial: Trial) -> None:
    y = trial.backend.array(np.linspace(-1.0, 2.0, 20))
    options = {"num_samples": 20, "num_chains": 2, "progress_bar": False}
    with trial.refused("all rows, found minibatches of plate 'rows'"):
        call(trial, "warm_chains", of_index(trial.backend), _draws(trial), y, **options)


@fault(
    OBSERVED,
    "a model that centres the rows of its minibatch",
    "a warning: minibatches have another posterior",
)
def _mixed(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(x: Any, y: Any, centred: bool) -> None:
        w = host.sample("w", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(y), subsample_size=8) as rows:
            some = x[rows] - x[rows].mean(0) if centred else x[rows]
            host.sample("y", dist.Normal(w * some, 1.0), obs=y[rows])

    x, y = trial.backend.array(np.cos(np.arange(40.0))), trial.backend.array(Y)
    with trial.warned("depends on the other rows of its minibatch", trial.public.DataWarning):
        trial.run(trial.svgd(model), 2, x, y, True)
    _, result = trial.run(trial.svgd(model), 2, x, y, False)
    assert np.isfinite(result.losses).all()


@fault(OBSERVED, "data changed in place before `Fit.more`")
def _changed(trial: Trial) -> None:
    y = Y.astype(np.float32)
    given = trial.backend.array(y) if trial.is_pyro else y
    fit = call(trial, "fit", mean(trial.backend), given, progress_bar=False)
    before = trial.backend.numpy(fit.draws["mu"]).copy()
    kept = given + 0  # a copy
    given += 0.12
    with trial.refused("changed in place since"):
        fit.more(100, progress_bar=False)
    given[...] = kept
    assert fit.verdict.trusted
    np.testing.assert_array_equal(trial.backend.numpy(fit.draws["mu"]), before)
    assert len(fit.more(64, progress_bar=False).draws["mu"]) > len(before)


@fault(OBSERVED, "data changed in place before `Fit.log_evidence`")
def _changed_evidence(trial: Trial) -> None:
    y = Y.astype(np.float32)
    given = trial.backend.array(y) if trial.is_pyro else y
    fit = call(trial, "fit", mean(trial.backend), given, exact=False, progress_bar=False)
    given += 0.12
    with trial.refused("changed in place since"):
        _ = fit.log_evidence


@fault(OBSERVED, "a number beside the arguments, changed before `Fit.more`, `predict` or evidence")
def _changed_closure(trial: Trial) -> None:
    host, dist, scale = trial.backend.host, trial.backend.dist, 1.0

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, scale))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    fit = call(trial, "fit", model, trial.backend.array(Y), progress_bar=False)
    scale = 2.0
    for use in (
        lambda: fit.more(64, progress_bar=False),
        fit.predict,
        fit.to_arviz,
        lambda: fit.log_evidence,
    ):
        with trial.refused("beside its arguments, or the precision, was changed since"):
            use()
    with trial.warned("predictions are by the new values", trial.public.DataWarning):
        fit.predict(trial.backend.array(Y))
    scale = 1.0
    assert len(fit.more(64, progress_bar=False).draws["mu"]) > 64
    assert fit.log_evidence.value is not None


@fault(OBSERVED, "`Fit.log_evidence` under an improper prior", "none, and the reason is said")
def _improper_evidence(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 1.0).mask(False))
        with host.plate("rows", len(y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    found = call(trial, "fit", model, trial.backend.array(Y), progress_bar=False).log_evidence
    assert found.value is None and "'mu' has no normaliser" in found.reason


@fault(OBSERVED, "`compare` of fits to other data", "a warning")
def _compared_data(trial: Trial) -> None:
    y = trial.backend.array(Y)

    def fit(y: Any) -> Any:
        return call(trial, "fit", mean(trial.backend), y, budget=3_000, progress_bar=False)

    whole, part = fit(y), fit(y[:20])
    with trial.warned("may be of different observations", trial.public.DataWarning):
        trial.public.compare({"whole": whole, "part": part})
    with warnings.catch_warnings():
        warnings.simplefilter("error", trial.public.DataWarning)
        trial.public.compare({"whole": whole, "again": whole})


@fault(OBSERVED, "classes that are numbers with a fraction", pyro=RUNS)
def _float_classes(trial: Trial) -> None:
    host, dist = trial.backend.host, trial.backend.dist
    classes = trial.backend.array(np.arange(6) % 3 + 0.0)

    def model(y: Any) -> None:
        shares = host.sample("shares", dist.Dirichlet(trial.backend.array(np.ones(3))))
        with host.plate("rows", 6):
            host.sample("y", dist.Categorical(shares), obs=y)

    if trial.is_pyro:
        call(trial, "find_start", model, classes)
    else:
        with trial.refused("site 'y'.*float32.*astype", "ModelCheckError"):
            call(trial, "find_start", model, classes)


@fault(OBSERVED, "`compare` of something else than fits by name")
def _compared(trial: Trial) -> None:
    for given in ([1.0], {"one": 1.0}, {}):
        with trial.refused("Expected a mapping of names to fits"):
            trial.public.compare(given)


@fault(OBSERVED, "`Fit.refit` with arguments that the model does not take")
def _refitted(trial: Trial) -> None:
    y = trial.backend.array(Y)
    fit = call(trial, "fit", mean(trial.backend), y, exact=False, progress_bar=False)
    with trial.refused("do not fit the model"):
        fit.refit(y, y, y, progress_bar=False)


# -- seeds, keys and arrays of another kind -------------------------------------------------------


@fault(SEEDS, "a seed that is no whole number", numpyro=None)
def _no_seed(trial: Trial) -> None:
    y = trial.backend.array(Y)
    for seed in (1.5, "a", None):
        with trial.refused("Expected seed to be an int"):
            call(trial, "fit", mean(trial.backend), y, seed=seed)
        with trial.refused("Expected seed to be an int"):
            call(trial, "find_start", mean(trial.backend), y, seed=seed)
        with trial.refused("Expected seed to be an int"):
            call(trial, "check", _draws(trial), mean(trial.backend), y, seed=seed)


@fault(SEEDS, "a seed below zero or of more than 64 bits", RUNS, numpyro=None)
def _odd_seed(trial: Trial) -> None:
    y = trial.backend.array(Y)
    for seed in (-1, 2**70):
        start = call(trial, "find_start", mean(trial.backend), y, seed=seed)
        assert abs(start.mean[0] - Y.mean()) < 0.05


@fault(SEEDS, "a number in place of a key, or no key", pyro=None)
def _no_key(trial: Trial) -> None:
    public, model, y = trial.public, mean(trial.backend), trial.backend.array(Y)
    words = "Expected rng_key to be a JAX key"
    for run in (
        lambda: public.fit(0, model, y),
        lambda: public.fit(model, y),
        lambda: public.find_start(model, y),
        lambda: public.check(0, _draws(trial), model, y),
        lambda: public.predictive_distribution(model, _draws(trial), y, rng_key=0),
        lambda: public.calibrate(model, y),
    ):
        with trial.refused(words):
            run()


@fault("Data", "arrays of the other framework")
def _other_kinds(trial: Trial) -> None:
    import jax.numpy as jnp
    import torch

    y, model = Y.astype(np.float32), mean(trial.backend)
    other = jnp.asarray(y) if trial.is_pyro else torch.as_tensor(y)
    with trial.refused("Argument 'y' is a .*(Pass tensors|Pass arrays)"):
        call(trial, "fit", model, other, progress_bar=False)


@fault("Data", "a column of a data frame to `fit`, `check` and engines", RUNS)
def _column(trial: Trial) -> None:
    import pandas as pd

    y = pd.Series(Y, index=np.arange(len(Y))[::-1])
    fit = call(trial, "fit", mean(trial.backend), y, progress_bar=False)
    assert abs(fit["mu"].mean() - Y.sum() / (len(Y) + 0.01)) < 0.1
    trial.run(trial.svgd(mean(trial.backend)), 2, y)


@fault(KEYWORDS, "words of other libraries to `fit`: `chains=`, `draws=` and others")
def _habits(trial: Trial) -> None:
    model, y = mean(trial.backend), trial.backend.array(Y)
    for name in ("chains", "draws", "num_samples", "num_warmup", "num_steps", "optimizer"):
        with trial.refused(f"found {name}=, which is neither"):
            call(trial, "fit", model, y, **{name: 4})
    other = "rng_key" if trial.is_pyro else "seed"
    with trial.refused(f"found {other}=, which is neither"):
        call(trial, "fit", model, y, **{other: 0})


@fault("Engines in a fit", "`engine=` of a name that no engine has")
def _no_engine(trial: Trial) -> None:
    model, y = mean(trial.backend), trial.backend.array(Y)
    with trial.refused("one of the engines .*'SVGD'.*, found 'nuts'"):
        call(trial, "fit", model, y, engine="nuts")


@fault("ArviZ", "`dims=` and `coords=` of a fit that are no mappings to lists")
def _no_names(trial: Trial) -> None:
    model, y = mean(trial.backend), trial.backend.array(Y)
    for what in ("dims", "coords"):
        with trial.refused(f"Expected {what}.'y'. to be a list"):
            call(trial, "fit", model, y, **{what: {"y": "rows"}})


@fault("Data", "an argument missing: the error is a few lines, not a page for each frame")
def _short(trial: Trial) -> None:
    with pytest.raises(trial.public.ArgumentError, match="missing a required argument") as found:
        call(trial, "fit", mean(trial.backend), progress_bar=False)
    # The test's two, and the entry point.
    assert len(found.traceback) <= 3
    trial.refusals.append(trial.steps)


@fault("Programs", "a model under `torch.no_grad`", numpyro=None)
def _no_gradient(trial: Trial) -> None:
    import torch

    model = torch.no_grad()(mean(trial.backend))
    with trial.refused("a log density with a gradient", "ModelCheckError"):
        call(trial, "fit", model, trial.backend.array(Y), progress_bar=False)


# -- loaders -------------------------------------------------------------------------------------

LOADERS = "Batches of a loader"


class Changing:
    """Forty rows in batches of ten, with noise that is new on each pass."""

    def __init__(self, noise: float = 0.0, repeated: bool = False) -> None:
        self.rng, self.noise, self.repeated = np.random.default_rng(0), noise, repeated

    def __iter__(self) -> Iterator[Any]:
        rows = self.rng.integers(40, size=40) if self.repeated else self.rng.permutation(40)
        y = Y[rows] + self.noise * self.rng.normal(size=40)
        return iter([(each,) for each in y.astype(np.float32).reshape(4, 10)])

    def __len__(self) -> int:
        return 4


class Endless:
    """The same rows without end."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield (Y.astype(np.float32),)


def of_batch(backend: Any) -> Callable[[Any], None]:
    """A mean of forty rows, of which a batch is an argument."""
    host, dist = backend.host, backend.dist

    def model(y: Any) -> None:
        mu = host.sample("mu", dist.Normal(0.0, 10.0))
        with host.plate("rows", 40, subsample_size=len(y)):
            host.sample("y", dist.Normal(mu, 1.0), obs=y)

    return model


@fault(LOADERS, "`fit` of a loader whose rows change from pass to pass, or are drawn again")
def _changing(trial: Trial) -> None:
    for loader in (Changing(0.3), Changing(repeated=True)):
        with trial.refused("the same rows on each pass"):
            call(trial, "fit", of_batch(trial.backend), batches=loader, progress_bar=False)


@fault(LOADERS, "`fit` of a loader that gives the same rows in another order", RUNS)
def _shuffled(trial: Trial) -> None:
    fit = call(trial, "fit", of_batch(trial.backend), batches=Changing(), progress_bar=False)
    assert fit.verdict.trusted
    assert abs(trial.backend.numpy(fit.draws["mu"]).mean() - Y.sum() / 40.01) < 0.03


@fault(LOADERS, "`fit` of a loader without end")
def _endless(trial: Trial) -> None:
    with trial.refused("a loader that ends after all rows", "ModelCheckError"):
        call(trial, "fit", of_batch(trial.backend), batches=Endless(), progress_bar=False)
