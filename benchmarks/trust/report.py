"""Tables of right and wrong against trusted and not, plots of errors over cost, and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.records import Record
from benchmarks.study import pyplot
from benchmarks.trust.methods import METHODS

ABOUT = """Made by `python -m benchmarks trust`. A run is *right* when the mean of every scalar \
marginal, constrained and unconstrained, is within 0.1 standard deviations of the reference's, its \
standard deviation within 10 % and its Kolmogorov distance within 0.05, beyond sampling error; \
where the reference's own standard deviation is not stable, quantiles take its place. It is \
*trusted* when the method says so, or says nothing; chains are with R-hat of at most 1.01, 400 \
effective draws in bulk and tail, and no divergence. Problems without a right answer (improper \
posteriors, and those that the precision cannot hold) are counted apart: the only good answer \
there is not to be trusted. A run that fails gives no answer. Evaluations are those of the score; \
seconds are from construction to draws, compiling included, of which runs of one process share \
some unless they are run with `--fresh`.
"""

#: Group of runs in tables.
Key = tuple[str, str, str]


def outcome(record: Record) -> str:
    """One of the outcomes that are counted."""
    if record.failed:
        return "failed"
    trusted = "trusted" if record.figures["trusted"] else "not trusted"
    if not record.figures["answerable"]:
        return f"no answer, {trusted}"
    return f"{'right' if record.figures['right'] else 'wrong'}, {trusted}"


OUTCOMES = (
    "right, trusted",
    "wrong, trusted",
    "right, not trusted",
    "wrong, not trusted",
    "no answer, trusted",
    "no answer, not trusted",
    "failed",
)


def grouped(
    found: Iterable[Record], key: Callable[[Record], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[Record]]:
    """Records by a key, in the order of their first."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in found:
        groups.setdefault(key(record), []).append(record)
    return groups


def _case(record: Record) -> tuple[str, ...]:
    # Runs of posteriordb have double precision alone.
    precision = "double" if record.settings.get("double", True) else "single"
    return record.backend, precision, record.method


def median(runs: Sequence[Record], figure: str) -> float | None:
    """Median of a figure over the runs that have it."""
    values = [run.figures[figure] for run in runs if run.figures.get(figure) is not None]
    return float(np.median(values)) if values else None


def counts(found: Iterable[Record]) -> list[dict[str, Any]]:
    """A row for each method: how many runs had each outcome, and what they cost."""
    rows = []
    for (backend, precision, method), runs in grouped(found, _case).items():
        row: dict[str, Any] = {"backend": backend, "precision": precision, "method": method}
        row["runs"] = len(runs)
        outcomes = [outcome(run) for run in runs]
        row |= {name: outcomes.count(name) for name in OUTCOMES}
        row["evaluations"] = median(runs, "evaluations")
        row["seconds"] = median(runs, "seconds to draws")
        rows.append(row)
    return rows


def page_table(found: Sequence[Record]) -> str:
    """How often `fit` is right and says so, for the page.

    Where there is no right answer an error that refuses the program is as good as no trust.
    """
    rows = []
    for (backend,), runs in grouped(found, lambda run: (run.backend,)).items():
        answerable = [outcome(run) for run in runs if run.figures["answerable"]]
        without = [outcome(run) for run in runs if not run.figures["answerable"]]
        row: dict[str, Any] = {"package": records.LABELS[backend]}
        row["runs with an answer"] = len(answerable)
        row |= {name: answerable.count(name) for name in OUTCOMES[:4]}
        if failed := answerable.count("failed"):
            row["failed"] = failed
        refused = len(without) - without.count("no answer, trusted")
        row["no answer, refused"] = f"{refused} of {len(without)}"
        row["median evaluations"] = median(runs, "evaluations")
        rows.append(row)
    return records.markdown_table(rows)


