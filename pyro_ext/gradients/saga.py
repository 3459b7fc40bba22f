"""Minibatch scores with reduced variance: differences to a table of every row's latest gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ppl_ext.density import tempered
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count
from pyro_ext.density import Data, LogDensity, ScoreParts
from pyro_ext.gradients.estimator import EstimatorState, GradientEstimator, ScoreEstimate
from pyro_ext.gradients.minibatch import Minibatch
from pyro_ext.gradients.svrg import check_no_local_latents


@dataclass(frozen=True)
class SAGA(GradientEstimator):
    """Score with a table that holds, for every row and position, the row's latest gradient.

    With g_n the gradient of row n's log likelihood and t_n the table's entry, the estimate from a
    minibatch B of N rows is

        grad log prior + (N / |B|) sum_B (g_n - t_n) + sum_n t_n,

    which is unbiased; then t_n becomes g_n for the rows of B. The first step fills the table by a
    sweep over all rows, so that it is exact. Unlike ``SVRG`` there is no other sweep, and the
    table takes N P D numbers. Rows are evaluated one after another, which is slow in torch.

    Parameters
    ----------
    sampling : {"reshuffle", "replacement", "cyclic"}
        See :class:`~pyro_ext.gradients.Minibatch`.
    max_bytes : int
        A larger table is refused, at the first step.

    Raises
    ------
    ArgumentError
        An option is out of range. From ``init``: the model does not subsample exactly one plate
        itself, or has latents inside it. From ``estimate``: the table would be too large.

    References
    ----------
    A. Defazio, F. Bach and S. Lacoste-Julien, "SAGA: A fast incremental gradient method with
    support for non-strongly convex composite objectives", NeurIPS 2014.
    """

    sampling: str = "reshuffle"
    max_bytes: int = 2**30

    def __post_init__(self) -> None:
        check_count("max_bytes", self.max_bytes)
        self._minibatch()

    def _minibatch(self) -> Minibatch:
        return Minibatch(self.sampling)

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        check_no_local_latents(target, type(self).__name__)
        minibatch = self._minibatch().init(target, data, generator)
        if len(target.plates) != 1:
            raise ArgumentError(
                f"Expected one subsampled plate with SAGA, found {sorted(target.plates)}. Use "
                "SVRG, which takes several."
            )
        return {"minibatch": minibatch, "table": None, "sum": None, "rows": None, "gradient": None}

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Tensor,
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
            table = z.new_empty(table_shape(target, z, self.max_bytes))
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

    def evaluations_per_step(self, target: LogDensity) -> float:
        return self._minibatch().evaluations_per_step(target)


def table_shape(target: LogDensity, z: Tensor, max_bytes: int) -> tuple[int, int, int]:
    """Shape (N, P, D) of the table for positions z.

    Raises
    ------
    ArgumentError
        It would be too large.
    """
    (plate,) = target.plates.values()
    shape = (plate.size, z.shape[0], z.shape[1])
    needed = math.prod(shape) * z.element_size()
    if needed > max_bytes:
        raise ArgumentError(
            f"Expected a table of at most max_bytes={max_bytes} bytes, found {needed}: {shape[0]} "
            f"rows times {shape[1]} positions times {shape[2]} latent dimensions. Use SVRG, which "
            "has no table, or raise max_bytes."
        )
    return shape
