"""Leaderboard, curves, noise and a page for each posterior, all from records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.bnn.report import pyplot
from benchmarks.posteriordb.database import Database, DatabaseError, scatter
from benchmarks.posteriordb.figures import MEAN_ERROR, RATIOS, Reference, is_right
from benchmarks.posteriordb.methods import METHODS, Floats
from benchmarks.records import Record

#: Nats above the best bound that any run found at which a run counts as arrived.
ARRIVED = 0.5
#: Errors in standard deviations, or their ratios, from which no figure is given.
FAR_OFF = 10.0
#: Parameters on a page's plots.
SHOWN = 12

TITLE = "# Engines on posteriordb"
ABOUT = (
    "Made by `python -m benchmarks posteriordb`. All figures are at the end of a run; a score "
    "evaluation is one gradient of the log density of all rows, wherever it is taken. A run is "
    f"*right* when the mean of no parameter is off by more than {MEAN_ERROR:g} standard deviations "
    "of the reference draws and every standard deviation is within "
    f"{RATIOS[0]:g} and {RATIOS[1]:g} of theirs; *right after* is the first look along the run "
    "from which this holds to the end. Mean errors and Wasserstein distances are in standard "
    "deviations of the reference. KSD of particles and chains is the V-statistic, of guides the "
    "U-statistic, and depends on the number of draws. Of methods with a step size the best by "
    "bound, or by KSD, is shown."
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


def best_rates(runs: Sequence[Record]) -> list[Record]:
    """Of the runs that differ in their step size alone, the best; the latest of equal ones."""
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
    return [min(tried.values(), key=merit) for tried in groups.values()]


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


def right_after(record: Record) -> float:
    """Score evaluations of the first look from which the run is right to its end; NaN if none."""
    curves = record.figures.get("curves", {})
    if record.failed or "worst mean error" not in curves:
        return math.nan
    looks = len(curves["evaluations"])
    right = [
        is_right({name: curves[name][i] for name in curves if len(curves[name]) == looks})
        for i in range(looks)
    ]
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


def judged_posteriors(runs: Sequence[Record]) -> set[str]:
    """Posteriors with reference draws, known by the runs that were held against them."""
    return {r.model for r in runs if not r.failed and "worst mean error" in r.figures}


def leaderboard(runs: Sequence[Record]) -> str:
    """One line for each method, over all posteriors and seeds.

    Of the posteriors without reference draws no run is right or wrong.
    """
    known = judged_posteriors(runs)
    rows = []
    groups = grouped(runs, lambda r: (r.method, r.backend, r.settings["route"]))
    for (method, backend, route), own in sorted(groups.items(), key=lambda item: order(item[1][0])):
        judged = [r for r in own if r.model in known and was_run(r)]
        done = [r for r in own if not r.failed]

        def over(name: str, done: list[Record] = done) -> float | None:
            return median([r.figures[name] for r in done if name in r.figures])

        rows.append(
            {
                "method": method,
                "ours": "yes" if method in METHODS and METHODS[method].ours else "",
                "backend": backend,
                "route": route,
                "right": f"{sum(bool(r.figures.get('right')) for r in judged)} of {len(judged)}",
                "failed": sum(r.failed for r in own),
                "not run": sum(not was_run(r) for r in own),
                "worst mean error": over("worst mean error"),
                "sliced Wasserstein": over("sliced Wasserstein"),
                "k-hat": over("k-hat"),
                "right after": median([right_after(r) for r in done]),
                "seconds": over("step seconds"),
            }
        )
    return records.markdown_table(rows)


def overview(runs: Sequence[Record]) -> str:
    """Posteriors against methods: worst mean error, and least and greatest sd ratio.

    Figures are medians over seeds, bold where every seed is right. Empty without reference draws.
    """
    known = judged_posteriors(runs)
    if not known:
        return ""
    judged = sorted((r for r in runs if r.model in known), key=order)
    columns = grouped(judged, lambda r: (r.method, r.backend, r.settings["route"]))
    several = len({key[1:] for key in columns}) > 1
    cells: dict[str, dict[str, Any]] = {model: {"posterior": model} for model in sorted(known)}
    total: dict[str, Any] = {"posterior": f"right, of {len(known)}"}
    ours: set[str] = set()
    for key, own in columns.items():
        header = ", ".join(key) if several else key[0]
        right = set()
        for (model,), same in grouped(own, lambda r: (r.model,)).items():
            cells[model][header] = _overview_cell(same)
            if all(bool(r.figures.get("right")) for r in same):
                right.add(model)
        total[header] = len(right)
        if key[0] in METHODS and METHODS[key[0]].ours:
            ours |= right
    table = records.markdown_table([*cells.values(), total], list(total))
    return (
        "Worst mean error, and least and greatest ratio of standard deviations; bold is right. "
        f"Some engine of this project is right on **{len(ours)} of {len(known)}** posteriors with "
        f"reference draws.\n\n{table}"
    )


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


def posterior_table(runs: Sequence[Record]) -> str:
    """One line for each run on a posterior."""
    rows = []
    for record in sorted(runs, key=order):
        found = record.figures
        row: dict[str, Any] = {
            "method": record.method,
            "backend": record.backend,
            "route": record.settings["route"],
            "seed": record.seed,
            "rate": record.settings["rate"],
        }
        if record.failed:
            rows.append(row | {"right": "failed", "worst parameter": str(record.error)[:90]})
            continue
        if not was_run(record):
            rows.append(row | {"right": "not run", "worst parameter": found["not run"]})
            continue
        row["right"] = {True: "yes", False: "no", None: ""}[found.get("right")]
        for name in (
            "worst mean error",
            "worst parameter",
            "median mean error",
            "least sd ratio",
            "greatest sd ratio",
            "sliced Wasserstein",
            "negative ELBO",
            "k-hat",
            "KSD",
            "evaluations",
        ):
            row[name] = found.get(name)
        row["right after"] = None if math.isnan(right_after(record)) else right_after(record)
        row["seconds"] = found.get("step seconds")
        rows.append(row)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return records.markdown_table(rows, columns)


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
        where = "the best Normal on the way to a mode" if start == "path" else "the host's start"
        text += [f"## {budget:,} score evaluations, from {where}"]
        exact = [record for record in same if not record.settings["noise"]]
        if exact:
            text += [part for part in (leaderboard(exact), overview(exact)) if part]
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
    """A colour for each method, the same in all plots."""
    cycle = plt.get_cmap("tab20").colors
    return {name: cycle[i % len(cycle)] for i, name in enumerate(METHODS)}


def _grid(plt: Any, number: int) -> tuple[Any, Any]:
    columns = min(4, number)
    rows = -(-number // columns)
    return plt.subplots(
        rows, columns, figsize=(3.4 * columns, 2.6 * rows), squeeze=False, layout="constrained"
    )


def plot_curves(runs: Sequence[Record], path: Path, figure_name: str) -> None:
    """A figure over score evaluations, a panel for each posterior; bounds above the lowest."""
    drawn = [
        record
        for record in runs
        if not record.failed and figure_name in record.figures.get("curves", {})
    ]
    if not drawn:
        return
    plt = pyplot()
    colour = colours(plt)
    panels = grouped(drawn, lambda r: (r.model,))
    figure, axes = _grid(plt, len(panels))
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, ((name,), own) in zip(axes.flat, panels.items(), strict=False):
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
                ms=3,
                color=colour[record.method],
                alpha=0.8,
            )
        if figure_name == "worst mean error":
            axis.axhline(MEAN_ERROR, color="black", lw=0.7, ls=":")
        axis.set(xscale="log", yscale="log", title=name)
        # Over little more than a decade the labels between powers of ten run into each other.
        axis.xaxis.set_minor_formatter(plt.NullFormatter())
        axis.title.set_fontsize(8)
        axis.set_ylim(top=min(axis.get_ylim()[1], 1e4))
        axis.grid(alpha=0.3)
    label = "nats above the lowest bound" if figure_name == "negative ELBO" else figure_name
    figure.supylabel(label)
    figure.supxlabel("score evaluations")
    _legend(plt, figure, colour, drawn)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _legend(plt: Any, figure: Any, colour: Mapping[str, Any], runs: Sequence[Record]) -> None:
    names = [name for name in METHODS if any(record.method == name for record in runs)]
    handles = [plt.Line2D([], [], color=colour[name], label=name) for name in names]
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
    figure, axes = _grid(plt, len(panels))
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    levels = sorted({record.settings["noise"] for record in drawn})
    for axis, ((name, _), own) in zip(axes.flat, panels.items(), strict=False):
        lowest = min(r.figures.get("negative ELBO", math.inf) for r in own)
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
        axis.set(yscale="log", title=name, xticks=range(len(levels)))
        axis.set_xticklabels([f"{level:g}" for level in levels])
        axis.title.set_fontsize(8)
        axis.set_ylim(top=min(axis.get_ylim()[1], 1e7))
        axis.grid(alpha=0.3)
    figure.supylabel("nats above the lowest bound")
    figure.supxlabel("level of noise")
    _legend(plt, figure, colour, drawn)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_page(name: str, runs: Sequence[Record], database: Database, out: Path) -> None:
    """A page of one posterior: its table, and ArviZ's plots against the reference draws."""
    folder = out / "pages"
    text = [f"# {name}", posterior_table(runs)]
    try:
        draws = database[name].reference_draws()
    except DatabaseError:
        # Records of another database's posterior.
        draws = None
    shown = {}
    for record in sorted(runs, key=order):
        path = draws_path(out, record)
        if not record.failed and was_run(record) and record.seed == 0 and path.exists():
            with np.load(path) as kept:
                label = f"{record.method} ({record.backend}, {record.settings['route']})"
                shown[label] = {key: kept[key] for key in kept.files}
    if draws is not None and shown:
        folder.mkdir(parents=True, exist_ok=True)
        reference = Reference.of(draws)
        for kind in ("forest", "density"):
            path = folder / f"{name}-{kind}.png"
            plot_page(kind, reference, shown, path)
            text.append(f"![{kind} of {name}]({path.name})")
    records.write_text(folder / f"{name}.md", "\n\n".join(text) + "\n")


