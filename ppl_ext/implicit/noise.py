"""Noise that samplers begin with: Normals near modes, as a start has them.

It is made of standard Normal numbers. How many Normals it has room for does not depend on the
start, so that saved states of all starts have one form: those that are not needed have weight zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.start.search import MOST_FULL
from ppl_ext.start.start import Start

#: Normals that there is room for, and positions by whose moments there is one without a start.
MOST_MODES, POSITIONS = 8, 64

#: Weights (K,), means (K, D), and factors of covariances (K, D, D), or in many dimensions (K, D).
Normals = dict[str, Any]


def normals_of_start(start: Start, spread: float) -> dict[str, np.ndarray]:
    """The Normals of a start, as :data:`Normals` of K = ``MOST_MODES`` components.

    Standard deviations are multiplied by ``spread``. Components without a mode have weight 0. In
    more than ``MOST_FULL`` dimensions factors are standard deviations (K, D).
    """
    dim = len(start.mean)
    modes = start.modes[:MOST_MODES]
    spare = MOST_MODES - len(modes)
    weights = start.weights[: len(modes)]
    full = dim <= MOST_FULL
    factors = [spread * (mode.root if full else mode.deviations) for mode in modes]
    return {
        "weights": np.concatenate([weights / weights.sum(), np.zeros(spare)]),
        "means": np.stack([mode.mean for mode in modes] + [start.mean] * spare),
        "factors": np.stack(factors + factors[:1] * spare),
    }


def normals_of_positions(xp: Any, positions: Float[Any, "n D"], spread: float) -> Normals:
    """One Normal with the mean and the standard deviations of positions (n, D)."""
    mean, dim = positions.mean(0), positions.shape[1]
    deviations = spread * xp.sqrt(((positions - mean) ** 2).mean(0))
    factor = xp.diag(deviations) if dim <= MOST_FULL else deviations
    ones = xp.ones_like(positions[:1, 0])
    weights = xp.concatenate([ones, xp.zeros_like(positions[: MOST_MODES - 1, 0])])
    return {
        "weights": weights,
        "means": xp.stack([mean] * MOST_MODES),
        "factors": xp.stack([factor] * MOST_MODES),
    }


def moments_of(xp: Any, normals: Normals) -> tuple[Float[Any, " D"], Float[Any, " D"]]:
    """Mean (D,) and standard deviations (D,) of the mixture."""
    weights, means, factors = normals["weights"], normals["means"], normals["factors"]
    own = factors**2 if factors.ndim == 2 else (factors**2).sum(-1)
    mean = weights @ means
    return mean, xp.sqrt(weights @ (own + (means - mean) ** 2))


def drawn(
    f: Any, normals: Normals, which: Float[Any, " S"], noise: Float[Any, "S D"]
) -> Float[Any, "S D"]:
    """Draws (S, D) of the mixture from standard Normal numbers.

    Parameters
    ----------
    f : ArrayFunctions
    normals : Normals
    which : array (S,)
        By which components are chosen.
    noise : array (S, D)
    """
    ends = f.xp.cumsum(normals["weights"], 0)
    uniform = f.ndtr(which)
    found, before = f.xp.zeros_like(noise), 0.0 * uniform
    factors = normals["factors"]
    for k in range(MOST_MODES):
        last = k == MOST_MODES - 1
        # The last end counts as one, whatever rounding makes of the sum of the weights.
        below = f.xp.ones_like(uniform) if last else f.as_array(uniform < ends[k], uniform)
        moved = noise * factors[k] if factors.ndim == 2 else noise @ factors[k].T
        # A sum over all components, of which one has the factor 1, in place of indices: shapes do
        # not depend on what was drawn.
        found = found + (below - before)[:, None] * (normals["means"][k] + moved)
        before = below
    return found
