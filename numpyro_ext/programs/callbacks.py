"""What a callback of a compiled program raises, raised as it is.

JAX logs it, and raises an error of its own with the text of it alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import jax

#: Errors of callbacks since a program was first waited for. Callbacks run in threads of JAX's, so
#: that programs that are waited for at the same time have them in common.
_raised: list[Exception] = []
_waiting = 0
_lock = threading.Lock()


def remembered(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A callback whose error :func:`raised_as_it_is` finds again."""

    @wraps(callback)
    def call(*args: Any) -> Any:
        try:
            return callback(*args)
        except Exception as error:  # whatever the user's own code raises
            _raised.append(error)
            raise

    return call


@contextmanager
def raised_as_it_is() -> Iterator[None]:
    """Context that waits for programs, in which a remembered error takes the place of JAX's."""
    _change_waiting(1)
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        own = _found_in(str(error))
        if own is None:
            raise
        raise own from None
    finally:
        _change_waiting(-1)


def _change_waiting(by: int) -> None:
    """Count who waits; nothing is remembered where nobody does."""
    global _waiting
    logger = logging.getLogger("jax._src.callback")
    with _lock:
        if by > 0 and not _waiting:
            _raised.clear()  # of programs that nobody waited for
            logger.addFilter(_is_other)
        _waiting += by
        if not _waiting:
            _raised.clear()
            logger.removeFilter(_is_other)


def _found_in(text: str) -> Exception | None:
    """The remembered error that JAX's own tells of, which another callback's may be."""
    for error in reversed(_raised):
        # JAX's error holds the text of the callback's, which is all that ties the two.
        if f"{type(error).__name__}: {error}".strip() in text:
            return error
    return None


def _is_other(record: logging.LogRecord) -> bool:
    """Whether a line of JAX's log tells something else."""
    error = record.exc_info[1] if record.exc_info else None
    return error is None or not any(error is each for each in _raised)
