"""Bayesian neural networks on UCI data: particles, chains, guides, Laplace and dropout.

The protocol of K. Flöge, M. A. Moeed and V. Fortuin, "Stein variational Newton neural network
ensembles" (sections 3.1 and 3.2, appendices C and D): two hidden layers of 50 ReLU units, five
particles, a fifth of the training rows for validation, which chooses step sizes and the epoch
that is tested; here with the published splits, and a noise that is learnt. Beside the paper's
methods there are chains of SGLD, mean-field variational inference, dropout and Laplace
approximations. Data are read from the folder that PPL_EXT_DATA names. A record of every run, tables
and plots are written to the output folder; with --resume a study that was ended goes on after its
last record.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common, add_resume, count
from benchmarks.bnn.methods import METHODS

REGRESSION = (
    "yacht",
    "energy",
    "concrete",
    "wine_red",
    "kin8nm",
    "power_plant",
    "naval",
    "protein",
)
CLASSIFICATION = ("australian", "breast_cancer", "ionosphere")
#: Small ones first, so that a long study that is ended early has whole sets.
SETS = REGRESSION[:4] + CLASSIFICATION + REGRESSION[4:]
STUDIES = ("particles", "curvature", "kernels", "toy", "matrices")
#: Methods of the default protocol, and those that its claims are about.
COMPARED = ("Ensemble", "WGD", "SVGD", "SVN")
DEFAULT_METHODS = tuple(name for name in METHODS if name not in ("SVN diag", "LL-LaplaceGGN"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks bnn`."""
    add_common(parser, backend="numpyro")
    parser.add_argument("--sets", nargs="+", choices=SETS, metavar="NAME", help=", ".join(SETS))
    parser.add_argument(
        "--methods", nargs="+", choices=tuple(METHODS), metavar="METHOD", help=", ".join(METHODS)
    )
    parser.add_argument("--splits", type=count, help="of the published ones (3; 1 of large sets)")
    parser.add_argument("--epochs", type=count, help="of SVGD (500; 60 on protein)")
    parser.add_argument(
        "--newton-epochs", type=count, help="of Newton methods (a twentieth of those of SVGD)"
    )
    parser.add_argument("--batch", type=count, default=32, help="rows of a step of Adam (32)")
    parser.add_argument(
        "--newton-batch", type=count, help="rows of a Newton step (64, 256 or 512, by the set)"
    )
    parser.add_argument(
        "--particles", nargs="+", type=count, metavar="P", help="default: 5, as the paper has"
    )
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        default=[1e-3, 3e-3, 1e-2],
        metavar="RATE",
        help="step sizes of Adam to choose from by validation",
    )
    parser.add_argument(
        "--dampings",
        nargs="+",
        type=float,
        default=[0.3, 3.0, 10.0],
        metavar="DAMPING",
        help="dampings of Newton steps to choose from by validation",
    )
    parser.add_argument(
        "--chain-rates",
        nargs="+",
        type=float,
        default=[3e-3, 1e-2, 3e-2],
        metavar="RATE",
        help="step sizes of SGLD, for the mean over rows, to choose from by validation",
    )
    parser.add_argument(
        "--study",
        choices=STUDIES,
        help="instead of the comparison: numbers of particles, structures of curvature, kernels, "
        "the toy regression, or curvature matrices along a run",
    )
    add_resume(parser)
    parser.add_argument(
        "--full",
        action="store_true",
        help="unless told otherwise all methods, all splits and 5, 10 and 20 particles; goes on "
        "with --resume",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the protocol or a study."""
    # Imported here so that the command line's help does not wait for what it imports.
    from benchmarks.bnn import protocol, studies

    if arguments.study is not None:
        return studies.run(arguments)
    return protocol.run(arguments)
