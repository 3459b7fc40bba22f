"""Leaderboard, curves, noise and a page for each posterior, all from records."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import gaussian_kde

from benchmarks import records
from benchmarks.posteriordb.database import Database, DatabaseError, scatter
from benchmarks.posteriordb.figures import Reference
from benchmarks.posteriordb.methods import METHODS, Floats
from benchmarks.records import Record
from benchmarks.study import grid, pyplot, save
from benchmarks.trust.judge import DEVIATION, KOLMOGOROV, MEAN
from benchmarks.trust.report import TO_DRAWS, WANTED, costs

#: Nats above the best bound that any run found at which a run counts as arrived.
ARRIVED = 0.5
#: Errors in standard deviations, or their ratios, from which no figure is given.
FAR_OFF = 10.0
#: Width and height of a panel of curves.
PANEL = 3.4, 2.6
#: Parameters on a page's plots.
SHOWN = 12
#: Figure of every run, failed ones too: whether its posterior has reference draws.
JUDGED = "has reference"

TITLE = "# Engines on posteriordb"
ABOUT = (
    "Made by `python -m benchmarks posteriordb`. All figures are at the end of a run; a score "
    "evaluation is one gradient of the log density of all rows, wherever it is taken. A run is "
    "*right* when no marginal, of parameters and in unconstrained space, has a mean off by more "
    f"than {MEAN:g} standard deviations of the reference draws, a standard deviation off by more "
    f"than {DEVIATION:.0%}, or a Kolmogorov distance above {KOLMOGOROV:g}, beyond sampling error; "
    "where the reference does not know its own standard deviation, quantiles take its place. "
    "*Right after* is the first look along the run from which this holds to the end. Mean errors "
    "and Wasserstein distances are in standard "
    "deviations of the reference. KSD is in units of the covariance of the reference, or of the "
    "start where there is no reference; of particles and chains it is the V-statistic, of guides "
    "the U-statistic, and it depends on the number of draws. Of methods with a step size the one "
    "with the best bound, or KSD, is shown, be it the nearer to the reference or not; *misjudged* "
    "counts the runs that were right at a step size that was not taken and wrong at the one that "
    "was. A run that failed is wrong: it counts among those that could be right, and its errors "
    "are infinite in medians. Medians of *right after* are of the runs that are right, those of "
    "seconds of the runs that ended."
)


def draws_path(out: Path, record: Record) -> Path:
    """Where the draws of a run are kept."""
    settings = record.settings
    parts = [record.model, record.backend, settings["route"], record.method]
    parts += [f"seed {record.seed}", f"rate {settings['rate']}", f"noise {settings['noise']:g}"]
    parts += [f"{settings['budget']} from {settings['start']}"]
    return out / "draws" / (re.sub(r"[^\w.-]+", "_", " ".join(parts)) + ".npz")


def was_run(record: Record) -> bool:
    """Whether the run was made, be it that it failed, and not left out as too large."""
    return "not run" not in record.figures


def merit(record: Record) -> float:
    """What is compared between step sizes, less is better; infinite for a failed run."""
    if record.failed:
        return math.inf
    found = record.figures.get("negative ELBO", record.figures.get("KSD", math.inf))
    return float(found) if math.isfinite(found) else math.inf


def tried_rates(runs: Sequence[Record]) -> list[list[Record]]:
    """Runs that differ in their step size alone, the one that is taken first.

    Of several records of a run the latest counts.
    """
    groups: dict[tuple[Any, ...], dict[Any, Record]] = {}
    key: tuple[Any, ...]
    for record in runs:
        settings = record.settings
        key = (
            record.model,
            record.backend,
            settings["route"],
            record.method,
            settings["noise"],
        )
        key += (record.seed, settings["budget"], settings["start"])
        groups.setdefault(key, {})[settings["rate"]] = record
    return [sorted(tried.values(), key=merit) for tried in groups.values()]


def best_rates(runs: Sequence[Record]) -> list[Record]:
    """Of the runs that differ in their step size alone, the best."""
    return [tried[0] for tried in tried_rates(runs)]


def misjudged(tried: Sequence[Record]) -> bool:
    """Whether a run at another step size than the first, which was taken, was right alone."""
    first, *others = (bool(record.figures.get("right")) for record in tried)
    return any(others) and not first


def grouped(
    runs: Sequence[Record], key: Callable[[Record], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[Record]]:
    """Runs by a key, in the order of the records."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in runs:
        found.setdefault(key(record), []).append(record)
    return found


