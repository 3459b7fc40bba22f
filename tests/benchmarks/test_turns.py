"""Methods that take turns in processes of their own."""

from __future__ import annotations

import os

from benchmarks.records import Record
from benchmarks.turns import Started, take_turns


def start(how: str) -> Started:
    """A method that goes well, that cannot be made, or whose process dies in its turn."""
    if how == "fails":
        raise ValueError("no such method")

    def turn() -> float:
        if how == "dies":
            os._exit(1)
        return 0.5

    return Started(turn, lambda: {"peak": 3}, {"made": 1})


def test_figures_and_failures_are_told_apart() -> None:
    runs = [Record("turns", how, "none", "none", 0, {}) for how in ("well", "fails", "dies")]
    take_turns([(run, (run.method,)) for run in runs], start, 2)
    well, fails, dies = runs
    assert well.figures == {"made": 1, "seconds a step": [0.5, 0.5], "peak": 3}
    assert fails.error == "ValueError: no such method"
    assert dies.error is not None and dies.error.startswith("EOFError")
