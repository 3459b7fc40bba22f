"""Command-line options that several benchmarks have, and their types."""

from __future__ import annotations

import argparse
from pathlib import Path


def count(text: str) -> int:
    """A whole number of at least 1.

    Raises
    ------
    argparse.ArgumentTypeError
        The text is something else.
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return number


def add_common(
    parser: argparse.ArgumentParser,
    out: str = "out",
    backend: str | None = "both",
    seeds: int | None = None,
    of_seeds: str = "runs of each",
) -> None:
    """Options of most benchmarks, with their defaults; without a default there is no option."""
    parser.add_argument("--out", type=Path, default=Path(out), help=f"for the results ({out})")
    if backend is not None:
        choices, told = ("numpyro", "pyro", "both"), f"Pyro is slower ({backend})"
        parser.add_argument("--backend", choices=choices, default=backend, help=told)
    if seeds is not None:
        parser.add_argument("--seeds", type=count, default=seeds, help=f"{of_seeds} ({seeds})")


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Options of a benchmark that takes up what it has recorded."""
    parser.add_argument("--resume", action="store_true", help="keep the runs already recorded")
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="the same, but make those again that failed",
    )
