"""Studies of SVN's options, the toy regression, and the curvature along a run."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets, records
from benchmarks.bnn import protocol, report
from benchmarks.bnn.figures import figures, network_output, regression_figures
from benchmarks.bnn.methods import (
    KERNELS,
    METHODS,
    NEWTON_SHARE,
    Draws,
    Floats,
    Method,
    NewtonTrainer,
)
from benchmarks.bnn.protocol import Budget, Rows
from benchmarks.datasets import Split
from benchmarks.images.training import Book
from benchmarks.records import Record
from benchmarks.study import backends_of, overview, save, subplots

SYSTEMS = {"full": "all blocks", "block_diagonal": "diagonal blocks"}
STRUCTURES = ("full", "diag", "kfac", "low_rank")
NUMBERS = (2, 5, 10, 20)
#: The toy regression of the paper's appendix C.1: rows of training, their intervals, where it is
#: tested, and the noise.
TOY_ROWS, TOY_INTERVALS, TOY_TEST, TOY_NOISE = 150, ((1.5, 2.5), (4.5, 6.0)), (0.0, 7.0), 0.25
TOY_PARTICLES, TOY_EPOCHS = 20, 2000
#: The paper's small network for pictures of its curvature, appendix D.3.
MATRIX_HIDDEN, MATRIX_BATCH, MATRIX_EPOCHS = (10,), 16, (1, 20, 40, 60, 80, 100)


def run(arguments: argparse.Namespace) -> int:
    """Run the study that the command line names; the exit status."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    book = Book(
        arguments.out / f"bnn-{arguments.study}.jsonl", arguments.resume, arguments.retry_failed
    )
    statuses = []
    for backend in backends_of(arguments.backend):
        if arguments.study == "toy":
            statuses.append(toy(book, backend, arguments))
            continue
        for _, data in datasets.there(arguments.sets or ["yacht"], protocol.load):
            if arguments.study == "matrices":
                statuses.append(matrices(book, data, backend, arguments))
            elif arguments.study == "particles":
                statuses.append(particles(book, data, backend, arguments))
            else:
                statuses.append(options(book, data, backend, arguments))
    return int(not statuses or any(statuses))


def variants(study: str) -> dict[str, Method]:
    """Methods of the study of curvature, or of that of kernels."""
    found = {}
    for system, words in SYSTEMS.items():
        if study == "curvature":
            for structure in STRUCTURES:
                found[f"SVN {structure}, {words}"] = Method(
                    "SVN", "Newton", NEWTON_SHARE, {"curvature": structure, "system": system}
                )
        else:
            for kernel in KERNELS:
                found[f"SVN {kernel}, {words}"] = Method(
                    "SVN", "Newton", NEWTON_SHARE, {"system": system}, kernel
                )
    if study == "kernels":
        found |= {f"SVGD {kernel}": Method("SVGD", kernel=kernel) for kernel in KERNELS[:2]}
    return found


def options(book: Book, data: datasets.Dataset, backend: str, arguments: argparse.Namespace) -> int:
    """SVN with each structure of curvature, or each kernel, by both systems."""
    chosen = variants(arguments.study)
    if arguments.methods:
        chosen |= {name: METHODS[name] for name in arguments.methods}
    budget = Budget.of(arguments, _particles(arguments))
    runs = protocol.compare(book, data, backend, chosen, budget)
    groups = report.grouped(runs)
    stem = f"bnn-{arguments.study}-{data.name}-{backend}"
    _write_table(arguments.out / f"{stem}.md", runs)
    report.plot_whole_runs(groups, arguments.out / f"{stem}.png")
    return int(all(run.failed for run in runs))


def _particles(arguments: argparse.Namespace, default: int = protocol.PARTICLES) -> int:
    return arguments.particles[0] if arguments.particles else default


