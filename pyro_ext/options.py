"""Checks of the options of engines and guides, made before any work is done."""

from __future__ import annotations

import math
import numbers
from typing import Any

from pyro_ext.errors import ArgumentError


def is_count(value: Any, least: float = 1) -> bool:
    """Whether a value is a whole number of at least ``least``; truth values are not."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return whole and int(value) >= least


def check_count(name: str, value: Any, least: int = 1, *, optional: bool = False) -> None:
    """See that an option is a whole number of at least ``least``; or None, if that is allowed.

    Raises
    ------
    ArgumentError
        It is not.
    """
    if value is None and optional:
        return
    if not is_count(value, least):
        raise ArgumentError(f"Expected {name} to be an int >= {least}, found {described(value)}.")


def described(value: Any) -> str:
    """A value in a message: itself where that is short, else its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else type(value).__name__


def is_number(value: Any) -> bool:
    """Whether a value is one real number, which an array without axes may hold too."""
    if isinstance(value, bool):
        return False
    return isinstance(value, numbers.Real) or getattr(value, "shape", None) == ()


def check_number(
    name: str,
    value: Any,
    above: float = 0.0,
    *,
    most: float = math.inf,
    optional: bool = False,
) -> None:
    """See that an option is one finite number greater than ``above`` and at most ``most``.

    With ``optional`` it may be None.

    Raises
    ------
    ArgumentError
        It is not.
    """
    if value is None and optional:
        return
    if not is_number(value) or not above < float(value) <= most or math.isinf(float(value)):
        bound = "" if math.isinf(most) else f" and <= {most:g}"
        raise ArgumentError(
            f"Expected {name} to be a finite number > {above:g}{bound}, found {described(value)}."
        )
