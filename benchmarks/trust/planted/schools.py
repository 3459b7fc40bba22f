"""Effects of groups with an unknown spread between them, drawn exactly: eight schools, and groups
of which some have many data and some few, so that no one way to write all of them fits.

Given the spread, the other latents are Normal, and the spread's own posterior is a density in one
dimension, which a fine grid of its logarithm holds to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Floats, Pathology

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
#: Standard deviation of the mean's prior.
PRIOR = 5.0


def log_spread_density(
    log_spread: Floats, width: float, effects: Floats = EFFECTS, errors: Floats = ERRORS
) -> Floats:
    """Log density (n,) of the logarithm of the spread, up to a constant, with HalfCauchy(width)."""
    spread = np.exp(log_spread)[:, None]
    variance = spread**2 + errors**2
    weight = 1.0 / variance
    precision = PRIOR**-2 + weight.sum(1)
    mean = (weight * effects).sum(1) / precision
    fit = -0.5 * (np.log(variance) + weight * effects**2).sum(1)
    fit += 0.5 * mean**2 * precision - 0.5 * np.log(precision)
    found: Floats = fit - np.log1p((spread[:, 0] / width) ** 2) + log_spread
    return found


def groups(
    name: str, width: float, *, centred: bool, effects: Floats = EFFECTS, errors: Floats = ERRORS
) -> Pathology:
    """Groups, eight schools by default, with a HalfCauchy(width) prior of their spread."""
    count = len(effects)

    def program(host: Host, errors: Any, effects: Any) -> None:
        dist = host.dist
        mu = host.sample("mu", dist.Normal(0.0, PRIOR))
        tau = host.sample("tau", dist.HalfCauchy(host.array(width)))
        with host.plate("schools", count):
            if centred:
                theta = host.sample("theta", dist.Normal(mu, tau))
            else:
                theta = mu + tau * host.sample("raw", dist.Normal(0.0, 1.0))
            host.sample("y", dist.Normal(theta, errors), obs=effects)

    def exact(number: int, rng: np.random.Generator) -> Draws:
        grid = np.linspace(-25.0, 25.0, 500_001)
        logs = log_spread_density(grid, width, effects, errors)
        density = np.exp(logs - logs.max())
        below = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
        tau = np.exp(np.interp(rng.random(number), below / below[-1], grid))
        weight = 1.0 / (tau[:, None] ** 2 + errors**2)
        precision = PRIOR**-2 + weight.sum(1)
        mu = (weight * effects).sum(1) / precision + rng.normal(size=number) / np.sqrt(precision)
        # Standardised effects given both: a unit prior, and effect - mu = tau raw + error.
        precision = 1.0 + (tau[:, None] / errors) ** 2
        mean = tau[:, None] * (effects - mu[:, None]) / errors**2 / precision
        raw = mean + rng.normal(size=(number, count)) / np.sqrt(precision)
        found: Draws = {"mu": mu, "tau": tau}
        if centred:
            return found | {"theta": mu[:, None] + tau[:, None] * raw}
        return found | {"raw": raw}

    return Pathology(name, "hierarchical", count + 2, program, exact, (errors, effects))


def unbalanced(count: int, well: int, spread: float) -> Pathology:
    """So many groups, as many of them well known, the others hardly, of this spread."""
    rng = np.random.default_rng([count, well, round(100 * spread)])
    errors = np.where(np.arange(count) < well, 0.05, 1.5)
    effects = 0.7 + spread * rng.normal(size=count) + errors * rng.normal(size=count)
    name = f"groups-{well}-of-{count}-{spread:g}"
    return groups(name, 1.0, centred=True, effects=effects, errors=errors)


def even(count: int, error: float) -> Pathology:
    """So many groups of spread 0.3, all known to one error."""
    rng = np.random.default_rng([count, round(100 * error)])
    effects = 0.7 + 0.3 * rng.normal(size=count) + error * rng.normal(size=count)
    name = f"groups-{count}-{error:g}"
    return groups(name, 1.0, centred=True, effects=effects, errors=np.full(count, error))


PROBLEMS = (
    groups("schools-centred-5", 5.0, centred=True),
    groups("schools-non-centred-5", 5.0, centred=False),
    groups("schools-centred-25", 25.0, centred=True),
    groups("schools-non-centred-25", 25.0, centred=False),
    unbalanced(4, 2, 0.5),
    unbalanced(8, 4, 0.1),
    unbalanced(8, 4, 0.5),
    unbalanced(8, 1, 0.5),
    unbalanced(8, 7, 0.5),
    unbalanced(20, 10, 0.1),
    unbalanced(20, 2, 0.5),
    even(3, 0.2),
    even(6, 1.0),
    even(12, 0.1),
)
