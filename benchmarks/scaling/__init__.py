"""Engines over many devices: what is the same, what travels, what that means for accelerators.

`measure` runs engines over 1, 2, 4 and 8 forced host devices (NumPyro) and over processes (Pyro)
and writes how far they are from one device, and the numbers and bytes that a step's collectives
move. `predict` works out from these, from stated link speeds and a stated rate of arithmetic how
efficient 8 to 1,024 accelerators would be. `kill` ends one process of two by SIGKILL at random
moments and sees that the other ends with a message and that the next start is exact. Written to
scaling.jsonl, scaling.md and scaling.png; what is predicted is called so in all of them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from benchmarks import records
from benchmarks.arguments import count
from benchmarks.scaling import report
from benchmarks.scaling.prediction import predictions

#: What each backend runs: a module with `measure(devices)` and `kill(number, seed)`, which give
#: records of the benchmark "scaling".
MODULES = {
    "numpyro": "benchmarks.scaling.numpyro_runs",
    "pyro": "benchmarks.scaling.pyro_runs",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks scaling`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--backend", choices=(*MODULES, "both"), default="both")
    parser.add_argument("--devices", type=count, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--kills", type=count, default=0, help="processes to kill")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument(
        "--only",
        choices=("measure", "kill", "predict", "redraw"),
        help="one part alone; redraw runs nothing, and takes the records of the output folder",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run it; the exit status is 1 where a run failed or is not that of one device."""
    path = arguments.out / "scaling.jsonl"
    backends = [*MODULES] if arguments.backend == "both" else [arguments.backend]
    before = records.read(path) if path.exists() else []
    done = {_identity(each) for each in before if not each.failed}
    parts = ("measure", "kill", "predict") if arguments.only is None else (arguments.only,)
    for backend in backends:
        module = importlib.import_module(MODULES[backend])
        if "measure" in parts:
            for record in module.measure(arguments.devices, done):
                records.append(path, record)
        if "kill" in parts and arguments.kills:
            records.append(path, module.kill(arguments.kills, arguments.seed))
    found = records.read(path)
    if "predict" in parts:
        found = [each for each in found if each.method != "predicted"]
        found += predictions(found)
        records.write(path, found)
    text = report.table(found)
    records.write_text(arguments.out / "scaling.md", text)
    report.plot(found, arguments.out / "scaling.png")
    sys.stdout.write(text)
    return 1 if any(each.failed or not report.is_good(each) for each in found) else 0


def _identity(record: records.Record) -> tuple[str, str, str, int]:
    """What one measurement is of: backend, engine, layout and number of devices."""
    settings = record.settings
    return (
        record.backend,
        str(settings.get("engine")),
        str(settings.get("layout")),
        int(settings.get("devices", 0)),
    )


__all__ = ["add_arguments", "main"]
