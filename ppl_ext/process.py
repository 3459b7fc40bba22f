"""What all of a process shares, and how engines share it: the hosts' globals, and Ctrl-C.

Pyro and NumPyro keep the handlers that are active in one list for the whole process, Pyro its
parameters and what is validated, torch one random generator, Python its filters of warnings.
An engine that swaps any of them, or runs a model under handlers, holds :data:`HOST` meanwhile, so
that engines in several threads wait for each other there, each for the length of one evaluation,
and find everything as it was. What is compiled or traced already needs none of it, and does not
wait.

Ctrl-C comes between any two operations, also in the middle of a step that has written one of its
arrays and not the other. Inside :func:`between_steps` it comes at once while a step computes, and
after the step where it writes: between :func:`hold` and :func:`release`.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Entered = TypeVar("Entered")

#: Held by whoever uses the host's globals; the same thread may take it again.
HOST = threading.RLock()


class _Swapped(AbstractContextManager[Entered]):
    def __init__(self, context: AbstractContextManager[Entered]) -> None:
        self._context = context

    def __enter__(self) -> Entered:
        waiting = hold()
        HOST.acquire()
        try:
            entered = self._context.__enter__()
        except BaseException:
            HOST.release()
            raise
        try:
            if not waiting:
                release()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return entered

    def __exit__(self, *exception: Any) -> bool | None:
        waiting = hold()
        try:
            return self._context.__exit__(*exception)
        finally:
            HOST.release()
            if not waiting:
                release()


def swapped(context: AbstractContextManager[Entered]) -> AbstractContextManager[Entered]:
    """A context that changes globals, and puts them back whatever happens.

    Other threads wait while it is active, and Ctrl-C waits while it is entered and left.
    """
    return _Swapped(context)


def swapping(
    make: Callable[Parameters, AbstractContextManager[Entered]],
) -> Callable[Parameters, AbstractContextManager[Entered]]:
    """A function that makes contexts, each of them :func:`swapped`."""

    @functools.wraps(make)
    def made(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
        return _Swapped(make(*args, **kwargs))

    return made


@swapping
@contextmanager
def handling(stack: list[Any]) -> Iterator[None]:
    """Context for running a model under handlers, of which ``stack`` is the host's list.

    Handlers that an exception has left in it are taken out.
    """
    depth = len(stack)
    try:
        yield
    finally:
        del stack[depth:]


class _Interrupt:
    """Handler of Ctrl-C that can wait. Signals reach the main thread alone, so there is one."""

    def __init__(self) -> None:
        self.held = False
        self.pending: FrameType | None = None
        self.previous: Callable[[int, FrameType | None], Any] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.held:
            self.pending = frame
        elif self.previous is not None:
            self.previous(number, frame)


_interrupt = _Interrupt()


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


@contextmanager
def between_steps() -> Iterator[None]:
    """Context in which Ctrl-C waits while something is half written.

    It does nothing in threads other than the main one, which Ctrl-C does not reach, inside
    itself, or where a program has switched Ctrl-C off.
    """
    previous = signal.getsignal(signal.SIGINT) if _is_main() else None
    if previous is _interrupt or not callable(previous):
        yield
        return
    _interrupt.held, _interrupt.pending, _interrupt.previous = False, None, previous
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def hold() -> bool:
    """From here on Ctrl-C waits for :func:`release`; returns whether it did so already."""
    if not _is_main():
        return True
    before, _interrupt.held = _interrupt.held, True
    return before


def release() -> None:
    """Everything is whole again: a Ctrl-C that has waited is heard now."""
    if _interrupt.held and _is_main():
        _interrupt.held = False
        frame, _interrupt.pending = _interrupt.pending, None
        if frame is not None and _interrupt.previous is not None:
            _interrupt.previous(signal.SIGINT, frame)
