"""Plots of the image benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.records import Record

PANELS = (("error", "test error (%)", 100.0), ("ECE", "ECE (%)", 100.0), ("NLL", "test NLL", 1.0))


def figures_by_share(cells: Sequence[Sequence[Record]], path: Path) -> None:
    """Test error, ECE and NLL against the share of the images.

    One row of panels for each backend and temperature; lines are means over the seeds, points
    the single seeds.
    """
    cells = [cell for cell in cells if not cell[0].failed]
    places = list(dict.fromkeys(_place(cell[0]) for cell in cells))
    methods = list(dict.fromkeys(cell[0].method for cell in cells))
    figure, axes = plt.subplots(
        max(1, len(places)),
        len(PANELS),
        figsize=(3.8 * len(PANELS), 3.0 * max(1, len(places))),
        sharex=True,
        layout="constrained",
        squeeze=False,
    )
    shares = sorted({cell[0].settings["percent"] for cell in cells})
    for line, place in zip(axes, places, strict=False):
        for axis, (name, label, factor) in zip(line, PANELS, strict=True):
            for index, method in enumerate(methods):
                chosen = [c for c in cells if (_place(c[0]), c[0].method) == (place, method)]
                if not chosen:
                    continue
                # Side by side, so that points of equal height stay apart.
                x = [c[0].settings["percent"] * (0.94 + 0.12 * index) for c in chosen]
                values = [[factor * r.figures[name] for r in c if not r.failed] for c in chosen]
                colour, marker = f"C{index}", "os^D"[index % 4]
                axis.plot(x, [np.mean(v) for v in values], color=colour, label=method)
                for at, points in zip(x, values, strict=True):
                    axis.plot([at] * len(points), points, marker, color=colour, markersize=5)
            axis.set_xscale("log")
            axis.set_xticks(shares, [f"{share:g}" for share in shares])
            axis.minorticks_off()
            axis.set_ylim(bottom=0.0)
            axis.set_title(f"{place}: {label}", fontsize=10)
            axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=9)
    figure.supxlabel("share of the training images (%)", fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _place(record: Record) -> str:
    return f"{record.backend}, T = {record.settings['temperature']:g}"
