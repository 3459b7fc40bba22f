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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.datasets import MissingDataError
from benchmarks.predictive import predictive_scores
from benchmarks.records import Record
from benchmarks.score_vi import ANNEALED, NETWORK_METHODS, RIVALS, natural_gradient, problems
from benchmarks.study import save, subplots

BACKENDS = {"numpyro": ("numpyro",), "pyro": ("pyro",), "both": ("numpyro", "pyro")}
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


def run_logistic(arguments: argparse.Namespace) -> int:
    """Run the logistic comparison and write its table."""
    scores, batch_size = (1000, 64) if arguments.quick else (10_000, 64)
    problem = problems.logistic(0)
    reference = problems.logistic_draws(problem)
    runs = []
    cases = [(each, LOGISTIC_METHODS) for each in _backends(arguments, float64=True)]
    for backend, methods in [*cases, (natural_gradient, ("natural gradient",))]:
        for method in methods:
            for seed in range(arguments.seeds):
                for rate in RATES if method in TUNED else (None,):
                    record = _record("score-vi logistic", method, backend, "logistic", seed)
                    record.settings = {"scores": scores, "batch": batch_size, "rate": rate}
                    with _recorded(arguments.out, record):
                        mean, covariance = backend.fit_logistic(
                            problem, method, scores, batch_size, seed, rate
                        )
                        record.figures = problems.moment_errors(mean, covariance, reference)
                    runs.append(record)
                    _show(record, "worst mean error", "worst sd error")
    chosen = _tuned(runs, "worst mean error")
    names = list(problems.moment_errors(reference.mean(0), np.cov(reference.T), reference))
    rows = _rows(chosen, names)
    text = records.markdown_table(rows)
    print(text)
    records.write_text(arguments.out / "score-vi-logistic.md", text)
    return 0


#: Methods as the page names them.
NAMES = {
    "ours": "`ProximalScoreVI`, default",
    "ours, gradient": "`ProximalScoreVI`, gradient, one draw",
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
        _tuned(runs, "worst mean error"), lambda run: (run.method, run.backend)
    ):
        found = [run.figures for run in chosen if not run.failed]
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
    """Run the comparison on the UCI sets and write its table and plot."""
    scores, batch_size = (1000, 128) if arguments.quick else (20_000, 128)
    sets = arguments.sets or problems.UCI
    runs = []
    for name in sets:
        try:
            splits = [
                problems.uci_split(name, FIRST_SPLIT + index) for index in range(arguments.seeds)
            ]
        except MissingDataError as error:
            print(error)
            return 2
        for backend in _backends(arguments, float64=False):
            for method in arguments.methods or NETWORK_METHODS:
                for seed, split in enumerate(splits, start=FIRST_SPLIT):
                    for rate in NETWORK_RATES if method in TUNED else (None,):
                        record = _record("score-vi uci", method, backend, name, seed)
                        record.settings = {"scores": scores, "batch": batch_size, "rate": rate}
                        with _recorded(arguments.out, record):
                            draws = backend.fit_network(
                                split, method, scores, batch_size, seed, rate
                            )
                            record.figures = predictive_scores(draws, split)
                        runs.append(record)
                        _show(record, "RMSE", "NLL")
    chosen = _tuned(runs, "NLL")
    rows = _rows(chosen, SCORES)
    text = records.markdown_table(rows) + "\n" + _wins(rows)
    print(text)
    records.write_text(arguments.out / "score-vi-uci.md", text)
    _plot(rows, arguments.out / "score-vi-uci.png")
    return 0


def uci_table(runs: Sequence[Record]) -> str:
    """Test RMSE and NLL of the networks at the best rate of each method, for the page."""
    chosen = _tuned([run for run in runs if run.benchmark == "score-vi uci"], "NLL")
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
    for name in BACKENDS[arguments.backend]:
        module = importlib.import_module(f"benchmarks.score_vi.{name}_fits")
        module.configure(float64)
        found.append(module)
    return found


def _record(benchmark: str, method: str, backend: Any, model: str, seed: int) -> Record:
    return Record(benchmark, method, backend.BACKEND, model, seed=seed)


