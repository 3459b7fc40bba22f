"""Runs of the synthetic experiments: every fit is judged on its way, and every run recorded."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.records import Record
from benchmarks.study import Study
from benchmarks.synthetic.experiments import ELBO_GAP, FORWARD, Case, Experiment, Method, target_of
from benchmarks.synthetic.targets import (
    SPREAD,
    Mixture,
    best_normal,
    divergence,
    parameter_error,
    reverse_divergence,
)

#: Draws from the target (forward KL) and from the fit (ELBO).
DRAWS = 20_000

PARAMETER_ERROR = "parameter error"
STANDARD_ERROR = "standard error of the forward KL"


class Judge:
    """Distances of fits to one target, by the same draws for all of them."""

    def __init__(self, target: Mixture, seed: int, draws: int = DRAWS) -> None:
        generator = np.random.default_rng([2, target.dim, target.order, seed])
        self.target = target
        self._draws = target.sample(draws, generator)
        self._noise = generator.normal(size=(draws, target.dim))

    @functools.cached_property
    def _best(self) -> float:
        best = best_normal(self.target, self._noise)
        return reverse_divergence(best, self.target, self._noise).value

    def look(self, figures: dict[str, Any], case: Case, evaluations: int, fit: Mixture) -> None:
        """Add the fit to the figures of a run, which hold one list for each distance."""

        def add(name: str, value: float) -> None:
            figures.setdefault(name, []).append(value)

        add("evaluations", evaluations)
        # A fit that has run away is told by its figures, and need not be by warnings too.
        with np.errstate(over="ignore", invalid="ignore"):
            forward = divergence(self.target, fit, self._draws)
            add(FORWARD, forward.value)
            add(STANDARD_ERROR, forward.error)
            if fit.order == self.target.order == 1:
                add(PARAMETER_ERROR, parameter_error(fit, self.target))
            if case.measure == ELBO_GAP:
                reverse = reverse_divergence(fit, self.target, self._noise)
                add(ELBO_GAP, reverse.value - self._best)


@functools.lru_cache(maxsize=32)
def judge_of(dim: int, order: int, seed: int) -> Judge:
    """The judge of the target of this dimension and order that belongs to a seed."""
    return Judge(target_of(dim, order, seed), seed)


def run_case(
    study: Study, experiment: Experiment, case: Case, backend: ModuleType, seeds: Sequence[int]
) -> list[Record]:
    """Run all methods of a case.

    A method with a tuned rate is run with every rate and every seed, so that the choice among the
    rates is the best in hindsight.
    """
    found = []
    for method in case.methods:
        for rate in method.rates or (None,):
            settings = {
                "experiment": experiment.name,
                **case.settings(),
                **dict(method.options),
                "rate": rate,
                "constant_rate": method.constant_rate,
                "spread": SPREAD,
                "draws": DRAWS,
                "float64": backend.is_float64(),
            }
            for seed in seeds:
                judge = judge_of(case.dim, case.target_order, seed)

                def work(
                    figures: dict[str, Any],
                    method: Method = method,
                    rate: float | None = rate,
                    seed: int = seed,
                    judge: Judge = judge,
                ) -> None:
                    fitter = backend.fitter(case, method, rate)
                    fitter.fit(case, seed, functools.partial(judge.look, figures, case))

                name = backend.BACKEND
                found.append(study.follow(method.name, name, case.name, seed, settings, work))
    return found


def final(record: Record, measure: str) -> float:
    """The last value of a figure; infinite for a failed run and for one that is not a number."""
    values = record.figures.get(measure)
    if record.failed or not values:
        return float("inf")
    return float("inf") if np.isnan(values[-1]) else float(values[-1])


def median_final(found: Iterable[Record], measure: str) -> float:
    """Median of :func:`final` over runs."""
    values = sorted(final(record, measure) for record in found)
    # Not NumPy's: the mean of a number and infinity should be infinity without a warning.
    middle = len(values) // 2
    if len(values) % 2:
        return values[middle]
    return 0.5 * (values[middle - 1] + values[middle])


def chosen_runs(found: Sequence[Record], case: Case, method: Method) -> list[Record]:
    """The runs of a method in a case, at its best rate if it has several."""
    own = [record for record in found if (record.model, record.method) == (case.name, method.name)]
    by_rate: dict[Any, list[Record]] = {}
    for record in own:
        by_rate.setdefault(record.settings["rate"], []).append(record)
    if not by_rate:
        return []
    best = min(by_rate, key=lambda rate: median_final(by_rate[rate], case.measure))
    return by_rate[best]


def evaluations_below(record: Record, threshold: float) -> float:
    """Score evaluations after which the forward KL was first seen below a threshold."""
    values = record.figures.get(FORWARD, [])
    for evaluations, value in zip(record.figures.get("evaluations", []), values, strict=True):
        if value < threshold:
            return float(evaluations)
    return float("inf")


def evaluations_per_iteration(record: Record) -> int | None:
    """Score evaluations of one iteration; None when the run did not get through one."""
    seen = record.figures.get("evaluations", [])
    # The first two looks are at the start and after one iteration.
    return int(seen[1]) if len(seen) > 1 else None
