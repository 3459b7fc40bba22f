"""Whether scores are slopes of the log density, by its differences at a few draws.

A program that detaches what it computes, or is under ``torch.no_grad`` in part, has a density
without its gradient: particles and guides that follow the scores end somewhere else, and identities
of scores hold there all the same.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from ppl_ext.start.paths import Evaluate
from ppl_ext.start.search import WIDTH

#: Steps to either side, in standard deviations of the draws: a long one first, and a short one
#: where the density is bent too much for that.
STEPS = (0.1, 0.01)
#: Share of a difference that slopes may miss, at half of the places; what corners, such as those of
#: networks, and differences of that length explain.
SHARE = 0.5
#: Roundings of the log density that a difference may be off by.
ROUNDINGS = 16.0


def false_slopes(
    evaluate: Evaluate,
    z: Float[np.ndarray, "S D"],
    values: Float[np.ndarray, " S"],
    scores: Float[np.ndarray, "S D"],
    epsilon: float,
    generator: np.random.Generator,
) -> float | None:
    """How much of the differences slopes miss, in the middle; None where they may be slopes.

    Takes one piece of positions, and another where the first lets doubt arise.
    """
    some = np.flatnonzero(np.isfinite(values) & np.isfinite(scores).all(1))
    number = WIDTH // 2
    if len(some) < number:
        return None
    some = generator.permutation(some)[:number]
    z, values, scores = z[some], values[some], scores[some]
    moves = generator.normal(size=z.shape) * z.std(0)
    missed = None
    for step in STEPS:
        ends, _ = evaluate(np.concatenate([z + step * moves, z - step * moves]))
        found = 0.5 * (ends[:number] - ends[number:])
        expected = step * (scores * moves).sum(1)
        rounding = ROUNDINGS * epsilon * np.maximum(np.abs(values), 1.0)
        sizes = np.maximum(np.abs(found), np.abs(expected))
        told = np.isfinite(found) & (sizes > 4.0 * rounding)
        if told.sum() < number // 2:
            return missed if step != STEPS[0] else None
        shares = (np.abs(found - expected) - rounding)[told] / sizes[told]
        missed = float(np.median(shares))
        if missed <= SHARE:
            return None
    return missed
