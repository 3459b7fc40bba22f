"""Bandwidth h of the radial kernels, by the rules that :mod:`ppl_ext.kernels` describes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from numpyro_ext.kernels.distances import centre, squared_distances
from numpyro_ext.kernels.metric import Coordinates
from ppl_ext.kernels import (
    check_bandwidth,
    check_bandwidth_shape,
    check_rule_for_products,
    full_middle,
    pair_middle,
)

Bandwidth: TypeAlias = str | float | Callable[[Array], Array | float]


class ScaledPairs(NamedTuple):
    """What the radial kernels need of the particles.

    Attributes
    ----------
    ratios : Array
        |z_i - z_j|^2 / h, shape (P, P); with a vector of bandwidths, the sum over
        coordinates of squared difference / h_d.
    bandwidth : Array
        h, a scalar or shape (D,).
    """

    ratios: Float[Array, "P P"]
    bandwidth: Array


def bandwidth(rule: Bandwidth, particles: Float[Array, "P D"]) -> Float[Array, ...]:
    """Bandwidth h that ``rule`` gives for ``particles`` of shape (P, D).

    Returns
    -------
    Array
        A scalar, or shape (D,) for ``"pyro"`` and for callables that return a vector. Units
        of a squared distance.
    """
    check_bandwidth(rule)
    if rule == "dimension":
        # Known without the distances, which take (P, P).
        return jnp.asarray(2.0 * particles.shape[1], particles.dtype)
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
        width = jnp.asarray(rule(centred), centred.dtype)
        check_bandwidth_shape(tuple(width.shape), centred.shape[1])
    else:
        width = jnp.asarray(rule, centred.dtype)
    if width.ndim == 0:
        squared = squared_distances(centred, products)
        width = _positive(width, squared)
        return ScaledPairs(squared / width, width)
    # Scaling the points before the product keeps the cancellation relative to the scaled
    # distances, however different the coordinates' units are.
    ratios = squared_distances(centred / jnp.sqrt(width))
    return ScaledPairs(ratios, width)


def _scalar_rule(rule: str, squared: Array) -> Array:
    """Named rules that give one bandwidth, from the (P, P) squared distances."""
    num = squared.shape[0]
    if num == 1:
        return jnp.ones((), squared.dtype)
    pairs = squared.reshape(-1)[_pair_indices(num)]
    if rule == "median":
        return _middle(pairs, pair_middle(num), squared=True) / math.log(num + 1)
    if rule == "blackjax":
        return _middle(pairs, pair_middle(num), squared=False) ** 2 / math.log(num)
    if rule == "dartml":
        return _middle(pairs, full_middle(num), squared=True) / math.log(num + 1)
    median = _middle(pairs, full_middle(num), squared=False)
    return median**2 / math.log(num) + jnp.finfo(squared.dtype).eps


def _coordinate_rule(centred: Array) -> Array:
    """Pyro's rule: one bandwidth for each coordinate, shape (D,)."""
    num, dim = centred.shape
    if num == 1:
        return jnp.ones(dim, centred.dtype)
    # The rule takes the lower of the two middle values of an even number of pairs.
    lower, _ = pair_middle(num)

    def one(coordinate: Array) -> Array:
        squared = (coordinate[:, None] - coordinate) ** 2
        median = order_statistic(squared.reshape(-1)[_pair_indices(num)], lower)
        return _positive(median / math.log(num + 1), squared)

    # One coordinate at a time: all of them at once would take (P, P, D).
    return lax.map(one, centred.T)


def _positive(width: Array, squared: Array) -> Array:
    """``width``, or a stand-in where it is too small to divide by."""
    smallest = 4.0 * jnp.finfo(width.dtype).tiny
    mean = squared.mean() / math.log(squared.shape[0] + 1)
    stand_in = jnp.where(mean > smallest, mean, 1.0)
    return jnp.where(width <= smallest, stand_in, width)


def order_statistic(values: Array, rank: int | Array) -> Array:
    """Value of the given rank (from 0, ascending) among non-negative floats, exactly.

    Bisection on the values' bit patterns, which are ordered as the floats themselves are: one
    counting pass for each bit. XLA's sort is more than ten times as slow on a CPU, and was the
    dearest part of an SVGD step.
    """
    integer = _INTEGERS[values.dtype.itemsize]
    # Adding zero turns -0.0, whose bit pattern is the smallest of all, into 0.0.
    bits = lax.bitcast_convert_type(values + 0.0, integer)

    def narrower(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = jnp.sum(bits <= middle) > rank
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    # From all patterns without a sign; bounds taken from the values would save a few passes but
    # nearly double the time to compile.
    bounds = jnp.asarray(0, integer), jnp.asarray(jnp.iinfo(integer).max, integer)
    low, _ = lax.fori_loop(0, jnp.iinfo(integer).bits - 1, narrower, bounds)
    return lax.bitcast_convert_type(low, values.dtype)


_INTEGERS = {2: jnp.int16, 4: jnp.int32, 8: jnp.int64}


def _pair_indices(num: int) -> np.ndarray:
    """Positions of the pairs i<j in a flattened (P, P) matrix."""
    rows, columns = np.triu_indices(num, k=1)
    return rows * num + columns


def _middle(pairs: Array, ranks: tuple[int | None, int | None], squared: bool) -> Array:
    """Mean of the squared distances (or of the distances) at two neighbouring ranks."""
    lower_rank, upper_rank = ranks
    if lower_rank is None:
        lower = jnp.zeros((), pairs.dtype)
    else:
        lower = order_statistic(pairs, lower_rank)
    if upper_rank == lower_rank:
        return lower if squared else jnp.sqrt(lower)
    if lower_rank is None or upper_rank is None:
        upper = pairs.min()
    else:
        ties = jnp.sum(pairs <= lower) > upper_rank
        upper = jnp.where(ties, lower, jnp.min(jnp.where(pairs > lower, pairs, jnp.inf)))
    if squared:
        return 0.5 * (lower + upper)
    return 0.5 * (jnp.sqrt(lower) + jnp.sqrt(upper))
