"""Plots of the synthetic experiments, made from records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.records import LABELS as PACKAGES
from benchmarks.records import Record
from benchmarks.study import save, subplots
from benchmarks.synthetic.experiments import (
    FORWARD,
    Case,
    Experiment,
    Method,
    all_experiments,
)
from benchmarks.synthetic.report import of_mixtures
from benchmarks.synthetic.runs import PARAMETER_ERROR, STANDARD_ERROR, chosen_runs

#: Line and marker of a method; those of an ablation take colours in turn.
STYLES = {
    "Ours": ("C0", "o"),
    "Ours, regression": ("C2", "s"),
    "ADVI": ("C1", "^"),
    "GSM": ("C3", "v"),
    "BaM": ("C4", "D"),
    "Fisher": ("C5", "P"),
    "Score": ("C6", "X"),
}
#: Below this a distance is rounding.
FLOOR = 1e-12


def style_of(method: Method, place: int) -> tuple[str, str]:
    """Colour and marker of a method, the ``place``-th of its case."""
    return STYLES.get(method.name, (f"C{place}", "osv^DPX"[place % 7]))


def _over_seeds(chosen: Sequence[Record], measure: str) -> tuple[Any, Any]:
    """Evaluations (points,) and values (seeds, points), infinite where a run had failed.

    An estimate below its standard error, which may be negative, is shown at its standard error.
    """
    longest = max((record.figures.get("evaluations", []) for record in chosen), key=len)
    values = np.full((len(chosen), len(longest)), np.inf)
    for row, record in zip(values, chosen, strict=True):
        seen = np.asarray(record.figures.get(measure, []), float)
        if measure == FORWARD:
            seen = np.maximum(seen, record.figures.get(STANDARD_ERROR, []))
        row[: len(seen)] = seen
    values[np.isnan(values)] = np.inf
    return np.asarray(longest, float), values


def _curves(axis: Any, found: Sequence[Record], case: Case, measure: str) -> None:
    for place, method in enumerate(case.methods):
        chosen = chosen_runs(found, case, method)
        if not chosen:
            continue
        evaluations, values = _over_seeds(chosen, measure)
        kept = evaluations > 0
        if not kept.any():
            continue
        evaluations = evaluations[kept]
        values = np.maximum(values[:, kept], FLOOR)
        middle, low, high = (
            np.quantile(values, share, axis=0, method="higher") for share in (0.5, 0.0, 1.0)
        )
        middle, high = (np.where(np.isfinite(line), line, np.nan) for line in (middle, high))
        colour, marker = style_of(method, place)
        failed = sum(record.failed for record in chosen)
        label = method.name + (f" ({failed}/{len(chosen)} failed)" if failed else "")
        axis.plot(
            evaluations,
            middle,
            color=colour,
            marker=marker,
            markevery=max(1, len(evaluations) // 8),
            markersize=4,
            linewidth=1.4,
            label=label,
        )
        axis.fill_between(
            evaluations,
            np.where(np.isfinite(low), low, np.nan),
            high,
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    axis.set(xscale="log", yscale="log")
    axis.grid(alpha=0.3)


def trajectories(experiment: Experiment, found: Sequence[Record], path: Path) -> None:
    """Forward KL against score evaluations, a column for each case; median and range over seeds.

    Where the experiment's figure in the paper has one, a second row shows the error in (m, V).
    Values below 1e-12 are drawn there.
    """
    measures = [FORWARD, PARAMETER_ERROR] if experiment.name == "fig1" else [FORWARD]
    figure, axes = subplots(
        len(measures),
        len(experiment.cases),
        figsize=(4.2 * max(len(experiment.cases), 1.2), 3.4 * len(measures)),
        squeeze=False,
    )
    for row, measure in zip(axes, measures, strict=True):
        for axis, case in zip(row, experiment.cases, strict=True):
            _curves(axis, found, case, measure)
            axis.set_title(case.title, fontsize=10)
            for place, method in enumerate(case.methods):
                printed = dict(case.paper).get(method.name)
                if printed is not None and measure == FORWARD:
                    # The paper's final value, in the method's colour.
                    value, colour = float(printed.lstrip("< ")), style_of(method, place)[0]
                    axis.axhline(value, color=colour, linestyle=":", linewidth=1)
        row[0].set_ylabel({PARAMETER_ERROR: "error in (m, V)"}.get(measure, measure))
    for axis in axes[-1]:
        axis.set_xlabel("score evaluations")
    for axis in axes[0]:
        if axis.lines:
            axis.legend(fontsize=7)
    figure.suptitle(experiment.title, fontsize=11)
    save(figure, path)


def mixtures(found: Sequence[Record], path: Path) -> None:
    """The picture of the mixture targets on the page."""
    own = [record for record in of_mixtures(found) if record.backend == PACKAGES["numpyro"]]
    trajectories(all_experiments()["fig2"], own, path)
