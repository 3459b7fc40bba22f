"""The closed-form step for mixtures as its module's docstring defines it, with NumPy.

Inverses and loops over components and pairs; the linearised scores are differences of the scores
of guides that are nearly the same. Both packages are compared with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Components, coordinates and pairs from each component in an iteration of the examples.
NUMBER, DIM, PAIRS = 3, 3, 2
TOTAL = 1000


class Mixture(NamedTuple):
    """Logarithms of weights (K,), means (K, D) and Cholesky factors (K, D, D)."""

    logits: Array
    loc: Array
    scale_tril: Array

    @property
    def weights(self) -> Array:
        """Weights (K,)."""
        return np.exp(self.logits) / np.exp(self.logits).sum()

    @property
    def covariances(self) -> Array:
        """Covariances (K, D, D)."""
        return self.scale_tril @ self.scale_tril.transpose(0, 2, 1)


class Seen(NamedTuple):
    """What the step knows of earlier iterations."""

    num_updates: int
    cost: Array
    value_square: Array
    residual: float


def joint(mixture: Mixture, theta: Array) -> Array:
    """Logarithms of weight times density (N, K) at theta (N, D)."""
    found = np.zeros((len(theta), len(mixture.logits)))
    for k, covariance in enumerate(mixture.covariances):
        apart = theta - mixture.loc[k]
        square = (apart @ np.linalg.inv(covariance) * apart).sum(1)
        volume = np.linalg.slogdet(2.0 * np.pi * covariance)[1]
        found[:, k] = np.log(mixture.weights[k]) - 0.5 * (square + volume)
    return found


def log_density(mixture: Mixture, theta: Array) -> Array:
    """Log density (N,) at theta (N, D)."""
    return np.asarray(np.logaddexp.reduce(joint(mixture, theta), axis=1))


def score(mixture: Mixture, theta: Array) -> Array:
    """Its gradient (N, D)."""
    share = np.exp(joint(mixture, theta) - log_density(mixture, theta)[:, None])
    found = np.zeros_like(theta)
    for k, covariance in enumerate(mixture.covariances):
        found += share[:, k, None] * ((mixture.loc[k] - theta) @ np.linalg.inv(covariance))
    return found


def changed(mixture: Mixture, v: Array, a: Array, b: Array) -> Mixture:
    """The mixture after a step (K,), (K, D) and (K, D, D), in units of the components."""
    loc, roots = mixture.loc.copy(), mixture.scale_tril.copy()
    for k, root in enumerate(mixture.scale_tril):
        loc[k] += root @ a[k]
        inverse = np.linalg.inv(root)
        precision = inverse.T @ (np.eye(len(root)) + 0.5 * (b[k] + b[k].T)) @ inverse
        roots[k] = np.linalg.cholesky(np.linalg.inv(precision))
    return Mixture(mixture.logits + v, loc, roots)


def search_step(mixture: Mixture, residual: Array, theta: Array) -> tuple[Array, Array, Array]:
    """The natural-gradient step; ``residual`` (N, D) is L^T grad f."""
    number, dim = mixture.loc.shape
    half = len(theta) // 2
    a, b = np.zeros((number, dim)), np.zeros((number, dim, dim))
    for n in range(half):
        k = n % number
        z = np.linalg.inv(mixture.scale_tril[k]) @ (theta[n] - mixture.loc[k])
        e = 0.5 * (residual[n] - residual[n + half])
        a[k] += 0.3 * 0.5 * (residual[n] + residual[n + half]) / (half / number)
        # The least symmetric solution of A z = e, by least squares over the entries of A.
        rows, columns = np.tril_indices(dim)
        basis = np.zeros((len(rows), dim, dim))
        for entry, (i, j) in enumerate(zip(rows, columns, strict=True)):
            # Of Frobenius norm one, so that the least coefficients make the least matrix.
            basis[entry, i, j] = basis[entry, j, i] = 1.0 if i == j else 0.5**0.5
        coefficients = np.linalg.lstsq((basis @ z).T, e, rcond=None)[0]
        b[k] -= 0.3 * np.tensordot(coefficients, basis, 1) / (half / number)
    return np.zeros(number), a, b


def match_step(
    mixture: Mixture, residual: Array, theta: Array, noise: float
) -> tuple[Array, Array, Array]:
    """The damped least change that matches the scores."""
    number, dim = mixture.loc.shape
    sizes = number, number * dim, number * dim * dim
    shapes = (number,), (number, dim), (number, dim, dim)

    def parts(x: Array) -> list[Array]:
        pieces = np.split(x, np.cumsum(sizes)[:-1])
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]

    def scores(x: Array) -> Array:
        # Weights that no longer sum to 1 have the same score.
        found = score(changed(mixture, *parts(x)), theta)
        roots = mixture.scale_tril[np.arange(len(theta)) % number]
        return np.einsum("nji,nj->ni", roots, found).ravel()

    step, columns = 1e-5, []
    for x in np.eye(sum(sizes)):
        columns.append((scores(step * x) - scores(-step * x)) / (2.0 * step))
    slope = np.stack(columns, axis=1)
    products = slope @ slope.T
    damping = 0.001 * np.diagonal(products).mean() + noise
    multiplier = np.linalg.solve(products + damping * np.eye(len(products)), residual.ravel())
    v, a, b = parts(slope.T @ multiplier)
    return np.clip(v, -0.5, 0.5), a, b


def update(
    mixture: Mixture, seen: Seen, theta: Array, scores: Array, values: Array, trust: float
) -> tuple[Mixture, Seen]:
    """One iteration, from the target's scores (N, D) and log densities (N,) at theta (N, D)."""
    number = len(mixture.logits)
    own = np.arange(len(theta)) % number
    residual = np.zeros_like(theta)
    for n, gap in enumerate(scores - score(mixture, theta)):
        residual[n] = mixture.scale_tril[own[n]].T @ gap
    progress = seen.num_updates / TOTAL
    if progress < 0.5:
        falling, reach = 1.0, 3.0 if progress < 0.25 else 0.3
        v, a, b = search_step(mixture, residual, theta)
    else:
        falling, reach = 0.5 * (1.0 + np.cos(np.pi * (2.0 * progress - 1.0))), 0.3
        v, a, b = match_step(mixture, residual, theta, seen.residual)
    f = values - log_density(mixture, theta)
    of_components = np.array([f[own == k].mean() for k in range(number)])
    of_components -= mixture.weights @ of_components
    rate = 0.1 / np.sqrt(1.0 + seen.value_square)
    v = falling * (v + np.clip(rate * of_components, -0.1, 0.1))
    a, b = falling * a, falling * b
    for k in range(number):
        length = np.linalg.norm(a[k])
        a[k] /= max(length / np.clip(0.01 * length, 0.3, reach), 1.0)
        eigenvalues, vectors = np.linalg.eigh(np.eye(len(b[k])) + b[k])
        limited = np.clip(eigenvalues, 1.0 / trust, trust)
        b[k] = (vectors * limited) @ vectors.T - np.eye(len(b[k]))
    cost = seen.cost + 4.0 / 50 * (costs(mixture, theta) - seen.cost)
    after = Seen(
        seen.num_updates + 1,
        cost,
        seen.value_square + 0.1 * (of_components**2 - seen.value_square),
        seen.residual + 0.1 * float((residual**2).mean() - seen.residual),
    )
    return changed(mixture, v, a, b), after


