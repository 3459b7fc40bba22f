"""Bayesian image classifiers: error, calibration and likelihood.

``small-data`` follows section 5.2 and figure 3 of M. Kim, "Large-scale Score-based Variational
Posterior Inference for Bayesian Deep Neural Networks": a multilayer perceptron on shares of
MNIST, by the hosts' ELBO (ADVI) and by ProximalScoreVI, on both backends.

``lenet`` follows section 4.2 and table 2 of "Stein variational Newton neural network ensembles":
five LeNets on MNIST and Fashion-MNIST by an ensemble, WGD, SVGD, SVN and last-layer SVN; with
``--step-cost`` the time and memory of a single step of these.

Records and tables are written to a folder of ``out/images``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import add_resume, count

EXPERIMENTS = ("small-data", "lenet")
LENET_METHODS = ("ensemble", "WGD", "SVGD", "SVN", "SVN adaptive", "LL-SVN")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks images`."""
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="small-data")
    parser.add_argument("--dataset", help="mnist or fashion_mnist (default: mnist; of lenet: both)")
    parser.add_argument("--full", action="store_true", help="the paper's sizes (days on a CPU)")
    parser.add_argument(
        "--backend", choices=("both", "pyro", "numpyro"), help="default: both; of lenet: numpyro"
    )
    parser.add_argument("--epochs", type=count, help="epochs at most")
    parser.add_argument("--seeds", type=count, help="number of seeds")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates to try")
    parser.add_argument("--out", type=Path, default=Path("out/images"), help="for the results")
    add_resume(parser)
    small = parser.add_argument_group("of small-data alone")
    small.add_argument("--percent", type=float, nargs="+", help="shares of the training images")
    small.add_argument("--hidden", type=count, nargs="+", help="units of the hidden layers")
    small.add_argument(
        "--temperature", type=float, nargs="+", help="of the likelihood (default: 1e-6 and 0.1)"
    )
    small.add_argument("--init-scale", type=float, help="standard deviation of q at the start")
    lenet = parser.add_argument_group("of lenet alone")
    lenet.add_argument(
        "--methods", nargs="+", choices=LENET_METHODS, help="default: all but SVN adaptive"
    )
    lenet.add_argument("--rows", type=count, help="training images")
    lenet.add_argument("--batch-size", type=count, help="images of a step")
    lenet.add_argument("--particles", type=count, help="networks of an ensemble")
    lenet.add_argument("--newton-epochs", type=count, help="epochs of SVN")
    lenet.add_argument(
        "--step-sizes", type=float, nargs="+", help="shares of Newton moves that SVN adaptive tries"
    )
    lenet.add_argument("--curvature-every", type=count, help="steps that SVN's curvature serves")
    lenet.add_argument(
        "--step-cost", action="store_true", help="measure time and memory of a step, nothing else"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the chosen experiment."""
    # Imported here so that the command line's help does not wait for both frameworks.
    if arguments.experiment == "lenet":
        from benchmarks.images import lenet

        return lenet.main(arguments)
    from benchmarks.images import small_data

    return small_data.main(arguments)
