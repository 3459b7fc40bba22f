"""The closed-form regression step as its module's docstring defines it, slowly and with NumPy.

Inverses, loops over rows and entries, and no running averages that carry over: the weights of all
iterations are written out. Both packages are compared with it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.guides_support import divergence

Array = NDArray[np.float64]


def weights(iterations: int, decay: float, forgetting: list[float] | None = None) -> Array:
    """Weight of each iteration in the running averages after the last one."""
    found = np.zeros(iterations)
    for t in range(iterations):
        haste = 1.0 if forgetting is None else forgetting[t]
        rate = min(haste * (t + 1.0) ** -decay, 1.0)
        found *= 1.0 - rate
        found[t] = rate
    return found


def mean_weights(iterations: int, decay: float, total: int) -> Array:
    """As :func:`weights`, for the averages that give the mean, in a run of ``total`` iterations."""
    left = [max(1.0 - t / total, 0.0) if total else 1.0 for t in range(iterations)]
    return weights(iterations, decay, [1.0 + 2.0 * part for part in left])


def limited(precision: float, noise: float, trust: float) -> float:
    """A whitened precision in the trust region."""
    lowest = 1.0 / (1.0 + (trust - 1.0) / (1.0 + noise / 3.0))
    return float(min(max(precision, lowest), trust))


def block_step(
    spread: Array, cross: Array, square: Array, number: float, trust: float
) -> tuple[Array, Array, Array]:
    """Next precision relative to the present one, pulls, and the eigenbasis of the noise.

    From E[d d^T], E[e d^T] and E[e e^T], (n, n) each, of ``number`` pairs in coordinates in which
    the guide's covariance is the identity.
    """
    dim = len(spread)
    residual = square - cross @ np.linalg.inv(spread) @ cross.T
    noise, basis = np.linalg.eigh((residual + residual.T) / 2)
    noise = np.maximum(noise, 0.0) / max(1.0 - dim / number, 1.0 / number)
    pull = dim * noise / number
    spread, cross = basis.T @ spread @ basis, basis.T @ cross @ basis
    slope, precision = np.zeros((2, dim, dim))
    for i in range(dim):
        unit = np.eye(dim)[i]
        slope[i] = (pull[i] * unit - cross[i]) @ np.linalg.inv(spread + pull[i] * np.eye(dim))
    certainty = 1.0 / (noise + 1e-6 * noise.max())
    for i in range(dim):
        for j in range(dim):
            both = certainty[i] * slope[i, j] + certainty[j] * slope[j, i]
            precision[i, j] = both / (certainty[i] + certainty[j])
    values, vectors = np.linalg.eigh(precision)
    for i in range(dim):
        seen = vectors[:, i] @ np.diag(noise) @ vectors[:, i]
        values[i] = limited(values[i], dim * seen, trust)
    turned = basis @ vectors
    return turned @ np.diag(values) @ turned.T, pull, basis


def literal_step(
    theta: Array, score: Array, mean: Array, scale: Array, decay: float, trust: float, total: int
) -> tuple[Array, Array]:
    """Mean and covariance of the next full guide.

    ``theta`` and ``score`` are (iterations, 2 K, D), rows k and K + k mirrored.
    """
    iterations, points, dim = theta.shape
    pairs = points // 2
    share = weights(iterations, decay)
    number = 1.0 / (np.square(share) / pairs).sum()
    whiten = np.linalg.inv(scale)
    spread, cross, square = np.zeros((3, dim, dim))
    for t in range(iterations):
        for k in range(pairs):
            d = whiten @ (theta[t, k] - theta[t, pairs + k]) / 2
            e = scale.T @ (score[t, k] - score[t, pairs + k]) / 2
            spread += share[t] / pairs * np.outer(d, d)
            cross += share[t] / pairs * np.outer(e, d)
            square += share[t] / pairs * np.outer(e, e)
    precision, pull, basis = block_step(spread, cross, square, number, trust)
    covariance = np.linalg.inv(precision)
    mean_share = mean_weights(iterations, decay, total)
    mean_theta = np.einsum("t,tsi->i", mean_share, theta) / points
    mean_score = np.einsum("t,tsi->i", mean_share, score) / points
    move = whiten @ (mean_theta - mean) + covariance @ scale.T @ mean_score
    move = basis @ ((basis.T @ move) / (1.0 + pull))
    move = move / max(np.linalg.norm(move), 1.0)
    return mean + scale @ move, scale @ covariance @ scale.T


def example(dim: int, trend: float) -> tuple[Array, Array, Array, Array]:
    """Points and scores (9, 4, dim) of two mirrored pairs each, and a guide's mean and scale."""
    generator = np.random.default_rng(dim)
    root = np.eye(dim) + generator.normal(size=(dim, dim)) / 4
    scale = np.linalg.cholesky(root @ root.T)
    mean = 5.0 + generator.normal(size=dim) / 4
    draws = mean + generator.normal(size=(9, 2, dim)) @ scale.T
    theta = np.concatenate([draws, 2 * mean - draws], axis=1)
    slope = trend * np.eye(dim) + generator.normal(size=(dim, dim)) / 4
    score = 1.0 - (theta - 5.5) @ slope + 0.1 * generator.normal(size=theta.shape)
    return theta, score, mean, scale


