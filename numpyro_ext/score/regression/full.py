"""Closed form for full-covariance Normal guides: recursive regression of noisy scores.

The method is told in :mod:`ppl_ext.regression.full`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular

from numpyro_ext.guides.flat_density import Moments, Parameters
from numpyro_ext.guides.normal import log_density
from numpyro_ext.score.overflow import judged
from numpyro_ext.score.regression.base import ClosedForm, Draws
from numpyro_ext.score.regression.pairs import (
    Count,
    advanced,
    averaged,
    halves,
    initial_count,
    next_mean_weight,
    next_weight,
)
from ppl_ext.regression.full import HASTE, SPARE_PAIRS
from ppl_ext.regression.overflow import LENIENCE
from ppl_ext.score import DECAY, TRUST


class BlockMoments(NamedTuple):
    """Running moments V, C and R of a block of n coordinates with a covariance: (n, n) each.

    ``covariance`` is E[d d^T], ``cross_covariance`` E[e d^T] and ``score_covariance`` E[e e^T],
    with d half the difference of a pair's points and e that of its scores.
    """

    covariance: jax.Array
    cross_covariance: jax.Array
    score_covariance: jax.Array


class FullRegression(NamedTuple):
    """What was seen so far.

    ``mean_theta`` and ``mean_score``, (D,), are averages over the pairs' centres.
    """

    seen: Count
    mean_theta: jax.Array
    mean_score: jax.Array
    block: BlockMoments


def initial_regression(mean: jax.Array) -> FullRegression:
    """No observations yet; zeros like the guide's mean (D,)."""
    # Arrays of their own each, so that the state can be donated.
    square = (len(mean), len(mean))
    block = BlockMoments(*(jnp.zeros(square, mean.dtype) for _ in range(3)))
    return FullRegression(
        initial_count(mean.dtype), jnp.zeros_like(mean), jnp.zeros_like(mean), block
    )


def observe(
    regression: FullRegression,
    theta: jax.Array,
    score: jax.Array,
    decay: float = DECAY,
    total: jax.Array | int = 0,
) -> FullRegression:
    """Add scores (2 K, D) taken at the mirrored points theta (2 K, D).

    ``total`` is the number of iterations of the whole run, 0 when that is not known.
    """
    difference, score_difference = halves(theta), halves(score)
    pairs = len(difference)
    latest = BlockMoments(
        difference.T @ difference / pairs,
        score_difference.T @ difference / pairs,
        score_difference.T @ score_difference / pairs,
    )
    weight = next_weight(regression.seen, decay)
    mean_weight = next_mean_weight(regression.seen, decay, total)
    return FullRegression(
        advanced(regression.seen, pairs, weight),
        averaged(regression.mean_theta, theta.mean(0), mean_weight),
        averaged(regression.mean_score, score.mean(0), mean_weight),
        averaged(regression.block, latest, weight),
    )


def screened(
    before: FullRegression, after: FullRegression, scale_tril: jax.Array, score: jax.Array
) -> tuple[FullRegression, jax.Array]:
    """The next state without scores that come from an overflow, and whether it rests on the pairs.

    Parameters
    ----------
    before, after : FullRegression
        Without the latest pairs, and with them.
    scale_tril : array (D, D)
    score : array (2 K, D)
    """
    covariance = before.block.score_covariance
    latest = jnp.square(halves(score) @ scale_tril).sum(-1).mean()
    verdict = judged(jnp.sum(scale_tril * (covariance @ scale_tril)), latest)
    lenient = before._replace(block=before.block._replace(score_covariance=LENIENCE * covariance))
    fresh = initial_regression(before.mean_theta)
    return verdict.choose(lenient, fresh, after), verdict.sound


def is_warm(regression: FullRegression) -> jax.Array:
    """Whether enough pairs were seen for an update: regressors and a few to know the noise."""
    return regression.seen.num_pairs >= len(regression.mean_theta) + SPARE_PAIRS


