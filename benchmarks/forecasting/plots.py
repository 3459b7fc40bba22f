"""Plots of the forecasting benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.forecasting.problem import Problem
from benchmarks.records import Record
from benchmarks.study import save, subplots

FIGURES = ("MSE", "MAE", "NLL")


def figures_by_series(cells: Sequence[Sequence[Record]], path: Path) -> None:
    """MSE, MAE and NLL of every method: one row of panels a series, points are seeds.

    A method's colour is the same in all panels; filled points are NumPyro's, open ones Pyro's. A
    method without a backend, which is no network, is a dashed line where it is near, and told in
    the title.
    """
    cells = [cell for cell in cells if not cell[0].failed]
    simple = [cell[0] for cell in cells if not cell[0].backend]
    cells = [cell for cell in cells if cell[0].backend]
    methods = list(dict.fromkeys(cell[0].method for cell in cells))
    series = list(dict.fromkeys(cell[0].model for cell in cells))
    figure, axes = subplots(
        max(1, len(series)),
        len(FIGURES),
        figsize=(4.2 * len(FIGURES), 0.6 + 2.0 * max(1, len(series))),
        squeeze=False,
    )
    for line, name in zip(axes, series, strict=False):
        present = [m for m in methods if any((c[0].model, c[0].method) == (name, m) for c in cells)]
        for axis, what in zip(line, FIGURES, strict=True):
            for cell in cells:
                first = cell[0]
                if first.model != name:
                    continue
                values = [record.figures[what] for record in cell if not record.failed]
                is_numpyro = first.backend == "NumPyro"
                at = present.index(first.method) + (-0.15 if is_numpyro else 0.15)
                colour = f"C{methods.index(first.method)}"
                axis.plot(
                    values,
                    [at] * len(values),
                    "o",
                    color=colour,
                    markersize=5,
                    markerfacecolor=colour if is_numpyro else "white",
                )
                axis.plot([np.mean(values)] * 2, [at - 0.13, at + 0.13], color=colour)
            title = f"{name}: test {what}"
            limits = axis.get_xlim()
            for record in (record for record in simple if record.model == name):
                title += f" ({record.method}: {record.figures[what]:.3f})"
                axis.axvline(record.figures[what], color="grey", linestyle="--", linewidth=1)
            # A line far away must not press the points together.
            axis.set_xlim(limits)
            axis.locator_params(axis="x", nbins=5)
            axis.set_yticks(range(len(present)), present if what == FIGURES[0] else [])
            axis.set_ylim(len(present) - 0.5, -0.5)
            axis.set_title(title, fontsize=10)
            axis.grid(axis="x", alpha=0.3)
    figure.supxlabel(
        "filled: NumPyro, open: Pyro, bar: mean over the seeds, dashed (where near): last value",
        fontsize=9,
    )
    save(figure, path)


def mixture_interval(
    draws: np.ndarray, variance: float, probability: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """Central interval of the mixture of Gaussians around the draws (S, ...), by simulation."""
    noise = np.random.default_rng(0).normal(size=(4000, *draws.shape)) * np.sqrt(variance)
    outcomes = (draws + noise).reshape(-1, *draws.shape[1:])
    low, high = np.quantile(outcomes, [(1 - probability) / 2, (1 + probability) / 2], axis=0)
    return low, high


def example_forecasts(
    problems: Mapping[str, Problem], cells: Sequence[Sequence[Record]], path: Path
) -> None:
    """The middle test window's last channel: what was seen, what came, and what was forecast.

    One row of panels a series, one column a method, of the first backend that has it.
    """
    chosen: dict[tuple[str, str], Record] = {}
    for cell in cells:
        if cell[0].backend and not cell[0].failed:
            chosen.setdefault((cell[0].model, cell[0].method), cell[0])
    names = [name for name in problems if any(key[0] == name for key in chosen)]
    columns = max((sum(key[0] == name for key in chosen) for name in names), default=1)
    figure, axes = subplots(
        max(1, len(names)),
        columns,
        figsize=(3.6 * columns, 0.6 + 2.3 * max(1, len(names))),
        squeeze=False,
        sharey="row",
    )
    for line, name in zip(axes, names, strict=False):
        problem = problems[name]
        middle = len(problem.x_test) // 2
        seen, came = problem.x_test[middle, :, -1], problem.y_test[middle, :, -1]
        before, after = np.arange(-len(seen), 0), np.arange(len(came))
        records = [record for key, record in chosen.items() if key[0] == name]
        for axis in line[len(records) :]:
            axis.set_visible(False)
        for axis, record in zip(line, records, strict=False):
            draws = np.asarray(record.figures["example"])
            low, high = mixture_interval(draws, record.figures["variance"])
            axis.fill_between(after, low, high, color="C0", alpha=0.25, label="90 % interval")
            axis.plot(after, draws.T, color="C0", linewidth=0.6, alpha=0.6)
            axis.plot(after, draws.mean(0), color="C0", label="forecast")
            axis.plot(before, seen, color="black", linewidth=1)
            axis.plot(after, came, color="C3", linewidth=1, label="what came")
            axis.axvline(-0.5, color="grey", linewidth=0.7, linestyle=":")
            axis.set_title(f"{record.method} ({record.backend})", fontsize=9)
        line[0].set_ylabel(f"{name}\n{problem.columns[-1]}", fontsize=9)
    axes[0, 0].legend(fontsize=7, loc="best")
    figure.supxlabel("time steps after the window", fontsize=9)
    save(figure, path)
