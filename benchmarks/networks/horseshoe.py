"""Which inputs of a network matter: a regularised horseshoe over the inputs of its first layer.

Ten of a hundred inputs are planted: the response is the sum of five sines, each of the sum of two
inputs, with noise. A network of two hidden layers of 50 units has a horseshoe with one scale for
each input. ``ProximalScoreVI`` fits a diagonal Normal, from a start at which every input has the
same scale. An input is found whose scale, in the median of the draws, is above a tenth of the
largest one.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import records
from benchmarks.arguments import add_common, add_resume, count
from benchmarks.records import Record
from benchmarks.study import Study, backends_of, pyplot, save

Floats = NDArray[np.float32]

INPUTS, RELEVANT, HIDDEN, NOISE = 100, 10, 50, 0.3
#: Rows of a step, and rows to judge predictions by.
BATCH, TEST_ROWS = 256, 1000
#: The scale of every input at the start, and the share of the largest one from which on an input
#: is found.
START_SCALE, FOUND = 0.1, 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks horseshoe`."""
    add_common(parser, seeds=3, of_seeds="data sets, one a seed")
    parser.add_argument("--rows", type=count, default=2000, help="to fit (2,000)")
    parser.add_argument("--steps", type=count, default=6000, help="of the fit (6,000)")
    add_resume(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the fits and write `horseshoe.md` and `horseshoe.png`; the exit status."""
    resumed = {"resume": arguments.resume, "retry_failed": arguments.retry_failed}
    study = Study("horseshoe", arguments.out, **resumed)
    settings = {"rows": arguments.rows, "steps": arguments.steps}
    for seed in range(arguments.seeds):
        for backend in backends_of(arguments.backend):
            work = partial(fitted, backend, seed, arguments.rows, arguments.steps)
            study.run("ProximalScoreVI", backend, "sines", seed, settings, work)
    return study.report(study.overview(), plot)


def data(seed: int, rows: int) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Inputs (n, 100) and responses (n,) of rows to fit and to judge by, and which inputs matter.

    The response has variance about 2.2 without its noise, whose standard deviation is 0.3.
    """
    generator = np.random.default_rng([25, seed])
    relevant = generator.choice(INPUTS, RELEVANT, replace=False)
    x = generator.normal(size=(rows + TEST_ROWS, INPUTS))
    pairs = relevant.reshape(-1, 2)
    signal = np.sin(x[:, pairs].sum(-1)).sum(-1)
    y = signal + NOISE * generator.normal(size=len(x))
    return x.astype(np.float32), y.astype(np.float32), relevant


def start(seed: int, global_scale: float, layers: dict[str, bool]) -> dict[str, Any]:
    """Values of the latent sites from which all inputs can still be found.

    Weights come from their prior. At the horseshoe's own median nothing would reach the layers
    above, and no input would have a score that tells it from the others.

    Parameters
    ----------
    seed : int
    global_scale : float
        Of the horseshoe.
    layers : dict of str to bool
        The sites of the three layers' weights, and whether units are their first axis.
    """
    generator = np.random.default_rng([26, seed])
    values: dict[str, Any] = {"noise": 0.5}
    sizes = [(INPUTS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1)]
    for (site, units_first), (inputs, units) in zip(layers.items(), sizes, strict=True):
        weight = generator.normal(size=(units, inputs) if units_first else (inputs, units))
        first = inputs == INPUTS
        values[f"{site}.unscaled" if first else site] = weight / (1 if first else inputs**0.5)
        values[f"{site.rpartition('.')[0]}.bias"] = generator.normal(size=units)
        if first:
            values[f"{site}.local"] = np.full(inputs, START_SCALE / global_scale)
            values |= {f"{site}.global": global_scale, f"{site}.slab": 4.0}
    return {name: np.asarray(value, np.float32) for name, value in values.items()}


def fitted(backend: str, seed: int, rows: int, steps: int) -> dict[str, Any]:
    """Scales of the inputs, which are found, and figures of the predictions."""
    networks = importlib.import_module(f"benchmarks.networks.{backend}_networks")
    x, y, relevant = data(seed, rows)
    scales, metrics = networks.sparse(x[:rows], y[:rows], x[rows:], y[rows:], steps, seed)
    median = np.median(scales, axis=0)
    found = np.flatnonzero(median > FOUND * median.max())
    others = np.setdiff1d(np.arange(INPUTS), relevant)
    return {
        "found": int(np.isin(found, relevant).sum()),
        "false": int(np.isin(found, others).sum()),
        "least relevant scale": float(median[relevant].min()),
        "largest other scale": float(median[others].max()),
        "test RMSE": float(metrics["rmse"]),
        "test NLL": -float(metrics["log_likelihood"]),
        "scales": median.tolist(),
        "relevant": sorted(relevant.tolist()),
    }


def page_table(runs: list[Record]) -> str:
    """The table on the page."""
    shown = ("found", "false", "least relevant scale", "largest other scale", "test NLL")
    rows = [
        {"package": records.LABELS[each.backend], "data set": each.seed}
        | {name: each.figures[name] for name in shown}
        for each in sorted(runs, key=lambda run: run.backend)
    ]
    return records.markdown_table(rows, digits=2)


def plot(runs: Sequence[Record], path: Path) -> None:
    """Scales of all inputs, largest first, of every run."""
    plt = pyplot()
    backends = list(dict.fromkeys(each.backend for each in runs))
    figure, axes = plt.subplots(
        1, len(backends), figsize=(4.8 * len(backends), 3.4), sharey=True, squeeze=False
    )
    for axis, backend in zip(axes[0], backends, strict=True):
        for each in (each for each in runs if each.backend == backend):
            scales = np.asarray(each.figures["scales"])
            order = np.argsort(-scales)
            relevant = np.isin(order, each.figures["relevant"])
            places = np.arange(1, len(order) + 1)
            axis.scatter(places[relevant], scales[order][relevant], s=14, color="tab:blue")
            axis.scatter(places[~relevant], scales[order][~relevant], s=14, color="tab:orange")
            axis.axhline(FOUND * scales.max(), color="grey", linewidth=0.6)
        axis.set_yscale("log")
        axis.set_title(backend)
        axis.set_xlabel("inputs, by their scale")
    axes[0, 0].set_ylabel("scale of an input's weights")
    for label, colour in (("planted", "tab:blue"), ("others", "tab:orange")):
        axes[0, 0].scatter([], [], s=14, color=colour, label=label)
    axes[0, 0].legend()
    figure.tight_layout()
    save(figure, path)
