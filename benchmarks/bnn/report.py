"""Tables and plots of the records of the networks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import records
from benchmarks.bnn import CLASSIFICATION, COMPARED, REGRESSION
from benchmarks.bnn.methods import METHODS, NEWTON_SHARE
from benchmarks.datasets import Task
from benchmarks.records import Record
from benchmarks.study import grid, save
from benchmarks.study import pyplot as pyplot

REGRESSION_FIGURES = ("RMSE", "NLL", "paper's NLL", "noise")
CLASSIFICATION_FIGURES = ("accuracy", "NLL", "paper's NLL", "ECE", "Brier", "AUROC")
#: Table C.2 of the paper: its NLL of Ensemble, WGD, SVGD and SVN, in original units. Its wine is
#: the red one, its energy the heating load without further features as far as its text tells.
PUBLISHED = {
    "yacht": (1.51, 0.66, 1.10, -0.36),
    "energy": (3.44, 6.45, 2.90, 1.48),
    "concrete": (7.01, 9.13, 7.66, 4.77),
    "wine_red": (12.24, 13.69, 14.29, 0.39),
    "kin8nm": (1.07, 1.35, 4.14, -1.27),
    "power_plant": (17.42, 66.57, 14.56, 3.36),
    "naval": (-5.17, -4.93, -5.37, -5.38),
    "protein": (18.69, 22.77, 20.83, 3.24),
}
#: Of the page's tables.
PARTICLES = 5
#: Epochs of the pictures of the first ones.
FIRST_EPOCHS = 20


def figures_of(task: Task) -> tuple[str, ...]:
    """Names of the test figures of a table."""
    return REGRESSION_FIGURES if task == "regression" else CLASSIFICATION_FIGURES


class Cell(NamedTuple):
    """What runs over splits share."""

    data: str
    backend: str
    particles: int
    method: str


Groups = dict[Cell, list[Record]]


def grouped(runs: Iterable[Record]) -> Groups:
    """Runs that did not fail, by what they share."""
    groups: Groups = {}
    for run in runs:
        if not run.failed:
            cell = Cell(run.model, run.backend, run.settings["particles"], run.method)
            groups.setdefault(cell, []).append(run)
    return groups


def chosen(runs: Iterable[Record]) -> list[Record]:
    """Runs at the candidates that validation chose, and failed ones, out of all that are recorded.

    Where a method was run with several settings, those of its last run count.
    """
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for run in runs:
        key = run.model, run.backend, run.settings["particles"], run.method
        cells.setdefault(key, []).append(run)
    found = []
    for records_of in cells.values():
        last = _kind(records_of[-1])
        own = [run for run in records_of if _kind(run) == last]
        found += [run for run in own if run.failed]
        own = [run for run in own if not run.failed]
        if not own:
            continue
        first = min(run.settings["split"] for run in own)
        searched = [run for run in own if run.settings["split"] == first]
        best = min(searched, key=lambda run: float(run.figures["validation"]))
        candidate = best.settings["candidate"]
        by_number = {
            run.settings["split"]: run for run in own if run.settings["candidate"] == candidate
        }
        found += [by_number[number] for number in sorted(by_number)]
    return found


def _kind(run: Record) -> str:
    settings = {
        name: value for name, value in run.settings.items() if name not in ("split", "candidate")
    }
    return json.dumps(settings, sort_keys=True)


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; NaN for a single value."""
    numbers = np.asarray(values, np.float64)
    if len(numbers) < 2:
        return math.nan
    return float(numbers.std(ddof=1) / math.sqrt(len(numbers)))


def shown(values: Sequence[float], digits: int = 4) -> str:
    """Mean, and standard error where there are several."""
    error = standard_error(values)
    mean = f"{float(np.mean(values)):.{digits}g}"
    return mean if math.isnan(error) else f"{mean} ± {error:.2g}"


