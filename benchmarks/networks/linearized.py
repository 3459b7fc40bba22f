"""Linearised Laplace approximation against the mode and against draws of all weights.

A network of one hidden layer of 50 ReLU units on eight UCI sets, in double precision, with a scale
of the noise that is latent as the weights are, and LeNet on Fashion-MNIST. With ``--evidence`` the
noise and the scale of the weights' prior are found from the marginal likelihood instead, and have
no Gaussian. One run of ``LaplaceGGN`` each is judged three times on held-out rows: at its mode, by
draws of all weights put through the network, and by the same draws with the network made linear at
the mode. Data are read from the folder that PPL_EXT_DATA names.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets, records
from benchmarks.arguments import add_common, add_resume, count
from benchmarks.records import Record
from benchmarks.study import Study, backends_of, save, subplots

SETS = (
    "yacht",
    "energy",
    "concrete",
    "wine_red",
    "kin8nm",
    "power_plant",
    "naval",
    "protein",
)
IMAGES = "fashion_mnist"
#: What is compared, by the figures' first word.
PREDICTIONS = ("mode", "all weights", "linearised")
#: Units of the hidden layer, share of the rows for the test where no splits are published, rows of
#: a step, and those of steps between two curvatures, by the size of the set.
HIDDEN, TEST_SHARE, BATCH = 50, 0.1, 256
EVERY = {2_000: 50, 20_000: 250, 100_000: 500}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks linearized`."""
    add_common(parser)
    parser.add_argument(
        "--sets",
        nargs="+",
        choices=(*SETS, IMAGES),
        default=(*SETS, IMAGES),
        metavar="NAME",
        help=", ".join((*SETS, IMAGES)),
    )
    parser.add_argument("--splits", type=count, default=1, help="of each UCI set (1)")
    parser.add_argument("--steps", type=count, default=8000, help="of Adam on UCI sets (8,000)")
    parser.add_argument("--image-steps", type=count, default=1000, help="on images (1,000)")
    parser.add_argument("--draws", type=count, default=100, help="of the weights (100)")
    parser.add_argument("--images", type=count, default=2000, help="to train on (2,000)")
    parser.add_argument("--test-images", type=count, default=2000, help="to judge by (2,000)")
    parser.add_argument(
        "--image-scales",
        type=float,
        nargs="+",
        default=(1.0, 3.0),
        metavar="SCALE",
        help="of the prior of LeNet's weights (1 and 3)",
    )
    parser.add_argument(
        "--evidence",
        action="store_true",
        help="noise and prior of the UCI sets from the marginal likelihood",
    )
    add_resume(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the comparison and write `linearized.md` and `linearized.png`; the exit status."""
    resumed = {"resume": arguments.resume, "retry_failed": arguments.retry_failed}
    study = Study("linearized", arguments.out, **resumed)
    for name in arguments.sets:
        for backend in backends_of(arguments.backend):
            if name == IMAGES:
                for scale in arguments.image_scales:
                    run_images(study, backend, scale, arguments)
            else:
                for split in range(arguments.splits):
                    run_table(study, name, backend, split, arguments)
    return study.report(study.overview(), plot)


def run_table(
    study: Study, name: str, backend: str, split: int, arguments: argparse.Namespace
) -> None:
    """One fit of a UCI set with its three predictions."""
    steps, draws = arguments.steps, arguments.draws
    settings = {"steps": steps, "draws": draws, "evidence": arguments.evidence}

    def work() -> dict[str, float]:
        rows, scaling = table_rows(name, split)
        every = next(every for most, every in EVERY.items() if len(rows[0]) <= most)
        every = every if arguments.evidence else 0
        predictions = networks(backend).table(*rows, steps, draws, every, split)
        return judged(backend, predictions, scaling)

    study.run("LaplaceGGN", backend, name, split, settings, work)


def run_images(study: Study, backend: str, scale: float, arguments: argparse.Namespace) -> None:
    """One fit of LeNet with its three predictions."""
    steps, draws = arguments.image_steps, arguments.draws
    settings = {"steps": steps, "draws": draws, "images": arguments.images}
    settings |= {"test images": arguments.test_images, "prior scale": scale}
    name = IMAGES if scale == 1.0 else f"{IMAGES}, prior scale {scale:g}"

    def work() -> dict[str, float]:
        rows = image_rows(arguments.images, arguments.test_images)
        return judged(backend, networks(backend).images(*rows, steps, draws, scale), None)

    study.run("LaplaceGGN", backend, name, 0, settings, work)


def networks(backend: str) -> Any:
    """The networks of a package."""
    return importlib.import_module(f"benchmarks.networks.{backend}_networks")


def table_rows(name: str, index: int) -> tuple[tuple[Any, ...], tuple[float, float]]:
    """Standardised training and test rows of a set, and the response's location and scale."""
    data = datasets.external(name)
    split = data.split(index) if data.splits else data.random_split(index, TEST_SHARE)
    scaled = split.standardised(response=True)
    rows = (scaled.x_train, scaled.y_train, scaled.x_test, scaled.y_test)
    return rows, (float(scaled.y_location), float(scaled.y_scale))


def image_rows(train: int, test: int) -> tuple[Any, ...]:
    """Scaled images and labels to train on, and to judge by."""
    from benchmarks.images.lenet import make_problem

    problem = make_problem(datasets.images(IMAGES), train, 0, seed=0)
    return problem.x_train, problem.y_train, problem.x_test[:test], problem.y_test[:test]


def judged(
    backend: str, predictions: dict[str, Any], scaling: tuple[float, float] | None
) -> dict[str, float]:
    """Figures of each prediction on the test rows, in original units."""
    package, found = importlib.import_module(f"{backend}_ext"), {}
    for name, predictive in predictions.items():
        if scaling is not None:
            predictive = package.to_original_units(predictive, *scaling)
        metrics = package.predictive_metrics(predictive)
        found[f"{name}: NLL"] = -float(metrics["log_likelihood"])
        found[f"{name}: calibration error"] = float(metrics["calibration_error"])
        error = "rmse" if scaling is not None else "accuracy"
        found[f"{name}: {error}"] = float(metrics[error])
    return found


def grouped(runs: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    """Runs that did not fail, by set and package."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for each in runs:
        if not each.failed:
            groups.setdefault((each.model, each.backend), []).append(each)
    return groups


def page_table(runs: list[Record]) -> str:
    """The table on the page: test NLL of each prediction, NumPyro's and Pyro's.

    Means over the splits, of which none may have failed.
    """
    cells: dict[tuple[str, str], list[Record]] = {}
    for each in sorted(runs, key=lambda run: run.backend):
        cells.setdefault((each.model, each.backend), []).append(each)
    rows: dict[str, dict[str, Any]] = {}
    for (model, _), splits in cells.items():
        row = rows.setdefault(model, {"set": model.replace("_", " ")})
        for name in PREDICTIONS:
            if any(each.failed for each in splits):
                own = "failed"
            else:
                own = f"{np.mean([each.figures[f'{name}: NLL'] for each in splits]):.3f}"
            row[name] = f"{row[name]} / {own}" if name in row else own
    return records.markdown_table(list(rows.values()), ["set", *PREDICTIONS])


def plot(runs: Sequence[Record], path: Path) -> None:
    """How far each prediction's NLL is below that of the mode, by set."""
    groups = grouped(runs)
    backends = sorted({backend for _, backend in groups})
    names = list(dict.fromkeys(name for name, _ in groups))
    size = (5.0 * len(backends), 4.2)
    figure, axes = subplots(1, len(backends), figsize=size, sharey=True, squeeze=False)
    for axis, backend in zip(axes[0], backends, strict=True):
        for offset, prediction in ((-0.2, "all weights"), (0.2, "linearised")):
            gains = []
            for name in names:
                own = groups.get((name, backend), [])
                differences = [
                    each.figures["mode: NLL"] - each.figures[f"{prediction}: NLL"] for each in own
                ]
                gains.append(float(np.mean(differences)) if differences else np.nan)
            axis.bar(np.arange(len(names)) + offset, gains, 0.4, label=prediction)
        axis.axhline(0.0, color="black", linewidth=0.8)
        axis.set_yscale("symlog", linthresh=0.01)
        labels = [name.replace("_", " ").replace(", ", ",\n") for name in names]
        axis.set_xticks(np.arange(len(names)), labels, rotation=60, ha="right")
        axis.set_title(backend)
    axes[0, 0].set_ylabel("test NLL of the mode less theirs")
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper right", ncols=2)
    save(figure, path)
