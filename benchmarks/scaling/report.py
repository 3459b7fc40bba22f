"""The table and the plot of `scaling`: what is measured, and apart from it what is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.records import Record
from benchmarks.study import save, subplots

#: How far single precision may be from one device.
APART = 1e-6
#: Largest multiple of the least numbers that a step may move.
MOST = 1.1


def least(record: Record) -> float | None:
    """Numbers that a step has to move in this layout, where that is known.

    Particles that see each other move P D particles and P D scores to each device, or, all to
    all, P D / n of particles, scores and moves. Scores of rows are a sum of P D, beside which
    NumPyro's ``FisherVI`` sums as many products with the Hessian and its ``SVN`` a D x D curvature
    of each particle; in Pyro all processes compute these. Where particles and rows are split, each
    device has P / m of the particles.
    """
    settings = record.settings
    whole = settings["particles"] * settings["dim"]
    engine, layout, n = settings["engine"], settings["layout"], settings["devices"]
    if engine == "LaplaceGGN":
        whole = settings["dim"]
    gathers = engine in ("SVGD", "WGD")
    sums = {"FisherVI": 2, "SVN": 1 + settings["dim"]} if record.backend == "numpyro" else {}
    by_layout: dict[str, Any] = {
        "rows": sums.get(engine, 1) * whole,
        "particles": 2 * whole if gathers else None,
        "particles, all to all": 3 * whole / n,
        "particles and rows": 2 * whole + 2 * whole / n if gathers else None,
    }
    if engine == "DeepEnsemble":
        by_layout["particles and rows"] = 2 * whole / n
    found: float | None = by_layout.get(layout)
    return found


def is_good(record: Record) -> bool:
    """Whether a run is that of one device, and nobody was left waiting."""
    figures = record.figures
    if record.method == "kills":
        return not any(figures.get(k) for k in ("late", "without a message", "not exact", "failed"))
    return float(figures.get("difference from one device", 0.0)) <= APART


def table(found: Sequence[Record]) -> str:
    """Markdown tables of the records."""
    parts = ["## Measured: the same as one device, and what a step moves\n", _measured(found)]
    if any(each.method == "kills" for each in found):
        parts += ["\n## Measured: one of two processes is killed\n", kills_table(found)]
    predicted = [each for each in found if each.method == "predicted"]
    if predicted:
        parts += ["\n## Predicted, not measured: efficiency of accelerators\n"]
        parts += [_stated(predicted[0]), _predicted(predicted)]
    return "\n".join(parts)


def _measured(found: Sequence[Record]) -> str:
    rows = []
    for each in found:
        if each.method != "measured":
            continue
        settings, figures = each.settings, each.figures
        fewest = None if each.failed else least(each)
        moved = figures.get("numbers moved")
        rows.append(
            {
                "package": each.backend,
                "engine": settings.get("engine"),
                "layout": settings.get("layout"),
                "devices": settings.get("devices"),
                "difference": each.error or figures.get("difference from one device"),
                "numbers moved": moved,
                "over the least": None if not fewest or moved is None else moved / fewest,
                "kB sent by a device": _thousandth(figures.get("bytes sent by a device")),
                "kB of workspace": _thousandth(figures.get("bytes of workspace")),
                "operations": figures.get("operations of a device"),
            }
        )
    return records.markdown_table(rows)


def _thousandth(value: Any) -> float | None:
    return None if value is None else float(value) / 1000


def kills_table(found: Sequence[Record]) -> str:
    """What one of two processes did when the other was killed, and what was left."""
    rows = []
    for each in found:
        if each.method != "kills":
            continue
        figures = each.figures
        seconds = sorted(figures.get("seconds until the other ends", []))
        rows.append(
            {
                "package": records.LABELS[each.backend],
                "kills": figures.get("kills"),
                "seconds until the other ends: median": (
                    seconds[len(seconds) // 2] if seconds else None
                ),
                "most": seconds[-1] if seconds else None,
                "with a message": sum(figures.get("messages", {}).values()),
                "it was at its end": figures.get("the other was at its end"),
                "without a message": figures.get("without a message"),
                "runs to the end": figures.get("ends"),
                "not exact": each.error or figures.get("not exact"),
            }
        )
    return records.markdown_table(rows)


def _stated(record: Record) -> str:
    settings = record.settings
    return (
        f"Stated: {settings['network']} with {settings['weights']:,} weights in single precision, "
        f"particles: {settings['particles']}, {settings['operations a second']:.3g} operations a "
        f"second, {settings['bytes a second in a machine']:.3g} bytes a second among "
        f"{settings['devices of a machine']} devices of a machine and "
        f"{settings['bytes a second between machines']:.3g} between machines; nothing overlaps.\n"
    )


def _predicted(found: Sequence[Record]) -> str:
    rows = [
        {
            "engine": each.settings["engine"],
            "exchange": each.settings["exchange"],
            "images of a batch": each.settings["images of a batch"],
            **{f"{n} devices": value for n, value in each.figures["efficiency"].items()},
        }
        for each in found
    ]
    return records.markdown_table(rows)


def moves_table(found: Sequence[Record]) -> str:
    """What a step moves over the least it has to, at the most devices, for the page."""
    ratios: dict[tuple[str, str], dict[str, float]] = {}
    dims: dict[str, int] = {}
    for each in sorted(
        (each for each in found if each.method == "measured" and not each.failed),
        key=lambda each: int(each.settings["devices"]),
    ):
        engine, layout = each.settings["engine"], each.settings["layout"]
        fewest = least(each) if each.settings["devices"] > 1 else None
        if fewest:
            # Of the most devices, as these come last.
            ratio = each.figures["numbers moved"] / fewest
            ratios.setdefault((layout, engine), {})[each.backend] = ratio
            dims[engine] = each.settings["dim"]
    rows = [
        {
            "engine": f"`{engine}`",
            "layout": layout,
            "D": dims[engine],
            **{records.LABELS[backend]: f"{value:.3f}" for backend, value in by_backend.items()},
        }
        for (layout, engine), by_backend in sorted(ratios.items())
    ]
    return records.markdown_table(rows, ["engine", "layout", "D", *records.LABELS.values()])


def efficiency_table(found: Sequence[Record]) -> str:
    """Predicted efficiencies, for the page."""
    rows = [
        {
            "engine": f"`{each.settings['engine']}`",
            "exchange": each.settings["exchange"] if each.settings["engine"] == "SVGD" else "none",
            "images of a batch": each.settings["images of a batch"],
            **{f"{int(n):,} devices": each.figures["efficiency"][n] for n in ("8", "64", "1024")},
        }
        for each in found
        if each.method == "predicted"
    ]
    return records.markdown_table(rows)


#: How packages, and engines with their exchange, look in pictures.
_PACKAGES = {"numpyro": ("tab:blue", "s", -0.16), "pyro": ("tab:orange", "o", 0.16)}
_COLOURS = ("tab:green", "tab:red", "tab:purple")
_LINES = ("--", "-")


def plot(found: Sequence[Record], path: Path) -> None:
    """Left, measured: bytes that a device sends a step. Right, predicted: efficiency."""
    figure, (left, right) = subplots(1, 2, figsize=(12, 4.2), width_ratios=(1.1, 1.0))
    _plot_sent(found, left)
    _plot_efficiency(found, right)
    save(figure, path)


def _plot_sent(found: Sequence[Record], axis: Any) -> None:
    """A line for each engine and layout, with a point for each number of devices."""
    points: dict[tuple[str, str], dict[tuple[str, float], list[int]]] = {}
    for each in found:
        settings, sent = each.settings, each.figures.get("bytes sent by a device")
        if each.method != "measured" or each.failed or settings["devices"] < 2 or sent is None:
            continue
        if settings["engine"] in ("SVGD", "DeepEnsemble"):
            whole = settings["particles"] * settings["dim"] * settings["bytes of a number"]
            own = points.setdefault((settings["engine"], settings["layout"]), {})
            # What is a hundredth apart is one point.
            own.setdefault((each.backend, round(sent / whole, 2)), []).append(settings["devices"])
    names = sorted(points)
    for place, name in enumerate(names):
        for (backend, ratio), devices in points[name].items():
            colour, marker, offset = _PACKAGES[backend]
            label = records.LABELS[backend]
            axis.plot(ratio, place + offset, marker, color=colour, label=label)
            text = ", ".join(map(str, sorted(devices)))
            axis.annotate(
                text, (ratio, place + offset), (6, -3), textcoords="offset points", size=8
            )
    axis.set_yticks(range(len(names)), [f"{engine}, {layout}" for engine, layout in names])
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)
    axis.set_xlim(-0.1, 1.15 * axis.get_xlim()[1])
    axis.set(title="Measured: sent by a device each step", xlabel="P D numbers, by 2, 4, 8 devices")
    handles, labels = axis.get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))
    axis.legend(
        shown.values(), shown.keys(), loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2
    )


def _plot_efficiency(found: Sequence[Record], axis: Any) -> None:
    """A colour for each engine with its exchange, a dash for each size of the batch."""
    predicted = [
        each.settings | {"by": each.figures["efficiency"]}
        for each in found
        if each.method == "predicted"
    ]
    kinds = list(dict.fromkeys((each["engine"], each["exchange"]) for each in predicted))
    batches = sorted({each["images of a batch"] for each in predicted})
    for each in predicted:
        points = sorted((int(n), value) for n, value in each["by"].items())
        colour = _COLOURS[kinds.index((each["engine"], each["exchange"]))]
        line = _LINES[batches.index(each["images of a batch"])]
        label = each["engine"] if each["engine"] != "SVGD" else f"SVGD, {each['exchange']}"
        label += f", {each['images of a batch']:,} images"
        axis.plot(*zip(*points, strict=True), line, marker=".", color=colour, label=label)
    axis.axhline(0.9, color="0.7", linewidth=0.8)
    axis.set(
        title="Predicted: ViT-B/16, 64 particles",
        xlabel="accelerators (grey: efficiency of 0.9)",
        ylabel="efficiency",
        xscale="log",
        ylim=(0, 1.05),
    )
    axis.set_xticks([8, 64, 512, 1024], ["8", "64", "512", "1,024"])
    axis.minorticks_off()
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
