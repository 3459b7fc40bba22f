"""Bandwidth h of the radial kernels, by the rules that :mod:`ppl_ext.kernels.rules` describes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from jaxtyping import Float

from ppl_ext.kernels import rules
from ppl_ext.kernels.arrays import KernelArrays, centre
from ppl_ext.kernels.coordinates import Coordinates


class ScaledPairs(NamedTuple):
    """What the radial kernels need of the particles.

    Attributes
    ----------
    ratios : array
        |z_i - z_j|^2 / h, shape (P, P); with a vector of bandwidths, the sum over
        coordinates of squared difference / h_d.
    bandwidth : array
        h, a scalar or shape (D,).
    """

    ratios: Float[Any, "P P"]
    bandwidth: Any


def bandwidth(arrays: KernelArrays, rule: Any, particles: Float[Any, "P D"]) -> Float[Any, " ..."]:
    """Bandwidth h that ``rule`` gives for ``particles`` of shape (P, D).

    Returns
    -------
    array
        A scalar, or shape (D,) for ``"pyro"`` and for callables that return a vector. Units
        of a squared distance.
    """
    rules.check_bandwidth(rule)
    if isinstance(rule, str) and rule in rules.MULTIPLES:
        # Known without the distances, which take (P, P).
        return arrays.as_array(rules.MULTIPLES[rule] * arrays.num_coordinates(particles), particles)
    # A callable sees what it is given here; distances are taken between centred points.
    points = particles if callable(rule) else centre(particles)
    return scaled_pairs(rule, Coordinates(arrays, points)).bandwidth


def scaled_pairs(rule: Any, frame: Coordinates) -> ScaledPairs:
    """Squared distances of all pairs in units of the bandwidth, and the bandwidth."""
    arrays, centred = frame.arrays, frame.points
    products = None if frame.weighted is None else frame.inner_products()
    if isinstance(rule, str) and rule in rules.MULTIPLES:
        rule = rules.MULTIPLES[rule] * arrays.num_coordinates(centred)
    if products is not None:
        rules.check_rule_for_products(rule)
    if isinstance(rule, str) and rule != "pyro":
        squared, num = arrays.squared_distances(centred, products), len(centred)
        # One particle has no pairs, and its ratio is 0 at any bandwidth.
        if num == 1:
            return ScaledPairs(squared, arrays.as_array(1.0, squared))
        # The two middle values of the pairs, or of the full matrix with its diagonal.
        middle = rules.pair_middle if rule in ("median", "blackjax") else rules.full_middle
        values = arrays.order_statistics(arrays.of_pairs(squared), middle(num))
        width = _positive(arrays, _from_middle(arrays, rule, num, *values), squared)
        return ScaledPairs(squared / width, width)
    if isinstance(rule, str):
        width = _coordinate_rule(arrays, centred)
    elif callable(rule):
        width = arrays.as_array(rule(centred), centred)
        rules.check_bandwidth_shape(tuple(width.shape), centred.shape[1])
    else:
        width = arrays.as_array(rule, centred)
    # A vector of bandwidths is a metric of its own, and is left to the points below.
    if width.ndim == 0:
        squared = arrays.squared_distances(centred, products)
        # A number stays as it is, unless this type of numbers takes it for zero.
        smallest = 4.0 * arrays.functions.finfo(width.dtype).tiny
        if not isinstance(rule, int | float) or rule <= smallest:
            width = _positive(arrays, width, squared)
        return ScaledPairs(squared / width, width)
    # Scaling the points before the product keeps the cancellation relative to the scaled
    # distances, however different the coordinates' units are.
    ratios = arrays.squared_distances(centred / arrays.functions.sqrt(width))
    return ScaledPairs(ratios, width)


def _from_middle(arrays: KernelArrays, rule: str, num: int, lower: Any, upper: Any) -> Any:
    """A bandwidth by name, from the two middle squared distances of ``num`` particles."""
    if rule in ("median", "dartml"):
        return 0.5 * (lower + upper) / math.log(num + 1)
    root = arrays.functions.sqrt
    width = (0.5 * (root(lower) + root(upper))) ** 2 / math.log(num)
    return width if rule == "blackjax" else width + arrays.functions.finfo(width.dtype).eps


def _coordinate_rule(arrays: KernelArrays, centred: Float[Any, "P D"]) -> Float[Any, " D"]:
    """Pyro's rule: one bandwidth for each coordinate, shape (D,)."""
    num = len(centred)
    if num == 1:
        return arrays.functions.ones_like(centred[0])
    # The rule takes the lower of the two middle values of an even number of pairs.
    lower, _ = rules.pair_middle(num)

    def one(coordinate: Float[Any, " P"]) -> Any:
        squared = (coordinate[:, None] - coordinate) ** 2
        median, _ = arrays.order_statistics(arrays.of_pairs(squared), (lower, lower))
        return _positive(arrays, median / math.log(num + 1), squared)

    return arrays.by_coordinate(one, centred)


def _positive(arrays: KernelArrays, width: Any, squared: Float[Any, "P P"]) -> Any:
    """``width``, or a stand-in where it is too small to divide by."""
    functions = arrays.functions
    # Four times the least normal number: below it a device may take the bandwidth for zero, or a
    # division by it may overflow where the ratio is not 0.
    smallest = 4.0 * functions.finfo(width.dtype).tiny
    mean = squared.mean() / math.log(squared.shape[0] + 1)
    stand_in = functions.where(mean > smallest, mean, 1.0)
    return functions.where(width <= smallest, stand_in, width)
