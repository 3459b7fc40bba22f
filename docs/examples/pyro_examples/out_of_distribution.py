"""Do Bayesian networks know that a picture is of another kind? Digits, and clothes among them.

A network with one hidden layer learns 2,000 digits of MNIST by seven methods. Each gives draws of
the weights, and from there on all are treated alike: `predictive_distribution` of test digits and
of images of clothes (Fashion-MNIST), its accuracy, log likelihood, calibration and Brier score,
and how well its entropy and its mutual information tell clothes from digits. The methods are

- MC dropout: hidden units are left out at random, in training and in prediction, by the host's
  `SVI` (Y. Gal and Z. Ghahramani, "Dropout as a Bayesian approximation", ICML 2016);
- `DeepEnsemble`, independent maxima of the posterior density, and `SVGDVR`, whose particles repel;
- `SVN` with Newton steps for the last layer alone;
- `SGLD` and `CyclicalSGLD`, Markov chains on minibatches;
- `ProximalScoreVI` with a diagonal Normal guide.

    python -m docs.examples.pyro_examples.out_of_distribution --out out

Images come from `$PPL_EXT_DATA/mnist.npz` and `fashion_mnist.npz`, see `benchmarks/datasets.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, init_to_sample
from pyro.optim import CosineAnnealingLR
from torch import Tensor

import pyro_ext as px
from benchmarks.records import Record
from docs.examples import out_of_distribution_report as shared
from docs.examples.out_of_distribution_report import CLASSES, HIDDEN, INPUTS, Settings

SHAPES = {"w1": (INPUTS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
#: Standard deviations of the priors; those of weights keep the size of what comes in.
SCALES = {"w1": (2 / INPUTS) ** 0.5, "b1": 0.1, "w2": (2 / HIDDEN) ** 0.5, "b2": 0.1}
DROPOUT = 0.3

Draws = Mapping[str, Any]


def network(
    x: Tensor, y: Tensor | None = None, batch: int | None = None, drop: float = 0.0
) -> None:
    """The program: Normal weights, and a class for each row, of which `batch` are looked up."""
    w1, b1, w2, b2 = (
        pyro.sample(name, dist.Normal(0.0, SCALES[name]).expand(shape).to_event(len(shape)))
        for name, shape in SHAPES.items()
    )
    with pyro.plate("rows", len(x), subsample_size=batch) as rows:
        chosen = x if batch is None else x[rows]
        hidden = torch.relu(chosen @ w1 + b1)
        if drop:
            hidden = torch.nn.functional.dropout(hidden, drop)
        observed = None if y is None else y if batch is None else y[rows]
        pyro.sample("y", dist.Categorical(logits=hidden @ w2 + b2), obs=observed)


def predict(draws: Draws, x: Tensor, y: Tensor | None = None) -> Any:
    """Predictive distributions of rows."""
    return px.predictive_distribution(network, draws, x, y)


def adam(rate: float, steps: int) -> CosineAnnealingLR:
    """Adam, whose rate falls to 0 along a cosine."""
    return CosineAnnealingLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": rate}, "T_max": steps}
    )


def mc_dropout(settings: Settings, x: Tensor, y: Tensor) -> Draws:
    """A maximum of the posterior density under dropout; a draw leaves hidden units out."""
    pyro.set_rng_seed(settings.seed)
    pyro.clear_param_store()
    guide = AutoDelta(network, init_loc_fn=init_to_sample)
    optim = adam(3e-3, settings.steps)
    svi = SVI(network, guide, optim, Trace_ELBO())
    for _ in range(settings.steps):
        svi.step(x, y, settings.batch, drop=DROPOUT)
        optim.step()
    point = {name: value.detach() for name, value in guide.median().items()}
    # A hidden unit that is left out is a row of w2 that is zero.
    kept = torch.bernoulli(torch.full((settings.draws, HIDDEN, 1), 1.0 - DROPOUT))
    draws = {name: value.expand(settings.draws, *value.shape) for name, value in point.items()}
    return {**draws, "w2": point["w2"] * kept / (1.0 - DROPOUT)}


def particles(engine: Any, steps: int, settings: Settings, x: Tensor, y: Tensor) -> Draws:
    """The particles of an engine after a run."""
    engine.run(steps, x, y, settings.batch, progress_bar=False)
    return dict(engine.get_samples())


def deep_ensemble(settings: Settings, x: Tensor, y: Tensor) -> Draws:
    """Independent maxima of the posterior density."""
    engine = px.DeepEnsemble(
        network,
        adam(3e-3, settings.steps),
        num_particles=settings.particles,
        init_strategy=init_to_sample,
        seed=settings.seed,
    )
    return particles(engine, settings.steps, settings, x, y)


def svgd_vr(settings: Settings, x: Tensor, y: Tensor) -> Draws:
    """Particles that repel, with scores of reduced variance."""
    engine = px.SVGDVR(
        network,
        adam(3e-3, settings.steps),
        num_particles=settings.particles,
        anchor_every=max(1, len(x) // settings.batch),
        init_strategy=init_to_sample,
        seed=settings.seed,
    )
    return particles(engine, settings.steps, settings, x, y)


def last_layer_svn(settings: Settings, x: Tensor, y: Tensor) -> Draws:
    """Newton steps for the last layer, SVGD's direction for the first."""
    steps = settings.newton_steps

    def falling(step: int) -> float:
        return 0.15 * (1.0 + math.cos(math.pi * min(step / steps, 1.0)))

    engine = px.SVN(
        network,
        adam(3e-3, steps),
        num_particles=settings.particles,
        curvature=px.GaussNewton("kfac", sites=["w2", "b2"], every=10),
        damping=px.LevenbergMarquardt(3.0, adapt=False),
        step_size=falling,
        init_strategy=init_to_sample,
        seed=settings.seed,
    )
    return particles(engine, steps, settings, x, y)


