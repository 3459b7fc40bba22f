"""A hierarchical variational autoencoder: latent variables at two levels.

    z2 ~ N(0, I),   z1 | z2 ~ N(m(z2), s(z2)^2),   x | z1 ~ Bernoulli(p(z1))

with networks m, s and p, and an encoder that goes up: q(z1 | x) q(z2 | z1), each a Gaussian by a
network (Rezende, Mohamed and Wierstra 2014). All networks are trained by NumPyro's SVI. The prior
of z1 is now learnt, a mixture over z2, where one level has N(0, I).

The KL divergence that the ELBO pays for the encoder has a part for each level,

    E[log q(z1 | x) - log p(z1 | z2)] + E[log q(z2 | z1) - log p(z2)],

and a level whose part stays at zero is not used. Compared with one level with as many latents as
z1, on the same images.

Written to the folder ``--out``: ``hierarchical_vae.png`` and ``hierarchical-vae.jsonl``.
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
from jax import Array, random
from numpyro.infer import Trace_ELBO

from docs.examples import vae_figures
from docs.examples.numpyro_examples.vae import (
    VAE,
    Weights,
    fit,
    gaussian,
    layer_shapes,
    network,
    trained,
)
from docs.examples.recorded import recorded
from docs.examples.vae_bounds import bounds
from docs.examples.vae_data import load_digits
from docs.examples.vae_options import parse_options

#: Latent variables of the upper level for each of the lower one.
UPPER_SHARE = 0.5


@dataclass(frozen=True)
class HierarchicalVAE:
    """An autoencoder of binary images (n, pixels) with latents z1 (n, lower) and z2 (n, upper)."""

    pixels: int
    hidden: int
    lower: int
    upper: int

    @property
    def model_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights of p(z1 | z2) and p(x | z1)."""
        return layer_shapes("prior", self.upper, self.hidden, 2 * self.lower) | layer_shapes(
            "decoder", self.lower, self.hidden, self.pixels
        )

    @property
    def guide_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights of q(z1 | x) and q(z2 | z1)."""
        return layer_shapes("lower", self.pixels, self.hidden, 2 * self.lower) | layer_shapes(
            "upper", self.lower, self.hidden, 2 * self.upper
        )

    def top(self) -> dist.Distribution:
        """p(z2) of one image."""
        return dist.Normal(0.0, 1.0).expand([self.upper]).to_event(1)

    def decode(self, weights: Weights, z1: Array) -> dist.Distribution:
        """p(x | z1)."""
        return dist.Bernoulli(logits=network(weights, "decoder", z1)).to_event(1)

    def model(self, x: Array) -> None:
        """The program."""
        weights = trained(self.model_shapes)
        with numpyro.plate("images", len(x)):
            z2 = numpyro.sample("z2", self.top())
            z1 = numpyro.sample("z1", gaussian(network(weights, "prior", z2)))
            numpyro.sample("x", self.decode(weights, z1), obs=x)

    def guide(self, x: Array) -> None:
        """The encoder, from the images up."""
        weights = trained(self.guide_shapes)
        with numpyro.plate("images", len(x)):
            z1 = numpyro.sample("z1", gaussian(network(weights, "lower", x)))
            numpyro.sample("z2", gaussian(network(weights, "upper", z1)))

    def levels(
        self, weights: Weights, x: Array, key: Array, num_draws: int
    ) -> tuple[Array, Array, Array]:
        """log p(x | z1), log q - log p of z1, and that of z2, at draws; (num_draws, images)."""
        lower_key, upper_key = random.split(key)
        lower = gaussian(network(weights, "lower", x))
        z1 = lower.sample(lower_key, (num_draws,))
        upper = gaussian(network(weights, "upper", z1))
        z2 = upper.sample(upper_key)
        prior = gaussian(network(weights, "prior", z2))
        return (
            self.decode(weights, z1).log_prob(x),
            lower.log_prob(z1) - prior.log_prob(z1),
            upper.log_prob(z2) - self.top().log_prob(z2),
        )

    def log_weights(self, weights: Weights, x: Array, key: Array, num_draws: int) -> Array:
        """log p(x, z1, z2) - log q(z1, z2 | x) at draws from the encoder, (num_draws, images)."""
        likelihood, lower, upper = self.levels(weights, x, key, num_draws)
        return likelihood - lower - upper


def main(argv: Sequence[str] | None = None) -> int:
    """Train with one level and with two, and write the figure and the numbers."""
    options = parse_options(argv, __doc__)
    digits = load_digits(options.images, options.held_out, small=options.small)
    upper = max(1, round(UPPER_SHARE * options.latent))
    two = HierarchicalVAE(digits.pixels, options.hidden, options.latent, upper)
    programs: dict[str, Any] = {
        "one level": VAE(digits.pixels, options.hidden, options.latent),
        "two levels": two,
    }
    test, key = jnp.asarray(digits.test), random.key(1)
    results: dict[str, Any] = {}
    weights: dict[str, Weights] = {}
    for name, program in programs.items():
        started = time.perf_counter()
        weights[name], history = fit(
            program, digits, Trace_ELBO(), options.epochs, options.num_draws
        )
        results[name] = {"history": history, "seconds": time.perf_counter() - started}
        results[name] |= bounds(program.log_weights(weights[name], test, key, options.num_draws))
    found = weights["two levels"]
    _, lower_part, upper_part = two.levels(found, test, key, options.num_draws)
    results["two levels"]["divergence"] = {
        "z1": float(lower_part.mean()),
        "z2": float(upper_part.mean()),
    }

    shown = test[:10]
    z1 = gaussian(network(found, "lower", shown)).base_dist.loc
    z2 = gaussian(network(found, "upper", z1)).base_dist.loc
    from_above = gaussian(network(found, "prior", z2))
    drawn = two.top().sample(random.key(4), (3,))
    latents = {
        "from z1": z1,
        "from z2, mean z1": from_above.base_dist.loc,
        "from z2, z1 drawn": from_above.sample(random.key(3)),
    }
    for number, each in enumerate(drawn):
        below = gaussian(network(found, "prior", each))
        latents[f"z2 from the prior ({number + 1})"] = below.sample(random.key(5 + number), (10,))
    pictures = {"held-out images": np.asarray(shown)} | {
        name: np.asarray(jax.nn.sigmoid(network(found, "decoder", z)))
        for name, z in latents.items()
    }
    recorded("hierarchical-vae", "SVI", "numpyro", "digits", options, results)
    vae_figures.draw_hierarchical(
        pictures, results, digits.side, options.num_draws, options.out / "hierarchical_vae.png"
    )
    for name in programs:
        print(
            f"{name}: ELBO {results[name]['elbo']:.2f}, bound with {options.num_draws} draws "
            f"{results[name]['iwae']:.2f} nats an image ({results[name]['seconds']:.0f} s)"
        )
    parts = results["two levels"]["divergence"]
    print(f"divergence from the prior: z1 {parts['z1']:.2f}, z2 {parts['z2']:.2f} nats")
    return 0


if __name__ == "__main__":
    sys.exit(main())
