"""All fits, what is compared, the table and the picture."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ks_2samp

from benchmarks import records
from benchmarks.implicit.fits import Floats, fit, flat
from benchmarks.records import Record
from benchmarks.study import Study, backends_of, save, subplots
from benchmarks.trust.pathology import Pathology
from benchmarks.trust.planted.modes import two_modes
from benchmarks.trust.planted.shapes import banana, ring
from ppl_ext.implicit.samplers import PushForward, Sampler, SemiImplicit, UnrolledSGLD

#: Draws of a fit, and exact ones that they are compared with.
DRAWS = 4000
#: The 0.1 % point of the Kolmogorov-Smirnov statistic of two samples of so many draws.
NOISE = 1.95 * float(np.sqrt(2.0 / DRAWS))
#: Draws of the first seed that are kept for the picture.
SHOWN = 400

PROBLEMS: dict[str, Pathology] = {
    "two modes": two_modes(2, 6.0, 0.3),
    "ring": ring(2, 2.0, 0.3),
    "banana": banana(0.5, 0.5),
}


@dataclass(frozen=True)
class Case:
    """A fit: of which problem, by what, from where and for how long."""

    problem: str
    sampler: Sampler
    label: str
    start: str | None = None
    steps: int = 2000


CASES = (
    Case("two modes", PushForward(), "PushForward()"),
    Case("two modes", SemiImplicit(), "SemiImplicit()"),
    Case("two modes", UnrolledSGLD(), "UnrolledSGLD()"),
    Case("ring", PushForward(), "PushForward()", "host"),
    Case("ring", SemiImplicit(), "SemiImplicit()", "host"),
    Case("ring", UnrolledSGLD(), "UnrolledSGLD()", "host"),
    Case("banana", PushForward(), "PushForward()"),
    Case("banana", SemiImplicit(), "SemiImplicit()"),
    Case("banana", UnrolledSGLD(20), "UnrolledSGLD(20)", "host", 3000),
    # From the search's Normal, which is too narrow along the banana.
    Case("banana", UnrolledSGLD(20), "UnrolledSGLD(20)", None, 3000),
)


def run(arguments: argparse.Namespace) -> int:
    """Fit all cases; the exit status."""
    study = Study("implicit", arguments.out)
    for backend in backends_of(arguments.backend):
        for case in CASES:
            steps = max(case.steps // 100, 1) if arguments.small else case.steps
            settings = {"steps": steps, "start": case.start or "search", "draws": DRAWS}
            for seed in range(arguments.seeds):
                work = partial(_fitted, backend, case, seed, steps)
                study.run(case.label, backend, case.problem, seed, settings, work)
    return study.report(f"# Guides without a density\n\n{page_table(study.runs)}", plot)


def _fitted(backend: str, case: Case, seed: int, steps: int) -> dict[str, Any]:
    """Figures of a fit, and of the first seed some draws for the picture."""
    problem = PROBLEMS[case.problem]
    draws = fit(backend, problem, case.sampler, case.start, steps, seed, DRAWS)
    figures = compared(draws, flat(problem.draws(DRAWS), problem.dim))
    return figures | ({"some draws": np.round(draws[:SHOWN], 3)} if seed == 0 else {})


def compared(draws: Floats, exact: Floats) -> dict[str, Any]:
    """Statistics of both coordinates and of the radius, ratios of deviations, and a share.

    The share is that of draws whose first coordinate is below zero, which is the left of two modes.
    """
    statistics = [float(ks_2samp(a, b).statistic) for a, b in zip(draws.T, exact.T, strict=True)]
    radii = [np.square(each).sum(1) for each in (draws, exact)]
    return {
        "statistics": statistics,
        "worst statistic": max(statistics),
        "statistic of the radius": float(ks_2samp(*radii).statistic),
        "ratios of deviations": (draws.std(0) / exact.std(0)).tolist(),
        "share on the left": float((draws[:, 0] < 0.0).mean()),
    }


def page_table(found: Sequence[Record]) -> str:
    """The worst statistic of a marginal and the ratio of deviations of the first coordinate."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for each in found:
        key = (each.model, each.method, each.settings["start"])
        row = rows.setdefault(
            key, {"posterior": each.model, "sampler": f"`{each.method}`", "start": key[2]}
        )
        name = records.LABELS[each.backend]
        runs = [
            run.figures
            for run in found
            if (run.backend, run.model, run.method, run.settings["start"]) == (each.backend, *key)
            and not run.failed
        ]
        if not runs:
            row[name] = row[f"{name}, deviation"] = "failed"
            continue
        worst = float(np.median([figures["worst statistic"] for figures in runs]))
        ratio = float(np.median([figures["ratios of deviations"][0] for figures in runs]))
        row[name] = f"**{worst:.3f}**" if worst < NOISE else f"{worst:.3f}"
        row[f"{name}, deviation"] = f"{ratio:.2f}"
    return records.markdown_table(list(rows.values()))


def plot(found: Sequence[Record], path: Path) -> None:
    """Draws of each sampler in the first package that ran, over exact ones in grey."""
    kept = [each for each in found if each.seed == 0 and not each.failed]
    kept = [each for each in kept if each.backend == kept[0].backend]
    names = [name for name in PROBLEMS if any(each.model == name for each in kept)]
    columns = max(sum(each.model == name for each in kept) for name in names)
    figure, axes = subplots(
        len(names), columns, figsize=(2.6 * columns, 2.7 * len(names)), squeeze=False
    )
    for line, name in zip(axes, names, strict=True):
        exact = flat(PROBLEMS[name].draws(2 * SHOWN), 2)
        runs = [each for each in kept if each.model == name]
        for axis in line[len(runs) :]:
            axis.set_visible(False)
        for axis, each in zip(line, runs, strict=False):
            draws = np.asarray(each.figures["some draws"])
            axis.scatter(*exact.T, s=5, color="0.8", linewidths=0)
            axis.scatter(*draws.T, s=5, color="tab:blue", linewidths=0)
            axis.set_title(f"{name}\n{each.method}, start: {each.settings['start']}", fontsize=8)
            axis.tick_params(labelsize=7)
            # The same window for all samplers; what lies outside is cut.
            low, high = exact.min(0) - 0.5, exact.max(0) + 0.5
            axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    save(figure, path)
