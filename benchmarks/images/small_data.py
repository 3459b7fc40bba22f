"""A classifier trained on a small share of the images, early stopping on the rest.

Section 5.2, figure 3 and appendix C of M. Kim, "Large-scale Score-based Variational Posterior
Inference for Bayesian Deep Neural Networks". ``--full`` has the paper's network, shares, epochs,
batch and number of draws. Different also there: Adam with a learning rate chosen by validation for
each method, where the paper has SGD with momentum 0.5 and rate 1e-2; at least 2,000 steps, as 100
epochs of 60 images are 100; and the temperature, which the paper names for its large networks
only, divides the summed log likelihood.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets
from benchmarks.images import metrics
from benchmarks.images.training import (
    ADVI,
    OURS,
    OURS_GRADIENT,
    Array,
    Book,
    Method,
    Schedule,
    minibatches,
    rounded_steps,
    shown_rate,
    spread_seed,
    train,
    tuned_runs,
    with_options,
)
from benchmarks.records import Record
from benchmarks.study import modules_of, overview, write_report

METHODS = (ADVI, OURS, OURS_GRADIENT)
CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; the defaults are those that end within 20 minutes on two cores."""

    percent: tuple[float, ...] = (0.1, 1.0, 10.0)
    hidden: tuple[int, ...] = (100, 100, 100)
    epochs: int = 30
    # 100 epochs of 60 rows would be 100 steps.
    least_steps: int = 600
    most_steps: int = 1000
    batch_size: int = 128
    evaluations: int = 20
    draws: int = 5
    init_scale: float = 1e-2
    # The paper's, at which q is all but a point, and one at which its spread matters.
    temperature: tuple[float, ...] = (1e-6, 0.1)
    validation_rows: int = 2000
    seeds: int = 2
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)


REDUCED = Settings()
FULL = dataclasses.replace(
    REDUCED,
    percent=(0.1, 0.5, 1.0, 5.0, 10.0, 99.0),
    hidden=(1000, 1000, 1000),
    epochs=100,
    least_steps=2000,
    most_steps=100_000,
    evaluations=100,
    validation_rows=60_000,
    seeds=5,
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Images as rows of numbers from 0 to 1 (n, pixels), labels (n,), float32 and int64."""

    x_train: Array
    y_train: NDArray[np.int64]
    x_validation: Array
    y_validation: NDArray[np.int64]
    x_test: Array
    y_test: NDArray[np.int64]


def make_problem(
    images: datasets.Images, percent: float, validation_rows: int, seed: int
) -> Problem:
    """Draw ``percent`` % of the training images at random; validation rows come from the rest.

    At most ``validation_rows`` of the rest are kept. The drawn rows of a small share are among
    those of a larger one with the same seed.
    """
    order = np.random.default_rng(spread_seed(seed, 0)).permutation(len(images.x_train))
    size = round(len(order) * percent / 100.0)
    if not 0 < size < len(order):
        raise ValueError(
            f"Expected a share that leaves images on both sides of {len(order)}, found {percent} %."
        )
    train_rows, rest = order[:size], order[size : size + validation_rows]

    def rows(pixels: NDArray[np.uint8]) -> Array:
        return pixels.reshape(len(pixels), -1).astype(np.float32) / np.float32(255.0)

    return Problem(
        rows(images.x_train[train_rows]),
        images.y_train[train_rows],
        rows(images.x_train[rest]),
        images.y_train[rest],
        rows(images.x_test),
        images.y_test,
    )


def schedule_for(settings: Settings, num_rows: int) -> Schedule:
    """Steps for a training set of this size."""
    batch_size = min(settings.batch_size, num_rows)
    steps = settings.epochs * (num_rows // batch_size)
    steps = min(max(steps, settings.least_steps), settings.most_steps)
    return Schedule(
        steps=rounded_steps(steps, settings.evaluations),
        batch_size=batch_size,
        evaluations=settings.evaluations,
        draws=settings.draws,
        init_scale=settings.init_scale,
    )


def run_one(
    book: Book,
    backend: Any,
    method: Method,
    images: datasets.Images,
    settings: Settings,
    percent: float,
    temperature: float,
    seed: int,
    rate: float | None,
) -> Record:
    """Train one classifier and record its figures on the test images."""
    num_rows = round(len(images.x_train) * percent / 100.0)
    schedule = schedule_for(settings, num_rows)
    record = Record(
        "images small-data",
        method.name,
        backend.BACKEND,
        f"{images.name} {percent:g} %",
        seed=seed,
        settings={
            "percent": percent,
            "training rows": num_rows,
            "learning rate": rate,
            "hidden": list(settings.hidden),
            "temperature": temperature,
            "validation rows": min(settings.validation_rows, len(images.x_train) - num_rows),
            **dataclasses.asdict(schedule),
        },
    )

    def work(record: Record) -> None:
        problem = make_problem(images, percent, settings.validation_rows, seed)
        sizes = (problem.x_train.shape[1], *settings.hidden, CLASSES)
        model = backend.Classifier(sizes, num_rows, temperature)
        trainer = backend.Trainer(
            model, method, problem.x_train, problem.y_train, schedule, rate, seed
        )

        def validation() -> dict[str, float]:
            return metrics.figures(
                trainer.predict(problem.x_validation, seed), problem.y_validation
            )

        rows = minibatches(num_rows, schedule.batch_size, schedule.steps, seed)
        training = train(trainer, rows, schedule.evaluations, lambda: validation()["NLL"])
        record.figures.update(
            metrics.figures(trainer.predict(problem.x_test, seed), problem.y_test),
            validation=validation()["NLL"],
            weights=trainer.num_weights,
            **{"best step": training.best_step, "validation losses": training.losses},
        )

    record = book.run(record, work)
    said = record.error or f"test NLL {record.figures['NLL']:.4f}"
    print(
        f"{record.backend}, {record.model}, T = {temperature:g}, {method.name}, "
        f"rate {shown_rate(rate)}, seed {seed}: {said} ({record.seconds or 0.0:.0f} s)",
        flush=True,
    )
    return record


def main(arguments: argparse.Namespace) -> int:
    """Run the experiment."""
    settings = with_options(FULL if arguments.full else REDUCED, arguments)
    try:
        images = datasets.images(arguments.dataset or "mnist")
    except datasets.MissingDataError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    out: Path = arguments.out / "small-data"
    book = Book(out / "records.jsonl", arguments.resume, arguments.retry_failed)
    cells = []
    for backend in modules_of(arguments.backend or "both", "images.{}_networks"):
        for percent in settings.percent:
            backend.release()
            for temperature in settings.temperature:
                for method in METHODS:
                    run = partial(
                        run_one, book, backend, method, images, settings, percent, temperature
                    )
                    rates = method.rates(settings.rates)
                    cells.append(tuned_runs(run, range(settings.seeds), rates))
    runs = [record for cell in cells for record in cell]
    shown = ("validation", "error", "ECE", "all-class ECE", "NLL", "best step")
    text = overview(runs, *shown, by=("temperature", "learning rate"))
    write_report(out / "table.md", text, runs)
    print(f"Wrote {out}.")
    return 0
