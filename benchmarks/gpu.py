"""`python -m benchmarks gpu`: what a machine with an accelerator is asked, in a few minutes.

It runs parts of other studies: `fit` of a small network and an ensemble of 64 (`network-truth`),
and a step of plain training, ADVI, the proximal fit, MCLMC and SVGD on published networks, as
multiples of plain training (`vision`). A part that does not end in time is stopped. A machine
without a network gets what it lacks from a folder of wheels. Records and tables are written to the
output folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import records
from benchmarks.arguments import count
from benchmarks.queue import Part, Queue

#: Methods whose steps are timed, the plain one first.
METHODS = ("SGD", "ADVI", "proximal", "MCLMC", "SVGD")
#: Networks whose steps are timed, and what one package takes for one of them, in minutes.
NETWORKS = {"vit_b_32": 1.2, "resnet101": 1.5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks gpu`."""
    parser.add_argument("--out", type=Path, default=Path("out/gpu"), help="folder for the results")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which all is stopped")
    parser.add_argument("--batch", type=count, default=32, help="images of a step")
    parser.add_argument("--wheels", type=Path, help="folder of wheels of packages that are missing")
    parser.add_argument("--small", action="store_true", help="to see that all runs")


def parts(batch: int, *, small: bool) -> Iterator[Part]:
    """What is run: networks by their outputs, then steps of large networks."""
    backends = ("numpyro", "pyro")
    for backend in backends:
        # `fit` has no short form.
        chosen = ("curve", "--small", "--methods") if small else ("diabetes", "--methods", "fit")
        options = ("--networks", *chosen, "DeepEnsemble, 64", "--backend", backend)
        yield Part("network-truth", options, 1.0, "outputs")
    for name, minutes in ({"resnet18": 1.0} if small else NETWORKS).items():
        # Small: what no other test runs.
        methods = ("SGD", "MCLMC", "SVGD") if small else METHODS
        sizes = "--size 32 --batch 2 --rounds 1" if small else f"--batch {batch}"
        words = ("--parts", "steps", "--step-networks", name, "--methods", *methods)
        for backend in backends:
            options = (*words, *sizes.split(), "--backend", backend)
            yield Part("vision", options, minutes, "steps")


def install(wheels: Path, folder: Path) -> None:
    """Unpack wheels into a folder, from which parts import what is missing.

    Raises
    ------
    FileNotFoundError
        There are none.
    """
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        raise FileNotFoundError(f"{wheels}: there are no wheels")
    command = (sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--upgrade")
    subprocess.run([*command, "--target", str(folder), *found], check=True)
    paths = (os.environ.get("PYTHONPATH"), str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def devices() -> str:
    """The accelerators of this machine in words."""
    if shutil.which("nvidia-smi") is None:
        return "no CUDA device"
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return "; ".join(found.stdout.split("\n")).strip("; ") or "no CUDA device"


def main(arguments: argparse.Namespace) -> int:
    """Run what the time allows; the exit status."""
    from benchmarks.network_truth import report
    from benchmarks.vision.study import steps_table

    if arguments.wheels is not None:
        install(arguments.wheels, arguments.out.resolve() / "packages")
    # Both packages and a process of each method share the accelerator.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    queue = Queue(arguments.out, list(parts(arguments.batch, small=arguments.small)))
    queue.run(arguments.minutes / 60.0, workers=1)
    runs = [run for part in queue.parts for run in part.runs(arguments.out)]
    lines = [f"# On {devices()}", "", "Made by `python -m benchmarks gpu`.", ""]
    steps = [run for run in runs if run.benchmark == "vision"]
    if steps:
        lines += ["## Steps", "", steps_table(steps)]
    judged = report.rows([run for run in runs if run.benchmark == "network-truth"])
    if judged:
        lines += ["## Networks by their outputs", "", records.markdown_table(judged)]
    failed = [
        f"- {run.model}, {run.backend}, {run.method}: {run.error}" for run in runs if run.failed
    ]
    missing = [f"- not ended: {part.name}" for part in queue.left()]
    text = "\n".join(
        [*lines, "## Missing", "", *failed, *missing, ""] if failed or missing else lines
    )
    records.write_text(arguments.out / "gpu.md", text)
    (arguments.out / "gpu.jsonl").unlink(missing_ok=True)
    for run in runs:
        records.append(arguments.out / "gpu.jsonl", run)
    print(text)
    return int(not runs or all(run.failed for run in runs))
