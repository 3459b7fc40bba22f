"""The runs of the forecasting benchmark and their table.

Sections 5.4, 5.5 and appendices C and D.2 of M. Kim, "Large-scale Score-based Variational Posterior
Inference for Bayesian Deep Neural Networks". ``--full`` has the paper's epochs, batch, draws and
number of seeds, and all windows; the network stays this project's own.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.forecasting import metrics, sizes
from benchmarks.forecasting.problem import Problem, make_problem
from benchmarks.images.training import (
    ADVI,
    ADVI_FLOW,
    OURS,
    OURS_FLOW,
    OURS_GRADIENT,
    POINT,
    Book,
    Method,
    Schedule,
    minibatches,
    rounded_steps,
    shown_rate,
    train,
    tuned_runs,
    with_options,
)
from benchmarks.records import Record
from benchmarks.study import modules_of, overview, write_report

FIGURES = ("MSE", "MAE", "NLL")
LAST_VALUE = "last value"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes of the experiment; the defaults are those that end within 20 minutes on two cores."""

    series: tuple[str, ...] = ("exchange_rate", "illness", "weather")
    flow_series: tuple[str, ...] = ("exchange_rate", "weather")
    network: sizes.Sizes = sizes.REDUCED
    epochs: int = 10
    least_steps: int = 400
    most_steps: int = 400
    batch_size: int = 32
    evaluations: int = 10
    draws: int = 5
    init_scale: float = 1e-2
    temperature: float = 1e-6
    thinned_to: int | None = 256
    seeds: int = 3
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)


REDUCED = Settings()
FULL = dataclasses.replace(
    REDUCED,
    network=sizes.FULL,
    least_steps=1000,
    most_steps=100_000,
    evaluations=50,
    thinned_to=None,
    seeds=10,
)


def schedule_for(settings: Settings, num_rows: int) -> Schedule:
    """Steps for a training set of this many windows."""
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
    problem: Problem,
    settings: Settings,
    seed: int,
    rate: float | None,
) -> Record:
    """Train one forecaster and record its figures on the test windows."""
    network = sizes.SMALL if method.guide == "flow" else settings.network
    schedule = schedule_for(settings, len(problem.x_train))
    record = Record(
        "forecasting",
        method.name,
        backend.BACKEND,
        problem.name,
        seed=seed,
        settings={
            "window": problem.window,
            "horizon": problem.horizon,
            "learning rate": rate,
            "network": dataclasses.asdict(network),
            "temperature": settings.temperature,
            "validation windows": len(problem.x_validation),
            "test windows": len(problem.x_test),
            **dataclasses.asdict(schedule),
        },
    )

    def work(record: Record) -> None:
        model = backend.Forecaster(problem, network, settings.temperature)
        trainer = backend.Trainer(
            model, method, problem.x_train, problem.y_train, schedule, rate, seed
        )
        rows = minibatches(len(problem.x_train), schedule.batch_size, schedule.steps, seed)

        def validation_error() -> float:
            draws = trainer.predict(problem.x_validation, seed)
            return metrics.mean_square_error(draws, problem.y_validation)

        training = train(trainer, rows, schedule.evaluations, validation_error)
        draws = trainer.predict(problem.x_validation, seed)
        variance = metrics.best_variance(draws, problem.y_validation)
        validation = metrics.mixture_nll(draws, problem.y_validation, variance)
        draws = trainer.predict(problem.x_test, seed)
        record.figures.update(_test_figures(problem, draws, variance))
        record.figures.update(
            {
                "validation": validation,
                "weights": trainer.num_weights,
                "best step": training.best_step,
                "validation losses": training.losses,
            }
        )

    record = book.run(record, work)
    said = record.error or ", ".join(f"{name} {record.figures[name]:.4f}" for name in FIGURES)
    print(
        f"{record.backend}, {problem.name}, {method.name}, rate {shown_rate(rate)}, seed {seed}: "
        f"{said} ({record.seconds or 0.0:.0f} s)",
        flush=True,
    )
    return record


def last_value(book: Book, problem: Problem) -> Record:
    """Record what the forecast that repeats the last value seen would get."""

    def work(record: Record) -> None:
        def repeated(x: np.ndarray) -> np.ndarray:
            return np.repeat(x[None, :, -1:], problem.horizon, axis=2)

        draws = repeated(problem.x_validation)
        variance = metrics.best_variance(draws, problem.y_validation)
        validation = metrics.mixture_nll(draws, problem.y_validation, variance)
        record.figures.update(validation=validation, weights=0)
        record.figures.update(_test_figures(problem, repeated(problem.x_test), variance))

    settings = {
        "validation windows": len(problem.x_validation),
        "test windows": len(problem.x_test),
    }
    return book.run(Record("forecasting", LAST_VALUE, "", problem.name, settings=settings), work)


def _test_figures(problem: Problem, draws: np.ndarray, variance: float) -> dict[str, Any]:
    middle = len(problem.x_test) // 2
    return {
        "MSE": metrics.mean_square_error(draws, problem.y_test),
        "MAE": metrics.mean_absolute_error(draws, problem.y_test),
        "NLL": metrics.mixture_nll(draws, problem.y_test, variance),
        "variance": variance,
        "spread of draws": float(draws.std(0).mean()),
        # One channel of one window, for the plot.
        "example": np.round(draws[:, middle, :, -1].astype(np.float64), 4),
    }


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark."""
    settings = with_options(FULL if arguments.full else REDUCED, arguments)
    names = list(dict.fromkeys([*settings.series, *settings.flow_series]))
    try:
        loaded = {name: datasets.series(name) for name in names}
    except datasets.MissingDataError as error:
        print(f"forecasting: {error}", file=sys.stderr)
        return 1
    problems = {name: make_problem(series, settings.thinned_to) for name, series in loaded.items()}
    out: Path = arguments.out
    book = Book(out / "records.jsonl", arguments.resume, arguments.retry_failed)
    cells = [[last_value(book, problem)] for problem in problems.values()]
    for backend in modules_of(arguments.backend, "forecasting.{}_forecaster"):
        for name, problem in problems.items():
            backend.release()
            methods = (POINT, ADVI, OURS, OURS_GRADIENT) if name in settings.series else ()
            flows = (ADVI_FLOW, OURS_FLOW) if name in settings.flow_series else ()
            for method in (*methods, *flows):
                run = partial(run_one, book, backend, method, problem, settings)
                rates = method.rates(settings.rates)
                cells.append(tuned_runs(run, range(settings.seeds), rates))
    runs = [record for cell in cells for record in cell]
    text = overview(runs, "validation", *FIGURES, "weights", "best step", by=("learning rate",))
    write_report(out / "table.md", text, runs)
    print(f"Wrote {out}.")
    return int(all(run.failed for run in runs))