def order(record: Record) -> int:
    """Place of a method among all."""
    names = list(METHODS)
    return names.index(record.method) if record.method in names else len(names)


def place(record: Record) -> tuple[Any, ...]:
    """Where a record stands in reports."""
    settings = record.settings
    rate = settings["rate"] or 0.0
    where = record.model, record.backend, settings["route"], settings["noise"]
    return (settings["budget"], settings["start"], *where, order(record), record.seed, rate)


def conditions(record: Record) -> tuple[int, str, float]:
    """Budget, start and noise of a run."""
    settings = record.settings
    return settings["budget"], settings["start"], settings["noise"]


def right_after(record: Record) -> float:
    """Score evaluations of the first look from which the run is right to its end; NaN if none."""
    curves = record.figures.get("curves", {})
    if record.failed or "right" not in curves:
        return math.nan
    looks = len(curves["evaluations"])
    right = [bool(value) for value in curves["right"]]
    # Looks have fewer draws than the end: where only they miss it by noise, the end decides.
    right[-1] = bool(record.figures.get("right", right[-1]))
    if not right[-1]:
        return math.nan
    first = looks - 1
    while first > 0 and right[first - 1]:
        first -= 1
    return float(curves["evaluations"][first])


def median(values: Sequence[float]) -> float | None:
    """Median of what is there, None of nothing."""
    kept = [value for value in values if value is not None and not math.isnan(value)]
    return float(np.median(kept)) if kept else None


def or_infinite(value: float | None) -> float:
    """A figure of which less is better, infinite where there is none."""
    return math.inf if value is None or math.isnan(value) else float(value)


def judged_posteriors(runs: Sequence[Record]) -> set[str]:
    """Posteriors with reference draws, be it that every run on them failed."""
    # Records from before runs stated it are known by what they were held against.
    return {r.model for r in runs if r.figures.get(JUDGED, "worst mean error" in r.figures)}


def leaderboard(runs: Sequence[Record]) -> str:
    """One line for each method, over all posteriors and seeds, of runs at all step sizes.

    Of the posteriors without reference draws no run is right or wrong. Runs that failed have
    infinite errors.
    """
    known = judged_posteriors(runs)
    rows = []
    groups: dict[tuple[str, str, str], list[list[Record]]] = {}
    for tried in tried_rates(runs):
        first = tried[0]
        key = first.method, first.backend, first.settings["route"]
        groups.setdefault(key, []).append(tried)
    for (method, backend, route), all_tried in sorted(
        groups.items(), key=lambda item: order(item[1][0][0])
    ):
        own = [tried[0] for tried in all_tried]
        made = [r for r in own if was_run(r)]
        judged = [r for r in made if r.model in known]

        def over(name: str, runs: list[Record]) -> float | None:
            # Some methods have no such figure at all.
            if not any(name in r.figures for r in runs) and not all(r.failed for r in runs):
                return None
            return median([or_infinite(r.figures.get(name)) for r in runs])

        rows.append(
            {
                "method": method,
                "ours": "yes" if method in METHODS and METHODS[method].ours else "",
                "backend": backend,
                "route": route,
                "right": f"{sum(bool(r.figures.get('right')) for r in judged)} of {len(judged)}",
                "failed": sum(r.failed for r in own),
                "not run": sum(not was_run(r) for r in own),
                "misjudged": sum(misjudged(tried) for tried in all_tried)
                if any(len(tried) > 1 for tried in all_tried)
                else None,
                "worst mean error": over("worst mean error", judged),
                "sliced Wasserstein": over("sliced Wasserstein", judged),
                "k-hat": over("k-hat", made),
                "right after": median([right_after(r) for r in made]),
                "seconds": over("step seconds", [r for r in made if not r.failed]),
            }
        )
    return records.markdown_table(rows)


