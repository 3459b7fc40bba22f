"""What curvature costs, and whether it is that of other libraries.

On a network of two hidden layers of 50 units with 5 particles and batches of 32 rows:

- the step of each form of SVN against SVGD's, in each package;
- the Gauss-Newton matrix and its product with a vector against curvlinops and laplace-torch, where
  these are installed.

Written to curvature.jsonl, curvature.md and curvature.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks curvature`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--rounds", type=count, default=7, help="rounds of each comparison")
    parser.add_argument("--backend", choices=("numpyro", "pyro", "both"), default="both")


def main(arguments: argparse.Namespace) -> int:
    """Run the comparisons."""
    # Imported here so that the command line's help does not wait for what it imports.
    from benchmarks.curvature import comparison

    return comparison.run(arguments)
