"""A mixture of Normals fitted to draws, by expectation and maximisation.

A. Dempster, N. Laird and D. Rubin, "Maximum likelihood from incomplete data via the EM algorithm"
(1977). Each component's covariance is drawn towards that of all draws by as many draws as there
are dimensions, so that none collapses. There are as many as tell most of draws that they were not
fitted to.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from ppl_ext.chains.proposal import Proposal
from ppl_ext.start.start import Mode

#: Components at most, draws that each of them needs beside the dimensions, and rounds.
COMPONENTS, DRAWS_PER_COMPONENT, ROUNDS = 20, 30, 30
#: Rounds after which one number of components is told from another, which differs by half.
FEW_ROUNDS = 10
#: Numbers in a row that tell less than a smaller one, after which none larger is tried. A ring may
#: have no use for two components, and have for five.
WORSE = 2
#: Standard deviations of a component are at least so small a share of those of all draws.
NARROWEST = 1e-3
#: Share of a diagonal that is added to it where a covariance has no root by rounding.
RIDGE = 1e-8
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
    dim = draws.shape[1]
    most = int(np.clip(counts.sum() // (DRAWS_PER_COMPONENT + 2 * dim), 1, COMPONENTS))
    center = np.median(typical, axis=0)
    low, high = np.quantile(typical, [0.25, 0.75], axis=0)
    scale = np.where(high > low, high - low, 1.0)
    white, typical = (draws - center) / scale, (typical - center) / scale
    near = np.abs(typical).max(axis=1) < FARTHEST
    bulk, pooled = typical, np.eye(dim)
    if near.sum() > dim:
        bulk = typical[near]
        pooled = np.cov(bulk.T).reshape(dim, dim)
    count = _number(white, counts, most, pooled, generator)
    modes, weights = _components(white, counts, count, pooled, generator)

    def restored(mode: Mode) -> Mode:
        return Mode(center + scale * mode.mean, scale[:, None] * mode.factor, 0.0, 0.0)

    root = np.linalg.cholesky(pooled + NARROWEST**2 * np.eye(dim))
    whole = Mode(bulk.mean(0), root, 0.0, 0.0)
    return tuple(restored(mode) for mode in modes), weights, restored(whole)


def _number(
    draws: Float[np.ndarray, "S D"],
    counts: Float[np.ndarray, " S"],
    most: int,
    pooled: Float[np.ndarray, "D D"],
    generator: np.random.Generator,
) -> int:
    """How many components, so many or a half, a quarter and so on, tell most of other draws.

    Each half of the draws is fitted, and the log of the density summed over the other half (P.
    Smyth, "Model selection for probabilistic clustering using cross-validated likelihood", 2000).
    More components than the draws can tell of follow chance, and ratios are large between them. The
    density has the heavy tails of a proposal, so that no single draw far out decides.
    """
    numbers = sorted({max(1, most // 2**power) for power in range(most.bit_length())})
    if len(numbers) == 1:
        return most
    is_first = generator.permutation(len(draws)) % 2 == 0
    told = list[float]()
    for number in numbers:
        of_number = 0.0
        for fitted_to in (is_first, ~is_first):
            found = _components(
                draws[fitted_to], counts[fitted_to], number, pooled, generator, FEW_ROUNDS
            )
            others = ~fitted_to
            of_number += float(counts[others] @ Proposal(*found).log_density(draws[others]))
        told.append(of_number)
        # The dearer half of the work is spared where more components have told less twice.
        if len(told) - 1 - int(np.argmax(told)) == WORSE:
            break
    return numbers[int(np.argmax(told))]


def _components(
    white: Float[np.ndarray, "S D"],
    counts: Float[np.ndarray, " S"],
    count: int,
    pooled: Float[np.ndarray, "D D"],
    generator: np.random.Generator,
    rounds: int = ROUNDS,
) -> tuple[tuple[Mode, ...], Float[np.ndarray, " K"]]:
    """So many components, and their weights."""
    dim = white.shape[1]
    typical = white[generator.choice(len(white), len(white), p=counts / counts.sum())]
    means = _spread_out(typical, count, generator)
    prior = pooled / count ** (2.0 / dim) + NARROWEST**2 * np.eye(dim)
    covariances = np.repeat(prior[None], count, axis=0)
    weights = np.full(count, 1.0 / count)
    for _ in range(rounds):
        logs = _log_normals(white, means, covariances) + np.log(weights)[:, None]
        logs -= logs.max(axis=0)
        shares = np.exp(logs, out=logs)
        shares *= counts / shares.sum(0)
        totals = shares.sum(1)
        weights = (totals + 1.0) / (totals + 1.0).sum()
        means = (shares @ white + 1e-3 * means) / (totals + 1e-3)[:, None]
        off = white.T - means[:, :, None]
        scatters = (shares[:, None] * off) @ off.transpose(0, 2, 1)
        covariances = (scatters + dim * prior) / (totals + dim)[:, None, None]
    roots = _roots(covariances)
    return tuple(Mode(*each, 0.0, 0.0) for each in zip(means, roots, strict=True)), weights


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


def _log_normals(
    draws: Float[np.ndarray, "S D"],
    means: Float[np.ndarray, "K D"],
    covariances: Float[np.ndarray, "K D D"],
) -> Float[np.ndarray, "K S"]:
    roots = _roots(covariances)
    white = np.linalg.inv(roots) @ (draws.T - means[:, :, None])
    constants = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)
    constants += 0.5 * draws.shape[1] * math.log(2.0 * math.pi)
    return -0.5 * np.einsum("kds,kds->ks", white, white) - constants[:, None]


def _roots(covariances: Float[np.ndarray, "K D D"]) -> Float[np.ndarray, "K D D"]:
    """Lower factors; where draws far out leave one by rounding alone, of smaller correlations."""
    try:
        return np.linalg.cholesky(covariances)
    except np.linalg.LinAlgError:
        diagonals = covariances * np.eye(covariances.shape[1])
        return np.linalg.cholesky(covariances + RIDGE * diagonals)
