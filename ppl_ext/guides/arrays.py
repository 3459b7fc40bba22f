"""What formulas of guides need of a framework besides operators and methods of its arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ppl_ext.documented import documents_subclasses

LOG_TWO_PI = math.log(2.0 * math.pi)


@documents_subclasses
class ArrayFunctions:
    """Functions of a framework's arrays, which a package gives to the formulas of this one.

    Attributes
    ----------
    xp : module
        ``torch`` or ``jax.numpy``, of which only functions are used that are the same in both.
    """

    # Not an abstract class: the hosts' distributions and guides have metaclasses of their own.
    xp: Any
    #: The array as a constant, without a derivative.
    detached: Callable[[Any], Any]
    #: One over the square root of each entry.
    inverse_root: Callable[[Any], Any]
    #: log(1 + exp(x)) of each entry.
    softplus: Callable[[Any], Any]
    #: Positive numbers that sum to one along the last axis, and their logarithms.
    softmax: Callable[[Any], Any]
    log_softmax: Callable[[Any], Any]
    #: The standard Normal distribution function of each entry, and its inverse.
    ndtr: Callable[[Any], Any]
    ndtri: Callable[[Any], Any]

    @staticmethod
    def as_array(values: Any, like: Any) -> Any:
        """Numbers as an array of the type, and on the device, of another."""
        raise NotImplementedError

    @staticmethod
    def identity(length: int, like: Any) -> Any:
        """The identity matrix, of the type, and on the device, of an array."""
        raise NotImplementedError

    @staticmethod
    def block_diagonal(matrices: Sequence[Any]) -> Any:
        """One matrix with the given ones on its diagonal."""
        raise NotImplementedError

    @staticmethod
    def solve_lower(factor: Any, rows: Any, transpose: bool = False) -> Any:
        """Solve L x = v, or L' x = v, for vectors v in rows.

        One L (n, n) serves rows (..., n); several (K, n, n) have rows (K, N, n) each.
        """
        raise NotImplementedError

    @staticmethod
    def largest(values: Any) -> Any:
        """One where the largest along the last axis is, zero elsewhere."""
        raise NotImplementedError

    @staticmethod
    def repeated(number: int, step: Callable[[Any], Any], start: Any) -> Any:
        """A step that is taken so many times."""
        raise NotImplementedError

    @staticmethod
    def until_settled(most: int, step: Callable[[Any], tuple[Any, Any]], start: Any) -> Any:
        """A step that also says whether another is to follow, taken so many times at most."""
        raise NotImplementedError

    @staticmethod
    def differentiates() -> bool:
        """Whether derivatives of what is computed now may be asked for."""
        return True

    @staticmethod
    def diagonal(matrices: Any) -> Any:
        """Diagonals (..., n) of matrices (..., n, n)."""
        return matrices.diagonal(0, -2, -1)
