"""Stein's identities: what scores must be at draws of their own density.

C. Stein, "A bound for the error in the normal approximation" (1972). With scores s at draws z of a
density that is smooth and vanishes far out, E[s] = 0 and E[(z - c) s^T] = -I. Each costs one score
a draw, and each has an error that the draws themselves tell. A density with jumps does not keep
them, so that they are grounds for suspicion, which an exact kernel has to confirm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

#: Probability of suspicion of right draws, over all coordinates and both identities.
LEVEL = 1e-3
#: What the identities may be off: the mean score in units of 1 over the standard deviation, and
#: the diagonal of the second, which is 1 in size.
MEAN, DIAGONAL = 0.1, 0.2
#: Of the identities along flows: share of a slope's variance that the flow takes away, from which
#: on they say more than those of the slope alone; dimensions up to which they are looked at; draws
#: for each coefficient; parts of the draws of which each gets the others' coefficients; and what
#: keeps a regression on almost equal columns finite.
EXPLAINED, FEW, DRAWS_EACH, FOLDS, RIDGE = 0.5, 64, 8, 4, 1e-3


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
    level : float
        Probability of suspicion of right draws.
    """

    mean: Float[np.ndarray, " D"]
    mean_error: Float[np.ndarray, " D"]
    diagonal: Float[np.ndarray, " D"]
    diagonal_error: Float[np.ndarray, " D"]
    number: float
    names: Sequence[str]
    tolerances: tuple[float, float] = (MEAN, DIAGONAL)
    level: float = LEVEL

    @property
    def quantile(self) -> float:
        """Standard errors that chance allows a figure."""
        # Two-sided, over D coordinates and both identities: 4 D tails.
        return -float(stdtrit(max(1.0, self.number - 1.0), self.level / (4 * len(self.mean))))

    @property
    def least_shift(self) -> float:
        """The shift of the mean, in standard deviations, that would be seen in any coordinate."""
        return float(np.hypot(self.tolerances[0], self.quantile * self.mean_error).max())

    def _shares(self) -> Float[np.ndarray, "2 D"]:
        """Each as a share of what chance and tolerance allow."""
        errors = np.stack([self.mean_error, self.diagonal_error])
        allowed = np.hypot(np.transpose([self.tolerances]), self.quantile * errors)
        return np.abs([self.mean, self.diagonal]) / allowed

    @property
    def is_off(self) -> bool:
        """Whether one is off by more than chance and tolerance allow."""
        # In this form a share that is not a number is off as well.
        return bool(not (self._shares() <= 1.0).all())

    @property
    def told(self) -> str:
        """The worst figure of each, with its error."""
        first, second = self._shares().argmax(1)
        return (
            "Stein's identities, which right draws obey: the mean slope of the log density is "
            f"{self.mean[first]:+.2f} ± {self.mean_error[first]:.2f} in '{self.names[first]}' (0 "
            f"for right draws), and the spread of the draws {1.0 - self.diagonal[second]:.2f} ± "
            f"{self.diagonal_error[second]:.2f} in '{self.names[second]}' (1 for right draws, less "
            "for draws that lie too close together)."
        )


@np.errstate(all="ignore")
def stein_identities(
    positions: Float[np.ndarray, "S D"],
    scores: Float[np.ndarray, "S D"],
    names: Sequence[str],
) -> Stein:
    """The identities at independent draws (S, D) with scores (S, D)."""
    number = float(len(positions))
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


@np.errstate(all="ignore")
def identities_along_flows(
    positions: Float[np.ndarray, "S D"],
    scores: Float[np.ndarray, "S D"],
    names: Sequence[str],
    coordinates: Mapping[str, slice],
) -> Stein | None:
    """The identities of coordinates that others follow, as the effects of a group follow its scale.

    The slope in a scale alone has the noise of all effects in it, whose size it answers to, and
    hides that the scale's draws are too narrow. Moving the scale and stretching the effects with
    it is a vector field as good as any other for Stein's identity, E[<v, s> + div v] = 0. How far
    to stretch and to shift each site, that of least variance tells: its coefficients are those of
    a regression of the slope on the identities of the sites' own stretches and shifts.

    Parameters
    ----------
    positions, scores : array (S, D)
    names : sequence of str
        Of the coordinates.
    coordinates : mapping of str to slice
        Range of each site.

    Returns
    -------
    Stein or None
        Of the coordinates where the field takes away most of the variance; None where there are
        none, or draws are too few for the dimensions.
    """
    number, dim = positions.shape
    if dim > FEW or number < DRAWS_EACH * 2 * len(coordinates):
        return None
    moves = positions - positions.mean(0)
    stretches = moves * scores + 1.0
    chosen, left = [], []
    for k in range(dim):
        columns = []
        for where in coordinates.values():
            # The coordinate's own direction is what is judged. It may not explain itself.
            if others := [j for j in range(where.start, where.stop) if j != k]:
                columns += [stretches[:, others].sum(1), scores[:, others].sum(1)]
        if not columns:
            continue
        along = _left_of(scores[:, k], np.stack(columns, 1))
        if along.var() < (1.0 - EXPLAINED) * scores[:, k].var():
            chosen.append(k)
            left.append(along)
    if not chosen:
        return None
    found = [names[k] for k in chosen]
    return stein_identities(positions[:, chosen], np.stack(left, 1), found)


def _left_of(
    slopes: Float[np.ndarray, " S"], fields: Float[np.ndarray, "S K"]
) -> Float[np.ndarray, " S"]:
    """Slopes less what fields of mean zero explain, by coefficients of other draws than these.

    With coefficients of the same draws the identities would be fitted, and one large draw would
    explain itself.
    """
    scale = np.maximum(fields.std(0), np.finfo(float).tiny)
    white, left = fields / scale, np.empty_like(slopes)
    fold = np.arange(len(slopes)) % FOLDS
    for number in range(FOLDS):
        own = fold == number
        others, wanted = white[~own], slopes[~own]
        moves = others - others.mean(0)
        normal = moves.T @ moves / len(moves) + RIDGE * np.eye(white.shape[1])
        coefficients = np.linalg.solve(normal, moves.T @ (wanted - wanted.mean()) / len(moves))
        left[own] = slopes[own] - white[own] @ coefficients
    return left
