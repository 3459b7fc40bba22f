"""Variational and importance-weighted autoencoders, and a posterior of the decoder's weights.

Images x have latent variables z ~ N(0, I); a network, the decoder, turns z into the probabilities
of pixels, and another one, the encoder, turns x into a Gaussian q(z | x). Three fits:

1. ``ELBO``: both networks by Pyro's SVI (Kingma and Welling 2014).
2. ``IWAE``: the same with the importance-weighted bound of K draws, Pyro's ``RenyiELBO`` with
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

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, RenyiELBO, Trace_ELBO
from pyro.infer.autoguide.initialization import init_to_sample
from torch import Tensor

import pyro_ext as px
from docs.examples import vae_figures
from docs.examples.recorded import recorded
from docs.examples.vae_bounds import bounds, log_mean_exp
from docs.examples.vae_data import Digits, load_digits
from docs.examples.vae_options import parse_options

Weights = dict[str, Tensor]

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


def network(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Outputs (..., outputs) of such a network at inputs (..., inputs)."""
    hidden = torch.tanh(x @ weights[f"{name}_w1"] + weights[f"{name}_b1"])
    return hidden @ weights[f"{name}_w2"] + weights[f"{name}_b2"]


def gaussian(outputs: Tensor) -> dist.Distribution:
    """A Gaussian whose means and log standard deviations are the outputs of a network."""
    loc, log_scale = outputs.chunk(2, -1)
    return dist.Normal(loc, log_scale.exp()).to_event(1)


