"""What a search for a start returns: Normals near modes, with the mass that each stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

Vector = Float[np.ndarray, " D"]


@dataclass(frozen=True)
class Mode:
    """A Normal near a mode of a log density.

    Attributes
    ----------
    mean : array (D,)
    factor : array (D, D) or (D,)
        Lower Cholesky factor of the covariance; beyond some hundred dimensions the standard
        deviations of a diagonal one.
    log_mass : float
        Bound on the log of the mass near the mode, up to a constant of the density: mean over the
        Normal's draws of log density minus the Normal's log density.
    spread : float
        Standard deviation over draws of that difference, in nats: 0 where the density is the
        Normal, large where the Normal is a bad picture of it.
    """

    mean: Vector
    factor: Float[np.ndarray, "D D"] | Vector
    log_mass: float
    spread: float

    def at(self, noise: Float[np.ndarray, "S D"]) -> Float[np.ndarray, "S D"]:
        """Draws (S, D) from standard Normal ones."""
        if self.factor.ndim == 1:
            return self.mean + noise * self.factor
        return self.mean + noise @ self.factor.T

    def whitened(self, points: Float[np.ndarray, "*S D"]) -> Float[np.ndarray, "*S D"]:
        """Points in standard deviations from the mean."""
        difference = points - self.mean
        if self.factor.ndim == 1:
            return difference / self.factor
        return np.linalg.solve(self.factor, difference.T).T

    @property
    def log_top(self) -> float:
        """Log density at the mean, of the Normal with its mass."""
        return self.log_mass - self.log_scale - 0.5 * len(self.mean) * math.log(2.0 * math.pi)

    @property
    def root(self) -> Float[np.ndarray, "D D"]:
        """The factor as a matrix."""
        return np.diag(self.factor) if self.factor.ndim == 1 else self.factor

    def low_rank(self, rank: int) -> tuple[Vector, Float[np.ndarray, "D rank"]]:
        """S (D,) and W (D, rank) of a near covariance S (I + W W^T) S; W may have zero columns."""
        scale, factor = self.conditional_deviations, np.zeros((len(self.mean), rank))
        if self.factor.ndim == 2:
            white = self.factor / scale[:, None]
            # What a unit diagonal leaves of the covariance: its largest eigenvalues are W's
            # columns.
            values, vectors = np.linalg.eigh(white @ white.T - np.eye(len(scale)))
            chosen = np.argsort(values)[::-1][:rank]
            factor[:, : len(chosen)] = vectors[:, chosen] * np.sqrt(np.maximum(values[chosen], 0.0))
        return scale, factor

    @property
    def log_scale(self) -> float:
        """Log determinant of the factor."""
        diagonal = self.factor if self.factor.ndim == 1 else np.diag(self.factor)
        return float(np.log(diagonal).sum())

    @property
    def deviations(self) -> Vector:
        """Standard deviations (D,)."""
        return self.factor if self.factor.ndim == 1 else np.linalg.norm(self.factor, axis=1)

    @property
    def conditional_deviations(self) -> Vector:
        """Standard deviations (D,) of each coordinate given the others."""
        if self.factor.ndim == 1:
            return self.factor
        return 1.0 / np.linalg.norm(np.linalg.inv(self.factor), axis=0)


@dataclass(frozen=True)
class Start:
    """Where a run may start, on the flat unconstrained space of D numbers.

    Attributes
    ----------
    modes : tuple of Mode
        Separate modes that were found, the one of most mass first.
    evaluations : int
        Evaluations of the log density or its score that the search took.
    sites : dict of str to int
        Latent sites of the model, in order, and how many of the D numbers each has, where they are
        known.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_ext.start.start import Mode
    >>> start = Start((Mode(np.zeros(2), np.eye(2), 0.0, 0.0),), evaluations=100)
    >>> start.draw(5).shape
    (5, 2)
    """

    modes: tuple[Mode, ...]
    evaluations: int
    sites: Mapping[str, int] = field(default_factory=dict)

    @property
    def mean(self) -> Vector:
        """Mean (D,) of the first mode's Normal."""
        return self.modes[0].mean

    @property
    def factor(self) -> Float[np.ndarray, "D D"] | Vector:
        """Root of its covariance; see :class:`Mode`."""
        return self.modes[0].factor

    @property
    def weights(self) -> Float[np.ndarray, " modes"]:
        """Estimated shares of the modes in the mass that was found."""
        masses = np.array([mode.log_mass for mode in self.modes])
        if not np.isfinite(masses).any():
            return np.full(len(masses), 1.0 / len(masses))
        shares = np.exp(masses - masses.max())
        return shares / shares.sum()

    def draw(self, number: int, seed: int | Sequence[int] = 0) -> Float[np.ndarray, "number D"]:
        """Points (number, D) from the modes' Normals, as many of each as its share."""
        generator = np.random.default_rng(seed)
        # Systematic sampling: the numbers of each mode differ from its share by less than one.
        which = np.searchsorted(np.cumsum(self.weights), (np.arange(number) + 0.5) / number)
        noise = generator.normal(size=(number, len(self.mean)))
        drawn = np.empty_like(noise)
        for i, mode in enumerate(self.modes):
            drawn[which == i] = mode.at(noise[which == i])
        return generator.permutation(drawn)
