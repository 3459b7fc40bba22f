"""The closed-form step for matrix-normal guides as its module's docstring defines it, with NumPy.

Inverses and loops over pairs, rows and columns; the weights of all iterations are written out and
the covariance is a full one in the end. Both packages are compared with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.guides_support import divergence
from tests.regression_support import block_step, limited, mean_weights, weights

Array = NDArray[np.float64]

#: Sites of the models that both packages' tests fit, in the order of the flat vector: a vector,
#: a matrix with more rows than columns, another one, and a number.
SHAPES = {"b": (2,), "w": (4, 3), "v": (2, 3), "a": ()}
DIM = 2 + 12 + 6 + 1


class Guide(NamedTuple):
    """A mean (D,), standard deviations (3,) of the rest, and factors (A, B) of both matrices."""

    mean: Array
    scale: Array
    matrices: dict[str, tuple[Array, Array]]


def parts(flat: Array) -> tuple[dict[str, Array], Array]:
    """The matrices and the rest of a flat vector (D,)."""
    matrices = {"w": flat[2:14].reshape(4, 3), "v": flat[14:20].reshape(2, 3)}
    return matrices, flat[[0, 1, 20]]


def joined(matrices: dict[str, Array], rest: Array) -> Array:
    """Inverse of :func:`parts`."""
    return np.concatenate([rest[:2], matrices["w"].ravel(), matrices["v"].ravel(), rest[2:]])


def covariance(guide: Guide) -> Array:
    """The covariance (D, D) of the whole vector."""
    found = np.zeros((DIM, DIM))
    places = {"w": slice(2, 14), "v": slice(14, 20)}
    for name, (row, column) in guide.matrices.items():
        found[places[name], places[name]] = np.kron(row @ row.T, column @ column.T)
    found[[0, 1, 20], [0, 1, 20]] = guide.scale**2
    return found


def triangular(generator: np.random.Generator, size: int, scale: float = 1.0) -> Array:
    """A lower triangular matrix, positive on its diagonal and far from a multiple of one."""
    root = np.diag(np.linspace(0.7, 1.6, size)) + generator.normal(size=(size, size)) / 3
    factor = np.linalg.cholesky(root @ root.T + 0.1 * np.eye(size))
    return np.asarray(scale * factor, dtype=np.float64)


def example(trend: float) -> tuple[list[Guide], Array, Array]:
    """Guides of nine iterations, and points and scores (9, 4, D) of two mirrored pairs of each."""
    generator = np.random.default_rng(3)
    guides, points, scores = [], [], []
    target = {name: (triangular(generator, n), triangular(generator, p)) for name, n, p in SIZES}
    for _ in range(9):
        factors = {
            name: (triangular(generator, n, 0.5), triangular(generator, p, 2.0))
            for name, n, p in SIZES
        }
        mean = 5.0 + generator.normal(size=DIM) / 4
        guide = Guide(mean, generator.uniform(0.5, 1.5, size=3), factors)
        draws = generator.multivariate_normal(mean, covariance(guide), size=2)
        theta = np.concatenate([draws, 2 * mean - draws])
        score = []
        for point in theta:
            matrices, rest = parts(point - 5.5)
            pull = {
                name: target[name][0] @ target[name][0].T @ matrix @ target[name][1].T
                for name, matrix in matrices.items()
            }
            score.append(0.3 - trend * joined(pull, np.array([1.0, 2.0, 0.5]) * rest))
        guides.append(guide)
        points.append(theta)
        scores.append(score + 0.1 * generator.normal(size=theta.shape))
    return guides, np.array(points), np.array(scores)


SIZES = (("w", 4, 3), ("v", 2, 3))


def power(matrix: Array) -> float:
    """The geometric mean of the eigenvalues of a covariance."""
    return float(np.exp(np.log(np.linalg.eigvalsh(matrix)).mean()))


def literal_step(
    guides: list[Guide], theta: Array, score: Array, decay: float, trust: float, total: int
) -> tuple[Array, Array]:
    """Mean (D,) and covariance (D, D) of the next guide after the last one of ``guides``.

    ``theta`` and ``score`` are (iterations, 2 K, D), rows k and K + k mirrored.
    """
    iterations, points, _ = theta.shape
    pairs = points // 2
    share = weights(iterations, decay, [3.0] * iterations)
    mean_share = mean_weights(iterations, decay, total)
    number = 1.0 / (np.square(share) / pairs).sum()
    mean_theta = parts(np.einsum("t,tsi->i", mean_share, theta) / points)
    mean_score = parts(np.einsum("t,tsi->i", mean_share, score) / points)
    halves = [
        (
            t,
            share[t] / pairs,
            parts((theta[t, k] - theta[t, pairs + k]) / 2),
            parts((score[t, k] - score[t, pairs + k]) / 2),
        )
        for t in range(iterations)
        for k in range(pairs)
    ]
    last = guides[-1]
    old_means, old_rest = parts(last.mean)
    means, covariances = {}, {}
    for name, n, p in SIZES:
        row_moments, column_moments = np.zeros((3, n, n)), np.zeros((3, p, p))
        for t, weight, (d, _), (e, _) in halves:
            row, column = (factor @ factor.T for factor in guides[t].matrices[name])
            row, column = row / power(row), column / power(column)
            d_matrix, e_matrix = d[name], e[name]
            row_moments[0] += weight / p * d_matrix @ np.linalg.inv(column) @ d_matrix.T
            row_moments[1] += weight / p * e_matrix @ d_matrix.T
            row_moments[2] += weight / p * e_matrix @ column @ e_matrix.T
            column_moments[0] += weight / n * d_matrix.T @ np.linalg.inv(row) @ d_matrix
            column_moments[1] += weight / n * e_matrix.T @ d_matrix
            column_moments[2] += weight / n * e_matrix.T @ row @ e_matrix
        row_factor, column_factor = last.matrices[name]
        row_scale, column_scale = (
            power(factor @ factor.T) ** 0.5 for factor in last.matrices[name]
        )
        whole_row, whole_column = row_factor * column_scale, column_factor * row_scale
        shape_column = column_factor / column_scale
        row_next, row_pull, row_basis = regressed(row_moments, whole_row, number * p, trust)
        column_next, column_pull, column_basis = regressed(
            column_moments, whole_column, number * n, trust
        )
        column_next = column_next / power(column_next)
        move = np.linalg.inv(whole_row) @ (mean_theta[0][name] - old_means[name])
        move = move @ np.linalg.inv(shape_column.T)
        move = move + row_next @ whole_row.T @ mean_score[0][name] @ shape_column @ column_next
        move = row_basis.T @ move @ column_basis
        for i in range(n):
            for j in range(p):
                move[i, j] /= 1.0 + row_pull[i] + column_pull[j]
        move = row_basis @ move @ column_basis.T
        move = move / max(np.sqrt(np.square(move).sum()), 1.0)
        means[name] = old_means[name] + whole_row @ move @ shape_column.T
        covariances[name] = (
            whole_row @ row_next @ whole_row.T,
            shape_column @ column_next @ shape_column.T,
        )
    rest, variances = np.zeros(3), np.zeros(3)
    for i in range(3):
        scale = last.scale[i]
        spread = sum(weight * (d[1][i] / scale) ** 2 for _, weight, d, _ in halves)
        cross = sum(weight * d[1][i] * e[1][i] for _, weight, d, e in halves)
        square = sum(weight * (e[1][i] * scale) ** 2 for _, weight, _, e in halves)
        noise = max(square - cross**2 / spread, 0.0) / max(1.0 - 1.0 / number, 1.0 / number)
        precision = limited((noise / number - cross) / (spread + noise / number), noise, trust)
        step = (mean_theta[1][i] - old_rest[i]) / scale + scale * mean_score[1][i] / precision
        rest[i] = old_rest[i] + scale * np.clip(step / (1.0 + noise / number), -1.0, 1.0)
        variances[i] = scale**2 / precision
    roots = {
        name: tuple(np.linalg.cholesky(side) for side in pair) for name, pair in covariances.items()
    }
    result = Guide(joined(means, rest), np.sqrt(variances), roots)  # type: ignore[arg-type]
    return result.mean, covariance(result)


def regressed(
    moments: Array, factor: Array, number: float, trust: float
) -> tuple[Array, Array, Array]:
    """Next covariance relative to the present one, pulls, and the eigenbasis of the noise."""
    inverse = np.linalg.inv(factor)
    whitened = (
        inverse @ moments[0] @ inverse.T,
        factor.T @ moments[1] @ inverse.T,
        factor.T @ moments[2] @ factor,
    )
    precision, pull, basis = block_step(*whitened, number, trust)
    return np.linalg.inv(precision), pull, basis


class Posterior(NamedTuple):
    """A regression Y = X W + noise with correlated outputs, and its exact posterior.

    Row i of W (n, p) has the prior N(0, r_i V), r being ``prior_rows`` (n,), and each row of Y
    (N, p) the noise N(0, V). The posterior of W, row by row, is N(M, U (x) V) with
    U = (X^T X + diag(r)^-1)^-1 and M = U X^T Y: rows and columns are correlated, differently.
    """

    x: Array
    y: Array
    noise: Array
    prior_rows: Array
    mean: Array
    rows: Array

    def kl(self, mean: NDArray[Any], found: NDArray[Any]) -> float:
        """Nats that a Normal with this mean (n, p) and covariance (n p, n p) loses."""
        return divergence(mean.ravel(), found, self.mean.ravel(), np.kron(self.rows, self.noise))


def posterior(rows: int = 4, columns: int = 3, number: int = 12) -> Posterior:
    """A multi-output regression."""
    generator = np.random.default_rng(5)
    mixing = np.eye(rows) + 0.5 * np.tri(rows, k=-1)
    x = generator.normal(size=(number, rows)) @ mixing * np.linspace(0.5, 1.5, rows)
    factor = triangular(generator, columns)
    noise = factor @ factor.T
    prior_rows = np.linspace(1.0, 4.0, rows)
    y = x @ generator.normal(size=(rows, columns))
    y = y + generator.normal(size=(number, columns)) @ factor.T
    found = np.asarray(np.linalg.inv(x.T @ x + np.diag(1.0 / prior_rows)), dtype=np.float64)
    return Posterior(x, y, noise, prior_rows, found @ x.T @ y, found)


#: Mean and standard deviations of a vector that is no matrix.
VECTOR = np.array([1.0, -2.0]), np.array([0.3, 2.0])
