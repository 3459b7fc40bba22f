"""Bandwidth rules, metrics and other options of Stein kernels, and the checks of them.

**Bandwidth** h of the radial kernels, which are functions of |x - y|^2 / h. The default is
``"median"``: h = median_{i<j} |x_i - x_j|^2 / log(P + 1), the mean of the two middle values when
the number of pairs is even. The other names reproduce the rules of other implementations, so that a
comparison can fix one rule for all:

- ``"pyro"``: for each coordinate, the (lower) median over pairs i<j of the squared
  difference, / log(P + 1); a vector of D bandwidths (``pyro.infer.RBFSteinKernel``).
- ``"numpyro"``: the median distance over the full matrix, zero diagonal included, squared,
  / log(P), plus machine epsilon (``numpyro.contrib.einstein.RBFKernel``).
- ``"blackjax"``: the median distance over pairs i<j, squared, / log(P) (``blackjax.svgd``).
- ``"dartml"``: the median squared distance over the full matrix, zero diagonal included,
  / log(P + 1) (the code that came with Liu and Wang 2016).

``"dimension"`` is h = 2 D: the mean squared distance of a pair where the coordinates have unit
variance, for kernels with a metric (Leviyev et al. 2022, https://arxiv.org/abs/2204.09039, equation
17). ``"wide"`` is h = 4 D, twice that. Neither needs a median.

A number is taken as h itself, and a callable maps the particles (P, D) to h, a scalar or a
vector of D bandwidths. Where a rule gives zero, because half of the pairs coincide, the mean
takes the place of the median, and one the place of a mean that is zero.

**Metrics** W = A'A, the identity in coordinates u = A (z - c). A kernel with metric W is a function
of (x - y)' W (x - y). The metric decides which displacements count as large, so with a metric that
follows the particles the kernel is the same in any units of the coordinates. It is a constant of a
step, like a bandwidth.

- None: the identity.
- ``"variance"``: W is diagonal, the inverse of the particles' variances. It needs O(P D), any
  number of particles, and is part of the default.
- ``"covariance"``: W is the inverse of the particles' covariance, for more particles than
  dimensions. It needs O(P D^2 + D^3).
- ``"curvature"``: W is the mean curvature of the log density at the particles (equation 17 of
  Leviyev et al. 2022, "A stochastic Stein variational Newton method",
  https://arxiv.org/abs/2204.09039), in engines that compute it, such as ``SVN``.
- an array: fixed weights, shape (D,), or a fixed positive definite matrix, shape (D, D).
- a callable from the particles (P, D) to such an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_number, described
from ppl_ext.target.on_host import as_float64

BANDWIDTH_RULES = ("median", "pyro", "numpyro", "blackjax", "dartml", "dimension", "wide")
#: Of the rules that look at the number of dimensions alone, the multiple of it.
MULTIPLES = {"dimension": 2.0, "wide": 4.0}
METRICS = ("variance", "covariance", "curvature")

#: Dimensions for each particle from which on the kernel for few particles is taken.
DIMENSIONS_PER_PARTICLE = 10


@dataclass(frozen=True, eq=False)
class ProductMetric:
    """A metric W given by its products alone, for matrices too large to be formed.

    Parameters
    ----------
    product : callable
        Maps vectors (n, D) to W times each, (n, D).
    """

    product: Callable[[Any], Any]


def check_bandwidth(rule: Any) -> None:
    """See that an option is a bandwidth: a name, a positive number, or a callable.

    Raises
    ------
    ArgumentError
        It is none of these.
    """
    if isinstance(rule, int | float) and not isinstance(rule, bool):
        check_number("a bandwidth", rule)
    elif rule not in BANDWIDTH_RULES if isinstance(rule, str) else not callable(rule):
        raise ArgumentError(
            f"Expected a bandwidth as a name among {BANDWIDTH_RULES}, a positive number, or a "
            f"callable of the particles, found {described(rule)}."
        )


def check_metric(metric: Any) -> None:
    """See that an option is a metric: a name, None, a callable, or an array of weights.

    Raises
    ------
    ArgumentError
        It is an unknown name, an array that is neither a vector of positive weights nor a positive
        definite matrix, or any other object.
    """
    if metric is None or callable(metric) or isinstance(metric, ProductMetric):
        return
    shape = getattr(metric, "shape", None)
    if shape is None:
        if not isinstance(metric, str) or metric not in METRICS:
            raise ArgumentError(
                f"Expected a metric among {METRICS}, None, an array of weights or a callable, "
                f"found {described(metric)}."
            )
        return
    if not (len(shape) == 1 or (len(shape) == 2 and shape[0] == shape[1])):
        raise ArgumentError(f"Expected a metric of shape (D,) or (D, D), found {tuple(shape)}.")
    try:
        values = as_float64(metric)
    except TypeError:
        # An array of a function that is being compiled has no values yet.
        return
    symmetric = values.ndim == 1 or np.allclose(values, values.T)
    least = values.min() if values.ndim == 1 else np.linalg.eigvalsh(values).min()
    if not (symmetric and least > 0):
        found = f"least weight or eigenvalue {least:g}" if symmetric else "no symmetric matrix"
        raise ArgumentError(
            "Expected a metric of positive weights or a symmetric positive definite matrix, found "
            f"{found}."
        )


def check_rule_for_products(rule: Any) -> None:
    """See that a bandwidth rule looks at distances alone, as a metric given by products needs.

    Raises
    ------
    ArgumentError
        It looks at coordinates.
    """
    if rule == "pyro" or callable(rule):
        raise ArgumentError(
            f"Expected a bandwidth rule of distances in the curvature's metric, found {rule!r}, "
            'which looks at coordinates. Use "dimension", "median" or a number.'
        )


def check_bandwidth_shape(shape: tuple[int, ...], dim: int) -> None:
    """See that a callable gave one bandwidth, or one for each of D coordinates.

    Raises
    ------
    ArgumentError
        It did not.
    """
    if shape not in ((), (dim,)):
        raise ArgumentError(
            f"Expected a bandwidth of shape () or ({dim},), found {shape}. Let the callable return "
            "one number, or one for each of the flat coordinates."
        )


def check_exponent(exponent: float) -> None:
    """See that an inverse multiquadric kernel's exponent lies between -1 and 0.

    Raises
    ------
    ArgumentError
        It does not.
    """
    if not -1.0 < exponent < 0.0:
        raise ArgumentError(
            f"Expected an exponent between -1 and 0, found {exponent!r}. The usual choice is -0.5."
        )


def check_factor(factor: float) -> None:
    """See that a kernel's factor is positive and finite.

    Raises
    ------
    ArgumentError
        It is not.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise ArgumentError(
            f"Expected a positive finite factor of a kernel, found {factor!r}. Only positive "
            "multiples are positive definite."
        )


