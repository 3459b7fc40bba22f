"""What the network benchmarks share: methods, minibatches, early stopping, learning rates, records.

Backend-free; ``pyro_training.py`` and ``numpyro_training.py`` hold the two trainers. All methods
of one comparison see the same minibatches in the same order, start from the same weights, and get
one score of a minibatch for each step, so that equal steps are equal numbers of scores.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks import records
from benchmarks.records import Record

Array = NDArray[Any]
SettingsType = TypeVar("SettingsType", bound=Any)


@dataclass(frozen=True)
class Method:
    """One way of fitting a network.

    Parameters
    ----------
    name : str
        For tables.
    engine : {"svi", "gradient", "closed form"}
        The host's ``SVI`` with ``Trace_ELBO``, untouched, or a solver of this project's
        ``ProximalScoreVI``. The closed form has no learning rate, and takes two scores of a
        minibatch where the others take one: it is given every second minibatch only.
    guide : {"point", "diagonal", "flow"}
        ``AutoDelta``, ``AutoDiagonalNormal``, or this project's ``AutoPlanarFlow``.
    """

    name: str
    engine: Literal["svi", "gradient", "closed form"]
    guide: Literal["point", "diagonal", "flow"]

    def rates(self, rates: Sequence[float]) -> tuple[float | None, ...]:
        """The learning rates to try, None where the method has none."""
        return (None,) if self.engine == "closed form" else tuple(rates)


POINT = Method("point estimate", "svi", "point")
ADVI = Method("ADVI", "svi", "diagonal")
OURS = Method("ProximalScoreVI", "closed form", "diagonal")
OURS_GRADIENT = Method("ProximalScoreVI, gradient", "gradient", "diagonal")
ADVI_FLOW = Method("ADVI, planar flow", "svi", "flow")
OURS_FLOW = Method("ProximalScoreVI, planar flow", "gradient", "flow")

#: Optimizer steps that the gradient solver takes for one score, N of the paper's Algorithm 1.
INNER_STEPS = 2
#: Layers of a planar flow; a single one is the paper's choice for networks (section 5.5).
FLOW_LAYERS = 1


@dataclass(frozen=True)
class Schedule:
    """How long a network is trained, and from where.

    Parameters
    ----------
    steps : int
        Minibatch scores at most; a multiple of twice ``evaluations``.
    batch_size : int
    evaluations : int
        How many times the validation loss is looked at.
    draws : int
        Posterior draws of a prediction.
    init_scale : float
        Standard deviation of the guide at the start.
    """

    steps: int
    batch_size: int
    evaluations: int
    draws: int
    init_scale: float


class Trainer(Protocol):
    """A network in training, on either backend."""

    def advance(self, rows: NDArray[np.int64]) -> None:
        """Take one step for each line of ``rows`` (steps, batch), rows of the training data."""

    def predict(self, x: Array, seed: int) -> Array:
        """Predictions (draws, n, ...) for the rows of ``x`` from draws of the present guide."""

    def keep(self) -> None:
        """Remember the present guide."""

    def restore(self) -> None:
        """Go back to the guide that was remembered last."""


class DivergedError(ArithmeticError):
    """A training whose predictions were never finite."""


def spread_seed(seed: int, purpose: int) -> int:
    """A 31-bit seed for one purpose of a run; small neighbouring seeds give unrelated ones."""
    return int(np.random.SeedSequence((seed, purpose)).generate_state(1)[0] >> 1)


def minibatches(num_rows: int, batch_size: int, steps: int, seed: int) -> NDArray[np.int64]:
    """Rows of every step (steps, batch): each epoch a fresh permutation, its remainder left out.

    A data set no larger than a batch is taken whole at every step.
    """
    generator = np.random.default_rng(spread_seed(seed, 1))
    size = min(batch_size, num_rows)
    per_epoch = num_rows // size
    epochs = -(-steps // per_epoch)
    rows = [
        generator.permutation(num_rows)[: per_epoch * size].reshape(per_epoch, size)
        for _ in range(epochs)
    ]
    return np.concatenate(rows)[:steps]


@dataclass(frozen=True)
class Training:
    """What early stopping saw: the best step, and the validation loss at every look."""

    best_step: int
    looked_at: list[int]
    losses: list[float]


def train(
    trainer: Trainer,
    rows: NDArray[np.int64],
    evaluations: int,
    validation_loss: Callable[[], float],
) -> Training:
    """Take all steps and leave the trainer with the guide that had the lowest validation loss.

    Parameters
    ----------
    trainer : Trainer
    rows : array (steps, batch)
    evaluations : int
        Number of looks at the validation loss, evenly spaced, the last after the last step.
    validation_loss : callable

    Raises
    ------
    ValueError
        The looks do not divide the steps.
    DivergedError
        The validation loss was never finite.
    """
    if len(rows) % evaluations:
        raise ValueError(
            f"Expected a number of steps that {evaluations} evaluations divide, found {len(rows)}."
        )
    every = len(rows) // evaluations
    best, best_step = math.inf, 0
    looked_at, losses = [], []
    for end in range(every, len(rows) + 1, every):
        trainer.advance(rows[end - every : end])
        loss = validation_loss()
        looked_at.append(end)
        losses.append(loss)
        if loss < best:
            best, best_step = loss, end
            trainer.keep()
    if not best_step:
        raise DivergedError(
            f"the validation loss was never finite in {len(rows)} steps; lower the learning rate."
        )
    trainer.restore()
    return Training(best_step, looked_at, losses)


def rounded_steps(steps: float, evaluations: int) -> int:
    """The next number of steps that twice ``evaluations`` divides."""
    return max(1, math.ceil(steps / (2 * evaluations))) * 2 * evaluations


def shown_rate(rate: float | None) -> str:
    """A learning rate as tables have it."""
    return "none" if rate is None else f"{rate:g}"


class Book:
    """The runs of one benchmark in one file of records.

    Parameters
    ----------
    path : path
    resume : bool
        Take up runs that the file holds already, with the same method, backend, model, seed and
        settings, failed ones among them; otherwise the file is begun anew and an earlier one moved
        aside.
    retry_failed : bool
        The same, but make those that failed again, as those are that somebody interrupted. Their
        new records take the place of the old ones.
    """

    def __init__(self, path: Path, resume: bool = False, retry_failed: bool = False) -> None:
        self.path = path
        #: Runs that are not made again, by :meth:`identity`.
        self.past: dict[str, Record] = {}
        #: Runs that are made again, and whose record is in the file.
        self._retried: set[str] = set()
        if (resume or retry_failed) and path.exists():
            records.drop_cut_line(path)
            for record in records.read(path):
                # Of several records of one run, as earlier versions wrote them, the latest counts.
                self.past[self.identity(record)] = record
            for identity, record in list(self.past.items()):
                if record.interrupted or (retry_failed and record.failed):
                    self._retried.add(identity)
                    del self.past[identity]
        else:
            records.moved_aside(path)

    def run(
        self,
        record: Record,
        work: Callable[[Record], None],
        go_on_after: tuple[type[Exception], ...] = (DivergedError,),
    ) -> Record:
        """Do the work, which fills in the record's figures, unless it has been done before.

        A training that diverges, or fails in another of the ways in ``go_on_after``, is recorded
        as failed, and the benchmark goes on.
        """
        past = self.past.get(self.identity(record))
        if past is not None:
            return past
        self.begin(record)
        with records.recorded_run(self.write, record, go_on_after=go_on_after):
            work(record)
        return record

    def begin(self, record: Record) -> None:
        """Called before a run is made."""

    def write(self, record: Record) -> None:
        """Add a record to the file, in place of one of a run that is made again."""
        identity = self.identity(record)
        if identity not in self._retried:
            records.append(self.path, record)
            return
        self._retried.remove(identity)
        kept = [each for each in records.read(self.path) if self.identity(each) != identity]
        records.write(self.path, [*kept, record])

    @staticmethod
    def identity(record: Record) -> str:
        """What two records of one run have in common."""
        what = [record.benchmark, record.method, record.backend, record.model, record.seed]
        return json.dumps([*what, record.settings], sort_keys=True)


def tuned_runs(
    run: Callable[[int, float | None], Record],
    seeds: Sequence[int],
    rates: Sequence[float | None],
) -> list[Record]:
    """One run for each seed, at the learning rate that did best in validation on the first seed.

    Parameters
    ----------
    run : callable
        ``run(seed, rate)``; its record's figure "validation" decides.
    seeds, rates : sequences

    Returns
    -------
    list of Record
        Without the runs at other rates, which are in the file only. When every rate failed, the
        first of them alone.
    """
    tried = [run(seeds[0], rate) for rate in rates]
    best = min(range(len(tried)), key=lambda i: _validation(tried[i]))
    if tried[best].failed:
        return [tried[0]]
    return [tried[best], *(run(seed, rates[best]) for seed in seeds[1:])]


def _validation(record: Record) -> float:
    value = math.inf if record.failed else float(record.figures["validation"])
    return value if math.isfinite(value) else math.inf


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (n - 1 in the denominator; NaN for a single value)."""
    numbers = np.asarray(values, dtype=np.float64)
    spread = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
    return float(numbers.mean()), spread


