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
import optax
from jax import Array, lax, random
from numpyro.infer.autoguide import AutoGuide

from numpyro_ext.engine import Engine, EngineState
from numpyro_ext.errors import ArgumentError
from numpyro_ext.gradients import GradientEstimator
from numpyro_ext.guides.flat_density import (
    FlatDensity,
    Parameters,
    check_has_flat_density,
    flat_density,
)
from numpyro_ext.score.gaussian_regression import (
    DECAY,
    TRUST,
    Regression,
    initial_regression,
    is_warm,
    observe,
    updated_moments,
)
from numpyro_ext.target import Data, LogDensity

SOLVERS = ("gradient", "regression")
# The default optimizer without its learning rate, which depends on the length of the run and so
# is known only when the run starts.
_ADAM = optax.scale_by_adam()
#: Learning rate of the default optimizer (Adam) at the start of a run.
LEARNING_RATE = 1e-2
#: Draws and inner steps per iteration of the gradient solver, unless told otherwise: for diagonal
#: guides (the paper's), and for others, whose correlations need more steps to follow, which in
#: turn would fit a single draw too closely.
SAMPLES_DIAGONAL, INNER_STEPS_DIAGONAL = 1, 2
SAMPLES, INNER_STEPS = 2, 20
#: Draws that ``get_samples`` returns unless told otherwise.
DRAWS = 1000

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