def mixture_weights(number: int, weights: Sequence[float] | None) -> list[float]:
    """Weights of a mixture of ``number`` kernels, which sum to one; equal if there are none.

    Raises
    ------
    ArgumentError
        There are not as many weights as kernels, or one of them is not positive and finite.
    """
    weights = [1.0] * number if weights is None else list(weights)
    if len(weights) != number:
        raise ArgumentError(
            f"Expected one weight for each of {number} kernels, found {len(weights)}."
        )
    if not all(isinstance(weight, int | float) and 0 < weight < math.inf for weight in weights):
        raise ArgumentError(f"Expected positive finite weights of a mixture, found {weights}.")
    total = sum(weights)
    return [weight / total for weight in weights]


def are_few(number: int, dim: int) -> bool:
    """Whether P particles in D dimensions have the default kernel for few particles."""
    return DIMENSIONS_PER_PARTICLE * number <= dim


def are_many(number: int, dim: int) -> bool:
    """Whether P particles in D dimensions have the default kernel that sees pairs of coordinates.

    There are D^2 pairs, and more than a quarter as many particles are enough. One coordinate has
    none.
    """
    return dim > 1 and 4 * number > dim**2


def pair_middle(num: int) -> tuple[int, int]:
    """Ranks (from 0) of the two middle values of the pairs i<j of ``num`` particles."""
    pairs = num * (num - 1) // 2
    return (pairs - 1) // 2, pairs // 2


def full_middle(num: int) -> tuple[int | None, int | None]:
    """Ranks among the pairs of the full matrix's two middle values; None is the zero diagonal.

    Sorted, the full matrix is P zeros followed by every pair twice.
    """
    middles = (num * num - 1) // 2, num * num // 2
    lower, upper = (None if rank < num else (rank - num) // 2 for rank in middles)
    return lower, upper
