"""All runs of the kernel comparison, and the table and plot of their records."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.kernels.fits import KERNELS, PARTICLES, RATE, fit, judge, reference
from benchmarks.kernels.targets import Target, make_targets
from benchmarks.study import Study, backends_of, save, subplots

FIGURES = ("mean error", "least variance ratio", "greatest variance ratio", "covariance error")


def run(arguments: argparse.Namespace) -> int:
    """Fit every target with every kernel; the exit status."""
    targets = make_targets()
    chosen, kernels = arguments.targets or list(targets), arguments.kernels or list(KERNELS)
    for given, known, what in (
        (chosen, list(targets), "targets"),
        (kernels, list(KERNELS), "kernels"),
    ):
        unknown = sorted(set(given) - set(known))
        if unknown:
            print(f"Expected {what} among {known}, found {unknown}.")
            return 2
    study = Study("kernels", arguments.out)
    for name in chosen:
        _run_target(study, targets[name], backends_of(arguments.backend), kernels, arguments.seeds)
    return study.report(study.overview(*FIGURES), picture)


def _run_target(
    study: Study, target: Target, backends: Sequence[str], kernels: list[str], seeds: int
) -> None:
    moments: list[Any] = []

    def referred() -> dict[str, float]:
        *moments[:], figures = reference(target)
        return figures

    study.run("reference", "numpyro", target.name, None, {}, referred, go_on_after=())
    settings = {"particles": PARTICLES, "steps": target.steps, "rate": RATE}
    for backend in backends:
        for kernel in kernels:
            for seed in range(seeds):

                def fitted(backend: str = backend, kernel: str = kernel, seed: int = seed) -> Any:
                    return judge(target, fit(target, backend, kernel, seed), *moments)

                study.run(kernel, backend, target.name, seed, settings, fitted)


def _medians(runs: Sequence[records.Record], target: str, kernel: str) -> Mapping[str, float]:
    """Median of each figure over seeds and backends; empty where every run failed."""
    found = [r.figures for r in runs if (r.model, r.method) == (target, kernel) and not r.failed]
    if not found:
        return {}
    return {name: float(np.median([figures[name] for figures in found])) for name in FIGURES}


#: Kernels of the table on the page.
ON_PAGE = (
    "default",
    "IMQ, variance + linear",
    "RBF, median",
    "RBF, median + linear",
    "IMQ, variance",
    "RBF, variance + linear",
    "IMQ, covariance + linear",
)


def page_table(runs: list[records.Record]) -> str:
    """The table on the page: error of the covariance, the least in bold, and of a mean."""
    rows = []
    for target in dict.fromkeys(run.model for run in runs):
        medians = {name: _medians(runs, target, name) for name in ON_PAGE}
        least = min(each["covariance error"] for each in medians.values() if each)
        row = {"target": target}
        for kernel, each in medians.items():
            error = f"{each['covariance error']:.2g}" if each else "failed"
            bold = f"**{error}**" if each and each["covariance error"] == least else error
            row[kernel] = f"{bold} ({each['mean error']:.2g})" if each else error
        rows.append(row)
    return records.markdown_table(rows, ["target", *ON_PAGE])


def picture(runs: Sequence[records.Record], path: Path) -> None:
    """Error of the covariance and worst error of a mean, by target and kernel."""
    targets = list(dict.fromkeys(run.model for run in runs))
    figure, axes = subplots(1, 2, figsize=(11, 0.45 * len(targets) + 1.8), sharey=True)
    positions = np.arange(len(targets))[::-1]
    titles = {
        "covariance error": "relative error of the covariance",
        "mean error": "worst error of a mean, in standard deviations",
    }
    for axis, name in zip(axes, titles, strict=True):
        for index, kernel in enumerate(KERNELS):
            values = [_medians(runs, target, kernel).get(name, np.nan) for target in targets]
            axis.scatter(
                np.maximum(values, 1e-3),
                positions,
                s=70 if index == 0 else 35,
                marker="oDsv^<>PX"[index % 9],
                label=kernel,
                alpha=0.8,
            )
        axis.set_xscale("log")
        axis.set_title(titles[name], fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(positions, targets)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save(figure, path)
