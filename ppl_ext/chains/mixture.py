"""A mixture of Normals fitted to draws, by expectation and maximisation.

A. Dempster, N. Laird and D. Rubin, "Maximum likelihood from incomplete data via the EM algorithm"
(1977). Each component's covariance is drawn towards that of all draws by as many draws as there
are dimensions, so that none collapses.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from ppl_ext.start.start import Mode

#: Components at most, draws that each of them needs beside the dimensions, and rounds.
COMPONENTS, DRAWS_PER_COMPONENT, ROUNDS = 20, 30, 30
#: Standard deviations of a component are at least so small a share of those of all draws.
NARROWEST = 1e-3
#: Weighted draws that count less than this share of the mean tell nothing.
LEAST_COUNT = 1e-3
#: Draws beyond so many interquartile ranges from the median do not make the scale of all.
FARTHEST = 10.0


def fitted(
    draws: Float[np.ndarray, "S D"],
    generator: np.random.Generator,
    counts: Float[np.ndarray, " S"] | None = None,
) -> tuple[tuple[Mode, ...], Float[np.ndarray, " K"], Mode]:
    """Components, their weights, and one Normal of the bulk of all draws.

    Parameters
    ----------
    draws : array (S, D)
    generator : numpy.random.Generator
    counts : array (S,), optional
        How many draws each of them stands for. Default: one.
    """
    if counts is None:
        counts, typical = np.ones(len(draws)), draws
    else:
        tell = counts > LEAST_COUNT * counts.mean()
        draws, counts = draws[tell], counts[tell]
        typical = draws[generator.choice(len(draws), len(draws), p=counts / counts.sum())]
    number, dim = counts.sum(), draws.shape[1]
    count = int(np.clip(number // (DRAWS_PER_COMPONENT + 2 * dim), 1, COMPONENTS))
    center = np.median(typical, axis=0)
    low, high = np.quantile(typical, [0.25, 0.75], axis=0)
    scale = np.where(high > low, high - low, 1.0)
    white = (typical - center) / scale
    near = np.abs(white).max(axis=1) < FARTHEST
    bulk, pooled = white, np.eye(dim)
    if near.sum() > dim:
        bulk = white[near]
        pooled = np.cov(bulk.T).reshape(dim, dim)
    means = _spread_out(white, count, generator)
    white = (draws - center) / scale
    prior = pooled / count ** (2.0 / dim) + NARROWEST**2 * np.eye(dim)
    covariances = np.repeat(prior[None], count, axis=0)
    weights = np.full(count, 1.0 / count)
    for _ in range(ROUNDS):
        logs = np.stack([_log_normal(white, m, c) for m, c in zip(means, covariances, strict=True)])
        logs = logs + np.log(weights)[:, None]
        shares = counts * np.exp(logs - logsumexp(logs, axis=0))
        totals = shares.sum(1)
        weights = (totals + 1.0) / (totals + 1.0).sum()
        means = (shares @ white + 1e-3 * means) / (totals + 1e-3)[:, None]
        for k in range(count):
            off = white - means[k]
            scatter = (shares[k][:, None] * off).T @ off
            covariances[k] = (scatter + dim * prior) / (totals[k] + dim)

    def normal(mean: Float[np.ndarray, " D"], covariance: Float[np.ndarray, "D D"]) -> Mode:
        factor = scale[:, None] * np.linalg.cholesky(covariance)
        return Mode(center + scale * mean, factor, 0.0, 0.0)

    modes = tuple(normal(*each) for each in zip(means, covariances, strict=True))
    whole = normal(bulk.mean(0), pooled + NARROWEST**2 * np.eye(dim))
    return modes, weights, whole


def _spread_out(
    draws: Float[np.ndarray, "S D"], count: int, generator: np.random.Generator
) -> Float[np.ndarray, "K D"]:
    """Some draws far from each other: each in proportion to the distance from those before.

    D. Arthur and S. Vassilvitskii, "k-means++: the advantages of careful seeding" (2007).
    """
    chosen = [draws[generator.integers(len(draws))]]
    while len(chosen) < count:
        # Roots, since squares would choose the farthest draws of a heavy tail.
        distance = np.min([np.linalg.norm(draws - each, axis=1) for each in chosen], axis=0)
        total = distance.sum()
        if total <= 0.0:
            chosen.append(draws[generator.integers(len(draws))])
            continue
        chosen.append(draws[generator.choice(len(draws), p=distance / total)])
    return np.stack(chosen)


def _log_normal(
    draws: Float[np.ndarray, "S D"],
    mean: Float[np.ndarray, " D"],
    covariance: Float[np.ndarray, "D D"],
) -> Float[np.ndarray, " S"]:
    factor = np.linalg.cholesky(covariance)
    white = solve_triangular(factor, (draws - mean).T, lower=True, check_finite=False)
    constant = np.log(np.diag(factor)).sum() + 0.5 * len(mean) * math.log(2.0 * math.pi)
    return -0.5 * np.square(white).sum(0) - constant
