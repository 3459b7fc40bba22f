"""Fits of every set, split and method, judged on validation and test rows along the way."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets
from benchmarks.bnn import CLASSIFICATION, DEFAULT_METHODS, SETS, report
from benchmarks.bnn.figures import figures
from benchmarks.bnn.methods import (
    METHODS,
    NEWTON_MOMENTUM,
    NEWTON_STEP,
    Floats,
    Method,
    Setting,
    Trainer,
)
from benchmarks.datasets import Dataset, Split, Task
from benchmarks.images.training import Book, tuned_runs
from benchmarks.records import Record
from benchmarks.study import Study, backends_of

VALIDATION = 0.2
#: Epochs after each of which all curves have a point, and points from there on.
EVERY_EPOCH, FURTHER = 20, 40
#: Points of methods whose predictions cost a sweep over the rows.
FEW = 4
#: Epochs of SVGD by the most rows of a set, and the splits that the short protocol takes.
EPOCHS = {20_000: 500, 100_000: 60}
SPLITS = {2_000: 3, 20_000: 1, 100_000: 1}
#: Rows of a Newton step: larger sets have enough steps with larger batches, whose curvature and
#: score are less noisy.
NEWTON_BATCHES = {2_000: 64, 20_000: 256, 100_000: 512}
TEST_SHARE = 0.1
#: Particles unless told otherwise, and of the whole study.
PARTICLES = 5
FULL_PARTICLES = (5, 10, 20)
#: The first split is the one on which the settings of Newton steps were found; no figure is of it
#: unless all splits are asked for.
FIRST_SPLIT = 1


@dataclasses.dataclass(frozen=True)
class Rows:
    """Standardised rows of one split.

    Attributes
    ----------
    task : {"regression", "classification"}
    x, y : arrays
        To fit.
    parts : dict
        "validation" and "test" rows, to judge.
    scale : float
        That brings a standardised response back to its units.
    """

    task: Task
    x: Floats
    y: NDArray[Any]
    parts: dict[str, tuple[Floats, NDArray[Any]]]
    scale: float


@dataclasses.dataclass(frozen=True)
class Budget:
    """What the command line sets.

    Attributes
    ----------
    epochs, splits : int, optional
        Default: by the size of the set.
    newton_epochs : int, optional
        Epochs of Newton methods. Default: their share of those of SVGD.
    batch : int
        Rows of a step of Adam.
    newton_batch : int, optional
        Rows of a Newton step. Default: by the size of the set.
    particles : int
    rates, dampings, chain_rates : tuple of float
        Candidates for Adam, for Newton steps, and for chains.
    hidden : tuple of int
        Units of the hidden layers.
    """

    epochs: int | None = None
    splits: int | None = None
    newton_epochs: int | None = None
    batch: int = 32
    newton_batch: int | None = None
    particles: int = PARTICLES
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    dampings: tuple[float, ...] = (0.3, 3.0, 10.0)
    chain_rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    hidden: tuple[int, ...] = (50, 50)

    @classmethod
    def of(cls, arguments: argparse.Namespace, particles: int) -> Budget:
        """That of the command line for one number of particles."""
        return cls(
            arguments.epochs,
            arguments.splits or (1_000 if arguments.full else None),
            arguments.newton_epochs,
            arguments.batch,
            arguments.newton_batch,
            particles,
            tuple(arguments.rates),
            tuple(arguments.dampings),
            tuple(arguments.chain_rates),
        )

    def epochs_for(self, rows: int, method: Method | None = None) -> int:
        """Epochs of a method, SVGD by default, on a set of so many rows."""
        epochs = self.epochs or _by_size(EPOCHS, rows)
        if method is None:
            return epochs
        if self.newton_epochs and method.family in ("Newton", "last layer"):
            return self.newton_epochs
        return max(1, round(epochs * method.epochs))

    def splits_for(self, data: Dataset) -> range:
        """Which splits of a set are taken; of 20 random ones where none are published."""
        there = len(data.splits) or 20
        number = self.splits or _by_size(SPLITS, len(data.x))
        # The first one only where all are asked for.
        first = 0 if number >= there else FIRST_SPLIT
        return range(there)[first : first + number]

    def batch_for(self, method: Method, rows: int) -> int:
        """Rows of a step on a set of so many rows to fit."""
        if method.family != "Newton":
            return min(self.batch, rows)
        return min(self.newton_batch or _by_size(NEWTON_BATCHES, rows), rows)

    def candidates(self, method: Method) -> tuple[float, ...]:
        """What validation chooses from."""
        if method.family == "Newton":
            return self.dampings
        return self.chain_rates if method.family == "Langevin" else self.rates


def _by_size(table: dict[int, int], rows: int) -> int:
    return next((value for most, value in table.items() if rows <= most), table[max(table)])


def run(arguments: argparse.Namespace) -> int:
    """Run the sets that are there; the exit status."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    book = Book(arguments.out / "bnn.jsonl", arguments.resume, arguments.retry_failed)
    default = tuple(METHODS) if arguments.full else DEFAULT_METHODS
    methods = {name: METHODS[name] for name in arguments.methods or default}
    particles = arguments.particles or (FULL_PARTICLES if arguments.full else (PARTICLES,))
    status = 1
    for _, data in datasets.there(arguments.sets or SETS, load):
        for backend in backends_of(arguments.backend):
            for number in particles:
                budget = Budget.of(arguments, number)
                # What has no particles is fitted once, with the first number of them.
                own = {
                    name: method
                    for name, method in methods.items()
                    if method.has_particles or number == particles[0]
                }
                compare(book, data, backend, own, budget)
                status = _report(arguments.out)
    return status