def _recorded(out: Path, record: Record) -> records.recorded_run:
    # A method that breaks down is a result.
    return records.recorded_run(out / "score-vi.jsonl", record, go_on_after=(Exception,))


def _show(record: Record, *names: str) -> None:
    figures = record.error or ", ".join(f"{name} {record.figures[name]:.3g}" for name in names)
    rate = record.settings["rate"]
    label = record.method if rate is None else f"{record.method} at {rate:g}"
    print(f"{record.backend} {record.model} {label} seed {record.seed}: {figures}", flush=True)


def _tuned(runs: Sequence[Record], name: str) -> list[Record]:
    """The runs of each method's best learning rate, by the mean of a figure over its seeds."""
    groups: dict[tuple[str, str, str], dict[Any, list[Record]]] = {}
    for run in runs:
        group = groups.setdefault((run.model, run.backend, run.method), {})
        group.setdefault(run.settings["rate"], []).append(run)

    def mean(candidates: list[Record]) -> float:
        # A rate at which one run fails is worse than any at which none does.
        return float(np.mean([run.figures.get(name, np.inf) for run in candidates]))

    return [run for group in groups.values() for run in min(group.values(), key=mean)]


def _rows(runs: Sequence[Record], names: Sequence[str]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for run in runs:
        key = (run.model, run.backend, run.method)
        row = rows.setdefault(
            key,
            {
                "problem": run.model,
                "backend": run.backend,
                "method": run.method,
                "rate": run.settings["rate"],
                "runs": 0,
                "failed": 0,
                "seconds": [],
                **{name: [] for name in names},
            },
        )
        row["runs"] += 1
        row["failed"] += int(run.failed)
        row["seconds"].append(run.seconds)
        for name in names:
            if not run.failed:
                row[name].append(run.figures[name])
    for row in rows.values():
        for name in ("seconds", *names):
            row[name] = float(np.mean(row[name])) if row[name] else None
    return list(rows.values())


def _wins(rows: Sequence[dict[str, Any]]) -> str:
    """On how many sets the default is at least as good as each tuned ADVI, for each backend."""
    lines = []
    for backend in dict.fromkeys(row["backend"] for row in rows):
        by = {(row["problem"], row["method"]): row for row in rows if row["backend"] == backend}
        sets = list(dict.fromkeys(problem for problem, _ in by))
        compared = {method for _, method in by}
        rivals = [rival for rival in RIVALS if {rival, "ours"} <= compared]
        for rival, name in itertools.product(rivals, ("RMSE", "NLL")):
            won = [
                problem
                for problem in sets
                if by[problem, "ours"][name] is not None
                and by[problem, rival][name] is not None
                and by[problem, "ours"][name] <= by[problem, rival][name]
            ]
            lost = [problem for problem in sets if problem not in won]
            told = f" (not on {', '.join(lost)})" if lost else ""
            lines.append(
                f"{backend}: {name} of the default no worse than tuned {rival}'s on {len(won)} "
                f"of {len(sets)} sets{told}.\n"
            )
    return "".join(lines)


def _plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    sets = list(dict.fromkeys(row["problem"] for row in rows))
    labels = list(dict.fromkeys((row["backend"], row["method"]) for row in rows))
    figure, axes = subplots(1, 2, figsize=(11, 0.5 * len(sets) + 2))
    for axis, name in zip(axes, ("RMSE", "NLL"), strict=True):
        for backend, method in labels:
            places, values = [], []
            for place, problem in enumerate(sets):
                cell = {
                    (row["backend"], row["method"]): row[name]
                    for row in rows
                    if row["problem"] == problem
                }
                base, value = cell.get((backend, "ADVI")), cell.get((backend, method))
                if base is not None and value is not None:
                    places.append(place)
                    values.append(value / base if name == "RMSE" else value - base)
            axis.plot(values, places, "o", label=f"{method} ({backend})")
        axis.axvline(1.0 if name == "RMSE" else 0.0, color="grey", linewidth=0.8)
        axis.set_yticks(range(len(sets)), sets)
        axis.set_xlabel(
            "test RMSE, relative to tuned ADVI" if name == "RMSE" else "test NLL minus tuned ADVI's"
        )
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, fontsize="small")
    save(figure, path, dpi=150)
