"""Denoising score matching, and samples by Langevin steps through falling noise.

Rows x of the data get noise, x + s e, of many standard deviations s. The scores of what comes out
are learnt as the gradient of an energy E(x, s), from the noise itself (P. Vincent 2011): the mean
of

    |s grad E(x + s e, s) - e|^2

is least where -grad E is the score of the noisy data. Samples begin at the widest noise and take
steps of Langevin dynamics at each level in turn (Y. Song and S. Ermon 2019; W. Chen, B. Li, R.
Zhang and Y. Li, "Bayesian Computation in Deep Learning", sections 3.1.2 and 3.2). With
``--sampler predictor-corrector`` they follow the diffusion that adds the noise, dx = g(t) dw,
backwards in time: a step of that stochastic differential equation from each of many levels to the
next, and one of Langevin dynamics there (Y. Song et al. 2021).

The energy is a program: a Normal prior, which is the noise's and the data's spread, and a factor.
Its latent is u = x / s, so that one `SGLD` with one step size serves all levels; the level and the
network's parameters are arguments.

    python -m docs.examples.pyro_examples.score_matching --out out --data moons
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_ext as px
from docs.examples import score_matching_report as shared

Parameters = list[tuple[Tensor, Tensor]]


def initial_parameters(dim: int, hidden: int) -> Parameters:
    """Weights of variance 1 / inputs, and no biases, for every layer."""
    widths = (dim + 1, hidden, hidden, 1)
    return [(torch.randn(i, o) / i**0.5, torch.zeros(o)) for i, o in pairwise(widths)]


def tilt(parameters: Parameters, x: Tensor, level: Tensor) -> Tensor:
    """The part of the energy that is learnt (...), of points (..., D) at levels (...) of noise."""
    h = torch.cat([x, level.log().expand(x.shape[:-1])[..., None]], -1)
    *hidden, (weights, bias) = parameters
    for w, b in hidden:
        h = torch.nn.functional.silu(h @ w + b)
    return (h @ weights + bias)[..., 0] / level


def energy(parameters: Parameters, x: Tensor, level: Tensor) -> Tensor:
    """The whole energy: that of a Normal with the variance of data and noise, and the tilt."""
    return 0.5 * x.square().sum(-1) / (1.0 + level**2) + tilt(parameters, x, level)


def program(parameters: Parameters, level: Tensor, dim: int) -> None:
    """The density of u = x / level."""
    scale = torch.sqrt(1.0 + level**2) / level
    u = pyro.sample("u", dist.Normal(0.0, scale).expand([dim]).to_event(1))
    pyro.factor("tilt", -tilt(parameters, level * u, level))


def train(options: shared.Options, data: Tensor) -> tuple[Parameters, float]:
    """The parameters, and the mean of the last losses."""
    parameters = initial_parameters(data.shape[1], options.hidden)
    tensors = [tensor.requires_grad_() for layer in parameters for tensor in layer]
    optimizer = torch.optim.Adam(tensors, lr=options.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    ends = np.log([options.narrowest, options.widest])
    losses = []
    for _ in range(options.steps):
        rows = data[torch.randint(len(data), (options.batch,))]
        noise = torch.randn(rows.shape)
        level = torch.empty(options.batch).uniform_(*map(float, ends)).exp()
        noisy = (rows + level[:, None] * noise).requires_grad_()
        total = energy(parameters, noisy, level).sum()
        (gradient,) = torch.autograd.grad(total, noisy, create_graph=True)
        loss = (level[:, None] * gradient - noise).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return [(w.detach(), b.detach()) for w, b in parameters], float(np.mean(losses[-200:]))


def predicted(parameters: Parameters, x: Tensor, wide: Tensor, narrow: Tensor) -> Tensor:
    """A step of the reversed diffusion of x (n, D) from one level of noise to the next."""
    lost = wide**2 - narrow**2
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(energy(parameters, x, wide).sum(), x)
    return (x - lost * gradient + torch.sqrt(lost) * torch.randn(x.shape)).detach()


def generate(options: shared.Options, parameters: Parameters, dim: int) -> Tensor:
    """Samples (SAMPLES, D): chains that go through all levels."""
    kernel = px.SGLD(program, options.step_size)
    levels = torch.tensor(options.noise_levels())
    x = torch.sqrt(1.0 + levels[0] ** 2) * torch.randn(shared.SAMPLES, dim)
    for wide, level in zip((levels[0], *levels[:-1]), levels, strict=True):
        if options.predicts:
            x = predicted(parameters, x, wide, level)
        kernel.initial_params = {"u": x / level}
        # The model is checked and traced the first time only; later calls bind another level.
        kernel.setup_chains(shared.SAMPLES, 0, parameters, level, dim)
        for _ in range(options.langevin_steps):
            x = level * kernel.draw().z
    return x


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, generate, judge and draw."""
    options = shared.read_options(__doc__ or "", argv)
    pyro.set_rng_seed(options.seed)
    data = torch.from_numpy(options.rows(held_out=False))
    started = time.perf_counter()
    parameters, loss = train(options, data)
    samples = np.asarray(generate(options, parameters, data.shape[1]))
    return shared.report("pyro", options, samples, loss, time.perf_counter() - started)


if __name__ == "__main__":
    main(sys.argv[1:])
