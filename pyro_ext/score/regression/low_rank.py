"""Closed form for low-rank Normal guides: every coordinate's score is regressed on the factor's.

The method is told in :mod:`ppl_ext.regression.low_rank`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import transform_to

from ppl_ext.regression.full import SPARE_PAIRS
from ppl_ext.regression.low_rank import LEAST
from ppl_ext.regression.overflow import LENIENCE
from pyro_ext.guides.flat_density import Parameters
from pyro_ext.score.overflow import Verdict, judged
from pyro_ext.score.regression.base import ClosedForm
from pyro_ext.score.regression.full import (
    BlockMoments,
    free_share,
    limited,
    limited_move,
    whitened_step,
)
from pyro_ext.score.regression.pairs import Count, advanced, averaged, halves, next_weight


class LowRankRegression(NamedTuple):
    """What was seen so far.

    ``mean_theta`` and ``mean_score`` are averages over the pairs' centres, ``covariance``,
    ``cross_covariance`` and ``score_covariance`` those of d^2, e d and e^2, (D,) each. With the
    factor's coordinates y, ``theta_factor`` and ``score_factor`` are those of d y^T and e y^T,
    (D, r), and ``factor`` and ``factor_score`` those of y y^T and y_e y_e^T, (r, r).
    """

    seen: Count
    mean_theta: Tensor
    mean_score: Tensor
    covariance: Tensor
    cross_covariance: Tensor
    score_covariance: Tensor
    theta_factor: Tensor
    score_factor: Tensor
    factor: Tensor
    factor_score: Tensor


class LowRankMoments(NamedTuple):
    """Mean (D,), scale (D,) and factor W (D, r): the covariance is S (I + W W^T) S."""

    mean: Tensor
    scale: Tensor
    factor: Tensor


class Frame(NamedTuple):
    """Standard coordinates in the span of a factor.

    ``basis`` T (D, r) is orthonormal and ``root`` K (r, r) lower triangular. For the halves d and e
    of a pair, y is the transpose of ``to_factor`` times d, and y_e that of ``from_factor`` times e;
    both are (D, r).
    """

    basis: Tensor
    root: Tensor
    to_factor: Tensor
    from_factor: Tensor


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
        return LowRankRegression(Count(), *(mean.new_zeros(shape) for shape in shapes))

    def update(
        self,
        state: LowRankRegression,
        parameters: Parameters,
        theta: Tensor,
        score: Tensor,
        total: int = 0,
        log_density: Tensor | None = None,
    ) -> tuple[LowRankRegression, Parameters]:
        moments = self._moments(parameters)
        verdict = _verdict(state, moments, score)
        if not verdict.sound:
            return verdict.choose(_lenient(state), self.initial(parameters), state), parameters
        state = observed(state, moments, theta, score, self.decay)
        if state.seen.num_pairs < moments.factor.shape[1] + 1 + SPARE_PAIRS:
            return state, parameters
        state, updated = updated_guide(state, moments, self.trust)
        return state, self._set_moments(updated)

    def _moments(self, parameters: Parameters) -> LowRankMoments:
        scale = transform_to(self.density.guide.scale_constraint)(parameters["scale_unconstrained"])
        return LowRankMoments(parameters["loc"], scale, parameters["cov_factor"])

    def _set_moments(self, moments: LowRankMoments) -> Parameters:
        transform = transform_to(self.density.guide.scale_constraint)
        return {
            "loc": moments.mean,
            "scale_unconstrained": transform.inv(moments.scale).clone(),
            "cov_factor": moments.factor,
        }


def frame_of(moments: LowRankMoments) -> Frame:
    """Coordinates of a guide's factor, a unique and smooth function of W of full column rank."""
    scale, factor = moments.scale[:, None], moments.factor
    identity = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
    root = torch.linalg.cholesky(factor.T @ factor)
    basis = _over(factor, root)
    root = torch.linalg.cholesky(identity + root.T @ root)
    return Frame(basis, root, _over(basis, root) / scale, scale * (basis @ root))


