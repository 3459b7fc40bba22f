"""What a callback of a compiled program raises, raised as it is.

JAX logs it, and raises an error of its own with the text of it alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import jax

#: The error that a callback raised last, until it is raised again.
_raised: list[Exception] = []


def remembered(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A callback whose error :func:`raised_as_it_is` finds again."""

    @wraps(callback)
    def call(*args: Any) -> Any:
        try:
            return callback(*args)
        except Exception as error:  # whatever the user's own code raises
            _raised[:] = [error]
            raise

    return call


@contextmanager
def raised_as_it_is() -> Iterator[None]:
    """Context that waits for programs, in which a remembered error takes the place of JAX's."""
    logger = logging.getLogger("jax._src.callback")
    logger.addFilter(_is_other)
    try:
        yield
    except jax.errors.JaxRuntimeError:
        if not _raised:
            raise
        raise _raised.pop() from None
    finally:
        _raised.clear()
        logger.removeFilter(_is_other)


def _is_other(record: logging.LogRecord) -> bool:
    """Whether a line of JAX's log tells something else."""
    error = record.exc_info[1] if record.exc_info else None
    return error is None or not any(error is each for each in _raised)
