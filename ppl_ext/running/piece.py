"""What the steps of a piece of a run have given."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Piece(NamedTuple):
    """Figures of some steps.

    Parameters
    ----------
    losses : array (steps,)
        NaN where a step was not finite.
    info : dict of str to array (steps,)
        Further figures, such as the force norm.
    skipped : int
        Steps that were not finite, of all so far.
    """

    losses: Float[np.ndarray, " steps"]
    info: dict[str, Float[np.ndarray, " steps"]]
    skipped: int = 0

    def latest(self) -> dict[str, float]:
        """Figures of the last step."""
        info = {name: float(values[-1]) for name, values in self.info.items()}
        return {"loss": float(self.losses[-1]), **info}


def joined(pieces: list[Piece]) -> Piece:
    """The figures of all steps in several pieces."""
    names = dict.fromkeys(name for piece in pieces for name in piece.info)
    info = {}
    for name in names:
        # A figure that a step did not give is NaN there.
        parts = [piece.info.get(name, np.full(len(piece.losses), np.nan)) for piece in pieces]
        info[name] = np.concatenate(parts)
    losses = np.concatenate([piece.losses for piece in pieces]) if pieces else np.zeros(0)
    return Piece(losses, info, pieces[-1].skipped if pieces else 0)
