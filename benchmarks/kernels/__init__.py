"""Stein kernels on known targets: which moments does a set of particles keep?

SVGD with 100 particles and each kernel, the field's rules among them, on eleven targets: Normal,
curved, skewed, heavy-tailed, with two modes, and posteriors. A record of every run, a table and a
plot are written to the output folder.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common

#: What runs the command.
RUN = "benchmarks.kernels.comparison:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks kernels`."""
    add_common(parser, backend="numpyro", seeds=3, of_seeds="seeds of every run")
    parser.add_argument("--targets", nargs="+", metavar="NAME", help="default: all eleven")
    parser.add_argument("--kernels", nargs="+", metavar="NAME", help="default: all")