def _write_table(path: Path, runs: list[Record]) -> None:
    failures = [f"{run.method} failed: {run.error}" for run in runs if run.failed]
    text = "\n".join([overview(runs, *report.SHOWN, by=("particles",)), *failures, ""])
    records.write_text(path, text)
    print(text)


def particles(
    book: Book, data: datasets.Dataset, backend: str, arguments: argparse.Namespace
) -> int:
    """Test NLL by the number of particles: the paper's Figure D.3."""
    names = arguments.methods or ["Ensemble", "SVGD", "SVN"]
    numbers = arguments.particles or NUMBERS
    runs: list[Record] = []
    for number in numbers:
        budget = Budget.of(arguments, number)
        methods = {name: METHODS[name] for name in names}
        runs += protocol.compare(book, data, backend, methods, budget)
    groups = report.grouped(runs)
    stem = f"bnn-particles-{data.name}-{backend}"
    _write_table(arguments.out / f"{stem}.md", runs)
    figure, axis = subplots(figsize=(4.6, 3.4))
    for name in names:
        own = {cell.particles: group for cell, group in groups.items() if cell.method == name}
        values = [[r.figures["at best"]["test NLL"] for r in group] for group in own.values()]
        means = [float(np.mean(value)) for value in values]
        errors = [report.standard_error(value) for value in values]
        axis.errorbar(list(own), means, np.nan_to_num(errors), marker="o", capsize=3, label=name)
    axis.set(xlabel="particles", ylabel="test NLL", title=f"{data.name} / {backend}")
    axis.grid(alpha=0.3)
    axis.legend()
    save(figure, arguments.out / f"{stem}.png")
    return int(all(run.failed for run in runs))


# -- the toy regression -----------------------------------------------------------------------


def toy_function(x: Floats) -> Floats:
    """The mean response."""
    return (x - 3.0) ** 3


