"""Variational and importance-weighted autoencoders, and a posterior of the decoder's weights.

Images x have latent variables z ~ N(0, I); a network, the decoder, turns z into the probabilities
of pixels, and another one, the encoder, turns x into a Gaussian q(z | x). Three fits:

1. ``ELBO``: both networks by NumPyro's SVI (Kingma and Welling 2014).
2. ``IWAE``: the same with the importance-weighted bound of K draws, NumPyro's ``RenyiELBO`` with
   alpha = 0 (Burda, Grosse and Salakhutdinov 2016).
3. ``SVGD``: the decoder's weights W get priors, and the encoder of fit 1 is held. Of all
   q(W) prod_n q(z_n | x_n) with that encoder, the ELBO is highest at

       q(W) proportional to p(W) exp(sum_n E_q(z_n | x_n) [log p(x_n | z_n, W)]).

   SVGD follows the score of this density: each step takes a batch of images and fresh draws of z
   from the encoder. Its particles are decoders, and an image's density is the mean over them.

Written to the folder ``--out``: ``vae.png`` and ``vae.jsonl``, with bounds of held-out images.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import Array, lax, random
from numpyro.infer import SVI, RenyiELBO, Trace_ELBO, init_to_sample

import numpyro_ext as nx
from docs.examples import vae_figures
from docs.examples.recorded import recorded
from docs.examples.vae_bounds import bounds, log_mean_exp
from docs.examples.vae_data import Digits, load_digits
from docs.examples.vae_options import parse_options

Weights = dict[str, Array]

BATCH, RATE, IWAE_DRAWS, PARTICLES = 50, 2e-3, 5, 5
#: SVGD starts at the prior, further from where it goes.
SVGD_RATE = 1e-2


def layer_shapes(name: str, inputs: int, hidden: int, outputs: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights and biases of a network with one hidden layer."""
    return {
        f"{name}_w1": (inputs, hidden),
        f"{name}_b1": (hidden,),
        f"{name}_w2": (hidden, outputs),
        f"{name}_b2": (outputs,),
    }


def network(weights: Weights, name: str, x: Array) -> Array:
    """Outputs (..., outputs) of such a network at inputs (..., inputs)."""
    hidden = jnp.tanh(x @ weights[f"{name}_w1"] + weights[f"{name}_b1"])
    return hidden @ weights[f"{name}_w2"] + weights[f"{name}_b2"]


def gaussian(outputs: Array) -> dist.Distribution:
    """A Gaussian whose means and log standard deviations are the outputs of a network."""
    loc, log_scale = jnp.split(outputs, 2, -1)
    return dist.Normal(loc, jnp.exp(log_scale)).to_event(1)


