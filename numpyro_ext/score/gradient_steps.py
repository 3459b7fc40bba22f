"""The proximal step by an optimizer (``GradientSteps``), for every guide with a flat log density.

After M. Kim, "Large-scale Score-based Variational Posterior Inference for Bayesian Deep Neural
Networks" (https://arxiv.org/abs/2602.05873), equation 8 and Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, Int

from numpyro_ext.density import Data
from numpyro_ext.descent import default_rate, descend, progress, run_length, start_optimizer
from numpyro_ext.engine import EngineState
from numpyro_ext.guides.flat_density import FlatDensity, Parameters
from numpyro_ext.guides.normal import LONG, DiagonalNormalDensity
from numpyro_ext.score.guide_engine import GuideEngine, GuidePlan
from numpyro_ext.score.long_vectors import steps_by_part
from numpyro_ext.score.objective import blended_target, proximal_gradient
from ppl_ext.score_matching.options import GradientSteps
from ppl_ext.score_matching.proximal import GradientExecutor


class Reused(NamedTuple):
    """Draws and scores of earlier iterations that are used again.

    Parameters
    ----------
    theta, score : arrays (m, S, D)
        In a ring: the oldest is written over.
    written : int array
        Iterations that were written so far.
    """

    theta: Float[Array, "m S D"]
    score: Float[Array, "m S D"]
    written: Int[Array, ""]


class GradientState(NamedTuple):
    """State of the fit.

    Parameters
    ----------
    parameters : dict of arrays
        Unconstrained parameters of the guide, by host name.
    optimizer : pytree
        State of the optimizer.
    reused : Reused or None
        Earlier draws and scores; None with ``sample_reuse=1``.
    """

    parameters: Parameters
    optimizer: Any
    reused: Reused | None


@dataclass(frozen=True)
class GradientSolver(GradientExecutor):
    """Carries out :class:`~ppl_ext.score_matching.options.GradientSteps`.

    Parameters
    ----------
    options, learning_rate
        See :class:`~ppl_ext.score_matching.proximal.GradientExecutor`.
    in_place : bool
        Whether long vectors are updated in place, see :mod:`numpyro_ext.score.long_vectors`.
    """

    in_place: bool = field(repr=False, compare=False)

    @classmethod
    def plan(cls, options: GradientSteps, density: FlatDensity) -> GradientSolver:
        """The solver for a guide."""
        defaults = cls._usual(density)
        resolved = options.resolved(defaults)
        long = isinstance(density, DiagonalNormalDensity) and density.dim > LONG
        # Another optimizer need not work entry by entry, and the length of a gradient is one of all
        # entries.
        in_place = long and options.optim is None and resolved.clip_norm is None
        return cls(resolved, defaults.learning_rate, in_place)

    def initial(
        self, engine: GuideEngine, plan: GuidePlan, parameters: Parameters
    ) -> GradientState:
        """The state before the first iteration."""
        reused = None
        if self.options.sample_reuse > 1:
            shape = (self.options.sample_reuse - 1, plan.num_samples, plan.density.dim)
            dtype = jnp.result_type(*jax.tree.leaves(parameters))
            reused = Reused(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.asarray(0))
        return GradientState(parameters, start_optimizer(plan, parameters), reused)

    def update(
        self, engine: GuideEngine, plan: GuidePlan, state: EngineState, data: Data
    ) -> tuple[EngineState, Float[Array, ""], dict[str, Float[Array, ""]]]:
        """One iteration."""
        target, density, fit, number = plan.target, plan.density, state.algorithm, plan.num_samples
        inner_steps = self.options.num_inner_steps
        assert inner_steps is not None
        rng_key, sample_key = random.split(state.rng_key)
        present_theta = density.sample(fit.parameters, sample_key, number)
        found, estimator = plan.estimator.estimate(target, state.estimator, present_theta, data)
        log_p = found.log_density(target.likelihood_temperature)
        theta, score = present_theta, found.score
        if fit.reused is not None:
            theta, score = _with_reused(fit.reused, theta, score)
        done = progress(engine, state)
        weight = self.options.weight(state.step, run_length(engine, state), done)
        weight = jnp.asarray(weight, jnp.result_type(float))
        if self.in_place:
            assert isinstance(density, DiagonalNormalDensity)
            parameters, optimizer, loss, log_q = steps_by_part(
                density,
                fit.parameters,
                fit.optimizer,
                theta,
                score,
                weight,
                default_rate(engine, plan, state),
                inner_steps,
                number,
            )
        else:
            values, present = density.log_prob_and_score(fit.parameters, theta)
            log_q = values[:number].mean()
            loss = jnp.square(present[:number] - score[:number]).sum(-1).mean()
            blended = blended_target(score, present, weight)

            def objective(parameters: Parameters) -> tuple[Array, Parameters]:
                return proximal_gradient(density, parameters, theta, blended, weight)

            parameters, optimizer = descend(engine, plan, state, objective, inner_steps)
        reused = fit.reused
        if reused is not None:
            reused = _remember(reused, present_theta, found.score, jnp.isfinite(loss))
        fit = GradientState(parameters, optimizer, reused)
        state = state._replace(algorithm=fit, estimator=estimator, rng_key=rng_key)
        return state, loss, {"log_p": log_p.mean(), "log_q": log_q}


def _with_reused(reused: Reused, theta: Array, score: Array) -> tuple[Array, Array]:
    """The present draws and scores (S, D) with the earlier ones; present ones where these lack."""
    there = (jnp.arange(len(reused.theta)) < reused.written)[:, None, None]

    def joined(earlier: Array, present: Array) -> Array:
        earlier = jnp.where(there, earlier, present)
        return jnp.concatenate([present[None], earlier]).reshape(-1, present.shape[-1])

    return joined(reused.theta, theta), joined(reused.score, score)


def _remember(reused: Reused, theta: Array, score: Array, valid: Array) -> Reused:
    """Write draws and scores (S, D) over the oldest ones, if they are valid."""
    place = reused.written % len(reused.theta)

    def put(earlier: Array, present: Array) -> Array:
        # A step that is not finite is not taken, and its scores are not to come back in later ones.
        return earlier.at[place].set(jnp.where(valid, present, earlier[place]))

    count = reused.written + valid.astype(reused.written.dtype)
    return Reused(put(reused.theta, theta), put(reused.score, score), count)
