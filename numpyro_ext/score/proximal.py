"""Proximal score-matching variational inference (``ProximalScoreVI``).

Fits a guide q to the target by matching scores, grad log q to grad log pi, at draws from the
present guide. It needs no reparameterised gradient and no second derivative of the model, takes
noisy (minibatch) scores, and evaluates the model once per iteration, before the guide is updated.

After M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural
Networks", equations 7-9 and Algorithm 1. The closed-form solver for Normal guides is this
project's; see :mod:`numpyro_ext.score.regression`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.engine import EngineState
from numpyro_ext.gradients import GradientEstimator
from numpyro_ext.guides.flat_density import FlatDensity, Parameters
from numpyro_ext.guides.mixture import AutoGaussianMixture
from numpyro_ext.guides.normal import LONG, DiagonalNormalDensity
from numpyro_ext.guides.planar_flow import AutoPlanarFlow
from numpyro_ext.score.guide_engine import DRAWS as DRAWS
from numpyro_ext.score.guide_engine import LEARNING_RATE as LEARNING_RATE
from numpyro_ext.score.guide_engine import GuideEngine, GuidePlan
from numpyro_ext.score.long_vectors import steps_by_part
from numpyro_ext.score.objective import blended_target, proximal_gradient
from numpyro_ext.score.regression import (
    CLOSED_FORMS,
    DECAY,
    TRUST,
    ClosedForm,
    group_of,
    structure_of,
)
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count, check_number, described, is_number

SOLVERS = ("gradient", "regression")


class GradientSteps(NamedTuple):
    """How the gradient solver works on a guide, unless told otherwise.

    Parameters
    ----------
    num_samples, num_inner_steps : int
        Draws and optimizer steps per iteration.
    learning_rate : float
        Of the default optimizer, at the start of a run.
    clip_norm : float, optional
        Limit on the default optimizer's gradient.
    """

    num_samples: int
    num_inner_steps: int
    learning_rate: float = LEARNING_RATE
    clip_norm: float | None = None


#: For diagonal Normals, the paper's.
STEPS_DIAGONAL = GradientSteps(1, 2)
#: For other Normals, whose correlations need more steps to follow, which in turn would fit a single
#: draw too closely; and for mixtures of them.
STEPS_NORMAL = GradientSteps(2, 20)
#: For planar flows and mixtures with low-rank covariances, which can bend to fit a few draws in a
#: few large steps, and have draws far out, whose scores would rule the optimizer's averages for
#: long.
STEPS_FLEXIBLE = GradientSteps(8, 2, 5e-3, clip_norm=1.0)
#: For all others, such as the host's flows, which break down with those.
STEPS_OTHER = GradientSteps(16, 1, 2e-3, clip_norm=1.0)

ProximalWeight = str | float | Callable[[Any, Any], Any]


class Reused(NamedTuple):
    """Draws and scores of earlier iterations that are used again.

    Parameters
    ----------
    theta, score : arrays (m, S, D)
        In a ring: the oldest is written over.
    written : int array
        Iterations that were written so far.
    """

    theta: Array
    score: Array
    written: Array


class ProximalState(NamedTuple):
    """State of the fit.

    Parameters
    ----------
    parameters : dict of arrays
        Unconstrained parameters of the guide, by host name.
    optimizer : pytree
        State of the optimizer; None with ``solver="regression"``.
    regression : pytree
        Running moments; None with ``solver="gradient"``.
    reused : Reused or None
        Earlier draws and scores; None with ``sample_reuse=1``.
    """

    parameters: Parameters
    optimizer: Any
    regression: Any
    reused: Reused | None = None


@dataclass(frozen=True)
class ProximalPlan(GuidePlan):
    """What ``ProximalScoreVI`` decides when it meets the model's arguments.

    Parameters
    ----------
    solver : {"gradient", "regression"}
    closed_form : ClosedForm, optional
        Of the solver "regression".
    num_inner_steps : int, optional
        Of the solver "gradient".
    """

    solver: str
    closed_form: ClosedForm[Any] | None = field(repr=False, compare=False)
    num_inner_steps: int | None


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
        ``AutoLowRankMultivariateNormal`` (closed-form scores), ``AutoMatrixNormal``,
        ``AutoGaussianMixture``, ``AutoPlanarFlow`` and the like; or the class, which is then
        called with the model. ``run(...).params`` are the guide's
        parameters for ``guide.sample_posterior``, ``guide.median``, ``Predictive`` and
        ``SVI.init(..., init_params=...)``.
    optim : optimizer or mapping, optional
        NumPyro or optax optimizer of the inner steps, whose state goes on over the iterations;
        its schedule, if it has one, counts inner steps. Default: Adam with a learning rate that
        falls from 0.01 to 0 along a cosine over the run; from 0.005 or 0.002 where ``num_samples``
        is 8 or 16 by default. A rate that falls matters: scores are noisy.

        A mapping from patterns of site names to optimizers, such as
        ``{"*.bias": Adam(1e-2), "*": Adam(1e-3)}``, gives sites rates of their own. A site belongs
        to the first pattern that it matches, ``"*"`` takes the rest, and None in place of an
        optimizer is the default. Entries of ``loc`` and ``scale``, also a mixture's, and rows of a
        Cholesky factor or of ``cov_factor`` belong to the sites of their coordinates; other
        parameters, such as a flow's, belong to ``"*"``.
    solver : {"gradient", "regression"}, optional
        "gradient" is the paper's. "regression" needs no optimizer; for ``AutoDiagonalNormal``,
        ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal``, ``AutoMatrixNormal`` and
        ``AutoGaussianMixture`` with full covariances. Default: "regression" for these five, unless
        an option of the gradient solver (``optim``, ``num_inner_steps``, ``proximal``,
        ``sample_reuse``, ``clip_norm``, a ``num_samples`` that is no multiple of 2, or of 2 K for
        a mixture) is given; "gradient" otherwise.
    num_samples : int, optional
        Draws S per iteration; an even number for ``solver="regression"``, whose draws come in
        mirrored pairs, and a multiple of 2 K for a mixture, with pairs from each of its K
        components. Default: the least such number; for ``solver="gradient"`` 1 with a diagonal
        Normal, 2 with other Normals and mixtures, 8 with planar flows and mixtures with
        "low_rank" covariances, 16 with the host's flows and guides of other kinds.
    num_inner_steps : int, optional
        Optimizer steps per iteration. Default: 20 for Normals that are not diagonal and for
        mixtures with "full" or "diag" covariances, 1 for the host's flows and guides of other
        kinds, 2 for the rest.
    proximal : "linear", float or callable
        Weight alpha_t of the proximal term: t/T (the paper's), a constant, or a function of
        (t, T) that JAX can trace. ``solver="regression"`` has its own proximal term.
    sample_reuse : int
        The inner steps use the draws and scores of so many iterations, the present one and those
        just before it; 1 is the paper's. More average the noise of scores over iterations without
        another evaluation of the model, and cost two vectors of length S D each. The match is
        then taken under the mixture of the guides that drew, with no importance weights: for a
        guide that can match the target everywhere its minimum is the same, for any other it
        lags, towards where earlier guides had their mass. In the first iterations the present
        draws stand in for those that are missing.
    clip_norm : float, optional
        The gradient of an inner step, in all of the guide's parameters as one vector, is
        shortened to this length where it is longer. Default: not; with the default optimizer 1
        where ``num_samples`` is 8 or more by default.
    initial_scale : float, optional
        Standard deviation of every coordinate, in the unconstrained space, at the start, for
        Normal guides. Default: the guide's own. Networks want a small one, such as 0.01.
    total_steps : int, optional
        T when steps are taken with ``update``. ``run`` sets T to the steps taken so far plus its
        own, so that a run resumed for its remaining steps has the T of the uninterrupted one.
        Steps taken with ``update`` after a run has ended are outside it and have this T again,
        not the run's. While T is unknown, t/T is taken as 0: the default optimizer keeps its
        first learning rate, and the paper's proximal weight is 0.
    decay, trust : float
        Constants p and c of ``solver="regression"`` (a mixture has no p); see
        :mod:`numpyro_ext.score.regression`.
    estimator, likelihood_temperature, particle_chunk, data_chunk, on_nonfinite
        See :class:`~numpyro_ext.engine.Engine`.

    Notes
    -----
    The loss is the mean of |grad log q_t - s|^2 over the draws; ``info`` holds the means of
    log p (tempered as the target is, from the minibatch) and of log q at the draws. With the
    closed form for mixtures, all three are weighted as the components that drew.
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
        sample_reuse: int = 1,
        clip_norm: float | None = None,
        initial_scale: float | None = None,
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
            clip_norm=clip_norm,
            initial_scale=initial_scale,
            total_steps=total_steps,
            estimator=estimator,
            likelihood_temperature=likelihood_temperature,
            particle_chunk=particle_chunk,
            data_chunk=data_chunk,
            on_nonfinite=on_nonfinite,
        )
        _check_options(solver, optim, num_inner_steps, proximal, decay, trust)
        _check_gradient_options(solver, sample_reuse, clip_norm, num_inner_steps, proximal)
        chosen = optim is not None or sample_reuse > 1 or clip_norm is not None
        chosen = chosen or num_inner_steps is not None or proximal != "linear"
        chosen = chosen or (num_samples is not None and num_samples % group_of(self.guide) != 0)
        self.solver = solver or default_solver(self.guide, gradient=chosen)
        self._solver_given = solver is not None
        self.num_inner_steps = num_inner_steps
        self.proximal = proximal
        self.sample_reuse = sample_reuse
        self.decay = float(decay)
        self.trust = float(trust)

    # -- engine hooks -------------------------------------------------------------------------

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> ProximalPlan:
        found = super()._plan(target, rng_key, data)
        density, solver, form = found.density, self.solver, None
        if solver == "regression":
            form = closed_form(density)(density, self.decay, self.trust)
            # The guide's shape is known only now.
            reason = form.unsuited(density.initial_parameters())
            if reason is not None and self._solver_given:
                raise ArgumentError(reason)
            if reason is not None:
                solver, form = "gradient", None
        common = target, found.estimator, rng_key, density, found.optim
        if form is not None:
            group = form.group(self.guide)
            check_group(self.num_samples, group)
            return ProximalPlan(
                *common, self.num_samples or group, LEARNING_RATE, None, solver, form, None
            )
        steps = default_steps(density)
        clip_norm = self.clip_norm
        if self.optim is None and clip_norm is None:
            clip_norm = steps.clip_norm
        # Long vectors are updated in place, see score.long_vectors.
        in_place = (
            isinstance(density, DiagonalNormalDensity)
            and self.optim is None
            and clip_norm is None
            and density.dim > LONG
        )
        return ProximalPlan(
            *common,
            self.num_samples or steps.num_samples,
            steps.learning_rate,
            clip_norm,
            solver,
            None,
            self.num_inner_steps or steps.num_inner_steps,
            keeps_state=in_place,
        )

    def _init_algorithm(self, plan: ProximalPlan, start: Parameters, data: Data) -> ProximalState:
        optimizer, regression = None, None
        if plan.closed_form is not None:
            regression = plan.closed_form.initial(start)
        else:
            optimizer = self._start_optimizer(plan, start)
        reused = None
        if self.sample_reuse > 1:
            shape = (self.sample_reuse - 1, plan.num_samples, plan.density.dim)
            dtype = jnp.result_type(*jax.tree.leaves(start))
            reused = Reused(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.asarray(0))
        return ProximalState(start, optimizer, regression, reused)

    def _step(
        self, plan: ProximalPlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        if plan.closed_form is None:
            return self._gradient_update(plan, state, data)
        target, density, form, fit = plan.target, plan.density, plan.closed_form, state.algorithm
        rng_key, sample_key = random.split(state.rng_key)
        theta = form.draw(fit.parameters, sample_key, plan.num_samples)
        present = density.score(fit.parameters, theta)
        log_q = density.log_prob(fit.parameters, theta)
        score, estimator = plan.estimator.estimate(target, state.estimator, theta, data)
        weights = form.weights(fit.parameters, plan.num_samples)
        loss = weights @ jnp.square(present - score.score).sum(-1)
        log_p = score.log_density(target.likelihood_temperature)
        total = self._total(state)
        regression, parameters = form.update(
            fit.regression, fit.parameters, theta, score.score, total, log_p
        )
        fit = ProximalState(parameters, None, regression)
        state = state._replace(algorithm=fit, estimator=estimator, rng_key=rng_key)
        return state, loss, {"log_p": weights @ log_p, "log_q": weights @ log_q}

    def _settings(self) -> dict[str, str]:
        settings = {"solver": self.solver, **super()._settings()}
        if self.solver == "regression":
            settings |= {"decay": repr(self.decay), "trust": repr(self.trust)}
        return settings

    # -- steps --------------------------------------------------------------------------------

    def _weight(self, state: EngineState) -> Array:
        if self.proximal == "linear":
            return self._progress(state)
        value = self.proximal
        if callable(value):
            value = value(state.step, self._total(state))
            if not is_number(value):
                raise ArgumentError(
                    f"Expected proximal(t, T) to return one number, found {described(value)}."
                )
        return jnp.asarray(value, jnp.result_type(float))

    def _gradient_update(
        self, plan: ProximalPlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array]]:
        target, density, fit, number = plan.target, plan.density, state.algorithm, plan.num_samples
        assert plan.num_inner_steps is not None
        rng_key, sample_key = random.split(state.rng_key)
        present_theta = density.sample(fit.parameters, sample_key, number)
        found, estimator = plan.estimator.estimate(target, state.estimator, present_theta, data)
        log_p = found.log_density(target.likelihood_temperature)
        theta, score = present_theta, found.score
        if fit.reused is not None:
            theta, score = _with_reused(fit.reused, theta, score)
        weight = self._weight(state)
        if plan.keeps_state:
            assert isinstance(density, DiagonalNormalDensity)
            parameters, optimizer, loss, log_q = steps_by_part(
                density,
                fit.parameters,
                fit.optimizer,
                theta,
                score,
                weight,
                self._default_rate(plan, state),
                plan.num_inner_steps,
                number,
            )
        else:
            present = density.score(fit.parameters, theta)
            log_q = density.log_prob(fit.parameters, present_theta).mean()
            loss = jnp.square(present[:number] - score[:number]).sum(-1).mean()
            blended = blended_target(score, present, weight)

            def objective(parameters: Parameters) -> tuple[Array, Parameters]:
                return proximal_gradient(density, parameters, theta, blended, weight)

            parameters, optimizer = self._descend(plan, state, objective, plan.num_inner_steps)
        reused = fit.reused
        if reused is not None:
            reused = _remember(reused, present_theta, found.score, jnp.isfinite(loss))
        fit = ProximalState(parameters, optimizer, None, reused)
        state = state._replace(algorithm=fit, estimator=estimator, rng_key=rng_key)
        return state, loss, {"log_p": log_p.mean(), "log_q": log_q}


def _with_reused(reused: Reused, theta: Array, score: Array) -> tuple[Array, Array]:
    """The present draws and scores (S, D) with the earlier ones; present ones where these lack."""
    number = len(reused.theta)
    there = (jnp.arange(number) < reused.written)[:, None, None]

    def joined(earlier: Array, present: Array) -> Array:
        earlier = jnp.where(there, earlier, present)
        return jnp.concatenate([present[None], earlier]).reshape(-1, present.shape[-1])

    return joined(reused.theta, theta), joined(reused.score, score)


def _remember(reused: Reused, theta: Array, score: Array, valid: Array) -> Reused:
    """Write draws and scores (S, D) over the oldest ones, if they are valid."""
    place = reused.written % len(reused.theta)

    def put(earlier: Array, present: Array) -> Array:
        return earlier.at[place].set(jnp.where(valid, present, earlier[place]))

    count = reused.written + valid.astype(reused.written.dtype)
    return Reused(put(reused.theta, theta), put(reused.score, score), count)


def default_solver(guide: Any, gradient: bool) -> str:
    """The solver for a guide, unless told otherwise.

    "regression" for the guides that have a closed form, where it needs fewer scores and no learning
    rate; "gradient" for all others, and where ``gradient`` says that an option of the gradient
    solver was given.
    """
    return "regression" if structure_of(guide) is not None and not gradient else "gradient"


def default_steps(density: FlatDensity) -> GradientSteps:
    """How the gradient solver works on a guide, unless told otherwise."""
    if density.covariance_structure == "diagonal":
        return STEPS_DIAGONAL
    if isinstance(density.guide, AutoGaussianMixture):
        return STEPS_FLEXIBLE if density.guide.covariance == "low_rank" else STEPS_NORMAL
    if isinstance(density.guide, AutoPlanarFlow):
        return STEPS_FLEXIBLE
    return STEPS_OTHER if density.covariance_structure is None else STEPS_NORMAL


def closed_form(density: FlatDensity) -> type[ClosedForm[Any]]:
    """The closed form for a guide.

    Raises
    ------
    ArgumentError
        It has none.
    """
    structure = structure_of(density.guide)
    if structure is None:
        raise ArgumentError(
            "Expected AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal, "
            "AutoMatrixNormal or AutoGaussianMixture with full covariances for "
            f"solver='regression', found {type(density.guide).__name__}. Use solver='gradient', "
            "which takes every guide with a flat log density."
        )
    return CLOSED_FORMS[structure]


def check_group(num_samples: int | None, group: int) -> None:
    """See that draws come in mirrored pairs, one or more for each component of the guide.

    Raises
    ------
    ArgumentError
        They do not.
    """
    if num_samples is not None and num_samples % group:
        expected = "an even num_samples" if group == 2 else f"a num_samples that {group} divides"
        raise ArgumentError(
            f"Expected {expected} with solver='regression', whose draws come in mirrored pairs "
            f"from each component of the guide, found {num_samples}. Use {group}, or "
            "solver='gradient'."
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
    check_count("num_inner_steps", num_inner_steps, optional=True)
    number = is_number(proximal) and float(proximal) >= 0
    if not (number or callable(proximal) or proximal == "linear"):
        raise ArgumentError(
            "Expected proximal to be 'linear', a number >= 0 or a function of (t, T), found "
            f"{proximal!r}."
        )
    check_number("decay", decay, most=1.0)
    check_number("trust", trust, above=1.0)
    if solver == "gradient" and (decay, trust) != (DECAY, TRUST):
        raise ArgumentError(
            "Expected no decay and no trust with solver='gradient', which has neither, found "
            f"{decay} and {trust}. Leave them out, or use solver='regression'."
        )


def _check_gradient_options(
    solver: str | None,
    sample_reuse: int,
    clip_norm: float | None,
    num_inner_steps: int | None,
    proximal: Any,
) -> None:
    check_count("sample_reuse", sample_reuse)
    if solver == "regression" and (sample_reuse > 1 or clip_norm is not None):
        raise ArgumentError(
            "Expected sample_reuse=1 and clip_norm=None with solver='regression', which averages "
            f"over all iterations and has no gradient, found sample_reuse={sample_reuse} and "
            f"clip_norm={clip_norm}. Leave them out, or use solver='gradient'."
        )
    if solver == "regression" and (num_inner_steps is not None or proximal != "linear"):
        raise ArgumentError(
            "Expected no num_inner_steps and no proximal with solver='regression', which takes one "
            f"step in closed form with its own proximal term, found {num_inner_steps} and "
            f"{proximal!r}. Leave them out, or use solver='gradient'."
        )
