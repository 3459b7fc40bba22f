"""Every run in a process of its own, in turn, and the report."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import records
from benchmarks.first_result.problems import DIAGNOSED, HOST_METHODS, SMALL, Recipe
from benchmarks.posteriordb.workers import ONE_THREAD
from benchmarks.study import backends_of, save, subplots

HERE = Path(__file__).resolve().parents[2]
OURS, OTHER = "this", "other"

ABOUT = """Made by `python -m benchmarks first-result`. CPU seconds, medians over rounds in which \
the cases take turns, each in a fresh process of one thread. The clock starts when everything is \
imported and the data are on the device. *Draws* and *ArviZ* are the seconds from construction to \
1,000 draws (or all particles) in hand, and to ArviZ data with predictions and log likelihood; \
*programs* are those that JAX compiles until then. *Error* is the largest error of a posterior \
mean in standard deviations of NUTS of the same host (of the network its noise alone, as weights \
are not identified); one chain of NUTS is itself known to about 0.1 of these.
"""


def run(arguments: argparse.Namespace) -> int:
    """Run the cases, write what they found and say so; the exit status."""
    out: Path = arguments.out
    path = out / "first-result.jsonl"
    records.moved_aside(path)
    found = []
    for round_ in range(arguments.rounds):
        for case in _cases(arguments):
            record = _measure({**case, "seed": round_}, arguments, path)
            found.append(record)
            seconds = record.figures.get("stages", {}).get("draws", {}).get("cpu")
            outcome = record.error or f"{seconds:.2f} CPU s to draws"
            print(f"{record.backend}, {record.model}, {record.method}: {outcome}", flush=True)
    rows, diagnostics = table(found), diagnostics_table(found)
    report = f"# First result\n\n{ABOUT}\n" + records.markdown_table(rows)
    if diagnostics:
        report += (
            f"\n## First call of a diagnostic, after {DIAGNOSED}\n\n"
            "CPU seconds and programs of the call alone.\n\n" + records.markdown_table(diagnostics)
        )
    records.write_text(out / "first-result.md", report)
    print(report)
    _plot(rows, out / "first-result.png")
    return 0


def _cases(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is run in one round, in order: neighbours are what is compared."""
    backends = backends_of(arguments.backend)
    checkouts = [None] if arguments.against is None else [None, str(arguments.against.resolve())]
    for backend in backends:
        for model in arguments.models:
            what = [(method, None) for method in arguments.methods]
            what += [(DIAGNOSED, name) for name in arguments.diagnostics]
            for method, diagnostic in what:
                # The hosts' methods are the same in every checkout.
                for checkout in checkouts if method not in HOST_METHODS else [None]:
                    yield {
                        "backend": backend,
                        "model": model,
                        "method": method,
                        "diagnostic": diagnostic,
                        "checkout": checkout,
                        "small": arguments.small,
                    }


def _measure(case: dict[str, Any], arguments: argparse.Namespace, path: Path) -> records.Record:
    """The record of one process, which is in the file then."""
    recipe = SMALL if arguments.small else Recipe()
    cache: Path | None = arguments.compilation_cache
    record = records.Record(
        "first-result",
        case["method"],
        case["backend"],
        case["model"],
        seed=case["seed"],
        settings={
            "recipe": dataclasses.asdict(recipe),
            "diagnostic": case["diagnostic"],
            "checkout": OURS if case["checkout"] is None else OTHER,
            "compilation cache": cache is not None,
        },
    )
    with records.recorded_run(path, record, go_on_after=(ChildFailed,)):
        record.figures.update(_in_a_process(case, arguments.limit, cache))
    return record


class ChildFailed(RuntimeError):
    """A run's process took too long or ended in an error."""


