"""Methods that step in processes of their own and take turns, so that all see the same machine."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.records import Record


@dataclass(frozen=True)
class Started:
    """A method that has taken its first steps, in its own process.

    Attributes
    ----------
    turn : callable
        Takes its turn; the seconds of a step.
    end : callable
        Figures after the last turn.
    first : dict
        Figures of the beginning.
    """

    turn: Callable[[], float]
    end: Callable[[], Mapping[str, Any]]
    first: Mapping[str, Any]


def take_turns(
    cases: Sequence[tuple[Record, tuple[Any, ...]]],
    start: Callable[..., Started],
    rounds: int,
    figure: str = "seconds a step",
) -> None:
    """Fill records with the figures of methods, each in a process of its own.

    Parameters
    ----------
    cases : sequence of (Record, tuple)
        A record of each method, and what ``start`` takes.
    start : callable
        Makes the method and takes its first steps. What it raises is the record's error.
    rounds : int
    figure : str
        Name of the seconds of all turns.
    """
    context = multiprocessing.get_context("spawn")
    workers = []
    for record, given in cases:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, start, given), daemon=True)
        process.start()
        # The process's own copy stays open until it ends: its end is then seen here.
        there.close()
        _receive(here, record, figure)
        workers.append((process, here, record))
    for _ in range(rounds):
        for _, pipe, record in workers:
            if not record.failed:
                pipe.send("turn")
                _receive(pipe, record, figure)
    for process, pipe, record in workers:
        if not record.failed:
            pipe.send("end")
            _receive(pipe, record, figure)
        process.kill()
        process.join()


def _receive(pipe: Connection, record: Record, figure: str) -> None:
    try:
        answer = pipe.recv()
    except EOFError:
        answer = "EOFError: the process ended, perhaps for lack of memory"
    if isinstance(answer, str):
        record.error = answer
        print(f"{record.backend}, {record.method}: {answer}", flush=True)
    elif isinstance(answer, float):
        record.figures.setdefault(figure, []).append(answer)
    else:
        record.figures.update(answer)


def _work(pipe: Connection, start: Callable[..., Started], given: tuple[Any, ...]) -> None:
    """What a process does: start the method, then answer until it is killed."""
    try:
        started = start(*given)
        pipe.send(dict(started.first))
        while pipe.recv() == "turn":
            pipe.send(started.turn())
        pipe.send(dict(started.end()))
        pipe.recv()
    except Exception as error:  # noqa: BLE001 - a method that breaks down is a result
        traceback.print_exc()
        pipe.send(f"{type(error).__name__}: {error}")