class FullForm(ClosedForm[FullRegression]):
    """The closed form for ``AutoMultivariateNormal``. O(D^2) memory, O(D^3) operations."""

    def initial(self, parameters: Parameters) -> FullRegression:
        return initial_regression(self.density.mean(parameters))

    def evaluated_draw(self, parameters: Parameters, rng_key: jax.Array, num: int) -> Draws:
        # A pair's standard coordinates are known and each other's negatives.
        mean, scale_tril = self.density.moments(parameters)
        standard = self.density.noise(parameters, rng_key, (num // 2, len(mean)))
        move = standard @ scale_tril.T
        pull = solve_triangular(scale_tril, standard.T, trans=1, lower=True).T
        log_prob = log_density(scale_tril, standard)
        return Draws(
            jnp.concatenate([mean + move, mean - move]),
            jnp.concatenate([log_prob, log_prob]),
            jnp.concatenate([-pull, pull]),
        )

    def update(
        self,
        state: FullRegression,
        parameters: Parameters,
        theta: jax.Array,
        score: jax.Array,
        total: jax.Array | int = 0,
        log_density: jax.Array | None = None,
    ) -> tuple[FullRegression, Parameters]:
        scale_tril = self.density.moments(parameters).scale
        observed = observe(state, theta, score, self.decay, total)
        state, sound = screened(state, observed, scale_tril, score)

        def moved(parameters: Parameters) -> Parameters:
            moments = updated_moments(state, self.density.moments(parameters), self.trust)
            updated: Parameters = self.density.set_moments(parameters, moments)
            return updated

        ready = sound & is_warm(state)
        return state, lax.cond(ready, moved, lambda same: same, parameters)


def updated_moments(regression: FullRegression, moments: Moments, trust: float = TRUST) -> Moments:
    """Moments of the next guide, from the running moments and the present guide's.

    Parameters
    ----------
    regression : FullRegression
    moments : Moments
        Mean (D,) and lower triangular scale (D, D) of the present guide.
    trust : float
        The constant c > 1 of the trust region.
    """
    mean, scale_tril = moments
    block = regression.block

    def unscale(columns: jax.Array) -> jax.Array:
        return solve_triangular(scale_tril, columns, lower=True)

    # Whitened by L: V becomes L^-1 V L^-T, C becomes L^T C L^-T and R becomes L^T R L.
    whitened = BlockMoments(
        unscale(unscale(block.covariance).T),
        unscale((scale_tril.T @ block.cross_covariance).T).T,
        scale_tril.T @ block.score_covariance @ scale_tril,
    )
    step = whitened_step(whitened, regression.seen.worth, trust)
    offset = unscale(regression.mean_theta - mean)
    move = offset + step.covariance @ (scale_tril.T @ regression.mean_score)
    move = limited_move(step.basis @ ((step.basis.T @ move) / (1.0 + step.pull)))
    # A product of lower triangular factors is lower triangular: no factorisation of Sigma.
    factor = jnp.linalg.cholesky(step.covariance)
    return Moments(mean + scale_tril @ move, scale_tril @ factor)


class Step(NamedTuple):
    """What a whitened regression tells: next to the present guide, whose covariance is I.

    ``covariance`` (n, n) is the next guide's, ``pull`` (n,) is rho and ``basis`` (n, n) has the
    eigenvectors of the noise in its columns.
    """

    covariance: jax.Array
    pull: jax.Array
    basis: jax.Array


def whitened_step(block: BlockMoments, number: jax.Array, trust: float) -> Step:
    """FullRegression of one block in coordinates where the present covariance is the identity.

    Parameters
    ----------
    block : BlockMoments
        Whitened moments, (n, n) each.
    number : float
        Pairs that the averages are worth.
    trust : float
    """
    dim = len(block.covariance)
    precision = jnp.finfo(block.covariance.dtype)
    spread, axes = jnp.linalg.eigh(block.covariance)
    spread = jnp.maximum(spread, precision.eps * spread[-1])
    along = block.cross_covariance @ axes
    residual = block.score_covariance - (along / spread) @ along.T
    noise, basis = jnp.linalg.eigh(0.5 * (residual + residual.T))
    noise = jnp.maximum(noise, 0.0) / free_share(dim, number)
    pull = (dim * noise / number)[:, None]
    turned = basis.T @ axes
    slope = ((pull * turned - basis.T @ along) / (spread + pull)) @ turned.T
    # The more certain of the two estimates of an entry counts more; without noise, both alike.
    floor = 1e-6 * noise.max() + precision.tiny
    weight = (floor / (noise + floor))[:, None]
    weighted = weight * slope
    eigenvalues, vectors = jnp.linalg.eigh((weighted + weighted.T) / (weight + weight.T))
    along_vectors = (jnp.square(vectors) * noise[:, None]).sum(0)
    eigenvalues = limited(eigenvalues, dim * along_vectors, trust)
    vectors = basis @ vectors
    return Step((vectors / eigenvalues) @ vectors.T, pull[:, 0], basis)


def limited_move(move: jax.Array) -> jax.Array:
    """A whitened move shortened to at most one unit."""
    return move / jnp.maximum(jnp.linalg.norm(move), 1.0)


def free_share(regressors: int, number: jax.Array) -> jax.Array:
    """Share of the pairs' freedom that the regression leaves to the residual."""
    return jnp.maximum(1.0 - regressors / number, 1.0 / number)


def limited(precision: jax.Array, noise: jax.Array, trust: float) -> jax.Array:
    """A whitened precision limited to the trust region, whose lower end knows the noise."""
    widest = 1.0 / (1.0 + (trust - 1.0) / (1.0 + noise / HASTE))
    return jnp.clip(precision, widest, trust)
