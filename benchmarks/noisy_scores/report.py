"""Tables and plots of the study's records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.noisy_scores.figures import middle
from benchmarks.records import LABELS, Record
from benchmarks.study import save, subplots

CLOSED = "closed form"
#: Headings of the comparison, in order.
METHODS = {
    CLOSED: "closed form",
    "natural gradient": "natural gradient",
    "natural gradient, 1/t": "the same, 1/t",
    "ADVI": "ADVI",
    "ADVI, cold start": "ADVI, cold",
    "gradient form": "gradient form",
    "BaM": "BaM",
    "GSM": "GSM",
}
ABLATED = {
    CLOSED: "closed form",
    "without the pull": "without the pull",
    "symmetric trust region": "symmetric trust region",
    "trust by significance": "trust by significance",
    "without mirrored pairs": "without mirrored pairs",
    "with a cold start": "with a cold start",
}
#: Divergences below this are rounding.
ROUNDING = 1e-9
#: Divergences within this factor of the least are in bold.
NEAR = 1.1
#: Problems of the picture, with their levels.
SHOWN = (
    ("Normal", 1.0),
    ("arK", 1.0),
    ("Normal", 10.0),
    ("linear regression", 0.0),
    ("Poisson regression", 0.0),
    ("logistic regression", 0.0),
)


def _label(method: str) -> str:
    """Heading of a method that stands by itself."""
    return method if METHODS[method].startswith("the same") else METHODS[method]


def _of(runs: Sequence[Record], part: str) -> list[Record]:
    return [run for run in runs if run.settings["part"] == part]


def _one(runs: Sequence[Record], problem: str, level: float, method: str) -> Record | None:
    wanted = (problem, level, method)
    return next((r for r in runs if (r.model, r.settings["level"], r.method) == wanted), None)


def _by_minibatch(run: Record) -> bool:
    return bool(run.settings["group"] == "minibatch")


def _with_baseline(runs: Sequence[Record]) -> list[Record]:
    """Ablations with the closed form's runs of the comparison."""
    ablations = _of(runs, "ablations")
    models = {run.model for run in ablations}
    whole = [r for r in _of(runs, "comparison") if r.method == CLOSED and r.model in models]
    return [*whole, *ablations]


def final(run: Record) -> float:
    """Median over seeds of the divergence at the end, at the oracle's rate."""
    return middle(run.figures["KL"][-1]) if not run.failed else np.inf


def _bound(run: Record, scores: float | None = None) -> float:
    pairs = (run.settings["scores"] if scores is None else scores) / 2
    return float(run.figures["bound"] / pairs)


def _number(value: float) -> str:
    if value < ROUNDING:
        return "0"
    if not np.isfinite(value):
        return "∞"
    if value >= 1e5:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def _cell(run: Record | None, greatest: bool) -> str:
    if run is None:
        return "–"
    if run.failed:
        return "failed"
    failures = run.figures["failures"]
    if greatest and not failures:
        return f"{_number(final(run))}, {_number(max(run.figures['KL'][-1]))}"
    return _number(final(run)) + (f" ({failures} failed)" if failures else "")


def _rows(
    runs: Sequence[Record], level: float, methods: Sequence[str], greatest: bool = False
) -> list[dict[str, Any]]:
    rows = []
    for problem in dict.fromkeys(run.model for run in runs):
        found = {m: _one(runs, problem, level, m) for m in methods}
        there = [run for run in found.values() if run is not None]
        if not there:
            continue
        good = [final(run) for run in there if not run.failed]
        row: dict[str, Any] = {
            "problem": f"{problem.replace('_', ' ')}, {there[0].settings['dim']}",
            "bound": _number(_bound(there[0])),
        }
        for method, run in found.items():
            text = _cell(run, greatest)
            end = np.inf if run is None else final(run)
            best = np.isfinite(end) and end <= max(NEAR * min(good), ROUNDING)
            row[method] = f"**{text}**" if best else text
        rows.append(row)
    return rows


def _comparison(runs: Sequence[Record], minibatch: bool, level: float) -> str:
    own = [run for run in _of(runs, "comparison") if _by_minibatch(run) == minibatch]
    rows = _rows(own, level, list(METHODS))
    return records.markdown_table(rows, {"problem": "problem, D", "bound": "bound", **METHODS})


def exact_table(runs: Sequence[Record]) -> str:
    """Divergences without noise."""
    return _comparison(runs, False, 0.0)


def noisy_table(runs: Sequence[Record]) -> str:
    """Divergences at level 1."""
    return _comparison(runs, False, 1.0)


def noisiest_table(runs: Sequence[Record]) -> str:
    """Divergences at level 10."""
    return _comparison(runs, False, 10.0)


def minibatch_table(runs: Sequence[Record]) -> str:
    """Divergences under minibatches."""
    return _comparison(runs, True, 0.0)


#: Columns of the summary: heading, whether of minibatches, level.
KINDS = (
    ("no noise", False, 0.0),
    ("level 1", False, 1.0),
    ("level 10", False, 10.0),
    ("minibatches", True, 0.0),
)


def summary_table(runs: Sequence[Record]) -> str:
    """Of each rival, how many times the closed form's divergence it leaves, and who is nearer."""
    compared = _of(runs, "comparison")
    rows = []
    for method in list(METHODS)[1:]:
        row = {"rival": _label(method)}
        for heading, minibatch, level in KINDS:
            ratios = []
            for run in compared:
                kind = (run.method, _by_minibatch(run), run.settings["level"])
                if kind != (method, minibatch, level):
                    continue
                ours = _one(compared, run.model, level, CLOSED)
                assert ours is not None
                one, other = (max(final(each), ROUNDING) for each in (run, ours))
                ratios.append(one / other)
            if ratios:
                mean = float(np.exp(np.mean(np.log(ratios))))
                nearer = sum(ratio > 1.0 for ratio in ratios)
                row[heading] = f"{_number(mean)} ({nearer} of {len(ratios)})"
        rows.append(row)
    return records.markdown_table(rows, ["rival", *(kind[0] for kind in KINDS)])


