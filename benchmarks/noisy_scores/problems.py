"""Targets of the study, without a backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.noisy_scores.figures import Best
from benchmarks.posteriordb.database import Database
from benchmarks.score_vi.problems import logistic
from ppl_ext.start.start import Mode, Start

Floats = NDArray[np.float64]

#: Noise levels of ``Noisy``, each relative to the largest entry of the score.
LEVELS = (0.0, 1.0, 10.0)
#: Condition number of the Normal's covariance.
CONDITION = 55.0
#: Posteriors with a reference whose densities are cheap.
POSTERIORS = (
    "kidiq-kidscore_momiq",
    "garch-garch11",
    "sblrc-blr",
    "arK-arK",
    "kidiq_with_mom_work-kidscore_mom_work",
    "mesquite-logmesquite",
    "mesquite-mesquite",
    "nes1976-nes",
)
#: The start: how far means are off on average, and deviations, in those of the best Normal.
OFF, NARROW = 2.0, 0.5


@dataclass(frozen=True)
class Regression:
    """A regression whose rows are subsampled, with standard normal priors.

    Attributes
    ----------
    kind : str
        "logistic", "Poisson" or "linear", whose last coordinate is the logarithm of its noise.
    x, y : arrays (N, K), (N,)
    batch : int
        Rows of a minibatch.
    """

    kind: str
    x: Floats = field(repr=False)
    y: Floats = field(repr=False)
    batch: int

    @property
    def dim(self) -> int:
        """Number D of coordinates."""
        return self.x.shape[1] + (self.kind == "linear")


@dataclass(frozen=True)
class Problem:
    """One target.

    Attributes
    ----------
    name : str
    group : str
        "Normal", "posteriordb" or "minibatch".
    source
        Covariance (D, D), posterior of a database, or :class:`Regression`.
    levels : tuple of float
        Noise levels; of minibatches, whose noise is their own, 0 alone.
    """

    name: str
    group: str
    source: Any = field(repr=False)
    levels: tuple[float, ...] = LEVELS


def normal_covariance(dim: int = 10, condition: float = CONDITION) -> Floats:
    """Covariance (D, D) whose eigenvalues lie evenly on a logarithmic scale around one."""
    rotation = np.linalg.qr(np.random.default_rng(dim).normal(size=(dim, dim)))[0]
    values = np.geomspace(condition**-0.5, condition**0.5, dim)
    return np.asarray((rotation * values) @ rotation.T, np.float64)


def regression(kind: str, rows: int, features: int, batch: int) -> Regression:
    """A regression with rows drawn from the model."""
    if kind == "logistic":
        found = logistic(0, rows, features)
        return Regression(kind, found.x, found.y, batch)
    generator = np.random.default_rng([rows, features])
    mixing = np.eye(features) + generator.normal(size=(features, features)) / (2 * features**0.5)
    x = generator.normal(size=(rows, features)) @ mixing
    weights = generator.normal(size=features)
    if kind == "Poisson":
        return Regression(kind, x, generator.poisson(np.exp(x @ weights / 8.0)) * 1.0, batch)
    return Regression(kind, x, x @ weights + 0.5 * generator.normal(size=rows), batch)


def log_density(problem: Regression, theta: Floats) -> Floats:
    """Log posterior density at theta (S, D), up to a constant, in NumPy."""
    x, y = problem.x, problem.y
    prior = -0.5 * np.square(theta).sum(1)
    if problem.kind == "linear":
        residual = (y - theta[:, :-1] @ x.T) / np.exp(theta[:, -1:])
        return prior - 0.5 * np.square(residual).sum(1) - len(y) * theta[:, -1]
    linear = theta @ x.T
    if problem.kind == "Poisson":
        return prior + (y * linear - np.exp(linear)).sum(1)
    return prior - np.logaddexp(0.0, -(2.0 * y - 1.0) * linear).sum(1)


def mode_and_deviations(problem: Regression) -> tuple[Floats, Floats]:
    """Mode (D,) and deviations (D,) of the Laplace approximation, by Newton steps."""
    x, y, number = problem.x, problem.y, len(problem.y)
    theta = np.zeros(problem.dim)
    for _ in range(50):
        if problem.kind == "linear":
            noise = np.exp(2.0 * theta[-1])
            residual = y - x @ theta[:-1]
            gradient = np.append(x.T @ residual, residual @ residual - number * noise) / noise
            weights = np.full(number, 1.0 / noise)
            across = 2.0 * x.T @ residual / noise
            # The expected curvature of the noise, which is positive anywhere.
            last = 2.0 * number
        else:
            rate = expit(x @ theta) if problem.kind == "logistic" else np.exp(x @ theta)
            gradient = x.T @ (y - rate)
            weights = rate * (1.0 - rate) if problem.kind == "logistic" else rate
        precision = (x * weights[:, None]).T @ x
        if problem.kind == "linear":
            precision = np.block([[precision, 0.0 * across[:, None]], [0.0 * across, last]])
        precision = precision + np.eye(problem.dim)
        theta = theta + np.linalg.solve(precision, gradient - theta)
    return theta, np.sqrt(np.diag(np.linalg.inv(precision)))


def posterior_draws(
    problem: Regression, mean: Floats, scale_tril: Floats, number: int = 4000, rounds: int = 15
) -> Floats:
    """Posterior draws (number, D) that are independent for practical purposes.

    As many chains as draws, each of independence Metropolis steps from a Normal that is near.
    """
    generator = np.random.default_rng(0)

    def propose() -> tuple[Floats, Floats]:
        standard = generator.normal(size=(number, len(mean)))
        theta = mean + standard @ scale_tril.T
        parts = [log_density(problem, part) for part in np.array_split(theta, 16)]
        return theta, np.concatenate(parts) + 0.5 * np.square(standard).sum(1)

    theta, weight = propose()
    for _ in range(rounds):
        proposal, proposed = propose()
        accepted = np.log(generator.random(number)) < proposed - weight
        theta[accepted], weight[accepted] = proposal[accepted], proposed[accepted]
    return theta


def start_of(seed: int, best: Best) -> Start:
    """The guide at which all methods of a seed start: off, narrow and without correlations."""
    deviations = np.sqrt(np.square(best.scale_tril).sum(1))
    off = np.random.default_rng([seed, len(deviations)]).normal(size=len(deviations))
    mean = best.mean + OFF * deviations * off
    return Start(modes=(Mode(mean, np.diag(NARROW * deviations), 0.0, 0.0),), evaluations=0)


NORMAL = Problem("Normal", "Normal", normal_covariance())


def make_problems(database: Database) -> list[Problem]:
    """All problems."""
    found = [NORMAL]
    found += [
        Problem(database[name].model_name, "posteriordb", database[name])
        for name in POSTERIORS
        if name in database and database[name].reference_name is not None
    ]
    found += [
        Problem(f"{each.kind} regression", "minibatch", each, (0.0,))
        for each in (
            regression("linear", 2000, 10, 64),
            regression("Poisson", 3000, 15, 64),
            regression("logistic", 5000, 30, 64),
        )
    ]
    return found
