"""Reading ahead: a thread that takes from an iterator while its caller computes."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")

#: Items that wait at most; one more is being read.
AHEAD = 2
#: Seconds between looks whether the caller still wants more.
_LOOK = 0.05
#: Seconds that the end of a run waits for a loader that is reading.
_PATIENCE = 10.0


class Failure:
    """An exception that came up in the thread."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


_END = object()


def prefetched(
    items: Iterator[Item], ahead: Callable[[Item], int] | None = None
) -> Generator[Item, None, None]:
    """The same items, read ahead by a thread, which ends with the generator.

    Close the generator to end it early. An exception of the iterator comes after the items before
    it. Ctrl-C reaches the caller alone.

    Parameters
    ----------
    items : iterator
    ahead : callable, optional
        Asked with the first item how many may wait, where they are more than ``AHEAD``.
    """
    # The queue has no bound of its own; the semaphore bounds it, since the bound is known only with
    # the first item.
    waiting: queue.Queue[Any] = queue.Queue()
    free, stopped = threading.Semaphore(AHEAD), threading.Event()
    thread = threading.Thread(
        target=_read, args=(items, ahead, waiting, free, stopped), name="batches", daemon=True
    )
    del items  # the thread's alone, so that it ends with the thread
    try:
        thread.start()
        while True:
            found = waiting.get()
            free.release()
            if found is _END:
                return
            if isinstance(found, Failure):
                raise found.error
            yield found
    finally:
        stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        if thread.ident is not None:
            thread.join(_PATIENCE)


def _read(
    items: Iterator[Any],
    ahead: Callable[[Any], int] | None,
    waiting: queue.Queue[Any],
    free: threading.Semaphore,
    stopped: threading.Event,
) -> None:
    def put(item: Any) -> None:
        while not stopped.is_set():
            if free.acquire(timeout=_LOOK):
                waiting.put(item)
                return

    try:
        for number, item in enumerate(items):
            if number == 0 and ahead is not None:
                # No turns where ``ahead`` says less than AHEAD: a semaphore cannot be lowered.
                for _ in range(AHEAD, ahead(item)):
                    free.release()
            put(item)
            if stopped.is_set():
                break
        put(_END)
    except BaseException as error:  # noqa: BLE001 the caller raises it
        put(Failure(error))
    finally:
        if (close := getattr(items, "close", None)) is not None:
            with contextlib.suppress(Exception):
                close()
