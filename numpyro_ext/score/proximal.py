"""Proximal score-matching variational inference (``ProximalScoreVI``).

Fits a guide q to the target by matching scores, grad log q to grad log pi, at draws from the
present guide. It needs no reparameterised gradient and no second derivative of the model, takes
noisy (minibatch) scores, and evaluates the model once per iteration, before the guide is updated.

After M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural
Networks", equations 7-9 and Algorithm 1. The closed-form solver for Normal guides is this
project's; see :mod:`numpyro_ext.score.gaussian_regression`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ext.engine import EngineState
from numpyro_ext.errors import ArgumentError
from numpyro_ext.gradients import GradientEstimator
from numpyro_ext.guides.flat_density import FlatDensity, Parameters, check_has_flat_density
from numpyro_ext.score.gaussian_regression import (
    DECAY,
    TRUST,
    Regression,
    antithetic,
    initial_regression,
    is_warm,
    observe,
    updated_moments,
)
from numpyro_ext.score.guide_engine import DRAWS as DRAWS
from numpyro_ext.score.guide_engine import LEARNING_RATE as LEARNING_RATE
from numpyro_ext.score.guide_engine import GuideEngine
from numpyro_ext.target import Data, LogDensity

SOLVERS = ("gradient", "regression")
#: Covariance structures for which "regression" is the default.
REGRESSED = ("full",)
#: Draws and inner steps per iteration of the gradient solver, unless told otherwise: for diagonal
#: guides (the paper's), and for others, whose correlations need more steps to follow, which in
#: turn would fit a single draw too closely.
SAMPLES_DIAGONAL, INNER_STEPS_DIAGONAL = 1, 2
SAMPLES, INNER_STEPS = 2, 20

ProximalWeight = str | float | Callable[[Any, Any], Any]


class ProximalState(NamedTuple):
    """State of the fit.

    Parameters
    ----------
    parameters : dict of arrays
        Unconstrained parameters of the guide, by host name.
    optimizer : pytree
        State of the optimizer; None with ``solver="regression"``.
    regression : Regression or None
        Running moments; None with ``solver="gradient"``.
    """

    parameters: Parameters
    optimizer: Any
    regression: Regression | None


def blended_target(score: Array, present_score: Array, weight: Array | float) -> Array:
    """The one regression target that stands for both terms of the proximal objective.

    With b = (s + alpha g_t) / (1 + alpha),
    ``alpha |g - g_t|^2 + |g - s|^2 = (1 + alpha) |g - b|^2 + a constant``,
    so that the inner steps need a single array of scores.

    Parameters
    ----------
    score, present_score : arrays (S, D)
        Score s of the target, and g_t of the present guide, at the same points.
    weight : float
        Proximal weight alpha.
    """
    return (score + weight * present_score) / (1.0 + weight)


def proximal_gradient(
    density: FlatDensity,
    parameters: Parameters,
    theta: Array,
    target: Array,
    weight: Array | float,
) -> tuple[Array, Parameters]:
    """Proximal objective (up to a constant) and its gradient in the guide's parameters.

    Equation 8 of the paper, for draws ``theta`` (S, D) held fixed, with ``target`` from
    :func:`blended_target`.
    """
    value, gradient = density.mean_square_residual(parameters, theta, target)
    factor = 1.0 + weight
    return factor * value, jax.tree.map(lambda entry: factor * entry, gradient)


class ProximalScoreVI(GuideEngine):
    """Proximal score-matching variational inference.

    Each iteration t of T draws theta from the present guide q_t, evaluates the (minibatch) score
    s of the target there once, and then lowers

        alpha_t |grad log q - grad log q_t|^2 + |grad log q - s|^2

    averaged over the draws, in the guide's parameters, by ``num_inner_steps`` optimizer steps
    (``solver="gradient"``) or, for Normal guides, in closed form (``solver="regression"``).

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    guide : AutoContinuous
        A NumPyro autoguide of the model that has a log density over the flat unconstrained
        vector: ``AutoDiagonalNormal``, ``AutoMultivariateNormal``,
        ``AutoLowRankMultivariateNormal`` (closed-form scores), ``AutoIAFNormal`` and the like; or
        the class, which is then called with the model. ``run(...).params`` are the guide's
        parameters for ``guide.sample_posterior``, ``guide.median``, ``Predictive`` and
        ``SVI.init(..., init_params=...)``.
    optim : optimizer, optional
        NumPyro or optax optimizer of the inner steps, whose state goes on over the iterations;
        its schedule, if it has one, counts inner steps. Default: Adam with a learning rate that
        falls from 0.01 to 0 along a cosine over the run. A rate that falls matters: scores are
        noisy.
    solver : {"gradient", "regression"}, optional
        "gradient" is the paper's. "regression" needs no optimizer; for ``AutoDiagonalNormal`` and
        ``AutoMultivariateNormal``. Default: "regression" for ``AutoMultivariateNormal`` when no
        optimizer is given, "gradient" otherwise.
    num_samples : int, optional
        Draws S per iteration; an even number for ``solver="regression"``, whose draws come in
        mirrored pairs. Default: 2, but 1 for ``solver="gradient"`` with a diagonal Normal.
    num_inner_steps : int, optional
        Optimizer steps per iteration. Default: 2 for a diagonal Normal, 20 for other guides.
    proximal : "linear", float or callable
        Weight alpha_t of the proximal term: t/T (the paper's), a constant, or a function of
        (t, T) that JAX can trace. ``solver="regression"`` has its own proximal term.
    total_steps : int, optional
        T when steps are taken with ``update``. ``run`` sets T to the steps taken so far plus its
        own, so that a run resumed for its remaining steps has the T of the uninterrupted one.
        Steps taken with ``update`` after a run has ended are outside it and have this T again,
        not the run's. While T is unknown, t/T is taken as 0: the default optimizer keeps its
        first learning rate, and the paper's proximal weight is 0.
    decay, trust : float
        Constants p and c of ``solver="regression"``; see
        :mod:`numpyro_ext.score.gaussian_regression`.
    estimator, likelihood_temperature, particle_chunk, data_chunk, on_nonfinite
        See :class:`~numpyro_ext.engine.Engine`.

    Notes
    -----
    The loss is the mean of |grad log q_t - s|^2 over the draws; ``info`` holds the means of
    log p (tempered as the target is, from the minibatch) and of log q at the draws.
    Latents inside a subsampled plate are refused, as these guides cannot hold them.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, or an option is out of range.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        optim: Any = None,
        solver: str | None = None,
        num_samples: int | None = None,
        num_inner_steps: int | None = None,
        proximal: ProximalWeight = "linear",
        *,
        total_steps: int | None = None,
        decay: float = DECAY,
        trust: float = TRUST,
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
        _check_options(solver, optim, num_inner_steps, proximal, decay, trust)
        self.solver = solver or default_solver(self.guide, optim)
        self.num_inner_steps = num_inner_steps
        self.proximal = proximal
        self.decay = decay
        self.trust = trust

    # -- engine hooks -------------------------------------------------------------------------

    def _prepare(self, density: FlatDensity, parameters: Parameters) -> ProximalState:
        optimizer, regression = None, None
        if self.solver == "regression":
            check_regression(density, self.num_samples)
            regression = initial_regression(density.moments(parameters).scale)
        else:
            optimizer = self._start_optimizer(parameters)
        diagonal = density.covariance_structure == "diagonal"
        if self.num_samples is None:
            single = diagonal and self.solver == "gradient"
            self.num_samples = SAMPLES_DIAGONAL if single else SAMPLES
        if self.num_inner_steps is None:
            self.num_inner_steps = INNER_STEPS_DIAGONAL if diagonal else INNER_STEPS
        return ProximalState(parameters, optimizer, regression)

    def _step(
        self, target: LogDensity, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        density, fit = self.density, state.algorithm
        assert self.num_samples is not None
        rng_key, sample_key = random.split(state.rng_key)
        theta = self._sample(density, fit.parameters, sample_key)
        present = density.score(fit.parameters, theta)
        log_q = density.log_prob(fit.parameters, theta)
        score, estimator = self.estimator.estimate(target, state.estimator, theta, data)
        loss = jnp.square(present - score.score).sum(-1).mean()
        log_p = score.log_prior + score.log_likelihood / target.likelihood_temperature
        if self.solver == "regression":
            fit = self._regression_step(density, fit, theta, score.score)
        else:
            weight = self._weight(state)
            blended = blended_target(score.score, present, weight)
            fit = self._gradient_steps(density, state, theta, blended, weight)
        state = state._replace(algorithm=fit, estimator=estimator, rng_key=rng_key)
        return state, loss, {"log_p": log_p.mean(), "log_q": log_q.mean()}

    def _sample(self, density: FlatDensity, parameters: Parameters, rng_key: Array) -> Array:
        assert self.num_samples is not None
        if self.solver == "gradient":
            return density.sample(parameters, rng_key, self.num_samples)
        draws = density.sample(parameters, rng_key, self.num_samples // 2)
        return antithetic(draws, density.moments(parameters).mean)

    def _settings(self) -> dict[str, str]:
        return {"solver": self.solver, **super()._settings()}

    # -- steps --------------------------------------------------------------------------------

    def _weight(self, state: EngineState) -> Array:
        if self.proximal == "linear":
            return self._progress(state)
        value = (
            self.proximal(state.step, self._total(state))
            if callable(self.proximal)
            else self.proximal
        )
        return jnp.asarray(value, jnp.result_type(float))

    def _gradient_steps(
        self,
        density: FlatDensity,
        state: EngineState,
        theta: Array,
        target: Array,
        weight: Array,
    ) -> ProximalState:
        assert self.num_inner_steps is not None

        def objective(parameters: Parameters) -> tuple[Array, Parameters]:
            return proximal_gradient(density, parameters, theta, target, weight)

        parameters, optimizer = self._descend(state, objective, self.num_inner_steps)
        return ProximalState(parameters, optimizer, None)

    def _regression_step(
        self, density: FlatDensity, fit: ProximalState, theta: Array, score: Array
    ) -> ProximalState:
        assert fit.regression is not None
        regression = observe(fit.regression, theta, score, self.decay)

        def updated(parameters: Parameters) -> Parameters:
            moments = updated_moments(regression, density.moments(parameters), self.trust)
            return density.set_moments(parameters, moments)

        parameters = lax.cond(
            is_warm(regression), updated, lambda parameters: parameters, fit.parameters
        )
        return ProximalState(parameters, None, regression)


def default_solver(guide: Any, optim: Any) -> str:
    """The solver for a guide, unless told otherwise.

    "regression" for Normal guides with correlations, where it needs fewer scores and no learning
    rate; "gradient" for all others and when an optimizer is given.
    """
    structure = getattr(check_has_flat_density(guide), "covariance_structure", None)
    correlated = structure in REGRESSED and optim is None
    return "regression" if correlated else "gradient"


def check_regression(density: FlatDensity, num_samples: int | None) -> None:
    """See that the closed form knows the guide and that draws come in pairs.

    Raises
    ------
    ArgumentError
        It does not, or they do not.
    """
    if density.covariance_structure not in ("diagonal", *REGRESSED):
        raise ArgumentError(
            "Expected AutoDiagonalNormal or AutoMultivariateNormal for solver='regression', found "
            f"{type(density.guide).__name__}. Use solver='gradient', which takes every guide with "
            "a flat log density."
        )
    if num_samples is not None and num_samples % 2:
        raise ArgumentError(
            "Expected an even num_samples with solver='regression', whose draws come in mirrored "
            f"pairs, found {num_samples}. Use 2, or solver='gradient'."
        )


def _check_options(
    solver: str | None,
    optim: Any,
    num_inner_steps: int | None,
    proximal: Any,
    decay: float,
    trust: float,
) -> None:
    if solver is not None and solver not in SOLVERS:
        raise ArgumentError(f"Expected solver to be one of {SOLVERS}, found {solver!r}.")
    if solver == "regression" and optim is not None:
        raise ArgumentError(
            "Expected optim=None with solver='regression', which has no optimizer, found "
            f"{type(optim).__name__}. Leave it out, or use solver='gradient'."
        )
    if num_inner_steps is not None and num_inner_steps < 1:
        raise ArgumentError(f"Expected num_inner_steps >= 1, found {num_inner_steps}.")
    number = isinstance(proximal, int | float) and proximal >= 0
    if not (number or callable(proximal) or proximal == "linear"):
        raise ArgumentError(
            "Expected proximal to be 'linear', a number >= 0 or a function of (t, T), found "
            f"{proximal!r}."
        )
    if not 0 < decay <= 1:
        raise ArgumentError(f"Expected 0 < decay <= 1, found {decay}.")
    if not trust > 1:
        raise ArgumentError(f"Expected trust > 1, found {trust}.")
