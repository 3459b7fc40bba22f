"""Minibatch scores with reduced variance: differences to an anchor where the score is exact."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.gradients import reduced_variance
from pyro_ext.density import Data, LogDensity, Score
from pyro_ext.gradients.estimator import (
    EstimatorState,
    GradientEstimator,
    ScoreEstimate,
    corrected,
)
from pyro_ext.gradients.minibatch import Minibatch


class SVRG(reduced_variance.SVRG, GradientEstimator):
    position_axes = (("anchor", 0), ("exact", 0))
    _minibatches = Minibatch

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        self._check(target, data)
        rows = {} if self._batches() else self._minibatch().init(target, data, generator)
        # The first step sets an anchor.
        return {"minibatch": rows, "anchor": None, "exact": None, "anchor_age": self.anchor_every}

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Float[Tensor, "P D"],
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        anchor, exact, age = state["anchor"], state["exact"], state["anchor_age"]
        if age >= self.anchor_every:
            # Copies: memory of positions and scores may be used again by the caller.
            anchor, age = z.detach().clone(), 0
            exact = tuple(each.clone() for each in self._score_of_all_rows(target, z, data))
        indices, minibatch = None, state["minibatch"]
        if self.full_data is None:
            indices, minibatch = self._minibatch().draw(target, minibatch, generator, len(z))
        here = target.score(z, data, indices)
        there = target.score(anchor, data, indices)
        score = corrected(here, there, Score(*exact), indices)
        age += 1
        following = {"minibatch": minibatch, "anchor": anchor, "exact": exact, "anchor_age": age}
        return score, following
