"""The study: what a step of each method costs, and what its fit predicts.

Figures of a step are ratios to plain stochastic gradient descent on the same network and images,
each method in a process of its own, and the processes take turns. Memory is the most that a
process held during its steps, less what it held before the network was made; on an accelerator the
most that it held there.
"""

from __future__ import annotations

import argparse
import importlib
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets, records
from benchmarks.images import metrics
from benchmarks.memory import release_freed, reset_peak, resident
from benchmarks.study import Study, backends_of, pyplot, save
from benchmarks.timing import timed
from benchmarks.turns import Started, take_turns
from benchmarks.vision.architectures import CHANNELS, CLASSES

STEP_METHODS = ("SGD", "MC dropout", "SGLD", "ADVI", "proximal", "MCLMC", "SVGD")
#: Particles of SVGD, each of which takes a gradient in a step.
PARTICLES = 2
FIT_METHODS = ("SGD", "MC dropout", "SGLD", "ADVI", "linearised Laplace", "proximal")
IMAGES = "fashion_mnist"


@dataclass(frozen=True)
class Plan:
    """Settings of a method.

    Attributes
    ----------
    network : str
    classes, batch, steps, draws, seed : int
    scale, width : float
        Standard deviation of the prior around the given weights, and of the guide at first.
    temperature : float
        Of the likelihood, as in the paper.
    rate, sgd_rate, bias_factor : float
        Learning rates of Adam, of stochastic gradient descent, and of biases over that of weights.
    dropout : float
    """

    network: str
    classes: int = 10
    batch: int = 32
    steps: int = 200
    draws: int = 10
    seed: int = 0
    scale: float = 0.1
    width: float = 1e-3
    temperature: float = 1e-6
    rate: float = 1e-4
    sgd_rate: float = 0.01
    bias_factor: float = 2.0
    dropout: float = 0.1


def run(arguments: argparse.Namespace) -> int:
    """Run the parts that are asked for, and write `vision.md`; the exit status."""
    names = backends_of(arguments.backend)
    path = arguments.out / "vision.jsonl"
    arguments.out.mkdir(parents=True, exist_ok=True)
    for backend in names:
        if "steps" in arguments.parts:
            for network in arguments.step_networks:
                _steps(path, backend, network, arguments)
        for seed in range(arguments.seeds if "fits" in arguments.parts else 0):
            _fits(path, backend, arguments, seed)
    study = Study.recorded("vision", arguments.out)
    return study.report(study.overview(by=("part",)))


# -- steps -------------------------------------------------------------------------------------


def _steps(path: Path, backend: str, network: str, arguments: argparse.Namespace) -> None:
    plan = Plan(network, CLASSES, arguments.batch)
    runs = []
    for method in arguments.methods or STEP_METHODS:
        if method in STEP_METHODS:
            record = records.Record("vision", method, backend, network, 0)
            record.settings = {"part": "steps", **asdict(plan), "size": arguments.size}
            runs.append(record)
    cases = [(run, (backend, run.method, plan, arguments.size)) for run in runs]
    take_turns(cases, _start, arguments.rounds)
    for record in runs:
        if not record.failed:
            record.figures["median seconds"] = float(np.median(record.figures["seconds a step"]))
    plain = next((run for run in runs if run.method == "SGD" and not run.failed), None)
    for record in runs:
        if plain is not None and not record.failed:
            for name in ("median seconds", "peak bytes"):
                ratio = record.figures[name] / plain.figures[name]
                record.figures[f"{name}, of SGD's"] = ratio
        records.append(path, record)
        found = record.error or record.figures
        print(f"{network}, {record.method}, {backend}: {found}", flush=True)


def _start(backend: str, method: str, plan: Plan, size: int) -> Started:
    module = importlib.import_module(f"benchmarks.vision.{backend}_methods")
    generator = np.random.default_rng(0)
    images = generator.normal(size=(4 * plan.batch, CHANNELS, size, size)).astype(np.float32)
    labels = generator.integers(0, plan.classes, len(images))
    release_freed()
    before = resident("VmRSS")
    begun = module.STEPS[method](module.Task(plan, images, labels))

    def step() -> None:
        begun()
        module.wait()

    def end() -> dict[str, Any]:
        on_device = module.peak_bytes()
        return {"peak bytes": resident("VmHWM") - before if on_device is None else on_device}

    for _ in range(2):
        step()
    release_freed()
    reset_peak()
    return Started(lambda: timed(step), end, {})


# -- fits --------------------------------------------------------------------------------------


def _fits(path: Path, backend: str, arguments: argparse.Namespace, seed: int) -> None:
    module = importlib.import_module(f"benchmarks.vision.{backend}_methods")
    x, y, x_test, y_test = rows_of(arguments.images, arguments.test_images)
    plan = Plan(arguments.network, len(np.unique(y)), arguments.batch, arguments.steps)
    plan = replace(plan, draws=arguments.draws, seed=seed)
    weights = given_weights(module, plan, arguments, x, y)
    for method in arguments.methods or FIT_METHODS:
        settings = {"part": "fits", **asdict(plan), "images": len(x), "first": arguments.first}
        record = records.Record("vision", method, backend, plan.network, plan.seed, settings)
        with records.recorded_run(path, record, go_on_after=(Exception,)):
            started = time.perf_counter()
            found = module.Task(plan, x, y, weights).fit(method, x_test)
            record.figures = {"seconds": time.perf_counter() - started, **judged(found, y_test)}
        print(f"{method}, {backend}: {record.error or record.figures}", flush=True)


