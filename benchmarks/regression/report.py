"""Tables and plots of the regression benchmark's records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.study import grid, save

#: RMSE and log likelihood of SVGD and SVGD-VR in the paper's Tables IV and V. Its energy is the
#: cooling load with the heating load as a feature; its protein cannot be the standard response.
PUBLISHED = {
    "yacht": {"SVGD": (0.871, -1.401), "SVGD-VR": (0.769, -1.259)},
    "boston": {"SVGD": (2.394, -2.489), "SVGD-VR": (2.408, -2.492)},
    "energy_leaked": {"SVGD": (1.391, -1.746), "SVGD-VR": (1.284, -1.666)},
    "concrete": {"SVGD": (5.734, -3.158), "SVGD-VR": (5.304, -3.072)},
    "wine_red": {"SVGD": (0.624, -0.946), "SVGD-VR": (0.599, -0.901)},
    "kin8nm": {"SVGD": (0.118, 0.724), "SVGD-VR": (0.085, 1.044)},
    "power_plant": {"SVGD": (4.391, -2.906), "SVGD-VR": (4.309, -2.888)},
    "naval": {"SVGD": (0.006, 3.714), "SVGD-VR": (0.004, 4.104)},
}
#: Smallest, median and largest variance ratio in per cent, Table III.
PUBLISHED_RATIOS = {
    "yacht": (4.38, 13.50, 38.54),
    "boston": (7.86, 24.81, 33.60),
    "energy_leaked": (4.95, 14.21, 27.63),
    "concrete": (4.91, 9.61, 17.04),
    "wine_red": (5.44, 15.62, 29.43),
    "kin8nm": (2.99, 4.01, 13.01),
    "power_plant": (3.19, 4.97, 24.28),
    "naval": (6.10, 22.49, 51.62),
}
FIGURES = ("RMSE", "log likelihood", "tuned log likelihood")

Groups = dict[tuple[str, str, str], list[records.Record]]


def _grouped(runs: list[records.Record]) -> Groups:
    """Runs that did not fail; of a split that was run again, the last one."""
    groups: dict[tuple[str, str, str], dict[Any, records.Record]] = {}
    for run in runs:
        if not run.failed:
            own = groups.setdefault((run.model, run.backend, run.method), {})
            own[run.settings["split"]] = run
    return {key: list(own.values()) for key, own in groups.items()}


def write(runs: list[records.Record], out: Path) -> None:
    """Write regression.md and the plots."""
    groups = _grouped(runs)
    failures = [
        f"{run.method} on {run.model}, {run.backend}, {run.settings['split']}, failed: {run.error}"
        for run in runs
        if run.failed
    ]
    text = "\n".join(
        [
            "# Regression networks",
            "",
            "Made by `python -m benchmarks regression`. Mean and standard error over splits, in "
            'original units. "Tuned" is the log likelihood with the noise\'s standard deviation '
            "times a factor, chosen with the step size on rows held out of the training rows. The "
            "published figures are those of Dam et al., Tables III to V.",
            "",
            records.markdown_table(_rows(groups), digits=4),
            "## Variance ratios (%)",
            "",
            records.markdown_table(_ratio_rows(groups)),
            *failures,
            "",
        ]
    )
    records.write_text(out / "regression.md", text)
    print(text)
    for figure in ("RMSE", "log likelihood"):
        _plot(groups, figure, out / f"{figure.lower().replace(' ', '-')}.png")


def _mean(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.4g}"
    return f"{np.mean(values):.4g} ± {np.std(values, ddof=1) / len(values) ** 0.5:.2g}"


def _rows(groups: Groups) -> list[dict[str, Any]]:
    rows = []
    for (name, backend, method), runs in groups.items():
        row: dict[str, Any] = {"set": name, "backend": backend, "method": method}
        row["splits"] = len(runs)
        rates = sorted({float(run.settings["rate"]) for run in runs})
        row["step sizes"] = ", ".join(f"{rate:g}" for rate in rates)
        published = PUBLISHED.get(name, {}).get(method, (None, None))
        for figure in FIGURES:
            row[figure] = _mean([run.figures[figure][-1] for run in runs])
        row["published RMSE"], row["published log likelihood"] = published
        row["sweeps of gradients"] = float(runs[0].figures["gradients"][-1])
        row["seconds"] = float(np.mean([run.seconds for run in runs]))
        rows.append(row)
    return rows


def _ratio_rows(groups: Groups) -> list[dict[str, Any]]:
    rows = []
    for (name, backend, method), runs in groups.items():
        if "variance ratio" not in runs[0].figures:
            continue
        ratios = 100.0 * np.array([run.figures["variance ratio"] for run in runs]).mean(0)
        row: dict[str, Any] = {"set": name, "backend": backend, "method": method}
        found = (ratios.min(), np.median(ratios), ratios.max())
        published = PUBLISHED_RATIOS.get(name, (None, None, None))
        for label, value, theirs in zip(
            ("smallest", "median", "largest"), found, published, strict=True
        ):
            row |= {label: float(value), f"published {label}": theirs}
        rows.append(row)
    return rows


#: Methods as the page names them.
NAMES = {
    "SVGD": "`SVGD`",
    "SVGD, equal gradients": "`SVGD`, equal gradients",
    "SVGD-VR": "`SVGDVR`",
}


def page_table(runs: list[records.Record]) -> str:
    """RMSE and log likelihood of the test rows, means over splits, for the page."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (name, backend, method), group in _grouped(runs).items():
        row = rows.setdefault((name, backend), {"set": name.replace("_", " ")})
        row |= {"package": records.LABELS[backend], "splits": len(group)}
        both = ([run.figures[key][-1] for run in group] for key in FIGURES[:2])
        row[NAMES[method]] = ", ".join(map(_mean, both))
    for (name, _), row in rows.items():
        found = PUBLISHED.get(name, {}).get("SVGD-VR")
        row["published, `SVGDVR`"] = "–" if found is None else f"{found[0]:g}, {found[1]:g}"
    return records.markdown_table(list(rows.values()))


def picture(runs: list[records.Record], path: Path) -> None:
    """Test RMSE over sweeps of gradients, for the page."""
    _plot(_grouped(runs), "RMSE", path)


def _plot(groups: Groups, figure_name: str, path: Path) -> None:
    from matplotlib.ticker import NullFormatter

    panels = list(dict.fromkeys(key[:2] for key in groups))
    if not panels:
        return
    figure, axes = grid(len(panels))
    methods = dict.fromkeys(key[2] for key in groups)
    colors = {method: f"C{number}" for number, method in enumerate(methods)}
    for axis, panel in zip(axes.flat, panels, strict=False):
        for key, runs in groups.items():
            if key[:2] != panel:
                continue
            values = np.array([run.figures[figure_name] for run in runs], float)
            x = runs[0].figures["gradients"]
            axis.plot(x, values.mean(0), "o-", ms=3, color=colors[key[2]], label=key[2])
        axis.set(title=" / ".join(panel), xscale="log", xlabel="sweeps of gradients")
        low, high = axis.get_ylim()
        if low > 0 and high > 5 * low:
            axis.set_yscale("log")
        # Within less than a decade the labels of minor ticks would lie on each other.
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3, which="both")
    axes[0][0].set_ylabel(figure_name)
    axes[0][0].legend(fontsize=7)
    save(figure, path)
