"""The two problems of the minibatch comparison, written once for both hosts: programs, data,
answers and judgement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks import datasets
from benchmarks.datasets import Split
from benchmarks.hosts import Host

#: Regression sets with published splits, read from PPL_EXT_DATA.
UCI = (
    "yacht",
    "boston",
    "energy",
    "concrete",
    "wine_red",
    "kin8nm",
    "power_plant",
    "naval",
)
HIDDEN = 50

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Logistic:
    """A logistic regression: features x (N, D), labels y (N,) of 0 and 1, prior N(0, I)."""

    x: Array
    y: Array


def logistic_program(h: Host, x: Any, y: Any, batch_size: int) -> None:
    """Logistic regression that draws its minibatches."""
    weights = h.sample("weights", h.dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with h.plate("rows", x.shape[0], subsample_size=batch_size) as rows:
        h.sample("y", h.dist.Bernoulli(logits=x[rows] @ weights), obs=y[rows])


def network_program(h: Host, x: Any, y: Any, batch_size: int) -> None:
    """Regression network with one hidden layer and learnt noise that draws its minibatches."""
    dist, features = h.dist, x.shape[1]
    w1 = h.sample("w1", dist.Normal(0.0, 1.0).expand([features, HIDDEN]).to_event(2))
    b1 = h.sample("b1", dist.Normal(0.0, 1.0).expand([HIDDEN]).to_event(1))
    w2 = h.sample("w2", dist.Normal(0.0, HIDDEN**-0.5).expand([HIDDEN]).to_event(1))
    b2 = h.sample("b2", dist.Normal(0.0, 1.0))
    noise = h.sample("noise", dist.HalfNormal(1.0))
    with h.plate("rows", x.shape[0], subsample_size=batch_size) as rows:
        mean = h.relu(x[rows] @ w1 + b1) @ w2 + b2
        h.sample("y", dist.Normal(mean, noise), obs=y[rows])


def logistic(seed: int, rows: int = 5000, features: int = 30) -> Logistic:
    """Correlated features and labels drawn from the model."""
    generator = np.random.default_rng(seed)
    mixing = np.eye(features) + generator.normal(size=(features, features)) / (2 * features**0.5)
    x = generator.normal(size=(rows, features)) @ mixing
    weights = 0.7 * generator.normal(size=features)
    return Logistic(x, (generator.random(rows) < expit(x @ weights)).astype(float))


def logistic_draws(problem: Logistic, number: int = 4000, seed: int = 0) -> Array:
    """Posterior draws (number, D) that are independent for practical purposes.

    As many chains as draws, each of independence Metropolis steps from the Laplace approximation,
    which with thousands of rows is so near that nine in ten proposals are accepted.
    """
    x, y = problem.x, problem.y
    mode = np.zeros(x.shape[1])
    for _ in range(30):
        p = expit(x @ mode)
        precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(len(mode))
        mode = mode + np.linalg.solve(precision, x.T @ (y - p) - mode)
    # For standard normal z: mode + (L^T)^-1 z has the covariance (L L^T)^-1.
    upper = np.linalg.cholesky(precision).T
    generator = np.random.default_rng(seed)

    def propose() -> tuple[Array, Array]:
        standard = generator.normal(size=(number, len(mode)))
        theta = mode + np.linalg.solve(upper, standard.T).T
        signed = (2 * y - 1)[:, None] * (x @ theta.T)
        density = -np.logaddexp(0, -signed).sum(0) - 0.5 * np.square(theta).sum(1)
        return theta, density + 0.5 * np.square(standard).sum(1)

    theta, weight = propose()
    for _ in range(10):
        proposal, proposed_weight = propose()
        accepted = np.log(generator.random(number)) < proposed_weight - weight
        theta[accepted], weight[accepted] = proposal[accepted], proposed_weight[accepted]
    return theta


def logistic_minibatch_score(
    problem: Logistic, batch_size: int, seed: int
) -> Callable[[Array], Array]:
    """Scores (S, D) at points (S, D), at each call from the next rows of a reshuffled epoch."""
    number = len(problem.x)
    generator = np.random.default_rng([seed, 1])
    waiting = np.empty(0, dtype=int)

    def score(theta: Array) -> Array:
        nonlocal waiting
        if len(waiting) < batch_size:
            waiting = generator.permutation(number)
        rows, waiting = waiting[:batch_size], waiting[batch_size:]
        residual = problem.y[rows] - expit(theta @ problem.x[rows].T)
        return number / batch_size * residual @ problem.x[rows] - theta

    return score


def moment_errors(mean: Array, covariance: Array, reference: Array) -> dict[str, float]:
    """How far a Normal (mean (D,), covariance (D, D)) is from the reference's draws (S, D).

    "worst mean error" is in reference standard deviations, "worst sd error" the largest
    |log(standard deviation / reference's)|, "covariance error" relative in the Frobenius norm.
    """
    expected, scale = reference.mean(0), reference.std(0)
    true_covariance = np.cov(reference.T)
    ratios = np.sqrt(np.diag(covariance)) / scale
    return {
        "worst mean error": float(np.abs((mean - expected) / scale).max()),
        "smallest sd ratio": float(ratios.min()),
        "largest sd ratio": float(ratios.max()),
        "worst sd error": float(np.abs(np.log(ratios)).max()),
        "covariance error": float(
            np.linalg.norm(covariance - true_covariance) / np.linalg.norm(true_covariance)
        ),
    }


def uci_split(name: str, index: int) -> Split:
    """A published split, features and response standardised by the training rows."""
    return datasets.external(name).split(index).standardised(response=True)