class ProximalScoreVI(Engine):
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
    solver : {"gradient", "regression"}
        "gradient" is the paper's. "regression" needs no optimizer; for ``AutoDiagonalNormal`` and
        ``AutoMultivariateNormal``.
    num_samples : int, optional
        Draws S per iteration. Default: 1, but 2 for ``solver="gradient"`` with another guide than
        a diagonal Normal.
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

    allow_local_latents = False

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Any,
        optim: Any = None,
        solver: str = "gradient",
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
            optim,
            estimator=estimator,
            likelihood_temperature=likelihood_temperature,
            particle_chunk=particle_chunk,
            data_chunk=data_chunk,
            on_nonfinite=on_nonfinite,
        )
        if isinstance(guide, type) and issubclass(guide, AutoGuide):
            guide = guide(model)
        check_has_flat_density(guide)
        _check_options(
            solver, optim, num_samples, num_inner_steps, proximal, total_steps, decay, trust
        )
        self.guide = guide
        self.solver = solver
        self.num_samples = num_samples
        self.num_inner_steps = num_inner_steps
        self.proximal = proximal
        self.total_steps = total_steps
        self.decay = decay
        self.trust = trust
        self._density: FlatDensity | None = None

    # -- engine hooks -------------------------------------------------------------------------

    def _init_algorithm(self, target: LogDensity, rng_key: Array, data: Data) -> ProximalState:
        density = flat_density(self.guide, rng_key, data.args, data.kwargs, layout=target.layout)
        parameters = density.initial_parameters()
        optimizer, regression = None, None
        if self.solver == "regression":
            if density.covariance_structure not in ("diagonal", "full"):
                raise ArgumentError(
                    "Expected AutoDiagonalNormal or AutoMultivariateNormal for "
                    f"solver='regression', found {type(self.guide).__name__}. Use "
                    "solver='gradient', which takes every guide with a flat log density."
                )
            regression = initial_regression(density.moments(parameters).scale)
        elif self.optim is None:
            optimizer = _ADAM.init(parameters)
        else:
            # The host's optimizers keep the parameters in their state.
            optimizer = self.optim.init(parameters)
        diagonal = density.covariance_structure == "diagonal"
        if self.num_samples is None:
            single = diagonal or self.solver == "regression"
            self.num_samples = SAMPLES_DIAGONAL if single else SAMPLES
        if self.num_inner_steps is None:
            self.num_inner_steps = INNER_STEPS_DIAGONAL if diagonal else INNER_STEPS
        self._density = density
        return ProximalState(parameters, optimizer, regression)

    def _step(
        self, target: LogDensity, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        density, fit = self.density, state.algorithm
        assert self.num_samples is not None
        rng_key, sample_key = random.split(state.rng_key)
        theta = density.sample(fit.parameters, sample_key, self.num_samples)
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
            fit = self._gradient_steps(density, fit, theta, blended, weight, self._progress(state))
        state = state._replace(algorithm=fit, estimator=estimator, rng_key=rng_key)
        return state, loss, {"log_p": log_p.mean(), "log_q": log_q.mean()}

    def _get_params(self, target: LogDensity, state: EngineState, data: Data) -> dict[str, Any]:
        return self.density.write_back(state.algorithm.parameters)

    def _settings(self) -> dict[str, str]:
        return {"solver": self.solver, "guide": type(self.guide).__name__}

    def _draw(
        self,
        target: LogDensity,
        state: EngineState,
        rng_key: Array | None,
        num_samples: int | None,
    ) -> Array:
        if rng_key is None:
            # Not one of the keys that the steps will use.
            rng_key = random.fold_in(state.rng_key, 1)
        number = DRAWS if num_samples is None else num_samples
        return self.density.sample(state.algorithm.parameters, rng_key, number)

    # -- the fit ------------------------------------------------------------------------------

    def sample_statistics(self, state: EngineState, positions: Array) -> dict[str, Array]:
        """Log density of the guide at flat positions (S, D), for ``to_arviz``."""
        return {"log_q": self.density.log_prob(state.algorithm.parameters, positions)}

    @property
    def density(self) -> FlatDensity:
        """The guide as a density over the flat unconstrained vector."""
        self.target  # noqa: B018 - raises before the model's arguments are known
        assert self._density is not None
        return self._density

    # -- steps --------------------------------------------------------------------------------

    def _total(self, state: EngineState) -> Array:
        """T of the run; outside a run ``total_steps``, 0 when that is not given."""
        # A state keeps the horizon of its run when the run is over.
        return jnp.where(state.step < state.horizon, state.horizon, self.total_steps or 0)

    def _progress(self, state: EngineState) -> Array:
        """Fraction t/T of the run that is done."""
        total = self._total(state)
        dtype = jnp.result_type(float)
        fraction = state.step.astype(dtype) / jnp.maximum(total, 1).astype(dtype)
        return jnp.where(total > 0, jnp.minimum(fraction, 1.0), 0.0)

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
        fit: ProximalState,
        theta: Array,
        target: Array,
        weight: Array,
        progress: Array,
    ) -> ProximalState:
        assert self.num_inner_steps is not None
        rate = LEARNING_RATE * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))

        def inner(_: int, carry: tuple[Parameters, Any]) -> tuple[Parameters, Any]:
            parameters, optimizer = carry
            value, gradient = proximal_gradient(density, parameters, theta, target, weight)
            if self.optim is None:
                step, optimizer = _ADAM.update(gradient, optimizer)
                return jax.tree.map(lambda x, u: x - rate * u, parameters, step), optimizer
            optimizer = self.optim.update(gradient, optimizer, value)
            return self.optim.get_params(optimizer), optimizer

        carry = (fit.parameters, fit.optimizer)
        parameters, optimizer = lax.fori_loop(0, self.num_inner_steps, inner, carry)
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


def _check_options(
    solver: str,
    optim: Any,
    num_samples: int | None,
    num_inner_steps: int | None,
    proximal: Any,
    total_steps: int | None,
    decay: float,
    trust: float,
) -> None:
    if solver not in SOLVERS:
        raise ArgumentError(f"Expected solver to be one of {SOLVERS}, found {solver!r}.")
    if solver == "regression" and optim is not None:
        raise ArgumentError(
            "Expected optim=None with solver='regression', which has no optimizer, found "
            f"{type(optim).__name__}. Leave it out, or use solver='gradient'."
        )
    if num_samples is not None and num_samples < 1:
        raise ArgumentError(f"Expected num_samples >= 1, found {num_samples}.")
    if num_inner_steps is not None and num_inner_steps < 1:
        raise ArgumentError(f"Expected num_inner_steps >= 1, found {num_inner_steps}.")
    if total_steps is not None and total_steps < 1:
        raise ArgumentError(f"Expected total_steps >= 1, found {total_steps}.")
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
