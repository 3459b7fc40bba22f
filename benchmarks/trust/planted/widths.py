"""Modes that differ in width: narrow ones, needles within others, ridges beside them.

What a search can find of them depends on the prior, which each problem names: the mixture itself,
or a wide Normal with the modes in the likelihood. *Reach* is the share of ascents from draws of the
prior that end in a mode; nobody who searches by ascents finds what has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.hosts import Host
from benchmarks.trust.pathology import Draws, Floats, Pathology
from ppl_ext.start.paths import side_by_side

#: Ascents that reach is the share of.
ASCENTS = 400
#: Squared distance from a mode's mean, in its own standard deviations and beside the dimensions,
#: within which an ascent has ended in it.
ENDED = 1.0
#: Modes of so small a share need not be found.
LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Mixture:
    """K Normals in D dimensions.

    Attributes
    ----------
    weights : array (K,)
    means : array (K, D)
    roots : array (K, D, D)
        Lower Cholesky factors of the covariances.
    prior : float or None
        Standard deviation of a Normal prior around 0; None where the mixture itself is the prior.
    """

    weights: Floats
    means: Floats
    roots: Floats
    prior: float | None = None

    def draw(self, number: int, rng: np.random.Generator) -> Floats:
        """Exact draws (number, D)."""
        chosen = rng.choice(len(self.weights), size=number, p=self.weights)
        noise = rng.normal(size=(number, self.means.shape[1]))
        found: Floats = self.means[chosen] + np.einsum("nij,nj->ni", self.roots[chosen], noise)
        return found

    def of_prior(self, number: int, rng: np.random.Generator) -> Floats:
        """Draws (number, D) of the prior."""
        if self.prior is None:
            return self.draw(number, rng)
        found: Floats = self.prior * rng.normal(size=(number, self.means.shape[1]))
        return found

    def whitened(self, z: Floats) -> Floats:
        """Positions (S, D) in standard deviations (S, K, D) of each component."""
        inverses = np.linalg.inv(self.roots)
        found: Floats = np.einsum("kij,skj->ski", inverses, z[:, None] - self.means)
        return found

    @property
    def log_tops(self) -> Floats:
        """Log density (K,) of each component at its mean, up to a constant of all."""
        found: Floats = np.log(self.weights) - np.linalg.slogdet(self.roots)[1]
        return found

    def evaluate(self, z: Floats) -> tuple[Floats, Floats]:
        """Log densities (S,) and scores (S, D)."""
        white = self.whitened(z)
        logs = self.log_tops - 0.5 * np.square(white).sum(-1)
        values = np.logaddexp.reduce(logs, axis=1)
        shares = np.exp(logs - values[:, None])
        pulls = np.einsum("kji,skj->ski", np.linalg.inv(self.roots), white)
        return values, -(shares[:, :, None] * pulls).sum(1)

    def reach(self, ascents: int = ASCENTS) -> Floats:
        """Share (K,) of ascents from draws of the prior that end in each mode."""
        starts = self.of_prior(ascents, np.random.default_rng(46))
        paths = side_by_side(self.evaluate, starts, *self.evaluate(starts), 1e-16)
        ends = np.stack([path.positions[-1] for path in paths])
        squares = np.square(self.whitened(ends)).sum(-1)
        near = squares < ENDED + self.means.shape[1]
        nearest = squares.argmin(1)
        found: Floats = np.array(
            [(near[:, k] & (nearest == k)).mean() for k in range(len(self.weights))]
        )
        return found

    def least_reach(self) -> float:
        """That of the mode that is reached least, of those that have to be found."""
        return float(self.reach()[self.weights >= LEAST_SHARE].min())


def planted(name: str, kind: str, mixture: Mixture) -> Pathology:
    """The problem whose posterior is a mixture."""
    dim = mixture.means.shape[1]
    inverses = np.linalg.inv(mixture.roots)

    def program(host: Host) -> None:
        means, tops = host.array(mixture.means), host.array(mixture.log_tops)
        if mixture.prior is None:
            parts = host.dist.MultivariateNormal(means, scale_tril=host.array(mixture.roots))
            shares = host.dist.Categorical(host.array(mixture.weights))
            host.sample("z", host.dist.MixtureSameFamily(shares, parts))
            return
        prior = host.dist.Normal(host.array(np.zeros(dim)), mixture.prior).to_event(1)
        z = host.sample("z", prior)
        white = (host.array(inverses) @ (z - means)[..., None])[..., 0]
        logs = tops - 0.5 * host.xp.square(white).sum(-1)
        host.factor("modes", host.log_sum_exp(logs) - prior.log_prob(z))

    def exact(number: int, rng: np.random.Generator) -> Draws:
        drawn: NDArray[np.float64] = mixture.draw(number, rng)
        return {"z": drawn}

    return Pathology(name, kind, dim, program, exact, reach=mixture.least_reach)


def narrow(
    dim: int, ratio: float, weight: float, apart: float = 8.0, prior: float | None = None
) -> Pathology:
    """A unit Normal around 0, and beside it one narrower by a ratio, which has this weight."""
    means = np.stack([np.zeros(dim), np.full(dim, apart / np.sqrt(dim))])
    roots = np.stack([np.eye(dim), ratio * np.eye(dim)])
    mixture = Mixture(np.array([1.0 - weight, weight]), means, roots, prior)
    of = "" if prior is None else f"-prior-{prior:g}"
    return planted(f"narrow-{dim}d-{ratio:g}-{weight:g}-{apart:g}sd{of}", "widths", mixture)


def needle(dim: int, width: float, weight: float, prior: float | None = None) -> Pathology:
    """A unit Normal, and within it one of very small width, a standard deviation off its middle."""
    means = np.stack([np.zeros(dim), np.full(dim, 1.0 / np.sqrt(dim))])
    roots = np.stack([np.eye(dim), width * np.eye(dim)])
    mixture = Mixture(np.array([1.0 - weight, weight]), means, roots, prior)
    of = "" if prior is None else f"-prior-{prior:g}"
    return planted(f"needle-{dim}d-{width:g}-{weight:g}{of}", "needle", mixture)


def ridge_and_mode(dim: int, prior: float | None = None) -> Pathology:
    """A ridge, a hundred times longer than wide, and a round mode beside it."""
    ridge = 0.05 * np.eye(dim)
    ridge[0, 0] = 5.0
    turned = np.linalg.qr(np.random.default_rng(7).normal(size=(dim, dim))).Q
    roots = np.stack([np.linalg.cholesky(turned @ ridge @ ridge @ turned.T), 0.5 * np.eye(dim)])
    means = np.stack([np.zeros(dim), 6.0 * turned[:, 1]])
    mixture = Mixture(np.array([0.6, 0.4]), means, roots, prior)
    of = "" if prior is None else f"-prior-{prior:g}"
    return planted(f"ridge-and-mode-{dim}d{of}", "widths", mixture)


PROBLEMS = (
    *(narrow(dim, ratio, 0.6) for dim in (2, 5, 10, 20) for ratio in (0.5, 0.25, 0.1)),
    *(narrow(5, ratio, weight) for ratio in (0.5, 0.25, 0.1) for weight in (0.1, 0.9)),
    *(narrow(dim, 0.5, 0.6, 16.0) for dim in (2, 5, 10)),
    *(narrow(dim, ratio, 0.6, prior=10.0) for dim in (2, 5) for ratio in (0.5, 0.25)),
    narrow(2, 0.5, 0.6, prior=30.0),
    *(needle(dim, 0.02, 0.4) for dim in (2, 3, 5)),
    *(needle(dim, 0.1, 0.4, prior=1.0) for dim in (2, 3, 5)),
    *(ridge_and_mode(dim, prior) for dim in (2, 5) for prior in (None, 5.0)),
)
