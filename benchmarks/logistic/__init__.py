"""Variance-reduced SVGD on Bayesian logistic regression.

The classification protocols of N. Dam, T. Le, V. Huynh and D. Phung, "Stein variational gradient
descent with variance reduction" (section IV.A): 100 particles, a Gamma(1, 0.01) precision of the
weights, batches of 128 and 128 steps between anchors; the pseudo-online protocol takes one row at a
time. SVGD with variance reduction is compared with SVGD, with SVGD whose optimizer is reset as
often, with SVGD at equal gradients, and with the point estimate by SVRG. Data are read from the
folder that PPL_EXT_DATA names. A record of every run, a table and plots are written to the output
folder.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common, count

SETS = ("a9a", "w8a", "cod_rna", "covtype_subset")

#: What runs the command.
RUN = "benchmarks.logistic.protocol:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks logistic`."""
    add_common(parser, backend="numpyro", seeds=2, of_seeds="runs with the chosen step size")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), metavar="NAME")
    parser.add_argument(
        "--protocols", nargs="+", choices=("test", "online"), default=["test", "online"]
    )
    parser.add_argument("--epochs", type=count, default=20, help="5 times as many on cod_rna")
    parser.add_argument("--online-rows", type=count, default=3000, help="rows of the online part")
    parser.add_argument(
        "--reference", action="store_true", help="NUTS on the posterior besides, with NumPyro"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="the paper's: ten folds, nine step sizes, 100 runs, all rows online (days)",
    )
