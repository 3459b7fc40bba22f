"""Memory of one process over many steps of one engine, and over many engines made and dropped.

In each package, in a process of its own: runs of one ``SVGD`` one after another (50,000 steps,
after as many in which all is compiled),
then 200 engines in turn (``SVGD``, ``ProximalScoreVI``, ``FisherVI``), each made, run, saved,
loaded, asked for draws, copied and dropped. The process's resident memory is read after each.
Growth is that of the median of the last fifth of the readings over the second fifth; the goal is
at most 2 % in each half. Written to soak.jsonl, soak.md and soak.png.
"""

from __future__ import annotations

import argparse
import copy
import gc
import multiprocessing
import os
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks import records
from benchmarks.arguments import add_common, count
from benchmarks.process.fits import ENGINES, Fits
from benchmarks.study import Study, save, subplots

READINGS, STEPS_OF_AN_ENGINE, GOAL = 50, 50, 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks soak`."""
    add_common(parser)
    parser.add_argument("--steps", type=count, default=50_000, help="of one engine")
    parser.add_argument("--engines", type=count, default=200, help="made and dropped")
    parser.add_argument(
        "--redraw",
        action="store_true",
        help="run nothing; table and plot from the records in the output folder",
    )


def resident() -> float:
    """Megabytes that the process holds in memory, after its garbage is collected."""
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(readings: list[float]) -> float:
    """Of the last fifth of the readings over the second, as a fraction."""
    fifth = max(len(readings) // 5, 1)
    return float(np.median(readings[-fifth:]) / np.median(readings[fifth : 2 * fifth]) - 1.0)


def long_run(package: str, steps: int) -> list[float]:
    """Memory in the course of one engine's steps, in :data:`READINGS` runs.

    After as many steps: NumPyro compiles a second program for the later steps of long runs.
    """
    fits, found = Fits(package), []
    engine = fits.make("SVGD")
    state = fits.run(engine, None, steps)
    for _ in range(READINGS):
        state = fits.run(engine, state, max(steps // READINGS, 1))
        fits.samples(engine, state)
        found.append(resident())
    return found


def many_engines(package: str, number: int) -> list[float]:
    """Memory after each of many engines that are dropped."""
    fits, found = Fits(package), []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Full scores of minibatches are not what this is about
        for turn in range(number):
            _one_engine(fits, ENGINES[turn % len(ENGINES)], os.path.join(folder, "state"))
            found.append(resident())
    return found


def _one_engine(fits: Fits, name: str, path: str) -> None:
    engine = fits.make(name)
    state = fits.run(engine, None, STEPS_OF_AN_ENGINE, checkpoint=path)
    fits.samples(engine, state)
    copied = copy.deepcopy(engine)
    fits.run(copied, fits.load(copied, path), 1)


PHASES = {"one engine": (long_run, "steps"), "many engines": (many_engines, "engines")}


def measure(package: str, steps: int, engines: int) -> dict[str, tuple[list[float], float]]:
    """Readings and seconds of both halves, in this process."""
    found = {}
    for phase, number in zip(PHASES, (steps, engines), strict=True):
        started = time.perf_counter()
        readings = PHASES[phase][0](package, number)
        found[phase] = readings, time.perf_counter() - started
    return found


def main(arguments: argparse.Namespace) -> int:
    """Run it; the exit status is 1 where a package fails or grows."""
    out: Path = arguments.out
    path = out / "soak.jsonl"
    if not arguments.redraw:
        records.moved_aside(path)
        for package in ("pyro", "numpyro"):
            if arguments.backend in (package, "both"):
                _run(package, arguments, path)
    study = Study.recorded("soak", out)
    study.report(study.overview("first", "last", "growth"), plot)
    good = [not each.failed and each.figures["growth"] <= GOAL for each in study.runs]
    return 0 if all(good) else 1


def _run(package: str, arguments: argparse.Namespace, path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    settings = {"steps": arguments.steps, "engines": arguments.engines}
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        try:
            found = pool.submit(measure, package, arguments.steps, arguments.engines).result()
        except Exception as error:  # noqa: BLE001 a failure is a record
            found, told = {}, f"{type(error).__name__}: {error}"
            failed = records.Record("soak", "process", package, "regression", 0, settings)
            failed.error = told
            records.append(path, failed)
    for phase, (readings, seconds) in found.items():
        number = settings[PHASES[phase][1]]
        record = records.Record("soak", phase, package, "regression", 0, {"number": number})
        record.seconds = seconds
        record.figures = {
            "megabytes": [round(each, 2) for each in readings],
            "first": readings[0],
            "last": readings[-1],
            "growth": growth(readings),
        }
        records.append(path, record)


def page_table(found: Sequence[records.Record]) -> str:
    """Memory and its growth, for the page."""
    rows = [
        {
            "package": records.LABELS[each.backend],
            "half": each.method,
            "number": f"{each.settings['number']:,} {PHASES[each.method][1]}",
            "first MB": each.figures["first"],
            "last MB": each.figures["last"],
            "growth": f"{each.figures['growth']:.2%}",
            "seconds": each.seconds,
        }
        for each in found
    ]
    return records.markdown_table(rows)


def plot(found: Sequence[records.Record], path: Path) -> None:
    """Memory over steps and over engines."""
    figure, axes = subplots(1, 2, figsize=(9, 3.5))
    for axis, phase in zip(axes, PHASES, strict=True):
        for each in found:
            if each.method == phase and not each.failed:
                readings = np.array(each.figures["megabytes"])
                where = np.linspace(0, each.settings["number"], len(readings) + 1)[1:]
                axis.plot(where, readings, label=each.backend)
        axis.set(title=phase, xlabel=PHASES[phase][1], ylabel="resident memory (MB)")
        axis.set_ylim(0, 1.15 * axis.get_ylim()[1])
        axis.legend()
    save(figure, path)
