"""One run: a method on a problem in a host with a seed, judged."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.trust.judge import judge
from benchmarks.trust.methods import Fitted, Size, judged_by_itself, run_method
from benchmarks.trust.problems import Problem
from benchmarks.trust.target import Target, precision

#: The host in which draws are judged.
JUDGE = "pyro"


@dataclass(frozen=True)
class Case:
    """What is run.

    Attributes
    ----------
    problem, backend, method : str
    seed : int
    double : bool
        Precision of the run; the judge's is always double.
    share : float
        Of the recipe's steps and draws.
    """

    problem: str
    backend: str
    method: str
    seed: int
    double: bool = False
    share: float = 1.0


def figures_of(case: Case, problem: Problem) -> dict[str, Any]:
    """Figures of a run.

    ``seconds to draws`` are wall-clock seconds from construction to draws in NumPy, compiling
    included; imports and the data's way to the device are not. ``processor seconds`` are those of
    all threads meanwhile, which other work on the machine changes little. ``answerable`` is whether
    there is a right answer in this precision, ``right`` and ``trusted`` are what the judge and the
    method say of the draws.
    """
    with precision(case.backend, double=case.double), warnings.catch_warnings():
        # Of hosts about their own internals.
        warnings.simplefilter("ignore")
        program = problem.program(case.backend)
        started, processor = time.perf_counter(), time.process_time()
        fitted = run_method(case.method, case.backend, program, case.seed, Size(case.share))
        seconds, worked = time.perf_counter() - started, time.process_time() - processor
        found: dict[str, Any] = {
            "kind": problem.kind,
            "answerable": problem.proper and (case.double or problem.single),
            "seconds to draws": seconds,
            "processor seconds": worked,
            "evaluations": fitted.evaluations,
            "warm-up": fitted.warm_up,
            "stages": list(fitted.stages),
        }
    return found | judged(problem, fitted)


def judged(problem: Problem, fitted: Fitted) -> dict[str, Any]:
    """What the judge and the method say of draws.

    Unconstrained coordinates are those of the program in Pyro, which are NumPyro's, in double
    precision: JAX takes some of what it has traced from one precision into the other, and Pyro
    compiles nothing.
    """
    with precision(JUDGE, double=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = problem.program(JUDGE)
        return _judged(problem, fitted, Target(JUDGE, program.model, program.args, program.kwargs))


def _judged(problem: Problem, fitted: Fitted, target: Target) -> dict[str, Any]:
    draws = {name: fitted.draws[name] for name in target.target.layout.names}
    lead = 2 if fitted.chains else 1
    shape = next(iter(draws.values())).shape[:lead]
    if fitted.chains:
        draws = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}
    found: dict[str, Any] = {"dimension": target.dim, "draws": int(np.prod(shape))}
    if not all(np.isfinite(value).all() for value in draws.values()):
        # R-hat of such chains is not finite either.
        told = [*fitted.reasons, *(["R-hat nan"] if fitted.chains else [])]
        trusted = not fitted.chains and fitted.trusted is not False
        found |= {"trusted": trusted, "level": fitted.level, "told": told}
        right = False if problem.proper else None
        return found | {"right": right, "reasons": ["draws that are not finite"]}
    columns = problem.columns(target, draws)
    chains = {name: value.reshape(shape) for name, value in columns.items()}
    found |= judged_by_itself(fitted, chains)
    if not problem.proper:
        return found | {"right": None}
    reference = problem.reference_columns(target)
    return found | judge(columns, reference, effective=fitted.effective).figures()
