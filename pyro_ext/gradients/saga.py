"""Minibatch scores with reduced variance: differences to a table of every row's latest gradient."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.gradients import reduced_variance
from ppl_ext.gradients.reduced_variance import table_shape
from ppl_ext.target.scores import tempered
from pyro_ext.density import Data, LogDensity, ScoreParts
from pyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from pyro_ext.gradients.minibatch import Minibatch


class SAGA(reduced_variance.SAGA, GradientEstimator):
    position_axes = (("table", 1), ("sum", 0), ("gradient", 1))
    _minibatches = Minibatch

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        minibatch = self._rows_at_first(target, data, generator)
        return {"minibatch": minibatch, "table": None, "sum": None, "rows": None, "gradient": None}

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Float[Tensor, "P D"],
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        (name,) = target.plates
        number = target.plates[name].size

        def row(index: Tensor) -> ScoreParts:
            # A single row is scaled as all rows.
            parts = target.score_parts(z, data, {name: index.reshape(1)})
            return parts._replace(likelihood=parts.likelihood / number)

        table, total = state["table"], state["sum"]
        if table is None:
            shape = table_shape(target, len(z), z.element_size(), self.max_bytes)
            table = z.new_empty(shape)
            for index in torch.arange(number, device=target.device):
                table[index] = row(index).likelihood
            total = table.sum(0)
        else:
            # What the last step found. Done only now, and twice is as good as once, so that a step
            # can be undone without a copy of the table.
            table[state["rows"]] = state["gradient"]
        indices, minibatch = self._minibatch().draw(target, state["minibatch"], generator)
        rows = indices[name]
        found = [row(index) for index in rows]
        gradient = torch.stack([parts.likelihood for parts in found])
        change = gradient - table[rows]
        likelihood = number * change.mean(0) + total
        # A row that was drawn twice changes the table once.
        again = torch.ones(len(rows), len(rows), dtype=torch.bool, device=rows.device).tril(-1)
        first = ~(again & (rows[:, None] == rows)).any(1)
        following = {
            "minibatch": minibatch,
            "table": table,
            "sum": total + change[first].sum(0),
            "rows": rows,
            "gradient": gradient,
        }
        score = tempered(found[0].prior, likelihood, target.likelihood_temperature)
        log_likelihood = torch.stack([parts.log_likelihood for parts in found]).mean(0)
        return ScoreEstimate(score, found[0].log_prior, log_likelihood, indices), following
