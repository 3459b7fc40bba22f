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

from benchmarks import datasets, records
from benchmarks.images import metrics
from benchmarks.images.training import (
    Array,
    Book,
    DivergedError,
    plus_minus,
    shown_rate,
    spread_seed,
    tuned_runs,
    with_options,
)
from benchmarks.memory import release_freed, reset_peak, resident
from benchmarks.records import Record
from benchmarks.study import modules_of
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

#: Accuracy, NLL, ECE, Brier score and AUROC of the paper's table 2.
PUBLISHED = {
    "mnist": {
        "ensemble": (0.991, 0.039, 0.011, 0.014, 1.000),
        "WGD": (0.991, 0.041, 0.012, 0.014, 1.000),
        "SVGD": (0.991, 0.038, 0.012, 0.014, 1.000),
        "SVN": (0.991, 0.041, 0.015, 0.016, 1.000),
        "LL-SVN": (0.991, 0.038, 0.011, 0.014, 1.000),
    },
    "fashion_mnist": {
        "ensemble": (0.916, 0.259, 0.051, 0.122, 0.995),
        "WGD": (0.912, 0.257, 0.056, 0.128, 0.994),
        "SVGD": (0.916, 0.253, 0.051, 0.123, 0.995),
        "SVN": (0.907, 0.261, 0.056, 0.135, 0.994),
        "LL-SVN": (0.918, 0.241, 0.051, 0.120, 0.995),
    },
}
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


COLUMNS = {
    "backend": "backend",
    "method": "method",
    "rate": "rate",
    "accuracy": "accuracy",
    "NLL": "NLL",
    "ECE": "ECE",
    "Brier": "Brier",
    "AUROC": "AUROC",
    "last": "NLL, last epoch",
    "mean logits": "NLL of mean logits",
    "single": "NLL of a particle",
    "best": "best epoch",
    "epoch": "seconds an epoch",
    "compile": "seconds to compile",
    "memory": "peak memory (MB)",
}


def table_row(runs: list[Record]) -> dict[str, Any]:
    """One method's line: means and standard deviations over its seeds."""
    first = runs[0]
    row: dict[str, Any] = {"backend": first.backend, "method": first.method}
    row["rate"] = shown_rate(first.settings["rate"])
    fine = [run.figures for run in runs if not run.failed]
    if not fine:
        return row | {"accuracy": f"failed ({first.error})"}
    for name in FIGURES:
        row[name] = plus_minus([each[name] for each in fine], 4)
    row["last"] = plus_minus([each["last"]["NLL"] for each in fine], 4)
    row["mean logits"] = plus_minus([each["NLL of mean logits"] for each in fine], 4)
    row["single"] = plus_minus([each["mean of single particles"]["NLL"] for each in fine], 4)
    row["best"] = "/".join(str(each["best epoch"]) for each in fine)
    row["epoch"] = float(np.mean([each["seconds an epoch"] for each in fine]))
    row["compile"] = float(np.mean([each["seconds to compile"] for each in fine]))
    peaks = [each["peak bytes"] / 1e6 for each in fine if "peak bytes" in each]
    row["memory"] = float(np.max(peaks)) if peaks else None
    return row


def published_rows(name: str, methods: tuple[str, ...]) -> list[dict[str, Any]]:
    """The paper's lines for these methods."""
    known = PUBLISHED.get(name, {})
    return [
        {"backend": "paper", "method": method}
        | {figure: f"{value:.3f}" for figure, value in zip(FIGURES, known[method], strict=True)}
        for method in methods
        if method in known
    ]


def report(found: dict[str, list[list[Record]]], settings: Settings, seconds: float) -> str:
    """The Markdown file; ``found`` maps data sets to the runs of each method."""
    grid = ", ".join(f"{rate:g}" for rate in settings.rates)
    shares = ", ".join(f"{share:g}" for share in settings.step_sizes)
    tables = "\n".join(
        f"## {name}\n\n"
        + records.markdown_table(
            [*map(table_row, cells), *published_rows(name, settings.methods)], COLUMNS
        )
        + f"\n![Validation NLL of {name}](lenet_{name}_validation.png)\n\n"
        f"![Reliability on {name}](lenet_{name}_reliability.png)\n"
        for name, cells in found.items()
    )
    return (
        "# LeNet ensembles\n\n"
        "Made by `python -m benchmarks images --experiment lenet`. "
        f"{settings.particles} particles of {NUM_WEIGHTS:,} weights; priors Normal(0, "
        f"{PRIOR_SCALE**2:g}); {settings.rows:,} training and {settings.validation_rows:,} "
        f"validation images, batches of {settings.batch_size}; {settings.epochs} epochs, "
        f"{settings.newton_epochs} of SVN. All by Adam with a rate from {{{grid}}}, chosen by "
        "validation NLL on the first seed, but for LL-SVN's last layer, which takes "
        f"{settings.newton_share:g} of Newton's move, and SVN adaptive, which takes a share from "
        f"{{{shares}}}; all fall to 0 along a cosine. SVN's curvature serves "
        f"{settings.curvature_every} steps.\n\n"
        "Test figures of the mixture of particles after the epoch with the lowest validation NLL, "
        f"mean ± sd over {settings.seeds} seed(s). ECE: {metrics.BINS} bins of equal width on the "
        "top label's probability; Brier: squared distances summed over classes; AUROC: mean over "
        "classes, each against the others. The paper's figures are those of its table 2, of "
        "cross-validation with 44,800 training images and the logits averaged for the NLL. Peak "
        "memory: what the process held at most, less what it held before.\n\n"
        f"{tables}\nThe whole run took {seconds:.0f} s.\n"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the experiment."""
    started = time.perf_counter()
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
    from benchmarks.images import plots

    out: Path = arguments.out / "lenet"
    book = Book(out / "records.jsonl", arguments.resume, arguments.retry_failed)
    found: dict[str, list[list[Record]]] = {}
    for images in sets:
        cells = found.setdefault(images.name, [])
        for backend in modules_of(arguments.backend or "numpyro", "images.{}_lenet", None):
            backend.release()
            for name in settings.methods:
                method = METHODS[name]
                shares = method.engine == "SVN" and not method.adam
                rates = settings.step_sizes if shares else settings.rates
                run = partial(run_one, book, backend, method, images, settings)
                cells.append(tuned_runs(run, range(settings.seeds), rates))
        plots.validation_losses(cells, out / f"lenet_{images.name}_validation.png")
        plots.reliability_diagrams(cells, out / f"lenet_{images.name}_reliability.png")
        text = report(found, settings, time.perf_counter() - started)
        records.write_text(out / "table.md", text)
    print(f"\n{text}\nWrote {out}.")
    return 0