def overview(runs: Sequence[Record]) -> str:
    """Posteriors against methods, and on how many some engine of this project is right.

    Empty without reference draws.
    """
    if not judged_posteriors(runs):
        return ""
    table, right = _overview(runs)
    ours = set().union(*(right[m] for m in right if m in METHODS and METHODS[m].ours))
    return (
        "Worst mean error, and least and greatest ratio of standard deviations; bold is right. "
        f"Some engine of this project is right on **{len(ours)} of "
        f"{len(judged_posteriors(runs))}** posteriors with reference draws.\n\n{table}"
    )


#: Score evaluations of the page's runs.
PAGE_BUDGET = 20_000


def overview_table(runs: Sequence[Record]) -> str:
    """Posteriors against methods, each at its best step size, for the page."""
    return _overview(best_rates(_of_the_page(runs)))[0]


def right_table(runs: Sequence[Record]) -> str:
    """On how many posteriors each method is right, for the page on choosing an engine."""
    best = best_rates(_of_the_page(runs))
    _, right = _overview(best)
    title = f"right, of {len(judged_posteriors(best))}"
    rows = [
        {
            "engine": _engine(method),
            title: len(models),
        }
        for method, models in sorted(right.items(), key=lambda item: -len(item[1]))
    ]
    return records.markdown_table(rows)


#: What has the budget of the page in the table of the README.
RIVALS = {"nutpie": "nutpie", "NUTS": "NUTS", "ADVI, full": "SVI with a full Normal"}


def rivals_table(runs: Sequence[Record]) -> str:
    """On how many embedded posteriors `fit` and its rivals are right, for the README.

    Runs of `fit` are those of the benchmark of trust, which has the same judge and lets it end by
    itself, of its first seed, in double precision where all posteriors were run in it; the others'
    have the budget of the page. A method that was not run on all posteriors has no row.
    """
    best = best_rates(_of_the_page([run for run in runs if run.benchmark != "trust"]))
    _, right = _overview(best)
    number = len(judged_posteriors(best))
    title = f"right, of {number}"
    rows: list[dict[str, Any]] = []
    fits = [
        run
        for run in runs
        if (run.benchmark, run.method, run.backend, run.seed) == ("trust", "fit", "numpyro", 0)
        and run.model.startswith("embedded/")
    ]
    by_precision = (
        [run for run in fits if run.settings["double"] == double] for double in (True, False)
    )
    whole = (each for each in by_precision if len({run.model for run in each}) == number)
    if ended := next(whole, None):
        spent = [run.figures["evaluations"] for run in ended if not run.failed]
        row = {"method": "`fit`", title: sum(bool(run.figures.get("right")) for run in ended)}
        rows.append(row | {"gradients": f"median {np.median(spent):,.0f}, most {max(spent):,}"})
    rows += [
        {"method": name, title: len(right[method]), "gradients": f"{PAGE_BUDGET:,}"}
        for method, name in RIVALS.items()
        if len({run.model for run in best if run.method == method}) == number
    ]
    return records.markdown_table(rows)


def page_curves(runs: Sequence[Record], path: Path) -> None:
    """Worst errors of a mean over evaluations, each method at its best step size."""
    plot_curves(best_rates(_of_the_page(runs)), path, "worst mean error")


def _of_the_page(runs: Sequence[Record]) -> list[Record]:
    """NumPyro's runs without noise at the page's budget; others are of the papers' page."""
    return [
        run
        for run in runs
        if run.backend == "numpyro"
        and run.settings["noise"] == 0.0
        and run.settings["budget"] == PAGE_BUDGET
    ]


def _engine(method: str) -> str:
    name, _, kind = method.partition(", ")
    if METHODS[method].family != "peer" and method != "nutpie":
        name = f"`{name}`" if METHODS[method].ours else f"{name} of the host"
    return f"{name}, {kind}" if kind else name


