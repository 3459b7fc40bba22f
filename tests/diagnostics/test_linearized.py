"""Predictions of models made linear: by hand, in closed form, and in the limit of small moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, log_softmax, logit, softmax

from ppl_ext.errors import ArgumentError
from tests.backends import use_float64
from tests.stein_support import optimizer

use_float64()

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(5, 2))
MODE = {"w": np.array([0.4, -0.7]), "scale": np.array(0.8), "v": GENERATOR.normal(size=(2, 3))}
MASK = np.array([True, True, False, True, True])
OBSERVED = {
    "normal": GENERATOR.normal(size=5),
    "pair": GENERATOR.normal(size=(5, 2)),
    "rate": np.array([0.0, 1.0, 2.0, 0.0, 4.0]),
    "logits": np.array([0.0, 1.0, 1.0, 0.0, 1.0]),
    "probs": np.array([1.0, 1.0, 0.0, 0.0, 1.0]),
    "classes": np.array([0, 1, 2, 2, 1]),
    "simplex": np.array([1, 0, 2, 1, 1]),
}


def program(backend: Any) -> Any:
    """One observed site of each kind, none of whose parameters is linear in the latent sites."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any, **observed: Any) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 1.0).to_event(1))
        scale = host.sample("scale", dist.LogNormal(0.0, 1.0))
        v = host.sample("v", dist.Normal(xp.zeros((2, 3)), 1.0).to_event(2))
        hidden = xp.sin(x @ w)
        with host.plate("rows", 5):
            normal = dist.Normal(hidden, scale * xp.exp(hidden)).mask(backend.array(MASK))
            host.sample("normal", normal, obs=observed["normal"])
            both = xp.stack([hidden, hidden**2], -1)
            host.sample("pair", dist.Normal(both, scale).to_event(1), obs=observed["pair"])
            host.sample("rate", dist.Poisson(xp.exp(hidden) + scale), obs=observed["rate"])
            logits = dist.Bernoulli(logits=hidden * scale)
            host.sample("logits", logits, obs=observed["logits"])
            probs = dist.Bernoulli(probs=0.5 + 0.4 * hidden)
            host.sample("probs", probs, obs=observed["probs"])
            several = xp.tanh(x @ v)
            host.sample("classes", dist.Categorical(logits=several), obs=observed["classes"])
            shares = xp.stack([0.5 + 0.3 * hidden, 0.25 - 0.1 * hidden, 0.25 - 0.2 * hidden], -1)
            host.sample("simplex", dist.Categorical(probs=shares), obs=observed["simplex"])

    return model


def natural(z: np.ndarray) -> dict[str, np.ndarray]:
    """The parameters of the sites on natural scales, at an unconstrained position (9,)."""
    w, scale, v = z[:2], np.exp(z[2]), z[3:].reshape(2, 3)
    hidden = np.sin(X @ w)
    shares = np.stack([0.5 + 0.3 * hidden, 0.25 - 0.1 * hidden, 0.25 - 0.2 * hidden], -1)
    return {
        "hidden": hidden,
        "log_scale": np.log(scale) + hidden,
        "both": np.stack([hidden, hidden**2], -1),
        "log_pair_scale": np.log(scale),
        "log_rate": np.log(np.exp(hidden) + scale),
        "logits": hidden * scale,
        "probs": logit(0.5 + 0.4 * hidden),
        "classes": np.tanh(X @ v),
        "simplex": np.log(shares),
    }


def linear(z: np.ndarray, move: np.ndarray) -> dict[str, np.ndarray]:
    """The same to first order, by central differences of fourth order."""
    step = 1e-3
    at = {factor: natural(z + factor * step * move) for factor in (-2.0, -1.0, 0.0, 1.0, 2.0)}
    return {
        name: value
        + (8.0 * (at[1.0][name] - at[-1.0][name]) - (at[2.0][name] - at[-2.0][name])) / (12 * step)
        for name, value in at[0.0].items()
    }


