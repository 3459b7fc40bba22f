"""Plots of the image benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from benchmarks.records import Record
from benchmarks.study import save, subplots

PANELS = (("error", "test error (%)", 100.0), ("ECE", "ECE (%)", 100.0), ("NLL", "test NLL", 1.0))
#: Test images below which a bin of a reliability diagram is not drawn.
LEAST_ROWS = 20


def figures_by_share(cells: Sequence[Sequence[Record]], path: Path) -> None:
    """Test error, ECE and NLL against the share of the images.

    One row of panels for each backend and temperature; lines are means over the seeds, points
    the single seeds.
    """
    cells = [cell for cell in cells if not cell[0].failed]
    places = list(dict.fromkeys(_place(cell[0]) for cell in cells))
    methods = list(dict.fromkeys(cell[0].method for cell in cells))
    figure, axes = subplots(
        max(1, len(places)),
        len(PANELS),
        figsize=(3.8 * len(PANELS), 3.0 * max(1, len(places))),
        sharex=True,
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
    save(figure, path)


def _place(record: Record) -> str:
    return f"{record.backend}, T = {record.settings['temperature']:g}"


def validation_losses(cells: Sequence[Sequence[Record]], path: Path) -> None:
    """Validation NLL against epochs and against seconds of training, one row for each backend.

    Lines are the runs at the chosen rate, one for each seed; a circle marks the best epoch.
    """
    cells = [[record for record in cell if not record.failed] for cell in cells]
    cells = [cell for cell in cells if cell]
    names = list(dict.fromkeys(cell[0].backend for cell in cells))
    figure, axes = subplots(
        max(1, len(names)), 2, figsize=(9.0, 3.4 * max(1, len(names))), squeeze=False
    )
    for line, name in zip(axes, names, strict=False):
        largest = 0.0
        for index, cell in enumerate([cell for cell in cells if cell[0].backend == name]):
            for number, record in enumerate(cell):
                losses = np.asarray(record.figures["validation losses"])
                largest = max(largest, 2.5 * float(losses.min()))
                best = int(losses.argmin())
                epochs = np.arange(1, len(losses) + 1)
                for axis, x in zip(
                    line, (epochs, record.figures["seconds at epochs"]), strict=True
                ):
                    label = record.method if number == 0 else None
                    axis.plot(x, losses, color=f"C{index}", label=label)
                    axis.plot(x[best], losses[best], "o", color=f"C{index}", markersize=5)
        for axis, label in zip(line, ("epochs", "seconds of training"), strict=True):
            axis.set_xlabel(label)
            # A start at chance would press all else together.
            axis.set_ylim(top=min(axis.get_ylim()[1], largest or 1.0))
            axis.grid(alpha=0.3)
        line[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        line[0].set_ylabel("validation NLL")
        line[0].set_title(f"{cells[0][0].model}, {name}", fontsize=10)
        line[0].legend(fontsize=8)
    save(figure, path)


def reliability_diagrams(cells: Sequence[Sequence[Record]], path: Path) -> None:
    """Accuracy less confidence against confidence, and the share of rows, of the first seed."""
    cells = [cell for cell in cells if not cell[0].failed]
    names = list(dict.fromkeys(cell[0].backend for cell in cells))
    figure, axes = subplots(
        max(1, len(names)), 2, figsize=(9.0, 3.4 * max(1, len(names))), squeeze=False
    )
    for line, name in zip(axes, names, strict=False):
        for index, cell in enumerate([cell for cell in cells if cell[0].backend == name]):
            found = {
                key: np.asarray(values, float)
                for key, values in cell[0].figures["reliability"].items()
            }
            # Few rows tell nothing about their accuracy.
            enough = found["rows"] >= LEAST_ROWS
            line[0].plot(
                found["confidence"][enough],
                found["accuracy"][enough],
                "o-",
                markersize=4,
                color=f"C{index}",
                label=cell[0].method,
            )
            bins = len(enough)
            middle = (np.arange(bins) + 0.5) / bins
            shares = found["rows"] / found["rows"].sum()
            line[1].step(
                middle, np.where(shares > 0, shares, np.nan), "C" + str(index), where="mid"
            )
        line[0].plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle="--")
        line[0].set(xlim=(0.2, 1.0), ylim=(0.2, 1.0), ylabel="accuracy")
        line[1].set(
            yscale="log", xlim=(0.2, 1.0), ylim=(1e-3, 1.0), ylabel="share of the test images"
        )
        for axis in line:
            axis.set_xlabel("confidence")
            axis.grid(alpha=0.3)
        line[0].set_title(f"{cells[0][0].model}, {name}", fontsize=10)
        line[0].legend(fontsize=8)
    save(figure, path)
