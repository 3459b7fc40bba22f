"""Coordinates in which all else is standard Normal given a few hyperparameters.

Where the others lie given the hyperparameters, and how widely, is known at some places, and is
interpolated between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.interpolate import RBFInterpolator

from ppl_ext.chains.hamiltonian import Factor
from ppl_ext.start.start import Mode

#: Largest size of the logarithm of a factor's diagonal, beyond which it has no inverse any more:
#: where hyperparameters are far from all places.
FARTHEST = 30.0
#: What is added to the diagonal of correlations, which rounding may leave without a root.
RIDGE = 1e-6

Draws = Float[np.ndarray, "S D"]
Values = Float[np.ndarray, " S"]


@dataclass(frozen=True)
class Given:
    """A map from positions x (S, D) to those with the others standardised, and back.

    The others y = factorᵀ (x - center) are taken for Normal given the hyperparameters, with mean
    m and precision L Lᵀ, and become Lᵀ (y - m).

    Attributes
    ----------
    which : array (Q,)
        Coordinates of the hyperparameters.
    middle : array (Q,)
    scale : array (Q, Q)
        ``scale⁻¹ (x - middle)`` of the hyperparameters are of the places' units.
    center : array (R,)
    factor : array (R, R)
        Lower factor of a precision of the others: as it is in the middle.
    places : array (K, Q)
    means : array (K, R)
        The others' m at the places.
    factors : array (K, R (R + 1) / 2)
        Their L there, row by row, the logarithms of its diagonal.
    """

    which: np.ndarray
    middle: Float[np.ndarray, " Q"]
    scale: Float[np.ndarray, "Q Q"]
    center: Float[np.ndarray, " R"]
    factor: Float[np.ndarray, "R R"]
    places: Float[np.ndarray, "K Q"]
    means: Float[np.ndarray, "K R"]
    factors: Float[np.ndarray, "K T"]

    @np.errstate(all="ignore")
    def straight(self, positions: Draws) -> tuple[Draws, Values]:
        """Positions (S, D) with others standardised, and the log of the determinant (S,)."""
        means, factors, log_determinants = self.standardised(self.placed(positions))
        y = (positions[:, self.others] - self.center) @ self.factor - means
        found = positions.copy()
        found[:, self.others] = np.einsum("sr,srt->st", y, factors)
        return found, log_determinants + np.log(np.diag(self.factor)).sum()

    @np.errstate(all="ignore")
    def curved(self, straight: Draws) -> Draws:
        """The positions (S, D) of which these are the straight ones."""
        means, factors, _ = self.standardised(self.placed(straight))
        z = straight[:, self.others, None]
        y = means + np.linalg.solve(factors.swapaxes(1, 2), z)[:, :, 0]
        found = straight.copy()
        found[:, self.others] = self.center + np.linalg.solve(self.factor.T, y.T).T
        return found

    def at(self, places: Float[np.ndarray, "S Q"]) -> Draws:
        """Positions (S, D) where the others are at their means given hyperparameters."""
        straight = np.zeros((len(places), self._dim))
        straight[:, self.which] = self.middle + places @ self.scale.T
        return self.curved(straight)

    def widened(self, mode: Mode) -> Mode:
        """A Normal of the hyperparameters as one of all straight coordinates."""
        mean, factor = np.zeros(self._dim), np.eye(self._dim)
        mean[self.which] = mode.mean
        factor[np.ix_(self.which, self.which)] = mode.root
        return Mode(mean, factor, mode.log_mass, mode.spread)

    def root(self, draws: Float[np.ndarray, "S Q"], generator: np.random.Generator) -> Factor:
        """A root of the covariance (D, D) that positions have where hyperparameters have draws."""
        straight = generator.normal(size=(len(draws), self._dim))
        straight[:, self.which] = draws
        covariance = np.cov(self.curved(straight).T)
        deviations = np.sqrt(np.diag(covariance))
        # Far out some are many times wider than others: roots of correlations keep their digits.
        correlations = covariance / np.outer(deviations, deviations) + RIDGE * np.eye(self._dim)
        found: Factor = deviations[:, None] * np.linalg.cholesky(correlations)
        return found

    def placed(self, positions: Draws) -> Float[np.ndarray, "S Q"]:
        """Hyperparameters (S, Q) in the places' units."""
        found: Float[np.ndarray, "S Q"] = np.linalg.solve(
            self.scale, (positions[:, self.which] - self.middle).T
        ).T
        return found

    @property
    def _dim(self) -> int:
        return len(self.which) + len(self.center)

    @cached_property
    def others(self) -> np.ndarray:
        """Coordinates (R,) of all else."""
        return np.setdiff1d(np.arange(self._dim), self.which)

    @cached_property
    def _interpolated(self) -> RBFInterpolator:
        # The smoothest of all curves through the values, around a plane.
        values = np.concatenate([self.means, self.factors], axis=1)
        return RBFInterpolator(self.places, values, kernel="cubic", degree=1)

    def standardised(
        self, places: Float[np.ndarray, "S Q"]
    ) -> tuple[Float[np.ndarray, "S R"], Float[np.ndarray, "S R R"], Values]:
        """Means and factors of the others, and the logarithms of the factors' determinants."""
        size = len(self.center)
        rows, columns = np.tril_indices(size)
        means, entries = np.split(self._interpolated(places), [size], axis=1)
        factors = np.zeros((len(places), size, size))
        factors[:, rows, columns] = entries
        diagonal = np.arange(size)
        logs = np.clip(factors[:, diagonal, diagonal], -FARTHEST, FARTHEST)
        factors[:, diagonal, diagonal] = np.exp(logs)
        return means, factors, logs.sum(1)


def row_of(factors: Float[np.ndarray, "K R R"]) -> Float[np.ndarray, "K T"]:
    """Lower factors row by row, the logarithms of their diagonals, as :class:`Given` has them."""
    size = factors.shape[-1]
    diagonal = np.arange(size)
    logs = factors.copy()
    logs[:, diagonal, diagonal] = np.log(factors[:, diagonal, diagonal])
    rows, columns = np.tril_indices(size)
    found: Float[np.ndarray, "K T"] = logs[:, rows, columns]
    return found
