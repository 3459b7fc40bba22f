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

from benchmarks.arguments import add_common, count

PARTS = ("speed", "bias", "modes", "masses")

#: What runs the command.
RUN = "benchmarks.sgmcmc.report:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks sgmcmc`."""
    add_common(parser, seeds=10, of_seeds="chains that look for two modes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=count, default=7, help="rounds of each comparison")
