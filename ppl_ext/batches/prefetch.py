"""Reading ahead: a thread that takes from an iterator while its caller computes."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator
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


def prefetched(items: Iterator[Item]) -> Generator[Item, None, None]:
    """The same items, read ahead by a thread, which ends with the generator.

    Close the generator to end it early. An exception of the iterator comes after the items before
    it. Ctrl-C reaches the caller alone.
    """
    waiting: queue.Queue[Any] = queue.Queue(AHEAD)
    stopped = threading.Event()
    thread = threading.Thread(
        target=_read, args=(items, waiting, stopped), name="batches", daemon=True
    )
    del items  # the thread's alone, so that it ends with the thread
    try:
        thread.start()
        while True:
            found = waiting.get()
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


def _read(items: Iterator[Any], waiting: queue.Queue[Any], stopped: threading.Event) -> None:
    def put(item: Any) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(item, timeout=_LOOK)
                return

    try:
        for item in items:
            put(item)
            if stopped.is_set():
                break
        put(_END)
    except BaseException as error:  # noqa: BLE001 the caller raises it
        put(Failure(error))
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            with contextlib.suppress(Exception):
                close()