def _report(out: Path) -> int:
    """Write what is recorded, also by earlier commands where this one keeps it; the status."""
    study = Study.recorded("bnn", out)
    study.runs = report.chosen(study.runs)
    return study.report(study.overview(*report.SHOWN, by=("particles",)), report.picture)


def load(name: str) -> Dataset:
    """A set by its name."""
    if name in CLASSIFICATION and not datasets.has_external(name) and name in datasets.SHIPPED:
        return datasets.shipped(name)
    return datasets.external(name)


def split_rows(data: Dataset, index: int, share: float = VALIDATION) -> Rows:
    """Rows of a published split, or of a random one, a share of the training ones held out."""
    split = data.split(index) if data.splits else data.random_split(index, TEST_SHARE)
    order = np.random.default_rng(index).permutation(len(split.x_train))
    number = round(share * len(order))
    held_out, kept = order[:number], order[number:]
    regression = data.task == "regression"
    # The statistics are those of the rows that are fitted.
    inner = dataclasses.replace(split, x_train=split.x_train[kept], y_train=split.y_train[kept])
    scaled = inner.standardised(response=regression)
    validation = Split(
        inner.x_train, inner.y_train, split.x_train[held_out], split.y_train[held_out]
    ).standardised(response=regression)
    parts = {
        "validation": (validation.x_test, validation.y_test),
        "test": (scaled.x_test, scaled.y_test),
    }
    return Rows(data.task, scaled.x_train, scaled.y_train, parts, float(scaled.y_scale))


def compare(
    book: Book, data: Dataset, backend: str, methods: dict[str, Method], budget: Budget
) -> list[Record]:
    """Runs of all methods at their best candidates, on all splits."""
    indices = budget.splits_for(data)
    splits = {index: split_rows(data, index) for index in indices}
    found: list[Record] = []
    for name, method in methods.items():
        fit = _Fit(book, data, backend, name, method, budget, splits)
        # Its settings go to the records that are kept; a search that failed is one of them.
        found += tuned_runs(fit, indices, budget.candidates(method))
        fit.release()
    return found


@dataclasses.dataclass
class _Fit:
    """Runs of one method on one set, which share what is compiled."""

    book: Book
    data: Dataset
    backend: str
    name: str
    method: Method
    budget: Budget
    splits: dict[int, Rows]

    def __post_init__(self) -> None:
        # Rows of a set's published splits are of one number, mostly.
        self._trainers: dict[Setting, tuple[Trainer, float]] = {}

    def __call__(self, index: int, candidate: float | None) -> Record:
        assert candidate is not None
        rows = self.splits[index]
        epochs = self.budget.epochs_for(len(self.data.x), self.method)
        setting = setting_for(rows, self.method, self.budget, epochs)
        settings = {
            "split": index,
            "candidate": candidate,
            "epochs": epochs,
            "batch": setting.batch,
            "particles": setting.particles,
            "hidden": list(setting.hidden),
            "kernel": self.method.kernel,
            "options": {key: str(value) for key, value in self.method.options.items()},
        }
        if self.method.family == "Newton":
            settings |= {"step": NEWTON_STEP, "momentum": NEWTON_MOMENTUM}
        record = Record("bnn", self.name, self.backend, self.data.name, index, settings)

        def work(record: Record) -> None:
            trainer, compiling = self._trainer(setting, rows, candidate)
            few = self.method.family == "Laplace"
            record.figures = follow(trainer, setting, rows, index, candidate, epochs, few)
            record.figures["compiling seconds"] = compiling

        record = self.book.run(record, work, go_on_after=(Exception,))
        label = f"{self.data.name}, {self.backend}, {self.name}, P = {setting.particles}"
        label += f", split {index}, {candidate:g}"
        print(f"{label}: {summary(record)}", flush=True)
        return record

    def release(self) -> None:
        """Let go of what was compiled, if anything was."""
        if self._trainers:
            self._trainers = {}
            importlib.import_module(f"benchmarks.bnn.{self.backend}_network").release()

    def _trainer(self, setting: Setting, rows: Rows, candidate: float) -> tuple[Trainer, float]:
        """Runs with so many rows, compiled, and the seconds that this took."""
        if setting not in self._trainers:
            started = time.perf_counter()
            trainer = make_trainer(self.backend, self.method, setting)
            trainer.start(rows.x, rows.y, 0, candidate)
            trainer.advance(1)
            trainer.draws()
            self._trainers = {setting: (trainer, time.perf_counter() - started)}
        return self._trainers[setting]