def environment(cache: Path | None) -> dict[str, str]:
    """Environment of a run: one thread, and JAX's compilation cache off or in the folder."""
    found = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    found |= {**ONE_THREAD, "JAX_PLATFORMS": "cpu"}
    if cache is not None:
        found["JAX_COMPILATION_CACHE_DIR"] = str(cache.resolve())
        found["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        found["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    return found


def _in_a_process(case: dict[str, Any], limit: int, cache: Path | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.first_result.worker", json.dumps(case)]
    try:
        ended = subprocess.run(
            command,
            cwd=HERE,
            env=environment(cache),
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"no result within {limit} s") from None
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise ChildFailed(f"status {ended.returncode}: {last}")
    figures: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return figures


def _median(runs: list[records.Record], stage: str, figure: str) -> float | None:
    values = [run.figures["stages"][stage][figure] for run in runs if not run.failed]
    return float(np.median(values)) if values else None


def _groups(
    found: list[records.Record], diagnostic: bool
) -> dict[tuple[str, ...], list[records.Record]]:
    groups: dict[tuple[str, ...], list[records.Record]] = {}
    for run in found:
        called = run.settings["diagnostic"]
        if (called is not None) == diagnostic:
            key = (run.backend, run.model, called or run.method, run.settings["checkout"])
            groups.setdefault(key, []).append(run)
    return groups


def _error(run: records.Record, reference: records.Record | None) -> float | None:
    """Largest error of a mean, in standard deviations of the reference."""
    if run.failed or reference is None or reference.failed:
        return None
    sites = ["noise"] if run.model == "network" else list(reference.figures["mean"])
    return max(
        float(np.max(np.abs(np.subtract(run.figures["mean"][s], expected)) / _sd(reference, s)))
        for s in sites
        for expected in [reference.figures["mean"][s]]
    )


def _sd(reference: records.Record, site: str) -> np.ndarray:
    return np.maximum(reference.figures["sd"][site], 1e-12)


def table(found: list[records.Record]) -> list[dict[str, Any]]:
    """A row for each method on each model, with ratios to the host's methods."""
    groups = _groups(found, diagnostic=False)
    rows = []
    for (backend, model, method, checkout), runs in groups.items():
        reference = groups.get((backend, model, "NUTS", OURS), [None])[0]
        errors = [error for run in runs if (error := _error(run, reference)) is not None]
        row: dict[str, Any] = {"backend": backend, "model": model, "method": method}
        row["checkout"] = checkout
        row["draws"] = _median(runs, "draws", "cpu")
        row["programs"] = _whole(_median(runs, "draws", "programs"))
        row["ArviZ"] = _median(runs, "arviz", "cpu")
        row["programs, ArviZ"] = _whole(_median(runs, "arviz", "programs"))
        for host in HOST_METHODS:
            base = groups.get((backend, model, host, OURS))
            seconds = _median(base, "draws", "cpu") if base else None
            row[f"draws / {host}"] = row["draws"] / seconds if seconds and row["draws"] else None
        row["error"] = None if method == "NUTS" or not errors else float(np.median(errors))
        row["failed"] = sum(run.failed for run in runs)
        rows.append(row)
    if {row["checkout"] for row in rows} == {OURS}:
        for row in rows:
            del row["checkout"]
    return rows


def numpyro_table(found: list[records.Record]) -> str:
    """CPU seconds and programs in NumPyro, for the page."""
    return _page_table(found, "numpyro")


def pyro_table(found: list[records.Record]) -> str:
    """CPU seconds in Pyro, which compiles nothing, for the page."""
    return _page_table(found, "pyro")


def _page_table(found: list[records.Record], backend: str) -> str:
    chosen = [run for run in found if not run.settings["compilation cache"]]
    rows: dict[str, dict[str, str]] = {}
    for row in table([run for run in chosen if run.backend == backend]):
        line = rows.setdefault(row["method"], {"method": _code(row["method"])})
        line[row["model"]] = "failed" if row["draws"] is None else _seconds(row)
    models = list(dict.fromkeys(model for row in rows.values() for model in row))
    columns = {"method": records.LABELS[backend]}
    columns |= {model: model.replace("_", " ") for model in models if model != "method"}
    return records.markdown_table(list(rows.values()), columns)


def _seconds(row: dict[str, Any]) -> str:
    programs = f" ({row['programs']})" if row["backend"] == "numpyro" else ""
    return f"{row['draws']:.1f}{programs}"


def _code(method: str) -> str:
    return method if method in HOST_METHODS else f"`{method}`"


def cache_table(found: list[records.Record]) -> str:
    """CPU seconds of processes that share a folder of compiled programs, for the page."""
    rows: dict[str, dict[str, Any]] = {}
    for run in found:
        if run.settings["compilation cache"] and not run.failed:
            row = rows.setdefault(run.method, {"method": _code(run.method)})
            row["first process" if run.seed == 0 else "second process"] = (
                f"{run.figures['stages']['draws']['cpu']:.1f}"
            )
    return records.markdown_table(list(rows.values()))


def diagnostics_table(found: list[records.Record]) -> list[dict[str, Any]]:
    """A row for each diagnostic on each model; drawing and ArviZ from the runs of the fit."""
    rows = []
    for (backend, model, name, checkout), runs in _groups(found, diagnostic=True).items():
        rows.append(
            {
                "backend": backend,
                "model": model,
                "call": name,
                "checkout": checkout,
                "CPU s": _median(runs, "diagnostic", "cpu"),
                "programs": _whole(_median(runs, "diagnostic", "programs")),
                "failed": sum(run.failed for run in runs),
            }
        )
    for (backend, model, method, checkout), runs in _groups(found, diagnostic=False).items():
        if method != DIAGNOSED:
            continue
        done = [run.figures["stages"] for run in runs if not run.failed]
        for name, before, after in (
            ("get_samples", "run", "draws"),
            ("to_arviz", "draws", "arviz"),
        ):
            row: dict[str, Any] = {"backend": backend, "model": model, "call": name}
            row["checkout"] = checkout
            for title, figure in (("CPU s", "cpu"), ("programs", "programs")):
                spent = [stages[after][figure] - stages[before][figure] for stages in done]
                row[title] = float(np.median(spent)) if spent else None
            row["programs"] = _whole(row["programs"])
            rows.append({**row, "failed": len(runs) - len(done)})
    return sorted(rows, key=lambda row: (row["backend"], row["model"], row["call"]))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _plot(rows: list[dict[str, Any]], path: Path) -> None:
    panels = list(dict.fromkeys((row["backend"], row["model"]) for row in rows))
    columns = len(dict.fromkeys(row["model"] for row in rows))
    figure, axes = subplots(-(-len(panels) // columns), columns, figsize=(4 * columns, 6))
    for axis, (backend, model) in zip(np.ravel(axes), panels, strict=False):
        own = [row for row in rows if (row["backend"], row["model"]) == (backend, model)]
        names = [row["method"] + (", other" if row.get("checkout") == OTHER else "") for row in own]
        arviz = [row["ArviZ"] or 0.0 for row in own]
        draws = [row["draws"] or 0.0 for row in own]
        axis.barh(names, arviz, color="lightgrey", label="to ArviZ data")
        bars = axis.barh(names, draws, color="tab:blue", label="to draws")
        axis.bar_label(bars, [f" {seconds:.3g}" for seconds in draws])
        axis.set(title=f"{backend}, {model.replace('_', ' ')}", xlabel="CPU seconds")
        axis.invert_yaxis()
    # Below all panels: inside one it would hide a bar and its figure.
    handles, labels = np.ravel(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    save(figure, path)
