"""Ensembles of LeNets by particle methods: a table of accuracy, likelihood and calibration.

Section 4.2, table 2 and appendix C.3 of "Stein variational Newton neural network ensembles": five
particles by an ensemble, by WGD, SVGD, Newton steps with diagonal curvature for all weights (SVN),
and Newton steps with Kronecker factors for the last layer (LL-SVN). ``--full`` has the paper's
numbers of images and epochs and its learning rates. Different also there: the published test
images, where the paper cross-validates on all; learning rates that fall to 0, where its are
constant; LL-SVN's own step size for the last layer; and one curvature for several steps, where its
code has one for an epoch.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets
from benchmarks.images import metrics
from benchmarks.images.training import (
    Array,
    Book,
    DivergedError,
    shown_rate,
    spread_seed,
    tuned_runs,
    with_options,
)
from benchmarks.memory import release_freed, reset_peak, resident
from benchmarks.records import Record
from benchmarks.study import modules_of, overview, write_report
from ppl_ext.curvature.program_curvature import GaussNewton
from ppl_ext.stein.newton import LevenbergMarquardt, NewtonSystem

#: The network: channels of the convolutions, units of the linear layers, classes.
CHANNELS, UNITS, CLASSES = (6, 16), (120, 84), 10
NUM_WEIGHTS = 61_706
#: Standard deviation of the prior of all weights and biases. 1 / sqrt(inputs of a unit) is so
#: narrow that the networks underfit: on 3,072 images of Fashion-MNIST the ensemble's NLL after 4
#: epochs is 0.63 with it, and 0.46 with this.
PRIOR_SCALE = 1.0
DATASETS = ("mnist", "fashion_mnist")


@dataclass(frozen=True)
class Method:
    """One way of moving the particles.

    Parameters
    ----------
    name : str
        For tables.
    engine : {"DeepEnsemble", "WGD", "SVGD", "SVN", "LL-SVN"}
        "LL-SVN" takes Newton steps for the last layer, and moves the other layers by SVGD.
    curvature, system, solver : str
        Options of the Newton steps.
    damping : float, optional
        Fixed damping; by default it adapts.
    adam : bool
        Whether Adam takes SVN's direction, as in the paper, in place of a share of it.
    """

    name: str
    engine: Literal["DeepEnsemble", "WGD", "SVGD", "SVN", "LL-SVN"]
    curvature: Any = "diag"
    system: Any = "block_diagonal"
    solver: Any = None
    damping: float | None = None
    adam: bool = False

    def newton_options(self, every: int = 1, sites: Any = None) -> dict[str, Any]:
        """Arguments of ``SVN`` on both backends."""
        options: dict[str, Any] = {
            "curvature": GaussNewton(self.curvature, sites, every=every),
            "system": NewtonSystem(self.system, solver=self.solver),
        }
        if self.damping is not None:
            options["damping"] = LevenbergMarquardt(self.damping, adapt=False)
        return options


ENSEMBLE = Method("ensemble", "DeepEnsemble")
WGD = Method("WGD", "WGD")
SVGD = Method("SVGD", "SVGD")
#: Adam takes the Newton direction, as in the paper. The next one takes shares of it, with damping
#: that adapts: the diagonal leaves out that weights act together, so that a lightly damped step is
#: hundreds of times too long, and the damping that forbids it makes training slow.
SVN = Method("SVN", "SVN", damping=1.0, adam=True)
SVN_ADAPTIVE = Method("SVN adaptive", "SVN")
LL_SVN = Method("LL-SVN", "LL-SVN", "kfac")
METHODS = {method.name: method for method in (ENSEMBLE, WGD, SVGD, SVN, SVN_ADAPTIVE, LL_SVN)}

FIGURES = ("accuracy", "NLL", "ECE", "Brier", "AUROC")


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; the defaults are those that end within 40 minutes on two cores."""

    rows: int = 3200
    validation_rows: int = 2000
    epochs: int = 10
    # Of SVN, whose epochs are dearer.
    newton_epochs: int = 10
    batch_size: int = 64
    particles: int = 5
    curvature_every: int = 10
    seeds: int = 1
    rates: tuple[float, ...] = (1e-3, 3e-3)
    step_sizes: tuple[float, ...] = (1.0,)
    newton_share: float = 0.5
    methods: tuple[str, ...] = tuple(name for name in METHODS if name != "SVN adaptive")


