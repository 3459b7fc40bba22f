"""Guides without a density against exact draws.

``SteinDiscrepancyVI`` with each sampler on two modes, a ring and a banana, in both packages. The
marginals of 4,000 draws are compared with 4,000 exact ones. A record of every fit, a table and a
picture are written to the output folder.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common

#: What runs the command.
RUN = "benchmarks.implicit.comparison:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks implicit`."""
    add_common(parser, seeds=1, of_seeds="fits of each case")
    parser.add_argument(
        "--small", action="store_true", help="a hundredth of the steps, to see that all runs"
    )
