"""Loaders of batches that are not what they should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.batches_support import Again, X, Y, by_argument, by_index, of_torch
from tests.faults.table import Trial, fault

GROUP = "Batches of a loader"


def unscaled(backend: Any) -> Callable[..., None]:
    """A regression whose plate takes a batch for all rows."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any, y: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", len(y)):
            host.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model


class Floats(Again):
    """Batches in single precision, so that both packages take them as they are."""

    def __init__(self, **options: Any) -> None:
        options = {"x": X.astype(np.float32), "y": Y.astype(np.float32), **options}
        super().__init__(**options)


#: Input: a loader, the model, and words of the refusal.
REFUSED_LOADERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], str]] = {
    "a loader without batches": (list, by_argument, "found that the loader gives none"),
    "the arrays of all rows, `batches=(x, y)`": (
        lambda: (X, Y),
        by_argument,
        r"an iterable of tuples.*found tuple. Write \[\(x, y\)\]",
    ),
    "a loader that gives arrays, not tuples": (
        lambda: list(X.reshape(6, 8, 2)),
        by_argument,
        r"found ndarray. Write \(x,\)",
    ),
    "batches with one argument too many": (
        lambda: [(x, y, y) for x, y in Floats()],
        by_argument,
        "too many positional arguments",
    ),
    "batches that name an argument that the model does not have": (
        lambda: [{"x": x, "z": y} for x, y in Floats()],
        by_argument,
        "unexpected keyword argument|missing a required argument",
    ),
    "a plate of 480 rows and a loader of 48": (
        Floats,
        partial(by_argument, rows=480),
        "480 in all, found 6 batches of 8",
    ),
    "a plate of 47 rows and a `DataLoader` of 48": (
        partial(of_torch, size=8),
        partial(by_argument, rows=47),
        "47 in all, found 48 rows",
    ),
    "a model whose plate does not scale its batches up": (
        Floats,
        unscaled,
        "scales its batches up to all rows",
    ),
    "a model that looks its rows up by the plate's indices": (
        Floats,
        by_index,
        "whose batches are its arguments with batches=|scales its batches up to all rows",
    ),
}


def _refused(
    loader: Callable[[], Any], model: Callable[[Any], Any], words: str, trial: Trial
) -> None:
    with trial.refused(words):
        trial.run(trial.svgd(model(trial.backend)), 5, batches=loader())


for _given, (_loader, _model, _words) in REFUSED_LOADERS.items():
    fault(GROUP, _given)(partial(_refused, _loader, _model, _words))


