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
        The host's model, used as it is; it is differentiated twice.
    guide : AutoContinuous
        An autoguide of the model that has a log density over the flat unconstrained vector and
        reparameterised draws, or the class, which is then called with the model. In Pyro the
        guide object holds the fit at any time and starts from the values that it has.
    optim : optimizer or mapping, optional
        Pyro's (see ``pyro_ext.optim.EngineOptimizer``), NumPyro's or optax's; or a mapping that
        gives sites optimizers of their own, see
        :class:`~ppl_ext.score_matching.options.GradientSteps`. Default: Adam with a learning rate
        that falls from 0.01 to 0 along a cosine over the run.
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
        Length of the run that the default optimizer's rate falls over, when steps are taken one
        by one; ``run`` sets its own.
    **options
        Options of every engine but ``init_strategy``; see the package's ``Engine``. In Pyro the
        guide is converted to ``dtype``.

    Notes
    -----
    The loss is the objective at the draws; ``info`` holds the means of log p (tempered as the
    target is, from the minibatch) and of log q there. A step takes
    about as long as two of other engines: a product with the Hessian costs as much as two
    gradients, one of which is the score itself.

    Scores enter squared, so that with minibatches the objective holds the variance of the score
    besides, and the fit is drawn to where that is small: unlike ``ProximalScoreVI`` this engine
    is biased by noise that depends on the parameters. Noise of ``Noisy`` scores is not
    differentiated and biases only ``norm="covariance"``.

    Draws of a guide whose posterior is a mixture choose a component, and a choice has no
    derivative: with a posterior that offers a stand-in, such as the straight-through gradient of
    ``AutoGaussianMixture``, the gradient in the mixture's weights is biased as the stand-in is.

    References
    ----------
    A. Hyvarinen, "Estimation of non-normalized statistical models by score matching", JMLR 2005,
    https://jmlr.org/papers/v6/hyvarinen05a.html; A. Barp et al., "Minimum Stein discrepancy
    estimators", NeurIPS 2019, https://arxiv.org/abs/1906.08283.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, its draws cannot be reparameterised, or it has no
        covariance in closed form for ``norm="covariance"``; the model has more than
        ``max_dimension`` dimensions; or an option is out of range.

    Examples
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
