"""Kernels of SVGD with and without exact moments: what is lost of moments and of marginals?

SVGD with each kernel, the field's rules and a hybrid of two among them, and the same kernels made
semi-exact, at equal gradients and from the library's start: Normals and near-Gaussian posteriors
of posteriordb over ratios of dimensions to particles, and curved, heavy-tailed, skewed and
two-sided targets. A record of every run, tables and plots are written to the output folder. Set
POSTERIORDB to a folder of posteriordb; the small database that comes with the benchmarks has not
all of the posteriors, and those that it lacks are left out.
"""

from __future__ import annotations

import argparse

from benchmarks.arguments import add_common, add_resume, count

GROUPS = ("Normal", "posteriordb", "shaped")

#: What runs the command.
RUN = "benchmarks.semi_exact.study:run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m benchmarks semi-exact`."""
    add_common(parser, backend=None, seeds=10, of_seeds="seeds of every run")
    parser.add_argument(
        "--backend",
        choices=("numpyro", "pyro", "both"),
        default="numpyro",
        help="both: everything in NumPyro, and four kernels in Pyro",
    )
    parser.add_argument("--steps", type=count, default=2000, help="steps of every run")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="default: all")
    add_resume(parser)