def mixing(backend: Any, form: str, rows: int) -> Callable[..., None]:
    """A regression in which a row of a batch may depend on the others."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any, y: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        with host.plate("N", rows, subsample_size=len(x)):
            own = {"first": x - x[0], "sum": x.cumsum(0), "mean": x - x.mean(0), "apart": x}[form]
            host.sample("y", dist.Normal(own @ w, 1.0), obs=y)

    return model


MIXED = "a warning: minibatches have another posterior"


def _mixing(form: str, trial: Trial) -> None:
    words = "depends on the other rows of its minibatch"
    model = mixing(trial.backend, form, len(X))
    with trial.warned(words, trial.public.DataWarning):
        trial.run(trial.svgd(model), 2, batches=Floats())
    # All rows in one batch may depend on each other.
    trial.run(trial.svgd(model), 2, batches=Floats(size=len(X)))
    trial.run(trial.svgd(mixing(trial.backend, "apart", len(X))), 2, batches=Floats())


for _given, _form in {
    "a model that takes the first row of a loader's batch off the others": "first",
    "a model that adds up the rows of a loader's batch": "sum",
    "a model that centres the rows of a loader's batch": "mean",
}.items():
    fault(GROUP, _given, MIXED)(partial(_mixing, _form))


@fault(GROUP, "`fit` of a loader with a model that takes the first row of a batch off", MIXED)
def _mixing_in_fit(trial: Trial) -> None:
    x = np.random.default_rng(0).normal(size=(12_288, 2)).astype(np.float32)
    loader = Floats(x=x, y=x[:, 0], rows=len(x), size=1_024)
    keys = () if trial.is_pyro else (trial.backend.key(),)
    options: dict[str, Any] = {"batches": loader, "progress_bar": False, "budget": 2_000}
    with trial.warned("depends on the other rows of its", trial.public.DataWarning):
        trial.public.fit(*keys, mixing(trial.backend, "first", len(x)), **options)
    trial.public.fit(*keys, mixing(trial.backend, "apart", len(x)), **options)


@fault(GROUP, "a loader and the model's arguments")
def _both(trial: Trial) -> None:
    with trial.refused("found both: batches and 2 arguments"):
        trial.run(
            trial.svgd(by_argument(trial.backend)),
            5,
            *map(trial.backend.array, (X, Y)),
            batches=Floats(),
        )


@fault(GROUP, "an estimator that passes over the same shuffled `DataLoader` as the run")
def _shared(trial: Trial) -> None:
    loader = of_torch()
    estimator = trial.public.SVRG(5, full_data=loader)
    engine = trial.svgd(by_argument(trial.backend), estimator=estimator)
    with trial.refused("another loader than batches"):
        trial.run(engine, 5, batches=loader)


def _kept(trial: Trial, loader: Any, words: str, steps: int, error: Any = "ArgumentError") -> None:
    """See that an error comes after so many steps, which are kept."""
    engine = trial.svgd(by_argument(trial.backend))
    error = getattr(trial.public, error) if isinstance(error, str) else error
    with pytest.raises(error, match=words) as raised:
        trial.run(engine, 12, batches=loader, callback_every=1)
    taken = engine.num_steps_taken if trial.is_pyro else int(raised.value.state.step)
    assert taken == steps


KEPT = "`ArgumentError` at that batch; the state after the last whole step is kept"


@fault(
    GROUP,
    "a generator that ends before the run does",
    "`ArgumentError` when it ends; the state after the last whole step is kept",
)
def _ends(trial: Trial) -> None:
    words = "iterated over again, once for each epoch, found that generator ended after batch 5"
    _kept(trial, iter(Floats()), words, 6)


@fault(
    GROUP,
    "a loader without a length that gives 48 rows an epoch to a plate of 480",
    "`ArgumentError` at the end of the epoch; the state after the last whole step is kept",
)
def _other_rows(trial: Trial) -> None:
    class Unmeasured(Floats):
        __len__ = None  # type: ignore[assignment]

    engine = trial.svgd(by_argument(trial.backend, rows=480))
    with pytest.raises(trial.public.ArgumentError, match="480 in all, found 48 rows in an epoch"):
        trial.run(engine, 12, batches=Unmeasured())


@fault(GROUP, "a batch whose numbers are of another type", KEPT)
def _types(trial: Trial) -> None:
    batches = [*list(Floats())[:5], (X[40:].astype(np.int32), Y[40:].astype(np.float32))]
    words = r"Expected batches of one form, found that batch 5 of epoch 0 has .*int32.*float32"
    _kept(trial, batches, words, 5)


@fault(GROUP, "batches of three sizes", KEPT)
def _sizes(trial: Trial) -> None:
    x, y = X.astype(np.float32), Y.astype(np.float32)
    batches = [(x[:20], y[:20]), (x[20:30], y[20:30]), (x[30:], y[30:])]
    _kept(trial, batches, r"batches of one size.*found \[10, 18, 20\] rows", 2)


@fault(
    GROUP,
    "NaN in a batch",
    "`NonFiniteError` at that step, whose note names the batch; the state before it is kept. With "
    '`on_nonfinite="skip"`: `BatchWarning` at the end of the run, which names the batch',
)
def _nan(trial: Trial) -> None:
    x = X.astype(np.float32)
    x[20] = np.nan
    engine = trial.svgd(by_argument(trial.backend))
    with pytest.raises(trial.public.NonFiniteError) as raised:
        trial.run(engine, 12, batches=Floats(x=x))
    assert any("batch 2 of epoch 0" in note for note in raised.value.__notes__)
    engine = trial.svgd(by_argument(trial.backend), on_nonfinite="skip")
    with trial.warned("2 batches.*batch 2 of epoch 0, 2 of epoch 1", trial.public.BatchWarning):
        trial.run(engine, 12, batches=Floats(x=x))


@fault(
    GROUP,
    "an exception inside the loader",
    "the loader's own exception, with the place; the state after the last whole step is kept",
)
def _breaks(trial: Trial) -> None:
    def breaks() -> Iterator[Any]:
        yield from list(Floats())[:3]
        raise OSError("the disk is gone")

    _kept(trial, breaks(), "the disk is gone", 3, OSError)


@fault(
    GROUP,
    "a run that goes on with a `DataLoader` that shuffles without a generator",
    "`ResumeWarning`: a new epoch begins",
)
def _unknown(trial: Trial) -> None:
    engine = trial.svgd(by_argument(trial.backend))
    state, _ = trial.run(engine, 3, batches=of_torch(None))
    with trial.warned("shuffles without a generator", trial.public.ResumeWarning):
        trial.run(engine, 3, batches=of_torch(None), state=state)
