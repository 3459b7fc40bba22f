"""Mirrored pairs of draws, and running averages over them.

The method is told in :mod:`ppl_ext.regression.pairs`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ppl_ext.regression.pairs import FORGETTING


class Count(NamedTuple):
    """How much was seen.

    ``squared_weights`` is the sum of the squared weights of the pairs in the running averages.
    """

    num_updates: int = 0
    num_pairs: int = 0
    squared_weights: float = 0.0

    @property
    def worth(self) -> float:
        """Number n of pairs that the averages are worth."""
        return 1.0 / self.squared_weights


def next_weight(count: Count, decay: float, forgetting: float = 1.0) -> float:
    """Weight of the next iteration in a running average, times ``forgetting`` and at most one."""
    return min(forgetting * (count.num_updates + 1.0) ** -decay, 1.0)


def next_mean_weight(count: Count, decay: float, total: int) -> float:
    """Weight of the next iteration in the averages that give the guide's mean.

    ``forgetting`` is ``FORGETTING`` at first and falls linearly to one over a run of ``total``
    iterations, if that is known (not 0): a mean that is still on its way must forget where it came
    from, as the target is no Normal there, and one that has arrived should average.
    """
    left = max(1.0 - count.num_updates / total, 0.0) if total > 0 else 1.0
    return next_weight(count, decay, 1.0 + (FORGETTING - 1.0) * left)


def advanced(count: Count, pairs: int, weight: float) -> Count:
    """The count after one iteration more, of this weight, which its pairs share."""
    squared = (1.0 - weight) ** 2 * count.squared_weights + weight**2 / pairs
    return Count(count.num_updates + 1, count.num_pairs + pairs, squared)


def averaged(old: Any, new: Any, weight: float) -> Any:
    """Running averages, a tensor or nested tuples of them, with the latest values ``new``."""
    if isinstance(old, Tensor):
        return torch.lerp(old, new, weight)
    averages = [averaged(*pair, weight) for pair in zip(old, new, strict=True)]
    return type(old)(*averages) if hasattr(old, "_fields") else type(old)(averages)


def antithetic(theta: Tensor, mean: Tensor) -> Tensor:
    """Draws (K, D) and their mirror images about the mean, (2 K, D): row k and row K + k pair."""
    return torch.cat([theta, 2.0 * mean - theta])


def halves(values: Tensor) -> Tensor:
    """Half the difference (K, D) of the two rows of each pair in (2 K, D)."""
    first, second = values.chunk(2)
    return (first - second).mul_(0.5)