def errors_table(runs: Sequence[Record]) -> str:
    """Worst errors of means and deviations against the reference, at level 1 and of minibatches."""
    compared = _of(runs, "comparison")
    shown = (CLOSED, "natural gradient", "natural gradient, 1/t", "ADVI", "gradient form")
    rows = []
    for problem in dict.fromkeys(run.model for run in compared):
        by_minibatch = any(_by_minibatch(run) for run in compared if run.model == problem)
        level = 0.0 if by_minibatch else 1.0
        row = {"problem": problem.replace("_", " ")}
        for method in shown:
            run = _one(compared, problem, level, method)
            if run is not None and not run.failed:
                mean, sd = (middle(run.figures[name]) for name in ("mean error", "sd error"))
                row[method] = f"{_number(mean)}, {_number(sd)}"
        rows.append(row)
    return records.markdown_table(rows, {"problem": "problem", **{m: METHODS[m] for m in shown}})


def ablation_table(runs: Sequence[Record]) -> str:
    """The closed form without one of its parts: medians and greatest of the seeds."""
    found = _with_baseline(runs)
    rows = []
    for level in sorted({run.settings["level"] for run in found}):
        for row in _rows(found, level, list(ABLATED), greatest=True):
            of_minibatch = "regression" in row["problem"]
            row["level"] = "minibatch" if of_minibatch else f"{level:g}"
            rows.append(row)
    return records.markdown_table(rows, {"problem": "problem, D", "level": "noise", **ABLATED})


def long_table(runs: Sequence[Record]) -> str:
    """Long runs at the greatest noise: divergence and mean ratio of variances over scores."""
    rows = []
    for run in _of(runs, "long"):
        row: dict[str, Any] = {"method": run.method}
        looks, figures = run.settings["looks"], run.figures
        along = zip(looks, figures["KL"], figures["variance"], strict=True)
        for look, divergences, variances in list(along)[1:]:
            cell = f"{_number(middle(divergences))}, {_number(middle(variances))}"
            row[f"{look:,} scores"] = cell
        row["failed"] = run.figures["failures"]
        rows.append(row)
    return records.markdown_table(rows)


def packages_table(runs: Sequence[Record]) -> str:
    """The closed form in both packages: median, least and greatest over the seeds of each."""
    rows = []
    for run in _of(runs, "Pyro"):
        other = _one(_of(runs, "comparison"), run.model, run.settings["level"], CLOSED)
        noise = "minibatch" if _by_minibatch(run) else f"{run.settings['level']:g}"
        row = {"problem": run.model, "noise": noise}
        for each in (other, run):
            if each is not None and not each.failed:
                ends = each.figures["KL"][-1]
                spread = f"{_number(min(ends))} to {_number(max(ends))}"
                seeds = each.settings["seeds"]
                heading = f"{LABELS[each.backend]}, {seeds} seeds"
                row[heading] = f"{_number(middle(ends))} ({spread})"
            elif each is not None:
                row[LABELS[each.backend]] = "failed"
        rows.append(row)
    return records.markdown_table(rows)


LOOKS: dict[str, dict[str, Any]] = {
    CLOSED: {"color": "C3", "linewidth": 2.6, "marker": "o"},
    "natural gradient": {"color": "C0", "linestyle": "--"},
    "natural gradient, 1/t": {"color": "C0"},
    "ADVI": {"color": "C2"},
    "ADVI, cold start": {"color": "C2", "linestyle": "--"},
    "gradient form": {"color": "C1"},
    "BaM": {"color": "C7"},
    "GSM": {"color": "C7", "linestyle": "--"},
}


def picture(runs: Sequence[Record], path: Path) -> None:
    """Divergence over scores, with what least squares would leave."""
    compared = _of(runs, "comparison")
    shown = [each for each in SHOWN if _one(compared, *each, CLOSED) is not None]
    shown = shown or [(run.model, run.settings["level"]) for run in compared[:1]]
    figure, axes = subplots(
        -(-len(shown) // 3),
        min(3, max(1, len(shown))),
        figsize=(12.0, 3.4 * -(-len(shown) // 3) + 0.8),
        squeeze=False,
    )
    for axis, (problem, level) in zip(axes.flat, shown, strict=False):
        find = partial(_one, compared, problem, level)
        for method, look in LOOKS.items():
            run = find(method)
            if run is None or run.failed:
                continue
            medians = np.array([middle(values) for values in run.figures["KL"]])
            # The start is no number of scores on this scale.
            axis.plot(run.settings["looks"][1:], medians[1:], label=_label(method), **look)
        any_run = find(CLOSED) or compared[0]
        scores = np.array(any_run.settings["looks"][1:], float)
        bound = [_bound(any_run, each) for each in scores]
        axis.plot(scores, bound, color="black", linestyle=":", label="least squares, 1/n")
        axis.set(xscale="log", yscale="log")
        top = 4.0 * middle(any_run.figures["KL"][0])
        axis.set_ylim(min(bound[-1], final(any_run)) / 2.5, top)
        told = "minibatches" if _by_minibatch(any_run) else f"level {level:g}"
        name = problem.replace("_", " ")
        axis.set_title(f"{name}, D = {any_run.settings['dim']}, {told}", fontsize=10)
        axis.grid(alpha=0.3)
        axis.set_xlabel("scores")
    for row in axes:
        row[0].set_ylabel("KL(fit, best Normal)")
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    save(figure, path, dpi=110)
