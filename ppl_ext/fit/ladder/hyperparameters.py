"""Which coordinates are hyperparameters: given them a density is nearer to a Normal.

Scales of sites are, where they are known. Others are found by how curvatures change along them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ppl_ext.fit.ladder.given_hyperparameters import has_room
from ppl_ext.start.local_normal import step_of
from ppl_ext.start.paths import Evaluate
from ppl_ext.start.start import Mode

#: Nats that a Normal loses by a coordinate, where that is one of the hyperparameters: the first
#: beside scales, and further ones. And nats by all others together, where none more has room,
#: beyond which there are too few.
LOSES, LITTLE, MOST_LEFT = 0.03, 0.01, 0.5
#: Random directions times coordinates by which these are told, at least.
DIRECTIONS = 12
#: Standard deviations by which scales are larger where that is looked at once more.
LARGER = 1.5


@np.errstate(all="ignore")
def hyperparameters(
    evaluate: Evaluate,
    mode: Mode,
    scales: Sequence[int],
    entries: Float[np.ndarray, " D"],
    epsilon: float,
    generator: np.random.Generator,
) -> list[int]:
    """Coordinates given which a density may be Normal: the scales, and others, the costliest first.

    Where a coordinate moves by one standard deviation, and others with it as the Normal has it, the
    precision of these changes by some E times itself, which costs a Normal tr(E²) / 4 nats where it
    is not followed; and the coordinate's mean is tr(E) / 2 standard deviations from the mode. Both
    are told by few random directions. Where sites have scales, such are the scale of noise, or a
    correlation; where none is known, scales of effects that a program has in non-centred form, and
    skew or curved coordinates.

    Parameters
    ----------
    evaluate : callable
        Log densities (P,) and scores (P, D).
    mode : Mode
    scales : sequence of int
        Coordinates that are hyperparameters in any case; none where none is known.
    entries : array (D,)
        1 for coordinates of the sites whose scales these are, 0 for others.
    epsilon : float
        Relative precision of scores.
    generator : numpy.random.Generator

    Returns
    -------
    list of int
        The scales alone where a Normal loses little beside them. Where none is known it is empty
        then, and where a Normal loses much whatever there is room for.

    Raises
    ------
    SpentError
        The evaluations ended.
    """
    dim, chosen = len(mode.mean), list(scales)
    whole = mode.root @ mode.root.T
    precision, centers = np.linalg.inv(whole), [mode.mean]
    if chosen:
        # Also where scales are larger: at a mode where these are small, data tell little of
        # entries.
        follow = np.linalg.solve(whole[np.ix_(chosen, chosen)], whole[chosen])
        centers.append(mode.mean + LARGER * mode.deviations[chosen] @ follow)
    step = step_of(epsilon)
    while True:
        rest = np.setdiff1d(np.arange(dim), chosen)
        covariance = np.linalg.inv(precision[np.ix_(rest, rest)])
        root = np.linalg.cholesky(covariance)
        deviations = np.sqrt(np.diag(covariance))
        is_open = entries[rest] == 0.0
        if not is_open.any():
            return sorted(chosen)
        moves = np.zeros((is_open.sum(), dim))
        moves[:, rest] = (covariance / deviations[:, None])[is_open]
        number = math.ceil(DIRECTIONS / len(rest))
        signs = generator.choice((-1.0, 1.0), (number, len(rest)))
        directions = np.zeros((number, dim))
        directions[:, rest] = step * signs @ root.T
        points = [
            center + side * moves + turn * direction
            for center, side, direction, turn in itertools.product(
                centers, (1, -1), directions, (1, -1)
            )
        ]
        _, scores = evaluate(np.concatenate(points))
        scores = scores.reshape(-1, 2, number, 2, len(moves), dim)
        curved = (scores[..., 1, :, :] - scores[..., 0, :, :]) / (2.0 * step)
        change = 0.5 * (curved[:, 0] - curved[:, 1])[..., rest] @ root
        traces = np.einsum("cnkr,nr->ck", change, signs) / number
        both = 0.25 * np.square(change).sum(-1).mean(1) + 0.5 * np.square(0.5 * traces)
        costs = np.nan_to_num(both, nan=0.0, posinf=0.0).max(0)
        if costs.max() < (LOSES if len(chosen) == len(scales) else LITTLE):
            return sorted(chosen)
        if not has_room(len(chosen) + 1, dim):
            return sorted(chosen) if scales or costs.sum() < MOST_LEFT else []
        chosen.append(int(rest[is_open][costs.argmax()]))
