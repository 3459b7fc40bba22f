"""Minibatch scores of a model whose batches are its arguments, from a list of batches."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ppl_ext.gradients import minibatch
from ppl_ext.gradients.full_data import check_rows
from pyro_ext.density import Data, LogDensity, Score
from pyro_ext.gradients.estimator import EstimatorState, GradientEstimator
from pyro_ext.gradients.full_data import num_rows
from pyro_ext.gradients.minibatch import shuffled


class BatchArguments(minibatch.BatchArguments, GradientEstimator):
    """Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", 4, subsample_size=len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> batches = [(torch.tensor([1.0, 2.0]),), (torch.tensor([2.0, 3.0]),)]
    >>> _ = torch.manual_seed(0)
    >>> kernel = px.SGLD(model, 0.02, estimator=px.BatchArguments(batches))
    >>> mcmc = px.MCMC(kernel, num_samples=1000, warmup_steps=100)
    >>> mcmc.run(*batches[0])
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """

    position_axes = ()

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        batches = tuple(self.batches)
        check_rows(target, data, batches, num_rows)
        # A position past the end makes the first draw start with a fresh order.
        return {"order": torch.arange(len(batches)), "position": len(batches)}

    def draw(
        self, state: EstimatorState, generator: torch.Generator, num_positions: int = 1
    ) -> tuple[Int[Tensor, "*P"], EstimatorState]:
        order, position, number = state["order"], state["position"], len(tuple(self.batches))
        if position >= number:
            lead = (num_positions,) if self.own_rows else ()
            order, position = shuffled(number, lead, generator), 0
        return order[..., position], {"order": order, "position": position + 1}

    def score(
        self, target: LogDensity, chosen: Int[Tensor, "*P"], z: Float[Tensor, "P D"], data: Data
    ) -> Score:
        batches = list(self.batches)

        def of_batch(z: Tensor, number: Tensor) -> Score:
            return target.score(z, target.bind(*batches[int(number)], **data.kwargs))

        if chosen.dim() == 0:
            return of_batch(z, chosen)
        found = [of_batch(row[None], number) for row, number in zip(z, chosen, strict=True)]
        return Score(*map(torch.cat, zip(*found, strict=True)))
