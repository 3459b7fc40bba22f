"""Timing in turns, and the report."""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.curvature import network
from benchmarks.study import backends_of, save, subplots
from benchmarks.timing import alternate, ratio

Cases = dict[str, Callable[[], object]]


def run(arguments: argparse.Namespace) -> int:
    """Run the comparisons and write what they found; the exit status."""
    backends = backends_of(arguments.backend)
    out: Path = arguments.out
    rows: list[dict[str, Any]] = []
    for backend in backends:
        rows += [*steps(backend, arguments.rounds, out), first_run(backend, out)]
    if "pyro" in backends:
        rows += peers(arguments.rounds, out)
    text = (
        "# Curvature\n\nMade by `python -m benchmarks curvature`. Medians over rounds in which the "
        "cases take turns; ratios are taken within rounds. The network has two hidden layers of "
        f"{network.HIDDEN} units, {network.PARTICLES} particles and batches of {network.BATCH} "
        "rows. A first run is of 60 steps over all rows of a smaller network.\n\n"
        + records.markdown_table(rows)
    )
    records.write_text(out / "curvature.md", text)
    print(text)
    _plot([row for row in rows if "ms" in row], out / "curvature.png")
    return 0


def steps(backend: str, rounds: int, out: Path) -> list[dict[str, Any]]:
    """The step of each form of SVN against that of SVGD."""
    name = f"step, {backend}"
    record = records.Record("curvature", name, backend, settings={"rounds": rounds})
    rows = []
    with records.recorded_run(out / "curvature.jsonl", record), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if backend == "pyro":
            import torch

            torch.set_num_threads(1)
        module = importlib.import_module(f"benchmarks.curvature.{backend}_steps")
        times = alternate(module.cases(), rounds=rounds)
        for case, seconds in times.items():
            row = {"comparison": name, "case": case, "ms": 1e3 * float(np.median(seconds))}
            row["ratio"] = ratio(times, case, "SVGD")
            row["goal"] = network.STEPS[case][1] if case in network.STEPS else None
            record.figures[case] = {"milliseconds": 1e3 * seconds, "ratio": row["ratio"]}
            rows.append(row)
    return rows


def first_run(backend: str, out: Path) -> dict[str, Any]:
    """Seconds of a first run over all rows of a small network, compiling included."""
    name = f"first run, {backend}"
    record = records.Record("curvature", name, backend, settings={"steps": network.SMALL_STEPS})
    with records.recorded_run(out / "curvature.jsonl", record), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module(f"benchmarks.curvature.{backend}_steps")
        start = time.perf_counter()
        record.figures["loss"] = module.small_run()
        record.figures["seconds"] = time.perf_counter() - start
    seconds = record.figures["seconds"]
    return {"comparison": name, "case": "SVN", "seconds": seconds, "goal": network.SMALL_GOAL}


def page_table(runs: list[records.Record]) -> str:
    """The table on the page: the step of each form in both packages."""
    last = {run.method: run.figures for run in runs}
    each = {backend: last[f"step, {backend}"] for backend in ("numpyro", "pyro")}
    rows = []
    for case in each["numpyro"]:
        row: dict[str, Any] = {"step": f"`{network.CODE.get(case, case)}`"}
        for backend, name in (("numpyro", "NumPyro"), ("pyro", "Pyro")):
            found = each[backend][case]
            row[f"{name}, ms"] = float(np.median(found["milliseconds"]))
            row[f"{name}, times `SVGD`"] = found["ratio"]
        rows.append(row)
    return records.markdown_table(rows)


def peers(rounds: int, out: Path) -> list[dict[str, Any]]:
    """The same matrix by other libraries; a row that says so where one is not installed."""
    import torch

    from benchmarks.curvature.peers import Network, matrices, products

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    rows: list[dict[str, Any]] = []
    each = Network()
    compared = {
        "Gauss-Newton products": (products, "curvlinops"),
        "posterior precision": (matrices, "laplace-torch"),
    }
    for name, (build, peer) in compared.items():
        record = records.Record("curvature", name, peer, settings={"rounds": rounds})
        with (
            records.recorded_run(out / "curvature.jsonl", record, go_on_after=(ImportError,)),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            cases, difference = build(each)
            times = alternate(cases, rounds=rounds)
            record.figures |= difference
            for case, seconds in times.items():
                milliseconds = 1e3 * float(np.median(seconds))
                record.figures[case] = {"milliseconds": 1e3 * seconds}
                row = {"comparison": name, "case": case, "ms": milliseconds}
                row["ratio"] = ratio(times, case, "pyro_ext")
                rows.append(row | (difference if case == peer else {}))
        if record.failed:
            print(f"{name}: {peer} cannot be imported ({record.error}); left out.")
    torch.set_default_dtype(torch.float32)
    return rows


def _plot(rows: list[dict[str, Any]], path: Path) -> None:
    comparisons = list(dict.fromkeys(row["comparison"] for row in rows))
    counts = [sum(row["comparison"] == name for row in rows) for name in comparisons]
    figure, axes = subplots(
        len(comparisons),
        1,
        figsize=(7, 0.4 * sum(counts) + 1.2 * len(counts)),
        height_ratios=counts,
    )
    for axis, comparison in zip(np.atleast_1d(axes), comparisons, strict=True):
        chosen = [row for row in rows if row["comparison"] == comparison]
        bars = axis.barh([row["case"] for row in chosen], [row["ms"] for row in chosen])
        axis.bar_label(bars, [f" {row['ms']:.3g} ({row['ratio']:.3g}x)" for row in chosen])
        axis.set(xscale="log", xlabel="milliseconds", title=comparison)
        axis.margins(x=0.25)
        axis.invert_yaxis()
    save(figure, path)
