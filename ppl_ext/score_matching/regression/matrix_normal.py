"""Closed form for matrix-normal guides: the rows and the columns of a matrix regressed in turn.

A matrix W (n x p) has the guide W = M + A E B^T with standard Normal E, so row covariance
U = A A^T and column covariance V = B B^T. Its score is S(W) = -U^-1 (W - M) V^-1. With D and S
half the differences of a mirrored pair's matrices and of its scores (see
:mod:`ppl_ext.score_matching.regression.pairs`),

    S B = -U^-1 (D B^-T),     A^T S = -(A^-1 D) V^-1:

the p columns of one pair are p observations for the regression of U^-1, and its n rows are n
observations for that of V^-1. Each is a regression of the kind that
:mod:`ppl_ext.score_matching.regression.full` describes, with the same steps that know the noise,
from

    E[D V^-1 D^T] / p,   E[S D^T] / p,   E[S V S^T] / p       for the rows,
    E[D^T U^-1 D] / n,   E[S^T D] / n,   E[S^T U S] / n       for the columns.

*Old moments.* U and V change from update to update. The running averages take each pair with the
factors that drew it. For a target with precision K (x) L, E[D V^-1 D^T] = p U and
E[S D^T] = -tr(L V) K U, so the slope is proportional to K whatever V was: a wrong column factor
adds noise to the row factor, and no bias, and the noise vanishes as both become right. For the
same reason early pairs are worth less than late ones, and the averages forget faster than those
of a full guide: their weights are f (t + 1)^-decay, at most one, with f = ``FORGETTING``.

*One scale.* A and B share a scale, (c A, B / c) being the same guide. In the moments of the rows V
is divided by det(V)^(1/p), and U takes that factor, so that the row step tells the scale of the
whole; in those of the columns U is. Of the column step only the shape is taken, its covariance
divided by the geometric mean of its eigenvalues: otherwise a common factor, which both steps see,
would be counted twice.

*Mean.* M+ - M = E[W] - M + U+ E[S] V+, in the noise's eigenbases of rows and columns entry (i, j)
over 1 + rho_i + rho_j, and by at most one unit of Mahalanobis distance for a matrix. Its averages
E[W] and E[S] have weights of the same form. There f falls linearly to one over a run of known
length: a mean that is still on its way, as in a network, must forget where it came from, and one
that has arrived should average.

Coordinates that belong to no matrix are regressions of one coordinate each.

The fixed point has E_q[S] = 0, -E_q[S (W - M)^T] = p I and -E_q[S^T (W - M)] = n I in whitened
coordinates, where the evidence lower bound is stationary.

Pairs with scores that come from an overflow are left out, see
:mod:`ppl_ext.score_matching.regression.overflow`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Float

from ppl_ext.guides.layouts import Blocks
from ppl_ext.guides.matrix_normal import Factors
from ppl_ext.score_matching.options import DECAY, TRUST
from ppl_ext.score_matching.regression.base import ClosedForm, Observed
from ppl_ext.score_matching.regression.full import (
    SPARE_PAIRS,
    BlockForm,
    BlockMoments,
    free_share,
    limited,
)
from ppl_ext.score_matching.regression.overflow import LENIENCE
from ppl_ext.score_matching.regression.pairs import (
    FORGETTING,
    Count,
    advanced,
    averaged,
    halves,
    next_mean_weight,
    next_weight,
)


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
    mean_theta: Float[Any, " D"]
    mean_score: Float[Any, " D"]
    matrices: tuple[MatrixMoments, ...]
    rest: BlockMoments


class _Matrix(NamedTuple):
    """Mean (n, p) and factors A (n, n) and B (p, p) of one matrix."""

    mean: Float[Any, "n p"]
    row: Float[Any, "n n"]
    column: Float[Any, "p p"]


def is_warm(regression: MatrixNormalRegression, blocks: Blocks) -> Any:
    """Whether enough pairs were seen for an update: for each factor and for the rest."""
    pairs = regression.seen.num_pairs
    warm = pairs >= 1 + SPARE_PAIRS
    for _, _, (rows, columns) in blocks.matrices:
        # The p columns of a pair are p observations of its n rows.
        warm &= pairs * columns >= rows + SPARE_PAIRS
        warm &= pairs * rows >= columns + SPARE_PAIRS
    return warm


def _lenient(state: MatrixNormalRegression) -> MatrixNormalRegression:
    """The state after pairs that were left out."""

    def wider(block: BlockMoments) -> BlockMoments:
        return block._replace(score_covariance=LENIENCE * block.score_covariance)

    matrices = tuple(MatrixMoments(wider(one.rows), wider(one.columns)) for one in state.matrices)
    return state._replace(matrices=matrices, rest=wider(state.rest))


def _moments(d: Float[Any, "K n p"], e: Float[Any, "K n p"]) -> BlockMoments:
    """Moments (n, n) of the columns of all pairs' matrices (K, n, p)."""

    def product(one: Any, other: Any) -> Float[Any, "n n"]:
        return (one @ other.mT).sum(0) / (one.shape[0] * one.shape[2])

    return BlockMoments(product(d, d), product(e, d), product(e, e))


