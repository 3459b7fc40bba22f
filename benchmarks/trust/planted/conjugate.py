"""Programs with data whose posteriors have closed forms."""

from __future__ import annotations

import numpy as np

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Floats, Pathology, gaussian_draws, split


def groups(count: int, *, centred: bool, between: float, within: float) -> Pathology:
    """Effects of groups around an unknown mean, both variances known: a Normal posterior."""
    rng = np.random.default_rng([count, 2])
    rows = rng.normal(2.0, between, count) + rng.normal(0.0, within, count)
    prior = 5.0

    def program(host: Host, y: Floats) -> None:
        mu = host.sample("mu", host.dist.Normal(0.0, prior))
        with host.plate("groups", count):
            if centred:
                theta = host.sample("theta", host.dist.Normal(mu, between))
            else:
                theta = mu + between * host.sample("raw", host.dist.Normal(0.0, 1.0))
            host.sample("y", host.dist.Normal(theta, within), obs=y)

    # Latents (mu, raw); theta = mu + between raw.
    design = np.concatenate([np.ones((count, 1)), between * np.eye(count)], axis=1)
    precision = np.diag([prior**-2, *np.ones(count)]) + design.T @ design / within**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ design.T @ rows / within**2

    def exact(number: int, rng: np.random.Generator) -> Draws:
        found = split(gaussian_draws(mean, covariance, number, rng), mu=0, raw=count)
        if not centred:
            return found
        return {"mu": found["mu"], "theta": found["mu"][:, None] + between * found["raw"]}

    form = "centred" if centred else "non-centred"
    strength = "weak" if within > between else "strong"
    name = f"groups-{form}-{strength}-{count + 1}d"
    return Pathology(name, "hierarchical", count + 1, program, exact, (rows,))


def regression(rows: int, inputs: int) -> Pathology:
    """Linear regression with unknown noise: Normal and inverse Gamma."""
    rng = np.random.default_rng([rows, 3])
    x = rng.normal(size=(rows, inputs)) @ (np.eye(inputs) + 0.5 * rng.normal(size=(inputs, inputs)))
    y = x @ rng.normal(size=inputs) + 2.0 * rng.normal(size=rows)
    shape, rate, width = 2.0, 1.0, 10.0

    def program(host: Host, x: Floats, y: Floats) -> None:
        dist = host.dist
        variance = host.sample("variance", dist.InverseGamma(host.array(shape), host.array(rate)))
        zeros = host.array(np.zeros(inputs))
        weights = host.sample(
            "weights", dist.Normal(zeros, width * host.xp.sqrt(variance)).to_event(1)
        )
        with host.plate("rows", rows):
            host.sample("y", dist.Normal(x @ weights, host.xp.sqrt(variance)), obs=y)

    precision = x.T @ x + np.eye(inputs) / width**2
    covariance = np.asarray(np.linalg.inv(precision), np.float64)
    mean = np.linalg.solve(precision, x.T @ y)
    last = rate + 0.5 * (y @ y - mean @ precision @ mean)

    def exact(number: int, rng: np.random.Generator) -> Draws:
        variance = last / rng.gamma(shape + 0.5 * rows, size=number)
        noise = gaussian_draws(np.zeros(inputs), covariance, number, rng)
        return {"variance": variance, "weights": mean + np.sqrt(variance)[:, None] * noise}

    name = f"regression-{inputs + 1}d-{rows}"
    return Pathology(name, "conjugate", inputs + 1, program, exact, (x, y))


def beta_binomial(count: int) -> Pathology:
    """Shares of successes, some of none."""
    rng = np.random.default_rng([count, 4])
    trials = rng.integers(1, 30, count).astype(float)
    successes = rng.binomial(trials.astype(int), rng.beta(0.5, 2.0, count)).astype(float)

    def program(host: Host, trials: Floats, successes: Floats) -> None:
        dist = host.dist
        with host.plate("groups", count):
            p = host.sample("p", dist.Beta(host.array(0.5), host.array(2.0)))
            host.sample("successes", dist.Binomial(trials, probs=p), obs=successes)

    def exact(number: int, rng: np.random.Generator) -> Draws:
        return {"p": rng.beta(0.5 + successes, 2.0 + trials - successes, size=(number, count))}

    return Pathology(
        f"beta-binomial-{count}d", "conjugate", count, program, exact, (trials, successes)
    )


def gamma_poisson(count: int, rows: int) -> Pathology:
    """Rates of counts in groups."""
    rng = np.random.default_rng([count, 5])
    counts = rng.poisson(rng.gamma(0.5, 4.0, count), size=(rows, count)).astype(float)

    def program(host: Host, counts: Floats) -> None:
        dist = host.dist
        with host.plate("groups", count):
            rate = host.sample("rate", dist.Gamma(host.array(0.5), host.array(0.25)))
            with host.plate("rows", rows):
                host.sample("counts", dist.Poisson(rate), obs=counts)

    def exact(number: int, rng: np.random.Generator) -> Draws:
        shape, scale = 0.5 + counts.sum(0), 1.0 / (0.25 + rows)
        return {"rate": rng.gamma(shape, scale, size=(number, count))}

    return Pathology(f"gamma-poisson-{count}d", "conjugate", count, program, exact, (counts,))


PROBLEMS = (
    groups(8, centred=True, between=0.5, within=5.0),
    groups(8, centred=False, between=0.5, within=5.0),
    groups(30, centred=True, between=5.0, within=0.5),
    groups(30, centred=False, between=5.0, within=0.5),
    regression(10_000, 10),
    beta_binomial(10),
    gamma_poisson(6, 4),
)
