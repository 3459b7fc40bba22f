"""Tables and plots of the regression benchmark's records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.study import curves

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
FIGURES = ("RMSE", "log likelihood")

Groups = dict[tuple[str, str, str], list[records.Record]]


def _grouped(runs: Sequence[records.Record]) -> Groups:
    """Runs that did not fail; of a split that was run again, the last one."""
    groups: dict[tuple[str, str, str], dict[Any, records.Record]] = {}
    for run in runs:
        if not run.failed:
            own = groups.setdefault((run.model, run.backend, run.method), {})
            own[run.settings["split"]] = run
    return {key: list(own.values()) for key, own in groups.items()}


def _mean(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.4g}"
    return f"{np.mean(values):.4g} ± {np.std(values, ddof=1) / len(values) ** 0.5:.2g}"


#: Methods as the page names them.
NAMES = {
    "SVGD": "`SVGD`",
    "SVGD, equal gradients": "`SVGD`, equal gradients",
    "SVGD-VR": "`SVGDVR`",
}


def page_table(runs: Sequence[records.Record]) -> str:
    """RMSE and log likelihood of the test rows, means over splits, for the page."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (name, backend, method), group in _grouped(runs).items():
        row = rows.setdefault((name, backend), {"set": name.replace("_", " ")})
        row |= {"package": records.LABELS[backend], "splits": len(group)}
        both = ([run.figures[key][-1] for run in group] for key in FIGURES)
        row[NAMES[method]] = ", ".join(map(_mean, both))
    for (name, _), row in rows.items():
        found = PUBLISHED.get(name, {}).get("SVGD-VR")
        row["published, `SVGDVR`"] = "–" if found is None else f"{found[0]:g}, {found[1]:g}"
    return records.markdown_table(list(rows.values()))


def picture(runs: Sequence[records.Record], path: Path) -> None:
    """Test RMSE over sweeps of gradients."""
    own = [run for group in _grouped(runs).values() for run in group]
    curves(own, "gradients", "RMSE", path)