def normal_target(dim: int, seed: int) -> tuple[Array, Array]:
    """Mean and covariance of a correlated Normal away from the origin."""
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(dim, dim))
    return 2 * generator.normal(size=dim), root @ root.T / dim + 0.1 * np.eye(dim)


def literal_diagonal_step(
    theta: Array,
    score: Array,
    mean: Array,
    scale: Array,
    total: int,
    decay: float,
    trust: float,
) -> tuple[Array, Array]:
    """Mean and standard deviations (D,) of the next diagonal guide.

    ``theta`` and ``score`` are (iterations, 2 K, D), drawn by the guide of this mean (D,) and these
    standard deviations (D,); rows k and K + k mirrored. Every coordinate alone, by sums over all
    iterations.
    """
    iterations, points, dim = theta.shape
    pairs = points // 2
    horizons = [total or max(2 * (t + 1), 2000) for t in range(iterations)]
    share = np.zeros(iterations)
    for t, horizon in enumerate(horizons):
        rate = max((t + 1.0) ** -decay, min(20 / horizon, 0.2))
        share *= 1.0 - rate
        share[t] = rate
    number = 1.0 / (np.square(share) / pairs).sum()
    horizon, last = horizons[-1], iterations - 1
    progress = last / horizon
    cold = min(max(100 / dim**2, 0.001), 1.0)
    temperature = cold ** (1 - 2 * progress) if progress < 0.5 else 1.0
    coldness = 1 - 2 * progress if progress < 0.5 and cold < 1 else 0.0
    patience = 2 * progress - 1 if progress > 0.5 else 0.0
    cooling = (1 + np.cos(np.pi * progress)) / 2
    if not total:
        cooling *= 2000 / horizon
    new_mean, new_scale = np.zeros((2, dim))
    for i in range(dim):
        square, slope, response, noise = 0.0, 0.0, 0.0, 0.0
        drift = 0.0
        for t in range(iterations):
            for k in range(pairs):
                z = (theta[t, k, i] - theta[t, pairs + k, i]) / 2 / scale[i]
                y = (score[t, pairs + k, i] - score[t, k, i]) / 2 / scale[i]
                square += share[t] / pairs * z * z
                slope += share[t] / pairs * y * z
                response += share[t] / pairs * y * y
            center = score[t, :, i].mean()
            noise += share[t] * (center - drift) ** 2
            rate = max(min(max(100 / horizons[t], 0.1), 1.0), 1 / (t + 1))
            drift += rate * (center - drift)
        precision = scale[i] ** -2
        residual = max(response - slope**2 / square, 0.0) / max(1 - 1 / number, 1 / number)
        pull = temperature**2 * residual / precision**2 / number
        factor = (slope / (temperature * precision) + pull) / (square + pull)
        tolerated = 20 / 10**patience
        harm = 0.3 * noise / (temperature * precision) / tolerated
        length = 0.3 / (1 + harm * max(harm / 1e4, 1.0) ** (-coldness / 2))
        move = cooling * length * drift / (temperature * precision * max(factor, 1.0))
        new_mean[i] = mean[i] + min(max(move, -scale[i]), scale[i])
        step = min(20 / horizon, 0.5) / (1 + 10 * patience * pull)
        change = min(max(factor, 0.25), 4.0) ** step
        new_scale[i] = (precision * min(max(change, 1 / trust), trust)) ** -0.5
    return new_mean, new_scale


def diagonal_loss(mean: Array, scale: Array, target_mean: Array, target_covariance: Array) -> float:
    """Nats that a diagonal Normal loses against the best one.

    That one has the target's mean and the diagonal of its precision.
    """
    best = 1.0 / np.diag(np.linalg.inv(target_covariance))
    target = target_mean, target_covariance
    found = divergence(mean, np.diag(scale**2), *target)
    return found - divergence(target_mean, np.diag(best), *target)


def curve(seed: int) -> tuple[Array, Array]:
    """A hundred points (100, 1) and values (100,) of a bent curve with little noise."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, size=(100, 1))
    y = np.sin(2 * x[:, 0]) + 0.5 * x[:, 0]
    y = y + 0.1 * generator.normal(size=100)
    return x, (y - y.mean()) / y.std()
