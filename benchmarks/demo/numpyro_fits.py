"""The demonstration's models in NumPyro, fitted with NUTS, fit, SVI, SVGD and ProximalScoreVI."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import nnx
from jax import Array
from numpyro.contrib.module import random_nnx_module
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, init_to_uniform
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal
from numpyro.optim import Adam
from optax import cosine_decay_schedule

import numpyro_ext as nx
from benchmarks.demo.fits import Fit
from benchmarks.demo.problems import BATCH, HIDDEN, SVGD_RATE, Problem

BACKEND = "NumPyro"


def eight_schools(errors: Array, effects: Array) -> None:
    """Non-centred hierarchical model."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(errors)):
        eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * eta)
        numpyro.sample("effects", dist.Normal(theta, errors), obs=effects)


def logistic_regression(x: Array, y: Array) -> None:
    """Bernoulli responses with Normal(0, 1) weights."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights + intercept), obs=y)


class Network(nnx.Module):
    """10-50-1 network with tanh units."""

    def __init__(self, num_features: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(num_features, HIDDEN, rngs=rngs)
        self.second = nnx.Linear(HIDDEN, 1, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.second(jnp.tanh(self.first(x)))[..., 0]


def make_network(num_features: int) -> Callable[..., None]:
    """The Bayesian neural network; weights are Normal with variance 1 over the layer's inputs."""
    module = Network(num_features, nnx.Rngs(0))
    priors = {
        "first.kernel": dist.Normal(0.0, num_features**-0.5),
        "first.bias": dist.Normal(0.0, 1.0),
        "second.kernel": dist.Normal(0.0, HIDDEN**-0.5),
        "second.bias": dist.Normal(0.0, 1.0),
    }

    def network(x: Array, y: Array, batch_size: int | None = None) -> None:
        net = random_nnx_module("net", module, priors)
        noise = numpyro.sample("noise", dist.LogNormal(-0.5, 0.5))
        with numpyro.plate("rows", len(x), subsample_size=batch_size) as rows:
            numpyro.sample("y", dist.Normal(net(x[rows]), noise), obs=y[rows])

    return network


def neutral(draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Draws in float64 under the neutral names of ``problems.network_output``."""
    names = {
        "net/first.kernel": "w1",
        "net/first.bias": "b1",
        "net/second.kernel": "w2",
        "net/second.bias": "b2",
    }
    return {
        names.get(name, name): np.asarray(value, dtype=np.float64) for name, value in draws.items()
    }


def fits(problem: Problem, progress_bar: bool, samples: int) -> Iterator[Fit]:
    """Fit ``problem`` by each method in turn; NUTS, the reference, comes first."""
    arguments = tuple(jnp.asarray(array) for array in problem.arguments)
    is_network = problem.name == "network"
    simple = {"eight_schools": eight_schools, "logistic_regression": logistic_regression}
    model: Callable[..., None] = (
        make_network(arguments[0].shape[1]) if is_network else simple[problem.name]
    )
    # A network is fitted by minibatches and with a diagonal guide.
    options: dict[str, Any] = {"batch_size": BATCH} if is_network else {}
    fraction = BATCH / len(arguments[0]) if is_network else 1.0
    guide_class = AutoDiagonalNormal if is_network else AutoMultivariateNormal
    steps = 6000 if is_network else 3000
    key = jax.random.key(0)

    def result(method: str, draws: Any, started: float, gradients: float, **more: Any) -> Fit:
        draws = jax.block_until_ready(draws)
        seconds = time.perf_counter() - started
        return Fit(problem.name, BACKEND, method, neutral(draws), seconds, gradients, **more)

    started = time.perf_counter()
    warm_up, kept, chains = (300, 300, 2) if is_network else (500, 2000, 2)
    mcmc = MCMC(
        NUTS(model, target_accept_prob=0.9),
        num_warmup=warm_up,
        num_samples=kept,
        num_chains=chains,
        chain_method="sequential",
        progress_bar=progress_bar,
    )
    mcmc.run(key, *arguments, extra_fields=("num_steps",))
    # Steps of the warm-up are not kept by the host; they are counted as those after it.
    leapfrogs = float(mcmc.get_extra_fields()["num_steps"].sum()) * (warm_up + kept) / kept
    draws = {k: v for k, v in mcmc.get_samples().items() if k != "theta"}
    yield result("NUTS", draws, started, leapfrogs)

    started = time.perf_counter()
    found = nx.fit(key, model, *arguments, progress_bar=progress_bar)
    yield result(
        "fit",
        found.draws,
        started,
        found.verdict.evaluations,
        inference_data=partial(nx.to_arviz, found, *arguments),
        verdict=found.verdict,
    )

    started = time.perf_counter()
    guide = guide_class(model, init_scale=0.01 if is_network else 0.1)
    svi = SVI(model, guide, Adam(cosine_decay_schedule(0.02, steps)), Trace_ELBO(), **options)
    fitted = svi.run(key, steps, *arguments, progress_bar=progress_bar)
    draws = guide.sample_posterior(key, fitted.params, sample_shape=(samples,))
    draws = {k: v for k, v in draws.items() if k != "theta"}
    losses = np.asarray(fitted.losses)
    yield result("SVI, Trace_ELBO", draws, started, steps * fraction, losses=losses)

    started = time.perf_counter()
    particles = 50 if is_network else 200
    svgd = nx.SVGD(
        model,
        Adam(cosine_decay_schedule(SVGD_RATE[problem.name], steps)),
        num_particles=particles,
        init_strategy=init_to_uniform(radius=0.5 if is_network else 0.1),
    )
    run = svgd.run(key, steps, *arguments, progress_bar=progress_bar, **options)
    draws = svgd.get_samples(run.state)
    yield result(
        "SVGD",
        draws,
        started,
        steps * particles * fraction,
        losses=np.asarray(run.losses),
        inference_data=partial(nx.to_arviz, svgd, run, *arguments, **options),
    )

    started = time.perf_counter()
    guide = guide_class(model, init_scale=0.01 if is_network else 0.1)
    proximal = nx.ProximalScoreVI(model, guide)
    run = proximal.run(key, steps, *arguments, progress_bar=progress_bar, **options)
    draws = proximal.get_samples(run.state, key, samples)
    yield result(
        "ProximalScoreVI",
        draws,
        started,
        steps * fraction * proximal.plan.num_samples,
        losses=np.asarray(run.losses),
        inference_data=partial(nx.to_arviz, proximal, run, *arguments, num_samples=400, **options),
    )
