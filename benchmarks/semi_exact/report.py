"""Tables and plots of the study's records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.records import Record
from benchmarks.semi_exact.figures import FIGURES
from benchmarks.semi_exact.methods import (
    DEFAULT,
    EXACT,
    MARGINAL,
    METHODS,
    STRETCHED,
)
from benchmarks.study import save, subplots
from ppl_ext.kernels.rules import are_many

TITLES = {
    "covariance error": "relative error of the covariance",
    "mean error": "worst error of a mean, in deviations",
    "Kolmogorov": "worst Kolmogorov distance of a marginal",
    "sliced Wasserstein": "sliced Wasserstein distance",
}
#: Seeds that a cell of the page needs.
SEEDS = 10
#: Least values that are drawn.
FLOOR = {"covariance error": 1e-6, "mean error": 1e-7, "Kolmogorov": 0.01}


def values(runs: Sequence[Record], figure: str) -> list[float]:
    """A figure of all runs that did not fail; infinite where it is not a number."""
    found = [float(run.figures[figure]) for run in runs if not run.failed]
    return [value if np.isfinite(value) else np.inf for value in found]


#: Problems and methods of the table on the page, with their headings.
ON_PAGE = (
    *(f"Normal, {kind}, D = {dim}" for kind in ("independent", "correlated") for dim in (5, 50)),
    "Normal, correlated, D = 95",
    "Normal, ill-conditioned, D = 50",
    "kidscore_mom_work, P = 7",
    "arK, P = 140",
    "arK, P = 10",
    "logmesquite, P = 32",
    "banana",
    "two modes",
    "funnel",
    "Student t, D = 5",
    "log-gamma, D = 30",
    "eight schools",
    "eight schools, P = 64",
    "eight schools, P = 32",
)
HEADINGS = {
    DEFAULT: f"`{DEFAULT}`",
    MARGINAL: f"`{MARGINAL}`",
    "SemiExact(IMQ)": "`SemiExact(IMQ)`",
    EXACT: f"`{EXACT}`",
    STRETCHED: "`hierarchical_kernel()`",
    "RBF": "`RBF`",
    "Gaussian-SVGD": "`Linear`, Gaussian-SVGD",
}


_FIRST = {"target": "target", "default": "default"}


def _default(runs: Sequence[Record], problem: str) -> str:
    """The heading of the kernel that is the default for a problem's particles and dimensions."""
    settings = next(run.settings for run in runs if run.model == problem)
    many = are_many(settings["particles"], settings["dim"])
    return HEADINGS[STRETCHED if many else DEFAULT]


def page_table(runs: Sequence[Record]) -> str:
    """The table on the page: error of the covariance and of marginals, medians over ten seeds."""
    rows = []
    for problem in ON_PAGE:
        row = {"target": problem, "default": _default(runs, problem)}
        for method in HEADINGS:
            found = [
                run
                for run in runs
                if (run.backend, run.model, run.method) == ("numpyro", problem, method)
            ]
            if len(found) >= SEEDS:
                of_covariance, of_marginals = (
                    float(np.median(values(found, name)))
                    for name in ("covariance error", "Kolmogorov")
                )
                row[method] = f"{of_covariance:.2g} ({of_marginals:.3f})"
        rows.append(row)
    return records.markdown_table(rows, {**_FIRST, **HEADINGS})


BACKENDS = ("numpyro", "pyro")
#: Kernels that both packages run on shaped targets and posteriors, with their headings.
PACKAGES = {name: HEADINGS[name] for name in (DEFAULT, EXACT, STRETCHED)}

#: Kernels whose steps are compared, and the problems that they are compared on.
COMPARED = (DEFAULT, "SemiExact(IMQ)", EXACT)
TIMED = "Normal, correlated, D = "