def observed(
    state: LowRankRegression,
    moments: LowRankMoments,
    theta: Tensor,
    score: Tensor,
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


def _verdict(state: LowRankRegression, moments: LowRankMoments, score: Tensor) -> Verdict:
    """Of the latest scores (2 K, D) and those seen before, in units of the present guide.

    What lies in the span of the factor is counted twice, which matters to no verdict.
    """
    frame, e = frame_of(moments), halves(score)
    seen = (state.score_covariance * moments.scale.square()).sum() + state.factor_score.trace()
    latest = (e * moments.scale).square().sum(-1) + (e @ frame.from_factor).square().sum(-1)
    return judged(float(seen), float(latest.mean()))


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
    outside = ((move - frame.basis @ inside) / (1.0 + pull)).clamp(-1.0, 1.0)
    inside = _solved(frame.root, inside.unsqueeze(-1)).squeeze(-1)
    inside = limited_move(step.basis @ ((step.basis.T @ inside) / (1.0 + step.pull)))
    move = frame.basis @ (frame.root @ inside) + outside

    updated = LowRankMoments(mean + scale * move, new_scale, new_factor)
    return _carried(state, frame, frame_of(updated)), updated


def _rows(
    state: LowRankRegression, scale: Tensor, frame: Frame, trust: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Regression of every coordinate's score on z_i and y.

    Returns the next precision 1 / scale^2 over the present (D,), the coefficients of y (D, r) and
    the pull (D,) of the precision.
    """
    number, (dim, rank) = state.seen.worth, frame.basis.shape
    precision = torch.finfo(scale.dtype)
    # In the eigenbasis of y y^T the pull differs from row to row and still takes no r x r system.
    spread, axes = torch.linalg.eigh(state.factor)
    spread = spread.clamp_min(precision.eps * float(spread[-1]))
    along = (state.theta_factor / scale[:, None]) @ axes
    score_along = (state.score_factor * scale[:, None]) @ axes
    variance, covariance = state.covariance / scale.square(), state.cross_covariance

    def solved(first: Tensor, rest: Tensor, first_pull: Tensor | float, spread: Tensor) -> Tensor:
        """The first coefficient."""
        share = along / spread
        free = variance + first_pull - (share * along).sum(1)
        free = torch.maximum(free, precision.eps * variance)
        return (first - (share * rest).sum(1)) / free

    slope = solved(covariance, score_along, 0.0, spread)
    others = (score_along - slope[:, None] * along) / spread
    residual = state.score_covariance * scale.square()
    residual = residual - slope * covariance - (others * score_along).sum(1)
    noise = residual.clamp_min(0.0) / free_share(rank + 1, number)

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
    scale: Tensor,
    frame: Frame,
    covariance: Tensor,
    ratio: Tensor,
    coefficients: Tensor,
    trust: float,
) -> tuple[Tensor, Tensor]:
    """The next scale and factor: the smallest eigenvalues of a precision that is known on a basis.

    Parameters
    ----------
    covariance : tensor (r, r)
        The next guide's in the span of the present factor.
    ratio, coefficients : tensors (D,), (D, r)
        Results of :func:`_rows`.
    """
    basis, root = frame.basis, frame.root
    rank = basis.shape[1]
    # Off the span, in standard coordinates on the right side: H T K for z's precision H.
    turn = ratio[:, None] * (basis @ root) - coefficients
    turn = turn - basis @ (basis.T @ turn)
    length = float(torch.linalg.eigvalsh(turn.T @ turn)[-1].clamp_min(0.0).sqrt())
    longest = 1.0 - 1.0 / trust
    turn = turn * (longest / max(length, longest))
    known = _solved_transposed(root, torch.linalg.inv(covariance))
    known = _over_transposed(basis @ known + turn, root)
    # In coordinates z sqrt(ratio) of the new scales.
    stretch = ratio.sqrt()[:, None]
    stretched = stretch * basis
    triangle = torch.linalg.cholesky(stretched.T @ stretched)
    stretched, known = _over(stretched, triangle), _over(known / stretch, triangle)
    inside = stretched.T @ known
    outside = known - stretched @ inside
    frame_axes, _ = torch.linalg.qr(torch.cat([stretched, outside], dim=1))
    one, two = frame_axes.T @ stretched, frame_axes.T @ outside
    small = trust * (torch.eye(len(one), dtype=one.dtype, device=one.device) - one @ one.T)
    small = small + one @ (0.5 * (inside + inside.T)) @ one.T + one @ two.T + two @ one.T
    eigenvalues, vectors = torch.linalg.eigh(small)
    tiny = torch.finfo(scale.dtype).eps
    eigenvalues = eigenvalues[:rank].clamp(tiny, 1.0 / (1.0 + LEAST))
    lengths = (1.0 / eigenvalues - 1.0).sqrt()
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


def _over(rows: Tensor, triangle: Tensor) -> Tensor:
    """Rows times the inverse of the transpose of a lower triangular matrix."""
    return _solved(triangle, rows.T).T


def _over_transposed(rows: Tensor, triangle: Tensor) -> Tensor:
    """Rows times the inverse of a lower triangular matrix."""
    return _solved_transposed(triangle, rows.T).T


def _solved(triangle: Tensor, columns: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(triangle, columns, upper=False)


def _solved_transposed(triangle: Tensor, columns: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(triangle.T, columns, upper=True)
