"""The four models, as README and its pages write them, and what fits in both hosts share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.first_result.problems import HIDDEN, Recipe
from benchmarks.hosts import Host, host_of

#: Engines that draw as many as they are asked for.
DRAWN = ("ProximalScoreVI", "LaplaceGGN")


def eight_schools(h: Host, errors: Any, effects: Any = None) -> None:
    """Non-centred hierarchical model."""
    mu = h.sample("mu", h.dist.Normal(0.0, 5.0))
    tau = h.sample("tau", h.dist.HalfCauchy(5.0))
    with h.plate("schools", len(errors)):
        eta = h.sample("eta", h.dist.Normal(0.0, 1.0))
        h.sample("y", h.dist.Normal(mu + tau * eta, errors), obs=effects)


def logistic_regression(h: Host, x: Any, y: Any = None) -> None:
    """Bernoulli responses with Normal(0, 1) weights."""
    intercept = h.sample("intercept", h.dist.Normal(0.0, 1.0))
    weights = h.sample("weights", h.dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with h.plate("rows", len(x)):
        h.sample("y", h.dist.Bernoulli(logits=x @ weights + intercept), obs=y)


def gaussian_process(h: Host, x: Any, y: Any = None) -> None:
    """Poisson counts whose log rate is a Gaussian process of unknown length and height."""
    length = h.sample("length", h.dist.InverseGamma(5.0, 5.0))
    height = h.sample("height", h.dist.HalfNormal(1.0))
    noise = h.sample("noise", h.dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
    squares = ((x[:, None] - x) / length) ** 2
    covariance = height**2 * h.xp.exp(-0.5 * squares) + 1e-4 * h.xp.eye(len(x))
    log_rate = 1.0 + h.xp.linalg.cholesky(covariance) @ noise
    with h.plate("rows", len(x)):
        h.sample("y", h.dist.Poisson(h.xp.exp(log_rate)), obs=y)


def network(h: Host, x: Any, y: Any = None) -> None:
    """One hidden layer with tanh units and unknown noise."""
    dist, inputs = h.dist, x.shape[1]
    w1 = h.sample("w1", dist.Normal(0.0, inputs**-0.5).expand([inputs, HIDDEN]).to_event(2))
    b1 = h.sample("b1", dist.Normal(0.0, 1.0).expand([HIDDEN]).to_event(1))
    w2 = h.sample("w2", dist.Normal(0.0, HIDDEN**-0.5).expand([HIDDEN]).to_event(1))
    b2 = h.sample("b2", dist.Normal(0.0, 1.0))
    noise = h.sample("noise", dist.LogNormal(-0.5, 0.5))
    with h.plate("rows", len(x)):
        h.sample("y", dist.Normal(h.xp.tanh(x @ w1 + b1) @ w2 + b2, noise), obs=y)


MODELS: dict[str, Callable[..., None]] = {
    "eight_schools": eight_schools,
    "logistic_regression": logistic_regression,
    "gaussian_process": gaussian_process,
    "network": network,
}


class Fit:
    """One method on one model with one seed.

    Attributes
    ----------
    backend : str
        Of the subclass.
    found : dict
        Draws by site, once there are some.
    """

    backend = ""
    found: dict[str, Any]

    def __init__(self, method: str, model: str, recipe: Recipe, seed: int) -> None:
        self.method, self.recipe, self.seed = method, recipe, seed
        self.model = partial(MODELS[model], host_of(self.backend))
        guides: Any = importlib.import_module(f"{self.backend}.infer.autoguide")
        normal = "AutoDiagonalNormal" if model == "network" else "AutoMultivariateNormal"
        self.guide_class = getattr(guides, normal)

    def engine(self, adam: Callable[[float], Any], near: Any, **seed: int) -> tuple[int, Any]:
        """Steps and the engine of this project; `near` is where SVGD's particles begin."""
        package: Any = importlib.import_module(f"{self.backend}_ext")
        model, recipe = self.model, self.recipe
        if self.method == "ProximalScoreVI":
            return recipe.variational, package.ProximalScoreVI(
                model, self.guide_class(model), **seed
            )
        if self.method == "SVGD":
            options: Any = {"num_particles": 64, "init_strategy": near, **seed}
            return recipe.svgd, package.SVGD(model, adam(0.05), **options)
        if self.method == "SVN":
            return recipe.newton, package.SVN(model, num_particles=20, **seed)
        return recipe.mode, package.LaplaceGGN(model, adam(0.01), **seed)


def one_chain(draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Draws as those of one chain."""
    return {
        name: np.asarray(value.detach() if hasattr(value, "detach") else value)[None]
        for name, value in draws.items()
    }
