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
from benchmarks.bnn import COMPARED, REGRESSION
from benchmarks.records import Record
from benchmarks.study import grid, save
from benchmarks.study import pyplot as pyplot

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
#: Figures of an overview.
SHOWN = (
    *("at best: epoch", "at best: test RMSE", "at best: test accuracy", "at best: test NLL"),
    *("at best: test paper's NLL", "at last: test NLL", "at last: seconds", "skipped"),
)


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


def mean_curve(runs: Sequence[Record], figure: str) -> NDArray[np.float64]:
    """Mean over runs of a figure along them."""
    found = np.array([run.figures["curves"][figure] for run in runs], np.float64)
    return np.asarray(found.mean(axis=0))


def first_at(curve: NDArray[np.float64], target: float) -> int | None:
    """Number of the first point at the target or below it; None where there is none."""
    reached = np.flatnonzero(curve <= target)
    return int(reached[0]) if len(reached) else None


def speed_rows(groups: Groups) -> list[dict[str, Any]]:
    """When `SVN` is where SVGD ends, for each regression set, and SVGD itself first.

    The ratio of processor seconds is that of SVGD's whole run to SVN's up to there, which other
    work on the machine does not lengthen. Where SVGD itself is there early, it went up again later,
    and its end says little.
    """
    rows = []
    for cell, slow in groups.items():
        fast = groups.get(cell._replace(method="SVN"))
        if cell.method != "SVGD" or cell.data not in REGRESSION or fast is None:
            continue
        target = float(np.mean([run.figures["at last"]["test NLL"] for run in slow]))
        own = first_at(mean_curve(slow, "test NLL"), target)
        at = first_at(mean_curve(fast, "test NLL"), target)
        row: dict[str, Any] = {"set": cell.data, "backend": cell.backend, "splits": len(fast)}
        epochs = mean_curve(slow, "epoch")
        row["SVGD first there"] = None if own is None else int(epochs[own])
        row["reached at"] = "never" if at is None else f"{int(mean_curve(fast, 'epoch')[at])}"
        if at is not None:
            whole, part = (mean_curve(runs, "processor seconds") for runs in (slow, fast))
            row["of processor seconds"] = float(whole[-1] / max(part[at], 1e-2))
        rows.append(row)
    return rows


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


# -- the page ---------------------------------------------------------------------------------

#: Methods as the page names them.
NAMES = {"SVGD": "`SVGD`", "SVN": "`SVN`", "WGD": "`WGD`", "Ensemble": "`DeepEnsemble`"}


def page_table(found: Iterable[Record]) -> str:
    """Test NLL after the last epoch, and when `SVN` is where `SVGD` ends, for the page."""
    groups = _compared(found)
    rows = {}
    for speed in speed_rows(groups):
        row = rows[speed["set"], speed["backend"]] = {"set": speed["set"].replace("_", " ")}
        row |= {"package": records.LABELS[speed["backend"]], "splits": speed["splits"]}
        row |= dict.fromkeys(NAMES.values())
        row["`SVN` reaches `SVGD`'s end at epoch"] = speed["reached at"]
        row["`SVGD` itself first"] = speed["SVGD first there"]
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
