"""Plots of the demonstration: posterior densities by ArviZ, predictive bands, loss traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import arviz as az
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.demo.fits import Fit
from benchmarks.demo.problems import Draws, Problem, network_output

SHOWN = 4


def posterior_densities(problem: Problem, fits: Sequence[Fit], path: Path) -> None:
    """Marginal densities of the first few compared quantities, every fit beside the reference."""
    posteriors = {}
    for fit in fits:
        values = problem.compared(fit.draws)[:, :SHOWN]
        posteriors[fit.label] = {
            label: values[None, :, i] for i, label in enumerate(problem.labels[:SHOWN])
        }
    if int(az.__version__.split(".")[0]) < 1:
        axes = az.plot_density(
            [az.from_dict(posterior=posterior) for posterior in posteriors.values()],
            data_labels=list(posteriors),
            hdi_prob=0.98,
            point_estimate=None,
            grid=(1, len(problem.labels[:SHOWN])),
            figsize=(4.2 * SHOWN, 3.8),
            textsize=11,
        )
        figure = np.ravel(axes)[0].figure
    else:
        collection = az.plot_dist(
            {
                label: az.from_dict({"posterior": posterior})
                for label, posterior in posteriors.items()
            }
        )
        collection.add_legend("model")
        figure = collection.viz["figure"].item()
    figure.suptitle(problem.title)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def _band(draws: Draws, problem: Problem, generator: np.random.Generator) -> Any:
    extra = problem.extra
    outputs = network_output(draws, extra["grid"])
    noise = draws["noise"][:, None] * generator.normal(size=outputs.shape)
    scale, location = extra["y_scale"], extra["y_location"]
    latent = np.quantile(outputs, [0.05, 0.95], axis=0) * scale + location
    total = np.quantile(outputs + noise, [0.05, 0.95], axis=0) * scale + location
    return outputs.mean(0) * scale + location, latent, total


def predictive_bands(problem: Problem, fits: Sequence[Fit], path: Path) -> None:
    """Predictions along one feature, the others at their medians, with 90 % bands."""
    extra, (x_train, y_train) = problem.extra, problem.arguments
    feature = extra["feature"]
    grid = extra["grid"][:, feature]
    columns = 4
    rows = -(-len(fits) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(3.6 * columns, 3.0 * rows),
        sharex=True,
        sharey=True,
        layout="constrained",
        squeeze=False,
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
    figure.savefig(path, dpi=110)
    plt.close(figure)


def loss_traces(problems: Sequence[Problem], fits: Sequence[Fit], path: Path) -> None:
    """Every method's own loss over its steps, smoothed; the losses are not of one kind."""
    methods = list(dict.fromkeys(fit.method for fit in fits if fit.losses.size))
    figure, axes = plt.subplots(
        len(problems),
        len(methods),
        figsize=(4.0 * len(methods), 2.6 * len(problems)),
        layout="constrained",
        squeeze=False,
    )
    for row, problem in zip(axes, problems, strict=True):
        for axis, method in zip(row, methods, strict=True):
            for fit in fits:
                if fit.problem != problem.name or fit.method != method:
                    continue
                window = max(1, len(fit.losses) // 100)
                kept = len(fit.losses) // window * window
                smooth = fit.losses[:kept].reshape(-1, window).mean(1)
                axis.plot(np.arange(len(smooth)) * window, smooth, label=fit.backend)
            axis.set_yscale("symlog" if method != "ProximalScoreVI" else "log")
            axis.set_title(f"{problem.title}: {method}", fontsize=9)
            axis.legend(fontsize=8)
    figure.supxlabel("step")
    figure.supylabel("loss")
    figure.savefig(path, dpi=110)
    plt.close(figure)
