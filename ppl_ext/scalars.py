"""Numbers of either host: Python's, or arrays without axes where a whole step is one program."""

from __future__ import annotations

import math
from typing import Any


def at_most(value: Any, bound: Any) -> Any:
    """The lesser of two numbers."""
    return value.clip(max=bound) if hasattr(value, "clip") else min(value, bound)


def at_least(value: Any, bound: Any) -> Any:
    """The greater of two numbers."""
    return value.clip(min=bound) if hasattr(value, "clip") else max(value, bound)


def chosen(condition: Any, one: Any, other: Any) -> Any:
    """The first of two numbers where a condition holds, else the second."""
    if hasattr(condition, "__array_namespace__"):
        return condition.__array_namespace__().where(condition, one, other)
    return one if condition else other


def half_cosine(progress: Any) -> Any:
    """A number that falls from 1 to 0 along half a cosine, as progress goes from 0 to 1."""
    functions: Any = math
    if hasattr(progress, "__array_namespace__"):
        functions = progress.__array_namespace__()
    return 0.5 * (1.0 + functions.cos(math.pi * progress))


def square_root(xp: Any, values: Any) -> Any:
    """Square roots of an array's entries, with derivative 0 where these are 0."""
    positive = values > 0.0
    # The inner ``where`` keeps the infinite derivative of the root at 0 out of the product with the
    # mask's zero, which would be NaN.
    return xp.where(positive, xp.sqrt(xp.where(positive, values, 1.0)), 0.0)


def as_number(value: Any, like: Any) -> Any:
    """A count as a number of the type of another."""
    return value.astype(like.dtype) if hasattr(value, "astype") else float(value)