def write(runs: Sequence[Record], out: Path) -> None:
    """Write bnn.md and the plots."""
    groups = grouped(runs)
    failures = [
        f"- {run.method} on {run.model}, {run.backend}, split {run.settings['split']}, candidate "
        f"{run.settings['candidate']:g}, failed: {run.error}"
        for run in runs
        if run.failed
    ]
    parts = ["# Bayesian neural networks", "", INTRODUCTION, ""]
    for title, names, figures in (
        ("Regression", REGRESSION, REGRESSION_FIGURES),
        ("Classification", CLASSIFICATION, CLASSIFICATION_FIGURES),
    ):
        own = {cell: group for cell, group in groups.items() if cell.data in names}
        if own:
            parts += [f"## {title}", "", records.markdown_table(figure_rows(own, figures)), ""]
    overview = overview_rows(groups)
    if overview:
        parts += ["## Test NLL of all methods", "", OVERVIEW, ""]
        parts += [records.markdown_table(overview, digits=4), ""]
    speed = speed_rows(groups)
    if speed:
        parts += ["## Epochs to the final test NLL of SVGD", "", SPEED, ""]
        parts += [records.markdown_table(speed), "", speed_summary(speed), ""]
    ranks = rank_rows(groups)
    if ranks:
        parts += ["## Best or tied test NLL", "", RANKS, "", records.markdown_table(ranks), ""]
        parts += [rank_summary(ranks), ""]
    if failures:
        parts += ["## Failures", "", *failures, ""]
    records.write_text(out / "bnn.md", "\n".join(parts))
    plot_first_epochs(groups, out)
    plot_whole_runs(groups, out / "test-nll.png")


INTRODUCTION = (
    "Made by `python -m benchmarks bnn`. Mean and standard error over splits, in original units, "
    'at the epoch with the best validation NLL; "last NLL" is that after the last epoch. NLL is '
    'that of the mixture over networks with the noise that each has learnt. "paper\'s NLL" is '
    "that of Flöge et al.: for regression of a Normal with the variance of the networks' means "
    "alone, without noise and without log(2 pi) / 2; for classification that of the mean logit. "
    "Seconds are those of the steps of a whole run; compiling is apart. P is the number of "
    "particles or chains. What has none is fitted once, and drawn in the pictures of the first "
    "number alone: of a guide, a Gaussian or a network with dropout there are 50 draws, and the "
    "chains of SGLD give as many along the last half of their run. The published column is "
    "the paper's NLL of its Table C.2, on other splits."
)
OVERVIEW = (
    "Mean over splits at the epoch with the best validation NLL. Standard errors are above, and "
    "the number of splits, which may still differ while a study goes on."
)
SPEED = (
    "Target: the test NLL of SVGD after its last epoch, and, in brackets, at its best epoch in "
    'validation; means over splits. "reached at" is the first epoch at which the mean curve is '
    'at the target or below it, "within one error" the first at most one standard error above. '
    "The ratio of seconds is that of SVGD's whole run to SVN's up to there, by the wall clock and "
    'of the processor, which other work on the machine does not lengthen. "SVGD first there" is '
    "where SVGD's own mean curve first is at its final NLL: where that is early, it went up again "
    "later, and the target says little. The ratio of the same name counts SVGD up to there."
)
RANKS = (
    "A method is tied with the best one where the mean of the differences, split by split, is at "
    "most their standard error."
)


def _particles(cell: Cell) -> int | None:
    """The number of particles, of a method that has some."""
    method = METHODS.get(cell.method)
    return cell.particles if method is None or method.has_particles else None


