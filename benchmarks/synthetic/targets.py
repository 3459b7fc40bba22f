"""Targets of the synthetic experiments and the distances of a fit to them, in NumPy.

Targets and fits are both mixtures of Normals (a single Normal is a mixture of one), with known
normalising constants, so that every divergence has a closed form or a plain Monte Carlo estimate.
Nothing here knows a backend: both hand their fits over as :class:`Mixture`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

#: The 0.3 of the generator's N(0, 0.3), read as a variance.
SPREAD = 0.3


class Estimate(NamedTuple):
    """A Monte Carlo mean and its standard error; the error of a closed form is 0."""

    value: float
    error: float


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Mixture of K Normals over vectors of length D.

    Parameters
    ----------
    weights : array (K,)
        Positive, summing to 1.
    means : array (K, D)
    scale_trils : array (K, D, D)
        Lower triangular Cholesky factors of the covariances.
    """

    weights: Array
    means: Array
    scale_trils: Array

    @property
    def order(self) -> int:
        """Number K of components."""
        return len(self.weights)

    @property
    def dim(self) -> int:
        """Length D of the vectors."""
        return self.means.shape[1]

    @property
    def covariances(self) -> Array:
        """Covariances of the components (K, D, D)."""
        return self.scale_trils @ np.swapaxes(self.scale_trils, 1, 2)

    @property
    def whitening(self) -> Array:
        """Inverses of ``scale_trils`` (K, D, D), which map each component to N(0, I)."""
        return np.linalg.inv(self.scale_trils)

    @property
    def log_factors(self) -> Array:
        """Logarithms of weight / sqrt(det(2 pi covariance)), (K,)."""
        diagonals = np.diagonal(self.scale_trils, axis1=1, axis2=2)
        constant = 0.5 * self.dim * math.log(2.0 * math.pi)
        with np.errstate(divide="ignore"):
            return np.log(self.weights) - np.log(diagonals).sum(1) - constant

    def is_finite(self) -> bool:
        """Whether every number is finite and every scale is positive."""
        arrays = (self.weights, self.means, self.scale_trils)
        diagonals = np.diagonal(self.scale_trils, axis1=1, axis2=2)
        return all(np.isfinite(array).all() for array in arrays) and bool((diagonals > 0).all())

    def _joint(self, points: Array) -> tuple[Array, Array]:
        """Log of weight times density (N, K), and whitened points (K, N, D)."""
        centred = points[None, :, :] - self.means[:, None, :]
        standard = centred @ np.swapaxes(self.whitening, 1, 2)
        return self.log_factors - 0.5 * np.square(standard).sum(-1).T, standard

    def log_density(self, points: Array) -> Array:
        """Log density at points (N, D), shape (N,)."""
        joint, _ = self._joint(points)
        return np.logaddexp.reduce(joint, axis=1)

    def score(self, points: Array) -> Array:
        """Gradient of the log density at points (N, D)."""
        joint, standard = self._joint(points)
        shares = np.exp(joint - np.logaddexp.reduce(joint, axis=1)[:, None])
        pulls = -standard @ self.whitening
        return np.asarray(np.einsum("nk,knd->nd", shares, pulls))

    def sample(self, number: int, generator: np.random.Generator) -> Array:
        """Draws (number, D)."""
        chosen = generator.choice(self.order, size=number, p=self.weights)
        noise = generator.normal(size=(number, self.dim))
        return self.means[chosen] + np.einsum("nij,nj->ni", self.scale_trils[chosen], noise)

    def matched_normal(self) -> Mixture:
        """The Normal of the same mean and covariance: of all Normals that of least forward KL."""
        mean = self.weights @ self.means
        apart = self.means - mean
        covariance = np.einsum("k,kij->ij", self.weights, self.covariances)
        covariance += np.einsum("k,ki,kj->ij", self.weights, apart, apart)
        return normal(mean, covariance)


def normal(mean: Array, covariance: Array) -> Mixture:
    """One Normal as a mixture of one."""
    return Mixture(np.ones(1), mean[None], np.linalg.cholesky(covariance)[None])


def random_covariance(dim: int, generator: np.random.Generator, spread: float = SPREAD) -> Array:
    """Covariance I + a X X^T with standard normal X (D, D) and a ~ N(0, ``spread``), a variance.

    X and a are drawn again until the covariance is positive definite.
    """
    while True:
        factor = generator.normal(size=(dim, dim))
        covariance = np.eye(dim) + generator.normal(0.0, math.sqrt(spread)) * factor @ factor.T
        if np.linalg.eigvalsh(covariance)[0] > 0.0:
            return np.asarray(covariance)


