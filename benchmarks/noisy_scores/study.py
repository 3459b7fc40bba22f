"""All runs of the study."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.noisy_scores import figures, report
from benchmarks.noisy_scores.figures import Best, Floats, failures, oracle
from benchmarks.noisy_scores.problems import Problem, make_problems, start_of
from benchmarks.noisy_scores.report import CLOSED
from benchmarks.posteriordb.database import Database
from benchmarks.records import Record
from benchmarks.study import Study

RIVALS, ABLATIONS = tuple(report.METHODS)[1:], tuple(report.ABLATED)[1:]
#: What the part "long" and the parts "ablations" and "Pyro" run on.
LONG_LEVEL, LONG_FACTORS, LONG_SEEDS = 10.0, (1, 5, 20), 5
LONG_METHODS = (CLOSED,)
ABLATED = ("Normal", "arK")
IN_PYRO, PYRO_SEEDS = ("Normal", "linear regression"), 3
#: A look after each half of a power of ten, in scores that all methods' iterations divide.
EVERY, LOOKS = 8, 5


def run(arguments: argparse.Namespace) -> int:
    """Fit every problem with every method; the exit status."""
    seeds = min(2, arguments.seeds) if arguments.quick else arguments.seeds
    scores = arguments.scores // 10 if arguments.quick else arguments.scores
    problems = make_problems(Database.open())
    methods = (CLOSED, *RIVALS, *ABLATIONS)
    for given, known, what in (
        (arguments.problems, [p.name for p in problems], "problems"),
        (arguments.methods, list(methods), "methods"),
    ):
        unknown = sorted(set(given or ()) - set(known))
        if unknown:
            print(f"Expected {what} among {known}, found {unknown}.")
            return 2
    problems = [p for p in problems if not arguments.problems or p.name in arguments.problems]
    path: Path = arguments.out / "noisy-scores.jsonl"
    found = records.resumed(path, arguments.resume, arguments.retry_failed)
    done = {_key(r) for r in found}
    chosen = arguments.methods or methods
    for problem in problems:
        wanted = _wanted(problem, arguments.parts, chosen, seeds, scores)
        wanted = [each for each in wanted if any(_key(r) not in done for r in each.records)]
        if wanted:
            begun = time.perf_counter()
            run_problem(problem, wanted, path)
            print(f"{problem.name}: {time.perf_counter() - begun:.0f} s", flush=True)
    study = Study.recorded("noisy-scores", arguments.out)
    text = study.overview("KL", "mean error", "sd error", "failures", by=("part", "level"))
    return study.report(text, report.picture)


@dataclass(frozen=True)
class Wanted:
    """Runs that are made together: one method on one problem, a record for each level."""

    part: str
    method: str
    records: list[Record]

    @property
    def settings(self) -> dict[str, Any]:
        """What all levels share."""
        return self.records[0].settings


def looks_of(scores: int) -> list[int]:
    """Numbers of scores at which runs are looked at; the last is the end."""
    even = [scores / 10 ** (k / 2) for k in range(LOOKS)][::-1]
    return [0, *(max(EVERY, round(look / EVERY) * EVERY) for look in even)]


def _wanted(
    problem: Problem, parts: Sequence[str], methods: Sequence[str], seeds: int, scores: int
) -> list[Wanted]:
    """What is to be run of a problem, in order."""
    found = []

    def add(part: str, method: str, levels: Sequence[float], count: int, number: int) -> None:
        backend = "pyro" if part == "Pyro" else "numpyro"
        settings = {"part": part, "group": problem.group, "seeds": number, "scores": count}
        looks = looks_of(count) if part != "long" else [0, *(f * scores for f in LONG_FACTORS)]
        made = [
            Record(
                "noisy-scores",
                method,
                backend,
                problem.name,
                settings={**settings, "level": level, "looks": looks},
            )
            for level in levels
        ]
        found.append(Wanted(part, method, made))

    for method in methods:
        if "comparison" in parts and method in (CLOSED, *RIVALS):
            add("comparison", method, problem.levels, scores, seeds)
        if "ablations" in parts and method in ABLATIONS and problem.name in ABLATED:
            add("ablations", method, problem.levels, scores, seeds)
        if "long" in parts and method in LONG_METHODS and problem.group == "Normal":
            add("long", method, (LONG_LEVEL,), LONG_FACTORS[-1] * scores, min(LONG_SEEDS, seeds))
        if "Pyro" in parts and method == CLOSED and problem.name in IN_PYRO:
            add("Pyro", method, problem.levels, scores, min(PYRO_SEEDS, seeds))
    return found


def _key(record: Record) -> tuple[Any, ...]:
    of_settings = tuple(record.settings[name] for name in ("part", "level", "seeds", "scores"))
    return (record.model, record.method, record.backend, *of_settings)


def run_problem(problem: Problem, wanted: Sequence[Wanted], path: Path) -> None:
    """Make runs of one problem and append their records."""
    from benchmarks.noisy_scores import numpyro_runs

    numpyro_runs.configure()
    prepared = numpyro_runs.prepare(problem)
    best = prepared.best
    for each in wanted:
        levels = [record.settings["level"] for record in each.records]
        seeds, looks = each.settings["seeds"], each.settings["looks"]
        streams = [(level, seed) for level in levels for seed in range(seeds)]
        begun = time.perf_counter()
        error: str | None = None
        mean: Floats | None = None
        scale: Floats | None = None
        try:
            if each.part == "Pyro":
                mean, scale = _in_pyro(problem, prepared, streams, looks[-1])
                for record in each.records:
                    record.settings["looks"] = [0, looks[-1]]
            else:
                mean, scale = numpyro_runs.run(prepared, each.method, streams, looks[-1], looks)
        except Exception as found:  # noqa: BLE001 - a method that breaks down is a result
            error = f"{type(found).__name__}: {found}"
        seconds = (time.perf_counter() - begun) / len(levels)
        for index, record in enumerate(each.records):
            bound = prepared.bounds[levels[index]]
            record.seconds, record.error = seconds, error
            record.settings["dim"] = prepared.dim
            record.settings["rates"] = list(numpyro_runs.rates_of(each.method))
            record.figures["bound"] = bound.symmetric
            record.figures["plain bound"] = bound.plain
            record.figures["best to reference"] = float(_to_reference(best))
            if mean is not None and scale is not None:
                own = slice(index * seeds, (index + 1) * seeds)
                record.figures.update(judged(best, mean[:, :, own], scale[:, :, own]))
        records.append(path, *each.records)
        told = f"  {each.part}, {each.method}: {seconds * len(levels):.0f} s {error or ''}"
        print(told, flush=True)
    numpyro_runs.release()


def _to_reference(best: Best) -> Floats:
    root: Floats = np.asarray(np.linalg.cholesky(best.reference_covariance), np.float64)
    return figures.normal_divergence(best.mean, best.scale_tril, best.reference_mean, root)


def judged(best: Best, mean: Floats, scale: Floats) -> dict[str, Any]:
    """Figures of runs (looks, rates, seeds, D) and (looks, rates, seeds, D, D), the oracle's."""
    divergence = best.divergence(mean, scale)
    chosen = oracle(divergence[-1])
    along = best.judge(mean[:, chosen], scale[:, chosen])
    found = {
        "oracle": chosen,
        "KL": divergence[:, chosen],
        "final": divergence[-1],
        "failures": failures(divergence[-1, chosen], divergence[0, chosen]),
        "mean error": along["mean error"][-1],
        "sd error": along["sd error"][-1],
        "variance": along["mean variance ratio"],
    }
    return {name: _short(value) for name, value in found.items()}


def _short(value: Any) -> Any:
    """Numbers to four digits: a record holds hundreds."""
    if not isinstance(value, np.ndarray):
        return value
    return np.vectorize(lambda number: float(f"{number:.4g}"), otypes=[float])(value)


def _in_pyro(
    problem: Problem, prepared: Any, streams: Sequence[tuple[float, int]], scores: int
) -> tuple[Floats, Floats]:
    """Runs in Pyro with their starts, as those of NumPyro come."""
    from benchmarks.noisy_scores import pyro_runs

    pyro_runs.configure()
    program = pyro_runs.program_of(problem, prepared.mean, prepared.deviations)
    starts = [start_of(seed, prepared.best).modes[0] for _, seed in streams]
    ends = [pyro_runs.run(program, prepared.best, *stream, scores) for stream in streams]
    mean = np.stack([[mode.mean for mode in starts], [end[0] for end in ends]])
    scale = np.stack([[mode.factor for mode in starts], [end[1] for end in ends]])
    return mean[:, None], scale[:, None]
