"""Closed form for Normal guides with a low-rank covariance in each layer of a network.

The guide has independent layers. With d_l and e_l the coordinates of layer l in the halves of the
differences of a pair and of its scores, see :mod:`ppl_ext.score_matching.regression.pairs`, and A
minus the target's mean curvature,

    E[e_l d_l^T] = -sum_k A_lk E[d_k d_l^T] = -A_ll Sigma_l,

as the layers of a draw are independent. So the evidence lower bound is stationary in the
covariance of a layer where the equations of :mod:`ppl_ext.score_matching.regression.low_rank` hold
for (d_l, e_l) alone, and every layer takes the step of that module. What e_l has from the other
layers is uncorrelated with d_l and acts as noise, which a step knows and averages.

Layers with no more coordinates than the factor has columns, such as a bias or a scale by itself,
take the step of :mod:`ppl_ext.score_matching.regression.full`: with as many columns the family has
every covariance C. It is written as S (I + W W^T) S with S^2 half the least eigenvalue of the
correlation matrix times the diagonal of C, so that W has no column of length zero among its first
ones.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from ppl_ext.guides.flat_density import Moments
from ppl_ext.guides.layouts import Layer
from ppl_ext.score_matching.regression.base import ClosedForm, Observed
from ppl_ext.score_matching.regression.full import SPARE_PAIRS, FullForm, FullRegression
from ppl_ext.score_matching.regression.low_rank import (
    LowRankForm,
    LowRankMoments,
    LowRankRegression,
)


class LayerLowRankRegression(NamedTuple):
    """What was seen so far of each layer, in the order of the guide's ``layers``."""

    layers: tuple[LowRankRegression | FullRegression, ...]


