"""Tables and the plot of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.network_truth.figures import ANY_SD, KOLMOGOROV, MEAN, MEDIAN_SD
from benchmarks.network_truth.methods import METHODS
from benchmarks.network_truth.networks import NETWORKS
from benchmarks.records import Record
from benchmarks.study import pyplot, save, subplots
from benchmarks.trust.report import grouped

ABOUT = f"""Made by `python -m benchmarks network-truth`. Outputs of networks on held-out rows \
against those of long chains of NUTS: the error of their means in standard deviations of the \
reference (root mean square), the ratio of their standard deviations (median, least and greatest), \
the Kolmogorov distance (median over the outputs), agreement and total variation of class \
probabilities, and the log predictive density less the reference's. A method is *right* when the \
means' error is at most {MEAN}, the ratio within {MEDIAN_SD:.0%} in the median and {ANY_SD:.0%} at \
most, and the greatest Kolmogorov distance at most {KOLMOGOROV} beyond sampling error. Evaluations \
are those of the score; seconds are the processor's at the first seed, compiling included. Chains \
are trusted whose outputs have an R-hat of at most 1.01 and 400 effective draws, without \
divergences; a method that says nothing is trusted.
"""

#: Columns of the large table.
COLUMNS = (
    *("network", "package", "method", "mean error", "sd ratio", "Kolmogorov", "agreement"),
    *("total variation", "log density", "calibration error", "evaluations", "processor s"),
    *("outcome", "runs"),
)


def judged(found: Sequence[Record]) -> list[Record]:
    """Records of methods; those of references are left out."""
    return [record for record in found if record.benchmark == "network-truth"]


def outcome(record: Record) -> str:
    """Right or wrong, trusted or not; or that it failed."""
    if record.failed:
        return "failed"
    right = "right" if record.figures["right"] else "wrong"
    return f"{right}, {'trusted' if record.figures['trusted'] else 'not trusted'}"


def said(record: Record) -> str:
    """A run in one line."""
    what = f"{record.model}, {record.backend}, {record.method}, seed {record.seed}"
    if record.error is not None:
        return f"{what}: {record.error.splitlines()[0]}"
    told = "; ".join([*record.figures["reasons"], *record.figures["told"]])
    spent = f"{record.figures['evaluations']:,} evaluations"
    return f"{what}: {outcome(record)}, {spent}" + (f" ({told})" if told else "")


def _median(runs: Sequence[Record], figure: str) -> float | None:
    values = [run.figures[figure] for run in runs if run.figures.get(figure) is not None]
    return float(np.median(values)) if values else None


def ratio(runs: Sequence[Record]) -> str | None:
    """Ratio of standard deviations: median, and the least and greatest of all runs."""
    own = [run.figures for run in runs if "sd ratio" in run.figures]
    if not own:
        return None
    middle = float(np.median([each["sd ratio"] for each in own]))
    least = min(each["least sd ratio"] for each in own)
    greatest = max(each["greatest sd ratio"] for each in own)
    return " ".join([_short(middle), f"[{_short(least)} {_short(greatest)}]"])


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 100.0 else f"{value:.0e}"


def row(runs: Sequence[Record]) -> dict[str, Any]:
    """Medians over the seeds of a method on a network; seconds are those of the first seed."""
    first, kept = runs[0], [run for run in runs if not run.failed]
    gain = [
        run.figures["log density"] - run.figures["reference's log density"]
        for run in kept
        if "log density" in run.figures
    ]
    evaluations = _median(kept, "evaluations")
    return {
        "network": first.model,
        "package": records.LABELS[first.backend],
        "method": first.method,
        "mean error": _median(kept, "mean error"),
        "sd ratio": ratio(kept),
        "Kolmogorov": _median(kept, "Kolmogorov"),
        "agreement": _median(kept, "agreement"),
        "total variation": _median(kept, "total variation"),
        "log density": float(np.median(gain)) if gain else None,
        "calibration error": _median(kept, "calibration error"),
        "evaluations": None if evaluations is None else round(evaluations),
        # In older records later seeds of a process found compiled what the first had compiled.
        "processor s": _median(kept[:1], "processor seconds"),
        "outcome": "; ".join(dict.fromkeys(outcome(run) for run in runs)),
        "runs": len(runs),
    }


def rows(found: Sequence[Record]) -> list[dict[str, Any]]:
    """A row for each network, package and method, in the order of the networks and methods."""
    order, methods = list(NETWORKS), list(METHODS)
    own = sorted(
        judged(found),
        key=lambda run: (
            order.index(run.model),
            run.backend,
            methods.index(run.method),
            run.seed or 0,
        ),
    )
    return [row(runs) for runs in grouped(own, lambda r: (r.model, r.backend, r.method)).values()]


def page_table(found: Sequence[Record]) -> str:
    """The table on the page on networks."""
    kept = ("network", "package", "method", "mean error", "sd ratio", "log density", "evaluations")
    table = rows([run for run in found if run.settings.get("share", 1.0) == 1.0])
    for each in table:
        for name, form in (("mean error", ".2f"), ("log density", "+.3f")):
            if each[name] is not None:
                each[name] = format(each[name], form)
    return records.markdown_table(table, [*kept, "processor s", "outcome"], digits=2)


def chains_table(found: Sequence[Record]) -> str:
    """Networks and how well the chains of their references agree, for the page."""
    made = {
        run.model: run
        for run in found
        if run.benchmark == "network-truth reference" and not run.failed
    }
    table = []
    for name, network in NETWORKS.items():
        each: dict[str, Any] = {"network": name, "rows": network.about, "units": network.described}
        each["D"] = network.dimension
        if name in made:
            figures = made[name].figures
            each |= {
                "R-hat": f"{figures['R-hat']:.3f}",
                "effective draws": round(figures["least effective"]),
                "halves apart (sd)": figures["halves apart"],
                "evaluations": figures["evaluations"],
            }
        table.append(each)
    return records.markdown_table(table)


def equations_table(found: Sequence[Record]) -> str:
    """What Stein's equations say of the outputs' means, for the page."""
    own = {run.model: run.figures for run in found if run.benchmark == "network-truth equations"}
    return records.markdown_table(
        [
            {
                "network": name,
                "without the divergence": f"{own[name]['without divergence']:.2f}",
                "sd of the equation": f"{own[name]['sd']:.2f}",
                "20 particles that obey it": f"{own[name]['mean error of particles']:.2f}",
                "20 independent draws": f"{own[name]['mean error of draws']:.2f}",
            }
            for name in NETWORKS
            if own.get(name)
        ]
    )


def lists(folder: Path) -> str:
    """The networks, and which have a reference in the folder; the methods."""
    networks = [
        {
            "network": name,
            "rows": network.about,
            "units": network.described,
            "D": network.dimension,
            "reference": (folder / f"{name}.npz").exists(),
        }
        for name, network in NETWORKS.items()
    ]
    methods = [{"method": name, "recipe": recipe.about} for name, recipe in METHODS.items()]
    return f"{records.markdown_table(networks)}\n{records.markdown_table(methods)}"


def write(found: Sequence[Record], out: Path) -> None:
    """Write the table and the plot of all runs."""
    own = judged(found)
    failed = [
        f"- {run.model}, {run.backend}, {run.method}, seed {run.seed}: {run.error}"
        for run in found
        if run.failed
    ]
    parts = ["# Networks judged by their outputs", "", ABOUT]
    if own:
        parts += [records.markdown_table(rows(own), COLUMNS)]
    parts += ["## References", "", chains_table(found)]
    if failed:
        parts += ["## Failed", "", *failed, ""]
    records.write_text(out / "network-truth.md", "\n".join(parts))
    if any("mean error" in run.figures for run in own):
        plot(own, out / "network-truth.png")


def plot(found: Sequence[Record], path: Path) -> None:
    """The error of the outputs' means over evaluations, a panel for each package."""
    own = [run for run in judged(found) if np.isfinite(run.figures.get("mean error", np.nan))]
    backends = sorted({run.backend for run in own})
    methods = [name for name in METHODS if any(run.method == name for run in own)]
    figure, axes = subplots(
        1, len(backends), figsize=(5.0 * len(backends) + 1.5, 4.2), sharey=True, squeeze=False
    )
    colours = pyplot().colormaps["tab20"]
    for axis, backend in zip(axes[0], backends, strict=True):
        for number, name in enumerate(methods):
            runs = [run for run in own if run.method == name and run.backend == backend]
            x = [run.figures["evaluations"] for run in runs]
            y = [run.figures["mean error"] for run in runs]
            marker = "os^vD"[number // 20 + number % 5]
            axis.plot(x, y, marker, color=colours(number % 20), alpha=0.8, label=name)
        axis.axhline(MEAN, color="black", linewidth=0.8)
        axis.set(xscale="log", yscale="log", title=records.LABELS[backend])
        axis.set(xlabel="score evaluations")
    axes[0, 0].set_ylabel("error of outputs' means (sd)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    save(figure, path)
