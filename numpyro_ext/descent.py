"""What the engines share that fit parameters by steps of an optimizer (``DescentEngine``).

Their plans have ``optim``, the optimizer or None for the default; ``learning_rate``, the default's
at the start of a run; and ``clip_norm``, a limit on the length of the gradient or None. The state
of their algorithm has ``parameters``, a tree of arrays, and ``optimizer``.
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
from ppl_ext.engines.descent import DescentShell

# The default optimizer without its learning rate, which depends on the length of the run and so
# is known only when the run starts.
ADAM = optax.scale_by_adam()


class DescentEngine(DescentShell):
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

    def _start_optimizer(self, plan: Any, parameters: Any) -> Any:
        """State of the optimizer that ``_descend`` uses: the given one or the default."""
        # The host's optimizers keep the parameters in their state.
        return ADAM.init(parameters) if plan.optim is None else plan.optim.init(parameters)

    def _default_rate(self, plan: Any, state: EngineState) -> Array:
        """Present learning rate of the default optimizer."""
        return plan.learning_rate * 0.5 * (1.0 + jnp.cos(jnp.pi * self._progress(state)))

    def _descend(
        self,
        plan: Any,
        state: EngineState,
        objective: Callable[[Any], tuple[Array, Any]],
        num_steps: int = 1,
    ) -> tuple[Any, Any]:
        """Take optimizer steps down an objective, a function to a value and a gradient.

        Returns the new parameters and the new state of the optimizer.
        """
        rate = self._default_rate(plan, state)

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