class LayerLowRankForm(ClosedForm[LayerLowRankRegression]):
    """The closed form for ``AutoLayerLowRankNormal``.

    O(D r) memory and O(D r^2) operations. ``update`` has to be called with the parameters that the
    last call returned, as the averages are kept in coordinates of that guide.
    """

    #: The steps of layers with more coordinates than the factor has columns, and of the others.
    large: ClassVar[type[LowRankForm]]
    small: ClassVar[type[FullForm]]

    @property
    def _layers(self) -> tuple[Layer, ...]:
        return tuple(self.density.guide.layers)

    def _part(self, values: Any, layer: Layer) -> Any:
        """Coordinates of a layer, of vectors (..., D)."""
        places = [values[..., start:stop] for start, stop in layer.places]
        return places[0] if len(places) == 1 else self.arrays.xp.concatenate(places, -1)

    def _joined(self, parts: list[Any]) -> Any:
        """Inverse of :meth:`_part` over all layers, for arrays (n, ...) of each layer."""
        places: dict[int, Any] = {}
        for layer, values in zip(self._layers, parts, strict=True):
            first = 0
            for start, stop in layer.places:
                places[start] = values[first : first + stop - start]
                first += stop - start
        return self.arrays.xp.concatenate([places[start] for start in sorted(places)])

    def _guides(self, parameters: Any) -> list[Any]:
        """``LowRankMoments`` of each large layer and ``Moments`` of each small one."""
        loc, scale, factor = self.density.parts(parameters)
        guides: list[Any] = []
        for layer in self._layers:
            rows = self._part(factor.T, layer).T
            part = LowRankMoments(self._part(loc, layer), self._part(scale, layer), rows)
            guides.append(part if len(rows) > rows.shape[1] else self._dense(part))
        return guides

    def _dense(self, moments: LowRankMoments) -> Moments:
        mean, scale, factor = moments
        inner = self.arrays.identity(len(mean), mean) + factor @ factor.T
        return Moments(mean, scale[:, None] * self.arrays.xp.linalg.cholesky(inner))

    def _factored(self, moments: Moments, rank: int) -> LowRankMoments:
        """Inverse of :meth:`_dense`, up to the choice of scales that the module tells."""
        mean, scale_tril = moments
        covariance = scale_tril @ scale_tril.T
        deviations = self.arrays.xp.sqrt(covariance.diagonal())
        values, vectors = self.arrays.xp.linalg.eigh(covariance / deviations / deviations[:, None])
        values = values.clip(min=self.arrays.xp.finfo(mean.dtype).eps * values[-1])
        # The inverse of S^2 = values[0] / 2: then I + W W^T has the eigenvalues 2 values /
        # values[0], of which the least is 2 and W's least length 1.
        factor = vectors * self.arrays.xp.sqrt(2.0 * values / values[0] - 1.0)
        rest = self.arrays.filled((len(mean), rank - len(mean)), mean)
        factor = self.arrays.xp.concatenate([factor, rest], 1)
        return LowRankMoments(mean, deviations * self.arrays.xp.sqrt(0.5 * values[0]), factor)

    def initial(self, parameters: Any) -> LayerLowRankRegression:
        _, _, factor = self.density.parts(parameters)
        return LayerLowRankRegression(
            tuple(
                self.large.initial_regression(guide.mean, factor.shape[1])
                if isinstance(guide, LowRankMoments)
                else self.small.initial_regression(guide.mean)
                for guide in self._guides(parameters)
            )
        )

    def update(
        self, state: LayerLowRankRegression, parameters: Any, given: Observed
    ) -> tuple[LayerLowRankRegression, Any]:
        theta, score, total = given.theta, given.score, given.total
        before, guides = state, self._guides(parameters)
        points = [(self._part(theta, each), self._part(score, each)) for each in self._layers]
        rank = self.density.parts(parameters)[2].shape[1]

        seen, latest = 0.0, 0.0
        for part, guide, (_, own_score) in zip(before.layers, guides, points, strict=True):
            if isinstance(part, FullRegression):
                squares = self.small.squares(part, guide.scale, own_score)
            else:
                squares = self.large.squares(part, guide, own_score)
            seen, latest = seen + squares[0], latest + squares[1]
        # One verdict for all layers, since they have the scores of the same draws: with an overflow
        # in one layer all of them leave the pairs out.
        verdict = self.arrays.judged(seen, latest)

        def lenient() -> LayerLowRankRegression:
            return LayerLowRankRegression(tuple(part.lenient() for part in before.layers))

        def observed() -> LayerLowRankRegression:
            found: list[LowRankRegression | FullRegression] = []
            for part, guide, (own_theta, own_score) in zip(
                before.layers, guides, points, strict=True
            ):
                if isinstance(part, FullRegression):
                    found.append(self.small.observe(part, own_theta, own_score, self.decay, total))
                else:
                    found.append(self.large.observed(part, guide, own_theta, own_score, self.decay))
            return LayerLowRankRegression(tuple(found))

        def moved(both: tuple[LayerLowRankRegression, Any]) -> tuple[LayerLowRankRegression, Any]:
            states: list[LowRankRegression | FullRegression] = []
            updated: list[LowRankMoments] = []
            for part, guide in zip(both[0].layers, guides, strict=True):
                if isinstance(part, FullRegression):
                    dense = self.small.updated_moments(part, guide, self.trust)
                    states.append(part)
                    updated.append(self._factored(dense, rank))
                else:
                    following, moments = self.large.updated_guide(part, guide, self.trust)
                    states.append(following)
                    updated.append(moments)
            parts = (self._joined(list(each)) for each in zip(*updated, strict=True))
            return LayerLowRankRegression(tuple(states)), self.density.set_parts(*parts)

        state = verdict.choose(lenient, lambda: self.initial(parameters), observed)
        # Layers count the same pairs. Small ones have at most as many coordinates as the rank, so
        # that the large ones' need is enough for all.
        warm = state.layers[0].seen.num_pairs >= rank + 1 + SPARE_PAIRS
        return self.arrays.where_ready(verdict.sound & warm, moved, (state, parameters))
