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

    python -m docs.examples.numpyro_examples.out_of_distribution --out out

Images come from `$PPL_EXT_DATA/mnist.npz` and `fashion_mnist.npz`, see `benchmarks/datasets.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from jax import Array, random
from numpyro.infer import MCMC, SVI, Trace_ELBO, init_to_sample
from numpyro.infer.autoguide import AutoDelta, AutoDiagonalNormal

import numpyro_ext as nx
from benchmarks.records import Record
from docs.examples import out_of_distribution_report as shared
from docs.examples.out_of_distribution_report import CLASSES, HIDDEN, INPUTS, Settings

SHAPES = {"w1": (INPUTS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
#: Standard deviations of the priors; those of weights keep the size of what comes in.
SCALES = {"w1": (2 / INPUTS) ** 0.5, "b1": 0.1, "w2": (2 / HIDDEN) ** 0.5, "b2": 0.1}
DROPOUT = 0.3

Draws = Mapping[str, Any]


def network(x: Array, y: Array | None = None, batch: int | None = None, drop: float = 0.0) -> None:
    """The program: Normal weights, and a class for each row, of which `batch` are looked up."""
    w1, b1, w2, b2 = (
        numpyro.sample(name, dist.Normal(0.0, SCALES[name]).expand(shape).to_event(len(shape)))
        for name, shape in SHAPES.items()
    )
    with numpyro.plate("rows", len(x), subsample_size=batch) as rows:
        chosen = x if batch is None else x[rows]
        hidden = jax.nn.relu(chosen @ w1 + b1)
        if drop:
            hidden *= random.bernoulli(numpyro.prng_key(), 1.0 - drop, hidden.shape) / (1.0 - drop)
        observed = None if y is None else y if batch is None else y[rows]
        numpyro.sample("y", dist.Categorical(logits=hidden @ w2 + b2), obs=observed)


def predict(draws: Draws, x: Array, y: Array | None = None) -> Any:
    """Predictive distributions of rows."""
    return nx.predictive_distribution(network, draws, x, y)


def adam(rate: float, steps: int) -> optax.GradientTransformation:
    """Adam, whose rate falls to 0 along a cosine."""
    return optax.adam(optax.cosine_decay_schedule(rate, steps))


def mc_dropout(settings: Settings, x: Array, y: Array) -> Draws:
    """A maximum of the posterior density under dropout; a draw leaves hidden units out."""
    guide = AutoDelta(network, init_loc_fn=init_to_sample)
    svi = SVI(network, guide, adam(3e-3, settings.steps), Trace_ELBO())
    training_key, drop_key = random.split(random.key(settings.seed))
    result = svi.run(
        training_key, settings.steps, x, y, settings.batch, drop=DROPOUT, progress_bar=False
    )
    point = guide.median(result.params)
    # A hidden unit that is left out is a row of w2 that is zero.
    kept = random.bernoulli(drop_key, 1.0 - DROPOUT, (settings.draws, HIDDEN, 1))
    draws = {name: jnp.broadcast_to(v, (settings.draws, *v.shape)) for name, v in point.items()}
    return {**draws, "w2": point["w2"] * kept / (1.0 - DROPOUT)}


def particles(engine: Any, steps: int, settings: Settings, x: Array, y: Array) -> Draws:
    """The particles of an engine after a run."""
    key = random.key(settings.seed)
    result = engine.run(key, steps, x, y, settings.batch, progress_bar=False)
    return dict(engine.get_samples(result.state))


def deep_ensemble(settings: Settings, x: Array, y: Array) -> Draws:
    """Independent maxima of the posterior density."""
    optim = adam(3e-3, settings.steps)
    engine = nx.DeepEnsemble(
        network, optim, num_particles=settings.particles, init_strategy=init_to_sample
    )
    return particles(engine, settings.steps, settings, x, y)


def svgd_vr(settings: Settings, x: Array, y: Array) -> Draws:
    """Particles that repel, with scores of reduced variance."""
    engine = nx.SVGDVR(
        network,
        adam(3e-3, settings.steps),
        num_particles=settings.particles,
        anchor_every=max(1, len(x) // settings.batch),
        init_strategy=init_to_sample,
    )
    return particles(engine, settings.steps, settings, x, y)


def last_layer_svn(settings: Settings, x: Array, y: Array) -> Draws:
    """Newton steps for the last layer, SVGD's direction for the first."""
    steps = settings.newton_steps
    engine = nx.SVN(
        network,
        adam(3e-3, steps),
        num_particles=settings.particles,
        curvature=nx.GaussNewton("kfac", sites=["w2", "b2"], every=10),
        damping=nx.LevenbergMarquardt(3.0, adapt=False),
        step_size=optax.cosine_decay_schedule(0.3, steps),
        init_strategy=init_to_sample,
    )
    return particles(engine, steps, settings, x, y)


def chain(kernel: Any, warmup: int, every: int, settings: Settings, x: Array, y: Array) -> Draws:
    """Draws of one chain after a warm-up, every so many kept."""
    mcmc = MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=settings.draws * every,
        thinning=every,
        progress_bar=False,
    )
    mcmc.run(random.key(settings.seed), x, y, settings.batch)
    return dict(mcmc.get_samples())


def sgld(settings: Settings, x: Array, y: Array) -> Draws:
    """One chain with a constant step; the first half is left out, then every so many are kept."""
    kernel = nx.SGLD(network, 5e-5, init_strategy=init_to_sample)
    half = settings.long_steps // 2
    return chain(kernel, half, half // settings.draws, settings, x, y)


def cyclical_sgld(settings: Settings, x: Array, y: Array) -> Draws:
    """A chain whose steps rise and fall; its draws come from the end of each cycle."""
    cycle = settings.long_steps // settings.particles
    kernel = nx.CyclicalSGLD(network, 2e-4, cycle, init_strategy=init_to_sample)
    every = kernel.draws_per_cycle * settings.particles // settings.draws
    return chain(kernel, 0, every, settings, x, y)


def proximal_score_vi(settings: Settings, x: Array, y: Array) -> Draws:
    """Draws from a diagonal Normal."""
    guide = AutoDiagonalNormal(network, init_loc_fn=init_to_sample)
    engine = nx.ProximalScoreVI(network, guide)
    fit_key, draw_key = random.split(random.key(settings.seed))
    result = engine.run(fit_key, settings.long_steps, x, y, settings.batch, progress_bar=False)
    posterior = guide.sample_posterior(draw_key, result.params, sample_shape=(settings.draws,))
    return dict(posterior)


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
    return shared.run("numpyro", __doc__ or "", nx, METHODS, predict, jnp.asarray, argv)


if __name__ == "__main__":
    main(sys.argv[1:])
