"""Cases of the benchmark in worker processes, whose records the parent writes.

A case is a posterior with one backend by one route: its runs go to one worker, which reads the
data and compiles its programs once. Workers are spawned, with one thread each, and tell the parent
which run they begin and what came of it. A worker that dies, as for want of memory, fails the run
that it had begun; the rest of its case goes to a new one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.images.training import Book
from benchmarks.posteriordb.database import Database
from benchmarks.records import Record

#: What keeps a process of each library to one thread.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


@dataclass(frozen=True)
class Case:
    """A posterior by name, a backend and a route."""

    posterior: str
    backend: str
    route: str


#: Yields the records of a case: ``runs(book, database, case, plan)``.
Runs = Callable[[Any, Database, Case, Any], Iterator[Record]]


class _Relay(Book):
    """A book that tells the parent of a run's begin and end in place of writing."""

    def __init__(self, connection: Connection, past: dict[str, Record]) -> None:
        self.path, self.past, self._connection = Path(), past, connection

    def begin(self, record: Record) -> None:
        self._connection.send(("begun", record))

    def write(self, record: Record) -> None:
        self._connection.send(("done", record))


def _work(connection: Connection, runs: Runs, database: str | None, plan: Any) -> None:
    """Take cases until there is none."""
    # The parent gets it as well, and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    opened = Database.open(database)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            task = connection.recv()
            if task is None:
                return
            case, past = task
            book = _Relay(connection, past)
            for record in runs(book, opened, case, plan):
                if book.identity(record) in past:
                    connection.send(("kept", record))
            connection.send(("finished", None))


class _Worker:
    """A process with the case that it has and the run that it has begun."""

    def __init__(self, runs: Runs, database: str | None, plan: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.case: Case | None = None
        self.begun: Record | None = None
        self._process = context.Process(
            target=_work, args=(theirs, runs, database, plan), daemon=True
        )
        with _environment(ONE_THREAD):
            self._process.start()
        theirs.close()

    def take(self, case: Case, past: dict[str, Record]) -> None:
        """Begin a case; runs of ``past`` are done already."""
        self.case = case
        # A worker that is gone already shows when it is listened to.
        with contextlib.suppress(BrokenPipeError):
            self.connection.send((case, past))

    def end(self) -> int | None:
        """Close the process, at once if it is at work; its exit status."""
        if self.case is not None:
            self._process.terminate()
        else:
            with contextlib.suppress(BrokenPipeError):
                self.connection.send(None)
        self._process.join()
        self.connection.close()
        return self._process.exitcode


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for processes that start meanwhile; what is set already stays."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in values.items() if name not in before})
    try:
        yield
    finally:
        for name in values:
            if name not in before:
                del os.environ[name]


def spread(
    cases: Sequence[Case], jobs: int, runs: Runs, book: Book, database: str | None, plan: Any
) -> Generator[tuple[Record | None, Case | None]]:
    """Records as they come, and each case when it is finished, from so many processes.

    Records are in the book's file when they are given. Leaving early ends the processes.
    """
    waiting = deque(cases)
    given: set[str] = set()
    workers: list[_Worker] = []
    try:
        for _ in range(min(jobs, len(cases))):
            workers.append(_Worker(runs, database, plan))
            workers[-1].take(waiting.popleft(), book.past)
        while workers:
            for ready in wait([worker.connection for worker in workers]):
                (worker,) = (one for one in workers if one.connection is ready)
                assert worker.case is not None
                try:
                    kind, record = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    workers.remove(worker)
                    failed, case = worker.begun, worker.case
                    status = worker.end()
                    if failed is None:
                        raise RuntimeError(
                            f"A worker process ended (status {status}) before it began a run of "
                            f"{case.posterior}; use --jobs 1 to see why."
                        ) from None
                    failed.error = f"ChildProcessError: the process ended with status {status}"
                    book.write(failed)
                    book.past[book.identity(failed)] = failed
                    given.add(book.identity(failed))
                    yield failed, None
                    workers.append(_Worker(runs, database, plan))
                    workers[-1].take(case, book.past)
                    continue
                if kind == "begun":
                    worker.begun = record
                elif kind == "finished":
                    case, worker.case, worker.begun = worker.case, None, None
                    if waiting:
                        worker.take(waiting.popleft(), book.past)
                    else:
                        workers.remove(worker)
                        worker.end()
                    yield None, case
                else:
                    if kind == "done":
                        book.write(record)
                        book.past[book.identity(record)] = record
                    if book.identity(record) not in given:
                        given.add(book.identity(record))
                        yield record, None
    finally:
        for worker in workers:
            worker.end()
