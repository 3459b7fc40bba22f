"""Normal guides by noisy scores: the closed form, which has no rate, against rivals whose rate an
oracle chooses.

A full-covariance Normal by ``ProximalScoreVI`` in closed form, natural-gradient variational
inference (iVON), ADVI, ADVI with a cold start, GSM, BaM and the gradient solver: Normals and
posteriors of posteriordb under noise of three levels, and three models under minibatches. All start
at the same guides and are given as many scores, by the same standard normal pairs, with the same
noise and rows. A record of every comparison, tables and plots are written to the output folder. Set
POSTERIORDB to a folder of posteriordb; posteriors that it lacks are left out.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common, add_resume, count

PARTS = ("comparison", "ablations", "long", "Pyro")

#: What runs the command.
RUN = "benchmarks.noisy_scores.study:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks noisy-scores`."""
    add_common(parser, backend=None, seeds=10, of_seeds="seeds of every run")
    parser.add_argument("--scores", type=count, default=20_000, help="scores of every run")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--quick", action="store_true", help="two seeds and a tenth of the scores")
    add_resume(parser)
