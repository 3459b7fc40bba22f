"""Memory and time of a training step on a network of 20 million parameters.

``ProximalScoreVI`` with a diagonal Normal and the gradient solver, ADVI (the host's SVI), and a
plain Adam step of the network itself, each in a process of its own. The processes take turns, so
that all methods see the same machine; memory is the most that a process held during its steps,
less what it held before the network was made, in vectors of the network's length.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.memory import release_freed, reset_peak, resident
from benchmarks.records import Record
from benchmarks.study import Study, backends_of
from benchmarks.timing import timed
from benchmarks.turns import Started, take_turns

METHODS = ("ours", "ADVI", "Adam")
#: Units of each layer, inputs and outputs included: 20,048,010 parameters.
LAYERS = (1000, 4000, 4000, 10)
LAYERS_QUICK = (200, 400, 400, 10)
ROWS, BATCH, ROUNDS = 1000, 64, 9


def num_parameters(layers: tuple[int, ...]) -> int:
    """Weights and biases of a network."""
    return sum((rows + 1) * columns for rows, columns in itertools.pairwise(layers))


def data(layers: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Rows (ROWS, inputs) and their classes (ROWS,)."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, layers[0])).astype(np.float32)
    return x, np.argmax(x[:, : layers[-1]], 1)


def run_memory(arguments: argparse.Namespace) -> int:
    """Run the comparison and write its table."""
    layers, rounds = (LAYERS_QUICK, 3) if arguments.quick else (LAYERS, ROUNDS)
    for name in backends_of(arguments.backend):
        _compare(arguments.out, name, layers, rounds)
    study = Study.recorded("score-vi", arguments.out)
    return study.report(study.overview("peak vectors", "median seconds"))


def _compare(out: Path, backend: str, layers: tuple[int, ...], rounds: int) -> None:
    runs = []
    for method in METHODS:
        record = Record("score-vi memory", method, backend, "network", seed=0)
        record.settings = {"layers": list(layers), "batch": BATCH, "rounds": rounds}
        record.settings["parameters"] = num_parameters(layers)
        runs.append(record)
    take_turns([(run, (backend, run.method, layers)) for run in runs], _start, rounds)
    for record in runs:
        if not record.failed:
            seconds = record.figures["seconds a step"]
            record.figures["median seconds"] = float(np.median(seconds))
            print(f"{backend} {record.method}: {record.figures}", flush=True)
        records.append(out / "score-vi.jsonl", record)


def _start(backend: str, method: str, layers: tuple[int, ...]) -> Started:
    module = importlib.import_module(f"benchmarks.score_vi.{backend}_memory")
    # What the libraries themselves take at their first use is not the method's.
    step = _started(module.CASES[method], LAYERS_QUICK)
    del step
    release_freed()
    before = resident("VmRSS")
    step = _started(module.CASES[method], layers)
    release_freed()
    reset_peak()

    def end() -> dict[str, float]:
        return {"peak vectors": (resident("VmHWM") - before) / (4 * num_parameters(layers))}

    return Started(lambda: timed(step), end, {})


def _started(case: Callable[..., Callable[[], None]], layers: tuple[int, ...]) -> Any:
    """The step of a method after its first few, which trace and compile."""
    step = case(layers, *data(layers))
    for _ in range(3):
        step()
    return step


def _row(run: Record, runs: list[Record]) -> dict[str, Any]:
    by_method = {other.method: other.figures for other in runs if other.backend == run.backend}

    def ratio(name: str, method: str) -> float | None:
        own, other = run.figures.get(name), by_method.get(method, {}).get(name)
        return own / other if own and other else None

    return {
        "peak": run.figures.get("peak vectors"),
        "of ADVI's": ratio("peak vectors", "ADVI"),
        "time, in Adam's": ratio("median seconds", "Adam"),
    }


def page_table(runs: list[Record]) -> str:
    """Memory and time of a step in both packages, for the page."""
    runs = [run for run in runs if run.benchmark == "score-vi memory"]
    names = {"ours": "`ProximalScoreVI`, gradient", "Adam": "plain Adam"}
    rows: dict[str, dict[str, Any]] = {}
    for run in runs:
        row = rows.setdefault(run.method, {"method": names.get(run.method, run.method)})
        label = records.LABELS[run.backend]
        row |= {f"{label}: {name}": value for name, value in _row(run, runs).items()}
    return records.markdown_table(list(rows.values()), digits=2)
