"""Stein kernels on known targets: which moments does a set of particles keep?

SVGD with 100 particles and each kernel, the field's rules among them, on eleven targets: Normal,
curved, skewed, heavy-tailed, with two modes, and posteriors. A record of every run, a table and a
plot are written to the output folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks kernels`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--seeds", type=count, default=3, help="seeds of every run")
    parser.add_argument(
        "--backend", choices=("numpyro", "pyro", "both"), default="numpyro", help="Pyro is slower"
    )
    parser.add_argument("--targets", nargs="+", metavar="NAME", help="default: all eleven")
    parser.add_argument("--kernels", nargs="+", metavar="NAME", help="default: all")


def main(arguments: argparse.Namespace) -> int:
    """Run the comparison."""
    # Imported here so that the command line's help does not wait for what it imports.
    from benchmarks.kernels import comparison

    return comparison.run(arguments)
