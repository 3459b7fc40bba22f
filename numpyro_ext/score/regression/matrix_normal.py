"""Closed form for matrix-normal guides: the rows and the columns of a matrix regressed in turn.

The method is told in :mod:`ppl_ext.regression.matrix_normal`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from numpyro_ext.guides.flat_density import Parameters
from numpyro_ext.guides.matrix_normal import Factors, _join, _split
from numpyro_ext.guides.normal import _solve_lower
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
    next_mean_weight,
    next_weight,
)
from ppl_ext.guides.layouts import Blocks
from ppl_ext.regression.full import SPARE_PAIRS
from ppl_ext.regression.overflow import LENIENCE
from ppl_ext.regression.pairs import FORGETTING
from ppl_ext.score import DECAY, TRUST


class MatrixMoments(NamedTuple):
    """Running moments of one matrix: of its rows (n, n) and of its columns (p, p)."""

    rows: BlockMoments
    columns: BlockMoments


class MatrixNormalRegression(NamedTuple):
    """What was seen so far.

    ``mean_theta`` and ``mean_score``, (D,), are averages over the pairs' centres. ``matrices``
    are in the order of the flat vector. ``rest`` holds the diagonals (R,) of V, C and R of the
    coordinates that belong to no matrix.
    """

    seen: Count
    mean_theta: jax.Array
    mean_score: jax.Array
    matrices: tuple[MatrixMoments, ...]
    rest: BlockMoments


def initial_regression(mean: jax.Array, blocks: Blocks) -> MatrixNormalRegression:
    """No observations yet; zeros like the guide's mean (D,)."""

    def zeros(*shape: int) -> BlockMoments:
        # Arrays of their own each, so that the state can be donated.
        return BlockMoments(*(jnp.zeros(shape, mean.dtype) for _ in range(3)))

    matrices = tuple(
        MatrixMoments(zeros(rows, rows), zeros(columns, columns))
        for _, _, (rows, columns) in blocks.matrices
    )
    return MatrixNormalRegression(
        initial_count(mean.dtype),
        jnp.zeros_like(mean),
        jnp.zeros_like(mean),
        matrices,
        zeros(blocks.num_rest),
    )


