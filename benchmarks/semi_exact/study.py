"""All runs of the study."""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.posteriordb.database import Database, scatter
from benchmarks.semi_exact import report
from benchmarks.semi_exact.figures import FIGURES, Floats, Truth
from benchmarks.semi_exact.methods import DEFAULT, EXACT, MARGINAL, METHODS, STRETCHED
from benchmarks.semi_exact.problems import Problem, make_problems
from benchmarks.study import Study, backends_of

#: First rate of Adam in units of the start's deviations, whose geometric mean is taken.
RATE = 0.1


def run(arguments: argparse.Namespace) -> int:
    """Fit every problem with every method; the exit status."""
    problems = [p for p in make_problems(Database.open()) if p.group in arguments.groups]
    for given, known, what in (
        (arguments.problems, [p.name for p in problems], "problems"),
        (arguments.methods, list(METHODS), "methods"),
    ):
        unknown = sorted(set(given or ()) - set(known))
        if unknown:
            print(f"Expected {what} among {known}, found {unknown}.")
            return 2
    problems = [p for p in problems if not arguments.problems or p.name in arguments.problems]
    path = arguments.out / "semi-exact.jsonl"
    found = records.resumed(path, arguments.resume, arguments.retry_failed)
    done = {_key(r) for r in found}
    backends = backends_of(arguments.backend)
    for backend in backends:
        fits = importlib.import_module(f"benchmarks.semi_exact.{backend}_fits")
        fits.configure()
        chosen = arguments.methods or list(METHODS)
        if arguments.backend == "both" and backend == "pyro":
            chosen = [name for name in (DEFAULT, MARGINAL, EXACT, STRETCHED) if name in chosen]
        for problem in problems:
            begun = time.perf_counter()
            if run_problem(
                problem, backend, fits, chosen, arguments.seeds, arguments.steps, path, done
            ):
                seconds = time.perf_counter() - begun
                print(f"{backend}, {problem.name}: {seconds:.0f} s", flush=True)
                fits.release()
    study = Study.recorded("semi-exact", arguments.out)
    return study.report(study.overview(*FIGURES), report.picture)


def _key(record: records.Record) -> tuple[Any, ...]:
    return (record.model, record.method, record.backend, record.seed, record.settings["steps"])


def run_problem(
    problem: Problem,
    backend: str,
    fits: Any,
    methods: Sequence[str],
    seeds: int,
    steps: int,
    path: Any,
    done: set[tuple[Any, ...]],
) -> bool:
    """Runs of one problem that are not done; whether there were any."""
    settings: dict[str, Any] = {
        "group": problem.group,
        "family": problem.family,
        "dim": problem.dim,
        "particles": problem.particles,
        "ratio": problem.ratio,
        "steps": steps,
    }
    wanted = [
        records.Record("semi-exact", method, backend, problem.name, seed, dict(settings))
        for method in methods
        for seed in range(seeds)
    ]
    wanted = [record for record in wanted if _key(record) not in done]
    if not wanted:
        return False
    program = problem.program(fits)
    draws = problem.reference(program)
    truth = Truth.of(draws, problem.moments, _further(problem, program, draws))
    # All methods start from the same, and take as many gradients from there.
    starts = {seed: program.start(seed) for seed in sorted({r.seed or 0 for r in wanted})}
    rate = RATE * _typical_deviation(starts[min(starts)])
    fitters: dict[str, Any] = {}
    for record in wanted:
        record.settings["rate"] = rate
        start = starts[record.seed or 0]
        record.settings["evaluations of the start"] = start.evaluations
        with records.recorded_run(path, record, go_on_after=(Exception,)):
            if record.method not in fitters:
                kernel = METHODS[record.method](fits.kernels)
                fitters[record.method] = fits.Fitter(
                    program, kernel, problem.particles, rate, steps
                )
            particles = fitters[record.method].fit(record.seed or 0, start)
            further = _further(problem, program, particles)
            record.figures.update(truth.judge(particles, further))
    return True


def _typical_deviation(start: Any) -> float:
    """Geometric mean of a start's deviations, to two digits so that both packages take the same."""
    return float(f"{np.exp(np.log(start.modes[0].deviations).mean()):.2g}")


def _further(problem: Problem, program: Any, z: Floats) -> dict[str, Floats]:
    """Parameters that are no coordinates, by scalar."""
    return dict(scatter(program.parameters(z), rank=1)) if problem.further else {}
