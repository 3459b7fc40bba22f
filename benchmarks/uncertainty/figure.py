"""The data, the judgement by the packages' figures, and one figure of four plots."""

from __future__ import annotations

import argparse
import importlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import records
from benchmarks.datasets import shipped
from benchmarks.study import save, subplots
from benchmarks.uncertainty import networks

Floats = NDArray[np.float64]

#: Digits from this one on are not among the training rows.
UNSEEN = 8
TRAINING_ROWS = 300
ENGINES = ("DeepEnsemble", "SVGD")


def curve_data(num: int = 60) -> tuple[Floats, Floats]:
    """A noisy curve at places (n, 1), with no data between -0.5 and 2."""
    generator = np.random.default_rng(0)
    x = np.concatenate([generator.uniform(-4.0, -0.5, num // 2), generator.uniform(2.0, 4.0, num)])
    y = np.sin(1.5 * x) + 0.2 * generator.normal(size=x.size)
    return x[:, None], y


def digits() -> dict[str, tuple[Floats, NDArray[np.int64]]]:
    """Training and test rows of the digits below `UNSEEN`, and all rows of the others."""
    data = shipped("digits")
    order = np.random.default_rng(0).permutation(len(data.y))
    x, y = data.x[order] / 16.0, data.y[order].astype(np.int64)
    seen = y < UNSEEN
    train, test = slice(TRAINING_ROWS), slice(TRAINING_ROWS, None)
    return {
        "train": (x[seen][train], y[seen][train]),
        "test": (x[seen][test], y[seen][test]),
        "unseen": (x[~seen], y[~seen]),
    }


def run(arguments: argparse.Namespace) -> int:
    """Fit both networks, write `uncertainty.jsonl`, `uncertainty.md` and `uncertainty.png`."""
    fit = partial(networks.fit, arguments.backend)
    predict = partial(networks.predict, arguments.backend)
    package = importlib.import_module(f"{arguments.backend}_ext")
    path = arguments.out / "uncertainty.jsonl"
    records.moved_aside(path)

    x, y = curve_data()
    grid = np.linspace(-5.0, 5.0, 200)[:, None]
    curve = fit("curve", ENGINES[0], x, y, arguments.steps)
    band = predict("curve", curve, grid)

    rows = digits()
    tested, scores = {}, {}
    for engine in ENGINES:
        settings = {"steps": arguments.steps, "training rows": TRAINING_ROWS}
        record = records.Record("uncertainty", engine, arguments.backend, "digits", 0, settings)
        draws = fit("digits", engine, *rows["train"], arguments.steps)
        tested[engine] = predict("digits", draws, *rows["test"])
        unseen = predict("digits", draws, rows["unseen"][0])
        scores[engine] = package.out_of_distribution_score(tested[engine], unseen)
        record.figures = _figures(package, tested[engine], scores[engine])
        records.append(path, record)
    text = table(records.read(path))
    records.write_text(arguments.out / "uncertainty.md", text)
    print(text)
    _draw(package, (x, y, grid, band), tested, scores, arguments.out / "uncertainty.png")
    return 0


def _figures(package: Any, predictive: Any, score: Any) -> dict[str, float]:
    found = package.predictive_metrics(predictive)
    names = ("log_likelihood", "accuracy", "calibration_error", "brier")
    figures = {name.replace("_", " "): float(found[name]) for name in names}
    return figures | {"AUROC, other digits": float(score["auroc"])}


def table(runs: list[records.Record]) -> str:
    """How good predictions of the digits are, and how well others are told apart."""
    rows = [
        {"package": records.LABELS[run.backend], "engine": f"`{run.method}`"} | run.figures
        for run in runs
    ]
    return records.markdown_table(rows)


def _draw(package: Any, curve: Any, tested: Any, scores: Any, path: Path) -> None:
    x, y, grid, band = curve
    first = ENGINES[0]
    figure, axes = subplots(2, 2, figsize=(10, 7.5))
    package.plot_uncertainty(band, grid[:, 0], ax=axes[0, 0])
    axes[0, 0].plot(x[:, 0], y, ".", color="0.2", label="training data")
    axes[0, 0].set(xlabel="x", ylim=(-5, 5), title="a curve with a gap: two standard deviations")
    axes[0, 0].legend(loc="lower left")
    package.plot_reliability(tested[first], ax=axes[0, 1])
    axes[0, 1].set_title(f"digits, {first}: reliability")
    package.plot_selective_prediction(tested, ax=axes[1, 0])
    axes[1, 0].set_title("digits: error of the least uncertain rows")
    bins = np.linspace(0.0, np.log(UNSEEN), 25)
    for name, label in (("inside", "digits 0 to 7"), ("outside", "digits 8 and 9")):
        axes[1, 1].hist(scores[first][name], bins, density=True, alpha=0.6, label=label)
    axes[1, 1].set(
        xlabel="predictive entropy in nats",
        ylabel="density",
        title=f"digits, {first}: AUROC {float(scores[first]['auroc']):.3f}",
    )
    axes[1, 1].legend()
    save(figure, path, dpi=110)
