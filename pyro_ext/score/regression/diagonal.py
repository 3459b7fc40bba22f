"""Closed form for diagonal Normal guides."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_ext.guides.flat_density import Moments, Parameters
from pyro_ext.score.regression.base import ClosedForm
from pyro_ext.score.regression.full import SPARE_PAIRS, free_share, limited
from pyro_ext.score.regression.pairs import Count, advanced, averaged, halves


class DiagonalRegression(NamedTuple):
    """Running averages of d^2, e d and e^2 and of the pairs' centres, (D,) each."""

    seen: Count
    mean_theta: Tensor
    mean_score: Tensor
    covariance: Tensor
    cross_covariance: Tensor
    score_covariance: Tensor


class DiagonalForm(ClosedForm[DiagonalRegression]):
    """The closed form for ``AutoDiagonalNormal``: a regression for each coordinate."""

    def initial(self, parameters: Parameters) -> DiagonalRegression:
        mean = self.density.mean(parameters)
        averages = (torch.zeros_like(mean) for _ in range(5))
        return DiagonalRegression(Count(), *averages)

    def update(
        self,
        state: DiagonalRegression,
        parameters: Parameters,
        theta: Tensor,
        score: Tensor,
        total: int = 0,
    ) -> tuple[DiagonalRegression, Parameters]:
        d, e = halves(theta), halves(score)
        count, weight = advanced(state.seen, len(d), self.decay)
        latest = (theta.mean(0), score.mean(0), (d * d).mean(0), (e * d).mean(0), (e * e).mean(0))
        state = DiagonalRegression(count, *averaged(tuple(state[1:]), latest, weight))

        if count.num_pairs < 1 + SPARE_PAIRS:
            return state, parameters
        moments = _updated(state, self.density.moments(parameters), self.trust)
        return state, self.density.set_moments(parameters, moments)


def _updated(state: DiagonalRegression, moments: Moments, trust: float) -> Moments:
    mean, scale = moments
    number = state.seen.worth
    # Whitened; the cross-covariance of scale * score and theta / scale is that of the two.
    spread = state.covariance / scale.square()
    cross = state.cross_covariance
    residual = state.score_covariance * scale.square() - cross.square() / spread
    noise = residual.clamp_min(0.0) / free_share(1, number)
    pull = noise / number
    precision = limited((pull - cross) / (spread + pull), noise, trust)
    move = (state.mean_theta - mean) / scale + scale * state.mean_score / precision
    # Each coordinate is a regression of its own, so its move is limited on its own.
    move = (move / (1.0 + pull)).clamp(-1.0, 1.0)
    return Moments(mean + scale * move, scale / precision.sqrt())
