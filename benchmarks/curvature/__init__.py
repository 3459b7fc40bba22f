"""What curvature costs, and whether it is that of other libraries.

On a network of two hidden layers of 50 units with 5 particles and batches of 32 rows:

- the step of each form of SVN against SVGD's, in each package;
- the Gauss-Newton matrix and its product with a vector against curvlinops and laplace-torch, where
  these are installed.

Written to curvature.jsonl and curvature.md.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common, count

#: What runs the command.
RUN = "benchmarks.curvature.comparison:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks curvature`."""
    add_common(parser)
    parser.add_argument("--rounds", type=count, default=7, help="rounds of each comparison")