def random_mixture(
    order: int, dim: int, generator: np.random.Generator, spread: float = SPREAD
) -> Mixture:
    """Target of appendix C of M. Kim, "Large-scale Score-based Variational Posterior Inference".

    Means are standard normal, covariances those of :func:`random_covariance`, and the weights the
    softmax of 1 + b with b ~ N(0, ``spread``). The paper writes N(0, 0.3) without saying whether
    0.3 is a variance or a standard deviation; it is read as a variance, since the paper writes
    N(m, V) with the covariance V.
    """
    means = generator.normal(size=(order, dim))
    covariances = np.stack([random_covariance(dim, generator, spread) for _ in range(order)])
    logits = 1.0 + generator.normal(0.0, math.sqrt(spread), size=order)
    weights = np.exp(logits - np.logaddexp.reduce(logits))
    return Mixture(weights, means, np.linalg.cholesky(covariances))


def normal_divergence(first: Mixture, second: Mixture) -> float:
    """KL(first || second) of two Normals, in closed form."""
    if first.order != 1 or second.order != 1:
        raise ValueError(
            f"expected two Normals, found mixtures of {first.order} and {second.order}; "
            "use divergence, which estimates"
        )
    whitening = second.whitening[0]
    ratio = whitening @ first.scale_trils[0]
    shift = whitening @ (second.means[0] - first.means[0])
    # Summed so that close Normals give a small number and not the difference of large ones.
    eigenvalues = np.square(np.linalg.svd(ratio, compute_uv=False))
    with np.errstate(divide="ignore"):
        spread = (eigenvalues - 1.0) - np.log1p(eigenvalues - 1.0)
    return float(0.5 * (spread.sum() + shift @ shift))


def divergence(first: Mixture, second: Mixture, draws: Array) -> Estimate:
    """KL(first || second), exactly for two Normals and else by ``draws`` (N, D) of ``first``."""
    if first.order == second.order == 1:
        return Estimate(normal_divergence(first, second), 0.0)
    differences = first.log_density(draws) - second.log_density(draws)
    return Estimate(
        float(differences.mean()), float(differences.std(ddof=1) / math.sqrt(len(draws)))
    )


def reverse_divergence(fit: Mixture, target: Mixture, noise: Array) -> Estimate:
    """KL(fit || target), which is the negative ELBO since the target is normalised.

    ``noise`` (N, D) are standard normal draws, the same for all Normals that are compared, so
    that most of the Monte Carlo error cancels in their differences. A fit of several components
    has draws of its own.
    """
    if fit.order == 1:
        return divergence(fit, target, fit.means[0] + noise @ fit.scale_trils[0].T)
    return divergence(fit, target, fit.sample(len(noise), np.random.default_rng(0)))


def parameter_error(fit: Mixture, target: Mixture) -> float:
    """Euclidean distance of (mean, covariance) of two Normals."""
    mean = fit.means[0] - target.means[0]
    covariance = fit.covariances[0] - target.covariances[0]
    return float(math.sqrt(np.square(mean).sum() + np.square(covariance).sum()))


def best_normal(target: Mixture, noise: Array) -> Mixture:
    """The Normal of least reverse KL to the target, that is of the highest ELBO.

    A Normal target is its own. For others the ELBO at fixed standard normal draws ``noise``
    (N, D) is maximised by L-BFGS from every component and from the matched Normal.
    """
    if target.order == 1:
        return target
    from scipy.optimize import minimize

    dim = target.dim
    rows, columns = np.tril_indices(dim, -1)

    def unpack(vector: Array) -> tuple[Array, Array]:
        scale_tril = np.diag(np.exp(vector[dim : 2 * dim]))
        scale_tril[rows, columns] = vector[2 * dim :]
        return vector[:dim], scale_tril

    def objective(vector: Array) -> tuple[float, Array]:
        mean, scale_tril = unpack(vector)
        points = mean + noise @ scale_tril.T
        scores = target.score(points)
        value = -vector[dim : 2 * dim].sum() - target.log_density(points).mean()
        in_scale = -scores.T @ noise / len(noise)
        in_log_diagonal = np.diagonal(in_scale) * np.exp(vector[dim : 2 * dim]) - 1.0
        gradient = np.concatenate([-scores.mean(0), in_log_diagonal, in_scale[rows, columns]])
        return float(value), gradient

    starts = [
        Mixture(np.ones(1), target.means[k : k + 1], target.scale_trils[k : k + 1])
        for k in range(target.order)
    ]
    found = []
    for start in [*starts, target.matched_normal()]:
        scale_tril = start.scale_trils[0]
        vector = np.concatenate(
            [start.means[0], np.log(np.diagonal(scale_tril)), scale_tril[rows, columns]]
        )
        found.append(minimize(objective, vector, jac=True, method="L-BFGS-B"))
    mean, scale_tril = unpack(min(found, key=lambda result: float(result.fun)).x)
    return Mixture(np.ones(1), mean[None], scale_tril[None])
