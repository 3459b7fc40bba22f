"""The gradient solver's steps for long diagonal guides, where touching the vectors is what costs.

Vectors of a network's length are read and written as few times as possible, and updated in place.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Float

from numpyro_ext.guides.flat_density import Parameters
from numpyro_ext.guides.normal import DiagonalNormalDensity, part_of
from numpyro_ext.score.objective import blended_target, proximal_gradient

#: Entries that take all their inner steps before the next do. Few enough for a core's own cache,
#: and for the compiler not to divide each operation among cores, which takes longer than it saves.
PART = 2**14
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
#: Bound on a step of Adam, over all gradients and step numbers, in learning rates. By the
#: Cauchy-Schwarz inequality, with weights beta1^2 / beta2 between the two moments.
LARGEST_STEP = (1.0 - _BETAS[0]) / math.sqrt((1.0 - _BETAS[1]) * (1.0 - _BETAS[0] ** 2 / _BETAS[1]))


class InnerSteps(NamedTuple):
    """What the inner steps of an iteration lead to.

    Parameters
    ----------
    parameters, adam : pytrees
        The new ones, or the old ones where the new would not be finite.
    loss : scalar array
        Mean of |grad log q - score|^2 over the present draws; NaN when nothing was updated.
    log_q : scalar array
        Mean of log q over the present draws.
    """

    parameters: Parameters
    adam: Any
    loss: Float[Array, ""]
    log_q: Float[Array, ""]


def steps_by_part(
    density: DiagonalNormalDensity,
    parameters: Parameters,
    adam: Any,
    theta: Float[Array, "S D"],
    score: Float[Array, "S D"],
    weight: Float[Array, ""],
    rate: Float[Array, ""],
    steps: int,
    number: int,
) -> InnerSteps:
    """All inner steps of one part of a diagonal guide after another.

    The objective is a sum over coordinates and so are the steps of Adam, so that a part can take
    all its steps while it is in the processor's cache, and what is computed in between is never
    long. The parts are updated in place, once it is certain that all of them will be finite: from
    a bound, or, where that cannot tell, from going through all parts once without writing.

    Parameters
    ----------
    density : DiagonalNormalDensity
    parameters, adam : pytrees
        The guide's parameters, and the state of optax's ``scale_by_adam``.
    theta, score : arrays (S', D)
        Draws and their scores: the present ones, then the reused ones.
    weight : scalar array
        Proximal weight.
    rate : scalar array
        Learning rate.
    steps : int
        Inner steps.
    number : int
        Present draws S <= S'.
    """
    vectors = parameters, adam.mu, adam.nu
    dim, num_parts = density.dim, -(-density.dim // PART)
    first = min(steps - 1, 1)

    def stepped(
        index: Array, vectors: Any, number_of_steps: Array, figures: tuple[Array, Array]
    ) -> tuple[Array, Array, Any, tuple[Array, Array]]:
        start = jnp.minimum(index * PART, dim - PART)
        # The last part goes over some coordinates of the one before it, which are left alone.
        fresh = start + jnp.arange(PART) >= index * PART
        before = part_of(vectors, start, PART)
        corner, shape = (0, start), (len(theta), PART)
        theta_part = lax.dynamic_slice(theta, corner, shape)
        score_part = lax.dynamic_slice(score, corner, shape)
        mean = density.mean(before[0])
        scale, _ = density.scale_and_slope(before[0])
        inverse = 1.0 / scale
        standard = (theta_part - mean) * inverse
        present = -standard * inverse
        blended = blended_target(score_part, present, weight)
        loss = jnp.square((present - score_part)[:number]).sum(0) / number
        log_q = -0.5 * jnp.square(standard[:number]).sum(0) / number - jnp.log(scale)
        here = [jnp.where(fresh, figure, 0.0).sum() for figure in (loss, log_q)]

        def inner(step: Array | int, carry: Any) -> Any:
            parameters, moments, figures = carry
            gradient: Parameters
            _, gradient = proximal_gradient(density, parameters, theta_part, blended, weight)
            parameters, moments = lean_adam_step(parameters, gradient, moments, rate)
            # Added in the loop, whose end everything that reads the old vectors then comes
            # before; the compiler would otherwise copy them before they are written.
            add = step == first
            figures = jax.tree.map(lambda a, b: a + jnp.where(add, b, 0.0), figures, here)
            return parameters, moments, figures

        parameters, mu, nu = before
        carry = parameters, adam._replace(mu=mu, nu=nu), list(figures)
        if first:
            # Outside of the loop, where it shares the scale with the present guide.
            carry = inner(0, carry)
        parameters, moments, (loss, log_q) = lax.fori_loop(first, number_of_steps, inner, carry)
        return start, fresh, (parameters, moments.mu, moments.nu), (loss, log_q)

    def look(index: Array, carry: Any) -> Any:
        finite, figures = carry
        _, _, after, figures = stepped(index, vectors, jnp.asarray(steps), figures)
        for leaf in jax.tree.leaves(after):
            finite &= jnp.isfinite(leaf).all()
        return finite & jnp.isfinite(figures[0]), figures

    def write(index: Array, carry: Any) -> Any:
        vectors, figures = carry
        start, fresh, after, figures = stepped(index, vectors, taken, figures)

        def put(vector: Array, part: Array) -> Array:
            part = jnp.where(fresh, part, lax.dynamic_slice_in_dim(vector, start, PART))
            return lax.dynamic_update_slice_in_dim(vector, part, start, 0)

        return jax.tree.map(put, vectors, after), figures

    zero = jnp.zeros((), theta.dtype)
    reach = steps * rate * LARGEST_STEP
    largest = density.largest_gradient(parameters, theta, score, reach)
    # Adam keeps squares of gradients, and the loss is a sum of them.
    limit = 1e-4 * math.sqrt(jnp.finfo(theta.dtype).max / dim)
    certain = ((1.0 + weight) * largest < limit) & (weight >= 0.0)
    none = jnp.asarray(True), (zero, zero)
    finite, _ = lax.fori_loop(0, jnp.where(certain, 0, num_parts), look, none)
    # A number that the compiler does not know: it would unroll a loop of a single step.
    taken = jnp.where(finite, steps, 0)
    start = vectors, (zero, zero)
    vectors, (loss, log_q) = lax.fori_loop(0, jnp.where(finite, num_parts, 0), write, start)
    parameters, mu, nu = vectors
    adam = adam._replace(count=adam.count + taken.astype(adam.count.dtype), mu=mu, nu=nu)
    log_q -= 0.5 * dim * math.log(2.0 * math.pi)
    return InnerSteps(parameters, adam, jnp.where(finite, loss, jnp.nan), log_q)


def lean_adam_step(
    parameters: Any, gradient: Any, state: Any, rate: Float[Array, ""] | float
) -> tuple[Any, Any]:
    """A step of optax's Adam with one division an entry instead of three.

    Corrections for the start at zero are put into the scalars: divisions are what takes time.
    """
    count = optax.safe_increment(state.count)
    first, second = (1.0 - jnp.power(beta, count) for beta in _BETAS)
    mu, nu = (
        jax.tree.map(lambda m, g, b=beta, k=k: b * m + (1.0 - b) * g**k, moments, gradient)
        for k, (beta, moments) in enumerate(zip(_BETAS, (state.mu, state.nu), strict=True), 1)
    )

    def moved(x: Array, m: Array, v: Array) -> Array:
        # m / (1 - β1^t) / (sqrt(v / (1 - β2^t)) + ε), with numerator and denominator times sqrt(1 -
        # β2^t).
        root = jnp.sqrt(second).astype(x.dtype)
        size = (rate * jnp.sqrt(second) / first).astype(x.dtype)
        return x - size * m / (jnp.sqrt(v) + _EPSILON * root)

    return jax.tree.map(moved, parameters, mu, nu), state._replace(count=count, mu=mu, nu=nu)
