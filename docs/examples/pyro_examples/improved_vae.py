"""A few steps of SGHMC from the encoder's draws: a better posterior of each image's latents.

An autoencoder is trained by Pyro's SVI. Its encoder serves all images at once, and for a single
held-out image its Gaussian may lie beside the posterior p(z | x) of the decoder. Stochastic
gradient MCMC follows that posterior itself. It is started at draws from the encoder and so needs
few steps (Hoffman 2017, and section 3.3.2 of "Bayesian computation in deep learning"; there the
decoder is trained with the improved draws too, here it is held).

All images are one program with a plate: the latents of a chain are (images, latent), and each
chain starts at a draw of its own.

What the steps bring is seen in two ways. The first is the mean of log p(x, z) and of log p(x | z)
over the chains, step by step. That alone would go up for draws that merely fall into modes, and
the density of the chains' draws is unknown, so that they have no ELBO. So, second, Gaussians with
the moments of each image's draws take the encoder's place as q(z | x): their ELBO and
importance-weighted bound are bounds of the same log p(x), and higher where q is nearer to p(z | x).

Written to the folder ``--out``: ``improved_vae.png`` and ``improved-vae.jsonl``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor

import pyro_ext as px
from docs.examples import vae_figures
from docs.examples.pyro_examples.vae import VAE, Weights, fit, network
from docs.examples.recorded import recorded
from docs.examples.vae_bounds import bounds
from docs.examples.vae_data import load_digits
from docs.examples.vae_options import parse_options

#: Posterior standard deviations of z are some 0.2: the step is a quarter of it, 1 / FRICTION is it.
STEP_SIZE, FRICTION, STEPS, CHAINS = 0.05, 5.0, 100, 10


def improve(vae: VAE, weights: Weights, x: Tensor, seed: int) -> Tensor:
    """Draws (chains, 1 + STEPS, images, latent): those of the encoder, and SGHMC's from there."""
    pyro.set_rng_seed(seed)
    start = vae.encode(weights, x).sample((CHAINS,))
    mcmc = px.MCMC(
        px.SGHMC(partial(vae.latent_model, weights), STEP_SIZE, friction=FRICTION),
        num_samples=STEPS,
        warmup_steps=0,
        initial_params={"z": start},
        num_chains=CHAINS,
        disable_progbar=True,
    )
    mcmc.run(x)
    return torch.cat([start[:, None], mcmc.get_samples(group_by_chain=True)["z"]], 1)


def moments(draws: Tensor) -> dist.Distribution:
    """Gaussians with the moments of each image's draws in the second half of the chains."""
    late = draws[:, draws.shape[1] // 2 :]
    return dist.Normal(late.mean((0, 1)), late.std((0, 1), correction=0)).to_event(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, improve, and write the figure and the numbers."""
    options = parse_options(argv, __doc__)
    digits = load_digits(options.images, options.held_out, small=options.small)
    vae = VAE(digits.pixels, options.hidden, options.latent)
    x = torch.as_tensor(digits.test)
    started = time.perf_counter()
    weights, _ = fit(vae, digits, Trace_ELBO(), options.epochs, options.num_draws)
    trained = time.perf_counter()
    draws = improve(vae, weights, x, seed=1)
    improved = time.perf_counter()

    by_step = [vae.log_joint(weights, z, x) for z in draws.unbind(1)]
    likelihood = [
        each - vae.prior().log_prob(z) for each, z in zip(by_step, draws.unbind(1), strict=True)
    ]
    proposals = {"encoder": vae.encode(weights, x), "SGHMC": moments(draws)}
    ratios = {}
    for name, proposal in proposals.items():
        z = proposal.sample((options.num_draws,))
        ratios[name] = (vae.log_joint(weights, z, x) - proposal.log_prob(z)).numpy()
    results: dict[str, Any] = {
        "log_joint": [float(each.mean()) for each in by_step],
        "log_likelihood": [float(each.mean()) for each in likelihood],
        "bounds": {name: bounds(values) for name, values in ratios.items()},
        "seconds": improved - started,
        "seconds_of_steps": improved - trained,
    }
    # Standard error over the images of what the ELBO gains.
    gains = (ratios["SGHMC"] - ratios["encoder"]).mean(0)
    results["gain"] = {"elbo": float(gains.mean()), "error": float(gains.std() / len(x) ** 0.5)}

    # The images that gain most.
    shown = np.argsort(-gains)[:10].copy()
    means = {name: proposal.base_dist.loc[shown] for name, proposal in proposals.items()}
    pictures = {"held-out images": x[shown].numpy()}
    for name, z in means.items():
        pictures[f"from the mean, {name}"] = network(weights, "decoder", z).sigmoid().numpy()
    recorded("improved-vae", "SGHMC", "pyro", "digits", options, results)
    vae_figures.draw_improved(
        pictures, results, digits.side, options.num_draws, options.out / "improved_vae.png"
    )
    for name, found in results["bounds"].items():
        print(
            f"{name}: ELBO {found['elbo']:.2f}, bound with {options.num_draws} draws "
            f"{found['iwae']:.2f} nats an image"
        )
    print(
        f"log p(x, z): {results['log_joint'][0]:.2f} at the encoder's draws, "
        f"{results['log_joint'][-1]:.2f} after {STEPS} steps ({results['seconds_of_steps']:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
