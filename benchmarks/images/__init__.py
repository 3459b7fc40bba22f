"""Bayesian image classifiers: error, calibration and likelihood by variational methods.

``small-data`` follows section 5.2 and figure 3 of M. Kim, "Large-scale Score-based Variational
Posterior Inference for Bayesian Deep Neural Networks": a multilayer perceptron on shares of
MNIST, by the hosts' ELBO (ADVI) and by ProximalScoreVI, on both backends. Records, a table and a
plot are written to ``out/images/small-data``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import count

EXPERIMENTS = ("small-data",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks images`."""
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="small-data")
    parser.add_argument("--dataset", default="mnist", help="mnist (default) or fashion_mnist")
    parser.add_argument("--full", action="store_true", help="the paper's sizes (days on a CPU)")
    parser.add_argument("--backend", choices=("both", "pyro", "numpyro"), default="both")
    parser.add_argument("--percent", type=float, nargs="+", help="shares of the training images")
    parser.add_argument("--hidden", type=count, nargs="+", help="units of the hidden layers")
    parser.add_argument("--epochs", type=count, help="epochs at most")
    parser.add_argument("--seeds", type=count, help="number of seeds")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates to try")
    parser.add_argument(
        "--temperature", type=float, nargs="+", help="of the likelihood (default: 1e-6 and 0.1)"
    )
    parser.add_argument("--init-scale", type=float, help="standard deviation of q at the start")
    parser.add_argument("--out", type=Path, default=Path("out/images"), help="for the results")
    parser.add_argument("--resume", action="store_true", help="keep the runs already recorded")


def main(arguments: argparse.Namespace) -> int:
    """Run the chosen experiment."""
    # Imported here so that the command line's help does not wait for both frameworks.
    from benchmarks.images import small_data

    return small_data.main(arguments)
