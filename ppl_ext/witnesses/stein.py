"""Stein's identities: what scores must be at draws of their own density.

C. Stein, "A bound for the error in the normal approximation" (1972). With scores s at draws z of a
density that is smooth and vanishes far out, E[s] = 0 and E[(z - c) s^T] = -I. Each costs one score
a draw, and each has an error that the draws themselves tell. A density with jumps does not keep
them, so that they are grounds for suspicion, which an exact kernel has to confirm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

#: Probability of suspicion of right draws, over all coordinates and both identities.
LEVEL = 1e-3
#: What the identities may be off: the mean score in units of 1 over the standard deviation, and
#: the diagonal of the second, which is 1 in size.
MEAN, DIAGONAL = 0.1, 0.2


@dataclass(frozen=True)
class Stein:
    """How far the identities are off.

    Attributes
    ----------
    mean : array (D,)
        Mean scores times the coordinates' standard deviations.
    mean_error : array (D,)
        Their standard errors.
    diagonal : array (D,)
        Means of (z - mean) s + 1.
    diagonal_error : array (D,)
    number : float
        Effective draws.
    names : sequence of str
        Of the coordinates.
    tolerances : tuple of float
        What the mean and the diagonal may be off.
    """

    mean: Float[np.ndarray, " D"]
    mean_error: Float[np.ndarray, " D"]
    diagonal: Float[np.ndarray, " D"]
    diagonal_error: Float[np.ndarray, " D"]
    number: float
    names: Sequence[str]
    tolerances: tuple[float, float] = (MEAN, DIAGONAL)

    @property
    def quantile(self) -> float:
        """Standard errors that chance allows a figure."""
        return -float(stdtrit(max(1.0, self.number - 1.0), LEVEL / (4 * len(self.mean))))

    @property
    def least_shift(self) -> float:
        """The shift of the mean, in standard deviations, that would be seen in any coordinate."""
        return float(np.hypot(self.tolerances[0], self.quantile * self.mean_error).max())

    def _shares(self) -> Float[np.ndarray, "2 D"]:
        """Each as a share of what chance and tolerance allow."""
        quantile = self.quantile
        allowed = (
            np.hypot(self.tolerances[0], quantile * self.mean_error),
            np.hypot(self.tolerances[1], quantile * self.diagonal_error),
        )
        return np.stack([np.abs(self.mean) / allowed[0], np.abs(self.diagonal) / allowed[1]])

    @property
    def is_off(self) -> bool:
        """Whether one is off by more than chance and tolerance allow."""
        return bool(not (self._shares() <= 1.0).all())

    @property
    def told(self) -> str:
        """The worst figure of each, with its error."""
        first, second = self._shares().argmax(1)
        return (
            f"Stein's identities, of slopes of the log density at the draws: the mean slope is "
            f"{self.mean[first]:+.2f} ± {self.mean_error[first]:.2f} in '{self.names[first]}' (0 "
            f"for right draws), the spread {1.0 - self.diagonal[second]:.2f} ± "
            f"{self.diagonal_error[second]:.2f} in '{self.names[second]}' (1 for right draws, less "
            "for narrow ones)."
        )


@np.errstate(all="ignore")
def stein_identities(
    positions: Float[np.ndarray, "S D"],
    scores: Float[np.ndarray, "S D"],
    names: Sequence[str],
    effective: float | None = None,
) -> Stein:
    """The identities at draws (S, D) with scores (S, D), worth ``effective`` independent ones."""
    number = float(len(positions)) if effective is None else effective
    scale = positions.std(0)
    units = scores * scale
    products = (positions - positions.mean(0)) * scores + 1.0
    return Stein(
        units.mean(0),
        units.std(0, ddof=1) / np.sqrt(number),
        products.mean(0),
        products.std(0, ddof=1) / np.sqrt(number),
        number,
        names,
    )
