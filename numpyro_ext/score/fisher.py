"""Fisher divergence by reparameterised draws (``FisherVI``).

Lowers E_q |grad log q - s|^2 in the guide's parameters, where s is the target's score and the
draws move with the parameters. So the model is differentiated twice: the gradient holds, beside
that of log q, products of the Hessian of log pi with the residual. Equation 4 of M. Kim,
"Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural Networks", which
names the Euclidean norm Fisher (Hyvarinen 2005) and the norm of Cov(q) Score (Barp et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.engine import EngineState
from numpyro_ext.gradients import GradientEstimator
from numpyro_ext.guides.flat_density import FlatDensity, Parameters
from numpyro_ext.score.guide_engine import GuideEngine, GuidePlan, GuideState
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count

NORMS = ("euclidean", "covariance")
#: Models with more latent dimensions are refused unless told otherwise.
MAX_DIMENSION = 10_000


def fisher_gradient(
    density: FlatDensity,
    parameters: Parameters,
    draw: Callable[[Parameters], Array],
    score: Callable[[Array], tuple[Array, Any]],
    norm: str,
) -> tuple[Array, Parameters, Any]:
    """Mean over draws of |grad log q - s|^2, and its gradient in the guide's parameters.

    Parameters
    ----------
    density : FlatDensity
    parameters : dict of arrays
    draw : callable
        Parameters to draws (S, D), differentiable, with its noise fixed.
    score : callable
        Draws to scores (S, D) of the target, differentiable once more, and anything else.
    norm : {"euclidean", "covariance"}

    Returns
    -------
    value : scalar array
    gradient : dict of arrays
    other
        What ``score`` gave besides.
    """

    def objective(parameters: Parameters) -> tuple[Array, Any]:
        theta = draw(parameters)
        target, other = score(theta)
        residual = density.score(parameters, theta) - target
        if norm == "covariance":
            scale = density.moments(parameters).scale
            residual = residual * scale if scale.ndim == 1 else residual @ scale
        return jnp.square(residual).sum(-1).mean(), other

    (value, other), gradient = jax.value_and_grad(objective, has_aux=True)(parameters)
    return value, gradient, other


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
        NumPyro model, used as it is; it is differentiated twice.
    guide : AutoContinuous
        A NumPyro autoguide of the model that has a log density over the flat unconstrained
        vector and reparameterised draws, or the class, which is then called with the model.
    optim : optimizer, optional
        NumPyro or optax optimizer. Default: Adam with a learning rate that falls from 0.01 to 0
        along a cosine over the run.
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
        ``update``; ``run`` sets its own.
    estimator, likelihood_temperature, particle_chunk, data_chunk, on_nonfinite
        See :class:`~numpyro_ext.engine.Engine`.

    Notes
    -----
    The loss is the objective at the draws; ``info`` holds the means of log p (tempered as the
    target is, from the minibatch) and of log q there.

    Scores enter squared, so that with minibatches the objective holds the variance of the score
    besides, and the fit is drawn to where that is small: unlike ``ProximalScoreVI`` this engine
    is biased by noise that depends on the parameters. Noise of
    :class:`~numpyro_ext.gradients.noisy.Noisy` is not differentiated and biases only
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
        optim: Any = None,
        norm: str = "euclidean",
        num_samples: int = 1,
        max_dimension: int = MAX_DIMENSION,
        *,
        total_steps: int | None = None,
        estimator: GradientEstimator | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        on_nonfinite: str = "raise",
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
            on_nonfinite=on_nonfinite,
        )
        if norm not in NORMS:
            raise ArgumentError(f"Expected norm to be one of {NORMS}, found {norm!r}.")
        check_count("max_dimension", max_dimension)
        self.norm = norm
        self.max_dimension = max_dimension

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> GuidePlan:
        # Before the guide is set up, which may itself need room for a large covariance.
        _check_dimension(target.layout.dim, self.max_dimension)
        plan = super()._plan(target, rng_key, data)
        parameters = plan.density.initial_parameters()
        posterior = plan.density._posterior(parameters)
        _check_guide(plan.density, parameters, self.norm, posterior.has_rsample)
        if plan.estimator.evaluations_per_step(target) != 1.0:
            self._warn_of_noise(
                plan,
                "Its objective holds the variance of the scores besides, and the fit is drawn to "
                "where that is small.",
            )
        return plan

    def _init_algorithm(self, plan: GuidePlan, start: Parameters, data: Data) -> GuideState:
        return GuideState(start, self._start_optimizer(plan, start))

    def _settings(self) -> dict[str, str]:
        return {"norm": self.norm, **super()._settings()}

    def _step(
        self, plan: GuidePlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        target, density = plan.target, plan.density
        rng_key, sample_key = random.split(state.rng_key)

        def draw(parameters: Parameters) -> Array:
            return density._posterior(parameters).sample(sample_key, (plan.num_samples,))

        def score(theta: Array) -> tuple[Array, Any]:
            found, estimator = plan.estimator.estimate(target, state.estimator, theta, data)
            return found.score, (theta, found, estimator)

        value, gradient, (theta, found, estimator) = fisher_gradient(
            density, state.algorithm.parameters, draw, score, self.norm
        )
        log_q = density.log_prob(state.algorithm.parameters, theta)
        log_p = found.log_density(target.likelihood_temperature)
        parameters, optimizer = self._descend(plan, state, lambda parameters: (value, gradient))
        state = state._replace(
            algorithm=GuideState(parameters, optimizer), estimator=estimator, rng_key=rng_key
        )
        return state, value, {"log_p": log_p.mean(), "log_q": log_q.mean()}


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
