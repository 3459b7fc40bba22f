"""Closed form for low-rank Normal guides: every coordinate's score is regressed on the factor's.

The method is told in :mod:`ppl_ext.regression.low_rank`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular

from numpyro_ext.guides.flat_density import Parameters
from numpyro_ext.score.overflow import Verdict, judged
from numpyro_ext.score.regression.base import ClosedForm
from numpyro_ext.score.regression.full import (
    BlockMoments,
    free_share,
    limited,
    limited_move,
    whitened_step,
)
from numpyro_ext.score.regression.pairs import (
    Count,
    advanced,
    averaged,
    halves,
    initial_count,
    next_weight,
)
from ppl_ext.regression.full import SPARE_PAIRS
from ppl_ext.regression.low_rank import LEAST
from ppl_ext.regression.overflow import LENIENCE


class LowRankRegression(NamedTuple):
    """What was seen so far.

    ``mean_theta`` and ``mean_score`` are averages over the pairs' centres, ``covariance``,
    ``cross_covariance`` and ``score_covariance`` those of d^2, e d and e^2, (D,) each. With the
    factor's coordinates y, ``theta_factor`` and ``score_factor`` are those of d y^T and e y^T,
    (D, r), and ``factor`` and ``factor_score`` those of y y^T and y_e y_e^T, (r, r).
    """

    seen: Count
    mean_theta: jax.Array
    mean_score: jax.Array
    covariance: jax.Array
    cross_covariance: jax.Array
    score_covariance: jax.Array
    theta_factor: jax.Array
    score_factor: jax.Array
    factor: jax.Array
    factor_score: jax.Array


class LowRankMoments(NamedTuple):
    """Mean (D,), scale (D,) and factor W (D, r): the covariance is S (I + W W^T) S."""

    mean: jax.Array
    scale: jax.Array
    factor: jax.Array


class Frame(NamedTuple):
    """Standard coordinates in the span of a factor.

    ``basis`` T (D, r) is orthonormal and ``root`` K (r, r) lower triangular. For the halves d and e
    of a pair, y is the transpose of ``to_factor`` times d, and y_e that of ``from_factor`` times e;
    both are (D, r).
    """

    basis: jax.Array
    root: jax.Array
    to_factor: jax.Array
    from_factor: jax.Array


class LowRankForm(ClosedForm[LowRankRegression]):
    """The closed form for ``AutoLowRankMultivariateNormal``.

    O(D r) memory and O(D r^2) operations. ``update`` has to be called with the parameters that the
    last call returned, as the averages are kept in coordinates of that guide.
    """

    def unsuited(self, parameters: Parameters) -> str | None:
        dim, rank = self._moments(parameters)[2].shape
        if rank < dim:
            return None
        # A factor that spans everything leaves the scales nothing to be regressed on.
        return (
            f"Expected a rank below the number of latents, {dim}, with solver='regression', found "
            f"rank={rank}. Use AutoMultivariateNormal, or solver='gradient'."
        )

    def initial(self, parameters: Parameters) -> LowRankRegression:
        mean, _, factor = self._moments(parameters)
        dim, rank = factor.shape
        shapes = [(dim,)] * 5 + [(dim, rank)] * 2 + [(rank, rank)] * 2
        averages = (jnp.zeros(shape, mean.dtype) for shape in shapes)
        return LowRankRegression(initial_count(mean.dtype), *averages)

    def update(
        self,
        state: LowRankRegression,
        parameters: Parameters,
        theta: jax.Array,
        score: jax.Array,
        total: jax.Array | int = 0,
        log_density: jax.Array | None = None,
    ) -> tuple[LowRankRegression, Parameters]:
        moments = self._moments(parameters)
        latest = observed(state, moments, theta, score, self.decay)
        verdict = _verdict(state, moments, score)
        state = verdict.choose(_lenient(state), self.initial(parameters), latest)

        def moved(
            state: LowRankRegression, parameters: Parameters
        ) -> tuple[LowRankRegression, Parameters]:
            state, updated = updated_guide(state, moments, self.trust)
            return state, self._set_moments(updated)

        warm = state.seen.num_pairs >= moments.factor.shape[1] + 1 + SPARE_PAIRS
        warm &= verdict.sound
        after: tuple[LowRankRegression, Parameters] = lax.cond(
            warm, moved, lambda *same: same, state, parameters
        )
        return after

    def _names(self) -> tuple[str, ...]:
        prefix = self.density.guide.prefix
        return tuple(f"{prefix}_{name}" for name in ("loc", "scale", "cov_factor"))

    def _moments(self, parameters: Parameters) -> LowRankMoments:
        host = self.density.to_host(parameters)
        return LowRankMoments(*(host[name] for name in self._names()))

    def _set_moments(self, moments: LowRankMoments) -> Parameters:
        parameters: Parameters = self.density.from_host(
            dict(zip(self._names(), moments, strict=True))
        )
        return parameters


def frame_of(moments: LowRankMoments) -> Frame:
    """Coordinates of a guide's factor, a unique and smooth function of W of full column rank."""
    scale, factor = moments.scale[:, None], moments.factor
    identity = jnp.eye(factor.shape[1], dtype=factor.dtype)
    root = jnp.linalg.cholesky(factor.T @ factor)
    basis = _over(factor, root)
    root = jnp.linalg.cholesky(identity + root.T @ root)
    return Frame(basis, root, _over(basis, root) / scale, scale * (basis @ root))