def judged(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Error, mean negative log likelihood and calibration error of the top label."""
    return {
        "error": metrics.error(probabilities, labels),
        "NLL": metrics.negative_log_likelihood(probabilities, labels),
        "ECE": metrics.calibration_error(probabilities, labels),
    }


def rows_of(train: int, test: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Standardised images (n, 1, size, size) and labels, to train on and to judge by."""
    data = datasets.images(IMAGES)
    chosen = np.random.default_rng(0).permutation(len(data.x_train))[:train]
    x, x_test = (each.astype(np.float32)[:, None] for each in (data.x_train, data.x_test[:test]))
    location, spread = x.mean(), x.std()
    y, y_test = (each.astype(np.int64) for each in (data.y_train, data.y_test[:test]))
    return (x[chosen] - location) / spread, y[chosen], (x_test - location) / spread, y_test


def given_weights(
    module: Any, plan: Plan, arguments: argparse.Namespace, x: Any, y: Any
) -> dict[str, np.ndarray]:
    """The weights that all methods start from: of a file, or of stochastic gradient descent."""
    if arguments.weights is not None:
        return dict(np.load(arguments.weights))
    task = module.Task(replace(plan, steps=arguments.first), x, y)
    step = task.sgd(train=True)
    for _ in range(arguments.first):
        step()
    return dict(task.weights())


def _of(runs: list[records.Record], part: str) -> list[records.Record]:
    return [each for each in runs if each.settings["part"] == part]


def steps_table(runs: list[records.Record]) -> str:
    """Seconds and peak memory of a step, as multiples of plain gradient descent's."""
    rows = []
    for each in _of(runs, "steps"):
        own = each.figures
        row = {
            "network": each.model,
            "package": records.LABELS[each.backend],
            "method": each.method,
            "rounds": len(own.get("seconds a step", ())),
            "seconds": own.get("median seconds"),
            "time": own.get("median seconds, of SGD's"),
            "peak MB": None if each.failed else own["peak bytes"] / 1e6,
            "memory": own.get("peak bytes, of SGD's"),
        }
        rows.append(row | ({"failed": each.error} if each.failed else {}))
    return records.markdown_table(rows)


def fits_table(runs: list[records.Record]) -> str:
    """Error, likelihood, calibration and seconds of every method's fits, means over the seeds."""
    groups: dict[tuple[str, str], list[records.Record]] = {}
    for each in _of(runs, "fits"):
        groups.setdefault((each.backend, each.method), []).append(each)
    rows = []
    for (backend, method), group in groups.items():
        fine = [each.figures for each in group if not each.failed]
        row: dict[str, Any] = {"package": records.LABELS[backend], "method": method}
        row["seeds"] = len(fine)
        for name in ("error", "NLL", "ECE", "seconds"):
            row[name] = float(np.mean([found[name] for found in fine])) if fine else None
        failed = next((each.error for each in group if each.failed), None)
        rows.append(row | ({"failed": failed} if failed else {}))
    return records.markdown_table(rows)


#: The colour of each package in pictures.
_COLOURS = {"numpyro": "tab:blue", "pyro": "tab:orange"}
_MARKERS = {"numpyro": "s", "pyro": "o"}


def plot_steps(runs: list[records.Record], path: Path) -> None:
    """Time and memory of a step, as multiples of plain gradient descent's, by method."""
    plt = pyplot()
    own = [each for each in _of(runs, "steps") if not each.failed and each.method != "SGD"]
    own = [each for each in own if "median seconds, of SGD's" in each.figures]
    names = list(dict.fromkeys((each.model, each.method) for each in own))
    backends = sorted({each.backend for each in own})
    figure, axes = plt.subplots(1, 2, figsize=(9, 1.4 + 0.6 * len(names)), sharey=True)
    panels = (("median seconds", "time of a step", 1.5), ("peak bytes", "peak memory", 1.3))
    for axis, (figure_name, title, goal) in zip(axes, panels, strict=True):
        for number, backend in enumerate(backends):
            for each in own:
                if each.backend == backend:
                    place = names.index((each.model, each.method)) + 0.38 * number
                    ratio = each.figures[f"{figure_name}, of SGD's"]
                    label = records.LABELS[backend]
                    (bar,) = axis.barh(place, ratio, 0.36, color=_COLOURS[backend], label=label)
                    axis.annotate(
                        f"{ratio:.2g}",
                        (ratio, bar.get_y() + 0.18),
                        (4, 0),
                        textcoords="offset points",
                        va="center",
                        fontsize=8,
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
                    )
        axis.axvline(goal, color="black", linestyle="--", linewidth=0.8)
        axis.set(title=f"{title} (dashed: goal)", xlabel="times plain SGD's")
        axis.set_xlim(0.0, 1.15 * axis.get_xlim()[1])
    ticks = [k + 0.19 * (len(backends) - 1) for k in range(len(names))]
    axes[0].set_yticks(ticks, [f"{method}, {model}" for model, method in names])
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))
    axes[1].legend(shown.values(), shown.keys(), loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    save(figure, path)


def plot_fits(runs: list[records.Record], path: Path) -> None:
    """Error, likelihood and calibration of the fits, by method."""
    plt = pyplot()
    own = [each for each in _of(runs, "fits") if not each.failed]
    names = [name for name in FIT_METHODS if any(each.method == name for each in own)]
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True)
    for axis, figure_name in zip(axes, ("error", "NLL", "ECE"), strict=True):
        for backend, colour in _COLOURS.items():
            chosen = [each for each in own if each.backend == backend]
            if not chosen:
                continue
            axis.plot(
                [each.figures[figure_name] for each in chosen],
                [names.index(each.method) for each in chosen],
                _MARKERS[backend],
                color=colour,
                label=records.LABELS[backend],
            )
        axis.set(title=figure_name)
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[2].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    save(figure, path)
