"""Command-line options that several benchmarks have, and their types."""

from __future__ import annotations

import argparse


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


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Options of a benchmark that takes up what it has recorded."""
    parser.add_argument("--resume", action="store_true", help="keep the runs already recorded")
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="the same, but make those again that failed",
    )
