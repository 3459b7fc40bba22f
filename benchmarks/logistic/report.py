"""Table and plots of the logistic benchmark's records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.study import save, subplots
from benchmarks.variance_reduction.methods import METHODS

#: Accuracies of the paper's Tables I and II, in per cent. Its covertype has 581,012 rows.
PUBLISHED = {
    ("test", "a9a"): {"SVGD": 84.62, "SVRG, point estimate": 82.84, "SVGD-VR, reset": 84.90},
    ("test", "w8a"): {"SVGD": 98.51, "SVRG, point estimate": 97.02, "SVGD-VR, reset": 98.78},
    ("test", "cod_rna"): {"SVGD": 94.55, "SVRG, point estimate": 92.57, "SVGD-VR, reset": 95.06},
    ("online", "a9a"): {"SVGD": 81.44, "SVRG, point estimate": 81.69, "SVGD-VR": 84.45},
    ("online", "w8a"): {"SVGD": 96.72, "SVRG, point estimate": 96.00, "SVGD-VR": 98.56},
    ("online", "cod_rna"): {"SVGD": 92.61, "SVRG, point estimate": 91.86, "SVGD-VR": 95.05},
}


def write(runs: list[records.Record], out: Path) -> None:
    """Write logistic.md and the plots."""
    text = "\n".join(
        [
            "# Logistic regression",
            "",
            "Made by `python -m benchmarks logistic`. Mean and standard deviation over runs. The "
            "published figures are those of Dam et al., Tables I and II; their SVGD-VR resets the "
            "optimizer at its anchors, and their online runs take all rows.",
            "",
            "## Test rows",
            "",
            _table(runs, "test"),
            "## Each row before it is learnt",
            "",
            _table(runs, "online"),
            *(
                f"{r.method} on {r.model}, {r.backend}, seed {r.seed}, failed: {r.error}\n"
                for r in runs
                if r.failed
            ),
        ]
    )
    records.write_text(out / "logistic.md", text)
    print(text)
    _plot(runs, "test", "accuracy", out / "accuracy.png")
    _plot(runs, "test", "log likelihood", out / "log-likelihood.png")
    _plot(runs, "test", "variance ratio", out / "variance-ratio.png")
    _plot(runs, "online", "accuracy", out / "online.png")


def _groups(runs: list[records.Record], protocol: str) -> dict[tuple[str, ...], list[Any]]:
    """Records of a protocol that ended well, by set, backend and method."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for run in runs:
        if run.settings["protocol"] == protocol and not run.failed:
            groups.setdefault((run.model, run.backend, run.method), []).append(run)
    return groups


def _mean(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def _table(runs: list[records.Record], protocol: str) -> str:
    rows = []
    for (name, backend, method), group in _groups(runs, protocol).items():
        row: dict[str, Any] = {"set": name, "backend": backend, "method": method}
        rates = {run.settings.get("rate") for run in group} - {None}
        row["step size"] = ", ".join(f"{rate:.3g}" for rate in sorted(rates)) or "–"
        row["accuracy (%)"] = _mean([run.figures["accuracy"][-1] for run in group])
        row["published (%)"] = PUBLISHED.get((protocol, name), {}).get(method)
        if protocol == "online":
            row["rows"] = int(group[0].settings["rows"])
        else:
            row["log likelihood"] = _mean([run.figures["log likelihood"][-1] for run in group])
            if "gradients" in group[0].figures:
                row["sweeps of gradients"] = float(group[0].figures["gradients"][-1])
            ratios = [
                run.figures["variance ratio"] for run in group if "variance ratio" in run.figures
            ]
            if ratios:
                shown = (100 * float(np.mean([r[at] for r in ratios])) for at in (0, 1, -1))
                heading = "variance ratio (%): first step, first half cycle, last"
                row[heading] = ", ".join(f"{value:.2f}" for value in shown)
        row["seconds"] = float(np.mean([run.seconds for run in group]))
        rows.append(row)
    return records.markdown_table(rows, digits=4)


def _plot(runs: list[records.Record], protocol: str, figure_name: str, path: Path) -> None:
    groups = {
        key: [run for run in group if figure_name in run.figures]
        for key, group in _groups(runs, protocol).items()
        if key[2] in METHODS
    }
    groups = {key: group for key, group in groups.items() if group}
    panels = list(dict.fromkeys(key[:2] for key in groups))
    if not panels:
        return
    across: Callable[[Any], Any] = {
        "test": lambda run: run.figures[
            "variance ratio at" if figure_name == "variance ratio" else "gradients"
        ],
        "online": lambda run: run.figures["rows"],
    }[protocol]
    figure, axes = subplots(1, len(panels), figsize=(4.2 * len(panels), 3.6), squeeze=False)
    colors = {method: f"C{number}" for number, method in enumerate(METHODS)}
    for axis, panel in zip(axes[0], panels, strict=True):
        bottom = []
        for key, group in groups.items():
            if key[:2] != panel:
                continue
            values = np.array([run.figures[figure_name] for run in group], float)
            x, mean = across(group[0]), values.mean(0)
            axis.plot(x, mean, "o-", ms=3, color=colors[key[2]], label=key[2])
            axis.fill_between(x, values.min(0), values.max(0), color=colors[key[2]], alpha=0.2)
            bottom.append(np.median(mean))
        if figure_name == "variance ratio":
            axis.set_yscale("log")
        elif bottom:
            # A slow start, or a method that failed, would flatten all other curves.
            spread = max(bottom) - sorted(bottom)[len(bottom) // 2]
            axis.set_ylim(bottom=max(axis.get_ylim()[0], max(bottom) - max(6 * spread, 0.02)))
        axis.set(title=" / ".join(panel), ylabel=figure_name)
        axis.set_xlabel("rows seen" if protocol == "online" else "sweeps of gradients")
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    save(figure, path)
