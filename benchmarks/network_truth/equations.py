"""How much Stein's equations say of the outputs' means, at draws that are right.

Particles of P z_j that obey Stein's equations of outputs u = f(z) satisfy mean_j t(z_j) = 0 with
t = B' s + div B, s the score and B = H^-1 J', J the Jacobian of u and H the Gauss-Newton matrix
with the prior's precision: B g moves the outputs by J H^-1 J' g at the least cost in the
posterior's own metric. In a linear-Normal program t = E u - u, so that the particles' mean is the
posterior's, at any number of them. Elsewhere it differs by the mean of u + t, which has the mean
E u and, over draws of the posterior, a standard deviation. That over the square root of P is how
far the means of P particles are off whose draws are right but for this arrangement.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.flatten_util import ravel_pytree
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.infer.util import constrain_fn, potential_energy, unconstrain_fn

from benchmarks.network_truth.networks import Bound
from benchmarks.network_truth.outputs import Reference
from benchmarks.trust.methods import Draws

#: Draws that are looked at, random directions by which a divergence is found of each, particles.
LOOKED_AT, PROBES, PARTICLES = 40, 8, 20


def parameters(observed: dist.Distribution) -> tuple[Array, Array]:
    """Parameters without bounds (N, K) of distributions, and their Fisher information (N, K, K)."""
    if isinstance(observed, dist.Normal):
        scale = jnp.broadcast_to(observed.scale, observed.batch_shape)
        information = jnp.stack([scale**-2, jnp.full_like(scale, 2.0)], -1)
        return jnp.stack([observed.loc, jnp.log(scale)], -1), information[..., None] * jnp.eye(2)
    if isinstance(observed, dist.BernoulliLogits):
        share = jax.nn.sigmoid(observed.logits)
        return observed.logits[:, None], (share * (1.0 - share))[:, None, None]
    share = jax.nn.softmax(observed.logits)
    diagonal = share[..., None] * jnp.eye(share.shape[-1])
    return observed.logits, diagonal - share[:, :, None] * share[:, None, :]


def outputs(observed: dist.Distribution) -> Array:
    """The first outputs of a reference (M,): means of all rows, or logits as it has them."""
    values = parameters(observed)[0]
    if isinstance(observed, dist.Normal):
        return values[:, 0]
    if isinstance(observed, dist.BernoulliLogits):
        return 0.5 * values[:, 0]
    return (values - values.mean(-1, keepdims=True)).ravel()


def terms(bound: Bound, draws: Draws) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outputs u (S, M) of draws by site, B' s of each, and draws of div B (S, probes, M)."""
    model, args = bound.program.model, bound.program.args
    free = jax.vmap(lambda each: unconstrain_fn(model, args, {}, each))(draws)
    _, unravel = ravel_pytree(jax.tree.map(lambda each: each[0], free))
    positions = jax.vmap(lambda each: ravel_pytree(each)[0])(free)

    def energy(z: Array) -> Array:
        return potential_energy(model, args, {}, unravel(z))

    def observed(z: Array, rows: tuple[Any, ...]) -> Any:
        sites = constrain_fn(model, rows, {}, unravel(z))
        run = handlers.trace(handlers.substitute(handlers.seed(model, 0), sites))
        return run.get_trace(*rows)["y"]["fn"]

    def held_out(z: Array) -> Array:
        return outputs(observed(z, bound.held_out))

    def of_prior(z: Array) -> Array:
        return energy(z) + observed(z, args).log_prob(args[1]).sum()

    # The priors are Normal in these coordinates, so that it is the same at every position.
    precision = jax.hessian(of_prior)(positions[0])

    def parts(z: Array) -> tuple[Array, Array]:
        """J (M, D) and H (D, D)."""
        rows = jax.jacrev(lambda at: parameters(observed(at, args))[0])(z)
        information = parameters(observed(z, args))[1]
        return jax.jacrev(held_out)(z), precision + jnp.einsum(
            "nkd,nkl,nle->de", rows, information, rows
        )

    def of(given: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        z, key = given
        jacobian, curvature = parts(z)
        factor = jnp.linalg.cholesky(curvature)
        newton = jax.scipy.linalg.cho_solve((factor, True), -jax.grad(energy)(z))

        def divergence(key: Array) -> Array:
            """A draw of div B: the mean over whitened signs of the derivative of B' w along v."""
            signs = random.rademacher(key, z.shape, z.dtype)
            along = jax.scipy.linalg.solve_triangular(factor.T, signs, lower=False)

            def moved(at: Array) -> Array:
                other, matrix = parts(at)
                return other @ jnp.linalg.solve(matrix, factor @ signs)

            return jax.jvp(moved, (z,), (along,))[1]

        return held_out(z), jacobian @ newton, jax.lax.map(divergence, random.split(key, PROBES))

    values, newton, probes = jax.jit(lambda z, keys: jax.lax.map(of, (z, keys)))(
        positions, random.split(random.key(0), len(positions))
    )
    return np.asarray(values, float), np.asarray(newton, float), np.asarray(probes, float)


def figures(bound: Bound, draws: Draws, reference: Reference) -> dict[str, float]:
    """What Stein's equations say at some of many draws by site, in sds of a reference.

    ``without divergence`` is the error of the outputs' means (root mean square) that remains where
    div B is left out; ``sd`` that of u + t in the median, without the noise of the directions;
    ``draws`` that of u.
    """
    step = max(1, len(next(iter(draws.values()))) // LOOKED_AT)
    few = {name: value[::step][:LOOKED_AT] for name, value in draws.items()}
    values, newton, probes = terms(bound, few)
    mean, sd = (each[: values.shape[1]] for each in (reference.mean, reference.sd))
    all_of_it = (values + newton + probes.mean(1)).var(0)
    noise = probes.var(1, ddof=1).mean(0) / probes.shape[1]
    scale = float(np.median(np.sqrt(np.clip(all_of_it - noise, 0.0, None)) / sd))
    bias = ((values + newton).mean(0) - mean) / sd
    return {
        "draws": float(np.median(values.std(0) / sd)),
        "without divergence": float(np.sqrt(np.square(bias).mean())),
        "sd": scale,
        "mean error of particles": scale / float(np.sqrt(PARTICLES)),
        "mean error of draws": 1.0 / float(np.sqrt(PARTICLES)),
    }
