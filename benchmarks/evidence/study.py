"""Runs of the benchmark, and its table."""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import partial
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.evidence.problems import Problem, problems
from benchmarks.hosts import fitted, host_of
from benchmarks.records import Record
from benchmarks.study import Study

#: Stated errors within which a value is right, and nats of error that are small.
ERRORS, SMALL = 3.0, 0.05


def run(arguments: argparse.Namespace) -> int:
    """Run all that is chosen and not recorded yet."""
    resumed = {"resume": arguments.resume, "retry_failed": arguments.retry_failed}
    study = Study("evidence", arguments.out, **resumed)
    patterns = arguments.problems or ["*"]
    chosen = [each for each in problems() if any(fnmatch(each.name, p) for p in patterns)]
    for backend in arguments.backends:
        for problem in chosen:
            for seed in range(arguments.seeds):
                work = partial(measured, problem, backend, seed)
                study.run("bridge", backend, problem.name, seed, {}, work)
    study.report(table(study.runs))
    return int(any(each.failed for each in study.runs))


def measured(problem: Problem, backend: str, seed: int) -> dict[str, Any]:
    """The evidence of a fit beside that which is known."""
    host = host_of(backend)
    program = partial(problem.program, host)
    args = tuple(map(host.array, problem.arguments))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fitted(backend, program, *args, seed=seed)
        found = fit.log_evidence
    return {
        "family": problem.family,
        "dim": problem.dim,
        "known": problem.log_evidence,
        "value": math.nan if found.value is None else found.value,
        "error": math.nan if found.error is None else found.error,
        "reason": found.reason,
        "level": fit.verdict.level,
        "evaluations": found.evaluations,
        "evaluations of the fit": fit.verdict.evaluations,
    }


def table(found: Sequence[Record]) -> str:
    """By family: how many are within three stated errors, and how large these are."""
    rows = []
    whole = [each for each in found if not each.failed]
    families = list(dict.fromkeys(each.figures["family"] for each in whole))
    for backend in dict.fromkeys(each.backend for each in whole):
        for family in (*families, "all"):
            own = [
                each.figures
                for each in whole
                if each.backend == backend and family in (each.figures["family"], "all")
            ]
            if own:
                rows.append({"package": records.LABELS[backend], "family": family, **_row(own)})
    return records.markdown_table(rows)


def _row(own: Sequence[dict[str, Any]]) -> dict[str, Any]:
    value, error, known = (
        np.array([each[name] for each in own], float) for name in ("value", "error", "known")
    )
    has = np.isfinite(value)
    scores = np.abs(value - known)[has] / error[has]
    return {
        "programs": len(own),
        "with evidence": int(has.sum()),
        "within 3 errors": float((scores < ERRORS).mean()) if has.any() else math.nan,
        "root mean square of errors off": float(np.sqrt(np.mean(np.square(scores)))),
        f"error below {SMALL} nats": float((error[has] < SMALL).mean()),
        "median error": float(np.median(error[has])),
        "largest error": float(error[has].max(initial=0.0)),
        "evaluations": float(np.median([each["evaluations"] for each in own])),
    }
