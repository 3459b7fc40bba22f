"""What moves need of a framework besides the functions that all have by one name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

#: Arrays whose first axis is that of the chains.
Arrays: TypeAlias = tuple[Any, ...]


class Functions(ABC):
    """What moves need of a framework besides the functions of ``xp``."""

    #: ``numpy``, ``torch`` or ``jax.numpy``.
    xp: Any

    def dot(self, one: Any, other: Any) -> Any:
        """Products of rows: (C, D) and (C, D) give (C,)."""
        return (one * other).sum(-1)

    def combined(self, first: Any, one: Any, second: Any, other: Any) -> Any:
        """The sum of two arrays (C, D), each row by a number of (C,)."""
        return first[:, None] * one + second[:, None] * other

    def moved(self, position: Any, length: Any, scale: Any, direction: Any) -> Any:
        """The position a length further along a direction, in the coordinates of the scale."""
        return position + length * scale * direction

    @abstractmethod
    def cond(
        self, truth: Any, then: Callable[..., Any], other: Callable[..., Any], *of: Any
    ) -> Any:
        """What one of two functions gives."""

    @abstractmethod
    def loop(self, count: Any, body: Callable[[Any], Any], value: Any) -> Any:
        """A function applied again and again."""

    @abstractmethod
    def put(self, records: Any, place: Any, value: Any) -> Any:
        """Records with one of them replaced; the others may be the same memory."""

    def select(self, accepted: Any, after: Arrays, before: Callable[[], Arrays]) -> Arrays:
        """Rows of arrays where chains are accepted, else of others as many."""

        def rows(after: Any, before: Any) -> Any:
            taken = accepted if after.ndim == 1 else accepted[:, None]
            return self.xp.where(taken, after, before)

        return tuple(map(rows, after, before()))


class Eager(Functions):
    """The same where operations are done at once."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def cond(
        self, truth: Any, then: Callable[..., Any], other: Callable[..., Any], *of: Any
    ) -> Any:
        return then(*of) if truth else other(*of)

    def loop(self, count: Any, body: Callable[[Any], Any], value: Any) -> Any:
        for _ in range(int(count)):
            value = body(value)
        return value

    def put(self, records: Any, place: Any, value: Any) -> Any:
        records[int(place)] = value
        return records

    def select(self, accepted: Any, after: Arrays, before: Callable[[], Arrays]) -> Arrays:
        # Most of the time all are.
        return after if accepted.all() else super().select(accepted, after, before)
