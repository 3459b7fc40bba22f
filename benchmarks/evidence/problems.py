"""Programs with data, and the logarithms of their evidence in closed form or by quadrature."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.special import betaln, gammaln, logsumexp
from scipy.stats import halfcauchy, multivariate_normal, norm

from benchmarks.hosts import Host

Program = Callable[..., None]


@dataclass(frozen=True)
class Problem:
    """A program of a :class:`Host` and then of its arguments.

    Attributes
    ----------
    name, family : str
    dim : int
    program : callable
    arguments : tuple of array
    log_evidence : float
    """

    name: str
    family: str
    dim: int
    program: Program
    arguments: tuple[np.ndarray, ...]
    log_evidence: float


def problems() -> list[Problem]:
    """All of them: a hundred."""
    return [
        *(regression(dim, seed) for dim in (1, 2, 3, 5, 8, 12, 20, 30, 40, 50) for seed in (0, 1)),
        *(unknown_noise(dim, seed) for dim in (1, 2, 4, 8, 16) for seed in (0, 1)),
        *(
            gamma_poisson(shape, rows)
            for shape in (0.7, 1.0, 2.0, 5.0, 20.0)
            for rows in (1, 5, 40)
        ),
        *(beta_binomial(a, share) for a in (0.5, 1.0, 2.0, 5.0, 10.0) for share in (0, 0.3, 1)),
        *(categories(number) for number in range(3, 11)),
        *(two_labels(apart, rows) for apart in (0.5, 1.0, 2.0, 4.0) for rows in (4, 12)),
        *(three_labels(apart) for apart in (1.0, 2.0, 4.0, 6.0)),
        *(two_modes(dim, share) for dim in (1, 2, 3, 5, 10, 20) for share in (0.2, 0.45)),
        *(groups(number, between) for number in (3, 6, 12, 24) for between in (0.3, 2.0)),
    ]


def regression(dim: int, seed: int) -> Problem:
    """Slopes N(0, 4), noise .7."""
    generator = np.random.default_rng([dim, seed])
    rows = 2 * dim + 10
    x = generator.normal(size=(rows, dim))
    y = x @ generator.normal(size=dim) + 0.7 * generator.normal(size=rows)

    def program(host: Host, x: Any, y: Any) -> None:
        zeros = host.array(np.zeros(dim))
        slopes = host.sample("slopes", host.dist.Normal(zeros, 2.0).to_event(1))
        with host.plate("rows", rows):
            host.sample("y", host.dist.Normal(x @ slopes, 0.7), obs=y)

    known = multivariate_normal.logpdf(y, cov=4.0 * x @ x.T + 0.49 * np.eye(rows))
    return Problem(f"regression-{dim}d-{seed}", "regression", dim, program, (x, y), float(known))


def unknown_noise(dim: int, seed: int) -> Problem:
    """Slopes N(0, 100 v) and v InverseGamma(2, 1): y has a multivariate t distribution."""
    generator = np.random.default_rng([dim, seed, 1])
    rows = 2 * dim + 8
    x = generator.normal(size=(rows, dim))
    y = x @ generator.normal(size=dim) + generator.normal(size=rows)

    def program(host: Host, x: Any, y: Any) -> None:
        dist = host.dist
        variance = host.sample("variance", dist.InverseGamma(host.array(2.0), host.array(1.0)))
        zeros = host.array(np.zeros(dim))
        scale = 10.0 * host.xp.sqrt(variance)
        slopes = host.sample("slopes", dist.Normal(zeros, scale).to_event(1))
        with host.plate("rows", rows):
            host.sample("y", dist.Normal(x @ slopes, host.xp.sqrt(variance)), obs=y)

    shape = np.eye(rows) + 100.0 * x @ x.T
    square, half = y @ np.linalg.solve(shape, y), 0.5 * rows
    known = gammaln(2.0 + half) - gammaln(2.0) - half * math.log(2.0 * math.pi)
    known -= 0.5 * np.linalg.slogdet(shape)[1] + (2.0 + half) * math.log1p(0.5 * square)
    name = f"unknown-noise-{dim + 1}d-{seed}"
    return Problem(name, "unknown noise", dim + 1, program, (x, y), float(known))


def gamma_poisson(shape: float, rows: int) -> Problem:
    """Counts of a rate Gamma(shape, 1)."""
    counts = np.random.default_rng([rows, int(10 * shape)]).poisson(shape, rows).astype(float)

    def program(host: Host, counts: Any) -> None:
        rate = host.sample("rate", host.dist.Gamma(host.array(shape), host.array(1.0)))
        with host.plate("rows", rows):
            host.sample("counts", host.dist.Poisson(rate), obs=counts)

    after = shape + counts.sum()
    known = gammaln(after) - gammaln(shape) - after * math.log(1.0 + rows)
    known -= gammaln(counts + 1.0).sum()
    name = f"gamma-poisson-{shape:g}-{rows}"
    return Problem(name, "Gamma-Poisson", 1, program, (counts,), float(known))


def beta_binomial(a: float, share: float) -> Problem:
    """Of 16 trials a share succeeds; Beta(a, 2)."""
    successes = float(round(16 * share))

    def program(host: Host, successes: Any) -> None:
        chance = host.sample("chance", host.dist.Beta(host.array(a), host.array(2.0)))
        trials = host.dist.Binomial(total_count=16, probs=chance)
        host.sample("successes", trials, obs=successes)

    known = betaln(a + successes, 18.0 - successes) - betaln(a, 2.0)
    known += gammaln(17.0) - gammaln(successes + 1.0) - gammaln(17.0 - successes)
    name = f"beta-binomial-{a:g}-{successes:g}"
    return Problem(name, "Beta-binomial", 1, program, (np.array(successes),), float(known))


def categories(number: int) -> Problem:
    """Rows of categories, whose probabilities have a Dirichlet prior with unlike entries."""
    prior = 0.7 + 0.4 * np.arange(number)
    generator = np.random.default_rng([number, 2])
    rows = generator.choice(number, size=5 * number, p=generator.dirichlet(prior))

    def program(host: Host, rows: Any) -> None:
        chances = host.sample("chances", host.dist.Dirichlet(host.array(prior)))
        with host.plate("rows", 5 * number):
            host.sample("category", host.dist.Categorical(chances), obs=rows)

    after = prior + np.bincount(rows, minlength=number)
    known = gammaln(prior.sum()) - gammaln(after.sum()) + (gammaln(after) - gammaln(prior)).sum()
    name = f"categories-{number}"
    return Problem(name, "Dirichlet", number - 1, program, (rows,), float(known))


def _labels(host: Host, y: Any, number: int, width: float) -> None:
    dist, rows = host.dist, len(y)
    with host.plate("components", number):
        means = host.sample("means", dist.Normal(host.array(0.0), host.array(width)))
    with host.plate("rows", rows):
        even = host.array(np.full(number, 1.0 / number))
        which = host.sample("which", dist.Categorical(even))
        host.sample("y", dist.Normal(means[which], host.array(1.0)), obs=y)


def two_labels(apart: float, rows: int) -> Problem:
    """Two alike components, indicators summed out; by a grid of both means."""
    generator = np.random.default_rng([rows, int(10 * apart), 3])
    y = np.resize([-apart, apart], rows) + generator.normal(size=rows)

    def program(host: Host, y: Any) -> None:
        _labels(host, y, 2, 3.0)

    grid = np.linspace(-15.0, 15.0, 1201)
    prior, likely = norm.logpdf(grid, 0.0, 3.0), norm.logpdf(y[:, None], grid, 1.0)
    joint = prior[:, None] + prior
    for row in likely:
        joint += np.logaddexp(row[:, None], row) - math.log(2.0)
    known = logsumexp(joint) + 2.0 * math.log(grid[1] - grid[0])
    return Problem(f"two-labels-{apart:g}-{rows}", "labels", 2, program, (y,), float(known))


def three_labels(apart: float) -> Problem:
    """Three alike components of nine rows; by the sum over all 3^9 indicators."""
    generator = np.random.default_rng([int(10 * apart), 4])
    y = np.resize([-apart, 0.0, apart], 9) + generator.normal(size=9)

    def program(host: Host, y: Any) -> None:
        _labels(host, y, 3, 5.0)

    @cache
    def of_rows(rows: tuple[int, ...]) -> float:
        if not rows:
            return 0.0
        covariance = 25.0 * np.ones((len(rows), len(rows))) + np.eye(len(rows))
        return float(multivariate_normal.logpdf(y[list(rows)], cov=covariance))

    terms = []
    for which in itertools.product(range(3), repeat=9):
        parts = (tuple(i for i in range(9) if which[i] == k) for k in range(3))
        terms.append(sum(map(of_rows, parts)))
    known = logsumexp(terms) - 9.0 * math.log(3.0)
    return Problem(f"three-labels-{apart:g}", "labels", 3, program, (y,), float(known))


def two_modes(dim: int, share: float) -> Problem:
    """Two Normals of deviation .5 as a factor inside of a prior N(0, 9)."""
    places = np.stack([np.full(dim, 3.0), np.full(dim, -3.0)]) / math.sqrt(dim)

    def program(host: Host) -> None:
        dist = host.dist
        x = host.sample("x", dist.Normal(host.array(np.zeros(dim)), 3.0).to_event(1))
        terms = [
            dist.Normal(host.array(place), 0.5).to_event(1).log_prob(x) + math.log(weight)
            for place, weight in zip(places, (share, 1.0 - share), strict=True)
        ]
        host.factor("modes", host.xp.logaddexp(*terms))

    known = norm.logpdf(places[0], 0.0, math.sqrt(9.25)).sum()
    return Problem(f"two-modes-{dim}d-{share:g}", "two modes", dim, program, (), float(known))


def groups(number: int, between: float) -> Problem:
    """Groups of unknown scale, fitted non-centred where that is better; by quadrature over it."""
    generator = np.random.default_rng([number, int(10 * between), 5])
    errors = 0.5 + generator.uniform(size=number)
    y = generator.normal(1.0, between, number) + errors * generator.normal(size=number)

    def program(host: Host, y: Any) -> None:
        dist = host.dist
        mean = host.sample("mean", dist.Normal(host.array(0.0), host.array(2.0)))
        scale = host.sample("scale", dist.HalfCauchy(host.array(1.0)))
        with host.plate("groups", number):
            effect = host.sample("effect", dist.Normal(mean, scale))
            host.sample("y", dist.Normal(effect, host.array(errors)), obs=y)

    logs = np.linspace(-14.0, 12.0, 2001)
    shared = 4.0 * np.ones((number, number)) + np.diag(errors**2)
    terms = [
        multivariate_normal.logpdf(y, cov=shared + math.exp(2.0 * log) * np.eye(number))
        + halfcauchy.logpdf(math.exp(log))
        + log
        for log in logs
    ]
    known = float(logsumexp(terms)) + math.log(logs[1] - logs[0])
    return Problem(f"groups-{number}-{between:g}", "groups", number + 2, program, (y,), known)
