"""What noise by row takes off the variance of a network's gradients.

A network of 8-50-50-1 units under ``AutoNormal`` is trained for 2,000 steps. Then, at fixed rows
and fixed parameters, the gradient of the bound is drawn many times by the host's objective, by
``flipout`` of it and by ``local_reparameterization`` of it; and the three take turns at a training
step. A record of every comparison and a table are written to the output folder.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common, count

#: What runs the command.
RUN = "benchmarks.row_noise.comparison:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks row-noise`."""
    add_common(parser, seeds=3, of_seeds="networks, one a seed")
    parser.add_argument("--steps", type=count, default=2000, help="steps of training (2,000)")
    parser.add_argument("--draws", type=count, default=200, help="gradients of each kind (200)")
