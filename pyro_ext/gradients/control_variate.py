"""Minibatch scores with reduced variance: differences to one fixed position, such as a mode."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.gradients import reduced_variance
from pyro_ext.density import Data, LogDensity
from pyro_ext.gradients.batch_arguments import BatchArguments
from pyro_ext.gradients.estimator import (
    EstimatorState,
    GradientEstimator,
    ScoreEstimate,
)
from pyro_ext.gradients.minibatch import Minibatch


class ControlVariate(reduced_variance.ControlVariate, GradientEstimator):
    """Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y), subsample_size=2) as rows:
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> _ = torch.manual_seed(0)
    >>> estimator = px.ControlVariate({"mean": torch.tensor(2.0)})  # such as a mode
    >>> kernel = px.SGLD(model, 0.02, estimator=estimator)
    >>> mcmc = px.MCMC(kernel, num_samples=500, warmup_steps=100, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """

    position_axes = ()
    _minibatches, _batch_arguments = Minibatch, BatchArguments

    def init(self, target: LogDensity, data: Data, generator: torch.Generator) -> EstimatorState:
        self._check(target, data)
        minibatch = self._rows().init(target, data, generator)
        values = {
            name: torch.as_tensor(value).detach()[None] for name, value in self.anchor.items()
        }
        anchor = target.unconstrain(values, data)
        exact = self._score_of_all_rows(target, anchor, data)
        self._check_finite(bool(torch.isfinite(exact.score).all()))
        return {"minibatch": minibatch, "anchor": anchor, "exact": tuple(exact)}

    def estimate(
        self,
        target: LogDensity,
        state: EstimatorState,
        z: Float[Tensor, "P D"],
        data: Data,
        generator: torch.Generator,
    ) -> tuple[ScoreEstimate, EstimatorState]:
        # One anchor for all, unless every position has rows of its own to compare at.
        anchor = state["anchor"].expand_as(z) if self.own_rows else state["anchor"]
        return self._estimated(target, state, z, anchor, data, generator)