def _overview(runs: Sequence[Record]) -> tuple[str, dict[str, set[str]]]:
    """The table, and of each method the posteriors on which it is right.

    Figures are medians over seeds, bold where every seed is right.
    """
    known = judged_posteriors(runs)
    judged = sorted((r for r in runs if r.model in known), key=order)
    columns = grouped(judged, lambda r: (r.method, r.backend, r.settings["route"]))
    several = len({key[1:] for key in columns}) > 1
    cells: dict[str, dict[str, Any]] = {model: {"posterior": model} for model in sorted(known)}
    total: dict[str, Any] = {"posterior": f"right, of {len(known)}"}
    right_by_method: dict[str, set[str]] = {}
    for key, own in columns.items():
        header = ", ".join(key) if several else key[0]
        right = set()
        for (model,), same in grouped(own, lambda r: (r.model,)).items():
            cells[model][header] = _overview_cell(same)
            if all(bool(r.figures.get("right")) for r in same):
                right.add(model)
        total[header] = len(right)
        right_by_method.setdefault(key[0], set()).update(right)
    return records.markdown_table([*cells.values(), total], list(total)), right_by_method


def _overview_cell(runs: Sequence[Record]) -> str:
    """What one method reached on one posterior."""
    if any(not was_run(r) for r in runs):
        return "not run"
    if any(r.failed or "worst mean error" not in r.figures for r in runs):
        return "failed"
    error, least, greatest = (
        float(np.median([r.figures[name] for r in runs]))
        for name in ("worst mean error", "least sd ratio", "greatest sd ratio")
    )
    if not max(error, greatest) < FAR_OFF:
        return "far off"
    found = f"{error:.2g}, {least:.2f}-{greatest:.2f}"
    return f"**{found}**" if all(r.figures["right"] for r in runs) else found


def with_error(value: float | None, error: float | None) -> str | None:
    """A figure and its standard error, to two digits of the latter."""
    if value is None:
        return None
    if error is None or not (math.isfinite(value) and math.isfinite(error)):
        return records.format_cell(value)
    # An error of nothing is rounding of the sum.
    decimals = min(max(1 - math.floor(math.log10(max(error, 1e-4))), 0), 4)
    return f"{value:,.{decimals}f} ± {error:.{decimals}f}"


def posterior_table(runs: Sequence[Record]) -> str:
    """One line for each run on a posterior, and below what those say that failed."""
    rows = []
    said: dict[str, list[str]] = {}
    for record in sorted(runs, key=order):
        found = record.figures
        row: dict[str, Any] = {
            "method": record.method,
            "backend": record.backend,
            "route": record.settings["route"],
            "seed": record.seed,
            "rate": record.settings["rate"],
        }
        if record.failed or not was_run(record):
            rows.append(row | {"right": "failed" if record.failed else "not run"})
            reason = " ".join(str(record.error if record.failed else found["not run"]).split())
            said.setdefault(reason, []).append(_label(record))
            continue
        row["right"] = {True: "yes", False: "no", None: ""}[found.get("right")]
        for name in (
            "worst mean error",
            "worst parameter",
            "median mean error",
            "least sd ratio",
            "greatest sd ratio",
            "sliced Wasserstein",
            "Kolmogorov",
            "negative ELBO",
            "k-hat",
            "KSD",
            "evaluations",
        ):
            row[name] = found.get(name)
        row["negative ELBO"] = with_error(found.get("negative ELBO"), found.get("its error"))
        row["right after"] = None if math.isnan(right_after(record)) else right_after(record)
        row["seconds"] = found.get("step seconds")
        rows.append(row)
    # Of a failed run no more is known than who it was.
    longest = max(rows, key=len, default={})
    columns = [*longest, *(key for row in rows for key in row if key not in longest)]
    table = records.markdown_table(rows, list(dict.fromkeys(columns)))
    reasons = [f"- {'; '.join(labels)}: `` {reason} ``" for reason, labels in said.items()]
    return "\n".join([table, *reasons])


def _label(record: Record) -> str:
    """A run in words."""
    settings = record.settings
    parts = [record.method, record.backend, settings["route"], f"seed {record.seed}"]
    parts += [] if settings["rate"] is None else [f"rate {settings['rate']:g}"]
    return ", ".join(parts)