def expected(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Log likelihoods of the rows, from parameters on natural scales."""
    rows = np.arange(5)
    normal = stats.norm.logpdf(OBSERVED["normal"], found["hidden"], np.exp(found["log_scale"]))
    pair = stats.norm.logpdf(OBSERVED["pair"], found["both"], np.exp(found["log_pair_scale"]))
    flags = {name: np.where(OBSERVED[name] == 1.0, 1.0, -1.0) for name in ("logits", "probs")}
    return {
        "normal": normal[MASK],
        "pair": pair.sum(-1),
        "rate": stats.poisson.logpmf(OBSERVED["rate"], np.exp(found["log_rate"])),
        **{name: np.log(expit(flag * found[name])) for name, flag in flags.items()},
        "classes": log_softmax(found["classes"], -1)[rows, OBSERVED["classes"]],
        "simplex": np.log(softmax(found["simplex"], -1)[rows, OBSERVED["simplex"]]),
    }


MOVES = np.random.default_rng(4).normal(size=(2, 9))


def test_parameters_are_linear_on_their_natural_scales(backend: Any) -> None:
    z = np.concatenate([MODE["w"], [np.log(MODE["scale"])], MODE["v"].ravel()])
    position = z + MOVES
    draws = {
        "w": position[:, :2],
        "scale": np.exp(position[:, 2]),
        "v": position[:, 3:].reshape(-1, 2, 3),
    }
    arguments = (backend.array(X),), backend.arrays(OBSERVED)
    target, data = backend.target(program(backend), *arguments)
    replayed = backend.room("density.replay").replay(
        target,
        backend.arrays(draws),
        data,
        groups=("prediction", "log_likelihood"),
        around=backend.arrays(MODE),
    )
    for draw, move in enumerate(MOVES):
        found = linear(z, move)
        for site, by_hand in expected(found).items():
            rows = replayed.log_likelihood[site][draw]
            rows = rows[MASK] if site == "normal" else rows
            np.testing.assert_allclose(rows, by_hand, rtol=1e-9, atol=1e-11)
        assert (replayed.log_likelihood["normal"][draw][~MASK] == 0.0).all()
        mean = replayed.prediction["mean"]["normal"][draw]
        np.testing.assert_allclose(mean, found["hidden"], rtol=1e-9)


def regression(backend: Any, curved: float = 0.0) -> Any:
    """Two weights of prior variance 4 and noise 0.5; with ``curved`` no linear model."""
    host, dist, xp = backend.host, backend.dist, backend.xp

    def model(x: Any, y: Any = None) -> None:
        w = host.sample("w", dist.Normal(xp.zeros(2), 2.0).to_event(1))
        mean = x @ w
        with host.plate("rows", len(x)):
            host.sample("y", dist.Normal(mean + curved * mean**2, 0.5), obs=y)

    return model


def test_the_predictive_of_a_linear_model_is_the_conjugate_one(backend: Any) -> None:
    """LaplaceGGN and its draws in place of the draws, for rows that were not fitted."""
    y = GENERATOR.normal(size=5)
    covariance = np.linalg.inv(np.eye(2) / 4.0 + X.T @ X / 0.25)
    new = np.array([[1.0, 2.0], [-0.5, 0.3]])
    newton = np.linalg.norm(np.linalg.inv(covariance), 2)
    fit = backend.fit(
        "LaplaceGGN",
        regression(backend),
        optimizer(backend, "sgd", 1.0 / newton),
        steps=200,
        args=backend.arrays((X, y)),
    )
    state = {} if backend.is_pyro else {"state": fit.state}
    number = 400
    predictive = backend.public.predictive_distribution(
        regression(backend),
        fit.engine,
        backend.array(new),
        linearize=True,
        num_samples=number,
        **state,
    )
    means = predictive["mean"].values
    exact = new @ covariance @ (X.T @ y / 0.25)
    variance = np.einsum("ni,ij,nj->n", new, covariance, new)
    # Four standard errors of a mean, and of a variance of Normal draws.
    assert (abs(means.mean(0) - exact) < 4.0 * np.sqrt(variance / number)).all()
    assert (abs(means.var(0) / variance - 1.0) < 4.0 * np.sqrt(2.0 / number)).all()
    np.testing.assert_allclose(predictive["variance"].values, 0.25)


@pytest.mark.slow
def test_small_moves_lead_to_the_models_own_predictions(backend: Any) -> None:
    """The difference falls with the square of the size of the moves, and is there for large."""
    centre, way = np.array([0.4, -0.7]), np.random.default_rng(0).normal(size=(3, 2))
    differences = []
    for size in (1.0, 0.1, 0.01):
        draws = {"w": backend.array(centre + size * way)}
        at = {"w": backend.array(centre)}
        both = [
            backend.public.predictive_distribution(
                regression(backend, 0.3), draws, backend.array(X), linearize=linearize
            )["mean"].values
            for linearize in (False, at)
        ]
        differences.append(abs(both[0] - both[1]).max())
    assert differences[0] > 0.1
    np.testing.assert_allclose(differences, differences[0] * np.array([1.0, 1e-2, 1e-4]), rtol=1e-6)


def test_what_cannot_be_linear_is_refused(backend: Any) -> None:
    host, dist = backend.host, backend.dist

    def bounded(x: Any, y: Any = None) -> None:
        w = host.sample("w", dist.Normal(0.0, 1.0))
        with host.plate("rows", len(x)):
            host.sample("y", dist.Uniform(w - 1.0, w + 1.0), obs=y)

    draws, predict = {"w": backend.array(np.zeros(2))}, backend.public.predictive_distribution
    at = {"w": backend.array(0.0)}
    with pytest.raises(ArgumentError, match="'low' of Uniform at site 'y'"):
        predict(bounded, draws, backend.array(X[:, 0]), linearize=at)
    with pytest.raises(ArgumentError, match=r"engine with a mode, LaplaceGGN.*linearize={'w'"):
        predict(bounded, draws, backend.array(X[:, 0]), linearize=True)
    with pytest.raises(ArgumentError, match="linearize to be True, False or the constrained"):
        predict(bounded, draws, backend.array(X[:, 0]), linearize="mode")
