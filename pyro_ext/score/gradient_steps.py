"""The proximal step by an optimizer (``GradientSteps``), for every guide with a flat log density.

After M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural
Networks" (https://arxiv.org/abs/2602.05873), equation 8 and Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.score_matching.options import GradientSteps
from ppl_ext.score_matching.proximal import GradientExecutor
from pyro_ext.density import Data
from pyro_ext.descent import descend, progress, run_length, set_default_rate
from pyro_ext.engine import Update
from pyro_ext.guides.flat_density import FlatDensity, Parameters
from pyro_ext.guides.normal import DiagonalNormalDensity
from pyro_ext.optim import EngineOptimizer, PlannedSteps
from pyro_ext.score.guide_engine import GuideEngine, GuidePlan, GuideState
from pyro_ext.score.long_vectors import joined, steps_by_part
from pyro_ext.score.objective import blended_target, proximal_gradient


@dataclass
class GradientState:
    """What the next iteration needs besides the guide and the optimizer.

    Parameters
    ----------
    reused : list of pairs of tensors (S, D)
        Draws and scores of earlier iterations that are used again, the latest first.
    theta, score : tensors (S, D), optional
        Those of the last iteration, whose memory the next one takes.
    """

    reused: list[tuple[Float[Tensor, "S D"], Float[Tensor, "S D"]]] = field(default_factory=list)
    theta: Float[Tensor, "S D"] | None = None
    score: Float[Tensor, "S D"] | None = None


class GradientSolver(GradientExecutor):
    @classmethod
    def plan(cls, options: GradientSteps, density: FlatDensity) -> GradientSolver:
        """The solver for a guide."""
        defaults = cls._usual(density)
        return cls(options.resolved(defaults), defaults.learning_rate)

    def initial(self, engine: GuideEngine, plan: GuidePlan) -> GuideState:
        """The engine's state before the first iteration."""
        return GuideState(engine._new_optimizer(plan, self.options.optim), GradientState())

    def saved(self, state: GradientState) -> Any:
        """A state as plain containers, for a file."""
        return [list(pair) for pair in state.reused]

    def restored(self, state: GradientState, found: Any) -> GradientState:
        """Inverse of :meth:`saved`."""
        return GradientState([(theta, score) for theta, score in found])

    def update(self, engine: GuideEngine, plan: GuidePlan, state: GuideState, data: Data) -> Update:
        """One iteration."""
        before: GradientState = state.method
        theta = self._sample(engine, plan, before)
        with plan.target.writing_into(before.score):
            found = engine._score(theta, data)
        score = found.score
        log_p = float(found.log_density(plan.target.likelihood_temperature).mean())
        finite = math.isfinite(log_p)
        loss = log_q = math.nan
        earlier, number = before.reused, self.options.sample_reuse
        if finite:
            missing = number - 1 - len(earlier)
            # Until there are enough earlier draws the present ones count several times.
            draws = [(theta, score)] * (1 + missing) + earlier
            total = run_length(engine) or 0
            weight = self.options.weight(engine.num_steps_taken, total, progress(engine))
            loss, log_q, finite = self._gradient_steps(
                engine, plan, state.optimizer, draws, float(weight)
            )
            if finite and number > 1:
                earlier = [(theta, score), *earlier][: number - 1]
        kept = (theta, score) if number == 1 else (None, None)
        following = state._replace(method=GradientState(earlier, *kept))
        return Update(loss, {"log_p": log_p, "log_q": log_q}, finite, following)

    def _sample(self, engine: GuideEngine, plan: GuidePlan, state: GradientState) -> Tensor:
        density, number = plan.density, plan.num_samples
        if isinstance(density, DiagonalNormalDensity) and self.options.sample_reuse == 1:
            # Memory that is kept costs less than memory that the system gives anew.
            return density.sample(plan.parameters, engine._generator, number, state.theta)
        return density.sample(plan.parameters, engine._generator, number)

    @property
    def _inner_steps(self) -> int:
        assert self.options.num_inner_steps is not None
        return self.options.num_inner_steps

    @torch.no_grad()
    def _gradient_steps(
        self,
        engine: GuideEngine,
        plan: GuidePlan,
        optimizer: EngineOptimizer | None,
        draws: list[tuple[Tensor, Tensor]],
        weight: float,
    ) -> tuple[float, float, bool]:
        """Take the inner steps; return the loss, the mean of log q, and whether all was finite."""
        assert optimizer is not None
        set_default_rate(engine, plan, optimizer)
        planned = optimizer.plan(self._inner_steps)
        safe = _cannot_break(plan.density, plan.parameters, draws, weight, planned)
        density, present_draws = plan.density, draws[0][0]
        if safe and plan.clip_norm is None and optimizer.is_plain_adam:
            assert isinstance(density, DiagonalNormalDensity)
            steps = self._inner_steps
            return *steps_by_part(density, optimizer, draws, weight, planned, steps), True
        theta, score = (joined(each) for each in zip(*draws, strict=True))
        present = density.score(plan.parameters, theta)
        log_q = float(density.log_prob(plan.parameters, present_draws).mean())
        residual = (present - score)[: len(present_draws)]
        loss = float(residual.square_().sum(-1).mean())
        if not math.isfinite(loss):
            return loss, log_q, False
        target = blended_target(score, present, weight)
        # Vectors of a network's length, which the inner steps need no more.
        del draws, score, present, residual

        def objective(parameters: Parameters) -> tuple[Tensor, Parameters]:
            return proximal_gradient(density, parameters, theta, target, weight)

        finite = descend(engine, plan, optimizer, objective, self._inner_steps, not safe)
        return loss, log_q, finite


def _cannot_break(
    density: FlatDensity,
    parameters: Parameters,
    draws: list[tuple[Tensor, Tensor]],
    weight: float,
    planned: PlannedSteps,
) -> bool:
    """Whether it is certain that the inner steps will be finite, so that none is undone."""
    if not isinstance(density, DiagonalNormalDensity) or planned.reach == math.inf:
        return False
    largest = max(
        density.largest_gradient(parameters, theta, score, planned.reach)
        for theta, score in dict.fromkeys(draws)
    )
    # Adam keeps squares of gradients.
    limit = 1e-4 * math.sqrt(torch.finfo(draws[0][0].dtype).max)
    return (1.0 + weight) * largest < limit