def missed_table(found: Sequence[Record]) -> str:
    """The problems that `fit` misjudges or refuses though there is an answer, for the page."""
    answerable = [run for run in found if run.figures["answerable"]]
    rows = []
    for (name,), runs in grouped(answerable, lambda run: (run.model,)).items():
        told = {
            backend: "; ".join(dict.fromkeys(outcome(run) for run in own))
            for (backend,), own in grouped(runs, lambda run: (run.backend,)).items()
        }
        if set(told.values()) != {OUTCOMES[0]}:
            row = {"problem": name.rpartition("/")[2], "what it is": runs[0].figures["kind"]}
            rows.append(row | {records.LABELS[backend]: each for backend, each in told.items()})
    return records.markdown_table(rows)


def engines_table(found: Sequence[Record]) -> str:
    """Whether engines warn where their answers are wrong, and nowhere else, for the page."""
    rows = []
    for (method, backend), runs in grouped(found, lambda run: (run.method, run.backend)).items():
        outcomes = [outcome(run) for run in runs]
        row: dict[str, Any] = {"engine": f"`{method}`", "package": records.LABELS[backend]}
        for name, trust in (("no warning", TRUST[0]), ("warned", TRUST[1])):
            row |= {
                f"{kind}, {name}": outcomes.count(f"{kind}, {trust}") for kind in ("right", "wrong")
            }
        rows.append(row)
    return records.markdown_table(rows)


def two_by_two(runs: Sequence[Record]) -> str:
    """Right or wrong against trusted or not, of the runs that have a right answer."""
    outcomes = [outcome(run) for run in runs]
    rows = [
        {"": name} | {trust: outcomes.count(f"{name}, {trust}") for trust in TRUST}
        for name in ("right", "wrong", "no answer")
    ]
    return records.markdown_table(rows)


TRUST = ("trusted", "not trusted")

#: Effective draws that costs are counted to, those that `fit` is asked for.
WANTED = 400.0
TO_DRAWS = f"""Evaluations from construction to {WANTED:.0f} effective draws, of runs that are \
right: of `fit` all, since it ends there by itself; of chains those of the warm-up and, of those \
after it, a share that leaves so many in bulk in the worst scalar marginal, constrained and \
unconstrained, whether they would have known it or not. *Of fit* are median and quartiles of \
what `fit` takes over that, on the problems on which both are right.
"""


def cost(run: Record) -> float | None:
    """Evaluations to the effective draws that are wanted.

    None of a run that is not right, and of a method whose evaluations after its warm-up are not
    told.
    """
    figures = run.figures
    if run.failed or not figures.get("right"):
        return None
    if run.method == "fit":
        return float(figures["evaluations"])
    before = figures.get("warm-up")
    if before is None:
        return None
    # Draws that were resampled are no chains.
    share = WANTED / float(figures["bulk ESS" if "bulk ESS" in figures else "effective"])
    return float(before) + share * float(figures["evaluations"] - before)


def costs(found: Iterable[Record]) -> list[dict[str, Any]]:
    """A row for each method whose cost can be told: what it takes, and `fit` beside it."""
    cases = grouped(found, _case)
    spent: dict[tuple[Any, ...], dict[Any, float]] = {case: {} for case in cases}
    for case, runs in cases.items():
        for run in runs:
            if (each := cost(run)) is not None:
                spent[case][run.model, run.seed, run.settings.get("route")] = each
    rows = []
    for (package, precision, method), own in spent.items():
        if not own:
            continue
        row: dict[str, Any] = {"package": package, "precision": precision, "method": method}
        row["right"] = f"{len(own)} of {len(cases[package, precision, method])}"
        row[f"evaluations to {WANTED:.0f}"] = float(np.median(list(own.values())))
        fit = spent.get((package, precision, "fit"), {})
        if method != "fit" and (ratios := [fit[key] / own[key] for key in own if key in fit]):
            low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
            row["of fit"] = f"{middle:.2g} [{low:.2g} {high:.2g}]"
            row["fit dearer"] = f"{sum(each > 1.0 for each in ratios)} of {len(ratios)}"
        rows.append(row)
    return rows


