"""Evidence: is ``fit.log_evidence`` right, and does it know how well?

A hundred programs whose evidence is known: conjugate ones, some with discrete sites that are summed
out, with labels that can be exchanged, with two modes, of one to fifty dimensions. A record of
every run is written to evidence.jsonl, and a table by family to evidence.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import add_resume, count
from benchmarks.hosts import BACKENDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks evidence`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="names or patterns (all)")
    parser.add_argument("--seeds", type=count, default=1, help="runs of each (1)")
    add_resume(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark."""
    # Imported here so that the command line's help does not wait for what it imports.
    from benchmarks.evidence import study

    return study.run(arguments)
