"""Stein's identities by a sample of the rows, where there is no time for all of them.

The score of a batch of rows that is scaled up is that of all rows but for an error, which the
differences between parts of the batch tell. Spreads of draws are seen by few rows: curvature is a
mean over rows. Means are not: of n of N rows, the mean score is off as by a shift of sqrt(N / n)
standard deviations, so that how large a shift would be seen has to be said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ppl_ext.start.paths import Evaluate
from ppl_ext.witnesses.stein import DIAGONAL, MEAN, Stein, stein_identities


@dataclass(frozen=True)
class Sampled:
    """The identities by a sample of the rows.

    Attributes
    ----------
    stein : Stein
        Of the draws, with errors of draws and rows.
    rows, parts : int
        Rows of the sample, and parts of it that were compared.
    """

    stein: Stein
    rows: int
    parts: int

    @property
    def is_off(self) -> bool:
        """Whether one is off by more than chance and tolerance allow."""
        return self.stein.is_off

    @property
    def told(self) -> str:
        """The figures, and what they cannot see."""
        return (
            f"By {self.rows:,} rows, in {self.parts} parts whose differences tell the error: "
            f"{self.stein.told} So many rows show wrong spreads; "
            f"shifts of less than {self.stein.least_shift:.2g} sd take all rows."
        )


@np.errstate(all="ignore")
def sampled_identities(
    positions: Float[np.ndarray, "S D"],
    parts: Sequence[Evaluate],
    rows: int,
    names: Sequence[str],
    tolerances: tuple[float, float] = (MEAN, DIAGONAL),
) -> Sampled | None:
    """The identities at draws (S, D), by parts of a batch of so many rows.

    Parameters
    ----------
    positions : array (S, D)
    parts : sequence of callable
        Log densities and scores with each part, scaled up to all rows.
    rows : int
    names : sequence of str
        Of the coordinates.
    tolerances : tuple of float
        What the identities may be off.

    Returns
    -------
    Sampled or None
        None where scores are not finite.
    """
    each, total = [], np.zeros_like(positions)
    for evaluate in parts:
        scores = evaluate(positions)[1]
        if not np.isfinite(scores).all():
            return None
        each.append(stein_identities(positions, scores, names))
        total += scores
    whole = stein_identities(positions, total / len(parts), names)

    def error(of_draws: np.ndarray, of_parts: list[np.ndarray]) -> np.ndarray:
        return np.hypot(of_draws, np.std(of_parts, axis=0, ddof=1) / np.sqrt(len(parts)))

    found = Stein(
        whole.mean,
        error(whole.mean_error, [one.mean for one in each]),
        whole.diagonal,
        error(whole.diagonal_error, [one.diagonal for one in each]),
        # The error between parts has few degrees of freedom, which bound those of Student's t.
        min(whole.number, float(len(parts))),
        names,
        tolerances,
    )
    return Sampled(found, rows, len(parts))
