"""Closed form for low-rank Normal guides: every coordinate's score is regressed on the factor's.

The guide has the covariance Sigma = S (I + W W^T) S with S = diag(scale) and W of shape (D, r). In
z = (theta - m) / scale its precision is I - T G T^T, where T (D, r) is an orthonormal basis of W's
columns and G = I - (K K^T)^-1 with K K^T = I + T^T W W^T T. So the score of coordinate i,

    s_i e_i = -z_i + (T G K)_i y,    y = K^-1 T^T z,

is linear in z_i and in the r standard coordinates y. With P the guide's precision and A minus the
target's mean curvature E_q[grad score], for which E[e d^T] = -A Sigma by Stein's identity, the
evidence lower bound is stationary in the scales where diag((A - P) Sigma) = 0, that is where
-E[e_i d_i] = 1, and in W where (A - P) Sigma S^-1 T = 0, that is where

    -E[s_i e_i y] = (T K^-T)_i.

These are the normal equations of that regression. Mirrored pairs give the halves d and e of the
differences, see :mod:`ppl_ext.score_matching.regression.pairs`, and running averages of d_i^2, e_i
d_i, e_i^2, d_i y, e_i y and y y^T are all that is kept: O(D r) memory, and no learning rate.

*One update* has three parts, each of which knows its noise (see
:mod:`ppl_ext.score_matching.regression.full`):

- Coordinate i is regressed on (z_i, y), pulled towards the present guide's coefficients by
  (r + 1) r_i / n for z_i and D r_i / n for y, with r_i the variance of the residual. The
  coefficient of z_i, in [1 / (1 + (c - 1) / (1 + (r + 1) r_i / 3)), c], multiplies 1 / s_i^2.
- In the span of T the full-covariance step is taken, on r coordinates: y against y_e = K^T T^T S e.
- What the coefficients of y have outside of that span, F, turns it. In coordinates of the new
  scales the target's precision H is known on the basis, and off it taken for c: for a target of
  the family it is one there, and slightly more keeps directions that are hardly better than any
  other from turning at random. The r smallest eigenvalues of H on the span of T and F, which takes
  2r x 2r matrices, and their eigenvectors are the next guide's. F is no longer than 1 - 1/c.

Earlier y belong to earlier bases. The averages are multiplied on the right by the r x r matrix
that maps the old coordinates to the new ones. As e = -A d holds for every pair, what is known of A
stays exact when the basis turns; only the directions in which it is known are older ones.

The mean moves by m+ - m = E[theta] - m + Sigma+ E[score], over one plus the pull, by at most one
unit in the span and by one unit in each coordinate outside. Averages for the mean forget sooner,
with weights (t + 1)^-(decay^2): outside of the family Sigma+ A is not the identity, and a mean that
started far away is approached more slowly where it is small.

The fixed point is that of the evidence lower bound for any target. Where target and guide have the
same form and there is no noise, no regression has a residual; otherwise what the family cannot
follow acts as noise that vanishes with n.

Pairs with scores that come from an overflow are left out, see
:mod:`ppl_ext.score_matching.regression.overflow`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Float

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
    Count,
    advanced,
    averaged,
    halves,
    mean_of,
    next_weight,
)

# Least squared length of a column of the factor: one of length zero has no direction to learn.
LEAST = 1e-3


class LowRankRegression(NamedTuple):
    """What was seen so far.

    ``mean_theta`` and ``mean_score`` are averages over the pairs' centres, ``covariance``,
    ``cross_covariance`` and ``score_covariance`` those of d^2, e d and e^2, (D,) each. With the
    factor's coordinates y, ``theta_factor`` and ``score_factor`` are those of d y^T and e y^T,
    (D, r), and ``factor`` and ``factor_score`` those of y y^T and y_e y_e^T, (r, r).
    """

    seen: Count
    mean_theta: Float[Any, " D"]
    mean_score: Float[Any, " D"]
    covariance: Float[Any, " D"]
    cross_covariance: Float[Any, " D"]
    score_covariance: Float[Any, " D"]
    theta_factor: Float[Any, "D r"]
    score_factor: Float[Any, "D r"]
    factor: Float[Any, "r r"]
    factor_score: Float[Any, "r r"]

    def lenient(self) -> LowRankRegression:
        """The state after pairs that were left out."""
        return self._replace(
            score_covariance=LENIENCE * self.score_covariance,
            factor_score=LENIENCE * self.factor_score,
        )


class LowRankMoments(NamedTuple):
    """Mean (D,), scale (D,) and factor W (D, r): the covariance is S (I + W W^T) S."""

    mean: Float[Any, " D"]
    scale: Float[Any, " D"]
    factor: Float[Any, "D r"]


class Frame(NamedTuple):
    """Standard coordinates in the span of a factor.

    ``basis`` T (D, r) is orthonormal and ``root`` K (r, r) lower triangular. For the halves d and e
    of a pair, y is the transpose of ``to_factor`` times d, and y_e that of ``from_factor`` times e;
    both are (D, r).
    """

    basis: Float[Any, "D r"]
    root: Float[Any, "r r"]
    to_factor: Float[Any, "D r"]
    from_factor: Float[Any, "D r"]


class LowRankForm(BlockForm, ClosedForm[LowRankRegression]):
    """The closed form for ``AutoLowRankMultivariateNormal``.

    O(D r) memory and O(D r^2) operations. ``update`` has to be called with the parameters that the
    last call returned, as the averages are kept in coordinates of that guide.
    """

    def moments(self, parameters: Any) -> LowRankMoments:
        """Of the guide with these parameters."""
        return LowRankMoments(*self.density.parts(parameters))

    def unsuited(self, parameters: Any) -> str | None:
        dim, rank = self.moments(parameters).factor.shape
        if rank < dim:
            return None
        # A factor that spans everything leaves the scales nothing to be regressed on.
        return (
            f"Expected a rank below the number of latents, {dim}, with solver='regression', found "
            f"rank={rank}. Use AutoMultivariateNormal, or solver='gradient'."
        )

    @classmethod
    def initial_regression(cls, mean: Float[Any, " D"], rank: int) -> LowRankRegression:
        """No observations yet; zeros like the guide's mean (D,)."""
        dim = len(mean)
        shapes = [(dim,)] * 5 + [(dim, rank)] * 2 + [(rank, rank)] * 2
        averages = (cls.arrays.filled(shape, mean) for shape in shapes)
        return LowRankRegression(cls.arrays.first_count(mean), *averages)

    def initial(self, parameters: Any) -> LowRankRegression:
        mean, _, factor = self.moments(parameters)
        return self.initial_regression(mean, factor.shape[1])

    def update(
        self, state: LowRankRegression, parameters: Any, given: Observed
    ) -> tuple[LowRankRegression, Any]:
        theta, score = given.theta, given.score
        before, moments = state, self.moments(parameters)
        verdict = self.arrays.judged(*self.squares(state, moments, score))

        def moved(both: tuple[LowRankRegression, Any]) -> tuple[LowRankRegression, Any]:
            state, updated = self.updated_guide(both[0], moments, self.trust)
            return state, self.density.set_parts(*updated)

        state = verdict.choose(
            before.lenient,
            lambda: self.initial(parameters),
            lambda: self.observed(before, moments, theta, score, self.decay),
        )
        warm = state.seen.num_pairs >= moments.factor.shape[1] + 1 + SPARE_PAIRS
        return self.arrays.where_ready(verdict.sound & warm, moved, (state, parameters))

    @classmethod
    def frame_of(cls, moments: LowRankMoments) -> Frame:
        """Coordinates of a guide's factor: a unique, smooth function of W of full column rank."""
        # The Cholesky factor and not an eigenbasis: eigenvectors of equal eigenvalues are any, and
        # would turn from step to step.
        scale, factor, arrays = moments.scale[:, None], moments.factor, cls.arrays
        identity = arrays.identity(factor.shape[1], factor)
        # With R R' = W' W and T = W R'^-1, which is orthonormal: W W' = T R' R T', and K K' = I +
        # R' R.
        root = arrays.xp.linalg.cholesky(factor.T @ factor)
        basis = arrays.solve_lower(root, factor)
        root = arrays.xp.linalg.cholesky(identity + root.T @ root)
        return Frame(basis, root, arrays.solve_lower(root, basis) / scale, scale * (basis @ root))

    @classmethod
    def observed(
        cls,
        state: LowRankRegression,
        moments: LowRankMoments,
        theta: Float[Any, "S D"],
        score: Float[Any, "S D"],
        decay: float,
    ) -> LowRankRegression:
        """Add scores (2 K, D) taken at mirrored points theta (2 K, D) of the present guide."""
        frame = cls.frame_of(moments)
        d, e = halves(theta), halves(score)
        pairs = len(d)
        y, y_score = d @ frame.to_factor, e @ frame.from_factor
        weight = next_weight(state.seen, decay)
        # Means forget sooner: outside of the family a mean approaches more slowly than a scale.
        mean_weight = next_weight(state.seen, decay**2)
        means = averaged(tuple(state[1:3]), (mean_of(theta), mean_of(score)), mean_weight)
        latest = (
            mean_of(d * d),
            mean_of(e * d),
            mean_of(e * e),
            d.T @ y / pairs,
            e.T @ y / pairs,
            y.T @ y / pairs,
            y_score.T @ y_score / pairs,
        )
        seen = advanced(state.seen, pairs, weight)
        return LowRankRegression(seen, *means, *averaged(tuple(state[3:]), latest, weight))

    @classmethod
    def squares(
        cls, state: LowRankRegression, moments: LowRankMoments, score: Float[Any, "S D"]
    ) -> tuple[Any, Any]:
        """Mean squares of scores that were seen, and of the latest (2 K, D), as the guide has them.

        What lies in the span of the factor is counted twice, which matters to no verdict.
        """
        frame, e = cls.frame_of(moments), halves(score)
        square = cls.arrays.xp.square
        seen = (state.score_covariance * square(moments.scale)).sum()
        latest = square(e * moments.scale).sum() + square(e @ frame.from_factor).sum()
        return seen + state.factor_score.trace(), latest / len(e)

    @classmethod
    def updated_guide(
        cls, state: LowRankRegression, moments: LowRankMoments, trust: float
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
        frame = cls.frame_of(moments)
        # E[y_e y^T], as y_e = from_factor^T e.
        cross = frame.from_factor.T @ state.score_factor
        block = BlockMoments(state.factor, cross, state.factor_score)
        step = cls.whitened_step(block, state.seen.worth, trust)
        ratio, coefficients, pull = cls._rows(state, scale, frame, trust)
        new_scale, new_factor = cls._merged(
            scale, frame, step.covariance, ratio, coefficients, trust
        )

        # Sigma+ E[score] = S (I + W W^T) S E[score], in units of the present scales.
        scaled = new_scale * state.mean_score
        move = (state.mean_theta - mean) / scale
        move = move + new_scale / scale * (scaled + new_factor @ (new_factor.T @ scaled))
        inside = frame.basis.T @ move
        # The coordinates outside are regressions of their own, each with its own noise and limit.
        outside = ((move - frame.basis @ inside) / (1.0 + pull)).clip(-1.0, 1.0)
        # To standard coordinates of the span, in which the step's basis and pull are.
        inside = cls.arrays.solve_lower(frame.root, inside[None])[0]
        inside = cls.limited_move(step.basis @ ((step.basis.T @ inside) / (1.0 + step.pull)))
        move = frame.basis @ (frame.root @ inside) + outside

        updated = LowRankMoments(mean + scale * move, new_scale, new_factor)
        return cls._carried(state, frame, cls.frame_of(updated)), updated

    @classmethod
    def _rows(
        cls, state: LowRankRegression, scale: Float[Any, " D"], frame: Frame, trust: float
    ) -> tuple[Float[Any, " D"], Float[Any, "D r"], Float[Any, " D"]]:
        """Regression of every coordinate's score on z_i and y.

        Returns the next precision 1 / scale^2 over the present (D,), the coefficients of y (D, r)
        and the pull (D,) of the precision.
        """
        number, (dim, rank) = state.seen.worth, frame.basis.shape
        precision = cls.arrays.xp.finfo(scale.dtype)
        # In the eigenbasis of y y^T the pull differs from row to row and takes no r x r system.
        spread, axes = cls.arrays.xp.linalg.eigh(state.factor)
        # A direction without pairs has no spread; it must not rule by division.
        spread = spread.clip(min=precision.eps * spread[-1])
        along = (state.theta_factor / scale[:, None]) @ axes
        score_along = (state.score_factor * scale[:, None]) @ axes
        variance, covariance = state.covariance / (scale * scale), state.cross_covariance

        def solved(first: Any, rest: Any, first_pull: Any, spread: Any) -> Any:
            """The first coefficient."""
            share = along / spread
            free = variance + first_pull - (share * along).sum(1)
            # What y leaves of z_i; nothing, to rounding, where the factor tells the coordinate.
            free = free.clip(min=precision.eps * variance)
            return (first - (share * rest).sum(1)) / free

        slope = solved(covariance, score_along, 0.0, spread)
        others = (score_along - slope[:, None] * along) / spread
        residual = state.score_covariance * scale * scale
        residual = residual - slope * covariance - (others * score_along).sum(1)
        noise = residual.clip(min=0.0) / free_share(rank + 1, number)

        present = (frame.from_factor / scale[:, None] - frame.to_factor * scale[:, None]) @ axes
        # Cross-moments of what the present guide leaves, s_i e_i + z_i - (T G K)_i y.
        first = covariance + variance - (present * along).sum(1)
        rest = score_along + along - present * spread
        pull = (rank + 1) * noise / number
        pulled_spread = spread + (dim * noise / number)[:, None]
        ratio = limited(1.0 - solved(first, rest, pull, pulled_spread), (rank + 1) * noise, trust)
        # The normal equations of y once the coefficient of z_i is limited: ``ratio - 1`` is what
        # z_i takes less than the regression wanted.
        coefficients = present + (rest + (ratio - 1.0)[:, None] * along) / pulled_spread
        return ratio, coefficients @ axes.T, pull

    @classmethod
    def _merged(
        cls,
        scale: Float[Any, " D"],
        frame: Frame,
        covariance: Float[Any, "r r"],
        ratio: Float[Any, " D"],
        coefficients: Float[Any, "D r"],
        trust: float,
    ) -> tuple[Float[Any, " D"], Float[Any, "D r"]]:
        """The next scale and factor: the least eigenvalues of a precision that is known on a basis.

        Parameters
        ----------
        covariance : array (r, r)
            The next guide's in the span of the present factor.
        ratio, coefficients : arrays (D,), (D, r)
            Results of ``_rows``.
        """
        basis, root = frame.basis, frame.root
        rank = basis.shape[1]
        # Off the span, in standard coordinates on the right side: H T K for z's precision H.
        turn = ratio[:, None] * (basis @ root) - coefficients
        turn = turn - basis @ (basis.T @ turn)
        # The largest singular value: the turn as a whole is shortened, and keeps its direction.
        length = cls.arrays.xp.sqrt(cls.arrays.xp.linalg.eigvalsh(turn.T @ turn)[-1].clip(min=0.0))
        longest = 1.0 - 1.0 / trust
        turn = turn * (longest / length.clip(min=longest))
        inverse = cls.arrays.xp.linalg.inv(covariance)
        # H T = T K^-T C^-1 K^-1 + turn K^-1 with C the covariance in standard coordinates of the
        # span.
        known = cls.arrays.solve_lower(root, inverse.T, transpose=True).T
        known = cls.arrays.solve_lower(root, basis @ known + turn, transpose=True)
        # In coordinates z sqrt(ratio) of the new scales.
        stretch = cls.arrays.xp.sqrt(ratio)[:, None]
        stretched = stretch * basis
        triangle = cls.arrays.xp.linalg.cholesky(stretched.T @ stretched)
        stretched = cls.arrays.solve_lower(triangle, stretched)
        known = cls.arrays.solve_lower(triangle, known / stretch)
        inside = stretched.T @ known
        outside = known - stretched @ inside
        # All that is known of H is in these 2 r directions, so that its least eigenvectors are
        # found without a matrix (D, D).
        frame_axes, _ = cls.arrays.xp.linalg.qr(cls.arrays.xp.concatenate([stretched, outside], 1))
        one, two = frame_axes.T @ stretched, frame_axes.T @ outside
        # Off the known directions the precision counts as c; see the module on turning at random.
        small = trust * (cls.arrays.identity(len(one), one) - one @ one.T)
        small = small + one @ (0.5 * (inside + inside.T)) @ one.T + one @ two.T + two @ one.T
        eigenvalues, vectors = cls.arrays.xp.linalg.eigh(small)
        tiny = cls.arrays.xp.finfo(scale.dtype).eps
        # Above: a column of length zero would have no direction left to learn.
        eigenvalues = eigenvalues[:rank].clip(tiny, 1.0 / (1.0 + LEAST))
        lengths = cls.arrays.xp.sqrt(1.0 / eigenvalues - 1.0)
        return scale / stretch[:, 0], (frame_axes @ vectors[:, :rank]) * lengths

    @classmethod
    def _carried(cls, state: LowRankRegression, old: Frame, new: Frame) -> LowRankRegression:
        """What was seen, in the coordinates of a new factor."""
        # y = d to_factor: the old frame's inverse map, then the new one's map, both r by r.
        turn = old.from_factor.T @ new.to_factor
        score_turn = old.to_factor.T @ new.from_factor
        return state._replace(
            theta_factor=state.theta_factor @ turn,
            score_factor=state.score_factor @ turn,
            factor=turn.T @ state.factor @ turn,
            factor_score=score_turn.T @ state.factor_score @ score_turn,
        )
