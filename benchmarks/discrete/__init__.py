"""Programs with discrete latent sites: what a gradient costs, whether fits are right, large data.

Four parts: a gradient of each program beside the host's own potential, at one position and at
64; ``fit``, and each host's own NUTS, beside long chains of NumPyro's NUTS with enumeration; and
a mixture of ten components with many rows in minibatches, beside the host's SVI with
``TraceEnum_ELBO``. A record of every run and a table are written to the output folder.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common, add_resume, count

#: What runs the command.
RUN = "benchmarks.discrete.comparison:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks discrete`."""
    add_common(parser)
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=("gradient", "fit", "nuts", "large"),
        default=["gradient", "fit", "large"],
    )
    add_resume(parser)
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument(
        "--lengths", nargs="*", type=count, default=[50, 200, 1000], help="of long chains"
    )
    parser.add_argument("--ess", type=count, default=4000, help="effective draws asked of fit")
    parser.add_argument("--budget", type=count, default=3_000_000, help="evaluations of fit")
    parser.add_argument("--draws", type=count, default=1000, help="draws of a host's own NUTS")
    parser.add_argument("--long", type=count, default=5000, help="draws of a reference's chain")
    parser.add_argument("--rows", type=count, default=1_000_000, help="rows of the large mixture")
    parser.add_argument("--steps", type=count, default=3000, help="steps on the large mixture")
