"""What all of a process shares, and how engines share it: the hosts' globals, and Ctrl-C.

Pyro and NumPyro keep the handlers that are active in one list for the whole process, Pyro its
parameters and what is validated, torch one random generator, Python its filters of warnings.
An engine that swaps any of them, or runs a model under handlers, holds :data:`HOST` meanwhile, so
that engines in several threads wait for each other there, each for the length of one evaluation,
and find everything as it was. What is compiled or traced already needs none of it, and does not
wait.

Ctrl-C comes between any two operations: in the middle of a step that has written one of its arrays
and not the other, or between an operation that changes a global and the line that would put it
back, in the hosts' code as well. So it waits inside :func:`between_steps`, which every entry point
enters and whoever swaps a global. It is raised where nothing is half written and all globals are
back: after an evaluation, a step or a piece of a run, or at the end. Where the program comes to no
such place for :data:`LONGEST_WAIT` seconds, or Ctrl-C is pressed again, it is raised at once,
except between :func:`hold` and :func:`release`, where something is half written.
"""

from __future__ import annotations

import _thread
import functools
import operator
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident, main_thread
from types import FrameType
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Entered = TypeVar("Entered")

#: Held by whoever uses the host's globals; the same thread may take it again.
HOST = threading.RLock()
#: Seconds that Ctrl-C waits at most, which a user would wait before pressing it again.
LONGEST_WAIT = 5.0
#: Seconds after which one who waits for another thread looks whether Ctrl-C was pressed.
LOOK = 0.05


class _Interrupt:
    """Handler of Ctrl-C that can wait. Signals reach the main thread alone, so there is one."""

    def __init__(self) -> None:
        #: Contexts in which it waits, of which those that hold the lock.
        self.depth = self.locks = 0
        #: Whether something is half written, and whether a function of the user's runs.
        self.held = self.interruptible = False
        self.pending: threading.Timer | None = None
        self.frame: FrameType | None = None
        self.previous: Callable[[int, FrameType | None], Any] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        again = self.pending is not None
        if again:
            self.frame = frame
        else:
            self.pending, self.frame = threading.Timer(LONGEST_WAIT, self._again), frame
            self.pending.daemon = True
            self.pending.start()
        if again or self.interruptible:
            self.raise_waiting()

    def _again(self) -> None:
        # The timer may have gone off while the main thread raised Ctrl-C, or forgot it.
        if self.pending is threading.current_thread():
            _thread.interrupt_main()

    def raise_waiting(self) -> None:
        """Raise a Ctrl-C that has waited, unless something is half written."""
        if self.pending is None or self.held:
            return
        frame = self.frame
        self.forget()
        if self.previous is not None:
            self.previous(signal.SIGINT, frame)

    def forget(self) -> None:
        """Wait no more."""
        if self.pending is not None:
            self.pending.cancel()
        self.pending = self.frame = None


_interrupt = _Interrupt()
#: Functions that note what an exception might leave changed, and return one that puts it back.
KEEPERS: list[Callable[[], Callable[[], None]]] = []


@contextmanager
def between_steps() -> Iterator[None]:
    """Context in which Ctrl-C waits until nothing is half written; see above.

    Where an exception leaves the outermost one, what :data:`KEEPERS` noted is put back. It does
    nothing in threads other than the main one, which Ctrl-C does not reach, or where a program has
    switched Ctrl-C off.
    """
    if get_ident() != main_thread().ident:
        yield
        return
    if _interrupt.depth:
        _interrupt.depth += 1
        try:
            yield
        finally:
            _interrupt.depth -= 1
        return
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):
        yield
        return
    put_back, was_raised = list(map(operator.call, KEEPERS)), False
    _interrupt.locks, _interrupt.previous = 0, previous
    _interrupt.held = _interrupt.interruptible = False
    try:
        # Until here, and from where it is put back, Ctrl-C comes at any line: the depth, by which
        # contexts inside know that it waits, is changed while it does.
        signal.signal(signal.SIGINT, _interrupt)
        _interrupt.depth = 1
        yield
    except BaseException as error:
        # A second Ctrl-C must not come between two of those that put back.
        _interrupt.held, was_raised = True, isinstance(error, KeyboardInterrupt)
        for put in put_back:
            put()
        raise
    finally:
        _interrupt.depth, _interrupt.held = 0, False
        # One that was pressed again while the first ended the run is not raised once more behind
        # it.
        if was_raised:
            _interrupt.forget()
        # Another handler that was set meanwhile stays.
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, previous)
        if _interrupt.pending is not None:
            _interrupt.raise_waiting()


@contextmanager
def interruptible() -> Iterator[None]:
    """Context for functions of the user's, in which Ctrl-C is raised at once."""
    if get_ident() != main_thread().ident:
        yield
        return
    before, _interrupt.interruptible = _interrupt.interruptible, True
    try:
        raise_waiting()
        yield
    finally:
        _interrupt.interruptible = before


def hold() -> bool:
    """From here on Ctrl-C waits for :func:`release`; returns whether it did so already."""
    if get_ident() != main_thread().ident:
        return True
    before, _interrupt.held = _interrupt.held, True
    return before


def release() -> None:
    """End of :func:`hold`: nothing is half written, and a Ctrl-C that has waited is raised."""
    if get_ident() == main_thread().ident:
        _interrupt.held = False
        if _interrupt.pending is not None:
            _interrupt.raise_waiting()


def raise_waiting() -> None:
    """Raise a Ctrl-C that has waited: nothing is half written here."""
    if _interrupt.pending is not None and get_ident() == main_thread().ident:
        _interrupt.raise_waiting()


class _Swapped(AbstractContextManager[Entered]):
    def __init__(self, context: AbstractContextManager[Entered]) -> None:
        self._context = context

    def __enter__(self) -> Entered:
        self._waits = between_steps()
        self._waits.__enter__()
        before = hold()
        try:
            # The handler of Ctrl-C only notes that it was pressed, which ends no wait for a lock.
            while not HOST.acquire(timeout=LOOK):
                _hold_as(before)
                raise_waiting()
                hold()
            try:
                entered = self._context.__enter__()
            except BaseException:
                HOST.release()
                raise
        except BaseException:
            _hold_as(before)
            self._waits.__exit__(*sys.exc_info())
            raise
        _interrupt.locks += get_ident() == main_thread().ident
        _hold_as(before)
        return entered

    def __exit__(self, *exception: Any) -> bool | None:
        before = hold()
        try:
            return self._context.__exit__(*exception)
        finally:
            HOST.release()
            _interrupt.locks -= get_ident() == main_thread().ident
            _hold_as(before)
            self._waits.__exit__(*exception)
            if exception[0] is None and not _interrupt.locks:
                raise_waiting()


def _hold_as(before: bool) -> None:
    if not before:
        _interrupt.held = False


def swapped(context: AbstractContextManager[Entered]) -> AbstractContextManager[Entered]:
    """A context that changes globals, and puts them back whatever happens.

    Other threads wait while it is active, and Ctrl-C until the outermost such context is left.
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
