"""Trust: is the answer right, and does the method know?

Every method on every problem: planted pathologies with exact draws, models of the tests, the
embedded posteriors and those of posteriordb. A judge says whether the draws are right, marginal by
marginal (`benchmarks/trust/judge.py`); the method, or what the field asks of chains, says whether
they are to be trusted. Written to trust.jsonl, trust.md, trust.png and a page for each problem.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import add_resume, count
from benchmarks.hosts import BACKENDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks trust`."""
    from benchmarks.trust.methods import METHODS

    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, metavar="METHOD", default=["fit", "svi", "nuts"],
        help=f"of {', '.join(METHODS)} (fit, svi and nuts)",
    )  # fmt: skip
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="names or patterns (all)")
    parser.add_argument("--seeds", type=count, default=3, help="runs of each (3)")
    parser.add_argument("--double", action="store_true", help="double precision (single)")
    parser.add_argument(
        "--database",
        metavar="WHERE",
        help="posteriordb's folder (default: that which POSTERIORDB names; without one, the "
        "embedded posteriors alone)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="plant wrong draws and see what `check` says of them, in place of fitting",
    )
    parser.add_argument("--fresh", action="store_true", help="a process of its own for every run")
    parser.add_argument(
        "--limit",
        type=count,
        default=1_800,
        help="seconds after which such a process is ended; with --check, of a package (1,800)",
    )
    parser.add_argument("--small", action="store_true", help="few steps, to see that all runs")
    add_resume(parser)
    parser.add_argument("--list", action="store_true", help="list the problems and stop")


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark."""
    # Imported here so that the command line's help does not wait for what it imports.
    from benchmarks.trust import runner

    return runner.run(arguments)
