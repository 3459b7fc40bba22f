"""Evidence: is ``fit.log_evidence`` right, and does it know how well?

A hundred programs whose evidence is known: conjugate ones, some with discrete sites that are summed
out, with labels that can be exchanged, with two modes, of one to fifty dimensions. A record of
every run is written to evidence.jsonl, and a table by family to evidence.md.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common, add_resume
from benchmarks.hosts import BACKENDS

#: What runs the command.
RUN = "benchmarks.evidence.study:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks evidence`."""
    add_common(parser, backend=None, seeds=1)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="names or patterns (all)")
    add_resume(parser)
