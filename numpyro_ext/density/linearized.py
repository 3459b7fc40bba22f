"""Observed distributions made linear at one position; see :mod:`ppl_ext.target.linearized`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.util import clamp_probs

from numpyro_ext.density.layout import Data, Indices
from numpyro_ext.density.log_density import LogDensity
from ppl_ext.target.linearized import Outputs, Scale, identity, moved_by


def scale_of(constraint: Any) -> Scale | None:
    """The scale without bounds of parameters under a constraint; None for counts.

    Raises
    ------
    NotImplementedError
        There is none.
    """
    base = getattr(constraint, "base_constraint", constraint)
    if base.is_discrete:
        return None
    if base is constraints.real:
        return Scale(identity, identity)
    if base is constraints.simplex:
        return Scale(_log, lambda value: jax.nn.softmax(value, -1))
    transform = biject_to(constraint)
    if base is constraints.unit_interval:
        # Probabilities that are rounded to 0 or 1 have no finite logit.
        return Scale(lambda value: transform.inv(clamp_probs(value)), transform)
    return Scale(transform.inv, transform)


def _log(probabilities: Array) -> Array:
    return jnp.log(jnp.maximum(probabilities, jnp.finfo(probabilities.dtype).tiny))


def linearized(
    target: LogDensity, around: Float[Array, " D"], data: Data, indices: Indices
) -> Callable[[Float[Array, " D"]], dict[str, Any]]:
    """Observed distributions, by site, as a function of the move (D,) from a position (D,).

    Each call takes one product of the Jacobian with the move, by forward derivatives.
    """

    outputs = Outputs(target, data, indices, scale_of)

    # Outside of the derivative, for what has none: counts, masks and the kinds of distributions.
    sites = outputs.at(around)

    def moved(move: Array) -> dict[str, Any]:
        value, slope = jax.jvp(outputs.natural, (around,), (move,))
        return moved_by(sites, value, slope)

    return moved
