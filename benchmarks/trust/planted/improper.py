"""Posteriors without a right answer: the only good answer is not to be trusted."""

from __future__ import annotations

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Floats, Pathology


def _flat(host: Host, name: str) -> Floats:
    """A real site without a prior."""
    found: Floats = host.sample(name, host.dist.Normal(host.array(0.0), 1.0).mask(False))
    return found


def _sum_of_two(host: Host, y: Floats) -> None:
    """Two flat parameters, of which the data see the sum."""
    total = _flat(host, "a") + _flat(host, "b")
    with host.plate("rows", 20):
        host.sample("y", host.dist.Normal(total, 1.0), obs=y)


def _separated(host: Host, x: Floats, y: Floats) -> None:
    """A logistic regression with a flat prior on data that a line separates."""
    logits = _flat(host, "intercept") + _flat(host, "slope") * x
    with host.plate("rows", 20):
        host.sample("y", host.dist.Bernoulli(logits=logits), obs=y)


def _collapsing(host: Host, y: Floats) -> None:
    """A component that may take one row alone: the density is unbounded where its scale is 0."""
    dist = host.dist
    mean = _flat(host, "mean")
    scale = host.xp.exp(_flat(host, "log_scale"))
    ones = host.array(np.ones(20))
    with host.plate("rows", 20):
        shares = dist.Categorical(host.array(np.full((20, 2), 0.5)))
        locations = host.xp.stack([mean * ones, 0.0 * ones], -1)
        scales = host.xp.stack([scale * ones, ones], -1)
        parts = dist.Normal(locations, scales)
        host.sample("y", dist.MixtureSameFamily(shares, parts), obs=y)


def _endless(host: Host) -> None:
    """A density that falls along one direction and never along the other."""
    z = host.flat("z", 2)
    host.factor("valley", -0.5 * host.xp.square(z[0] - z[1]))


_RNG = np.random.default_rng(6)
_X = np.sort(_RNG.normal(size=20))

PROBLEMS = (
    Pathology("improper-sum", "improper", 2, _sum_of_two, None, (_RNG.normal(3.0, 1.0, 20),)),
    Pathology(
        "improper-separated", "improper", 2, _separated, None, (_X, (_X > 0.1).astype(float))
    ),
    Pathology("improper-collapse", "improper", 2, _collapsing, None, (_RNG.normal(size=20),)),
    Pathology("improper-valley", "improper", 2, _endless, None),
)
