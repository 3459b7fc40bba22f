"""Mirrored pairs of draws, and running averages over them.

Draws come in antithetic pairs, m + d and m - d, evaluated on the same minibatch. Half the
difference of the two scores, e = (score(m + d) - score(m - d)) / 2, has the noise that the pair
shares removed, so a covariance is learnt from the pairs (d, e) alone, and the mean from the pairs'
centres.

Running averages have weights r_t = (t + 1)^-decay; n, the number of pairs that they are worth, is
one over the sum of the pairs' squared weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Float

from ppl_ext.scalars import as_number, at_least, at_most, chosen

#: How much more the latest pairs count where averages have to forget faster.
FORGETTING = 3.0


class Count(NamedTuple):
    """How much was seen: numbers, or arrays without axes.

    ``squared_weights`` is the sum of the squared weights of the pairs in the running averages.
    """

    num_updates: Any = 0
    num_pairs: Any = 0
    squared_weights: Any = 0.0

    @property
    def worth(self) -> Any:
        """Number n of pairs that the averages are worth."""
        return 1.0 / self.squared_weights


def next_weight(count: Count, decay: float, forgetting: Any = 1.0) -> Any:
    """Weight of the next iteration in a running average, times ``forgetting`` and at most one."""
    # Counted from 1, so that the first weight is 1 and nothing stays of the zeros at the start.
    power = as_number(count.num_updates + 1, count.squared_weights) ** -decay
    return at_most(forgetting * power, 1.0)


def next_mean_weight(count: Count, decay: float, total: Any) -> Any:
    """Weight of the next iteration in the averages that give the guide's mean.

    ``forgetting`` is ``FORGETTING`` at first and falls linearly to one over a run of ``total``
    iterations, if that is known (not 0): a mean that is still on its way must forget where it came
    from, as the target is no Normal there, and one that has arrived should average.
    """
    # Divided as numbers of the state's type: JAX would divide integers in float32.
    progress = as_number(count.num_updates, count.squared_weights) / at_least(total, 1)
    left = chosen(total > 0, 1.0 - progress, 1.0)
    return next_weight(count, decay, 1.0 + (FORGETTING - 1.0) * at_least(left, 0.0))


def advanced(count: Count, pairs: int, weight: Any) -> Count:
    """The count after one iteration more, of this weight, which its pairs share."""
    # As of any weighted sum: all earlier weights shrink by 1 - weight, and ``pairs`` new ones have
    # weight / pairs each.
    squared = (1.0 - weight) ** 2 * count.squared_weights + weight**2 / pairs
    return Count(count.num_updates + 1, count.num_pairs + pairs, squared)


def averaged(old: Any, new: Any, weight: Any) -> Any:
    """Running averages, an array or nested tuples of them, with the latest values ``new``."""
    if isinstance(old, tuple):
        averages = [averaged(*pair, weight) for pair in zip(old, new, strict=True)]
        return type(old)(*averages) if hasattr(old, "_fields") else tuple(averages)
    # Some arrays have a method that goes through memory once.
    return old.lerp(new, weight) if hasattr(old, "lerp") else old + weight * (new - old)


def mean_of(rows: Float[Any, "S D"]) -> Float[Any, " D"]:
    """Mean (D,) of rows (S, D): NumPy's own takes longer than that of a few rows."""
    return rows.sum(0) / len(rows)


def halves(values: Float[Any, "S D"]) -> Float[Any, "K D"]:
    """Half the difference (K, D) of the two rows of each pair in (2 K, D)."""
    number = len(values) // 2
    difference = values[:number] - values[number:]
    difference *= 0.5
    return difference
