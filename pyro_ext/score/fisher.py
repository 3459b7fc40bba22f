"""Fisher divergence by reparameterised draws (``FisherVI``).

See :mod:`ppl_ext.score_matching.fisher_divergence`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ppl_ext.errors import ArgumentError
from ppl_ext.score_matching.fisher_divergence import FisherShell
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.differentiable import DifferentiableTarget
from pyro_ext.density.handlers import global_generator
from pyro_ext.descent import descend
from pyro_ext.engine import Update
from pyro_ext.gradients import ScoreEstimate
from pyro_ext.guides.flat_density import FlatDensity, Parameters, value_and_gradient
from pyro_ext.score.guide_engine import GuideEngine, GuidePlan, GuideState


def fisher_gradient(
    density: FlatDensity,
    parameters: Parameters,
    draw: Callable[[Parameters], Float[Tensor, "S D"]],
    score: Callable[[Float[Tensor, "S D"]], tuple[Float[Tensor, "S D"], Any]],
    norm: str,
) -> tuple[Float[Tensor, ""], Parameters, Any]:
    """Mean over draws of |grad log q - s|^2, its gradient in the guide's parameters, and the rest.

    ``draw`` makes draws (S, D) from parameters, differentiable, with its noise fixed. ``score``
    gives the target's scores (S, D) there, differentiable once more, and anything else, which is
    the rest. ``norm`` is one of :data:`~ppl_ext.score_matching.fisher_divergence.NORMS`.
    """
    rest: Any = None

    def value(leaves: Parameters) -> Tensor:
        nonlocal rest
        # A new tensor: the host's flows remember the inverse of the last value they drew.
        theta = draw(leaves).clone()
        log_q = density.log_prob(leaves, theta).sum()
        # Partial derivatives in theta, although theta depends on the parameters.
        (present,) = torch.autograd.grad(log_q, theta, create_graph=True)
        target, rest = score(theta)
        # Without its derivative the gradient would be that of another objective, without a word.
        if not target.requires_grad:
            raise ArgumentError(
                "Expected an estimator whose scores can be differentiated, found one that "
                "gives plain numbers. Use Full() or Minibatch()."
            )
        residual = present - target
        if norm == "covariance":
            scale = density.moments(leaves).scale
            # |r|^2 in the norm of Cov(q) = L L' is |L' r|^2; of rows r' that is r' L.
            residual = residual * scale if scale.dim() == 1 else residual @ scale
        return residual.square().sum(-1).mean()

    return *value_and_gradient(value, parameters), rest


@dataclass(frozen=True)
class FisherPlan(GuidePlan):
    """As :class:`~pyro_ext.score.guide_engine.GuidePlan`, with scores that have derivatives."""

    differentiable: Any = field(repr=False, compare=False)


class FisherVI(FisherShell, GuideEngine):
    """Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> guide = pyro.infer.autoguide.AutoDiagonalNormal(model, init_scale=1.0)
    >>> engine = px.FisherVI(model, guide, pyro.optim.Adam({"lr": 0.05}), seed=0)
    >>> result = engine.run(200, y)
    >>> print(round(guide.median()["mean"].item()))
    2
    """

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> FisherPlan:
        # Before the guide is set up, which may itself need room for a large covariance.
        self._check_dimension(target.dim)
        plan = super()._plan(target, generator, data)
        density = plan.density
        posterior = density.guide.get_posterior()
        self._check_guide(density, density.live_parameters(), posterior.has_rsample)
        self._warn_unless_exact(plan)
        return FisherPlan(**vars(plan), differentiable=DifferentiableTarget(target))

    def _initialize(self, plan: FisherPlan, data: Data) -> GuideState:
        super()._initialize(plan, data)
        return GuideState(self._new_optimizer(plan, self.optim))

    def _update(self, plan: FisherPlan, state: GuideState, data: Data) -> Update:
        seed = int(torch.randint(2**62, (), generator=self._generator))

        def draw(parameters: Parameters) -> Tensor:
            return _reparameterised(plan.density, parameters, seed, plan.num_samples)

        def score(theta: Tensor) -> tuple[Tensor, tuple[Tensor, ScoreEstimate]]:
            found = self._score(theta, data, plan.differentiable)
            return found.score, (theta.detach(), found)

        value, gradient, (theta, found) = fisher_gradient(
            plan.density, plan.parameters, draw, score, self.norm
        )
        with torch.no_grad():
            log_q = plan.density.log_prob(plan.parameters, theta).mean()
        log_p = found.log_density(plan.target.likelihood_temperature).mean()
        loss = float(value)
        info = {"log_p": float(log_p), "log_q": float(log_q)}
        finite = math.isfinite(loss) and math.isfinite(info["log_p"])
        if finite:
            assert state.optimizer is not None
            finite = descend(self, plan, state.optimizer, lambda parameters: (value, gradient))
        return Update(loss, info, finite)


def _reparameterised(density: FlatDensity, parameters: Parameters, seed: int, num: int) -> Tensor:
    """Draws (num, D) that move with the parameters; the same seed draws the same noise."""
    with global_generator(seed):
        return density._with_posterior(parameters, lambda posterior: posterior.rsample((num,)))
