"""How long a user waits for the first answer, and how many programs are compiled for it.

``ProximalScoreVI``, ``SVGD``, ``SVN`` and ``LaplaceGGN`` beside the hosts' ``SVI`` and ``NUTS``,
from construction to draws in hand and to ArviZ data in hand, and the first call of each diagnostic.
Every run has a process of its own, and the runs take turns. Written to first-result.jsonl,
first-result.md and first-result.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import add_common, count

#: What runs the command.
RUN = "benchmarks.first_result.comparison:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks first-result`."""
    from benchmarks.first_result.problems import DIAGNOSTICS, METHODS, MODELS

    add_common(parser)
    parser.add_argument("--rounds", type=count, default=3, help="runs of each case")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--diagnostics",
        nargs="*",
        choices=DIAGNOSTICS,
        default=list(DIAGNOSTICS),
        help="none after the option: no diagnostics",
    )
    parser.add_argument("--small", action="store_true", help="few steps, to see that all runs")
    parser.add_argument(
        "--limit", type=count, default=900, help="seconds after which a process is ended"
    )
    parser.add_argument(
        "--compilation-cache",
        type=Path,
        metavar="FOLDER",
        help="keep JAX's compiled programs there between the processes (default: they are not)",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="another checkout of the project, whose packages take turns with this one's",
    )
