"""One of two processes is killed again and again: what the other does, and what is left."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.records import Record

#: Steps of a run that is killed again and again, and seconds from its first step to a kill at most.
STEPS, LONGEST = 150, 4.0
#: Seconds within which the other process has to end by itself.
PATIENCE = 60.0
#: Runs that end without having come to their end, after which no more are started.
PATIENT = 3

Pair = Callable[[Path, "float | None", random.Random], dict[str, Any]]


def killed(backend: str, pair: Pair, number: int, seed: int) -> Record:
    """The record "kills" of so many kills.

    Parameters
    ----------
    backend : str
    pair : callable
        Runs two processes that go on from the state in a file, and kills one of them so many
        seconds after their first step, or none. What it has seen: ``end``, the result where both
        came to the run's end; ``killed``, whether one was killed; then ``seconds`` until the other
        ended, ``message``, the kind of what it said, and ``over``, the result where it was at the
        run's end already; ``said``, all that was said.
    number, seed : int
        Kills, and the seed of their moments.
    """
    moments, began = random.Random(seed), time.perf_counter()
    found: dict[str, Any] = {"kills": 0, "ends": 0, "late": 0, "without a message": 0}
    found |= {"not exact": 0, "failed": 0, "seconds until the other ends": [], "messages": {}}
    found |= {"the other was at its end": 0}
    with tempfile.TemporaryDirectory() as folder:
        expected = pair(Path(folder) / "reference", None, moments)["end"]
        path = Path(folder) / "state"
        while (found["kills"] < number or path.exists()) and found["failed"] <= PATIENT:
            last = found["kills"] >= number
            seen = pair(path, None if last else moments.uniform(0.0, LONGEST), moments)
            if seen["end"] is not None:
                found["ends"] += 1
                found["not exact"] += seen["end"] != expected
                path.unlink()
            elif seen["killed"]:
                found["kills"] += 1
                found["seconds until the other ends"].append(seen["seconds"])
                found["late"] += seen["seconds"] > PATIENCE
                kind = seen["message"]
                if kind is not None:
                    found["messages"][kind] = found["messages"].get(kind, 0) + 1
                elif seen["over"] is not None:
                    found["the other was at its end"] += 1
                    found["not exact"] += seen["over"] != expected
                else:
                    found["without a message"] += 1
                    print(seen["said"], file=sys.stderr)
            else:
                found["failed"] += 1
                print(seen["said"], file=sys.stderr)
    settings = {"number": number, "steps": STEPS, "processes": 2, "seed": seed}
    record = Record("scaling", "kills", backend, "regression", 0, settings, found)
    record.seconds = time.perf_counter() - began
    return record
