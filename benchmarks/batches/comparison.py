"""Memory of a fit from a file, and the rate of its steps beside those on rows in memory."""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.batches import file
from benchmarks.memory import resident
from benchmarks.records import Record
from benchmarks.study import Study, backends_of, save, subplots

PARTICLES, RATE = 16, 0.01
#: Rows in memory at most: a part of the data, which memory gives sooner than all of them.
IN_MEMORY = 2_000_000
#: What may be reached.
MOST_BYTES, LEAST_RATE = 2e9, 0.8


class Memory:
    """The most memory of a process that belongs to no file: a context.

    Parameters
    ----------
    every : float
        Seconds between looks.
    """

    def __init__(self, every: float = 0.02) -> None:
        self.peak, self.peak_of_files, self.trace = 0, 0, []  # type: int, int, list[float]
        self._every, self._end = every, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while True:
            self.peak = max(self.peak, resident("RssAnon"))
            self.peak_of_files = max(self.peak_of_files, resident("RssFile"))
            self.trace.append(resident("RssAnon") / 1e9)
            if self._end.wait(self._every):
                return

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()


def fitted(backend: str, path: Path, rows: int, batch: int) -> dict[str, Any]:
    """One epoch from the file."""
    module = importlib.import_module(f"benchmarks.batches.{backend}_fits")
    before = resident("RssAnon")
    with Memory() as memory:
        loader = file.FileBatches(path, batch)
        fit = module.Fit(rows, None, PARTICLES, RATE)
        started = time.perf_counter()
        fit.run(len(loader), batches=loader)
        seconds = time.perf_counter() - started
        error = np.abs(fit.mean() - file.coefficients()).max()
    thinned = memory.trace[:: max(1, len(memory.trace) // 300)]
    return {
        "peak bytes": memory.peak,
        "peak bytes of files": memory.peak_of_files,
        "bytes of the libraries": before,
        "steps": len(loader),
        "seconds": seconds,
        "largest error of a coefficient": float(error),
        "gigabytes": thinned,
    }


def rates(
    backend: str, path: Path, rows: int, batch: int, rounds: int, steps: int
) -> dict[str, Any]:
    """Seconds of a step from the file and on rows in memory, which take turns."""
    module = importlib.import_module(f"benchmarks.batches.{backend}_fits")
    loader = file.FileBatches(path, batch)
    kept = min(rows, IN_MEMORY)
    x, y = (
        np.array(each, np.float32)
        for each in (loader.rows[:kept, : file.COLUMNS], loader.rows[:kept, file.COLUMNS])
    )
    if backend == "numpyro":
        import jax

        x, y = jax.device_put((x, y))
    from_file = module.Fit(rows, None, PARTICLES, RATE)
    in_memory = module.Fit(kept, batch, PARTICLES, RATE)
    found: dict[str, list[float]] = {"file": [], "memory": []}
    for turn in range(rounds + 1):
        for name in found:
            started = time.perf_counter()
            if name == "file":
                from_file.run(steps, batches=loader)
            else:
                in_memory.run(steps, x, y)
            if turn:  # the first compiles
                found[name].append((time.perf_counter() - started) / steps)
    ratio = np.median(np.array(found["memory"]) / np.array(found["file"]))
    return {"seconds a step": found, "rate": float(ratio), "rows in memory": kept}


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison and write what it found; the exit status."""
    path: Path = arguments.data or arguments.out / "batches-rows.bin"
    resumed = {"resume": arguments.resume, "retry_failed": arguments.retry_failed}
    study = Study("batches", arguments.out, **resumed)
    try:
        for backend in backends_of(arguments.backend):
            for part in PARTS:
                _run_part(study, arguments, path, backend, part)
    finally:
        if not arguments.keep:
            path.unlink(missing_ok=True)
    return study.report(study.overview(), plot)


PARTS = ("fit", "rate")


def _run_part(
    study: Study, arguments: argparse.Namespace, path: Path, backend: str, what: str
) -> None:
    settings = {"rows": arguments.rows, "columns": file.COLUMNS, "batch": arguments.batch}
    options: tuple[Any, ...] = (backend, path, arguments.rows, arguments.batch)
    if what == "rate":
        settings |= {"rounds": arguments.rounds, "steps": arguments.steps}
        options = (*options, arguments.rounds, arguments.steps)
    settings |= {"particles": PARTICLES, "bytes of the file": file.size_of(arguments.rows)}

    def work() -> dict[str, Any]:
        file.write(path, arguments.rows)
        # A process of its own, whose memory is that of the fit.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(fitted if what == "fit" else rates, options)

    study.run(what, backend, "logistic regression", 0, settings, work)


def page_table(runs: list[Record]) -> str:
    """The table on the page."""
    found = {(each.method, each.backend): each.figures for each in runs if not each.failed}
    rows: list[dict[str, Any]] = [
        {"": "peak memory, GB", "goal": "2"},
        {"": "of it before the fit, GB"},
        {"": "steps a second, over those on rows in memory", "goal": "0.8"},
        {"": "largest error of a coefficient"},
    ]
    for backend, name in records.LABELS.items():
        fit, rate = found["fit", backend], found["rate", backend]
        rows[0][name] = f"{fit['peak bytes'] / 1e9:.2f}"
        rows[1][name] = f"{fit['bytes of the libraries'] / 1e9:.2f}"
        rows[2][name] = f"{rate['rate']:.2f}"
        rows[3][name] = f"{fit['largest error of a coefficient']:.3f}"
    return records.markdown_table(rows, ["", *records.LABELS.values(), "goal"])


def plot(runs: Sequence[Record], path: Path) -> None:
    """Memory of a fit from the file, and the rate of its steps."""
    figure, (left, right) = subplots(1, 2, figsize=(10, 3.5))
    labels, ratios = [], []
    for each in runs:
        if each.failed:
            continue
        if each.method == "fit":
            trace = each.figures["gigabytes"]
            left.plot(np.linspace(0.0, 1.0, len(trace)), trace, label=each.backend)
        else:
            seconds = each.figures["seconds a step"]
            labels.append(each.backend)
            ratios.append(np.array(seconds["memory"]) / np.array(seconds["file"]))
    left.axhline(MOST_BYTES / 1e9, color="grey", linewidth=0.8, linestyle="--")
    left.set(xlabel="share of the fit", ylabel="GB of memory of no file", ylim=(0.0, None))
    left.legend()
    if ratios:
        right.boxplot(ratios, tick_labels=labels)
    right.axhline(LEAST_RATE, color="grey", linewidth=0.8, linestyle="--")
    right.set(ylabel="steps a second from the file,\nover rows in memory", ylim=(0.0, None))
    save(figure, path, dpi=150)
