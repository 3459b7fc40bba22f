"""From the flat unconstrained space to the sites' supports and back."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float
from numpyro import handlers

from numpyro_ext.density.bound_model import BoundModel
from numpyro_ext.density.handlers import value_of
from numpyro_ext.density.layout import Data


def constrain(bound: BoundModel, data: Data, position: Float[Array, " D"]) -> dict[str, Array]:
    """Latent sites, and parameter sites, in their supports, at one position."""
    trace = bound.trace(position, data, bound.rows_for_values())
    return {name: value_of(trace, name) for name in (*bound.layout.names, *bound.parameter_sites)}


def unconstrain(bound: BoundModel, data: Data, values: Mapping[str, Array]) -> Float[Array, " D"]:
    """The flat position of latent sites in their supports."""
    model = handlers.substitute(bound.controlled(bound.rows_for_values()), data=dict(values))
    return bound.unconstrained(bound.run(model, data))


def check_values(bound: BoundModel, values: Mapping[str, Array]) -> dict[str, Array]:
    """The latent sites among ``values``; raises as ``BoundModelShell.check_values`` does."""
    bound.check_values(values)
    return {name: jnp.asarray(values[name]) for name in bound.layout.names}
