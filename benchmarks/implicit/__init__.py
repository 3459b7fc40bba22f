"""Guides without a density against exact draws.

``SteinDiscrepancyVI`` with each sampler on two modes, a ring and a banana, in both packages. The
marginals of 4,000 draws are compared with 4,000 exact ones. A record of every fit, a table and a
picture are written to the output folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks implicit`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--backend", choices=("numpyro", "pyro", "both"), default="both")
    parser.add_argument("--seeds", type=count, default=1, help="fits of each case (1)")
    parser.add_argument(
        "--small", action="store_true", help="a hundredth of the steps, to see that all runs"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the comparison."""
    # Imported here so that the command line's help does not wait for what it imports.
    from benchmarks.implicit import comparison

    return comparison.run(arguments)