def setting_for(rows: Rows, method: Method, budget: Budget, epochs: int) -> Setting:
    """What a run has besides its method and its rows."""
    number, features = rows.x.shape
    setting = Setting(
        rows.task,
        features,
        number,
        budget.batch_for(method, number),
        budget.hidden,
        budget.particles,
    )
    return dataclasses.replace(setting, steps=epochs * setting.steps_per_epoch)


def make_trainer(backend: str, method: Method, setting: Setting) -> Trainer:
    """Runs of a method with a backend."""
    part = {"Langevin": "chains", "dropout": "dropout"}.get(method.family, "network")
    module = importlib.import_module(f"benchmarks.bnn.{backend}_{part}")
    trainer: Trainer = module.trainer(method, setting)
    return trainer


def points(epochs: int, few: bool = False) -> list[int]:
    """Epochs after which a run is judged, the last one included."""
    if few:
        return sorted({max(1, round(part * epochs / FEW)) for part in range(1, FEW + 1)})
    further = np.linspace(EVERY_EPOCH, epochs, FURTHER + 1).round().astype(int).tolist()
    return sorted({*range(1, min(EVERY_EPOCH, epochs) + 1), *(e for e in further if e <= epochs)})


def follow(
    trainer: Trainer,
    setting: Setting,
    rows: Rows,
    seed: int,
    candidate: float,
    epochs: int,
    few: bool,
) -> dict[str, Any]:
    """Figures along a run, those at the best epoch in validation, and those at the end.

    Seconds are those of the steps alone, by the wall clock and of the processor.
    """
    trainer.start(rows.x, rows.y, seed, candidate)
    curves: dict[str, list[float]] = {}
    done, wall, processor = 0, 0.0, 0.0
    for epoch in points(epochs, few):
        before = time.perf_counter(), _processor_seconds()
        trainer.advance((epoch - done) * setting.steps_per_epoch)
        wall += time.perf_counter() - before[0]
        processor += _processor_seconds() - before[1]
        done = epoch
        draws = trainer.draws()
        found = {"epoch": epoch, "seconds": wall, "processor seconds": processor}
        for part, (x, y) in rows.parts.items():
            judged = figures(rows.task, draws, x, y, rows.scale)
            found |= {f"{part} {name}": value for name, value in judged.items()}
        for name, value in found.items():
            curves.setdefault(name, []).append(value)
    likelihood = np.array(curves["validation NLL"])
    if not np.isfinite(likelihood).any():
        raise FloatingPointError(f"no finite validation NLL with {candidate:g}")
    best = int(np.nanargmin(likelihood))
    return {
        # What validation chooses the candidate by: the epoch that it would test.
        "validation": float(likelihood[best]),
        "at best": {name: values[best] for name, values in curves.items()},
        "at last": {name: values[-1] for name, values in curves.items()},
        "curves": curves,
        **trainer.said(),
    }


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system


def summary(record: Record) -> str:
    """A line about a run."""
    if record.failed:
        return str(record.error)
    best, last = record.figures["at best"], record.figures["at last"]
    return (
        f"test NLL {best['test NLL']:.3f} at epoch {best['epoch']}, {last['test NLL']:.3f} at "
        f"{last['epoch']}; validation {best['validation NLL']:.3f}; {last['seconds']:.1f} s"
    )
