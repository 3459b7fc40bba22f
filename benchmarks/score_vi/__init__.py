"""``ProximalScoreVI`` under minibatches, against ADVI and other score-based methods.

``--experiment logistic`` compares full-covariance fits of a logistic regression with draws of its
posterior; ``--experiment uci`` compares mean-field regression networks on eight UCI sets, which are
read from the folder that PPL_EXT_DATA names; ``--experiment memory`` measures memory and time of a
step on a network of 20 million parameters, and ``--experiment passes`` counts how often it reads
and writes a vector of this length. A record of every run and a table are written to the
output folder.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common

EXPERIMENTS = ("logistic", "uci", "memory", "passes")
#: ADVI whose entropy has the temperature with which the default's diagonal closed form starts.
ANNEALED = "annealed ADVI"
RIVALS = ("ADVI", ANNEALED)
NETWORK_METHODS = ("ours", "ours, gradient", *RIVALS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks score-vi`."""
    add_common(parser, backend="numpyro", seeds=3, of_seeds="seeds, or splits, of every run")
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="logistic")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="UCI sets; default all eight")
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME",
        choices=NETWORK_METHODS,
        help=f"of the networks; default all: {', '.join(NETWORK_METHODS)}",
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the scores or fewer")


def main(arguments: argparse.Namespace) -> int:
    """Run the experiment."""
    # Imported here so that the command line's help does not wait for what it imports.
    from benchmarks.score_vi import memory, minibatch, passes

    arguments.out.mkdir(parents=True, exist_ok=True)
    runs = {
        "logistic": minibatch.run_logistic,
        "uci": minibatch.run_uci,
        "memory": memory.run_memory,
        "passes": passes.run_passes,
    }
    return runs[arguments.experiment](arguments)