def figure_rows(groups: Groups, figures: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each method on each set."""
    rows = []
    for cell, runs in groups.items():
        row: dict[str, Any] = {"set": cell.data, "method": cell.method}
        row |= {"backend": cell.backend, "P": _particles(cell), "splits": len(runs)}
        row["chosen"] = f"{runs[0].settings['candidate']:g}"
        row["epochs"] = runs[0].settings["epochs"]
        row["best epoch"] = shown([run.figures["at best"]["epoch"] for run in runs])
        for figure in figures:
            row[figure] = shown([run.figures["at best"][f"test {figure}"] for run in runs])
        row["last NLL"] = shown([run.figures["at last"]["test NLL"] for run in runs])
        if cell.data in PUBLISHED and cell.method in COMPARED:
            row["published"] = PUBLISHED[cell.data][COMPARED.index(cell.method)]
        row["seconds"] = float(np.mean([run.figures["at last"]["seconds"] for run in runs]))
        row["compiling"] = float(runs[0].figures["compiling seconds"])
        skipped = sum(run.figures.get("skipped", 0.0) for run in runs)
        if skipped:
            row["steps skipped"] = int(skipped)
        rows.append(row)
    return rows


def overview_rows(groups: Groups) -> list[dict[str, Any]]:
    """One row for each method, with its test NLL on each set."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell, runs in groups.items():
        particles = _particles(cell)
        key = cell.method, cell.backend, particles
        row = rows.setdefault(key, {"method": cell.method, "backend": cell.backend, "P": particles})
        row[cell.data] = float(np.mean([run.figures["at best"]["test NLL"] for run in runs]))
    return [rows[key] for key in sorted(rows, key=lambda key: (key[1], key[2] or 0))]


def mean_curve(runs: Sequence[Record], figure: str) -> NDArray[np.float64]:
    """Mean over runs of a figure along them."""
    found = np.array([run.figures["curves"][figure] for run in runs], np.float64)
    return np.asarray(found.mean(axis=0))


def first_at(curve: NDArray[np.float64], target: float) -> int | None:
    """Number of the first point at the target or below it; None where there is none."""
    reached = np.flatnonzero(curve <= target)
    return int(reached[0]) if len(reached) else None


def speed_rows(groups: Groups) -> list[dict[str, Any]]:
    """How soon Newton methods are where SVGD ends, for each regression set."""
    rows = []
    for cell, slow in groups.items():
        if cell.method != "SVGD" or cell.data not in REGRESSION:
            continue
        final = [run.figures["at last"]["test NLL"] for run in slow]
        best = float(np.mean([run.figures["at best"]["test NLL"] for run in slow]))
        target = float(np.mean(final))
        error = standard_error(final)
        slow_seconds, slow_epochs = mean_curve(slow, "seconds"), mean_curve(slow, "epoch")
        own = first_at(mean_curve(slow, "test NLL"), target)
        for other, fast in groups.items():
            if other._replace(method="SVGD") != cell or "SVN" not in other.method:
                continue
            row: dict[str, Any] = {"set": cell.data, "method": other.method}
            row |= {"backend": cell.backend, "P": cell.particles, "splits": len(fast)}
            row["target"] = f"{shown(final)} ({best:.4g})"
            row["SVGD's epochs"] = int(slow_epochs[-1])
            row["SVGD first there"] = None if own is None else int(slow_epochs[own])
            curve, epochs = mean_curve(fast, "test NLL"), mean_curve(fast, "epoch")
            seconds = mean_curve(fast, "seconds")
            at = first_at(curve, target)
            near = None if math.isnan(error) else first_at(curve, target + error)
            of_best = first_at(curve, best)
            row["lowest NLL"] = float(curve.min())
            for name, found in (
                ("reached at", at),
                ("within one error", near),
                ("best reached at", of_best),
            ):
                row[name] = "never" if found is None else f"{int(epochs[found])}"
            if at is None:
                row["in 1/20"] = "no"
            else:
                enough = epochs[at] <= NEWTON_SHARE * slow_epochs[-1] + 1e-9
                row["in 1/20"] = "yes" if enough else "no"
                row["ratio of seconds"] = float(slow_seconds[-1] / seconds[at])
                processor = mean_curve(fast, "processor seconds")[at]
                row["of processor seconds"] = float(
                    mean_curve(slow, "processor seconds")[-1] / max(processor, 1e-2)
                )
                if own is not None:
                    row["SVGD first there, ratio"] = float(slow_seconds[own] / seconds[at])
            row["seconds an epoch, ratio"] = float(
                (seconds[-1] / epochs[-1]) / (slow_seconds[-1] / slow_epochs[-1])
            )
            rows.append(row)
    return rows


def speed_summary(rows: Sequence[dict[str, Any]]) -> str:
    """On how many sets each method is there in a twentieth of the epochs."""
    lines = []
    for key in dict.fromkeys((row["method"], row["backend"], row["P"]) for row in rows):
        # Steps fall to nothing at the end of a run, so that longer ones say nothing about this.
        if key[0] not in METHODS or METHODS[key[0]].epochs > NEWTON_SHARE:
            continue
        own = [row for row in rows if (row["method"], row["backend"], row["P"]) == key]
        there = sum(row["in 1/20"] == "yes" for row in own)
        lines.append(
            f"{key[0]} ({key[1]}, P = {key[2]}) reaches SVGD's final test NLL in at most 1/20 of "
            f"its epochs on {there} of {len(own)} sets."
        )
    return "\n\n".join(lines)


def rank_rows(groups: Groups) -> list[dict[str, Any]]:
    """Best and tied methods among the four of the paper, for each regression set."""
    rows = []
    for key in dict.fromkeys(cell[:3] for cell in groups):
        if key[0] not in REGRESSION:
            continue
        found = {name: groups[Cell(*key, name)] for name in COMPARED if Cell(*key, name) in groups}
        if len(found) < 2:
            continue
        values = {name: by_split(runs) for name, runs in found.items()}
        shared = sorted(set.intersection(*(set(value) for value in values.values())))
        if not shared:
            continue
        table = {name: np.array([value[s] for s in shared]) for name, value in values.items()}
        best = min(table, key=lambda name: float(table[name].mean()))
        row: dict[str, Any] = {"set": key[0], "backend": key[1], "P": key[2]}
        row |= {"splits": len(shared), "best": best}
        row["tied"] = ", ".join(
            name for name in table if name != best and tied(table[name] - table[best])
        )
        row |= {name: shown(value.tolist()) for name, value in table.items()}
        rows.append(row)
    return rows


def by_split(runs: Sequence[Record]) -> dict[int, float]:
    """Test NLL at the best epoch by the number of the split."""
    return {int(run.settings["split"]): run.figures["at best"]["test NLL"] for run in runs}


def tied(differences: NDArray[np.float64]) -> bool:
    """Whether a mean difference to the best is within its standard error."""
    error = standard_error(differences.tolist())
    return bool(differences.mean() <= (0.0 if math.isnan(error) else error))


def rank_summary(rows: Sequence[dict[str, Any]]) -> str:
    """On how many sets each method is the best, or tied with it."""
    lines = []
    for key in dict.fromkeys((row["backend"], row["P"]) for row in rows):
        own = [row for row in rows if (row["backend"], row["P"]) == key]
        wins = {
            name: sum(name == row["best"] or name in row["tied"].split(", ") for row in own)
            for name in COMPARED
        }
        text = ", ".join(f"{name} {number}" for name, number in wins.items())
        lines.append(f"Best or tied, of {len(own)} sets ({key[0]}, P = {key[1]}): {text}.")
    return "\n\n".join(lines)


# -- the page ---------------------------------------------------------------------------------

#: Methods as the page names them.
NAMES = {"SVGD": "`SVGD`", "SVN": "`SVN`", "WGD": "`WGD`", "Ensemble": "`DeepEnsemble`"}


def page_table(found: Iterable[Record]) -> str:
    """Test NLL after the last epoch, and when `SVN` is where `SVGD` ends, for the page."""
    groups = _compared(found)
    rows = {}
    for speed in speed_rows(groups):
        if speed["method"] == "SVN":
            row = rows[speed["set"], speed["backend"]] = {"set": speed["set"].replace("_", " ")}
            row |= {"package": records.LABELS[speed["backend"]], "splits": speed["splits"]}
            row |= dict.fromkeys(NAMES.values())
            own, first = speed["reached at"], speed["SVGD first there"]
            row["`SVN` reaches `SVGD`'s end at epoch"] = own
            row["`SVGD` itself first"] = first
            row["processor time of `SVGD` over `SVN`'s"] = speed.get("of processor seconds")
    for cell, runs in groups.items():
        if (cell.data, cell.backend) in rows:
            last = [run.figures["at last"]["test NLL"] for run in runs]
            rows[cell.data, cell.backend][NAMES[cell.method]] = shown(last, 3)
    return records.markdown_table(list(rows.values()))


def _compared(found: Iterable[Record]) -> Groups:
    """The four methods of the paper with its number of particles."""
    own = (run for run in found if run.benchmark == "bnn" and run.method in NAMES)
    return grouped(chosen(run for run in own if run.settings["particles"] == PARTICLES))


def best_table(found: Iterable[Record]) -> str:
    """Test NLL at the epoch with the best validation NLL, for the page."""
    rows = []
    for row in rank_rows(_compared(found)):
        kept = {"set": row["set"].replace("_", " "), "package": records.LABELS[row["backend"]]}
        rows.append(kept | {NAMES[name]: row.get(name) for name in NAMES})
        rows[-1]["best or tied"] = ", ".join(
            NAMES[name] for name in [row["best"], *filter(None, row["tied"].split(", "))]
        )
    return records.markdown_table(rows)


def picture(found: Iterable[Record], path: Path) -> None:
    """Test NLL of whole runs by epoch, for the page."""
    plot_whole_runs(_compared(found), path)


# -- plots ------------------------------------------------------------------------------------


def _panels(groups: Groups) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(cell[:3] for cell in groups))