def arrival(record: Record, lowest: float) -> float:
    """Score evaluations after which the bound stays within ``ARRIVED`` of the lowest; or NaN."""
    curves = record.figures.get("curves", {})
    if record.failed or "negative ELBO" not in curves:
        return math.nan
    near = np.array(curves["negative ELBO"], float) < lowest + ARRIVED
    if not near[-1]:
        return math.nan
    first = len(near) - 1
    while first > 0 and near[first - 1]:
        first -= 1
    return float(curves["evaluations"][first])


def bound_table(runs: Sequence[Record]) -> str:
    """Bounds at the end and when they were reached, by method and level of noise."""
    rows = []
    # Stan's densities lack constants, so that bounds compare within a route only.
    for (name, route), own in grouped(runs, lambda r: (r.model, r.settings["route"])).items():
        with_bound = [r for r in own if not r.failed and "negative ELBO" in r.figures]
        exact = [r.figures["negative ELBO"] for r in with_bound if not r.settings["noise"]]
        lowest = min(exact or [r.figures["negative ELBO"] for r in with_bound], default=math.nan)
        groups = grouped(own, lambda r: (r.method, r.backend, r.settings["noise"]))
        for (method, backend, noise), same in groups.items():
            if all("negative ELBO" not in r.figures and not r.failed for r in same):
                continue
            found = [r.figures.get("negative ELBO", math.inf) for r in same]
            arrived = [arrival(r, lowest) for r in same]
            rows.append(
                {
                    "posterior": name,
                    "route": route,
                    "method": method,
                    "backend": backend,
                    "noise": noise,
                    "runs": len(same),
                    "above the lowest bound": median([value - lowest for value in found]),
                    "the worst run": max(found) - lowest,
                    f"within {ARRIVED:g}": sum(not math.isnan(a) for a in arrived),
                    "after": median(arrived),
                }
            )
    return records.markdown_table(rows)


def write(
    found: Sequence[Record],
    database: Database,
    out: Path,
    pages: Collection[str] | None = None,
    plots: bool = True,
) -> None:
    """Write posteriordb.md, its plots and the pages of the posteriors, all or those named.

    The order of the records, which is that in which processes finished, does not matter, but for
    the latest of several records of one run.
    """
    own = sorted((record for record in found if record.benchmark == "posteriordb"), key=place)
    runs = best_rates(own)
    text = [TITLE, ABOUT]
    for (budget, start), same in grouped(
        runs, lambda r: (r.settings["budget"], r.settings["start"])
    ).items():
        where = "the library's start" if start == "path" else "the host's start"
        text += [f"## {budget:,} score evaluations, from {where}"]
        exact = [record for record in same if not record.settings["noise"]]
        if exact:
            where_tried = (budget, start, 0.0)
            tried = [r for r in own if conditions(r) == where_tried]
            text += [part for part in (leaderboard(tried), overview(exact)) if part]
            if rows := costs(r for r in exact if r.model in judged_posteriors(exact)):
                about = f"### Cost of {WANTED:.0f} effective draws\n\n{TO_DRAWS}"
                text += [about, records.markdown_table(rows)]
        if exact and plots:
            plot_curves(exact, out / f"convergence-{budget}-{start}.png", "worst mean error")
            plot_curves(exact, out / f"bounds-{budget}-{start}.png", "negative ELBO")
        levels = {record.settings["noise"] for record in same}
        if len(levels) > 1:
            text += ["### Noise in the scores, and bounds in nats", bound_table(same)]
            if plots:
                plot_noise(same, out / f"noise-{budget}-{start}.png")
        for (name,), mine in grouped(exact, lambda r: (r.model,)).items():
            text += [f"### {name}", posterior_table(mine)]
            if pages is None or name in pages:
                write_page(name, mine, database, out)
    records.write_text(out / "posteriordb.md", "\n\n".join(text) + "\n")


def colours(plt: Any) -> dict[str, Any]:
    """A colour for each method, the same in all plots, and no two alike; grey for a user's own."""
    shades = plt.get_cmap("tab20b").colors
    # Of each of its hues the darkest, and the others only where there are many methods.
    others = (shade for first in (0, 2, 1, 3) for shade in shades[first::4])
    several = (*plt.get_cmap("tab10").colors, *others)
    return defaultdict(lambda: "grey", zip(METHODS, several, strict=False))


