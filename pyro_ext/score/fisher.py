"""Fisher divergence by reparameterised draws (``FisherVI``).

Lowers E_q |grad log q - s|^2 in the guide's parameters, where s is the target's score and the
draws move with the parameters. So the model is differentiated twice: the gradient holds, beside
that of log q, products of the Hessian of log pi with the residual. Equation 4 of M. Kim,
"Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural Networks", which
names the Euclidean norm Fisher (Hyvarinen 2005) and the norm of Cov(q) Score (Barp et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor
from torch.autograd.function import once_differentiable

from ppl_ext.density import tempered
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.graph import BatchedFunction, as_arguments
from pyro_ext.density.handlers import SiteHandler
from pyro_ext.engine import Update
from pyro_ext.gradients import GradientEstimator, Score, ScoreEstimate
from pyro_ext.guides.flat_density import FlatDensity, Parameters
from pyro_ext.optim import OptimizerLike
from pyro_ext.score.guide_engine import GuideEngine, GuidePlan

NORMS = ("euclidean", "covariance")
#: Models with more latent dimensions are refused unless told otherwise.
MAX_DIMENSION = 10_000


def fisher_gradient(
    density: FlatDensity,
    parameters: Parameters,
    draw: Callable[[Parameters], Tensor],
    score: Callable[[Tensor], tuple[Tensor, Any]],
    norm: str,
) -> tuple[Tensor, Parameters, Any]:
    """Mean over draws of |grad log q - s|^2, and its gradient in the guide's parameters.

    Parameters
    ----------
    density : FlatDensity
    parameters : dict of tensors
    draw : callable
        Parameters to draws (S, D), differentiable, with its noise fixed.
    score : callable
        Draws to scores (S, D) of the target, differentiable once more, and anything else.
    norm : {"euclidean", "covariance"}

    Returns
    -------
    value : scalar tensor
    gradient : dict of tensors
    other
        What ``score`` gave besides.
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
        return getattr(self._target, name)

    def score(self, z: Tensor, data: Data, indices: Any = None) -> Score:
        """As :meth:`~pyro_ext.density.LogDensity.score`."""

        def product(z: Tensor, vectors: Tensor) -> Tensor:
            return self._times_hessian(z, vectors, data, indices or {})

        found = self._target.score(z, data, indices)
        return found._replace(score=_WithProduct.apply(z, found.score, product))

    def full_score(self, z: Tensor, data: Data) -> Score:
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