def costs(mixture: Mixture, theta: Array) -> Array:
    """w_k E_k[log q - log q without k], (K,)."""
    number = len(mixture.logits)
    found = np.zeros(number)
    for k in range(number):
        own = theta[np.arange(len(theta)) % number == k]
        others = np.arange(number) != k
        rest = Mixture(*(entry[others] for entry in mixture))
        gap = log_density(mixture, own) - log_density(rest, own)
        found[k] = mixture.weights[k] * gap.mean()
    return found


def example(seed: int) -> tuple[Mixture, Array, Array, Array]:
    """A guide, draws from its components, and scores and log densities of another mixture there."""
    generator = np.random.default_rng(seed)
    guide, target = (random_mixture(generator, NUMBER, DIM) for _ in range(2))
    noise = generator.normal(size=(PAIRS, NUMBER, DIM))
    apart = np.einsum("kij,pkj->pki", guide.scale_tril, noise)
    theta = np.concatenate([guide.loc + apart, guide.loc - apart]).reshape(-1, DIM)
    return guide, theta, score(target, theta), log_density(target, theta) + 7.0


def random_mixture(generator: np.random.Generator, number: int, dim: int) -> Mixture:
    """A mixture whose components overlap."""
    roots = np.eye(dim) + 0.4 * generator.normal(size=(number, dim, dim))
    covariances = roots @ roots.transpose(0, 2, 1) + 0.2 * np.eye(dim)
    return Mixture(
        generator.normal(size=number),
        generator.normal(size=(number, dim)),
        np.asarray(np.linalg.cholesky(covariances), np.float64),
    )


#: A target with two modes that hardly overlap, of unlike weights, widths and correlations.
TWO_MODES = Mixture(
    np.log(np.array([0.3, 0.7])),
    np.array([[2.5, 0.0, 0.5, 0.0], [-2.0, 0.5, 0.0, 0.5]]),
    np.array(
        [
            [[0.6, 0, 0, 0], [0.3, 0.8, 0, 0], [0, -0.2, 0.7, 0], [0.1, 0, 0.3, 0.9]],
            [[0.9, 0, 0, 0], [-0.6, 0.8, 0, 0], [0, 0.5, 1.2, 0], [0, 0, 0.4, 0.7]],
        ]
    ),
)


def in_order(logits: Any, loc: Any, scale_tril: Any) -> Mixture:
    """The mixture with the components in the order of :data:`TWO_MODES`."""
    arrays = [np.asarray(entry, np.float64) for entry in (logits, loc, scale_tril)]
    order = np.argsort(-arrays[1][:, 0])
    return Mixture(*(entry[order] for entry in arrays))