def sgld(settings: Settings, x: Tensor, y: Tensor) -> Draws:
    """One chain with a constant step; the first half is left out, then every so many are kept."""
    pyro.set_rng_seed(settings.seed)
    kernel = px.SGLD(network, 5e-5, init_strategy=init_to_sample)
    half = settings.long_steps // 2
    every = half // settings.draws
    mcmc = px.MCMC(kernel, settings.draws, half, thinning=every, disable_progbar=True)
    mcmc.run(x, y, settings.batch)
    return dict(mcmc.get_samples())


def cyclical_sgld(settings: Settings, x: Tensor, y: Tensor) -> Draws:
    """A chain whose steps rise and fall; its draws come from the end of each cycle."""
    pyro.set_rng_seed(settings.seed)
    cycle = settings.long_steps // settings.particles
    kernel = px.CyclicalSGLD(network, 2e-4, cycle, init_strategy=init_to_sample)
    every = kernel.draws_per_cycle * settings.particles // settings.draws
    mcmc = px.MCMC(kernel, settings.draws, 0, thinning=every, disable_progbar=True)
    mcmc.run(x, y, settings.batch)
    return dict(mcmc.get_samples())


def proximal_score_vi(settings: Settings, x: Tensor, y: Tensor) -> Draws:
    """Draws from a diagonal Normal."""
    pyro.set_rng_seed(settings.seed)
    pyro.clear_param_store()
    guide = AutoDiagonalNormal(network, init_loc_fn=init_to_sample)
    engine = px.ProximalScoreVI(network, guide, seed=settings.seed)
    engine.run(settings.long_steps, x, y, settings.batch, progress_bar=False)
    return dict(engine.get_samples(settings.draws))


METHODS: dict[str, shared.Method] = {
    "MC dropout": mc_dropout,
    "DeepEnsemble": deep_ensemble,
    "SVGDVR": svgd_vr,
    "SVN, last layer": last_layer_svn,
    "SGLD": sgld,
    "CyclicalSGLD": cyclical_sgld,
    "ProximalScoreVI": proximal_score_vi,
}


def main(argv: Sequence[str] | None = None) -> list[Record]:
    """Fit by every method, judge and draw."""
    return shared.run("pyro", __doc__ or "", px, METHODS, predict, torch.as_tensor, argv)


if __name__ == "__main__":
    main(sys.argv[1:])
