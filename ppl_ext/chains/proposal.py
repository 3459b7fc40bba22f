"""A proposal from the Normals that a search found: draws and their density, with heavier tails."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import solve_triangular
from scipy.special import gammaln, logsumexp

from ppl_ext.start.start import Mode

#: Share of a component's draws that come from a Student t distribution in place of its Normal,
#: and that distribution's degrees of freedom: ratios to a target with heavier tails stay bounded
#: for longer.
TAILS, FREEDOM = 0.2, 5.0

Draws = Float[np.ndarray, "S D"]


@dataclass(frozen=True)
class Proposal:
    """A mixture of Normals, each with a Student t distribution of its mean and scale beside it.

    Parameters
    ----------
    modes : tuple of Mode
    weights : array (modes,)
    """

    modes: tuple[Mode, ...]
    weights: Float[np.ndarray, " modes"]

    def draw(self, number: int, generator: np.random.Generator) -> Draws:
        """Independent draws (number, D)."""
        noise = generator.normal(size=(number, len(self.modes[0].mean)))
        heavy = generator.uniform(size=number) < TAILS
        shrink = np.sqrt(generator.chisquare(FREEDOM, number) / FREEDOM)
        noise = noise / np.where(heavy, shrink, 1.0)[:, None]
        which = generator.choice(len(self.modes), size=number, p=self.weights)
        drawn = np.empty_like(noise)
        for number_of_mode, mode in enumerate(self.modes):
            drawn[which == number_of_mode] = mode.at(noise[which == number_of_mode])
        return drawn

    def log_density(self, positions: Draws) -> Float[np.ndarray, " S"]:
        """Log densities (S,) at positions."""
        parts = [
            math.log(weight) + _log_component(mode, positions)
            for mode, weight in zip(self.modes, self.weights, strict=True)
            if weight > 0.0
        ]
        return logsumexp(parts, axis=0)

    def nearest(self, positions: Draws) -> Int[np.ndarray, " S"]:
        """The component (S,) that each position most likely is of."""
        return np.argmax([_log_component(mode, positions) for mode in self.modes], axis=0)


def _log_component(mode: Mode, positions: Draws) -> Float[np.ndarray, " S"]:
    dim, difference = len(mode.mean), positions - mode.mean
    if mode.factor.ndim == 1:
        white = difference / mode.factor
    else:
        white = solve_triangular(mode.factor, difference.T, lower=True, check_finite=False).T
    squares = np.square(white).sum(-1)
    log_normal = -0.5 * squares - 0.5 * dim * math.log(2.0 * math.pi)
    constant = gammaln(0.5 * (FREEDOM + dim)) - gammaln(0.5 * FREEDOM)
    constant -= 0.5 * dim * math.log(FREEDOM * math.pi)
    log_student = constant - 0.5 * (FREEDOM + dim) * np.log1p(squares / FREEDOM)
    log_tails, log_rest = math.log(TAILS), math.log1p(-TAILS)
    return np.logaddexp(log_rest + log_normal, log_tails + log_student) - mode.log_scale