def toy_rows() -> tuple[Rows, Floats, Split]:
    """Standardised rows, with the test inputs in their own units and the split as it is."""
    generator = np.random.default_rng(42)
    half = TOY_ROWS // 2

    def sample(number: int) -> tuple[Floats, Floats]:
        x = np.concatenate([generator.uniform(*ends, number) for ends in TOY_INTERVALS])
        return x[:, None], toy_function(x) + TOY_NOISE * generator.normal(size=len(x))

    x, y = sample(half)
    grid = np.linspace(*TOY_TEST, 200)
    plain = Split(x, y, grid[:, None], toy_function(grid))
    scaled = plain.standardised(response=True)
    validation = Split(x, y, *sample(half // 4)).standardised(response=True)
    parts = {
        "validation": (validation.x_test, validation.y_test),
        "test": (scaled.x_test, scaled.y_test),
    }
    rows = Rows("regression", scaled.x_train, scaled.y_train, parts, float(scaled.y_scale))
    return rows, grid, dataclasses.replace(plain, y_location=scaled.y_location)


def toy(book: Book, backend: str, arguments: argparse.Namespace) -> int:
    """Predictive means and bands of the methods on the cubic: the paper's Figure 3."""
    names = arguments.methods or ["Ensemble", "WGD", "SVGD", "SVN"]
    rows, grid, plain = toy_rows()
    budget = dataclasses.replace(
        Budget.of(arguments, _particles(arguments, TOY_PARTICLES)),
        epochs=arguments.epochs or TOY_EPOCHS,
    )
    drawn: dict[str, tuple[Floats, Floats]] = {}
    for name in names:
        method = METHODS[name]
        # SVN has more epochs than its share here: what is looked at is where methods end.
        epochs = max(1, round(budget.epochs_for(0) * min(1.0, 5.0 * method.epochs)))
        setting = protocol.setting_for(rows, method, budget, epochs)
        candidates = budget.candidates(method)
        candidate = candidates[len(candidates) // 2]
        settings: dict[str, Any] = {"split": 0, "candidate": candidate, "epochs": epochs}
        settings |= {
            "batch": setting.batch,
            "particles": setting.particles,
            "kernel": method.kernel,
        }
        record = Record("bnn toy", name, backend, "cubic", 0, settings)

        def work(
            record: Record,
            method: Method = method,
            setting: Any = setting,
            epochs: int = epochs,
            candidate: float = candidate,
        ) -> None:
            trainer = protocol.make_trainer(backend, method, setting)
            trainer.start(rows.x, rows.y, 0, candidate)
            trainer.advance(epochs * setting.steps_per_epoch)
            draws: Draws = trainer.draws()
            mean = network_output(draws, rows.parts["test"][0])
            noise = np.asarray(draws["noise"], np.float64)
            x, y = rows.parts["validation"]
            where_data = regression_figures(network_output(draws, x), noise, y, rows.scale)
            record.figures = {f"near data {key}": value for key, value in where_data.items()}
            # What each network predicts along the grid, for the picture.
            record.figures["means"] = mean * rows.scale + plain.y_location
            record.figures["noises"] = noise * rows.scale

        record = book.run(record, work, go_on_after=(Exception,))
        if record.failed:
            print(f"{name}: {record.error}")
            continue
        found = record.figures
        drawn[name] = np.asarray(found["means"]), np.asarray(found["noises"])
        print(f"{name}: NLL near data {found['near data NLL']:.3f}", flush=True)
    _plot_toy(drawn, grid, plain, arguments.out / f"bnn-toy-{backend}.png")
    return int(not drawn)


def _plot_toy(
    drawn: dict[str, tuple[Floats, Floats]], grid: Floats, plain: Split, path: Path
) -> None:
    if not drawn:
        return
    figure, axes = subplots(1, len(drawn), figsize=(3.6 * len(drawn), 3.2), sharey=True)
    for axis, (name, (means, noises)) in zip(np.atleast_1d(axes), drawn.items(), strict=True):
        middle = means.mean(axis=0)
        spread = np.sqrt(means.var(axis=0) + np.square(noises).mean())
        for width in (3, 2, 1):
            axis.fill_between(
                grid,
                middle - width * spread,
                middle + width * spread,
                color="tab:blue",
                alpha=0.18,
                lw=0,
            )
        axis.plot(grid, middle, color="navy", lw=1.5, label="mean")
        axis.plot(grid, plain.y_test, "k--", lw=1, label="truth")
        axis.plot(plain.x_train[:, 0], plain.y_train, "k.", ms=2, label="rows")
        axis.set(title=name, xlabel="x", ylim=(-45.0, 75.0))
        axis.grid(alpha=0.3)
    np.atleast_1d(axes)[0].legend(fontsize=7, loc="upper left")
    figure.suptitle("mean, and 1 to 3 standard deviations of networks and noise", fontsize=9)
    save(figure, path)


# -- the curvature along a run ----------------------------------------------------------------


def matrices(
    book: Book, data: datasets.Dataset, backend: str, arguments: argparse.Namespace
) -> int:
    """Curvature of every particle, and its mean, along a run: the paper's Figures D.4 to D.9."""
    rows = protocol.split_rows(data, 0)
    epochs = arguments.epochs or MATRIX_EPOCHS[-1]
    shown = [max(1, round(epoch * epochs / MATRIX_EPOCHS[-1])) for epoch in MATRIX_EPOCHS]
    budget = dataclasses.replace(
        Budget.of(arguments, _particles(arguments)),
        epochs=epochs,
        newton_batch=MATRIX_BATCH,
        hidden=MATRIX_HIDDEN,
    )
    method = dataclasses.replace(METHODS["SVN"], epochs=1.0)
    setting = protocol.setting_for(rows, method, budget, epochs)
    candidate = budget.dampings[len(budget.dampings) // 2]
    settings = {"split": 0, "candidate": candidate, "epochs": epochs, "batch": setting.batch}
    settings |= {"particles": setting.particles, "hidden": list(setting.hidden)}
    record = Record("bnn matrices", "SVN", backend, data.name, 0, settings)
    path = arguments.out / f"bnn-matrices-{data.name}-{backend}.png"

    def work(record: Record) -> None:
        trainer = protocol.make_trainer(backend, method, setting)
        assert isinstance(trainer, NewtonTrainer)
        trainer.start(rows.x, rows.y, 0, candidate)
        done, found = 0, []
        for epoch in shown:
            trainer.advance((epoch - done) * setting.steps_per_epoch)
            done = epoch
            slices, every = trainer.curvature()
            found.append(every)
        curvature = np.array(found)  # (epochs, P, D, D)
        mean = curvature.mean(axis=1)
        eigenvalues = np.linalg.eigvalsh(mean)
        x, y = rows.parts["test"]
        record.figures = {
            "epochs": shown,
            "sites": {name: [where.start, where.stop] for name, where in slices.items()},
            "trace of the mean": np.trace(mean, axis1=1, axis2=2),
            "largest eigenvalue of the mean": eigenvalues[:, -1],
            # The number of directions that the rows say something about.
            "participation ratio": eigenvalues.sum(1) ** 2 / np.square(eigenvalues).sum(1),
            "test": figures(rows.task, trainer.draws(), x, y, rows.scale),
        }
        _plot_matrices(curvature, shown, slices, path)

    record = book.run(record, work, go_on_after=(Exception,))
    if record.failed:
        print(f"{data.name}, {backend}: {record.error}")
        return 1
    for name in ("epochs", "trace of the mean", "participation ratio"):
        print(f"{name}: {np.round(np.asarray(record.figures[name], float), 3).tolist()}")
    return 0


def matrices_table(runs: list[Record]) -> str:
    """Size of the mean curvature along a run, and the directions that it lies in, for the page."""
    rows = []
    for run in runs:
        found = run.figures
        columns = ("epochs", "trace of the mean", "participation ratio")
        for epoch, trace, directions in zip(*(found[name] for name in columns), strict=True):
            rows.append(
                {
                    "epoch": epoch,
                    "trace of the mean": f"{trace:,.0f}",
                    "directions": f"{directions:.0f}",
                }
            )
    return records.markdown_table(rows)


def _plot_matrices(
    curvature: Floats, epochs: list[int], slices: dict[str, slice], path: Path
) -> None:
    from matplotlib.colors import SymLogNorm

    number = curvature.shape[1]
    mean = curvature.mean(axis=1, keepdims=True)
    every = np.concatenate([curvature, mean], axis=1)
    largest = float(np.abs(every).max())
    norm = SymLogNorm(linthresh=1e-4 * largest, vmin=-largest, vmax=largest)
    figure, axes = subplots(
        number + 1, len(epochs), figsize=(1.9 * len(epochs), 1.9 * (number + 1))
    )
    for row in range(number + 1):
        for column, epoch in enumerate(epochs):
            axis = axes[row, column]
            image = axis.imshow(
                every[column, row], norm=norm, cmap="RdBu_r", interpolation="nearest"
            )
            for where in slices.values():
                for line in (axis.axhline, axis.axvline):
                    line(where.stop - 0.5, color="black", lw=0.3)
            axis.set(xticks=[], yticks=[])
            if row == 0:
                axis.set_title(f"epoch {epoch}", fontsize=9)
            if column == 0:
                # Names of short sites would lie on each other.
                long = {name: w for name, w in slices.items() if w.stop - w.start > 3}
                middles = [(where.start + where.stop - 1) / 2 for where in long.values()]
                axis.set_yticks(middles, list(long), fontsize=6)
                axis.set_ylabel("mean" if row == number else f"particle {row + 1}", fontsize=9)
    # Powers of ten within the linear part would be written over each other.
    powers = 10.0 ** np.arange(np.ceil(np.log10(norm.linthresh)), np.log10(largest))
    figure.colorbar(image, ax=axes, shrink=0.4, ticks=[*-powers[::-1], 0.0, *powers])
    save(figure, path, dpi=110)
