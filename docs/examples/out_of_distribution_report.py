"""What the out-of-distribution examples share: data, protocol, figures of merit and the plot.

A method is a function from settings and training rows to draws of the network's weights. All of
them are judged by the packages' own diagnostics, so a method that is not here needs no more than
its draws.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from benchmarks import records
from benchmarks.arguments import count
from benchmarks.datasets import images

Array = NDArray[Any]

INPUTS, HIDDEN, CLASSES = 784, 50, 10
#: Mean and standard deviation of the pixels of MNIST's training images, as shares of 255.
PIXEL_MEAN, PIXEL_SCALE = 0.1307, 0.3081

#: Heading of each figure of the table.
COLUMNS = {
    "package": "package",
    "method": "method",
    "draws": "draws",
    "accuracy": "accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "auroc_entropy": "AUROC, entropy",
    "auroc_mutual_information": "AUROC, mutual information",
    "seconds": "seconds",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes of the data and of the fits.

    `steps` are those of the methods that follow gradients by an optimiser; Markov chains and
    variational inference, whose steps cost less, take `long_steps`, and Newton's method, whose
    steps cost more, `newton_steps`. `particles` is the number of networks of ensembles and of
    cycles, `draws` that of the draws from dropout, chains and guides.
    """

    rows: int
    test_rows: int
    batch: int
    steps: int
    long_steps: int
    newton_steps: int
    particles: int
    draws: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Rows:
    """Training digits, test digits, and images of clothes; pixels (n, 784) are standardised."""

    x: Any
    y: Any
    x_inside: Any
    y_inside: Any
    x_outside: Any


#: A fit: draws of the weights by site.
Method = Callable[[Settings, Any, Any], Mapping[str, Any]]


def load(settings: Settings) -> Rows:
    """So many rows of MNIST, and of the test images of Fashion-MNIST."""
    digits, clothes = images("mnist"), images("fashion_mnist")
    generator = np.random.default_rng(settings.seed)

    def pixels(x: Array) -> Array:
        shares = x.reshape(len(x), -1) / 255.0
        return np.asarray((shares - PIXEL_MEAN) / PIXEL_SCALE, dtype=np.float32)

    train = generator.permutation(len(digits.y_train))[: settings.rows]
    inside = generator.permutation(len(digits.y_test))[: settings.test_rows]
    outside = generator.permutation(len(clothes.y_test))[: settings.test_rows]
    return Rows(
        pixels(digits.x_train[train]),
        digits.y_train[train],
        pixels(digits.x_test[inside]),
        digits.y_test[inside],
        pixels(clothes.x_test[outside]),
    )


def run(
    host: str,
    description: str,
    package: Any,
    methods: Mapping[str, Method],
    predict: Callable[..., Any],
    to_host: Callable[[Array], Any],
    argv: Sequence[str] | None,
) -> list[records.Record]:
    """Fit by every method, judge, and write a table, records and a figure.

    Parameters
    ----------
    host, description
        Name of the host, and what `--help` says.
    package
        `pyro_ext` or `numpyro_ext`, for its diagnostics.
    methods
        Fits by name.
    predict
        The predictive distribution of rows, `predict(draws, x, y=None)`.
    to_host
        Makes an array of the host of one of NumPy.
    argv
        The command line.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--small", action="store_true", help="few images and steps")
    parser.add_argument("--rows", type=count, help="training images")
    parser.add_argument("--methods", nargs="+", choices=list(methods), default=list(methods))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    settings = Settings(2000, 2000, 100, 1500, 4000, 500, 8, 32, given.seed)
    if given.small:
        settings = Settings(400, 300, 50, 60, 240, 40, 5, 10, given.seed)
    if given.rows is not None:
        settings = dataclasses.replace(settings, rows=given.rows)

    rows = Rows(*map(to_host, dataclasses.astuple(load(settings))))
    given.out.mkdir(parents=True, exist_ok=True)
    stem = f"out-of-distribution-{host}"
    records.moved_aside(given.out / f"{stem}.jsonl")
    found: list[records.Record] = []
    tested: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    for name in given.methods:
        record = records.Record(
            "out_of_distribution",
            name,
            host,
            f"{INPUTS}-{HIDDEN}-{CLASSES}",
            given.seed,
            dataclasses.asdict(settings),
        )
        with records.recorded_run(found.append, record):
            draws = methods[name](settings, rows.x, rows.y)
        tested[name] = predict(draws, rows.x_inside, rows.y_inside)
        outside = predict(draws, rows.x_outside)
        scores[name] = package.out_of_distribution_score(tested[name], outside)
        record.figures.update(_figures(package, tested[name], outside, scores[name]))
        records.append(given.out / f"{stem}.jsonl", record)
        print(f"{name}: {record.seconds:.1f} s", flush=True)
    text = table(found)
    records.write_text(given.out / f"{stem}.md", text)
    print(text)
    _draw(package, tested, scores, given.out / f"{stem}.png")
    return found


def table(runs: Sequence[records.Record]) -> str:
    """The table of methods."""
    rows = [
        {
            "package": records.LABELS[run.backend],
            "method": run.method,
            **run.figures,
            "seconds": run.seconds,
        }
        for run in runs
    ]
    return records.markdown_table(rows, COLUMNS)


def _figures(package: Any, inside: Any, outside: Any, entropy: Any) -> dict[str, float]:
    metrics = package.predictive_metrics(inside)
    information = package.out_of_distribution_score(inside, outside, measure="epistemic")
    return {
        "draws": int(inside.sizes["draw"]),
        "accuracy": float(metrics["accuracy"]),
        "nll": -float(metrics["log_likelihood"]),
        "ece": float(metrics["calibration_error"]),
        "brier": float(metrics["brier"]),
        "auroc_entropy": float(entropy["auroc"]),
        "auroc_mutual_information": float(information["auroc"]),
    }


def _draw(package: Any, tested: Any, scores: Any, path: Path) -> None:
    """Above, entropies inside and outside by method; below, reliability inside."""
    columns = len(tested)
    figure, axes = plt.subplots(
        2, columns, figsize=(2.3 * columns, 4.8), layout="constrained", squeeze=False
    )
    bins = np.linspace(0.0, np.log(CLASSES), 25)
    for (above, below), (name, predictive) in zip(axes.T, tested.items(), strict=True):
        score = scores[name]
        for part, label in (("inside", "digits"), ("outside", "clothes")):
            above.hist(score[part], bins, density=True, alpha=0.6, label=label)
        above.set_title(f"{name}\nAUROC {float(score['auroc']):.3f}", fontsize=9)
        above.set(xlabel="entropy in nats", yticks=[])
        package.plot_reliability(predictive, num_bins=10, ax=below)
        below.set_xticks([0.0, 0.5, 1.0])
        error = float(package.calibration_error(package.calibration_curve(predictive)))
        below.get_legend().remove()
        below.set_title(f"calibration error {error:.3f}", fontsize=9)
    for ax in axes[:, 1:].flat:
        ax.set_ylabel("")
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=80)
    plt.close(figure)
