"""Fisher divergence by reparameterised draws (``FisherVI``); see :mod:`ppl_ext.fisher`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.autograd.function import once_differentiable

from ppl_ext.density import tempered
from ppl_ext.errors import ArgumentError
from ppl_ext.fisher import FisherShell
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.graph import BatchedFunction, as_arguments
from pyro_ext.density.handlers import SiteHandler, global_generator
from pyro_ext.engine import Update
from pyro_ext.gradients import Score, ScoreEstimate
from pyro_ext.guides.flat_density import FlatDensity, Parameters
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
    the rest. ``norm`` is one of :data:`~ppl_ext.fisher.NORMS`.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    with torch.enable_grad():
        # A new tensor: the host's flows remember the inverse of the last value they drew.
        theta = draw(leaves).clone()
        log_q = density.log_prob(leaves, theta).sum()
        # Partial derivatives in theta, although theta depends on the parameters.
        (present,) = torch.autograd.grad(log_q, theta, create_graph=True)
        target, other = score(theta)
        if not target.requires_grad:
            raise ArgumentError(
                "Expected an estimator whose scores can be differentiated, found one that "
                "gives plain numbers. Use Full() or Minibatch()."
            )
        residual = present - target
        if norm == "covariance":
            scale = density.moments(leaves).scale
            residual = residual * scale if scale.dim() == 1 else residual @ scale
        value = residual.square().sum(-1).mean()
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return (
        value.detach(),
        {
            name: torch.zeros_like(leaf) if gradient is None else gradient
            for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
        },
        other,
    )


class _WithProduct(torch.autograd.Function):
    """Scores (P, D) at positions z whose gradient is a product with the Hessian there."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, score: Tensor, product: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        ctx.save_for_backward(z)
        ctx.product = product
        return score.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, vectors: Tensor) -> tuple[Tensor, None, None]:
        (z,) = ctx.saved_tensors
        return ctx.product(z, vectors), None, None


class DifferentiableTarget:
    """A target whose ``score`` and ``full_score`` can be differentiated in the positions, once.

    Estimators take it in place of the target. Scores are the target's own; their derivative is a
    Hessian-vector product on the same rows, evaluated as the target evaluates its scores.

    Parameters
    ----------
    target : LogDensity
    """

    def __init__(self, target: LogDensity) -> None:
        self._target = target
        self._product = BatchedFunction(
            self._single_product, target.evaluation, target.particle_chunk
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # which copies ask for before there is a target
            raise AttributeError(name)
        return getattr(self._target, name)

    def score(self, z: Float[Tensor, "P D"], data: Data, indices: Any = None) -> Score:
        """As :meth:`~pyro_ext.density.LogDensity.score`."""

        def product(z: Tensor, vectors: Tensor) -> Tensor:
            return self._times_hessian(z, vectors, data, indices or {})

        found = self._target.score(z, data, indices)
        return found._replace(score=_WithProduct.apply(z, found.score, product))

    def full_score(self, z: Float[Tensor, "P D"], data: Data) -> Score:
        """As :meth:`~pyro_ext.density.LogDensity.full_score`."""

        def product(z: Tensor, vectors: Tensor) -> Tensor:
            total = torch.zeros_like(vectors)
            for weight, indices in self._target.sweep():
                part = self._times_hessian(z, vectors, data, indices)
                total = total.add(part, alpha=weight)
            return total

        found = self._target.full_score(z, data)
        return found._replace(score=_WithProduct.apply(z, found.score, product))

    def _times_hessian(self, z: Tensor, vectors: Tensor, data: Data, indices: Any) -> Tensor:
        arguments = as_arguments(data.args, data.kwargs, indices)
        return self._product(torch.cat([z, vectors], -1), arguments)

    def _single_product(self, packed: Tensor, arguments: Any) -> Tensor:
        z, vector = packed.chunk(2)
        target = self._target

        def log_density(z: Tensor) -> Tensor:
            handler = SiteHandler(target.layout.split(z), arguments[2])
            target.run(handler, arguments)
            return tempered(
                handler.log_prior, handler.log_likelihood, target.likelihood_temperature
            )

        # Reverse over reverse: forward over reverse fails in float32 with scalar latents.
        pullback = torch.func.vjp(torch.func.grad(log_density), z)[1]
        return pullback(vector)[0]


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
            found = self._score(theta, data, plan.differentiable, cost=2.0)
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
            finite = self._descend(plan, state.optimizer, lambda parameters: (value, gradient))
        return Update(loss, info, finite)


def _reparameterised(density: FlatDensity, parameters: Parameters, seed: int, num: int) -> Tensor:
    """Draws (num, D) that move with the parameters; the same seed draws the same noise."""
    with global_generator(seed):
        return density._with_posterior(parameters, lambda posterior: posterior.rsample((num,)))
