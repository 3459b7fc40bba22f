"""The closed-form step for low-rank guides as its module's docstring defines it, with NumPy.

Inverses, loops over rows, D x D matrices, and the weights of all iterations written out. Both
packages are compared with it. Also Normal targets, and the best Normal of low rank for one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from tests.regression_support import block_step, limited, weights

Array = NDArray[np.float64]


def covariance_of(scale: Array, factor: Array) -> Array:
    """S (I + W W^T) S."""
    inner = np.eye(len(scale)) + factor @ factor.T
    return np.diag(scale) @ inner @ np.diag(scale)


def coordinates(factor: Array) -> tuple[Array, Array]:
    """An orthonormal basis T (D, r) of the factor's columns and K (r, r), by Gram-Schmidt."""
    basis = np.zeros_like(factor)
    for k in range(factor.shape[1]):
        column = factor[:, k].copy()
        for j in range(k):
            column -= basis[:, j] * (basis[:, j] @ column)
        basis[:, k] = column / np.linalg.norm(column)
    spanned = basis.T @ factor
    root = np.linalg.cholesky(np.eye(len(spanned)) + spanned @ spanned.T)
    return basis, np.asarray(root, dtype=np.float64)


def literal_step(
    theta: Array,
    score: Array,
    mean: Array,
    scale: Array,
    factor: Array,
    decay: float,
    trust: float,
) -> tuple[Array, Array]:
    """Mean (D,) and covariance (D, D) of the next low-rank guide.

    ``theta`` and ``score`` are (iterations, 2 K, D), rows k and K + k mirrored, all drawn from the
    guide with this mean (D,), scale (D,) and factor (D, r).
    """
    iterations, points, dim = theta.shape
    pairs, rank = points // 2, factor.shape[1]
    basis, root = coordinates(factor)
    d = ((theta[:, :pairs] - theta[:, pairs:]) / 2).reshape(-1, dim)
    e = ((score[:, :pairs] - score[:, pairs:]) / 2).reshape(-1, dim)
    share = np.repeat(weights(iterations, decay) / pairs, pairs)
    number = 1.0 / np.square(share).sum()
    z, g = d / scale, e * scale
    y = z @ basis @ np.linalg.inv(root).T
    inner = g @ basis @ root
    moments = (a.T @ np.diag(share) @ b for a, b in ((y, y), (inner, y), (inner, inner)))
    block, block_pull, block_basis = block_step(*moments, number, trust)

    present = basis @ (np.eye(rank) - np.linalg.inv(root @ root.T)) @ root
    ratio, pull, coefficients = np.zeros(dim), np.zeros(dim), np.zeros((dim, rank))
    for i in range(dim):
        regressors = np.column_stack([z[:, i], y])
        gram = regressors.T @ np.diag(share) @ regressors
        moment = regressors.T @ (share * g[:, i])
        residual = g[:, i] - regressors @ np.linalg.solve(gram, moment)
        free = max(1.0 - (rank + 1) / number, 1.0 / number)
        noise = (share * np.square(residual)).sum() / free
        pull[i] = (rank + 1) * noise / number
        ridge = np.diag([pull[i]] + rank * [dim * noise / number])
        there = np.concatenate([[-1.0], present[i]])
        slope = np.linalg.solve(gram + ridge, moment + ridge @ there)
        ratio[i] = limited(-slope[0], (rank + 1) * noise, trust)
        # With the first coefficient where the trust region leaves it.
        rest = moment[1:] + ratio[i] * gram[1:, 0] + ridge[1:, 1:] @ there[1:]
        coefficients[i] = np.linalg.solve(gram[1:, 1:] + ridge[1:, 1:], rest)

    off = np.eye(dim) - basis @ basis.T
    turn = off @ (np.diag(ratio) @ basis @ root - coefficients)
    turn = turn * min(1.0, (1.0 - 1.0 / trust) / float(np.linalg.norm(turn, 2)))
    inverse = np.linalg.inv(root)
    known = basis @ inverse.T @ block @ inverse + turn @ inverse  # H T
    # Coordinates of the new scales: vectors stretch, H is divided on both sides.
    stretch = np.diag(np.sqrt(ratio))
    orthonormal = np.linalg.qr(stretch @ basis)[0]
    into = np.linalg.inv(orthonormal.T @ stretch @ basis)
    known = np.linalg.inv(stretch) @ known @ into
    inside = orthonormal.T @ known
    span = orthonormal @ orthonormal.T
    outside = (np.eye(dim) - span) @ known @ orthonormal.T
    precision = orthonormal @ (inside + inside.T) @ orthonormal.T / 2
    precision += outside + outside.T + trust * (np.eye(dim) - span)
    values, vectors = np.linalg.eigh(precision)
    values = np.clip(values[:rank], 0.0, 1.0 / 1.001)
    new_scale = scale / np.sqrt(ratio)
    covariance = covariance_of(new_scale, vectors[:, :rank] * np.sqrt(1.0 / values - 1.0))

    share = weights(iterations, decay**2)
    mean_theta = np.einsum("t,tsi->i", share, theta) / points
    mean_score = np.einsum("t,tsi->i", share, score) / points
    move = (mean_theta - mean + covariance @ mean_score) / scale
    inner = block_basis.T @ inverse @ basis.T @ move / (1.0 + block_pull)
    inner = block_basis @ inner / max(np.linalg.norm(inner), 1.0)
    outer = np.clip(off @ move / (1.0 + pull), -1.0, 1.0)
    return mean + scale * (basis @ root @ inner + outer), covariance


