"""Fisher information of NumPyro's distributions.

See :mod:`ppl_ext.curvature.fisher_information`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import polygamma
from jaxtyping import Float

from numpyro_ext.density.outputs import Output
from ppl_ext.curvature.fisher_information import FisherRoots, Parameters
from ppl_ext.target.outputs import BASE


class _NumPyroRoots(FisherRoots):
    host, distributions, functions, base = "NumPyro", dist, jnp, BASE

    def sigmoid(self, x: Array) -> Array:
        return jax.nn.sigmoid(x)

    def softmax(self, x: Array) -> Array:
        return jax.nn.softmax(x, axis=-1)

    def trigamma(self, x: Array) -> Array:
        return polygamma(1, x)

    def solve_lower(self, factor: Array, right: Array) -> Array:
        return solve_triangular(factor, right, lower=True)

    def gradient(self, function: Callable[[Parameters], Array]) -> Callable[[Parameters], Any]:
        return jax.grad(function)

    def is_floating(self, value: Array) -> bool:
        return jnp.issubdtype(value.dtype, jnp.floating)


_FISHER = _NumPyroRoots()
register_output_fisher, root_for = _FISHER.register, _FISHER.root_for
needs_draws, moving = _FISHER.needs_draws, _FISHER.moving
whitened_parts = _FISHER.whitened_outputs


def fisher_root(
    output: Output, tangents: Parameters, rng_key: Array, draws: int = 16
) -> Float[Array, "... R"]:
    """Root of an observed site's Fisher information, shape batch + (R,).

    Parameters
    ----------
    output : Output
        The site at the point where F is taken.
    tangents : dict of str to array
        Changes of ``output.parameters``.
    rng_key : array
        For distributions without a registered root.
    draws : int
        Values drawn for these.
    """
    estimated = partial(_monte_carlo_root, output, tangents, rng_key, draws)
    return _FISHER.known_root(output, tangents, estimated)


def drawn_values(output: Output, rng_key: Array, draws: int) -> Array:
    """Values drawn from a site's distribution, shape (draws, ...).

    Raises
    ------
    ArgumentError
        It is not built from its parameters, or not drawn from.
    """
    try:
        built = _FISHER.rebuilt(output, moving(output))
        return jax.lax.stop_gradient(built.sample(rng_key, (draws,)))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _FISHER.cannot_draw(output, error) from error


def _monte_carlo_root(output: Output, tangents: Parameters, rng_key: Array, draws: int) -> Array:
    """1/S sum of score score^T at S values drawn from the distribution; positive semidefinite."""
    moved, values = moving(output), drawn_values(output, rng_key, draws)

    def root(value: Array) -> Array:
        # The elements are independent: the gradient of the sum is that of each.
        scores = jax.grad(lambda parameters: output.built(parameters).log_prob(value).sum())(moved)
        return sum(
            (
                (scores[name] * tangents[name]).reshape((*output.batch, -1)).sum(-1)
                for name in moved
            ),
            jnp.zeros(output.batch),
        )

    return jnp.moveaxis(jax.vmap(root)(values), 0, -1) / math.sqrt(draws)