def trained(shapes: dict[str, tuple[int, ...]]) -> Weights:
    """Weights as parameters, which the host's SVI trains."""

    def initial(shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return torch.zeros(shape)
        return lambda: torch.randn(shape) * shape[0] ** -0.5

    return {name: pyro.param(name, initial(shape)) for name, shape in shapes.items()}


def separate(particles: Weights) -> list[Weights]:
    """Weights of each particle, from those with a leading axis of particles."""
    number = len(next(iter(particles.values())))
    return [{name: value[p] for name, value in particles.items()} for p in range(number)]


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

    def encode(self, weights: Weights, x: Tensor) -> dist.Distribution:
        """q(z | x)."""
        return gaussian(network(weights, "encoder", x))

    def decode(self, weights: Weights, z: Tensor) -> dist.Distribution:
        """p(x | z)."""
        return dist.Bernoulli(logits=network(weights, "decoder", z)).to_event(1)

    def model(self, x: Tensor) -> None:
        """The program, with a decoder that is trained."""
        self.latent_model(trained(self.decoder_shapes), x)

    def latent_model(self, weights: Weights, x: Tensor) -> None:
        """The program at given weights of the decoder."""
        with pyro.plate("images", len(x)):
            z = pyro.sample("z", self.prior())
            pyro.sample("x", self.decode(weights, z), obs=x)

    def guide(self, x: Tensor) -> None:
        """q(z | x), with an encoder that is trained."""
        weights = trained(self.encoder_shapes)
        with pyro.plate("images", len(x)):
            pyro.sample("z", self.encode(weights, x))

    def decoder_model(self, num_images: int, z: Tensor, x: Tensor) -> None:
        """The decoder's weights with priors, given a batch of images and draws of their z."""
        weights = {}
        for name, shape in self.decoder_shapes.items():
            scale = 2.0 * shape[0] ** -0.5 if len(shape) == 2 else 1.0
            prior = dist.Normal(0.0, scale).expand(shape).to_event(len(shape))
            weights[name] = pyro.sample(name, prior)
        with pyro.plate("images", num_images, subsample_size=len(x)):
            pyro.sample("x", self.decode(weights, z), obs=x)

    def log_joint(self, weights: Weights, z: Tensor, x: Tensor) -> Tensor:
        """log p(x, z), (..., images), at z (..., images, latent)."""
        return self.prior().log_prob(z) + self.decode(weights, z).log_prob(x)

    def log_weights(
        self, weights: Weights, x: Tensor, num_draws: int, decoders: Weights | None = None
    ) -> Tensor:
        """log p(x, z) - log q(z | x) at draws from the encoder, (num_draws, images).

        With `decoders`, weights with a leading axis of particles, p is that of each of them, and
        the result is (particles, num_draws, images).
        """
        encoder = self.encode(weights, x)
        z = encoder.sample((num_draws,))
        if decoders is None:
            joint = self.log_joint(weights, z, x)
        else:
            joint = torch.stack([self.log_joint(each, z, x) for each in separate(decoders)])
        return joint - encoder.log_prob(z)


def fit(
    vae: Any, digits: Digits, loss: Any, epochs: int, num_draws: int, seed: int = 0
) -> tuple[Weights, list[dict[str, float]]]:
    """Weights by the host's SVI, and the bounds of the held-out images before and by epoch."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": RATE}), loss)
    order = np.random.default_rng(seed)
    test = torch.as_tensor(digits.test)
    svi.evaluate_loss(torch.as_tensor(digits.train[:BATCH]))  # makes the parameters
    history = [bounds(vae.log_weights(_parameters(), test, num_draws))]
    for _ in range(epochs):
        for batch in torch.as_tensor(digits.batches(order, BATCH)):
            svi.step(batch)
        history.append(bounds(vae.log_weights(_parameters(), test, num_draws)))
    return _parameters(), history


def _parameters() -> Weights:
    """Copies of the parameters in Pyro's store."""
    return {name: value.detach().clone() for name, value in pyro.get_param_store().items()}


def fit_decoders(vae: VAE, weights: Weights, digits: Digits, epochs: int, seed: int = 0) -> Weights:
    """Decoders by SVGD, each weight with a leading axis of particles; the encoder is held."""
    num_images = len(digits.train)

    def model(z: Tensor, x: Tensor) -> None:
        vae.decoder_model(num_images, z, x)

    steps = epochs * (num_images // BATCH)
    optim = pyro.optim.CosineAnnealingLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": SVGD_RATE}, "T_max": steps}
    )
    engine = px.SVGD(model, optim, num_particles=PARTICLES, init_strategy=init_to_sample, seed=seed)
    order = np.random.default_rng(seed)
    for _ in range(epochs):
        for batch in torch.as_tensor(digits.batches(order, BATCH)):
            engine.step(vae.encode(weights, batch).sample(), batch)
    return engine.get_samples()


def main(argv: Sequence[str] | None = None) -> int:
    """Fit all three, and write the figure and the numbers."""
    options = parse_options(argv, __doc__)
    digits = load_digits(options.images, options.held_out, small=options.small)
    vae = VAE(digits.pixels, options.hidden, options.latent)
    test = torch.as_tensor(digits.test)
    losses = {
        "ELBO": Trace_ELBO(),
        "IWAE": RenyiELBO(
            alpha=0.0, num_particles=IWAE_DRAWS, max_plate_nesting=1, vectorize_particles=True
        ),
    }
    results: dict[str, Any] = {}
    weights: dict[str, Weights] = {}
    for name, loss in losses.items():
        started = time.perf_counter()
        weights[name], history = fit(vae, digits, loss, options.epochs, options.num_draws)
        results[name] = {"history": history, "seconds": time.perf_counter() - started}
        results[name] |= bounds(vae.log_weights(weights[name], test, options.num_draws))

    started = time.perf_counter()
    decoders = fit_decoders(vae, weights["ELBO"], digits, options.epochs)
    single = vae.log_weights(weights["ELBO"], test, options.num_draws, decoders)
    results["SVGD"] = bounds(log_mean_exp(single, 0))
    results["SVGD"]["single_iwae"] = float(np.mean([bounds(each)["iwae"] for each in single]))
    results["SVGD"]["seconds"] = time.perf_counter() - started

    shown = test[:10]
    z = vae.encode(weights["ELBO"], shown).base_dist.loc
    by_decoder = torch.stack(
        [network(decoder, "decoder", z).sigmoid() for decoder in separate(decoders)]
    )
    spread = by_decoder.std(0, correction=0)
    drawn = vae.prior().sample((10,))
    pictures = {
        "held-out images": shown,
        "ELBO: reconstructions": network(weights["ELBO"], "decoder", z).sigmoid(),
        "SVGD: mean over decoders": by_decoder.mean(0),
        "SVGD: standard deviation": spread / spread.max(),
        "ELBO: from the prior": network(weights["ELBO"], "decoder", drawn).sigmoid(),
        "IWAE: from the prior": network(weights["IWAE"], "decoder", drawn).sigmoid(),
    }
    recorded("vae", "SVI and SVGD", "pyro", "digits", options, results)
    vae_figures.draw_vae(
        {name: values.numpy() for name, values in pictures.items()},
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
