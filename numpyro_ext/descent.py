"""Steps of an optimizer down an objective, for the engines that fit parameters by them.

Their plans have ``optim``, the optimizer or None for the default; ``learning_rate``, the default's
at the start of a run; and ``clip_norm``, a limit on the length of the gradient or None. The state
of their algorithm has ``parameters``, a tree of arrays, and ``optimizer``. Their options are in
:mod:`ppl_ext.engines.descent`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Float

from numpyro_ext.engine import EngineState

# The default optimizer without its learning rate, which depends on the length of the run and so
# is known only when the run starts.
ADAM = optax.scale_by_adam()


def run_length(engine: Any, state: EngineState) -> Array:
    """T of the run; outside a run ``total_steps``, 0 when that is not given."""
    # A state keeps the horizon of its run when the run is over.
    return jnp.where(state.step < state.horizon, state.horizon, engine.total_steps or 0)


def progress(engine: Any, state: EngineState) -> Array:
    """Fraction t/T of the run that is done."""
    # The length of a run is an argument of the compiled loop, so that runs of other lengths need no
    # other program.
    total = run_length(engine, state)
    dtype = jnp.result_type(float)
    fraction = state.step.astype(dtype) / jnp.maximum(total, 1).astype(dtype)
    return jnp.where(total > 0, jnp.minimum(fraction, 1.0), 0.0)


def start_optimizer(plan: Any, parameters: Any) -> Any:
    """State of the optimizer that :func:`descend` uses: the given one or the default."""
    # The host's optimizers keep the parameters in their state.
    return ADAM.init(parameters) if plan.optim is None else plan.optim.init(parameters)


def default_rate(engine: Any, plan: Any, state: EngineState) -> Array:
    """Present learning rate of the default optimizer."""
    return plan.learning_rate * 0.5 * (1.0 + jnp.cos(jnp.pi * progress(engine, state)))


def descend(
    engine: Any,
    plan: Any,
    state: EngineState,
    objective: Callable[[Any], tuple[Array, Any]],
    num_steps: int = 1,
) -> tuple[Any, Any]:
    """Take optimizer steps down an objective, a function to a value and a gradient.

    Returns the new parameters and the new state of the optimizer.
    """
    rate = default_rate(engine, plan, state)

    def inner(_: int, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        parameters, optimizer = carry
        value, gradient = objective(parameters)
        if plan.clip_norm is not None:
            gradient = clipped(gradient, plan.clip_norm)
        if plan.optim is None:
            return adam_step(parameters, gradient, optimizer, rate)
        if hasattr(plan.optim, "update_at"):  # one of several, of which some are the default
            optimizer = plan.optim.update_at(gradient, optimizer, value, rate)
        else:
            optimizer = plan.optim.update(gradient, optimizer, value)
        return plan.optim.get_params(optimizer), optimizer

    carry = (state.algorithm.parameters, state.algorithm.optimizer)
    return lax.fori_loop(0, num_steps, inner, carry)


def adam_step(
    parameters: Any, gradient: Any, state: Any, rate: Float[Array, ""] | float
) -> tuple[Any, Any]:
    """One step of the default optimizer: the new parameters and its new state."""
    step, state = ADAM.update(gradient, state)
    return jax.tree.map(lambda x, u: x - rate * u, parameters, step), state


def clipped(gradient: Any, norm: float) -> Any:
    """The gradient, as one vector over all parameters, shortened to ``norm`` if it is longer."""
    length = jnp.sqrt(sum(jnp.square(entry).sum() for entry in jax.tree.leaves(gradient)))
    factor = jnp.minimum(norm / length, 1.0)
    return jax.tree.map(lambda entry: entry * factor, gradient)