class FisherVI(GuideEngine):
    """Score matching over the guide's own draws, differentiated through the draws.

    Each step takes one optimizer step down

        E_q |grad log q - s|^2

    where s is the target's score, in the Euclidean norm or in that of the guide's covariance. The
    gradient is that of the Monte Carlo estimate with the noise of the draws held fixed, through
    the draws, the score of the guide, the score of the model and, for ``norm="covariance"``, the
    norm.

    It depends on its start. The norm of Cov(q) does not see the directions in which the guide is
    narrow: while the mean is far, a guide that shrinks everywhere lowers the objective, and then
    stays. Start at least as wide as the posterior (``init_scale=1.0``; the host's default is 0.1)
    and not far from it.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is; it is differentiated twice.
    guide : AutoContinuous
        A Pyro autoguide of the model that has a log density over the flat unconstrained vector
        and reparameterised draws, or the class, which is then called with the model. The guide
        object holds the fit at any time and starts from the values that it has.
    optim : PyroOptim or callable, optional
        See :class:`~pyro_ext.optim.EngineOptimizer`. Default: Adam with a learning rate that
        falls from 0.01 to 0 along a cosine over the run.
    norm : {"euclidean", "covariance"}
        "euclidean" is |r|^2 (Fisher). "covariance" is r^T Cov(q) r (Score), which does not depend
        on the units of the latents; for guides with a covariance in closed form: Normals and
        mixtures of them.
    num_samples : int
        Draws S per step.
    max_dimension : int
        Models with more latent dimensions are refused, because of the second derivatives. Raise
        it to fit them all the same.
    total_steps : int, optional
        Length of the run that the default optimizer's rate falls over, when steps are taken with
        ``step``; ``run(n)`` sets its own.
    estimator, likelihood_temperature, particle_chunk, data_chunk, evaluation, on_nonfinite, seed, \
dtype
        See :class:`~pyro_ext.engine.Engine`. The guide is converted to ``dtype``.

    Notes
    -----
    The loss is the objective at the draws; ``info`` holds the means of log p (tempered as the
    target is, from the minibatch) and of log q there. ``gradient_evaluations``
    counts a draw twice: a product with the Hessian costs about as much as two gradients, one of
    which is the score itself.

    Scores enter squared, so that with minibatches the objective holds the variance of the score
    besides, and the fit is drawn to where that is small: unlike ``ProximalScoreVI`` this engine
    is biased by noise that depends on the parameters. Noise of
    :class:`~pyro_ext.gradients.noisy.Noisy` is not differentiated and biases only
    ``norm="covariance"``.

    Draws of a guide whose posterior is a mixture choose a component, and a choice has no
    derivative: with a posterior that offers a stand-in, such as the straight-through gradient of
    ``AutoGaussianMixture``, the gradient in the mixture's weights is biased as the stand-in is.

    References
    ----------
    A. Hyvarinen, "Estimation of non-normalized statistical models by score matching", JMLR 2005.
    A. Barp et al., "Minimum Stein discrepancy estimators", NeurIPS 2019.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, its draws cannot be reparameterised, or it has no
        covariance in closed form for ``norm="covariance"``; the model has more than
        ``max_dimension`` dimensions; or an option is out of range.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        optim: OptimizerLike | None = None,
        norm: str = "euclidean",
        num_samples: int = 1,
        max_dimension: int = MAX_DIMENSION,
        *,
        total_steps: int | None = None,
        estimator: GradientEstimator | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        evaluation: str = "graph",
        on_nonfinite: str = "raise",
        seed: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            model,
            guide,
            optim,
            num_samples,
            total_steps=total_steps,
            estimator=estimator,
            likelihood_temperature=likelihood_temperature,
            particle_chunk=particle_chunk,
            data_chunk=data_chunk,
            evaluation=evaluation,
            on_nonfinite=on_nonfinite,
            seed=seed,
            dtype=dtype,
        )
        if norm not in NORMS:
            raise ArgumentError(f"Expected norm to be one of {NORMS}, found {norm!r}.")
        check_count("max_dimension", max_dimension)
        self.norm = norm
        self.max_dimension = max_dimension

    def _plan(self, target: LogDensity, generator: Generator, data: Data) -> FisherPlan:
        # Before the guide is set up, which may itself need room for a large covariance.
        _check_dimension(target.dim, self.max_dimension)
        plan = super()._plan(target, generator, data)
        density = plan.density
        posterior = density.guide.get_posterior()
        _check_guide(density, density.live_parameters(), self.norm, posterior.has_rsample)
        if plan.estimator.evaluations_per_step(target) != 1.0:
            self._warn_of_noise(
                plan,
                "Its objective holds the variance of the scores besides, and the fit is drawn to "
                "where that is small.",
            )
        return FisherPlan(**vars(plan), differentiable=DifferentiableTarget(target))

    def _initialize(self, plan: FisherPlan, data: Data) -> None:
        super()._initialize(plan, data)
        self._start_optimizer(plan, self.optim)

    def _settings(self) -> dict[str, str]:
        return {"norm": self.norm, **super()._settings()}

    def _update(self, plan: FisherPlan, data: Data) -> Update:
        seed = int(torch.randint(2**62, (), generator=self._generator))

        def draw(parameters: Parameters) -> Tensor:
            return _reparameterised(plan.density, parameters, seed, plan.num_samples)

        def score(theta: Tensor) -> tuple[Tensor, tuple[Tensor, ScoreEstimate]]:
            found, self._estimator_state = plan.estimator.estimate(
                plan.differentiable, self._estimator_state, theta, data, self._generator
            )
            cost = plan.estimator.evaluations_per_step(plan.target)
            self.gradient_evaluations += 2.0 * len(theta) * cost
            return found.score, (theta.detach(), found)

        value, gradient, (theta, found) = fisher_gradient(
            plan.density, self._parameters, draw, score, self.norm
        )
        with torch.no_grad():
            log_q = plan.density.log_prob(self._parameters, theta).mean()
        log_p = found.log_density(plan.target.likelihood_temperature).mean()
        loss = float(value)
        info = {"log_p": float(log_p), "log_q": float(log_q)}
        finite = math.isfinite(loss) and math.isfinite(info["log_p"])
        if finite:
            finite = self._descend(plan, lambda parameters: (value, gradient))
        return Update(loss, info, finite)


def _reparameterised(density: FlatDensity, parameters: Parameters, seed: int, num: int) -> Tensor:
    """Draws (num, D) that move with the parameters; the same seed draws the same noise."""
    # Distributions draw from the global generator only.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return density._with_posterior(parameters, lambda posterior: posterior.rsample((num,)))


def _check_dimension(dim: int, most: int) -> None:
    if dim > most:
        raise ArgumentError(
            f"Expected at most max_dimension={most} latent dimensions, found {dim}: each step "
            "differentiates the model twice, which takes a large model's memory several times "
            f"over. Pass max_dimension={dim} to do it all the same, or use ProximalScoreVI, which "
            "needs no second derivative."
        )


def _check_guide(
    density: FlatDensity, parameters: Parameters, norm: str, reparameterised: bool
) -> None:
    name = type(density.guide).__name__
    if not reparameterised:
        raise ArgumentError(
            f"Expected a guide whose draws can be reparameterised, found {name}, whose posterior "
            "has no rsample. Use a Normal guide or a flow, or ProximalScoreVI, which does not "
            "differentiate draws."
        )
    if norm == "covariance":
        try:
            density.moments(parameters)
        except ArgumentError as error:
            raise ArgumentError(
                f"Expected a guide whose covariance has a closed form for norm='covariance', found "
                f"{name}. Use norm='euclidean', or AutoDiagonalNormal, AutoMultivariateNormal, "
                "AutoLowRankMultivariateNormal or AutoGaussianMixture."
            ) from error
