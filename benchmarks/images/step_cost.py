"""Time and memory of a single step on LeNet: SVGD, and Newton steps of three curvatures.

Each method steps in a process of its own, and the processes take turns, so that all see the same
machine. Memory is the largest resident set of a process, libraries and data included, and what of
it came after the libraries were loaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.images import lenet
from benchmarks.images.lenet import LL_SVN, SVGD, SVN_ADAPTIVE, Method, Plan
from benchmarks.memory import resident
from benchmarks.records import Record
from benchmarks.study import backends_of, modules_of, overview, write_report
from benchmarks.timing import timed
from benchmarks.turns import Started, take_turns

ROWS, BATCH, PARTICLES, ROUNDS = 512, 32, 5, 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A method, how many steps a curvature serves, and how many steps a turn has."""

    name: str
    method: Method
    curvature_every: int = 1
    steps: int = 10


CASES = (
    Case("SVGD", SVGD),
    Case("LL-SVN, Kronecker factors", LL_SVN),
    Case("SVN, diagonal", SVN_ADAPTIVE),
    Case("SVN, diagonal, every 10 steps", SVN_ADAPTIVE, 10),
    Case(
        "SVN, full curvature, dual solver",
        Method("SVN full", "SVN", "full", "full", "dual"),
        steps=2,
    ),
)


def main(arguments: argparse.Namespace) -> int:
    """Measure all cases and write the table."""
    batch_size = arguments.batch_size or BATCH
    particles = arguments.particles or PARTICLES
    out = arguments.out / "lenet"
    runs = []
    for name in backends_of(arguments.backend or "numpyro"):
        runs += measure(name, CASES, batch_size, particles, ROUNDS)
        for run in runs[-len(CASES) :]:
            records.append(out / "step_cost.jsonl", run)
    text = overview(runs, "seconds a step", "seconds to compile", "peak bytes, less libraries")
    write_report(out / "step_cost.md", text, runs)
    print(f"Wrote {out}.")
    return int(all(run.failed for run in runs))


def measure(
    backend: str, cases: tuple[Case, ...], batch_size: int, particles: int, rounds: int
) -> list[Record]:
    """One record for each case, failures included."""
    started = []
    for case in cases:
        record = Record("images lenet step cost", case.name, backend, "LeNet", seed=0)
        record.settings = {
            "batch_size": batch_size,
            "particles": particles,
            "curvature_every": case.curvature_every,
            "steps": case.steps,
            "rounds": rounds,
        }
        started.append((record, (backend, case, batch_size, particles)))
    take_turns(started, _start, rounds, "turns")
    runs = [record for record, _ in started]
    for record in runs:
        if not record.failed:
            record.figures["seconds a step"] = float(np.median(record.figures["turns"]))
            print(f"{backend}, {record.method}: {record.figures}", flush=True)
    return runs


def _start(backend: str, case: Case, batch_size: int, particles: int) -> Started:
    (module,) = modules_of(backend, "images.{}_lenet", None)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 28, 28)).astype(np.float32)
    y = generator.integers(0, lenet.CLASSES, ROWS)
    before = _peak("VmRSS")
    plan = Plan(1_000_000, batch_size, particles, case.curvature_every, 0.5)
    started = time.perf_counter()
    rate = 1.0 if case.method.engine == "SVN" and not case.method.adam else 1e-3
    trainer = module.Trainer(case.method, x, y, plan, rate, 0)
    trainer.advance(1)
    first = {"seconds to compile": time.perf_counter() - started}

    def end() -> dict[str, Any]:
        peak = _peak("VmHWM")
        own = None if peak is None or before is None else peak - before
        return {
            "weights": trainer.num_weights,
            "peak bytes": peak,
            "peak bytes, less libraries": own,
        }

    return Started(lambda: timed(lambda: trainer.advance(case.steps)) / case.steps, end, first)


def _peak(name: str) -> int | None:
    try:
        return resident(name)
    except OSError:  # not Linux
        return None
