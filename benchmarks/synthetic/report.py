"""Markdown tables of the synthetic experiments, made from records alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import records
from benchmarks.records import Record
from benchmarks.synthetic.experiments import (
    ELBO_GAP,
    FORWARD,
    Case,
    Experiment,
    Method,
    all_experiments,
)
from benchmarks.synthetic.runs import (
    PARAMETER_ERROR,
    STANDARD_ERROR,
    chosen_runs,
    evaluations_below,
    evaluations_per_iteration,
    final,
    judge_of,
    median_final,
)

INTRODUCTION = """\
Medians over {seeds} seeds, each with a target, a start and a run of its own; a failed run counts
as infinite. All methods of a case spend the same number of score evaluations. An inner step of
ours costs none. One draw of Fisher or Score costs a score and a Hessian-vector product, of which
the score alone is counted. Ours, GSM and BaM run with their default settings. ADVI, Fisher and
Score have Adam with a cosine decay, and the learning rate of {rates} that was best in hindsight,
for each case; with noise, Fisher and Score have their default. ADVI is the host's own SVI with
Trace_ELBO and one draw a step. Forward KL is exact for Normals and else from 20,000 draws of the
target, with the standard error (s.e.) of the last fit. Targets are drawn as in the paper's
appendix C, with the 0.3 of N(0, 0.3) read as a variance.
"""


def rows(experiment: Experiment, found: Sequence[Record]) -> list[dict[str, Any]]:
    """One row for each case and method, over seeds."""
    table = []
    for case in experiment.cases:
        for method in case.methods:
            chosen = chosen_runs(found, case, method)
            if chosen:
                table.append(_row(experiment, case, method, chosen))
        seeds = list(dict.fromkeys(record.seed for record in found if record.model == case.name))
        if seeds and case.guide_order < case.target_order:
            table.append(_best_row(case, seeds))
    return table


def _best_row(case: Case, seeds: Sequence[int | None]) -> dict[str, Any]:
    """What no Normal can be below."""
    judges = [judge_of(case.dim, case.target_order, seed) for seed in seeds if seed is not None]
    least = [judge.least_of_normals for judge in judges]
    return {
        "case": case.title,
        "method": "best Normal",
        "forward KL": statistics.median(least),
        "least": min(least),
        "greatest": max(least),
    }


def _row(
    experiment: Experiment, case: Case, method: Method, chosen: Sequence[Record]
) -> dict[str, Any]:
    finals = [final(record, FORWARD) for record in chosen]
    row: dict[str, Any] = {
        "case": case.title,
        "method": method.name,
        "rate": chosen[0].settings["rate"],
        "evaluations": case.budget,
        "forward KL": median_final(chosen, FORWARD),
        "least": min(finals),
        "greatest": max(finals),
        "s.e.": _median([_last(record, STANDARD_ERROR) for record in chosen]),
        "error in (m, V)": None,
        "failed": f"{sum(record.failed for record in chosen)}/{len(chosen)}",
        "seconds": _median([record.seconds for record in chosen]),
        "paper": dict(case.paper).get(method.name),
    }
    if any(PARAMETER_ERROR in record.figures for record in chosen):
        row["error in (m, V)"] = median_final(chosen, PARAMETER_ERROR)
    for threshold in experiment.thresholds:
        first = [evaluations_below(record, threshold) for record in chosen]
        each = [evaluations_per_iteration(record) or 1 for record in chosen]
        row[f"below {threshold:g}"] = _whole(_median(first))
        row[f"iterations to {threshold:g}"] = _whole(
            _median([count / size for count, size in zip(first, each, strict=True)])
        )
    return row


def noise_rows(experiment: Experiment, found: Sequence[Record]) -> list[dict[str, Any]]:
    """One row for each target and method, with a column for each noise level."""
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for case in experiment.cases:
        target = case.title.rpartition(", level ")[0]
        for method in case.methods:
            chosen = chosen_runs(found, case, method)
            if not chosen:
                continue
            row = table.setdefault((target, method.name), {"target": target, "method": method.name})
            finals = [final(record, ELBO_GAP) for record in chosen]
            cell = f"{_short(median_final(chosen, ELBO_GAP))} ({_short(max(finals))})"
            failed = sum(record.failed for record in chosen)
            if failed:
                cell += f", {failed}/{len(chosen)} failed"
            row[f"{case.noise:g}"] = cell
    return list(table.values())


def table(experiment: Experiment, found: Sequence[Record]) -> str:
    """The experiment's Markdown table; columns that say nothing are left out."""
    if any(case.noise is not None for case in experiment.cases):
        return records.markdown_table(noise_rows(experiment, found))
    made = rows(experiment, found)
    columns = list(dict.fromkeys(key for row in made for key in row))
    said = [key for key in columns if any(row.get(key) is not None for row in made)]
    # Iterations are told where the paper tells them.
    if experiment.name not in ("table8", "samples"):
        said = [key for key in said if not key.startswith("iterations")]
    return records.markdown_table(made, said)


#: Methods of the mixture targets as the page names them.
MIXTURES = {
    "Ours, regression": "`AutoGaussianMixture`, default",
    "Ours": "gradient solver",
    "ADVI": "ADVI",
}


def mixtures_table(found: Sequence[Record]) -> str:
    """Forward KL on the mixture targets, median and greatest over the seeds, for the page."""
    table = []
    for label in dict.fromkeys(record.backend for record in of_mixtures(found)):
        own = [record for record in of_mixtures(found) if record.backend == label]
        for case in all_experiments()["fig2"].cases:
            row = {"target": f"{case.title}, {case.budget:,} scores", "package": label}
            for method in case.methods:
                chosen = chosen_runs(own, case, method) if method.name in MIXTURES else []
                if chosen:
                    greatest = max(final(record, FORWARD) for record in chosen)
                    middle = median_final(chosen, FORWARD)
                    row[MIXTURES[method.name]] = f"{_short(middle)}, {_short(greatest)}"
            table.append(row)
    return records.markdown_table(table, ["target", "package", *MIXTURES.values()])


def of_mixtures(found: Sequence[Record]) -> list[Record]:
    """The records of the mixture targets."""
    return [record for record in found if record.settings["experiment"] == "fig2"]


def section(experiment: Experiment, backend: str, found: Sequence[Record]) -> str:
    """Heading, note and table of one experiment on one backend."""
    parts = [f"## {experiment.title}, {backend}", experiment.note, table(experiment, found)]
    failures = [record for record in found if record.failed]
    if failures:
        parts.append(_failures(failures))
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _failures(failures: Sequence[Record]) -> str:
    """What the failed runs ended with, and how often."""
    counts: dict[tuple[str, str], int] = {}
    for record in failures:
        kind = (record.error or "").partition(":")[0]
        counts[record.method, kind] = counts.get((record.method, kind), 0) + 1
    told = "; ".join(f"{method}: {number} {kind}" for (method, kind), number in counts.items())
    return f"Failed runs, over all learning rates: {told}."


def _last(record: Record, name: str) -> float | None:
    values = record.figures.get(name)
    return values[-1] if values else None


def _median(values: Sequence[float | None]) -> float | None:
    kept = [value for value in values if value is not None]
    return statistics.median(kept) if kept else None


def _whole(value: float | None) -> Any:
    if value is None or value == float("inf"):
        return None
    return round(value)


def _short(value: float) -> str:
    return f"{value:.2g}"
