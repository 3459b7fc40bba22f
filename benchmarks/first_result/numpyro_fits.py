"""The four models in NumPyro and each method on them, as README and its pages write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.infer import (
    MCMC,
    NUTS,
    SVI,
    Predictive,
    Trace_ELBO,
    init_to_uniform,
    log_likelihood,
)
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal
from numpyro.optim import Adam

import numpyro_ext as nx
from benchmarks.first_result.problems import HIDDEN, HOST_METHODS, Recipe


def eight_schools(errors: Array, effects: Array | None = None) -> None:
    """Non-centred hierarchical model."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(errors)):
        eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu + tau * eta, errors), obs=effects)


def logistic_regression(x: Array, y: Array | None = None) -> None:
    """Bernoulli responses with Normal(0, 1) weights."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights + intercept), obs=y)


def gaussian_process(x: Array, y: Array | None = None) -> None:
    """Poisson counts whose log rate is a Gaussian process of unknown length and height."""
    length = numpyro.sample("length", dist.InverseGamma(5.0, 5.0))
    height = numpyro.sample("height", dist.HalfNormal(1.0))
    noise = numpyro.sample("noise", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
    squares = ((x[:, None] - x) / length) ** 2
    covariance = height**2 * jnp.exp(-0.5 * squares) + 1e-4 * jnp.eye(len(x))
    log_rate = 1.0 + jnp.linalg.cholesky(covariance) @ noise
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(log_rate)), obs=y)


def network(x: Array, y: Array | None = None) -> None:
    """One hidden layer with tanh units and unknown noise."""
    inputs = x.shape[1]
    first = dist.Normal(0.0, inputs**-0.5).expand([inputs, HIDDEN]).to_event(2)
    w1 = numpyro.sample("w1", first)
    b1 = numpyro.sample("b1", dist.Normal(0.0, 1.0).expand([HIDDEN]).to_event(1))
    w2 = numpyro.sample("w2", dist.Normal(0.0, HIDDEN**-0.5).expand([HIDDEN]).to_event(1))
    b2 = numpyro.sample("b2", dist.Normal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.LogNormal(-0.5, 0.5))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(jnp.tanh(x @ w1 + b1) @ w2 + b2, noise), obs=y)


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
        # A user has arrays before the clock starts, and a device.
        self.data = jax.block_until_ready(
            tuple(jax.device_put(array.astype(np.float32)) for array in data)
        )

    def run(self) -> None:
        """Make the method's object and run it."""
        recipe = self.recipe
        options: Any = {"progress_bar": False}
        self.key = jax.random.key(self.seed)
        if self.method == "NUTS":
            self.fitted: Any = MCMC(
                NUTS(self.model), num_warmup=recipe.warm_up, num_samples=recipe.draws, **options
            )
            self.fitted.run(self.key, *self.data)
            return
        if self.method == "SVI":
            self.guide = self.guide_class(self.model)
            self.fitted = SVI(self.model, self.guide, Adam(0.01), Trace_ELBO())
            self.result = self.fitted.run(self.key, recipe.variational, *self.data, **options)
            return
        steps, self.fitted = {
            "ProximalScoreVI": lambda: (
                recipe.variational,
                nx.ProximalScoreVI(self.model, self.guide_class(self.model)),
            ),
            "SVGD": lambda: (
                recipe.svgd,
                nx.SVGD(
                    self.model,
                    Adam(0.05),
                    num_particles=64,
                    init_strategy=init_to_uniform(radius=0.1),
                ),
            ),
            "SVN": lambda: (recipe.newton, nx.SVN(self.model, num_particles=20)),
            "LaplaceGGN": lambda: (recipe.mode, nx.LaplaceGGN(self.model, Adam(0.01))),
        }[self.method]()
        self.result = self.fitted.run(self.key, steps, *self.data, **options)

    def draws(self) -> dict[str, Array]:
        """Draws by site."""
        if self.method == "NUTS":
            found = self.fitted.get_samples()
        elif self.method == "SVI":
            shape = (self.recipe.draws,)
            found = self.guide.sample_posterior(self.key, self.result.params, sample_shape=shape)
        elif self.method in DRAWN:
            found = self.fitted.get_samples(self.result.state, self.key, self.recipe.draws)
        else:
            found = self.fitted.get_samples(self.result.state)
        self.found: dict[str, Array] = jax.block_until_ready(dict(found))
        return self.found

    def to_arviz(self) -> Any:
        """Posterior, predictions, log likelihood and observations."""
        if self.method not in HOST_METHODS:
            num = self.recipe.draws if self.method in DRAWN else None
            return nx.to_arviz(self.fitted, self.result, *self.data, num_samples=num)
        *inputs, _ = self.data
        predictions = Predictive(self.model, posterior_samples=self.found)(self.key, *inputs)
        if self.method == "NUTS":
            return arviz.from_numpyro(self.fitted, posterior_predictive=predictions)
        logs = log_likelihood(self.model, self.found, *self.data)
        return arviz.from_dict(
            posterior=_one_chain(self.found),
            posterior_predictive=_one_chain(predictions),
            log_likelihood=_one_chain(logs),
            observed_data={"y": np.asarray(self.data[-1])},
        )

    def diagnostic(self, name: str) -> Any:
        """``psis_khat``, ``elbo`` or ``ksd`` of the fit."""
        return getattr(nx, name)(self.fitted, self.result.state, args=self.data)


#: Engines that draw as many as they are asked for.
DRAWN = ("ProximalScoreVI", "LaplaceGGN")


def _one_chain(draws: dict[str, Array]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value)[None] for name, value in draws.items()}