def _mark(axis: Any, place: float, colour: Any, transform: Any, rank: int) -> None:
    """A cross at the upper edge for a run that failed; ``rank`` puts several below each other."""
    axis.plot(place, 0.96 - 0.07 * rank, "x", color=colour, ms=6, mew=1.5, transform=transform)


def plot_curves(runs: Sequence[Record], path: Path, figure_name: str) -> None:
    """A figure over score evaluations, a panel for each posterior; bounds above the lowest.

    A run that failed is a cross at its panel's right edge.
    """
    drawn = [
        record
        for record in runs
        if not record.failed and figure_name in record.figures.get("curves", {})
    ]
    if not drawn:
        return
    having = {record.method for record in drawn}
    known = judged_posteriors(runs)
    if figure_name == "worst mean error":
        failed = [record for record in runs if record.failed and record.model in known]
    else:
        # Particles and chains have no bound, also where they do not fail.
        failed = [record for record in runs if record.failed and record.method in having]
    plt = pyplot()
    colour = colours(plt)
    panels = grouped([*drawn, *failed], lambda r: (r.model,))
    figure, axes = grid(len(panels), size=PANEL)
    for axis, ((name,), both) in zip(axes.flat, panels.items(), strict=False):
        own = [record for record in both if not record.failed]
        crosses = dict.fromkeys(record.method for record in both if record.failed)
        for rank, method in enumerate(crosses):
            _mark(axis, 0.97, colour[method], axis.transAxes, rank)
        lowest = {record.settings["route"]: 0.0 for record in own}
        if figure_name == "negative ELBO":
            for route in lowest:
                bounds = [r.figures[figure_name] for r in own if r.settings["route"] == route]
                lowest[route] = min(bounds)
        for record in own:
            curves = record.figures["curves"]
            values = np.array(curves[figure_name], float) - lowest[record.settings["route"]]
            values = np.where(np.isfinite(values), np.maximum(values, 1e-3), np.nan)
            style = "-" if record.settings["route"] == "native" else "--"
            axis.plot(
                curves["evaluations"],
                values,
                style,
                lw=1.3,
                marker="." if record.backend == "numpyro" else "x",
                ms=3 if len(values) > 1 else 10,  # one point alone is not to be overlooked
                color=colour[record.method],
                alpha=0.8,
            )
        if figure_name == "worst mean error":
            axis.axhline(MEAN, color="black", lw=0.7, ls=":")
        axis.set(xscale="log" if own else "linear", yscale="log" if own else "linear", title=name)
        # Over little more than a decade the labels between powers of ten run into each other.
        axis.xaxis.set_minor_formatter(plt.NullFormatter())
        axis.title.set_fontsize(8)
        axis.set_ylim(top=min(axis.get_ylim()[1], 1e4))
        axis.grid(alpha=0.3)
        if not own:
            axis.set(xticks=[], yticks=[])
    label = "nats above the lowest bound" if figure_name == "negative ELBO" else figure_name
    figure.supylabel(label)
    figure.supxlabel("score evaluations")
    _legend(plt, figure, colour, [*drawn, *failed])
    save(figure, path, dpi=110)


def _legend(plt: Any, figure: Any, colour: Mapping[str, Any], runs: Sequence[Record]) -> None:
    names = dict.fromkeys(record.method for record in sorted(runs, key=order))
    handles = [plt.Line2D([], [], color=colour[name], label=name) for name in names]
    if any(record.failed for record in runs):
        handles.append(plt.Line2D([], [], ls="", marker="x", color="black", label="failed"))
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=8)


