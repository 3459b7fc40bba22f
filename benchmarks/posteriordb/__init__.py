"""PosteriorDB: engines of this project and of the hosts against reference posteriors.

Posteriors come from posteriordb (M. Magnusson, P. Bürkner and A. Vehtari, "posteriordb: a set of
posteriors for Bayesian inference and probabilistic programming"): a local copy, GitHub, or a small
set that lies here and needs neither. Programs are native ones or Stan's own through BridgeStan. A
record of every run, a leaderboard, plots and a page for each posterior are written to the output
folder.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.arguments import add_resume, count
from benchmarks.posteriordb.methods import DENSE_LIMIT, METHODS, own_engine

ROUTES = ("auto", "native", "stan", "both")
#: Score evaluations of the default run.
BUDGET = 5_000


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def level(text: str) -> float:
    """A level of noise.

    Raises
    ------
    argparse.ArgumentTypeError
        The text is no number of at least 0.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, found {text!r}")
    return number


def own_method(text: str) -> str:
    """An engine of the user's own, as ``module:name``.

    Raises
    ------
    argparse.ArgumentTypeError
        There is none.
    """
    try:
        own_engine(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks posteriordb`."""
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument(
        "--database",
        metavar="WHERE",
        help="a folder in posteriordb's layout, `github` or `embedded` (default: the folder that "
        "POSTERIORDB names, else embedded)",
    )
    parser.add_argument("--posteriors", nargs="+", metavar="NAME", help="names or patterns (all)")
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        choices=("all", *METHODS),
        help=f"`all`, or of: {'; '.join(METHODS)} (one of each kind)",
    )
    parser.add_argument(
        "--method",
        action="append",
        default=[],
        type=own_method,
        metavar="MODULE:NAME",
        help="an engine of your own beside them, or alone without --methods: a class, or a "
        "function that makes one of a program and options; may be given several times",
    )
    parser.add_argument("--backend", choices=("numpyro", "pyro", "both"), default="numpyro")
    parser.add_argument(
        "--route",
        choices=ROUTES,
        default="auto",
        help="native programs, Stan's, or native ones and Stan's where there is none (auto)",
    )
    parser.add_argument(
        "--budget", type=count, default=BUDGET, help=f"score evaluations of a run ({BUDGET:,})"
    )
    parser.add_argument("--seconds", type=level, help="end a run after so many (no limit)")
    parser.add_argument("--seeds", type=count, default=1, help="runs of each method (1)")
    parser.add_argument(
        "--start",
        choices=("path", "host"),
        default="path",
        help="the best Normal on the way to a mode, its evaluations counted, or the host's own",
    )
    parser.add_argument(
        "--noise",
        nargs="+",
        type=level,
        metavar="LEVEL",
        help="levels of noise in the scores (equation 19 of the score-matching paper; 0)",
    )
    parser.add_argument(
        "--dense-limit",
        type=count,
        default=DENSE_LIMIT,
        metavar="D",
        help="leave out guides with a dense covariance where there are more dimensions "
        f"({DENSE_LIMIT})",
    )
    parser.add_argument(
        "--appendix-b",
        action="store_true",
        help="the four posteriors, methods, seeds and noise levels of the score-matching paper's "
        "appendix B, unless options say otherwise",
    )
    parser.add_argument(
        "--jobs",
        type=count,
        default=min(2, cores()),
        help="processes that runs are spread over (the number of cores, at most 2)",
    )
    add_resume(parser)
    parser.add_argument("--list", action="store_true", help="list the posteriors and stop")


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark."""
    # Imported here so that the command line's help does not wait for what it imports.
    from benchmarks.posteriordb import runner

    return runner.run(arguments)
