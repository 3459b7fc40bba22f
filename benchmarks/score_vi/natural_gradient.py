"""Natural-gradient variational inference, by hand and with NumPy, as a rival for the comparison.

For q = N(m, P^-1) the natural-gradient steps on the evidence lower bound are
P+ = P + r G and m+ = m + r P+^-1 E_q[s], with G = -E_q[H] - P, score s and Hessian H of the target
(M. E. Khan and W. Lin, "Conjugate-computation variational inference", 2017). E_q[H] comes from
scores by Stein's identity and mirrored pairs, E[e d^T] P, as in this project's closed form. The
step's correction r^2 G P^-1 G / 2 keeps P positive definite at any r (W. Lin, M. Schmidt and M. E.
Khan, "Handling the positive-definite constraint in the Bayesian learning rule", 2020).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from benchmarks.score_vi.problems import Array, Logistic, logistic_minibatch_score

BACKEND = "NumPy"


def natural_gradient_vi(
    score: Callable[[Array], Array],
    mean: Array,
    precision: Array,
    num_steps: int,
    rate: float,
    seed: int,
) -> tuple[Array, Array]:
    """Mean (D,) and covariance (D, D) after steps of one mirrored pair each.

    The rate falls to zero along a cosine. ``score`` takes both points of a pair (2, D) at once, so
    that they share a minibatch.
    """
    generator = np.random.default_rng(seed)
    for step in range(num_steps):
        size = 0.5 * rate * (1 + np.cos(np.pi * step / num_steps))
        lower = np.linalg.cholesky(precision)
        offset = solve_triangular(lower.T, generator.normal(size=len(mean)))
        first, second = score(np.stack([mean + offset, mean - offset]))
        hessian = np.outer((first - second) / 2, precision @ offset)
        change = -(hessian + hessian.T) / 2 - precision
        correction = change @ cho_solve((lower, True), change)
        precision = precision + size * change + size**2 / 2 * correction
        precision = (precision + precision.T) / 2
        mean = mean + size * np.linalg.solve(precision, (first + second) / 2)
        if not np.isfinite(precision).all():
            raise FloatingPointError(f"Expected finite steps, found none at step {step}.")
    return mean, np.linalg.inv(precision).astype(np.float64)


def fit_logistic(
    problem: Logistic, method: str, scores: int, batch_size: int, seed: int, rate: float | None
) -> tuple[Array, Array]:
    """Mean (D,) and covariance (D, D) of the guide after this many minibatch scores."""
    assert rate is not None
    dim = problem.x.shape[1]
    score = logistic_minibatch_score(problem, batch_size, seed)
    # The hosts' guides start with a standard deviation of 0.1.
    return natural_gradient_vi(score, np.zeros(dim), 100 * np.eye(dim), scores // 2, rate, seed)