def plot_noise(runs: Sequence[Record], path: Path) -> None:
    """Bounds at the end over the level of noise: the paper's Figure 6."""
    # A failed run counts as infinitely far off: those that are left would flatter the method.
    drawn = [r for r in runs if r.failed or "negative ELBO" in r.figures]
    drawn = [r for r in drawn if r.method in {d.method for d in drawn if not d.failed}]
    if not drawn:
        return
    plt = pyplot()
    colour = colours(plt)
    panels = grouped(drawn, lambda r: (r.model, r.settings["route"]))
    figure, axes = grid(len(panels), size=PANEL)
    levels = sorted({record.settings["noise"] for record in drawn})
    for axis, ((name, _), own) in zip(axes.flat, panels.items(), strict=False):
        lowest = min(r.figures.get("negative ELBO", math.inf) for r in own)
        crosses: dict[int, int] = {}
        for (method, backend), same in grouped(own, lambda r: (r.method, r.backend)).items():
            at = []
            for level in levels:
                values = [
                    r.figures.get("negative ELBO", math.inf)
                    for r in same
                    if r.settings["noise"] == level
                ]
                at.append(median(values) if values else None)
            shown = [math.nan if v is None else max(v - lowest, 1e-2) for v in at]
            marker = "o-" if backend == "numpyro" else "x--"
            axis.plot(range(len(levels)), shown, marker, ms=4, color=colour[method])
            for place in (i for i, v in enumerate(at) if v == math.inf):
                rank = crosses[place] = crosses.get(place, -1) + 1
                _mark(axis, place, colour[method], axis.get_xaxis_transform(), rank)
        axis.set(yscale="log", title=name, xticks=range(len(levels)))
        axis.set_xticklabels([f"{level:g}" for level in levels])
        axis.title.set_fontsize(8)
        axis.set_ylim(top=min(axis.get_ylim()[1], 1e7))
        axis.grid(alpha=0.3)
    figure.supylabel("nats above the lowest bound")
    figure.supxlabel("level of noise")
    _legend(plt, figure, colour, drawn)
    save(figure, path, dpi=110)


class Fit(NamedTuple):
    """A run on a page's plots.

    Attributes
    ----------
    method, label : str
        The label names backend and route besides.
    columns : dict, optional
        Draws (n,) by scalar parameter; None where there are none.
    remark : str
        Why there are none.
    line : str
        Style of its lines, which tells backends and routes apart.
    """

    method: str
    label: str
    columns: Mapping[str, Floats] | None
    remark: str
    line: str


def write_page(name: str, runs: Sequence[Record], database: Database, out: Path) -> None:
    """A page of one posterior: its table, and plots against the reference draws."""
    folder = out / "pages"
    text = [f"# {name}", posterior_table(runs)]
    try:
        draws = database[name].reference_draws()
    except DatabaseError:
        # Records of another database's posterior.
        draws = None
    shown = [_fit(record, out) for record in sorted(runs, key=order) if record.seed == 0]
    if draws is not None and shown:
        folder.mkdir(parents=True, exist_ok=True)
        reference = Reference.of(draws)
        for kind, plot in (("forest", plot_forest), ("density", plot_density)):
            path = folder / f"{name}-{kind}.png"
            plot(reference, shown, path)
            text.append(f"![{kind} of {name}]({path.name})")
    records.write_text(folder / f"{name}.md", "\n\n".join(text) + "\n")


def _fit(record: Record, out: Path) -> Fit:
    """A run as the plots of a page have it."""
    backend, route = record.backend, record.settings["route"]
    label = f"{record.method} ({backend}, {route})"
    line = {("numpyro", "native"): "-", ("numpyro", "stan"): "--", ("pyro", "native"): "-."}
    style = line.get((backend, route), ":")
    path = draws_path(out, record)
    if record.failed or not was_run(record):
        return Fit(record.method, label, None, "failed" if record.failed else "not run", style)
    if not path.exists():
        return Fit(record.method, label, None, "not finite", style)
    with np.load(path) as kept:
        columns = scatter({key: kept[key] for key in kept.files}, rank=1)
    return Fit(record.method, label, columns, "", style)


def _panels(plt: Any, reference: Reference, height: float) -> tuple[Any, list[tuple[str, Any]]]:
    """A panel for each of the first parameters, each with an axis of its own."""
    names = list(reference.columns)[:SHOWN]
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(2 + 2.7 * columns, height * rows + 0.8), squeeze=False
    )
    figure.set_layout_engine("constrained")
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for name, axis in zip(names, axes.flat, strict=False):
        axis.set_title(name, fontsize=8)
        axis.tick_params(labelsize=7)
        axis.xaxis.set_major_locator(plt.MaxNLocator(4))
    return figure, list(zip(names, axes.flat, strict=False))


