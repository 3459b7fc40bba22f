r"""How far draws are from a target that is known by its scores, as the objective of a sampler.

With inverse multiquadric kernels $k_c(x, y) = c\,(c^2 + |x - y|^2)^{-1/2}$ of several lengths
$c$ and the Stein kernel $k_0$ of :mod:`ppl_ext.diagnostics.stein_discrepancy`, the U-statistic

.. math:: \frac{1}{S (S - 1)} \sum_{i \ne j} k_0(x_i, x_j)

of independent draws is without bias for the squared kernelised Stein discrepancy of the
distribution that they come from. So is its gradient through the draws for the gradient of the
discrepancy, in which pairs of a draw with itself would pull draws to where scores are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float


def stein_discrepancy(
    f: Any,
    positions: Float[Any, "S D"],
    scores: Float[Any, "S D"],
    scales: Float[Any, " D"],
    lengths: Sequence[float],
) -> Float[Any, ""]:
    """The U-statistic of the squared discrepancy, mean over kernels; differentiable.

    Parameters
    ----------
    f : ArrayFunctions
    positions, scores : arrays (S, D)
        Independent draws, and the target's scores at them.
    scales : array (D,)
        Units of the coordinates.
    lengths : sequence of float
        Lengths c of the kernels, in these units.
    """
    number, dim = positions.shape
    # Distances are taken after centring: |x|^2 + |y|^2 - 2 x.y cancels far from the origin.
    # The mean as a constant, since distances do not depend on it.
    x = (positions - f.detached(positions.mean(0))) / scales
    s = scores * scales
    square = (x**2).sum(-1)
    squared = f.xp.clip(square[:, None] + square - 2.0 * (x @ x.T), min=0.0)
    own = (x * s).sum(-1)
    across = s @ x.T
    # (s_x - s_y).(x - y)
    differences = own[:, None] + own - across - across.T
    products = s @ s.T
    total = 0.0
    for length in lengths:
        base = length**2 + squared
        kernel = length / f.xp.sqrt(base)
        slope = kernel / base
        # k_0 = k s_x.s_y + c (c^2 + r^2)^(-3/2) ((s_x - s_y).(x - y) + D) - 3 c (c^2 + r^2)^(-5/2)
        # r^2.
        total = total + kernel * products + slope * (differences + dim)
        total = total - 3.0 * slope / base * squared
    others = 1.0 - f.identity(number, positions)
    return (total * others).sum() / (len(lengths) * number * (number - 1))
