"""Effects of groups with an unknown spread between them: eight schools, drawn exactly.

Given the spread, the other latents are Normal, and the spread's own posterior is a density in one
dimension, which a fine grid of its logarithm holds to rounding.
"""

from __future__ import annotations

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Floats, Pathology

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
#: Standard deviation of the mean's prior.
PRIOR = 5.0


def log_spread_density(log_spread: Floats, width: float) -> Floats:
    """Log density (n,) of the logarithm of the spread, up to a constant, with HalfCauchy(width)."""
    spread = np.exp(log_spread)[:, None]
    variance = spread**2 + ERRORS**2
    weight = 1.0 / variance
    precision = PRIOR**-2 + weight.sum(1)
    mean = (weight * EFFECTS).sum(1) / precision
    fit = -0.5 * (np.log(variance) + weight * EFFECTS**2).sum(1)
    fit += 0.5 * mean**2 * precision - 0.5 * np.log(precision)
    found: Floats = fit - np.log1p((spread[:, 0] / width) ** 2) + log_spread
    return found


def schools(width: float, *, centred: bool) -> Pathology:
    """Eight schools, with a HalfCauchy(width) prior of the spread between them."""
    count = len(EFFECTS)

    def program(host: Host, errors: Floats, effects: Floats) -> None:
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
        logs = log_spread_density(grid, width)
        density = np.exp(logs - logs.max())
        below = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
        tau = np.exp(np.interp(rng.random(number), below / below[-1], grid))
        weight = 1.0 / (tau[:, None] ** 2 + ERRORS**2)
        precision = PRIOR**-2 + weight.sum(1)
        mu = (weight * EFFECTS).sum(1) / precision + rng.normal(size=number) / np.sqrt(precision)
        # Standardised effects given both: a unit prior, and effect - mu = tau raw + error.
        precision = 1.0 + (tau[:, None] / ERRORS) ** 2
        mean = tau[:, None] * (EFFECTS - mu[:, None]) / ERRORS**2 / precision
        raw = mean + rng.normal(size=(number, count)) / np.sqrt(precision)
        found: Draws = {"mu": mu, "tau": tau}
        if centred:
            return found | {"theta": mu[:, None] + tau[:, None] * raw}
        return found | {"raw": raw}

    form = "centred" if centred else "non-centred"
    name = f"schools-{form}-{width:g}"
    return Pathology(name, "hierarchical", count + 2, program, exact, (ERRORS, EFFECTS))


PROBLEMS = (
    schools(5.0, centred=True),
    schools(5.0, centred=False),
    schools(25.0, centred=True),
    schools(25.0, centred=False),
)
