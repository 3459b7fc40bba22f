"""Uncertainty of two small networks: a curve with a gap in its data, and handwritten digits.

A Bayesian network is fitted to each by SVGD and by independent particles, and judged by the
packages' own figures and plots. The digits 8 and 9 are kept from the training, as rows of another
kind. A table and a figure are written to the output folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import count

#: What runs the command.
RUN = "benchmarks.uncertainty.figure:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks uncertainty`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--steps", type=count, default=2000, help="steps of every fit")
    parser.add_argument("--backend", choices=("numpyro", "pyro"), default="numpyro")
