"""Types of command-line options that several benchmarks have."""

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
