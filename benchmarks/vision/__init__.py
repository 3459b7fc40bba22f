"""Networks for images: what a step of each method costs, and what its fit predicts.

The study of M. Kim, "Large-scale score-based variational posterior inference for Bayesian deep
neural networks", section 5.2, in its structure: a Normal prior around given weights, a cold
likelihood, rates of their own for biases, and error, likelihood and calibration of the
predictions. Weights are those of a file with torchvision's names, or made by stochastic gradient
descent first. Records and a table are written to the output folder, and kept there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import add_common, count
from benchmarks.vision.architectures import ARCHITECTURES, SIZE

#: What runs the command.
RUN = "benchmarks.vision.study:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks vision`."""
    names = tuple(ARCHITECTURES)
    add_common(parser, seeds=1, of_seeds="of the fits")
    parser.add_argument("--parts", nargs="+", choices=("steps", "fits"), default=["steps", "fits"])
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--step-networks", nargs="+", choices=names, default=["vit_s_16"])
    parser.add_argument("--size", type=count, default=SIZE, help="pixels of a side, for steps")
    parser.add_argument("--rounds", type=count, default=5, help="steps that are timed")
    parser.add_argument("--network", choices=names, default="resnet18", help="that is fitted")
    parser.add_argument("--weights", type=Path, help="npz of its weights, by torchvision's names")
    parser.add_argument("--images", type=count, default=10_000, help="to train on")
    parser.add_argument("--test-images", type=count, default=2_000, help="to judge by")
    parser.add_argument("--batch", type=count, default=32)
    parser.add_argument("--first", type=count, default=600, help="steps to the given weights")
    parser.add_argument("--steps", type=count, default=200, help="of each method")
    parser.add_argument("--draws", type=count, default=10)