def observed(
    state: LowRankRegression,
    moments: LowRankMoments,
    theta: jax.Array,
    score: jax.Array,
    decay: float,
) -> LowRankRegression:
    """Add scores (2 K, D) taken at mirrored points theta (2 K, D) of the present guide."""
    frame = frame_of(moments)
    d, e = halves(theta), halves(score)
    pairs = len(d)
    y, y_score = d @ frame.to_factor, e @ frame.from_factor
    weight = next_weight(state.seen, decay)
    mean_weight = next_weight(state.seen, decay**2)
    means = averaged(tuple(state[1:3]), (theta.mean(0), score.mean(0)), mean_weight)
    latest = (
        (d * d).mean(0),
        (e * d).mean(0),
        (e * e).mean(0),
        d.T @ y / pairs,
        e.T @ y / pairs,
        y.T @ y / pairs,
        y_score.T @ y_score / pairs,
    )
    seen = advanced(state.seen, pairs, weight)
    return LowRankRegression(seen, *means, *averaged(tuple(state[3:]), latest, weight))


def _verdict(state: LowRankRegression, moments: LowRankMoments, score: jax.Array) -> Verdict:
    """Of the latest scores (2 K, D) and those seen before, in units of the present guide.

    What lies in the span of the factor is counted twice, which matters to no verdict.
    """
    frame, e = frame_of(moments), halves(score)
    seen = (state.score_covariance * jnp.square(moments.scale)).sum()
    latest = jnp.square(e * moments.scale).sum(-1) + jnp.square(e @ frame.from_factor).sum(-1)
    return judged(seen + jnp.trace(state.factor_score), latest.mean())


def _lenient(state: LowRankRegression) -> LowRankRegression:
    """The state after pairs that were left out."""
    return state._replace(
        score_covariance=LENIENCE * state.score_covariance,
        factor_score=LENIENCE * state.factor_score,
    )


def updated_guide(
    state: LowRankRegression, moments: LowRankMoments, trust: float
) -> tuple[LowRankRegression, LowRankMoments]:
    """The next guide, and what was seen in its coordinates.

    Parameters
    ----------
    state : LowRankRegression
        In coordinates of the present guide.
    moments : LowRankMoments
        Of the present guide.
    trust : float
        The constant c > 1 of the trust region.
    """
    mean, scale, _ = moments
    frame = frame_of(moments)
    cross = frame.from_factor.T @ state.score_factor
    block = BlockMoments(state.factor, cross, state.factor_score)
    step = whitened_step(block, state.seen.worth, trust)
    ratio, coefficients, pull = _rows(state, scale, frame, trust)
    new_scale, new_factor = _merged(scale, frame, step.covariance, ratio, coefficients, trust)

    scaled = new_scale * state.mean_score
    move = (state.mean_theta - mean) / scale
    move = move + new_scale / scale * (scaled + new_factor @ (new_factor.T @ scaled))
    inside = frame.basis.T @ move
    outside = jnp.clip((move - frame.basis @ inside) / (1.0 + pull), -1.0, 1.0)
    inside = solve_triangular(frame.root, inside, lower=True)
    inside = limited_move(step.basis @ ((step.basis.T @ inside) / (1.0 + step.pull)))
    move = frame.basis @ (frame.root @ inside) + outside

    updated = LowRankMoments(mean + scale * move, new_scale, new_factor)
    return _carried(state, frame, frame_of(updated)), updated