def trained(shapes: dict[str, tuple[int, ...]]) -> Weights:
    """Weights as parameters, which the host's SVI trains."""

    def initial(shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return jnp.zeros(shape)
        return lambda key: random.normal(key, shape) * shape[0] ** -0.5

    return {name: numpyro.param(name, initial(shape)) for name, shape in shapes.items()}


@dataclass(frozen=True)
class VAE:
    """An autoencoder of binary images (n, pixels) with Gaussian latent variables (n, latent)."""

    pixels: int
    hidden: int
    latent: int

    @property
    def encoder_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the encoder's weights."""
        return layer_shapes("encoder", self.pixels, self.hidden, 2 * self.latent)

    @property
    def decoder_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the decoder's weights."""
        return layer_shapes("decoder", self.latent, self.hidden, self.pixels)

    def prior(self) -> dist.Distribution:
        """p(z) of one image."""
        return dist.Normal(0.0, 1.0).expand([self.latent]).to_event(1)

    def encode(self, weights: Weights, x: Array) -> dist.Distribution:
        """q(z | x)."""
        return gaussian(network(weights, "encoder", x))

    def decode(self, weights: Weights, z: Array) -> dist.Distribution:
        """p(x | z)."""
        return dist.Bernoulli(logits=network(weights, "decoder", z)).to_event(1)

    def model(self, x: Array) -> None:
        """The program, with a decoder that is trained."""
        self.latent_model(trained(self.decoder_shapes), x)

    def latent_model(self, weights: Weights, x: Array) -> None:
        """The program at given weights of the decoder."""
        with numpyro.plate("images", len(x)):
            z = numpyro.sample("z", self.prior())
            numpyro.sample("x", self.decode(weights, z), obs=x)

    def guide(self, x: Array) -> None:
        """q(z | x), with an encoder that is trained."""
        weights = trained(self.encoder_shapes)
        with numpyro.plate("images", len(x)):
            numpyro.sample("z", self.encode(weights, x))

    def decoder_model(self, num_images: int, z: Array, x: Array) -> None:
        """The decoder's weights with priors, given a batch of images and draws of their z."""
        weights = {}
        for name, shape in self.decoder_shapes.items():
            scale = 2.0 * shape[0] ** -0.5 if len(shape) == 2 else 1.0
            prior = dist.Normal(0.0, scale).expand(shape).to_event(len(shape))
            weights[name] = numpyro.sample(name, prior)
        with numpyro.plate("images", num_images, subsample_size=len(x)):
            numpyro.sample("x", self.decode(weights, z), obs=x)

    def log_joint(self, weights: Weights, z: Array, x: Array) -> Array:
        """log p(x, z), (..., images), at z (..., images, latent)."""
        return self.prior().log_prob(z) + self.decode(weights, z).log_prob(x)

    def log_weights(
        self,
        weights: Weights,
        x: Array,
        key: Array,
        num_draws: int,
        decoders: Weights | None = None,
    ) -> Array:
        """log p(x, z) - log q(z | x) at draws from the encoder, (num_draws, images).

        With `decoders`, weights with a leading axis of particles, p is that of each of them, and
        the result is (particles, num_draws, images).
        """
        encoder = self.encode(weights, x)
        z = encoder.sample(key, (num_draws,))
        if decoders is None:
            joint = self.log_joint(weights, z, x)
        else:
            joint = lax.map(lambda decoder: self.log_joint(decoder, z, x), decoders)
        return joint - encoder.log_prob(z)


def fit(
    vae: Any, digits: Digits, loss: Any, epochs: int, num_draws: int, seed: int = 0
) -> tuple[Weights, list[dict[str, float]]]:
    """Weights by the host's SVI, and the bounds of the held-out images before and by epoch."""
    svi = SVI(vae.model, vae.guide, optax.adam(RATE), loss)
    order = np.random.default_rng(seed)
    key, test = random.key(seed), jnp.asarray(digits.test)
    state = svi.init(key, jnp.asarray(digits.train[:BATCH]))
    epoch = jax.jit(lambda state, batches: lax.scan(svi.update, state, batches)[0])
    weigh = jax.jit(lambda weights, key: vae.log_weights(weights, test, key, num_draws))
    history = [bounds(weigh(svi.get_params(state), random.fold_in(key, 0)))]
    for number in range(1, epochs + 1):
        state = epoch(state, jnp.asarray(digits.batches(order, BATCH)))
        history.append(bounds(weigh(svi.get_params(state), random.fold_in(key, number))))
    return svi.get_params(state), history


def fit_decoders(vae: VAE, weights: Weights, digits: Digits, epochs: int, seed: int = 0) -> Weights:
    """Decoders by SVGD, each weight with a leading axis of particles; the encoder is held."""
    num_images = len(digits.train)

    def model(z: Array, x: Array) -> None:
        vae.decoder_model(num_images, z, x)

    steps = epochs * (num_images // BATCH)
    engine = nx.SVGD(
        model,
        optax.adam(optax.cosine_decay_schedule(SVGD_RATE, steps)),
        num_particles=PARTICLES,
        init_strategy=init_to_sample,
    )

    def step(state: Any, batch: tuple[Array, Array]) -> tuple[Any, Array]:
        key, x = batch
        return engine.update(state, vae.encode(weights, x).sample(key), x)

    order, key = np.random.default_rng(seed), random.key(seed)
    first = jnp.asarray(digits.train[:BATCH])
    state = engine.init(key, vae.encode(weights, first).sample(key), first)
    epoch = jax.jit(lambda state, batches: lax.scan(step, state, batches)[0])
    for number in range(epochs):
        batches = jnp.asarray(digits.batches(order, BATCH))
        keys = random.split(random.fold_in(key, number), len(batches))
        state = epoch(state, (keys, batches))
    return engine.get_samples(state)


def main(argv: Sequence[str] | None = None) -> int:
    """Fit all three, and write the figure and the numbers."""
    options = parse_options(argv, __doc__)
    digits = load_digits(options.images, options.held_out, small=options.small)
    vae = VAE(digits.pixels, options.hidden, options.latent)
    test, key = jnp.asarray(digits.test), random.key(1)
    losses = {
        "ELBO": Trace_ELBO(),
        "IWAE": RenyiELBO(alpha=0.0, num_particles=IWAE_DRAWS),
    }
    results: dict[str, Any] = {}
    weights: dict[str, Weights] = {}
    for name, loss in losses.items():
        started = time.perf_counter()
        weights[name], history = fit(vae, digits, loss, options.epochs, options.num_draws)
        results[name] = {"history": history, "seconds": time.perf_counter() - started}
        results[name] |= bounds(vae.log_weights(weights[name], test, key, options.num_draws))

    started = time.perf_counter()
    decoders = fit_decoders(vae, weights["ELBO"], digits, options.epochs)
    single = vae.log_weights(weights["ELBO"], test, key, options.num_draws, decoders)
    results["SVGD"] = bounds(log_mean_exp(single, 0))
    results["SVGD"]["single_iwae"] = float(np.mean([bounds(each)["iwae"] for each in single]))
    results["SVGD"]["seconds"] = time.perf_counter() - started

    shown = test[:10]
    z = vae.encode(weights["ELBO"], shown).base_dist.loc
    by_decoder = jax.vmap(lambda decoder: jax.nn.sigmoid(network(decoder, "decoder", z)))(decoders)
    drawn = vae.prior().sample(random.key(2), (10,))
    pictures = {
        "held-out images": shown,
        "ELBO: reconstructions": jax.nn.sigmoid(network(weights["ELBO"], "decoder", z)),
        "SVGD: mean over decoders": by_decoder.mean(0),
        "SVGD: standard deviation": by_decoder.std(0) / by_decoder.std(0).max(),
        "ELBO: from the prior": jax.nn.sigmoid(network(weights["ELBO"], "decoder", drawn)),
        "IWAE: from the prior": jax.nn.sigmoid(network(weights["IWAE"], "decoder", drawn)),
    }
    recorded("vae", "SVI and SVGD", "numpyro", "digits", options, results)
    vae_figures.draw_vae(
        {name: np.asarray(values) for name, values in pictures.items()},
        results,
        digits.side,
        options.num_draws,
        options.out / "vae.png",
    )
    for name, found in results.items():
        print(
            f"{name}: ELBO {found['elbo']:.2f}, bound with {options.num_draws} draws "
            f"{found['iwae']:.2f} nats an image ({found['seconds']:.0f} s)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