def _range(true: Floats) -> tuple[float, float]:
    """Where a parameter is shown: some standard deviations around the reference's draws."""
    low, high = np.quantile(true, [0.001, 0.999])
    margin = 0.3 * (high - low) or 1.0
    return float(low - margin), float(high + margin)


def plot_forest(reference: Reference, fits: Sequence[Fit], path: Path) -> None:
    """Median and central 90 % of each parameter, the reference first.

    Fits without draws are marked so; what is out of sight is an arrow at the edge.
    """
    plt = pyplot()
    colour = colours(plt)
    figure, panels = _panels(plt, reference, 0.17 * (len(fits) + 1) + 0.6)
    levels = [0.05, 0.5, 0.95]
    for name, axis in panels:
        true = reference.columns[name]
        least, greatest = _range(true)
        low, middle, high = np.quantile(true, levels)
        axis.axvspan(low, high, color="0.9", zorder=0)
        axis.plot([low, high], [0, 0], color="black", lw=2)
        axis.plot(middle, 0, "o", color="black", ms=4)
        for place, fit in enumerate(fits, start=1):
            own = colour[fit.method]
            drawn = (fit.columns or {}).get(name, np.array([np.nan]))
            if not np.isfinite(drawn).all():
                remark = fit.remark or ("not finite" if name in (fit.columns or {}) else "no draws")
                axis.plot(0.03, place, "x", color=own, ms=5, transform=axis.get_yaxis_transform())
                axis.text(
                    0.08,
                    place,
                    remark,
                    fontsize=6,
                    va="center",
                    transform=axis.get_yaxis_transform(),
                )
                continue
            low, middle, high = np.quantile(drawn, levels)
            axis.plot([low, high], [place, place], fit.line, color=own, lw=1.5)
            if least <= middle <= greatest:
                axis.plot(middle, place, "o", color=own, ms=4)
            else:
                left = middle < least
                axis.plot(least if left else greatest, place, "<" if left else ">", color=own, ms=6)
        axis.set_xlim(least, greatest)
        axis.set_ylim(len(fits) + 0.6, -0.6)
        first = axis.get_subplotspec().is_first_col()
        labels = ["reference", *(fit.label for fit in fits)] if first else []
        axis.set_yticks(range(len(fits) + 1) if first else [], labels)
    save(figure, path, dpi=100)


def plot_density(reference: Reference, fits: Sequence[Fit], path: Path) -> None:
    """Densities of each parameter, the reference's as an area; fits without draws are named so."""
    plt = pyplot()
    colour = colours(plt)
    figure, panels = _panels(plt, reference, 1.8)
    for name, axis in panels:
        least, greatest = _range(reference.columns[name])
        places = np.linspace(least, greatest, 200)
        heights = [_density(reference.columns[name], places)]
        axis.fill_between(places, heights[0], color="0.8")
        for fit in fits:
            if fit.columns is None or name not in fit.columns:
                continue
            heights.append(_density(fit.columns[name], places))
            axis.plot(places, heights[-1], fit.line, color=colour[fit.method], lw=1.2)
        # One fit that has shrunk to a point would flatten all others.
        axis.set(xlim=(least, greatest), ylim=(0.0, 3.0 * float(heights[0].max())), yticks=[])
        axis.set_ylim(top=min(3.0 * heights[0].max(), 1.05 * max(h.max() for h in heights)))
    handles = [plt.Rectangle((0, 0), 1, 1, color="0.8", label="reference")]
    for fit in fits:
        label = f"{fit.label}: {fit.remark}" if fit.remark else fit.label
        marker = "x" if fit.remark else None
        line = "" if fit.remark else fit.line
        handles.append(
            plt.Line2D([], [], ls=line, marker=marker, color=colour[fit.method], label=label)
        )
    figure.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=7)
    save(figure, path, dpi=100)


def _density(drawn: Floats, places: Floats) -> Floats:
    """A kernel estimate at places; zero where draws are all alike or not finite."""
    if not np.isfinite(drawn).all() or np.ptp(drawn) <= 1e-12 * np.abs(drawn).max():
        return np.zeros_like(places)
    found: Floats = gaussian_kde(drawn)(places)
    return found