def plot_page(
    kind: str, reference: Reference, shown: Mapping[str, Mapping[str, Floats]], path: Path
) -> None:
    """ArviZ's forest or density plot of the first parameters, the reference first."""
    import arviz as az

    plt = pyplot()
    names = list(reference.columns)[:SHOWN]

    def as_data(columns: Mapping[str, Floats]) -> Any:
        return (
            az.from_dict({"posterior": {n: columns[n][None] for n in names}})
            if newer
            else (az.from_dict(posterior={n: columns[n][None] for n in names}))
        )

    newer = not hasattr(az, "psislw")
    data = {"reference": as_data(reference.columns)}
    for label, parameters in shown.items():
        columns = scatter(parameters, rank=1)
        if all(n in columns and np.isfinite(columns[n]).all() for n in names):
            data[label] = as_data(columns)
    if newer:
        plot = az.plot_forest if kind == "forest" else az.plot_dist
        plot(data).savefig(path)
        return
    options: dict[str, Any] = {"hdi_prob": 0.9, "var_names": names}
    with np.errstate(all="ignore"):
        if kind == "forest":
            axes = az.plot_forest(
                list(data.values()),
                model_names=list(data),
                combined=True,
                figsize=(8, 0.09 * len(names) * len(data) + 2.5),
                **options,
            )
        else:
            axes = az.plot_density(
                list(data.values()),
                data_labels=list(data),
                shade=0.05,
                textsize=8,
                **options,
            )
    figure = np.ravel(axes)[0].figure
    figure.savefig(path, dpi=90, bbox_inches="tight")
    plt.close(figure)
