"""Whether rows that a model computes one by one are those that it computes together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ppl_ext.target.on_host import as_float64


class Alone(NamedTuple):
    """A site in the model of one row at a time.

    Parameters
    ----------
    batch : tuple of int
        Shape of the batch of one row.
    parameters : dict of str to array
        Those of each row, with one more axis, the first.
    weights : array
        Factors on the elements of each row, likewise.
    """

    batch: tuple[int, ...]
    parameters: Mapping[str, Any]
    weights: Float[Any, "R ..."]


def apart(
    together: Mapping[str, Any], alone: Mapping[str, Alone], scaled_up: bool, epsilon: float
) -> frozenset[str]:
    """Sites whose rows alone are those of the batch, in parameters and in weights.

    Parameters
    ----------
    together : dict of str to Output
        The sites of all rows.
    scaled_up : bool
        Whether weights of a row alone stand for those of all rows.
    epsilon : float
        Machine epsilon of the parameters.
    """
    return frozenset(
        name
        for name, output in together.items()
        if name in alone
        and _is_side_by_side(output, alone[name], epsilon)
        and _same_weight(output, alone[name], scaled_up)
    )


def _same_weight(together: Any, alone: Alone, scaled_up: bool) -> bool:
    weights = as_float64(alone.weights)
    count = len(weights)
    # The axis of the rows is the one that is shorter in the model of one row.
    axes = [axis for axis, size in enumerate(alone.batch) if size != together.batch[axis]]
    joined = np.concatenate(list(weights), axes[0] if axes else 0) / (count if scaled_up else 1)
    return bool(np.allclose(joined, as_float64(together.weight), rtol=1e-5))


def _is_side_by_side(together: Any, alone: Alone, epsilon: float) -> bool:
    """Whether the parameters of single rows, along one axis, are those of the batch."""
    wanted, shape, count = together.batch, alone.batch, len(alone.weights)
    if len(shape) != len(wanted):
        return False
    axes = [axis for axis, (one, all_) in enumerate(zip(shape, wanted, strict=True)) if one != all_]
    # One row looks the same alone and together, wherever its axis is.
    if count == 1:
        return not axes
    if len(axes) != 1 or shape[axes[0]] != 1 or wanted[axes[0]] != count:
        return False

    def agree(rows: np.ndarray, other: np.ndarray) -> bool:
        one = np.concatenate(list(rows), axes[0])
        # Relative to the largest: sums that nearly cancel are known no better than their terms.
        size = 1.0 + np.abs(other).max(initial=0.0)
        return one.shape == other.shape and bool(np.abs(one - other).max() <= 1e3 * epsilon * size)

    return all(
        # Some parameters are flags.
        agree(as_float64(alone.parameters[name]), as_float64(value))
        for name, value in together.parameters.items()
    )