def observe(
    regression: MatrixNormalRegression,
    factors: Factors,
    blocks: Blocks,
    theta: jax.Array,
    score: jax.Array,
    decay: float = DECAY,
    total: jax.Array | int = 0,
) -> MatrixNormalRegression:
    """Add scores (2 K, D) taken at the mirrored points theta (2 K, D), which ``factors`` drew.

    ``total`` is the number of iterations of the whole run, 0 when that is not known.
    """
    differences, rest = _split(halves(theta), blocks)
    score_differences, rest_score = _split(halves(score), blocks)
    latest = []
    for (name, _, _), d, e in zip(blocks.matrices, differences, score_differences, strict=True):
        row, column = (_unit(factor)[0] for factor in factors.matrices[name])
        rows = _moments(_solve_lower(column, d), e @ column)
        d, e = jnp.swapaxes(d, -1, -2), jnp.swapaxes(e, -1, -2)
        latest.append(MatrixMoments(rows, _moments(_solve_lower(row, d), e @ row)))
    products = (rest * rest, rest_score * rest, rest_score * rest_score)
    count = regression.seen
    weight = next_weight(count, decay, FORGETTING)
    mean_weight = next_mean_weight(count, decay, total)
    return MatrixNormalRegression(
        advanced(count, len(theta) // 2, weight),
        averaged(regression.mean_theta, theta.mean(0), mean_weight),
        averaged(regression.mean_score, score.mean(0), mean_weight),
        averaged(regression.matrices, tuple(latest), weight),
        averaged(regression.rest, BlockMoments(*(x.mean(0) for x in products)), weight),
    )


def is_warm(regression: MatrixNormalRegression, blocks: Blocks) -> jax.Array:
    """Whether enough pairs were seen for an update: for each factor and for the rest."""
    pairs = regression.seen.num_pairs
    warm = pairs >= 1 + SPARE_PAIRS
    for _, _, (rows, columns) in blocks.matrices:
        warm &= pairs * columns >= rows + SPARE_PAIRS
        warm &= pairs * rows >= columns + SPARE_PAIRS
    return warm


class MatrixNormalForm(ClosedForm[MatrixNormalRegression]):
    """The closed form for ``AutoMatrixNormal``.

    O(n^2 + p^2) memory and O((n + p)^3) operations for a matrix.
    """

    def initial(self, parameters: Parameters) -> MatrixNormalRegression:
        return initial_regression(self.density.mean(parameters), self.density.blocks())

    def update(
        self,
        state: MatrixNormalRegression,
        parameters: Parameters,
        theta: jax.Array,
        score: jax.Array,
        total: jax.Array | int = 0,
        log_density: jax.Array | None = None,
    ) -> tuple[MatrixNormalRegression, Parameters]:
        blocks, factors = self.density.blocks(), self.density.factors(parameters)
        observed = observe(state, factors, blocks, theta, score, self.decay, total)
        verdict = _verdict(state, factors, blocks, score)
        state = verdict.choose(_lenient(state), self.initial(parameters), observed)

        def moved(parameters: Parameters) -> Parameters:
            changed = updated_factors(state, factors, blocks, self.trust)
            updated: Parameters = self.density.set_factors(parameters, changed)
            return updated

        ready = verdict.sound & is_warm(state, blocks)
        return state, lax.cond(ready, moved, lambda same: same, parameters)


def _verdict(
    state: MatrixNormalRegression, factors: Factors, blocks: Blocks, score: jax.Array
) -> Verdict:
    """Of the latest scores (2 K, D) and those seen before, whitened by the present guide."""
    score_differences, rest = _split(halves(score), blocks)
    latest = jnp.square(rest * factors.scale).sum(-1).mean()
    seen = (state.rest.score_covariance * jnp.square(factors.scale)).sum()
    matrices = zip(blocks.matrices, score_differences, state.matrices, strict=True)
    for (name, _, (_, columns)), e, moments in matrices:
        row, column = factors.matrices[name]
        latest = latest + jnp.square(row.T @ e @ column).sum((-1, -2)).mean()
        # The moments of the rows have been whitened by the column factor without its level.
        row = row * _unit(column)[1]
        seen = seen + columns * (row * (moments.rows.score_covariance @ row)).sum()
    return judged(seen, latest)


def _lenient(state: MatrixNormalRegression) -> MatrixNormalRegression:
    """The state after pairs that were left out."""

    def wider(block: BlockMoments) -> BlockMoments:
        return block._replace(score_covariance=LENIENCE * block.score_covariance)

    matrices = tuple(MatrixMoments(wider(one.rows), wider(one.columns)) for one in state.matrices)
    return state._replace(matrices=matrices, rest=wider(state.rest))


def updated_factors(
    regression: MatrixNormalRegression, factors: Factors, blocks: Blocks, trust: float = TRUST
) -> Factors:
    """Factors of the next guide, from the running moments and the present guide's.

    Parameters
    ----------
    regression : MatrixNormalRegression
    factors : Factors
        Of the present guide.
    blocks : Blocks
        Division of the flat vector.
    trust : float
        The constant c > 1 of the trust region.
    """
    number = regression.seen.worth
    means, rest_mean = _split(factors.mean, blocks)
    mean_theta, rest_theta = _split(regression.mean_theta, blocks)
    mean_score, rest_score = _split(regression.mean_score, blocks)
    moved, matrices = [], {}
    for index, (name, _, _) in enumerate(blocks.matrices):
        matrix = _Matrix(means[index], *factors.matrices[name])
        seen = regression.matrices[index]
        matrix = _updated(matrix, seen, mean_theta[index], mean_score[index], number, trust)
        moved.append(matrix.mean)
        matrices[name] = (matrix.row, matrix.column)
    rest = rest_mean, factors.scale
    rest_mean, scale = _updated_rest(*rest, regression.rest, rest_theta, rest_score, number, trust)
    return Factors(_join(moved, rest_mean, blocks), scale, matrices)


class _Matrix(NamedTuple):
    """Mean (n, p) and factors A (n, n) and B (p, p) of one matrix."""

    mean: jax.Array
    row: jax.Array
    column: jax.Array


def _updated(
    matrix: _Matrix,
    seen: MatrixMoments,
    mean_theta: jax.Array,
    mean_score: jax.Array,
    number: jax.Array,
    trust: float,
) -> _Matrix:
    """The next guide of one matrix. ``mean_theta`` and ``mean_score`` are (n, p)."""
    rows, columns = matrix.mean.shape
    unit_column, level = _unit(matrix.column)
    # The factor that is regressed has the scale of the whole, and the other one has none.
    row, column = matrix.row * level, matrix.column * _unit(matrix.row)[1]
    row_step = whitened_step(_whitened(seen.rows, row), number * columns, trust)
    column_step = whitened_step(_whitened(seen.columns, column), number * rows, trust)
    row_factor = jnp.linalg.cholesky(row_step.covariance)
    shape, _ = _unit(jnp.linalg.cholesky(column_step.covariance))
    offset = _solve_lower(unit_column, mean_theta - matrix.mean)
    offset = _solve_lower(row, offset.T).T
    move = offset + row_step.covariance @ (row.T @ mean_score @ unit_column) @ (shape @ shape.T)
    pull = row_step.pull[:, None] + column_step.pull
    turned = row_step.basis.T @ move @ column_step.basis
    move = limited_move(row_step.basis @ (turned / (1.0 + pull)) @ column_step.basis.T)
    mean = matrix.mean + row @ move @ unit_column.T
    return _Matrix(mean, row @ row_factor, unit_column @ shape)


def _updated_rest(
    mean: jax.Array,
    scale: jax.Array,
    seen: BlockMoments,
    mean_theta: jax.Array,
    mean_score: jax.Array,
    number: jax.Array,
    trust: float,
) -> tuple[jax.Array, jax.Array]:
    """Mean (R,) and standard deviations (R,) of the coordinates that belong to no matrix."""
    # Whitened; the cross-covariance of scale * score and theta / scale is that of the two.
    spread = seen.covariance / jnp.square(scale)
    cross = seen.cross_covariance
    residual = seen.score_covariance * jnp.square(scale) - jnp.square(cross) / spread
    noise = jnp.maximum(residual, 0.0) / free_share(1, number)
    pull = noise / number
    precision = limited((pull - cross) / (spread + pull), noise, trust)
    move = (mean_theta - mean) / scale + scale * mean_score / precision
    move = jnp.clip(move / (1.0 + pull), -1.0, 1.0)
    return mean + scale * move, scale / jnp.sqrt(precision)


def _unit(factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A triangular factor over the geometric mean of its diagonal, and that mean."""
    level = jnp.exp(jnp.log(jnp.diagonal(factor)).mean())
    return factor / level, level


def _moments(d: jax.Array, e: jax.Array) -> BlockMoments:
    """Moments (n, n) of the columns of all pairs' matrices (K, n, p)."""

    def product(one: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.einsum("kia,kja->ij", one, other) / (one.shape[0] * one.shape[2])

    return BlockMoments(product(d, d), product(e, d), product(e, e))


def _whitened(block: BlockMoments, scale_tril: jax.Array) -> BlockMoments:
    """By L: V becomes L^-1 V L^-T, C becomes L^T C L^-T and R becomes L^T R L."""
    covariance = _solve_lower(scale_tril, _solve_lower(scale_tril, block.covariance).T)
    cross = _solve_lower(scale_tril, scale_tril.T @ block.cross_covariance)
    return BlockMoments(covariance, cross, scale_tril.T @ block.score_covariance @ scale_tril)
