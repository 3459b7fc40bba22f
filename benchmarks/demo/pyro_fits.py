"""The demonstration's models in Pyro, fitted with fit, SVI, SVGD and ProximalScoreVI."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal, init_to_uniform
from pyro.nn import PyroModule, PyroSample
from torch import Tensor
from tqdm.auto import trange

import pyro_ext as px
from benchmarks.demo.fits import Fit
from benchmarks.demo.problems import BATCH, HIDDEN, SVGD_RATE, Problem
from benchmarks.hosts import falling_adam

BACKEND = "Pyro"


def eight_schools(errors: Tensor, effects: Tensor) -> None:
    """Non-centred hierarchical model."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(errors)):
        eta = pyro.sample("eta", dist.Normal(0.0, 1.0))
        theta = pyro.deterministic("theta", mu + tau * eta, event_dim=0)
        pyro.sample("effects", dist.Normal(theta, errors), obs=effects)


def logistic_regression(x: Tensor, y: Tensor) -> None:
    """Bernoulli responses with Normal(0, 1) weights."""
    intercept = pyro.sample("intercept", dist.Normal(0.0, 1.0))
    weights = pyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ weights + intercept), obs=y)


class Network(PyroModule):
    """Bayesian 10-50-1 network; weights are Normal with variance 1 over the layer's inputs."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.first = PyroModule[torch.nn.Linear](num_features, HIDDEN)
        self.second = PyroModule[torch.nn.Linear](HIDDEN, 1)
        for layer in (self.first, self.second):
            for name, value in list(layer.named_parameters()):
                scale = layer.in_features**-0.5 if name == "weight" else 1.0
                prior = dist.Normal(0.0, scale).expand(value.shape).to_event(value.dim())
                setattr(layer, name, PyroSample(prior))

    def forward(self, x: Tensor, y: Tensor, batch_size: int | None = None) -> None:
        noise = pyro.sample("noise", dist.LogNormal(-0.5, 0.5))
        plate = pyro.plate("rows", len(x), subsample_size=batch_size)
        rows = plate.indices
        out = self.second(torch.tanh(self.first(x[rows]))).squeeze(-1)
        with plate:
            pyro.sample("y", dist.Normal(out, noise), obs=y[rows])


def neutral(draws: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Draws in float64 under the neutral names of ``problems.network_output``."""
    names = {"first.bias": "b1", "second.bias": "b2"}
    found = {}
    for name, value in draws.items():
        array = value.detach().numpy().astype(np.float64)
        if name in ("first.weight", "second.weight"):  # torch keeps outputs first
            found["w1" if name == "first.weight" else "w2"] = np.swapaxes(array, -1, -2)
        else:
            found[names.get(name, name)] = array
    return found


def _host_draws(guide: Any, samples: int) -> dict[str, Tensor]:
    """Draws of Pyro's guide, which are drawn one by one."""
    with torch.no_grad():
        rows = [guide() for _ in range(samples)]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0] if name != "theta"}


def fits(problem: Problem, progress_bar: bool, samples: int) -> Iterator[Fit]:
    """Fit ``problem`` by each method in turn."""
    arguments = tuple(torch.as_tensor(array, dtype=torch.float32) for array in problem.arguments)
    is_network = problem.name == "network"
    simple = {"eight_schools": eight_schools, "logistic_regression": logistic_regression}
    model: Callable[..., None] = (
        Network(arguments[0].shape[-1]) if is_network else simple[problem.name]
    )
    options: dict[str, Any] = {"batch_size": BATCH} if is_network else {}
    fraction = BATCH / len(arguments[0]) if is_network else 1.0
    guide_class = AutoDiagonalNormal if is_network else AutoMultivariateNormal
    steps = 6000 if is_network else 3000

    def result(method: str, draws: Any, started: float, gradients: float, **more: Any) -> Fit:
        seconds = time.perf_counter() - started
        return Fit(problem.name, BACKEND, method, neutral(draws), seconds, gradients, **more)

    started = time.perf_counter()
    found = px.fit(model, *arguments, progress_bar=progress_bar)
    yield result(
        "fit",
        found.draws,
        started,
        found.verdict.evaluations,
        inference_data=partial(px.to_arviz, found, *arguments),
        verdict=found.verdict,
    )

    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    started = time.perf_counter()
    guide = guide_class(model, init_scale=0.01 if is_network else 0.1)
    optim = falling_adam("pyro", 0.02, steps)
    svi = SVI(model, guide, optim, Trace_ELBO())
    losses = []
    for _ in trange(steps, desc="SVI", disable=not progress_bar, mininterval=0.2):
        losses.append(svi.step(*arguments, **options))
        optim.step()
    draws = _host_draws(guide, samples)
    yield result("SVI, Trace_ELBO", draws, started, steps * fraction, losses=np.asarray(losses))
    pyro.clear_param_store()

    started = time.perf_counter()
    particles = 50 if is_network else 200
    svgd = px.SVGD(
        model,
        falling_adam("pyro", SVGD_RATE[problem.name], steps),
        num_particles=particles,
        init_strategy=init_to_uniform(radius=0.5 if is_network else 0.1),
        seed=0,
    )
    run = svgd.run(steps, *arguments, progress_bar=progress_bar, **options)
    yield result(
        "SVGD",
        svgd.get_samples(),
        started,
        svgd.gradient_evaluations,
        losses=run.losses,
        inference_data=partial(px.to_arviz, svgd, *arguments, **options),
    )

    started = time.perf_counter()
    guide = guide_class(model, init_scale=0.01 if is_network else 0.1)
    proximal = px.ProximalScoreVI(model, guide, seed=0)
    run = proximal.run(steps, *arguments, progress_bar=progress_bar, **options)
    yield result(
        "ProximalScoreVI",
        proximal.get_samples(samples),
        started,
        proximal.gradient_evaluations,
        losses=run.losses,
        inference_data=partial(px.to_arviz, proximal, *arguments, num_samples=400, **options),
    )
