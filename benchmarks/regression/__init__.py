"""Variance-reduced SVGD on regression networks.

The regression protocol of N. Dam, T. Le, V. Huynh and D. Phung, "Stein variational gradient
descent with variance reduction" (section IV.B): one hidden layer of 64 ReLU units (128 on
protein), Gamma(1, 0.1) precisions of noise and weights, 32 particles, batches of 128, 2048 steps
with 8 between anchors. SVGD with variance reduction is compared with SVGD, and with SVGD at equal
gradients. Data are read from the folder that PPL_EXT_DATA names. A record of every run, a table
and plots are written to the output folder.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common, count

SETS = (
    "yacht",
    "boston",
    "energy",
    "energy_leaked",
    "concrete",
    "wine_red",
    "kin8nm",
    "power_plant",
    "naval",
    "protein",
)


METHODS = ("SVGD", "SVGD, equal gradients", "SVGD-VR")

#: What runs the command.
RUN = "benchmarks.regression.protocol:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks regression`."""
    add_common(parser, backend="numpyro")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), metavar="NAME")
    parser.add_argument("--splits", type=count, default=3, help="of the 20 published ones")
    parser.add_argument(
        "--random-splits", type=int, default=0, help="random ones of nine tenths, as in the paper"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD"
    )
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        default=[1e-3, 3e-3, 1e-2],
        metavar="RATE",
        help="step sizes to choose from; the paper has 0.001",
    )
    parser.add_argument(
        "--constant", action="store_true", help="step sizes stay, as in the paper, and do not fall"
    )
    parser.add_argument("--steps", type=count, default=2048, help="steps of SVGD")
    parser.add_argument(
        "--full", action="store_true", help="all published splits and 50 random ones (days)"
    )
