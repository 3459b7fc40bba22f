"""Stochastic gradient MCMC: what a step costs, what its bias is, and what control variates and
cycles change.

- speed: a step of SGLD on a logistic regression against BlackJAX, and of eight chains on a small
  network against the library posteriors, where these are installed;
- bias: standard deviations of a Normal target and of a logistic regression by step size, with
  exact scores, minibatches and control variates, against exact values and NUTS;
- modes: a target of two modes by SGLD and in cycles;
- masses: the weights of two modes by SGLD, in cycles and by replica exchange, at equal cost.

Written to sgmcmc.jsonl, sgmcmc.md and sgmcmc-*.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import count

PARTS = ("speed", "bias", "modes", "masses")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks sgmcmc`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=count, default=7, help="rounds of each comparison")
    parser.add_argument("--seeds", type=count, default=10, help="chains that look for two modes")
    parser.add_argument("--backend", choices=("numpyro", "pyro", "both"), default="both")


def main(arguments: argparse.Namespace) -> int:
    """Run the parts."""
    # Imported here so that the command line's help does not wait for what it imports.
    from benchmarks.sgmcmc import report

    return report.run(arguments)