def paired(ours: Sequence[Record], others: Sequence[Record], figure: str) -> NDArray[np.float64]:
    """Differences ours - other of a figure over the seeds that both have finished."""
    theirs = {r.seed: r.figures[figure] for r in others if not r.failed}
    return np.array(
        [r.figures[figure] - theirs[r.seed] for r in ours if not r.failed and r.seed in theirs],
        dtype=np.float64,
    )


def make_guide(backend: str, model: Any, method: Method, start: Any, init_scale: float) -> Any:
    """A method's guide of a host's model, from a strategy of the host's for the start."""
    guides: Any = importlib.import_module(f"{backend}.infer.autoguide")
    if method.guide == "point":
        return guides.AutoDelta(model, init_loc_fn=start)
    if method.guide == "diagonal":
        return guides.AutoDiagonalNormal(model, init_loc_fn=start, init_scale=init_scale)
    flow = importlib.import_module(f"{backend}_ext").AutoPlanarFlow
    return flow(model, num_flows=FLOW_LAYERS, init_loc_fn=start, init_scale=init_scale)


def in_chunks(x: Any, size: int) -> list[Any]:
    """Consecutive pieces of ``x`` of ``size`` rows, the last one perhaps shorter."""
    return [x[start : start + size] for start in range(0, len(x), size)]


def with_options(settings: SettingsType, arguments: argparse.Namespace) -> SettingsType:
    """``settings`` with those of its fields that the command line gives; lists become tuples."""
    given: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(arguments, field.name, None)
        if value is not None:
            given[field.name] = tuple(value) if isinstance(value, list) else value
    return dataclasses.replace(settings, **given)
