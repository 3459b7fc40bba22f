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
that one traced graph serves all batches. Each way is tried with an encoder as wide as the decoder
and with a narrow one. Steps with MCMC take longer: the plain way has five times the epochs, about
as much time in NumPyro, and all are drawn over seconds.

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

import numpy as np
import torch
from torch import Tensor

import pyro_ext as px
from docs.examples import vae_distilled
from docs.examples.pyro_examples.improved_vae import FRICTION, STEP_SIZE, improve, moments
from docs.examples.pyro_examples.vae import BATCH, RATE, VAE, Weights, layer_shapes
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
    return {
        name: torch.as_tensor(value).requires_grad_()
        for name, value in vae_distilled.initial(shapes, seed).items()
    }


def mover(vae: VAE) -> Callable[[Weights, Tensor, Tensor], Tensor]:
    """The map of weights, images and z to z after the steps of SGHMC."""
    kernel = px.SGHMC(vae.latent_model, STEP_SIZE, friction=FRICTION, estimator=px.Full())

    def move(weights: Weights, x: Tensor, z: Tensor) -> Tensor:
        held = {name: weights[name].detach() for name in vae.decoder_shapes}
        kernel.initial_params = {"z": z}
        kernel.setup(0, held, x)
        for _ in range(MOVES):
            kernel.draw()
        return kernel.initial_params["z"]

    return move


def loss_of(way: str, vae: VAE, move: Callable[..., Tensor], weights: Weights, x: Tensor) -> Tensor:
    """The loss of a batch."""
    encoder = vae.encode(weights, x)
    z = encoder.rsample()
    if way == PLAIN:
        return -(vae.log_joint(weights, z, x) - encoder.log_prob(z)).sum()
    improved = move(weights, x, z.detach())
    of_decoder = vae.log_joint(weights, improved, x)
    if way == "distilled":
        return -(of_decoder + encoder.log_prob(improved)).sum()
    held = {name: value.detach() for name, value in weights.items()}
    return -(of_decoder + vae.log_joint(held, z, x) - encoder.log_prob(z)).sum()


def train(
    way: str, vae: VAE, digits: Digits, epochs: int, num_draws: int, seed: int = 0
) -> tuple[Weights, list[dict[str, float]]]:
    """Weights, and the held-out bound with the encoder and the seconds so far, by epoch."""
    torch.manual_seed(seed)
    weights, test, move = initial(vae, seed), torch.as_tensor(digits.test), mover(vae)
    optim = torch.optim.Adam(weights.values(), lr=RATE)
    order = np.random.default_rng(seed)
    history, seconds = [], 0.0
    # The first batch traces.
    loss_of(way, vae, move, weights, torch.as_tensor(digits.train[:BATCH]))
    for _ in range(epochs):
        batches = torch.as_tensor(digits.batches(order, BATCH))
        started = time.perf_counter()
        for batch in batches:
            optim.zero_grad()
            loss_of(way, vae, move, weights, batch).backward()
            optim.step()
        seconds += time.perf_counter() - started
        with torch.no_grad():
            found = bounds(vae.log_weights(weights, test, num_draws))
        history.append({"seconds": seconds, **found})
    return {name: value.detach() for name, value in weights.items()}, history


def judged(vae: VAE, weights: Weights, x: Tensor, num_draws: int) -> dict[str, dict[str, float]]:
    """Bounds of held-out images with the encoder, and with Gaussians from long chains."""
    proposals = {
        "encoder": vae.encode(weights, x),
        "chains": moments(improve(vae, weights, x, seed=1)),
    }
    found = {}
    for name, proposal in proposals.items():
        z = proposal.sample((num_draws,))
        found[name] = bounds(vae.log_joint(weights, z, x) - proposal.log_prob(z))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Train in all ways, and write the records, the table and the figure."""
    return vae_distilled.run("pyro", Lopsided, train, judged, torch.as_tensor, argv, __doc__)


if __name__ == "__main__":
    sys.exit(main())
