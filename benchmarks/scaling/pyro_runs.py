"""The Pyro half: processes with gloo, and one of two that is killed."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from benchmarks.records import Record
from benchmarks.scaling.kills import PATIENCE, STEPS, killed
from benchmarks.scaling.problem import ENGINES

#: Processes at most.
MOST = 4
#: Seconds that anything else may take.
LIMIT = 600.0


def measure(devices: Collection[int], done: Collection[Any]) -> Iterator[Record]:
    """Records "measured" of every engine and layout that is not done yet."""
    with tempfile.TemporaryDirectory() as folder:
        for number in sorted({1, *(each for each in devices if each <= MOST)}):
            known = {name for backend, name, _, n in done if (backend, n) == ("pyro", number)}
            # What one process finds is what others are compared with.
            engines = [name for name in ENGINES if name not in known or number == 1]
            group = _Group(number, folder, "measure", folder, engines)
            began = time.perf_counter()
            while (line := group.next(LIMIT)) is not None:
                if number > 1 or line["settings"]["engine"] not in known:
                    record = _record("measured", line["settings"], line.get("figures"), began)
                    record.error = line.get("error")
                    yield record
                began = time.perf_counter()
            if codes := group.ended():
                raise RuntimeError(f"{number} processes: ended with statuses {codes}")


def kill(number: int, seed: int) -> Record:
    """The record "kills": what was left when one of two processes was killed so many times."""
    return killed("pyro", _pair, number, seed)


def _pair(path: Path, until: float | None, moments: random.Random) -> dict[str, Any]:
    """Two processes on a file, one of which is killed so many seconds after their first step."""
    group = _Group(2, str(path.parent), "run", str(path), STEPS)
    seen: dict[str, Any] = {"end": None, "killed": False, "seconds": None, "message": None}
    seen["over"] = None
    victim = moments.randrange(2)
    told = group.next(LIMIT)
    if until is not None and told is not None and told[0] == "step":
        # A run that ends before its time is one that was not killed.
        group.wait(until)
        if group.kill(victim):
            seen["killed"], began = True, time.perf_counter()
            group.processes[1 - victim].join(2 * PATIENCE)
            seen["seconds"] = time.perf_counter() - began
    while told is not None:
        if told[0] == "lost":
            seen["message"] = told[1].partition(":")[0]
        if told[0] == "end":
            seen["over" if seen["killed"] else "end"] = told[1]
        told = group.next(LIMIT)
    seen["said"] = f"statuses {group.ended()}, last told {seen}"
    return seen


class _Group:
    """Processes of one group of torch.distributed, which tell what they find."""

    def __init__(self, size: int, folder: str, work: str, *options: Any) -> None:
        # Forked from a process that has imported everything.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.scaling.pyro_worker"])
        store = tempfile.mktemp(dir=folder, prefix="store")
        self.pipes = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(work, rank, size, store, options, theirs))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def next(self, seconds: float) -> Any:
        """What a process tells next; None when all have ended."""
        while self.pipes:
            ready: list[Any] = multiprocessing.connection.wait(self.pipes, seconds)
            if not ready:
                raise RuntimeError(f"expected a word within {seconds:g} s, found none")
            try:
                return ready[0].recv()
            except EOFError:
                self.pipes.remove(ready[0])
        return None

    def wait(self, seconds: float) -> None:
        """Let so many seconds pass, or until a process ends."""
        sentinels = [process.sentinel for process in self.processes]
        multiprocessing.connection.wait(sentinels, seconds)

    def kill(self, rank: int) -> bool:
        """Kill a process; whether all were still there."""
        if not all(process.is_alive() for process in self.processes):
            return False
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return True

    def ended(self) -> list[int | None]:
        """Statuses of processes that did not end well, when all have ended."""
        for process in self.processes:
            process.join(LIMIT)
            process.kill()
        return [process.exitcode for process in self.processes if process.exitcode]


def _work(work: str, rank: int, size: int, store: str, options: tuple[Any, ...], pipe: Any) -> None:
    from benchmarks.scaling import pyro_worker

    getattr(pyro_worker, work)(rank, size, store, *options, pipe.send)


def _record(method: str, settings: Any, figures: Any, began: float) -> Record:
    record = Record("scaling", method, "pyro", "regression", 0, settings, figures or {})
    record.seconds = time.perf_counter() - began
    return record