def example(dim: int, rank: int, trend: float) -> tuple[Array, ...]:
    """Points and scores (12, 4, dim) of two mirrored pairs each; a guide's mean, scale, factor."""
    generator = np.random.default_rng(dim)
    scale = np.exp(generator.uniform(-0.5, 0.5, dim))
    factor = generator.normal(size=(dim, rank))
    mean = 5.0 + generator.normal(size=dim) / 4
    noise = generator.normal(size=(12, 2, dim)) + generator.normal(size=(12, 2, rank)) @ factor.T
    theta = np.concatenate([mean + scale * noise, mean - scale * noise], axis=1)
    slope = trend * np.linalg.inv(covariance_of(scale, factor))
    slope = slope + generator.normal(size=(dim, dim)) / 20
    score = 0.2 - (theta - 5.1) @ slope + 0.1 * generator.normal(size=theta.shape)
    return theta, score, mean, scale, factor


def factor_target(dim: int, rank: int, seed: int) -> tuple[Array, Array]:
    """Mean and covariance of a low-rank Normal with different scales, away from the origin."""
    generator = np.random.default_rng(seed)
    scale = np.exp(generator.uniform(-1.5, 1.5, dim))
    factor = generator.normal(size=(dim, rank)) * np.linspace(0.5, 1.5, rank)
    return 3.0 + 2.0 * scale * generator.normal(size=dim), covariance_of(scale, factor)


def other_target(dim: int, seed: int) -> tuple[Array, Array]:
    """Mean and covariance of a Normal with three factors and a dense remainder."""
    generator = np.random.default_rng(seed)
    scale = np.exp(generator.uniform(-1.0, 1.0, dim))
    factor = generator.normal(size=(dim, 3)) * np.array([0.9, 0.6, 0.4])
    root = generator.normal(size=(dim, dim)) * scale[:, None]
    covariance = covariance_of(scale, factor) + 0.15 * root @ root.T / dim
    return 2.0 * generator.normal(size=dim), covariance


def least_divergence(covariance: Array, rank: int, tries: int = 4) -> float:
    """The smallest KL(q || target) of a low-rank Normal q, in nats: the best of many descents."""
    dim = len(covariance)
    precision = np.linalg.inv(covariance)
    volume = np.linalg.slogdet(covariance)[1]

    def divergence(flat: Array) -> tuple[float, Array]:
        scale, factor = np.exp(flat[:dim]), flat[dim:].reshape(dim, rank)
        found = covariance_of(scale, factor)
        loss = np.sum(precision * found) - dim + volume - np.linalg.slogdet(found)[1]
        slope = 0.5 * (precision - np.linalg.inv(found))
        by_scale = 2.0 * np.diag(slope @ found)
        by_factor = 2.0 * (scale[:, None] * slope * scale) @ factor
        return 0.5 * float(loss), np.concatenate([by_scale, by_factor.ravel()])

    generator = np.random.default_rng(0)
    start = -0.5 * np.log(np.diag(precision))
    options = {"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-14, "gtol": 1e-8}
    found = []
    for _ in range(tries):
        flat = np.concatenate([start, generator.normal(size=dim * rank)])
        found.append(minimize(divergence, flat, jac=True, method="L-BFGS-B", options=options).fun)
    return float(min(found))
