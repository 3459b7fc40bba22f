"""Observed distributions made linear at one position; see :mod:`ppl_ext.target.linearized`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, distributions
from torch.utils import _pytree as pytree

from ppl_ext.target.linearized import Outputs, Scale, moved_by, scale_of
from pyro_ext.density.layout import Data, Indices
from pyro_ext.density.log_density import LogDensity

#: Moves whose products with the Jacobian are taken at once.
MOVES = 16


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


_scale_of = partial(
    scale_of, host=distributions, simplex=Scale(_log, partial(torch.softmax, dim=-1))
)


def linearized(
    target: LogDensity,
    around: Float[Tensor, " D"],
    moves: Float[Tensor, "S D"],
    data: Data,
    indices: Indices,
) -> Callable[[int], dict[str, Any]]:
    """Observed distributions, by site, as a function of the number of a move.

    Each move (D,) away from a position (D,) takes one product of the Jacobian with it, by forward
    derivatives, some of them at once.
    """

    outputs = Outputs(target, data, indices, _scale_of)

    def slope(move: Tensor) -> dict[str, dict[str, Tensor]]:
        return torch.func.jvp(outputs.natural, (around,), (move,))[1]

    # Outside of the derivative, for what has none: counts, masks and the kinds of distributions.
    sites = outputs.at(around)
    values = {name: site.natural() for name, site in sites.items()}
    # A model without observations draws some to run on, which do not matter.
    slopes = torch.func.vmap(slope, randomness="different")
    kept: dict[int, dict[str, dict[str, Tensor]]] = {}

    def moved(number: int) -> dict[str, Any]:
        first = number - number % MOVES
        if first not in kept:
            kept.clear()
            kept[first] = slopes(moves[first : first + MOVES])
        along = pytree.tree_map(lambda slopes: slopes[number - first], kept[first])
        return moved_by(sites, values, along)

    return moved