REDUCED = Settings()
FULL = dataclasses.replace(
    REDUCED,
    rows=48_000,
    validation_rows=12_000,
    epochs=100,
    newton_epochs=20,
    batch_size=128,
    seeds=5,
    rates=(1e-3, 3e-3, 5e-3, 1e-2, 3e-2),
)


@dataclass(frozen=True)
class Plan:
    """What a trainer is told beside the method.

    Parameters
    ----------
    steps : int
        Of the whole training, over which step sizes fall to 0 along a cosine.
    batch_size, particles : int
    curvature_every : int
        Steps that a curvature of all weights serves.
    newton_share : float
        Share of Newton's move of the last layer at the start.
    """

    steps: int
    batch_size: int
    particles: int
    curvature_every: int
    newton_share: float


class Trainer(Protocol):
    """Particles in training, on either backend."""

    num_weights: int

    def advance(self, steps: int) -> dict[str, NDArray[Any]]:
        """Take so many steps; the engine's figures of each."""

    def predict(self, x: Array) -> Array:
        """Logits (particles, n, classes) of the present particles."""

    def predict_kept(self, x: Array) -> Array:
        """The same by the particles that were kept last."""

    def keep(self) -> None:
        """Remember the present particles."""


@dataclass(frozen=True)
class Problem:
    """Images (n, 28, 28), float32 of mean 0 and variance 1 in training, and labels (n,), int64."""

    x_train: Array
    y_train: NDArray[np.int64]
    x_validation: Array
    y_validation: NDArray[np.int64]
    x_test: Array
    y_test: NDArray[np.int64]


def make_problem(images: datasets.Images, rows: int, validation_rows: int, seed: int) -> Problem:
    """Draw training and validation images from the published training part.

    Raises
    ------
    ValueError
        There are not so many images.
    """
    if rows + validation_rows > len(images.x_train):
        raise ValueError(
            f"Expected at most {len(images.x_train)} images for training and validation, found "
            f"{rows} and {validation_rows}."
        )
    order = np.random.default_rng(spread_seed(seed, 0)).permutation(len(images.x_train))
    train, validation = order[:rows], order[rows : rows + validation_rows]
    location = images.x_train[train].mean()
    scale = images.x_train[train].std()

    def scaled(pixels: NDArray[np.uint8]) -> Array:
        return ((pixels - location) / scale).astype(np.float32)

    return Problem(
        scaled(images.x_train[train]),
        images.y_train[train],
        scaled(images.x_train[validation]),
        images.y_train[validation],
        scaled(images.x_test),
        images.y_test,
    )


def follow(
    trainer: Trainer, problem: Problem, plan: Plan, epochs: int, clock: Any = time.perf_counter
) -> dict[str, Any]:
    """Train, and return the figures of the best epoch by validation NLL, and of the last.

    Raises
    ------
    DivergedError
        The validation NLL was never finite.
    """
    per_epoch = plan.steps // epochs
    started = clock()
    trainer.advance(1)  # compiles what there is to compile
    compiling = clock() - started
    losses: list[float] = []
    spent: list[float] = []
    tracks: dict[str, list[float]] = {}
    best, seconds = np.inf, 0.0
    for epoch in range(epochs):
        started = clock()
        info = trainer.advance(per_epoch - (epoch == 0))
        seconds += clock() - started
        for name in ("damping", "accepted", "disagreement", "force_norm"):
            if len(info.get(name, ())):
                tracks.setdefault(name, []).append(float(np.mean(info[name])))
        probabilities = metrics.mixture_probabilities(trainer.predict(problem.x_validation))
        losses.append(metrics.negative_log_likelihood(probabilities, problem.y_validation))
        spent.append(seconds)
        if losses[-1] < best:
            best = losses[-1]
            trainer.keep()
    if not np.isfinite(best):
        raise DivergedError(f"the validation NLL was never finite in {epochs} epochs.")
    logits = trainer.predict_kept(problem.x_test)
    found: dict[str, Any] = dict(metrics.classification(logits, problem.y_test))
    last = trainer.predict(problem.x_test)
    found["last"] = metrics.classification(last, problem.y_test)
    found["reliability"] = metrics.reliability(
        metrics.mixture_probabilities(logits), problem.y_test
    )
    single = [metrics.classification(each[None], problem.y_test) for each in logits]
    found["mean of single particles"] = {
        name: float(np.mean([each[name] for each in single])) for name in ("accuracy", "NLL")
    }
    return found | {
        "validation": best,
        "best epoch": int(np.argmin(losses)) + 1,
        "validation losses": losses,
        "seconds at epochs": spent,
        "seconds an epoch": seconds / (epochs - 1 / per_epoch),
        "seconds to compile": compiling,
        "tracks": tracks,
        "weights": trainer.num_weights,
    }


