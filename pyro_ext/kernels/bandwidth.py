"""Bandwidth h of the radial kernels, by the rules that :mod:`ppl_ext.kernels` describes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.kernels import (
    check_bandwidth,
    check_bandwidth_shape,
    check_rule_for_products,
    full_middle,
    pair_middle,
)
from pyro_ext.kernels.distances import centre, squared_distances
from pyro_ext.kernels.metric import Coordinates

Bandwidth: TypeAlias = str | float | Callable[[Tensor], Tensor | float]


class ScaledPairs(NamedTuple):
    """What the radial kernels need of the particles.

    Attributes
    ----------
    ratios : Tensor
        |z_i - z_j|^2 / h, shape (P, P); with a vector of bandwidths, the sum over
        coordinates of squared difference / h_d.
    bandwidth : Tensor
        h, a scalar or shape (D,).
    """

    ratios: Float[Tensor, "P P"]
    bandwidth: Tensor


def bandwidth(rule: Bandwidth, particles: Float[Tensor, "P D"]) -> Float[Tensor, ...]:
    """Bandwidth h that ``rule`` gives for ``particles`` of shape (P, D).

    Returns
    -------
    Tensor
        A scalar, or shape (D,) for ``"pyro"`` and for callables that return a vector. Units
        of a squared distance.
    """
    check_bandwidth(rule)
    if rule == "dimension":
        # Known without the distances, which take (P, P).
        return particles.new_tensor(2.0 * particles.shape[1])
    # A callable sees what it is given here; distances are taken between centred points.
    points = particles if callable(rule) else centre(particles)
    return scaled_pairs(rule, Coordinates(points, None)).bandwidth


def scaled_pairs(rule: Bandwidth, frame: Coordinates) -> ScaledPairs:
    """Squared distances of all pairs in units of the bandwidth, and the bandwidth."""
    centred = frame.points
    products = None if frame.weighted is None else frame.inner_products()
    if rule == "dimension":
        rule = 2.0 * centred.shape[1]
    if products is not None:
        check_rule_for_products(rule)
    if isinstance(rule, str) and rule != "pyro":
        squared = squared_distances(centred, products)
        width = _positive(_scalar_rule(rule, squared), squared)
        return ScaledPairs(squared / width, width)
    if isinstance(rule, str):
        width = _coordinate_rule(centred)
    elif callable(rule):
        width = torch.as_tensor(rule(centred), dtype=centred.dtype, device=centred.device)
        check_bandwidth_shape(tuple(width.shape), centred.shape[1])
    else:
        width = torch.as_tensor(rule, dtype=centred.dtype, device=centred.device)
    if width.dim() == 0:
        squared = squared_distances(centred, products)
        width = _positive(width, squared)
        return ScaledPairs(squared / width, width)
    # Scaling the points before the product keeps the cancellation relative to the scaled
    # distances, however different the coordinates' units are.
    ratios = squared_distances(centred / width.sqrt())
    return ScaledPairs(ratios, width)


def _scalar_rule(rule: str, squared: Tensor) -> Tensor:
    """Named rules that give one bandwidth, from the (P, P) squared distances."""
    num = squared.shape[0]
    if num == 1:
        return squared.new_ones(())
    pairs = squared.reshape(-1).index_select(0, _pair_indices(num, squared.device))
    if rule == "median":
        return _middle(pairs, pair_middle(num), squared=True) / math.log(num + 1)
    if rule == "blackjax":
        return _middle(pairs, pair_middle(num), squared=False).square() / math.log(num)
    if rule == "dartml":
        return _middle(pairs, full_middle(num), squared=True) / math.log(num + 1)
    median = _middle(pairs, full_middle(num), squared=False)
    return median.square() / math.log(num) + torch.finfo(squared.dtype).eps


def _coordinate_rule(centred: Tensor) -> Tensor:
    """Pyro's rule: one bandwidth for each coordinate, shape (D,)."""
    num, dim = centred.shape
    if num == 1:
        return centred.new_ones(dim)
    indices = _pair_indices(num, centred.device)
    lower, _ = pair_middle(num)
    widths = []
    for coordinate in centred.unbind(dim=1):
        squared = (coordinate.unsqueeze(1) - coordinate).square()
        # The rule takes the lower of the two middle values of an even number of pairs.
        pairs = squared.reshape(-1).index_select(0, indices)
        median, _ = _order_statistics(pairs, (lower, lower))
        widths.append(_positive(median / math.log(num + 1), squared))
    return torch.stack(widths)


def _positive(width: Tensor, squared: Tensor) -> Tensor:
    """``width``, or a stand-in where it is too small to divide by."""
    smallest = 4.0 * torch.finfo(width.dtype).tiny
    mean = squared.mean() / math.log(squared.shape[0] + 1)
    stand_in = torch.where(mean > smallest, mean, torch.ones_like(mean))
    return torch.where(width <= smallest, stand_in, width)


@functools.lru_cache(maxsize=16)
def _pair_indices(num: int, device: torch.device) -> Tensor:
    """Positions of the pairs i<j in a flattened (P, P) matrix."""
    rows, columns = torch.triu_indices(num, num, offset=1, device=device)
    return rows * num + columns


def _middle(pairs: Tensor, ranks: tuple[int | None, int | None], squared: bool) -> Tensor:
    """Mean of the squared distances (or of the distances) at two neighbouring ranks."""
    lower, upper = _order_statistics(pairs, ranks)
    if not squared:
        lower, upper = lower.sqrt(), upper.sqrt()
    return 0.5 * (lower + upper)


def _order_statistics(pairs: Tensor, ranks: tuple[int | None, int | None]) -> tuple[Tensor, Tensor]:
    """Values of two equal or neighbouring ranks (from 0, ascending); None stands for zero.

    Selection, because a sort would be the dearest part of a step; on a CPU by NumPy's, which is
    vectorized and several times as fast as torch's.
    """
    lower_rank, upper_rank = ranks
    if upper_rank is None:
        return pairs.new_zeros(()), pairs.new_zeros(())
    if lower_rank is None:
        return pairs.new_zeros(()), pairs.min()
    if pairs.device.type == "cpu":
        values = np.partition(pairs.detach().numpy(), lower_rank)
        lower = pairs.new_tensor(values[lower_rank])
        if upper_rank == lower_rank:
            return lower, lower
        # Everything behind the selected value is at least as large.
        return lower, pairs.new_tensor(values[upper_rank:].min())
    return pairs.kthvalue(lower_rank + 1).values, pairs.kthvalue(upper_rank + 1).values