def _rows(
    state: LowRankRegression, scale: jax.Array, frame: Frame, trust: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Regression of every coordinate's score on z_i and y.

    Returns the next precision 1 / scale^2 over the present (D,), the coefficients of y (D, r) and
    the pull (D,) of the precision.
    """
    number, (dim, rank) = state.seen.worth, frame.basis.shape
    precision = jnp.finfo(scale.dtype)
    # In the eigenbasis of y y^T the pull differs from row to row and still takes no r x r system.
    spread, axes = jnp.linalg.eigh(state.factor)
    spread = jnp.maximum(spread, precision.eps * spread[-1])
    along = (state.theta_factor / scale[:, None]) @ axes
    score_along = (state.score_factor * scale[:, None]) @ axes
    variance, covariance = state.covariance / jnp.square(scale), state.cross_covariance

    def solved(
        first: jax.Array, rest: jax.Array, first_pull: jax.Array | float, spread: jax.Array
    ) -> jax.Array:
        """The first coefficient."""
        share = along / spread
        free = variance + first_pull - (share * along).sum(1)
        free = jnp.maximum(free, precision.eps * variance)
        return (first - (share * rest).sum(1)) / free

    slope = solved(covariance, score_along, 0.0, spread)
    others = (score_along - slope[:, None] * along) / spread
    residual = state.score_covariance * jnp.square(scale)
    residual = residual - slope * covariance - (others * score_along).sum(1)
    noise = jnp.maximum(residual, 0.0) / free_share(rank + 1, number)

    present = (frame.from_factor / scale[:, None] - frame.to_factor * scale[:, None]) @ axes
    # Cross-moments of what the present guide leaves, s_i e_i + z_i - (T G K)_i y.
    first = covariance + variance - (present * along).sum(1)
    rest = score_along + along - present * spread
    pull = (rank + 1) * noise / number
    pulled_spread = spread + (dim * noise / number)[:, None]
    ratio = limited(1.0 - solved(first, rest, pull, pulled_spread), (rank + 1) * noise, trust)
    coefficients = present + (rest + (ratio - 1.0)[:, None] * along) / pulled_spread
    return ratio, coefficients @ axes.T, pull


def _merged(
    scale: jax.Array,
    frame: Frame,
    covariance: jax.Array,
    ratio: jax.Array,
    coefficients: jax.Array,
    trust: float,
) -> tuple[jax.Array, jax.Array]:
    """The next scale and factor: the smallest eigenvalues of a precision that is known on a basis.

    Parameters
    ----------
    covariance : array (r, r)
        The next guide's in the span of the present factor.
    ratio, coefficients : arrays (D,), (D, r)
        Results of :func:`_rows`.
    """
    basis, root = frame.basis, frame.root
    rank = basis.shape[1]
    # Off the span, in standard coordinates on the right side: H T K for z's precision H.
    turn = ratio[:, None] * (basis @ root) - coefficients
    turn = turn - basis @ (basis.T @ turn)
    length = jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(turn.T @ turn)[-1], 0.0))
    longest = 1.0 - 1.0 / trust
    turn = turn * (longest / jnp.maximum(length, longest))
    known = solve_triangular(root, jnp.linalg.inv(covariance), lower=True, trans=1)
    known = _over_transposed(basis @ known + turn, root)
    # In coordinates z sqrt(ratio) of the new scales.
    stretch = jnp.sqrt(ratio)[:, None]
    stretched = stretch * basis
    triangle = jnp.linalg.cholesky(stretched.T @ stretched)
    stretched, known = _over(stretched, triangle), _over(known / stretch, triangle)
    inside = stretched.T @ known
    outside = known - stretched @ inside
    frame_axes, _ = jnp.linalg.qr(jnp.concatenate([stretched, outside], axis=1))
    one, two = frame_axes.T @ stretched, frame_axes.T @ outside
    small = trust * (jnp.eye(len(one), dtype=one.dtype) - one @ one.T)
    small = small + one @ (0.5 * (inside + inside.T)) @ one.T + one @ two.T + two @ one.T
    eigenvalues, vectors = jnp.linalg.eigh(small)
    tiny = jnp.finfo(scale.dtype).eps
    eigenvalues = jnp.clip(eigenvalues[:rank], tiny, 1.0 / (1.0 + LEAST))
    lengths = jnp.sqrt(1.0 / eigenvalues - 1.0)
    return scale / stretch[:, 0], (frame_axes @ vectors[:, :rank]) * lengths


def _carried(state: LowRankRegression, old: Frame, new: Frame) -> LowRankRegression:
    """What was seen, in the coordinates of a new factor."""
    turn = old.from_factor.T @ new.to_factor
    score_turn = old.to_factor.T @ new.from_factor
    return state._replace(
        theta_factor=state.theta_factor @ turn,
        score_factor=state.score_factor @ turn,
        factor=turn.T @ state.factor @ turn,
        factor_score=score_turn.T @ state.factor_score @ score_turn,
    )


def _over(rows: jax.Array, triangle: jax.Array) -> jax.Array:
    """Rows times the inverse of the transpose of a lower triangular matrix."""
    return solve_triangular(triangle, rows.T, lower=True).T


def _over_transposed(rows: jax.Array, triangle: jax.Array) -> jax.Array:
    """Rows times the inverse of a lower triangular matrix."""
    return solve_triangular(triangle, rows.T, lower=True, trans=1).T