def cost_table(runs: Sequence[Record]) -> str:
    """Milliseconds of a step in NumPyro on correlated Normals, by dimension.

    A whole run's time over its steps, as a median over seeds, of which the first compiles.
    """
    own = [
        run
        for run in runs
        if run.backend == "numpyro" and run.model.startswith(TIMED) and "P" not in run.model
    ]
    rows = []
    for model in sorted({run.model for run in own}, key=lambda name: int(name[len(TIMED) :])):
        row: dict[str, Any] = {"dimensions": model[len(TIMED) :]}
        # Timed where it is the default: other records are of a step that found features twice.
        stretched = _default(own, model) == HEADINGS[STRETCHED]
        for method in COMPARED + (STRETCHED,) * stretched:
            times = [
                1e3 * run.seconds / run.settings["steps"]
                for run in own
                if (run.model, run.method) == (model, method) and run.seconds and not run.failed
            ]
            row[HEADINGS[method]] = f"{np.median(times):.2g}" if len(times) >= SEEDS else "–"
        rows.append(row)
    names = {HEADINGS[method]: HEADINGS[method] for method in (*COMPARED, STRETCHED)}
    return records.markdown_table(rows, {"dimensions": "dimensions", **names})


def packages_table(runs: Sequence[Record]) -> str:
    """Shaped targets and posteriors in both packages, medians over seeds that all cells have."""
    own = [run for run in runs if run.settings["group"] != "Normal" and not run.failed]
    found = {(run.model, run.seed, run.method, run.backend): run for run in own}
    rows = []
    for model in dict.fromkeys(run.model for run in own):
        seeds = [
            seed
            for seed in sorted({run.seed or 0 for run in own})
            if all((model, seed, name, of) in found for name in PACKAGES for of in BACKENDS)
        ]
        row: dict[str, Any] = {"target": model, "seeds": len(seeds)}
        row["default"] = _default(own, model)
        for method in PACKAGES if seeds else ():
            cells = []
            for of in BACKENDS:
                chosen = [found[model, seed, method, of] for seed in seeds]
                error, distance = (
                    float(np.median(values(chosen, name)))
                    for name in ("covariance error", "Kolmogorov")
                )
                cells.append(f"{error:.2g} ({distance:.3f})")
            row[method] = ", ".join(cells)
        if seeds:
            rows.append(row)
    return records.markdown_table(rows, {**_FIRST, **PACKAGES, "seeds": "seeds"})


def _methods(runs: Sequence[Record]) -> list[str]:
    present = {run.method for run in runs}
    return [name for name in METHODS if name in present]


STYLES = ("o-", "D-", "s-", "v-", "^-", "P-", "X-", "s--", "v--", "^--", "X--", "o--", "D--")
COLOURS = ("C0", "C4", "C1", "C2", "C3", "C7", "C5", "C1", "C2", "C3", "C5", "C6", "C9")


def _look(method: str) -> dict[str, object]:
    index = list(METHODS).index(method)
    return {
        "color": COLOURS[index],
        "marker": STYLES[index][0],
        "linestyle": STYLES[index][1:],
        "linewidth": 2.5 if method in (MARGINAL, EXACT) else 1.2,
        "markersize": 7 if method in (MARGINAL, EXACT) else 5,
        "alpha": 0.85,
    }


def picture(runs: Sequence[Record], path: Path) -> None:
    """The picture on the page: Normals, by NumPyro."""
    shown = ("numpyro", "Normal")
    own = [run for run in runs if (run.backend, run.settings["group"]) == shown]
    if own:
        _plot_ratios(own, path)


def _plot_ratios(runs: Sequence[Record], path: Path) -> None:
    """Medians over seeds by the ratio of dimensions to particles, a column for each family."""
    families = list(dict.fromkeys(run.settings["family"] for run in runs))
    figure, axes = subplots(
        len(FIGURES),
        len(families),
        figsize=(3.6 * len(families) + 1.0, 2.6 * len(FIGURES) + 1.2),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for column, family in enumerate(families):
        for row, name in enumerate(FIGURES):
            axis = axes[row][column]
            for method in _methods(runs):
                own = [r for r in runs if (r.settings["family"], r.method) == (family, method)]
                ratios = sorted({r.settings["ratio"] for r in own if not r.failed})
                heights = [
                    np.median(values([r for r in own if r.settings["ratio"] == ratio], name))
                    for ratio in ratios
                ]
                shown = np.maximum(heights, FLOOR.get(name, 0.0))
                axis.plot(ratios, shown, label=method, **_look(method))
            axis.set_yscale("log")
            axis.grid(alpha=0.3)
            if row == 0:
                axis.set_title(family, fontsize=10)
            if column == 0:
                axis.set_ylabel(TITLES[name].replace(", ", ",\n").replace(" of ", "\nof "))
        axes[-1][column].set_xlabel("dimensions / particles")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save(figure, path, dpi=110)