def run_one(
    book: Book,
    backend: Any,
    method: Method,
    images: datasets.Images,
    settings: Settings,
    seed: int,
    rate: float,
) -> Record:
    """Train one ensemble and record its figures on the test images."""
    epochs = settings.newton_epochs if method.engine == "SVN" else settings.epochs
    batch_size = min(settings.batch_size, settings.rows)
    plan = Plan(
        epochs * (settings.rows // batch_size),
        batch_size,
        settings.particles,
        settings.curvature_every,
        settings.newton_share,
    )
    record = Record(
        "images lenet",
        method.name,
        backend.BACKEND,
        images.name,
        seed=seed,
        settings={
            "training rows": settings.rows,
            "validation rows": settings.validation_rows,
            "epochs": epochs,
            "rate": rate,
            **dataclasses.asdict(plan),
            **dataclasses.asdict(method),
        },
    )

    def work(record: Record) -> None:
        problem = make_problem(images, settings.rows, settings.validation_rows, seed)
        before = start_of_memory()
        trainer = backend.Trainer(method, problem.x_train, problem.y_train, plan, rate, seed)
        record.figures.update(follow(trainer, problem, plan, epochs))
        if before is not None:
            record.figures["peak bytes"] = resident("VmHWM") - before

    # A method that breaks down, or that memory does not suffice for, is a result.
    record = book.run(record, work, go_on_after=(Exception,))
    said = record.error or (
        f"validation NLL {record.figures['validation']:.4f}, test NLL {record.figures['NLL']:.4f}, "
        f"accuracy {record.figures['accuracy']:.4f}"
    )
    print(
        f"{images.name}, {backend.BACKEND}, {method.name}, rate {shown_rate(rate)}, seed {seed}: "
        f"{said} ({record.seconds or 0.0:.0f} s)",
        flush=True,
    )
    return record


def start_of_memory() -> int | None:
    """Bytes that this process holds, from where its peak counts; None where it cannot be told."""
    try:
        release_freed()
        reset_peak()
        return resident("VmRSS")
    except (OSError, AttributeError):  # not Linux, or not allowed
        return None


def main(arguments: argparse.Namespace) -> int:
    """Run the experiment."""
    if arguments.step_cost:
        from benchmarks.images import step_cost

        return step_cost.main(arguments)
    settings = with_options(FULL if arguments.full else REDUCED, arguments)
    names = (arguments.dataset,) if arguments.dataset else DATASETS
    try:
        sets = [datasets.images(name) for name in names]
    except datasets.MissingDataError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    out: Path = arguments.out / "lenet"
    book = Book(out / "records.jsonl", arguments.resume, arguments.retry_failed)
    found: list[Record] = []
    for images in sets:
        for backend in modules_of(arguments.backend or "numpyro", "images.{}_lenet", None):
            backend.release()
            for name in settings.methods:
                method = METHODS[name]
                shares = method.engine == "SVN" and not method.adam
                rates = settings.step_sizes if shares else settings.rates
                run = partial(run_one, book, backend, method, images, settings)
                found += tuned_runs(run, range(settings.seeds), rates)
    shown = ("last: NLL", "NLL of mean logits", "mean of single particles: NLL", "best epoch")
    costs = ("seconds an epoch", "seconds to compile", "peak bytes")
    text = overview(found, *FIGURES, *shown, *costs, by=("rate",))
    write_report(out / "table.md", text, found)
    print(f"Wrote {out}.")
    return 0