class MatrixNormalForm(BlockForm, ClosedForm[MatrixNormalRegression]):
    """The closed form for ``AutoMatrixNormal``.

    O(n^2 + p^2) memory and O((n + p)^3) operations for a matrix.
    """

    @classmethod
    def initial_regression(cls, mean: Float[Any, " D"], blocks: Blocks) -> MatrixNormalRegression:
        """No observations yet; zeros like the guide's mean (D,)."""

        def zeros(*shape: int) -> BlockMoments:
            # Arrays of their own each, so that the state can be donated.
            return BlockMoments(*(cls.arrays.filled(shape, mean) for _ in range(3)))

        matrices = tuple(
            MatrixMoments(zeros(rows, rows), zeros(columns, columns))
            for _, _, (rows, columns) in blocks.matrices
        )
        theta, score = (cls.arrays.filled(mean.shape, mean) for _ in range(2))
        count, rest = cls.arrays.first_count(mean), zeros(blocks.num_rest)
        return MatrixNormalRegression(count, theta, score, matrices, rest)

    def initial(self, parameters: Any) -> MatrixNormalRegression:
        return self.initial_regression(self.density.mean(parameters), self.density.blocks())

    def update(
        self, state: MatrixNormalRegression, parameters: Any, given: Observed
    ) -> tuple[MatrixNormalRegression, Any]:
        theta, score = given.theta, given.score
        before, blocks, factors = state, self.density.blocks(), self.density.factors(parameters)
        verdict = self._verdict(state, factors, blocks, score)

        def moved(parameters: Any) -> Any:
            changed = self.updated_factors(state, factors, blocks, self.trust)
            return self.density.set_factors(parameters, changed)

        state = verdict.choose(
            lambda: _lenient(before),
            lambda: self.initial(parameters),
            lambda: self.observe(before, factors, blocks, theta, score, self.decay, given.total),
        )
        ready = verdict.sound & is_warm(state, blocks)
        return state, self.arrays.where_ready(ready, moved, parameters)

    @classmethod
    def observe(
        cls,
        regression: MatrixNormalRegression,
        factors: Factors,
        blocks: Blocks,
        theta: Float[Any, "S D"],
        score: Float[Any, "S D"],
        decay: float = DECAY,
        total: Any = 0,
    ) -> MatrixNormalRegression:
        """Add scores (2 K, D) taken at the mirrored points theta (2 K, D), which ``factors`` drew.

        ``total`` is the number of iterations of the whole run, 0 when that is not known.
        """
        differences, rest = blocks.split(cls.arrays.xp, halves(theta))
        score_differences, rest_score = blocks.split(cls.arrays.xp, halves(score))
        latest = []
        for (name, _, _), d, e in zip(blocks.matrices, differences, score_differences, strict=True):
            row, column = (cls._unit(factor)[0] for factor in factors.matrices[name])
            # D B^-T and S B, the observations for U^-1. ``solve_lower`` takes vectors along the
            # last axis.
            rows = _moments(cls.arrays.solve_lower(column, d), e @ column)
            d, e = d.mT, e.mT
            latest.append(MatrixMoments(rows, _moments(cls.arrays.solve_lower(row, d), e @ row)))
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

    @classmethod
    def _verdict(
        cls,
        state: MatrixNormalRegression,
        factors: Factors,
        blocks: Blocks,
        score: Float[Any, "S D"],
    ) -> Any:
        """Of the latest scores (2 K, D) and those seen before, whitened by the present guide."""
        score_differences, rest = blocks.split(cls.arrays.xp, halves(score))
        latest = ((rest * factors.scale) ** 2).sum(-1).mean()
        seen = (state.rest.score_covariance * factors.scale**2).sum()
        matrices = zip(blocks.matrices, score_differences, state.matrices, strict=True)
        for (name, _, (_, columns)), e, moments in matrices:
            row, column = factors.matrices[name]
            latest = latest + ((row.T @ e @ column) ** 2).sum((-1, -2)).mean()
            # The moments of the rows have been whitened by the column factor without its level.
            row = row * cls._unit(column)[1]
            seen = seen + columns * (row * (moments.rows.score_covariance @ row)).sum()
        return cls.arrays.judged(seen, latest)

    @classmethod
    def updated_factors(
        cls,
        regression: MatrixNormalRegression,
        factors: Factors,
        blocks: Blocks,
        trust: float = TRUST,
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
        means, rest_mean = blocks.split(cls.arrays.xp, factors.mean)
        mean_theta, rest_theta = blocks.split(cls.arrays.xp, regression.mean_theta)
        mean_score, rest_score = blocks.split(cls.arrays.xp, regression.mean_score)
        moved, matrices = [], {}
        for index, (name, _, _) in enumerate(blocks.matrices):
            matrix = _Matrix(means[index], *factors.matrices[name])
            seen = regression.matrices[index]
            matrix = cls._updated(matrix, seen, mean_theta[index], mean_score[index], number, trust)
            moved.append(matrix.mean)
            matrices[name] = (matrix.row, matrix.column)
        rest = rest_mean, factors.scale
        rest_mean, scale = cls._updated_rest(
            *rest, regression.rest, rest_theta, rest_score, number, trust
        )
        return Factors(blocks.join(cls.arrays.xp, moved, rest_mean), scale, matrices)

    @classmethod
    def _updated(
        cls,
        matrix: _Matrix,
        seen: MatrixMoments,
        mean_theta: Float[Any, "n p"],
        mean_score: Float[Any, "n p"],
        number: Any,
        trust: float,
    ) -> _Matrix:
        """The next guide of one matrix. ``mean_theta`` and ``mean_score`` are (n, p)."""
        rows, columns = matrix.mean.shape
        unit_column, level = cls._unit(matrix.column)
        # The factor that is regressed has the scale of the whole, and the other one has none.
        row, column = matrix.row * level, matrix.column * cls._unit(matrix.row)[1]
        row_step = cls.whitened_step(cls._whitened(seen.rows, row), number * columns, trust)
        column_step = cls.whitened_step(cls._whitened(seen.columns, column), number * rows, trust)
        row_factor = cls.arrays.xp.linalg.cholesky(row_step.covariance)
        shape, _ = cls._unit(cls.arrays.xp.linalg.cholesky(column_step.covariance))
        offset = cls.arrays.solve_lower(unit_column, mean_theta - matrix.mean)
        offset = cls.arrays.solve_lower(row, offset.T).T
        move = offset + row_step.covariance @ (row.T @ mean_score @ unit_column) @ (shape @ shape.T)
        pull = row_step.pull[:, None] + column_step.pull
        turned = row_step.basis.T @ move @ column_step.basis
        move = cls.limited_move(row_step.basis @ (turned / (1.0 + pull)) @ column_step.basis.T)
        mean = matrix.mean + row @ move @ unit_column.T
        return _Matrix(mean, row @ row_factor, unit_column @ shape)

    @classmethod
    def _updated_rest(
        cls,
        mean: Float[Any, " R"],
        scale: Float[Any, " R"],
        seen: BlockMoments,
        mean_theta: Float[Any, " R"],
        mean_score: Float[Any, " R"],
        number: Any,
        trust: float,
    ) -> tuple[Float[Any, " R"], Float[Any, " R"]]:
        """Mean (R,) and standard deviations (R,) of the coordinates that belong to no matrix."""
        # Whitened; the cross-covariance of scale * score and theta / scale is that of the two.
        spread = seen.covariance / scale**2
        cross = seen.cross_covariance
        residual = seen.score_covariance * scale**2 - cross**2 / spread
        noise = residual.clip(min=0.0) / free_share(1, number)
        pull = noise / number
        precision = limited((pull - cross) / (spread + pull), noise, trust)
        move = (mean_theta - mean) / scale + scale * mean_score / precision
        move = (move / (1.0 + pull)).clip(-1.0, 1.0)
        return mean + scale * move, scale / cls.arrays.xp.sqrt(precision)

    @classmethod
    def _unit(cls, factor: Float[Any, "n n"]) -> tuple[Float[Any, "n n"], Any]:
        """A triangular factor over the geometric mean of its diagonal, and that mean."""
        level = cls.arrays.xp.exp(cls.arrays.xp.log(factor.diagonal()).mean())
        return factor / level, level

    @classmethod
    def _whitened(cls, block: BlockMoments, scale_tril: Float[Any, "n n"]) -> BlockMoments:
        """By L: V becomes L^-1 V L^-T, C becomes L^T C L^-T and R becomes L^T R L."""
        solve = cls.arrays.solve_lower
        covariance = solve(scale_tril, solve(scale_tril, block.covariance).T)
        cross = solve(scale_tril, scale_tril.T @ block.cross_covariance)
        return BlockMoments(covariance, cross, scale_tril.T @ block.score_covariance @ scale_tril)
