"""Observed distributions made linear at one position; see :mod:`ppl_ext.target.linearized`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float
from numpyro import distributions
from numpyro.distributions.util import clamp_probs

from numpyro_ext.density.layout import Data, Indices
from numpyro_ext.density.log_density import LogDensity
from ppl_ext.target.linearized import Outputs, Scale, moved_by, scale_of


def _log(probabilities: Array) -> Array:
    return jnp.log(jnp.maximum(probabilities, jnp.finfo(probabilities.dtype).tiny))


_scale_of = partial(
    scale_of, host=distributions, simplex=Scale(_log, jax.nn.softmax), inside=clamp_probs
)


def linearized(
    target: LogDensity, around: Float[Array, " D"], data: Data, indices: Indices
) -> Callable[[Float[Array, " D"]], dict[str, Any]]:
    """Observed distributions, by site, as a function of the move (D,) from a position (D,).

    Each call takes one product of the Jacobian with the move, by forward derivatives.
    """

    outputs = Outputs(target, data, indices, _scale_of)

    # Outside of the derivative, for what has none: counts, masks and the kinds of distributions.
    sites = outputs.at(around)

    def moved(move: Array) -> dict[str, Any]:
        value, slope = jax.jvp(outputs.natural, (around,), (move,))
        return moved_by(sites, value, slope)

    return moved
