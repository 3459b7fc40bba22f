"""Rows that do not fit into memory: a fit from a memory-mapped file, its memory and its speed.

A logistic regression of 50 M rows and 20 columns (8 GB of float64) is fitted by ``SVGD`` in
minibatches from a file, one epoch, in a process of its own whose memory is watched. Then runs from
the file and runs on rows in memory take turns in one process. Memory is that of no file
(``RssAnon`` in ``/proc/self/status``, looked at fifty times a second): pages of a mapped file
belong to the system, which takes them back when it likes. A record of every comparison, a table
and a plot are written to the output folder. The file is deleted at the end unless it is kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import add_common, add_resume, count

#: What runs the command.
RUN = "benchmarks.batches.comparison:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks batches`."""
    add_common(parser)
    parser.add_argument("--rows", type=count, default=50_000_000, help="rows of the file (50 M)")
    parser.add_argument("--batch", type=count, default=8192, help="rows of a batch (8192)")
    parser.add_argument("--rounds", type=count, default=9, help="turns of both ways (9)")
    parser.add_argument("--steps", type=count, default=400, help="steps of a turn (400)")
    parser.add_argument("--data", type=Path, help="the file (default: in the output folder)")
    parser.add_argument("--keep", action="store_true", help="do not delete the file")
    add_resume(parser)
