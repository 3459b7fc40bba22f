"""Minibatch scores: ``ProximalScoreVI`` against ADVI and others at equal score evaluations.

*logistic*: a logistic regression (5,000 rows, 30 weights, batches of 64) with a full-covariance
guide, judged against draws of the exact posterior; natural-gradient variational inference, which
neither host has, is compared too. *uci*: mean-field regression networks on eight UCI sets with
their published splits from the fifth on (the first four chose the constants of this project's
diagonal solver), judged on test rows. There the default starts cold, and so ADVI runs a second time
with the same temperatures of the entropy, which tells the closed form's part from the cold start's.
ADVI is the host's own SVI, tuned: its best learning rate is chosen for it with the answer at hand,
as is the natural gradient's. This project's engine has its defaults.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks import datasets, records
from benchmarks.datasets import Split
from benchmarks.predictive import predictive_scores
from benchmarks.records import Record
from benchmarks.score_vi import ANNEALED, NETWORK_METHODS, RIVALS, natural_gradient, problems
from benchmarks.study import Study, backends_of

RATES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
NETWORK_RATES = (1e-2, 3e-3, 1e-3)
LOGISTIC_METHODS = ("ours", "ours, gradient", "ADVI", "GSM", "BaM")
#: Constants of the diagonal closed form were chosen with splits 0 to 3, so these are left out.
FIRST_SPLIT = 4
#: Ratios of deviations and relative errors from which the page gives no figure.
FAR_OFF = 10.0
#: What networks are judged by.
SCORES = ("RMSE", "NLL")
TUNED = (*RIVALS, "natural gradient")


#: Scores and rows of a batch of each experiment.
SIZES = {"logistic": (10_000, 64), "uci": (20_000, 128)}


def run_logistic(arguments: argparse.Namespace) -> int:
    """Run the logistic comparison and write its table."""
    problem = problems.logistic(0)
    reference = problems.logistic_draws(problem)
    study = Study("score-vi", arguments.out)

    def fitted(backend: Any, method: str, scores: int, batch: int, seed: int, rate: Any) -> Any:
        mean, covariance = backend.fit_logistic(problem, method, scores, batch, seed, rate)
        return problems.moment_errors(mean, covariance, reference)

    cases = [(each, LOGISTIC_METHODS) for each in _backends(arguments, float64=True)]
    for backend, methods in [*cases, (natural_gradient, ("natural gradient",))]:
        seeds = range(arguments.seeds)
        _run(study, "logistic", "logistic", backend, methods, seeds, RATES, fitted, arguments.quick)
    return study.report(f"# Logistic regression\n\n{logistic_table(study.runs)}")


def _run(
    study: Study,
    experiment: str,
    model: str,
    backend: Any,
    methods: Sequence[str],
    seeds: Sequence[int],
    rates: Sequence[float],
    fitted: Callable[..., Any],
    quick: bool,
) -> None:
    """Runs of all methods on a problem, with all rates where they are tuned."""
    scores, batch = SIZES[experiment]
    scores = 1000 if quick else scores
    for method, seed in itertools.product(methods, seeds):
        for rate in rates if method in TUNED else (None,):
            settings = {"scores": scores, "batch": batch, "rate": rate}
            work = partial(fitted, backend, method, scores, batch, seed, rate)
            name = f"score-vi {experiment}"
            study.run(method, backend.BACKEND, model, seed, settings, work, benchmark=name)


#: Methods as the page names them.
NAMES = {
    "ours": "`ProximalScoreVI`, default",
    "ours, gradient": "`ProximalScoreVI`, gradient",
    "natural gradient": "natural gradient, tuned",
    "ADVI": "ADVI, tuned",
}
#: Methods on the networks as the page names them.
NETWORK_NAMES = {
    "ours": "default",
    "ours, gradient": "gradient solver",
    ANNEALED: ANNEALED,
    "ADVI": "ADVI",
}


def logistic_table(runs: Sequence[Record]) -> str:
    """Medians over seeds at the best rate of each method, for the page."""
    runs = [run for run in runs if run.benchmark == "score-vi logistic"]
    rows = []
    for key, chosen in itertools.groupby(
        tuned(runs, "worst mean error"), lambda run: (run.method, run.backend)
    ):
        found = [run.figures for run in chosen if not run.failed]
        if not found:
            continue
        middle = {name: np.median([each[name] for each in found]) for name in found[0]}
        rows.append(
            {
                "method": NAMES.get(key[0], key[0]),
                "package": key[1],
                "worst mean error (sd)": float(middle["worst mean error"]),
                "sd ratios": (
                    f"{middle['smallest sd ratio']:.2f} to {middle['largest sd ratio']:.2f}"
                    if middle["largest sd ratio"] < FAR_OFF
                    else "far off"
                ),
                "covariance error": (
                    f"{middle['covariance error']:.2f}"
                    if middle["covariance error"] < FAR_OFF
                    else "far off"
                ),
            }
        )
    rows.sort(key=lambda row: row["worst mean error (sd)"])
    return records.markdown_table(rows, digits=2)


def run_uci(arguments: argparse.Namespace) -> int:
    """Run the comparison on the UCI sets and write its table."""
    study = Study("score-vi", arguments.out)
    seeds = range(FIRST_SPLIT, FIRST_SPLIT + arguments.seeds)

    def load(name: str) -> dict[int, Split]:
        return {seed: problems.uci_split(name, seed) for seed in seeds}

    for name, splits in datasets.there(arguments.sets or problems.UCI, load):

        def fitted(
            backend: Any,
            method: str,
            scores: int,
            batch: int,
            seed: int,
            rate: Any,
            splits: dict[int, Split] = splits,
        ) -> dict[str, float]:
            draws = backend.fit_network(splits[seed], method, scores, batch, seed, rate)
            return predictive_scores(draws, splits[seed])

        methods = arguments.methods or NETWORK_METHODS
        for backend in _backends(arguments, float64=False):
            quick = arguments.quick
            _run(study, "uci", name, backend, methods, seeds, NETWORK_RATES, fitted, quick)
    return study.report(f"# Networks\n\n{uci_table(study.runs)}")


def uci_table(runs: Sequence[Record]) -> str:
    """Test RMSE and NLL of the networks at the best rate of each method, for the page."""
    chosen = tuned([run for run in runs if run.benchmark == "score-vi uci"], "NLL")
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for found in _rows(chosen, SCORES):
        row = rows.setdefault((found["problem"], found["backend"]), {})
        row |= {"set": found["problem"].replace("_", " "), "package": found["backend"]}
        for name in SCORES:
            row[f"{name}: {NETWORK_NAMES[found['method']]}"] = found[name]
    columns = [f"{name}: {method}" for name in SCORES for method in NETWORK_NAMES.values()]
    return records.markdown_table(list(rows.values()), ["set", "package", *columns])


def _backends(arguments: argparse.Namespace, float64: bool) -> list[Any]:
    found = []
    for name in backends_of(arguments.backend):
        module = importlib.import_module(f"benchmarks.score_vi.{name}_fits")
        module.configure(float64)
        found.append(module)
    return found


def tuned(runs: Sequence[Record], name: str) -> list[Record]:
    """The runs of each method's best learning rate, by the mean of a figure over its seeds."""
    groups: dict[tuple[str, str, str], dict[Any, list[Record]]] = {}
    for run in runs:
        group = groups.setdefault((run.model, run.backend, run.method), {})
        group.setdefault(run.settings["rate"], []).append(run)

    def mean(candidates: list[Record]) -> float:
        # A rate at which one run fails is worse than any at which none does.
        found = float(np.mean([run.figures.get(name, np.inf) for run in candidates]))
        return np.inf if np.isnan(found) else found

    return [run for group in groups.values() for run in min(group.values(), key=mean)]


def _rows(runs: Sequence[Record], names: Sequence[str]) -> list[dict[str, Any]]:
    """Means over the runs of each method that did not fail."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for run in runs:
        groups.setdefault((run.model, run.backend, run.method), []).append(run)
    rows = []
    for key, own in groups.items():
        row: dict[str, Any] = dict(zip(("problem", "backend", "method"), key, strict=True))
        whole = [run.figures for run in own if not run.failed]
        for name in names:
            row[name] = float(np.mean([found[name] for found in whole])) if whole else None
        rows.append(row)
    return rows