def _colors(groups: Groups) -> dict[str, Any]:
    methods = dict.fromkeys(cell.method for cell in groups)
    colors = pyplot().get_cmap("tab20" if len(methods) > 10 else "tab10").colors
    return dict(zip(methods, colors, strict=False))


def plot_first_epochs(groups: Groups, out: Path) -> None:
    """Validation NLL of the first epochs, by epoch and by second: the paper's Figure 5."""
    # Those that are judged after every epoch.
    drawn = {
        cell: runs
        for cell, runs in groups.items()
        if "Laplace" not in cell.method and cell.method != "SVN, 5 times"
    }
    panels = _panels(drawn)
    if not panels:
        return
    colors = _colors(drawn)
    for by, name in (("epoch", "validation-by-epoch.png"), ("seconds", "validation-by-second.png")):
        figure, axes = grid(len(panels))
        for axis, panel in zip(axes.flat, panels, strict=False):
            lowest, highest = np.inf, -np.inf
            for cell, runs in drawn.items():
                if cell[:3] != panel:
                    continue
                first = mean_curve(runs, "epoch") <= FIRST_EPOCHS
                values = mean_curve(runs, "validation NLL")[first]
                x = mean_curve(runs, by)[first]
                axis.plot(x, values, "o-", ms=2.5, lw=1.2, color=colors[cell.method])
                values = values[np.isfinite(values)]
                if len(values):
                    lowest = min(lowest, values.min())
                    # A start far off would hide all others.
                    highest = max(highest, np.median(values), values[-1])
            if np.isfinite([lowest, highest]).all():
                room = 0.25 * max(highest - lowest, 1e-3)
                axis.set_ylim(lowest - room, highest + 2.0 * room)
            if by == "seconds":
                axis.set_xscale("log")
            axis.set(title=_title(panel), xlabel="epoch" if by == "epoch" else "seconds")
            axis.grid(alpha=0.3)
        axes[0][0].set_ylabel("validation NLL")
        _legend(figure, colors)
        save(figure, out / name)


