"""Networks judged by their outputs: every method on small networks, against long chains of NUTS.

Weights of a network have no identity: units can be exchanged, and many settings give one function.
So methods are judged by what the network says on held-out rows. The outputs' means, standard
deviations and quantiles by long chains are kept in ``references``, a small file for each network;
``--references`` makes them. A record of every run, failures included, a table and a plot are
written to the output folder; with --resume a study that was ended goes on after its last record.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import add_common, add_resume, count

#: Where the references are kept.
REFERENCES = Path(__file__).parent / "references"

#: What runs the command.
RUN = "benchmarks.network_truth.study:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks network-truth`."""
    from benchmarks.network_truth.methods import DEFAULT, METHODS
    from benchmarks.network_truth.networks import NETWORKS

    add_common(parser, seeds=1)
    parser.add_argument(
        "--networks", nargs="+", choices=NETWORKS, metavar="NAME",
        help=f"of {', '.join(NETWORKS)} (those that have a reference)",
    )  # fmt: skip
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(DEFAULT), metavar="METHOD",
        help=f"of {', '.join(METHODS)} ({', '.join(DEFAULT)})",
    )  # fmt: skip
    parser.add_argument("--small", action="store_true", help="few steps, to see that all runs")
    parser.add_argument(
        "--references", action="store_true",
        help="make the references of the networks in place of judging methods",
    )  # fmt: skip
    parser.add_argument(
        "--equations", action="store_true",
        help="measure what Stein's equations say of outputs, in place of judging methods",
    )  # fmt: skip
    parser.add_argument(
        "--folder", type=Path, default=REFERENCES, help="of the references (the project's own)"
    )
    parser.add_argument("--chains", type=count, default=4, help="of a reference (4)")
    parser.add_argument("--draws", type=count, default=2_000, help="of each chain (2,000)")
    parser.add_argument("--warm-up", type=count, default=1_000, help="of each chain (1,000)")
    add_resume(parser)
    parser.add_argument("--list", action="store_true", help="list networks and methods, and stop")
