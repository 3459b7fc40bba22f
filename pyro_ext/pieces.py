"""Long vectors in pieces that stay in a processor's cache, worked on side by side.

Operations on a vector of a network's length take as long as its way from memory and back. Where
entries do not depend on each other, a piece takes all of them while it is in the cache. A single
piece is too short for torch to divide it among threads, so that the threads take pieces.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Piece = TypeVar("Piece")
Found = TypeVar("Found")

#: Entries of a piece. A dozen of them fit into a processor's cache together, and the operations on
#: one take ten times as long as their calls, which threads have to make one at a time.
LENGTH = 2**17


def slices(start: int, stop: int, length: int) -> list[slice]:
    """Ranges of at most so many entries that make up ``start`` to ``stop``."""
    return [slice(first, min(first + length, stop)) for first in range(start, stop, length)]


def of_vector(values: Tensor, dim: int) -> list[slice]:
    """The pieces of a vector of ``dim`` entries; on an accelerator a single one."""
    return slices(0, dim, LENGTH if values.device.type == "cpu" else max(dim, 1))


@torch.no_grad()
def side_by_side(
    worker: Callable[[], Callable[[Piece], Found]], pieces: Sequence[Piece]
) -> list[Found]:
    """What a worker finds at each piece, in the order of the pieces.

    Parameters
    ----------
    worker : callable
        Makes a function of one piece. Each thread makes one for itself, with memory of its own.
    pieces : sequence
        Pieces that do not depend on each other. What is found at one does not depend on the
        number of threads, which is torch's.
    """
    threads = min(torch.get_num_threads(), len(pieces))
    if threads < 2:
        alone = worker()
        return [alone(piece) for piece in pieces]
    numbers, found = itertools.count(), [None] * len(pieces)

    @torch.no_grad()
    def work(_: int) -> None:
        # A new thread would start threads of torch's own for some operations.
        torch.set_num_threads(1)
        take = worker()
        while (number := next(numbers)) < len(pieces):
            found[number] = take(pieces[number])  # type: ignore[call-overload]

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
    finally:
        # torch gives the number that was set last to threads that are new.
        torch.set_num_threads(before)
    return found  # type: ignore[return-value]
