"""An autoencoder whose decoder is trained with draws that MCMC has improved.

The bound that trains a decoder is no better than the encoder's q(z | x). T steps of MCMC from a
draw of the encoder lead to a draw of some q_T(z | x) that is nearer to the posterior (section 3.3.2
of "Bayesian computation in deep learning"). Its density is not known, but neither network needs it:

1. ``plain``: both networks by the evidence lower bound.
2. ``improved``: the decoder by log p(x, z_T) at the improved draws, the encoder by the bound
   (Hoffman 2017).
3. ``distilled``: the decoder in the same way, the encoder by log q(z_T | x), which leads it to
   where the chains lead (Li, Turner and Liu 2017).

The steps are those of ``SGHMC``, whose program has the decoder's weights among its arguments, so
that one compiled program serves all batches. Each way is tried with an encoder as wide as the
decoder and with a narrow one. Steps with MCMC take longer: the plain way has five times the epochs,
about as much time in NumPyro, and all are drawn over seconds.

Held-out images are judged in two ways: by the importance-weighted bound with the encoder, as a user
has it, and with Gaussians that have the moments of long chains, which tells what the decoder is
worth whatever the encoder is.

Written to the folder ``--out``: ``distilled_vae.png`` and ``distilled-vae.jsonl``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax, random

import numpyro_ext as nx
from docs.examples import vae_distilled
from docs.examples.numpyro_examples.improved_vae import FRICTION, STEP_SIZE, improve, moments
from docs.examples.numpyro_examples.vae import BATCH, RATE, VAE, Weights, layer_shapes
from docs.examples.vae_bounds import bounds
from docs.examples.vae_data import Digits
from docs.examples.vae_distilled import MOVES, PLAIN


@dataclass(frozen=True)
class Lopsided(VAE):
    """An autoencoder whose encoder has ``narrow`` hidden units."""

    narrow: int

    @property
    def encoder_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the encoder's weights."""
        return layer_shapes("encoder", self.pixels, self.narrow, 2 * self.latent)


def initial(vae: VAE, seed: int) -> Weights:
    """Weights of both networks before training."""
    shapes = vae.encoder_shapes | vae.decoder_shapes
    return {name: jnp.asarray(value) for name, value in vae_distilled.initial(shapes, seed).items()}


def mover(vae: VAE, weights: Weights, x: Array) -> Callable[[Weights, Array, Array, Array], Array]:
    """The map of weights, images, z and a key to z after the steps of SGHMC."""
    kernel = nx.SGHMC(vae.latent_model, STEP_SIZE, friction=FRICTION, estimator=nx.Full())
    start = {"z": jnp.zeros((len(x), vae.latent))}
    begun = kernel.init(random.key(0), 0, start, (weights, x), {})

    def move(weights: Weights, x: Array, z: Array, key: Array) -> Array:
        state = begun._replace(z={"z": z}, rng_key=key)
        found = lax.fori_loop(
            0, MOVES, lambda _, state: kernel.sample(state, (weights, x), {}), state
        )
        return found.z["z"]

    return move


def objective(way: str, vae: VAE, move: Callable[..., Array]) -> Callable[..., Array]:
    """The loss of a batch: a function of weights, images and a key."""

    def loss(weights: Weights, x: Array, key: Array) -> Array:
        draw_key, move_key = random.split(key)
        encoder = vae.encode(weights, x)
        z = encoder.base_dist.loc + encoder.base_dist.scale * random.normal(
            draw_key, encoder.base_dist.loc.shape
        )
        if way == PLAIN:
            return -(vae.log_joint(weights, z, x) - encoder.log_prob(z)).sum()
        held = lax.stop_gradient(weights)
        improved = lax.stop_gradient(move(held, x, lax.stop_gradient(z), move_key))
        of_decoder = vae.log_joint(weights, improved, x)
        if way == "distilled":
            return -(of_decoder + encoder.log_prob(improved)).sum()
        return -(of_decoder + vae.log_joint(held, z, x) - encoder.log_prob(z)).sum()

    return loss


def train(
    way: str, vae: VAE, digits: Digits, epochs: int, num_draws: int, seed: int = 0
) -> tuple[Weights, list[dict[str, float]]]:
    """Weights, and the held-out bound with the encoder and the seconds so far, by epoch."""
    weights, test = initial(vae, seed), jnp.asarray(digits.test)
    optim = optax.adam(RATE)
    move = mover(vae, weights, jnp.asarray(digits.train[:BATCH]))
    slope = jax.grad(objective(way, vae, move))

    def step(carry: Any, batch: tuple[Array, Array]) -> tuple[Any, None]:
        weights, state = carry
        updates, state = optim.update(slope(weights, *batch), state)
        return (optax.apply_updates(weights, updates), state), None

    run = jax.jit(lambda carry, batches: lax.scan(step, carry, batches)[0])
    weigh = jax.jit(lambda weights, key: vae.log_weights(weights, test, key, num_draws))
    order, key = np.random.default_rng(seed), random.key(seed)
    carry = (weights, optim.init(weights))
    history, seconds = [], 0.0
    for number in range(epochs):
        batches = jnp.asarray(digits.batches(order, BATCH))
        keys = random.split(random.fold_in(key, number), len(batches))
        if not number:
            jax.block_until_ready(run(carry, (batches, keys)))  # compiles
        started = time.perf_counter()
        carry = jax.block_until_ready(run(carry, (batches, keys)))
        seconds += time.perf_counter() - started
        found = bounds(weigh(carry[0], random.fold_in(key, number)))
        history.append({"seconds": seconds, **found})
    return carry[0], history


def judged(vae: VAE, weights: Weights, x: Array, num_draws: int) -> dict[str, dict[str, float]]:
    """Bounds of held-out images with the encoder, and with Gaussians from long chains."""
    proposals = {
        "encoder": vae.encode(weights, x),
        "chains": moments(improve(vae, weights, x, random.key(1))),
    }
    found = {}
    for name, proposal in proposals.items():
        z = proposal.sample(random.key(2), (num_draws,))
        found[name] = bounds(np.asarray(vae.log_joint(weights, z, x) - proposal.log_prob(z)))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Train in all ways, and write the records, the table and the figure."""
    return vae_distilled.run("numpyro", Lopsided, train, judged, jnp.asarray, argv, __doc__)


if __name__ == "__main__":
    sys.exit(main())
