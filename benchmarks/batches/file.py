"""Rows of a logistic regression in a file, written in chunks, and a loader that reads them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = 20
#: Rows that are drawn and written at once.
CHUNK = 250_000


def coefficients() -> np.ndarray:
    """The true coefficients (COLUMNS,)."""
    return np.linspace(-1.0, 1.0, COLUMNS)


def drawn(rows: int, seed: int) -> np.ndarray:
    """Rows (rows, COLUMNS + 1), the response in the last column."""
    generator = np.random.default_rng(seed)
    found = np.empty((rows, COLUMNS + 1))
    found[:, :COLUMNS] = generator.standard_normal((rows, COLUMNS), np.float32)
    chance = 1.0 / (1.0 + np.exp(-(found[:, :COLUMNS] @ coefficients())))
    found[:, COLUMNS] = generator.random(rows, np.float32) < chance
    return found


def size_of(rows: int) -> int:
    """Bytes of a file of so many rows."""
    return 8 * rows * (COLUMNS + 1)


def write(path: Path, rows: int) -> None:
    """Write the file of float64, unless it is there with as many rows."""
    if path.exists() and path.stat().st_size == size_of(rows):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for number, start in enumerate(range(0, rows, CHUNK)):
            drawn(min(CHUNK, rows - start), number).tofile(file)


class FileBatches:
    """Batches of rows that follow each other in a file, in an order that is drawn every epoch.

    Its state says the epoch and how many batches of it were given, so that a run goes on exactly.

    Parameters
    ----------
    path : Path
    batch : int
        Rows of a batch; those that are left at the end of the file come last.
    """

    def __init__(self, path: Path, batch: int) -> None:
        rows = path.stat().st_size // size_of(1)
        self.rows = np.memmap(path, np.float64, "r", shape=(rows, COLUMNS + 1))
        self.batch, self.epoch, self.given, self.skip = batch, 0, 0, 0

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch)

    def state_dict(self) -> dict[str, int]:
        """The place after the last batch."""
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a place."""
        self.epoch, self.skip = state["epoch"], state["given"]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        order = np.random.default_rng(self.epoch).permutation(len(self.rows) // self.batch)
        starts = [*(order * self.batch), *([len(order) * self.batch] * (len(self) > len(order)))]
        self.given, self.skip = self.skip, 0  # anew, but for a state that was loaded
        for start in starts[self.given :]:
            self.given += 1
            rows = np.array(self.rows[start : start + self.batch])
            # The system may have its pages back.
            self.rows._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
            yield rows[:, :COLUMNS], rows[:, COLUMNS]
        self.epoch, self.given = self.epoch + 1, 0
