"""The Normal that has the curvature of a log density at a point, from differences of scores."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from ppl_ext.start.paths import Evaluate, Vector

Matrix = Float[np.ndarray, "D D"]

#: Curvatures in the coordinates of the last estimate that are near enough to one, and how often
#: the estimate is made again where they are not: differences over a step that is too long or too
#: short for a direction tell little.
NEAR, AGAIN = (0.04, 25.0), 4
#: Least curvature, in the coordinates of the last estimate, that an estimate believes: a direction
#: without any becomes this much wider, and is looked at again.
FLAT = 1e-3


def step_of(epsilon: float) -> float:
    """Length of a difference, in standard deviations, for a relative precision of scores.

    Central differences are wrong by the square of the step, and by rounding over the step.
    """
    return float(np.clip(20.0 * np.cbrt(epsilon), 1e-3, 0.1))


def whitened_curvature(
    evaluate: Evaluate, point: Vector, factor: Matrix, step: float
) -> Matrix | None:
    """Minus the Hessian in coordinates where ``factor`` is the root of a covariance, or None.

    None where a score is not finite. Costs 2 D evaluations.
    """
    # Rows are the columns of the factor: a step along each standard coordinate.
    moves = step * factor.T
    _, scores = evaluate(np.concatenate([point + moves, point - moves]))
    dim = len(point)
    curvature = (scores[dim:] - scores[:dim]) @ factor / (2.0 * step)
    if not np.isfinite(curvature).all():
        return None
    return 0.5 * (curvature + curvature.T)


def lower_factor(root: Float[np.ndarray, "D K"]) -> Matrix:
    """The lower Cholesky factor (D, D) of the covariance of which another root (D, K) is given.

    By QR, which keeps the digits that the product of roots would lose.
    """
    upper = np.linalg.qr(root.T).R
    found: Matrix = upper.T * np.where(np.diag(upper) < 0.0, -1.0, 1.0)
    return found


def local_factor(
    evaluate: Evaluate, point: Vector, factor: Matrix, epsilon: float
) -> Matrix | None:
    """Lower Cholesky factor (D, D) of the inverse of minus the Hessian at a point, or None.

    Eigenvalues of minus the Hessian count by their absolute values. In coordinates whitened by the
    last estimate they are at least ``FLAT``, since differences of scores cannot tell smaller ones
    from 0; nothing else bounds a standard deviation. None where scores near the point are not
    finite, or so steep that a standard deviation is rounded to 0.

    Parameters
    ----------
    evaluate : callable
    point : array (D,)
    factor : array (D, D)
        First guess of the result. It is corrected in up to ``AGAIN`` rounds.
    epsilon : float
        Relative precision of scores.
    """
    step = step_of(epsilon)
    for _ in range(AGAIN):
        curvature = whitened_curvature(evaluate, point, factor, step)
        if curvature is None:
            # Scores around are not finite: the next differences are shorter.
            factor = 0.1 * factor
            continue
        values, vectors = np.linalg.eigh(curvature)
        sizes = np.maximum(np.abs(values), FLAT)
        # The factor of a root of the covariance, since of the covariance itself rounding leaves
        # nothing of the narrow directions.
        factor = lower_factor(factor @ (vectors / np.sqrt(sizes)))
        if not np.diag(factor).all():
            return None
        # About one: differences were as long as they were meant to be.
        if NEAR[0] < sizes.min() and sizes.max() < NEAR[1]:
            return factor
    return factor if curvature is not None else None


def local_deviations(
    evaluate: Evaluate,
    point: Vector,
    guess: float,
    noise: Float[np.ndarray, "S D"],
    epsilon: float,
) -> Vector | None:
    """Standard deviations (D,) that the curvature's diagonal has at a point, or None.

    The diagonal by random signs (C. Bekas, E. Kokiopoulou and Y. Saad, "An estimator for the
    diagonal of a matrix", 2007), whose error falls with the root of their number; no deviation is
    far from the typical one. Costs two evaluations for each row of noise.
    """
    signs = np.sign(noise)
    moves = step_of(epsilon) * guess * signs
    _, scores = evaluate(np.concatenate([point + moves, point - moves]))
    number = len(moves)
    diagonal = np.mean(signs * (scores[number:] - scores[:number]), 0) / (
        2.0 * step_of(epsilon) * guess
    )
    if not np.isfinite(diagonal).all():
        return None
    typical = max(float(np.median(np.abs(diagonal))), FLAT / guess**2)
    return 1.0 / np.sqrt(np.clip(np.abs(diagonal), NEAR[0] * typical, None))
