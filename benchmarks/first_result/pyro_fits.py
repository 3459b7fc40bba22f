"""The four models in Pyro and each method on them, as README and its pages write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arviz
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal, init_to_uniform
from pyro.optim import Adam
from torch import Tensor

import pyro_ext as px
from benchmarks.first_result.problems import HIDDEN, HOST_METHODS, Recipe


def eight_schools(errors: Tensor, effects: Tensor | None = None) -> None:
    """Non-centred hierarchical model."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(errors)):
        eta = pyro.sample("eta", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mu + tau * eta, errors), obs=effects)


def logistic_regression(x: Tensor, y: Tensor | None = None) -> None:
    """Bernoulli responses with Normal(0, 1) weights."""
    intercept = pyro.sample("intercept", dist.Normal(0.0, 1.0))
    weights = pyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ weights + intercept), obs=y)


def gaussian_process(x: Tensor, y: Tensor | None = None) -> None:
    """Poisson counts whose log rate is a Gaussian process of unknown length and height."""
    length = pyro.sample("length", dist.InverseGamma(5.0, 5.0))
    height = pyro.sample("height", dist.HalfNormal(1.0))
    noise = pyro.sample("noise", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
    squares = ((x[:, None] - x) / length) ** 2
    covariance = height**2 * torch.exp(-0.5 * squares) + 1e-4 * torch.eye(len(x))
    log_rate = 1.0 + torch.linalg.cholesky(covariance) @ noise
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Poisson(torch.exp(log_rate)), obs=y)


def network(x: Tensor, y: Tensor | None = None) -> None:
    """One hidden layer with tanh units and unknown noise."""
    inputs = x.shape[1]
    first = dist.Normal(0.0, inputs**-0.5).expand([inputs, HIDDEN]).to_event(2)
    w1 = pyro.sample("w1", first)
    b1 = pyro.sample("b1", dist.Normal(0.0, 1.0).expand([HIDDEN]).to_event(1))
    w2 = pyro.sample("w2", dist.Normal(0.0, HIDDEN**-0.5).expand([HIDDEN]).to_event(1))
    b2 = pyro.sample("b2", dist.Normal(0.0, 1.0))
    noise = pyro.sample("noise", dist.LogNormal(-0.5, 0.5))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(torch.tanh(x @ w1 + b1) @ w2 + b2, noise), obs=y)


MODELS: dict[str, Callable[..., None]] = {
    "eight_schools": eight_schools,
    "logistic_regression": logistic_regression,
    "gaussian_process": gaussian_process,
    "network": network,
}


class Fit:
    """One method on one model with one seed."""

    def __init__(
        self, method: str, model: str, data: tuple[np.ndarray, ...], recipe: Recipe, seed: int
    ) -> None:
        self.method, self.model, self.recipe = method, MODELS[model], recipe
        self.guide_class = AutoDiagonalNormal if model == "network" else AutoMultivariateNormal
        self.seed = seed
        self.data = tuple(torch.as_tensor(array, dtype=torch.float32) for array in data)
        torch.set_num_threads(1)
        pyro.set_rng_seed(seed)

    def run(self) -> None:
        """Make the method's object and run it."""
        recipe = self.recipe
        if self.method == "NUTS":
            self.fitted: Any = MCMC(
                NUTS(self.model), recipe.draws, recipe.warm_up, disable_progbar=True
            )
            self.fitted.run(*self.data)
            return
        if self.method == "SVI":
            self.guide = self.guide_class(self.model)
            self.fitted = SVI(self.model, self.guide, Adam({"lr": 0.01}), Trace_ELBO())
            for _ in range(recipe.variational):
                self.fitted.step(*self.data)
            return
        seed = self.seed
        steps, self.fitted = {
            "ProximalScoreVI": lambda: (
                recipe.variational,
                px.ProximalScoreVI(self.model, self.guide_class(self.model), seed=seed),
            ),
            "SVGD": lambda: (
                recipe.svgd,
                px.SVGD(
                    self.model,
                    Adam({"lr": 0.05}),
                    num_particles=64,
                    init_strategy=init_to_uniform(radius=0.1),
                    seed=seed,
                ),
            ),
            "SVN": lambda: (recipe.newton, px.SVN(self.model, num_particles=20, seed=seed)),
            "LaplaceGGN": lambda: (
                recipe.mode,
                px.LaplaceGGN(self.model, Adam({"lr": 0.01}), seed=seed),
            ),
        }[self.method]()
        self.fitted.run(steps, *self.data, progress_bar=False)

    def draws(self) -> dict[str, Tensor]:
        """Draws by site."""
        if self.method == "NUTS":
            found = self.fitted.get_samples()
        elif self.method == "SVI":
            # Pyro's guides draw one at a time.
            with torch.no_grad():
                rows = [self.guide() for _ in range(self.recipe.draws)]
            found = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        elif self.method in DRAWN:
            found = self.fitted.get_samples(self.recipe.draws)
        else:
            found = self.fitted.get_samples()
        self.found: dict[str, Tensor] = dict(found)
        return self.found

    def to_arviz(self) -> Any:
        """Posterior, predictions, log likelihood and observations."""
        if self.method not in HOST_METHODS:
            num = self.recipe.draws if self.method in DRAWN else None
            return px.to_arviz(self.fitted, *self.data, num_samples=num)
        *inputs, _ = self.data
        predictions = Predictive(self.model, posterior_samples=self.found)(*inputs)
        if self.method == "NUTS":
            return arviz.from_pyro(
                self.fitted, posterior_predictive=predictions, log_likelihood=True
            )
        logs = []
        for index in range(self.recipe.draws):
            one = {name: value[index] for name, value in self.found.items()}
            trace = poutine.trace(poutine.condition(self.model, one)).get_trace(*self.data)
            trace.compute_log_prob()
            logs.append(trace.nodes["y"]["log_prob"])
        return arviz.from_dict(
            posterior=_one_chain(self.found),
            posterior_predictive=_one_chain(predictions),
            log_likelihood=_one_chain({"y": torch.stack(logs)}),
            observed_data={"y": self.data[-1].numpy()},
        )

    def diagnostic(self, name: str) -> Any:
        """``psis_khat``, ``elbo`` or ``ksd`` of the fit."""
        return getattr(px, name)(self.fitted, args=self.data)


#: Engines that draw as many as they are asked for.
DRAWN = ("ProximalScoreVI", "LaplaceGGN")


def _one_chain(draws: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy()[None] for name, value in draws.items()}
