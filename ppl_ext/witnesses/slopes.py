"""Whether scores are slopes of the log density, by its differences at a few draws.

A program that detaches what it computes, or is under ``torch.no_grad`` in part, has a density
without its gradient: particles and guides that follow the scores end somewhere else, and identities
of scores hold there all the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ppl_ext.errors import ModelCheckError
from ppl_ext.start.paths import Evaluate
from ppl_ext.start.search import WIDTH, near_zero

#: What is said of a density whose scores are not its slopes: where it was looked at, by how much
#: they miss, and what follows.
NO_SLOPES = (
    "Scores are not slopes of the log density, by its differences at {where}: they miss "
    "{missed:.0%} of them. Where the program detaches what it computes of latent sites, by detach, "
    "torch.no_grad or stop_gradient, {so}."
)

#: Steps to either side, in standard deviations of the draws: a long one first, and a short one
#: where the density is bent too much for that.
STEPS = (0.1, 0.01)
#: Share of a difference that slopes may miss, at half of the places; what corners, such as those of
#: networks, and differences of that length explain.
SHARE = 0.5
#: The same where searches start, near which no density is narrow: steps are short there. Of 51
#: right programs of the tests and of posteriordb, and of networks of up to 10,000 weights, none
#: misses 0.01 there.
NEAR_STEPS, NEAR_SHARE = (1e-2, 5e-3, 1e-3, 5e-4, 1e-4), 0.05
#: Share by which differences of two such steps may differ. Of a smooth density it is about the
#: square of the step; a change point adds about one over the root of the rows that a step passes.
STEADY = 1e-3
#: Roundings of the log density that a difference may be off by.
ROUNDINGS = 16.0


def false_slopes(
    evaluate: Evaluate,
    z: Float[np.ndarray, "S D"],
    values: Float[np.ndarray, " S"],
    scores: Float[np.ndarray, "S D"],
    epsilon: float,
    generator: np.random.Generator,
    steps: Sequence[float] = STEPS,
    share: float = SHARE,
    steady: float = math.inf,
) -> float | None:
    """How much of the differences slopes miss, in the middle; None where they may be slopes.

    Takes one piece of positions, and another where the one before lets doubt arise. Where they
    have to be ``steady``, differences tell only where those of two steps in turn agree to that
    share, a step's length taken off: what jumps and what is bent adds to them depends on the step,
    what is detached does not.
    """
    some = np.flatnonzero(np.isfinite(values) & np.isfinite(scores).all(1))
    number = WIDTH // 2
    if len(some) < number:
        return None
    some = generator.permutation(some)[:number]
    z, values, scores = z[some], values[some], scores[some]
    moves = generator.normal(size=z.shape) * z.std(0)
    missed, before = None, None
    for step in steps:
        ends, _ = evaluate(np.concatenate([z + step * moves, z - step * moves]))
        # A central difference, of an error of third order in the step.
        found = 0.5 * (ends[:number] - ends[number:])
        expected = step * (scores * moves).sum(1)
        rounding = ROUNDINGS * epsilon * np.maximum(np.abs(values), 1.0)
        sizes = np.maximum(np.abs(found), np.abs(expected))
        # What rounding explains is taken off: it must not explain what is let pass.
        told = np.isfinite(found) & (sizes > 2.0 / share * rounding)
        if told.sum() < number // 2:
            return missed
        shares = (np.abs(found - expected) - rounding)[told] / sizes[told]
        missed = float(np.median(shares))
        if missed <= share:
            return None
        if steady == math.inf:
            continue
        quotient = found / step
        if before is not None:
            off = np.abs(quotient - before) - rounding / step
            if (off <= steady * np.abs(quotient))[told].all():
                return missed
        missed, before = None, quotient
    return missed


@np.errstate(all="ignore")
def check_slopes(evaluate: Evaluate, dim: int, epsilon: float) -> None:
    """See that scores of a program are slopes, at random places near 0, where searches start.

    Takes two pieces of positions, and up to four more where the first let doubt arise.

    Raises
    ------
    ModelCheckError
        They are not.
    """
    generator = np.random.default_rng(0)
    z = near_zero(generator, WIDTH, dim)
    given = z, *evaluate(z), epsilon, generator
    missed = false_slopes(evaluate, *given, NEAR_STEPS, NEAR_SHARE, STEADY)
    if missed is not None:
        so = "no search and no chain follows the density. Let their gradients through"
        raise ModelCheckError(NO_SLOPES.format(where="random places", missed=missed, so=so))


__all__ = ["NO_SLOPES", "check_slopes", "false_slopes"]