def plot_whole_runs(groups: Groups, path: Path) -> None:
    """Test NLL of the whole runs by epoch, on logarithmic axes."""
    panels = _panels(groups)
    if not panels:
        return
    colors = _colors(groups)
    figure, axes = grid(len(panels))
    for axis, panel in zip(axes.flat, panels, strict=False):
        lowest, highest = np.inf, -np.inf
        for cell, runs in groups.items():
            if cell[:3] != panel:
                continue
            x, values = mean_curve(runs, "epoch"), mean_curve(runs, "test NLL")
            axis.plot(x, values, lw=1.3, color=colors[cell.method])
            axis.plot(x[-1], values[-1], "o", ms=4, color=colors[cell.method])
            values = values[np.isfinite(values)]
            if len(values):
                # Not the first epochs, beside which all that follows would look the same.
                lowest = min(lowest, values.min())
                highest = max(highest, values[-1], np.quantile(values, 0.8))
        if np.isfinite([lowest, highest]).all():
            room = 0.1 * max(highest - lowest, 1e-3)
            axis.set_ylim(lowest - room, highest + room)
        axis.set(title=_title(panel), xlabel="epoch", xscale="log")
        axis.grid(alpha=0.3, which="both")
    axes[0][0].set_ylabel("test NLL")
    _legend(figure, colors)
    save(figure, path)


def _title(panel: Sequence[Any]) -> str:
    name, backend, particles = panel
    return f"{name} / {backend} / P = {particles}"


def _legend(figure: Any, colors: dict[str, Any]) -> None:
    handles = [pyplot().Line2D([], [], color=color, label=name) for name, color in colors.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8)
