"""Closed-form proximal score matching for Normal guides: recursive regression of noisy scores.

For a Normal q with mean m and precision P the score, grad log q(theta) = P (m - theta), is linear
in (P m, P). The proximal score-matching objective is then a linear least-squares problem: the
(noisy) scores of the target are regressed on the points where they were taken. Running moments
with weights r_t = (t + 1)^-p take the place of an optimiser and average the noise out; there is
no learning rate. With V = cov(theta), C = cov(score, theta), Sigma = inverse P = L L^T:

    P+ = sym[(-C + rho I) (V + rho Sigma)^-1],   rho = (D + 1) / (number of scores),
    m+ = E[theta] + Sigma+ E[score],

where the terms in rho pull towards the present precision, the eigenvalues of L^T P+ L are limited
to [1/c, c], and the mean moves by at most one unit of Mahalanobis distance. The fixed point has
E_q[score] = 0 and -E_q[grad score] = P, which by Stein's identity is where the evidence lower
bound is stationary. Without noise the fixed point is exact for a Normal target.

Everything is computed in coordinates whitened by L, where the matrices are near the identity.
The *full* form regresses on all coordinates; the *diagonal* form regresses each coordinate on
itself alone, with vectors in place of matrices. Functions are pure and can be jitted.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular

from numpyro_ext.guides.flat_density import Moments

#: Exponent p of the running averages' weights (t + 1)^-p.
DECAY = 0.9
#: Limit c on how far one update changes the precision, as a factor in every direction.
TRUST = 1.25


class Regression(NamedTuple):
    """Running moments of points and scores.

    ``covariance`` is V = cov(theta) and ``cross_covariance`` is C = cov(score, theta), rows
    belonging to the score: (D, D) in the full form, (D,) in the diagonal one. They are kept
    centred, which equals running averages of theta theta^T and score theta^T in exact arithmetic
    and does not lose digits when theta is far from the origin. The two counters are integers (0-d
    arrays).
    """

    num_updates: jax.Array
    num_evaluations: jax.Array
    mean_theta: jax.Array
    mean_score: jax.Array
    covariance: jax.Array
    cross_covariance: jax.Array


def initial_regression(scale: jax.Array) -> Regression:
    """No observations yet.

    Parameters
    ----------
    scale : array (D, D) or (D,)
        The guide's scale, as in :class:`~numpyro_ext.guides.flat_density.Moments`; its shape
        decides between the full and the diagonal form.
    """
    zeros, square = jnp.zeros(scale.shape[-1:], scale.dtype), jnp.zeros_like(scale)
    # Arrays of their own each, so that the state can be donated.
    return Regression(
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
        zeros,
        jnp.copy(zeros),
        square,
        jnp.copy(square),
    )


def observe(
    regression: Regression, theta: jax.Array, score: jax.Array, decay: float = DECAY
) -> Regression:
    """Add scores (S, D) taken at points theta (S, D) to the running moments.

    The weight of iteration t is (t + 1)^-decay, shared by its S points.
    """
    weight = (regression.num_updates + 1).astype(theta.dtype) ** -decay
    mean_theta, mean_score = theta.mean(0), score.mean(0)
    step_theta = mean_theta - regression.mean_theta
    step_score = mean_score - regression.mean_score
    deviation_theta, deviation_score = theta - mean_theta, score - mean_score
    if regression.covariance.ndim == 2:
        within = deviation_theta.T @ deviation_theta / len(theta)
        cross_within = deviation_score.T @ deviation_theta / len(theta)
        between = jnp.outer(step_theta, step_theta)
        cross_between = jnp.outer(step_score, step_theta)
    else:
        within = jnp.square(deviation_theta).mean(0)
        cross_within = (deviation_score * deviation_theta).mean(0)
        between = jnp.square(step_theta)
        cross_between = step_score * step_theta
    keep = 1.0 - weight
    return Regression(
        regression.num_updates + 1,
        regression.num_evaluations + len(theta),
        regression.mean_theta + weight * step_theta,
        regression.mean_score + weight * step_score,
        keep * (regression.covariance + weight * between) + weight * within,
        keep * (regression.cross_covariance + weight * cross_between) + weight * cross_within,
    )


def is_warm(regression: Regression) -> jax.Array:
    """Whether enough scores were seen for an update: 2 D (full form), 2 (diagonal form)."""
    return regression.num_evaluations >= 2 * _regressors(regression)


def updated_moments(regression: Regression, moments: Moments, trust: float = TRUST) -> Moments:
    """Moments of the next guide, from the running moments and the present guide's.

    Parameters
    ----------
    regression : Regression
    moments : Moments
        Mean (D,) and scale, (D, D) lower triangular or (D,), of the present guide.
    trust : float
        The constant c > 1 of the trust region.
    """
    evaluations = regression.num_evaluations.astype(moments.mean.dtype)
    pull = (_regressors(regression) + 1.0) / evaluations
    if regression.covariance.ndim == 2:
        return _updated_full(regression, moments, pull, trust)
    return _updated_diagonal(regression, moments, pull, trust)


def _regressors(regression: Regression) -> int:
    return len(regression.mean_theta) if regression.covariance.ndim == 2 else 1


def _updated_full(
    regression: Regression, moments: Moments, pull: jax.Array, trust: float
) -> Moments:
    mean, scale_tril = moments

    def unscale(columns: jax.Array) -> jax.Array:
        return solve_triangular(scale_tril, columns, lower=True)

    identity = jnp.eye(len(mean), dtype=mean.dtype)
    # Whitened by L: V becomes L^-1 V L^-T, and C becomes L^T C L^-T.
    covariance = unscale(unscale(regression.covariance).T)
    cross_covariance = unscale((scale_tril.T @ regression.cross_covariance).T).T
    factor = jnp.linalg.cholesky(covariance + pull * identity)
    precision = cho_solve((factor, True), (pull * identity - cross_covariance).T).T
    eigenvalues, vectors = jnp.linalg.eigh(0.5 * (precision + precision.T))
    eigenvalues = jnp.clip(eigenvalues, 1.0 / trust, trust)
    inverse = (vectors / eigenvalues) @ vectors.T
    offset = unscale(regression.mean_theta - mean)
    move = offset + inverse @ (scale_tril.T @ regression.mean_score)
    move = move / jnp.maximum(jnp.linalg.norm(move), 1.0)
    # A product of lower triangular factors is lower triangular: no factorisation of Sigma.
    return Moments(mean + scale_tril @ move, scale_tril @ jnp.linalg.cholesky(inverse))


def _updated_diagonal(
    regression: Regression, moments: Moments, pull: jax.Array, trust: float
) -> Moments:
    mean, scale = moments
    # The cross-covariance of scale * score and theta / scale is that of score and theta.
    precision = (pull - regression.cross_covariance) / (
        regression.covariance / jnp.square(scale) + pull
    )
    precision = jnp.clip(precision, 1.0 / trust, trust)
    move = (regression.mean_theta - mean) / scale + scale * regression.mean_score / precision
    # Each coordinate is a regression of its own, so its move is limited on its own.
    return Moments(mean + scale * jnp.clip(move, -1.0, 1.0), scale / jnp.sqrt(precision))