def peers_table(found: Sequence[Record]) -> str:
    """What `fit` and its peers take to as many effective draws, for the page."""
    rows = [row | {"method": PEERS[row["method"]]} for row in costs(found)]
    columns = ["method", "right", f"evaluations to {WANTED:.0f}", "of fit", "fit dearer"]
    return records.markdown_table(rows, columns)


#: Names of the peers on pages.
PEERS = {
    "fit": "`fit`",
    "nuts": "NUTS, NumPyro",
    "nutpie": "nutpie",
    "nutpie-low-rank": "nutpie, low rank",
    "window-nuts": "NUTS, BlackJAX",
    "pathfinder-nuts": "Pathfinder and NUTS, BlackJAX",
    "mams": "MAMS, BlackJAX",
    "pathfinder": "Pathfinder, BlackJAX",
    "NUTS": "NUTS, NumPyro",
}


#: Chains that warm ones are held against.
RIVAL = "nuts"


def warm_table(found: Sequence[Record]) -> str:
    """Effective draws per 1,000 evaluations of NUTS and of warm chains, for the page.

    Of the seeds the median.
    """
    rows: dict[str, dict[str, Any]] = {}
    for (model, backend, method), runs in grouped(
        found, lambda run: (run.model, run.backend, run.method)
    ).items():
        worth = [1000.0 * each for run in runs if (each := _worth(run)) is not None]
        row = rows.setdefault(model, {"posterior": model.rpartition("/")[2]})
        row[f"{backend} {method}"] = float(np.median(worth)) if worth else None
    for row in rows.values():
        ours, rival = row.get("numpyro warm-chains"), row.get(f"numpyro {RIVAL}")
        row["ratio"] = ours / rival if ours and rival else None
    ratios = [row["ratio"] for row in rows.values() if row["ratio"] is not None]
    rows["median"] = {"posterior": "median", "ratio": float(np.median(ratios))}
    columns = {
        "posterior": "posterior",
        f"numpyro {RIVAL}": "NUTS, NumPyro",
        "numpyro warm-chains": "warm chains, NumPyro",
        "ratio": "ratio",
        "pyro warm-chains": "warm chains, Pyro",
    }
    return records.markdown_table(list(rows.values()), columns, digits=3)


def _worth(run: Record) -> float | None:
    figures = run.figures
    if run.failed or not figures.get("evaluations") or "bulk ESS" not in figures:
        return None
    return float(min(figures["bulk ESS"], figures["tail ESS"])) / float(figures["evaluations"])


