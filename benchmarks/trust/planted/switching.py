"""Label switching: a mixture model whose components can change places.

Given which component each row belongs to, the components' means are Normal, and of a few rows all
ways of belonging can be listed: the posterior is a mixture of as many Normals, drawn exactly.
"""

from __future__ import annotations

import itertools

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Floats, Pathology

#: Standard deviation of the prior of each component's mean.
PRIOR = 5.0


def assignments(rows: Floats, order: int) -> tuple[Floats, Floats, Floats]:
    """Shares (A,), means (A, K) and deviations (A, K) given each way to belong, unit noise."""
    ways = np.array(list(itertools.product(range(order), repeat=len(rows))))
    own = ways[:, :, None] == np.arange(order)
    sizes, totals = own.sum(1), np.einsum("nrk,r->nk", own, rows)
    precision = PRIOR**-2 + sizes
    logs = (0.5 * totals**2 / precision - 0.5 * np.log(precision)).sum(1)
    shares = np.exp(logs - logs.max())
    return shares / shares.sum(), totals / precision, precision**-0.5


def switching(order: int, apart: float, count: int) -> Pathology:
    """A mixture of equal shares and unit variance, components as many deviations apart."""
    rng = np.random.default_rng([order, count])
    rows = apart * np.arange(count) % (apart * order) + rng.normal(size=count)
    rows -= rows.mean()

    def program(host: Host, y: Floats) -> None:
        dist = host.dist
        zeros = host.array(np.zeros(order))
        means = host.sample("means", dist.Normal(zeros, PRIOR).to_event(1))
        with host.plate("rows", count):
            shares = dist.Categorical(host.array(np.full((count, order), 1.0 / order)))
            ones = host.array(np.ones((count, 1)))
            parts = dist.Normal(means * ones, 1.0)
            host.sample("y", dist.MixtureSameFamily(shares, parts), obs=y)

    def exact(number: int, rng: np.random.Generator) -> Draws:
        shares, means, deviations = assignments(rows, order)
        chosen = rng.choice(len(shares), size=number, p=shares)
        noise = rng.normal(size=(number, order))
        return {"means": means[chosen] + deviations[chosen] * noise}

    name = f"label-switching-{order}-{apart:g}sd"
    return Pathology(name, "label switching", order, program, exact, (rows,))


PROBLEMS = (
    switching(2, 2.0, 10),
    switching(2, 6.0, 10),
    switching(3, 5.0, 8),
    switching(4, 6.0, 8),
    switching(5, 6.0, 7),
    switching(6, 6.0, 6),
)
