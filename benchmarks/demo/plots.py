"""Plots of the demonstration: posterior densities by ArviZ, predictive bands, loss traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
from matplotlib.lines import Line2D

from benchmarks.demo.fits import Fit
from benchmarks.demo.problems import Draws, Problem, network_output
from benchmarks.study import save, subplots

SHOWN = 4


def posterior_densities(problem: Problem, fits: Sequence[Fit], reference: Fit, path: Path) -> None:
    """Marginal densities of the first few compared quantities, one row for each backend.

    The reference is drawn in black in every row.
    """
    shown = problem.labels[:SHOWN]

    def posterior(fit: Fit) -> dict[str, Any]:
        values = problem.compared(fit.draws)
        return {label: values[None, :, i] for i, label in enumerate(shown)}

    backends = list(dict.fromkeys(fit.backend for fit in fits))
    rows = {
        backend: [reference, *(f for f in fits if f.backend == backend and f is not reference)]
        for backend in backends
    }
    if int(az.__version__.split(".")[0]) >= 1:
        data = {fit.label: az.from_dict({"posterior": posterior(fit)}) for fit in fits}
        collection = az.plot_dist(data)
        collection.add_legend("model")
        collection.savefig(path)
        return
    figure, axes = subplots(len(rows), len(shown), figsize=(3.6 * len(shown), 2.8 * len(rows)))
    for row, (backend, chosen) in zip(axes, rows.items(), strict=True):
        az.plot_density(
            [az.from_dict(posterior=posterior(fit)) for fit in chosen],
            data_labels=[fit.label for fit in chosen],
            hdi_prob=0.98,
            point_estimate=None,
            colors=["black", *(f"C{i}" for i in range(len(chosen) - 1))],
            ax=row,
            textsize=10,
        )
        for axis in row:
            if axis.get_legend() is not None:
                axis.get_legend().remove()
        row[0].set_ylabel(backend)
        handles = [
            Line2D([], [], color="black" if i == 0 else f"C{i - 1}", label=fit.label)
            for i, fit in enumerate(chosen)
        ]
        row[-1].legend(handles=handles, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(problem.title)
    save(figure, path, dpi=110)


def _band(draws: Draws, problem: Problem, generator: np.random.Generator) -> Any:
    extra = problem.extra
    outputs = network_output(draws, extra["grid"])
    # Several observations for each draw, so that few particles give smooth bands, too.
    repeats = -(-4000 // len(outputs))
    noise = generator.normal(size=(repeats, *outputs.shape)) * draws["noise"][:, None]
    observations = (outputs + noise).reshape(-1, outputs.shape[1])
    scale, location = extra["y_scale"], extra["y_location"]
    latent = np.quantile(outputs, [0.05, 0.95], axis=0) * scale + location
    total = np.quantile(observations, [0.05, 0.95], axis=0) * scale + location
    return outputs.mean(0) * scale + location, latent, total


def predictive_bands(problem: Problem, fits: Sequence[Fit], path: Path) -> None:
    """Predictions along one feature, the others at their medians, with 90 % bands."""
    extra, (x_train, y_train) = problem.extra, problem.arguments
    feature = extra["feature"]
    grid = extra["grid"][:, feature]
    columns = 4
    rows = -(-len(fits) // columns)
    figure, axes = subplots(
        rows, columns, figsize=(3.6 * columns, 3.0 * rows), sharex=True, sharey=True, squeeze=False
    )
    generator = np.random.default_rng(0)
    for axis in axes.flat[len(fits) :]:
        axis.set_visible(False)
    for axis, fit in zip(axes.flat, fits, strict=False):
        mean, latent, total = _band(fit.draws, problem, generator)
        axis.fill_between(grid, *total, color="C0", alpha=0.2, label="90 % of observations")
        axis.fill_between(grid, *latent, color="C0", alpha=0.5, label="90 % of the output")
        axis.plot(grid, mean, color="C0")
        observed = y_train * extra["y_scale"] + extra["y_location"]
        axis.plot(x_train[:, feature], observed, ".", color="black", markersize=2, alpha=0.5)
        axis.set_title(fit.label, fontsize=10)
    axes[0, 0].legend(fontsize=7, loc="upper left")
    figure.supxlabel("body mass index (standardised), other features at their medians")
    figure.supylabel("disease progression")
    save(figure, path, dpi=110)


def loss_traces(problems: Sequence[Problem], fits: Sequence[Fit], path: Path) -> None:
    """Every method's own loss over its steps, smoothed; the losses are not of one kind.

    SVI: minus the evidence lower bound. SVGD: minus the mean log density of the particles, which
    rises again while they spread. ProximalScoreVI: the squared distance of the scores.
    """
    methods = list(dict.fromkeys(fit.method for fit in fits if fit.losses.size))
    figure, axes = subplots(
        len(problems),
        len(methods),
        figsize=(4.0 * len(methods), 2.6 * len(problems)),
        squeeze=False,
    )
    for row, problem in zip(axes, problems, strict=True):
        for axis, method in zip(row, methods, strict=True):
            late = []
            for fit in fits:
                if fit.problem != problem.name or fit.method != method:
                    continue
                window = max(1, len(fit.losses) // 100)
                kept = len(fit.losses) // window * window
                smooth = fit.losses[:kept].reshape(-1, window).mean(1)
                axis.plot(np.arange(len(smooth)) * window, smooth, label=fit.backend)
                late.append(smooth[len(smooth) // 20 :])
            if method == "ProximalScoreVI":
                axis.set_yscale("log")
            else:
                # The first steps would hide all others.
                low, high = np.min(np.concatenate(late)), np.max(np.concatenate(late))
                axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
            axis.set_title(f"{problem.title}: {method}", fontsize=9)
            axis.legend(fontsize=8)
    figure.supxlabel("step")
    figure.supylabel("loss")
    save(figure, path, dpi=110)