def by_kind(found: Iterable[Record]) -> list[dict[str, Any]]:
    """A row for each kind of problem and host: right and trusted, of how many, by method."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    key = grouped(found, lambda run: (run.figures.get("kind", ""), *_case(run)))
    for (kind, backend, precision, method), runs in key.items():
        first = {"kind": kind, "backend": backend, "precision": precision}
        row = rows.setdefault((kind, backend, precision), first)
        outcomes = [outcome(run) for run in runs]
        good = outcomes.count("right, trusted") + outcomes.count("no answer, not trusted")
        bad = outcomes.count("wrong, trusted") + outcomes.count("no answer, trusted")
        row[method] = f"{good}/{len(runs)}" + (f", {bad} misled" if bad else "")
    return [rows[key] for key in sorted(rows)]


def page(name: str, runs: Sequence[Record]) -> str:
    """The page of one problem."""
    rows = []
    for run in runs:
        figures: Mapping[str, Any] = run.figures
        backend, precision, method = _case(run)
        row = {"backend": backend, "precision": precision, "method": method, "seed": run.seed}
        row["outcome"] = outcome(run)
        for title in ("mean error", "sd ratio", "Kolmogorov", "quantile error", "effective"):
            row[title] = figures.get(title)
        row["evaluations"] = figures.get("evaluations")
        row["seconds"] = figures.get("seconds to draws")
        row["judge"] = "; ".join(figures.get("reasons", []))
        row["method says"] = run.error or "; ".join(figures.get("told", []))
        rows.append(row)
    dimension = median(runs, "dimension")
    told = "" if dimension is None else f", {dimension:.0f} dimensions"
    kind = runs[0].figures.get("kind", "")
    return f"# {name}\n\n{kind}{told}\n\n{records.markdown_table(rows)}"


def page_path(out: Path, name: str) -> Path:
    """Where the page of a problem lies."""
    return out / "trust" / f"{name.replace('/', '-')}.md"


def write(found: Sequence[Record], out: Path) -> None:
    """Write the report, the plot and the pages."""
    parts = [f"# Trust\n\n{ABOUT}", records.markdown_table(counts(found))]
    parts.append("## By kind of problem\n\nGood answers of all: right and trusted, or not trusted "
                 "where there is none. *Misled*: trusted without being right.\n")  # fmt: skip
    parts.append(records.markdown_table(by_kind(found)))
    for (backend, precision, method), runs in grouped(found, _case).items():
        parts.append(f"## {method}, {backend}, {precision} precision\n\n{METHODS[method].about}\n")
        parts.append(two_by_two(runs))
    if rows := costs(found):
        parts.append(f"## Cost of effective draws\n\n{TO_DRAWS}\n")
        parts.append(records.markdown_table(rows))
    parts.append("## Problems\n")
    problems = grouped(found, lambda run: (run.model,))
    lines = []
    for (name,), runs in problems.items():
        records.write_text(page_path(out, name), page(name, runs))
        lines.append(f"- [{name}](trust/{page_path(out, name).name})")
    parts.append("\n".join(lines) + "\n")
    records.write_text(out / "trust.md", "\n".join(parts))
    plot(found, out / "trust.png")


def plot(found: Sequence[Record], path: Path) -> None:
    """Errors over score evaluations: the share of problems answered, and each run's distance."""
    plt = pyplot()
    kept = [run for run in found if run.figures["answerable"]]
    if not any(run.figures.get("evaluations") for run in kept):
        return
    cases = list(dict.fromkeys(_case(run)[:2] for run in kept))
    if not cases:
        return
    figure, axes = plt.subplots(
        len(cases),
        2,
        figsize=(11, 4 * len(cases)),
        layout="constrained",
        squeeze=False,
        sharex="row",
    )
    colours = dict(zip(METHODS, plt.get_cmap("tab20").colors, strict=False))
    for (share, errors), case in zip(axes, cases, strict=True):
        own = [run for run in kept if _case(run)[:2] == case]
        last = max((run.figures.get("evaluations") or 1 for run in own), default=1)
        for (method,), runs in grouped(own, lambda run: (run.method,)).items():
            colour = colours[method]
            done = [run for run in runs if run.figures.get("evaluations")]
            spent = np.array([run.figures["evaluations"] for run in done], float)
            right = np.array([bool(run.figures["right"]) for run in done], bool)
            reached = (np.arange(right.sum() + 1) / len(runs)).clip(0.0, 1.0)
            costs, shares = (
                np.append(np.sort(spent[right]), last),
                np.append(reached[1:], reached[-1]),
            )
            share.step(costs, shares, where="post", color=colour, label=method)
            distance = np.array([run.figures.get("Kolmogorov", np.nan) for run in done], float)
            for chosen, marker in ((right, "o"), (~right, "x")):
                errors.scatter(spent[chosen], distance[chosen], s=14, color=colour, marker=marker)
        backend, precision = case
        share.set(title=f"{backend}, {precision} precision", ylabel="share of runs that are right")
        share.set(xscale="log", xlabel="score evaluations", ylim=(0, 1))
        errors.set(xscale="log", yscale="log", xlabel="score evaluations")
        errors.set(title="○ right, × wrong", ylabel="worst Kolmogorov distance")
        share.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)
