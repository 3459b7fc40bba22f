"""A proposal from Normals: draws and their density, with heavier tails."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln, logsumexp

from ppl_ext.chains.bends import Bend
from ppl_ext.chains.given import Given
from ppl_ext.chains.hamiltonian import Chains
from ppl_ext.chains.symmetry import Symmetry
from ppl_ext.start.paths import Evaluate
from ppl_ext.start.start import Mode

#: Share of a component's draws that come from Student t distributions in place of its Normal, and
#: their degrees of freedom: ratios to a target with heavier tails stay bounded for longer. Of half
#: of them all coordinates are large together, of the others each by itself, as those of independent
#: sites with heavy tails are: a multivariate t falls too fast along a single axis.
TAILS, FREEDOM = 0.2, 1.0

Draws = Float[np.ndarray, "S D"]
LogRatios = Float[np.ndarray, " S"]


@dataclass(frozen=True)
class Proposal:
    """A mixture of Normals, each with Student t distributions of its mean and scale beside it.

    Parameters
    ----------
    modes : tuple of Mode
    weights : array (modes,)
    bend : Bend, optional
        The Normals are of its straight coordinates, but for the last ``unbent`` ones.
    unbent : int
    given : Given, optional
        All Normals are of its straight coordinates.
    """

    modes: tuple[Mode, ...]
    weights: Float[np.ndarray, " modes"]
    bend: Bend | None = None
    unbent: int = 0
    given: Given | None = None

    def draw(self, number: int, generator: np.random.Generator) -> Draws:
        """Independent draws (number, D)."""
        noise = generator.normal(size=(number, len(self.modes[0].mean)))
        kind = generator.uniform(size=number)[:, None]
        shrink = np.sqrt(generator.chisquare(FREEDOM, noise.shape) / FREEDOM)
        shrink = np.where(kind < 0.5 * TAILS, shrink[:, :1], shrink)
        noise = noise / np.where(kind < TAILS, shrink, 1.0)
        which = generator.choice(len(self.modes), size=number, p=self.weights)
        drawn = np.empty_like(noise)
        for component in np.unique(which):
            drawn[which == component] = self.modes[component].at(noise[which == component])
        if self.bend is not None:
            rows = which < self._bent
            drawn[rows] = self.bend.curved(drawn[rows])
        return drawn if self.given is None else self.given.curved(drawn)

    @property
    def free(self) -> int:
        """Coordinates that a mixture fitted to draws tells of: the others are known given these."""
        return len(self.modes[0].mean) if self.given is None else len(self.given.which)

    @property
    def _bent(self) -> int:
        """How many of the Normals are of straight coordinates."""
        return 0 if self.bend is None else len(self.modes) - self.unbent

    def log_density(self, positions: Draws) -> Float[np.ndarray, " S"]:
        """Log densities (S,) at positions."""
        with np.errstate(divide="ignore"):
            log_weights = np.log(self.weights)
        found: Float[np.ndarray, " S"] = logsumexp(
            self.log_components(positions) + log_weights[:, None], axis=0
        )
        return found

    def log_ratios(self, positions: Draws, values: Float[np.ndarray, " S"]) -> LogRatios:
        """Logs of importance ratios of log densities; minus infinity where not finite."""
        found = values - self.log_density(positions)
        return np.where(np.isfinite(found), found, -np.inf)

    def nearest(self, positions: Draws) -> Int[np.ndarray, " S"]:
        """The component (S,) that each position most likely is of."""
        return self.log_components(positions).argmax(0)

    @cached_property
    def _inverses(self) -> Float[np.ndarray, "K D D"] | Float[np.ndarray, "K D"]:
        """Inverses of the factors, of which all are matrices or all vectors."""
        if all(mode.factor.ndim == 1 for mode in self.modes):
            return np.stack([1.0 / mode.factor for mode in self.modes])
        return np.stack([np.linalg.inv(mode.root) for mode in self.modes])

    def log_components(self, positions: Draws) -> Float[np.ndarray, "K S"]:
        """Log density (K, S) of each component, without its weight."""
        number, dim = positions.shape
        if self.given is not None:
            positions, log_determinant = self.given.straight(positions)
        means = np.stack([mode.mean for mode in self.modes])
        places, log_determinants = np.repeat(positions[None], len(means), 0), np.zeros(number)
        if self.bend is not None:
            places[: self._bent], log_determinants = self.bend.straight(positions)
        difference = places - means[:, None]
        inverses = self._inverses
        if inverses.ndim == 2:
            white = difference * inverses[:, None]
        else:
            white = difference @ inverses.transpose(0, 2, 1)
        squares = np.square(white).sum(-1)
        log_normal = -0.5 * squares - 0.5 * dim * math.log(2.0 * math.pi)
        constant = float(gammaln(0.5 * (FREEDOM + dim)) - gammaln(0.5 * FREEDOM))
        constant -= 0.5 * dim * math.log(FREEDOM * math.pi)
        log_student = constant - 0.5 * (FREEDOM + dim) * np.log1p(squares / FREEDOM)
        constant = float(gammaln(0.5 * (FREEDOM + 1.0)) - gammaln(0.5 * FREEDOM))
        constant -= 0.5 * math.log(FREEDOM * math.pi)
        log_each = dim * constant
        log_each -= 0.5 * (FREEDOM + 1.0) * np.log1p(np.square(white) / FREEDOM).sum(-1)
        log_scales = np.array([mode.log_scale for mode in self.modes])
        log_tails = np.logaddexp(log_student, log_each) + math.log(0.5 * TAILS)
        found = np.logaddexp(math.log1p(-TAILS) + log_normal, log_tails) - log_scales[:, None]
        found[: self._bent] += log_determinants
        if self.given is not None:
            # Far out the map overflows.
            found += log_determinant
            found[np.isnan(found)] = -np.inf
        return found


@np.errstate(all="ignore")
def drawn_from(
    proposal: Proposal,
    number: int,
    evaluate: Evaluate,
    generator: np.random.Generator,
    symmetry: Symmetry | None = None,
) -> tuple[Chains, LogRatios]:
    """Draws of a proposal, with logs of their importance ratios: minus infinity where not finite.

    Of labels that can be exchanged those draws count that have them in order.
    """
    drawn = Chains.at(proposal.draw(number, generator), evaluate)
    counts = np.isfinite(drawn.scores).all(-1)
    if symmetry is not None:
        counts &= symmetry.is_ordered(drawn.positions)
    log_ratios = proposal.log_ratios(drawn.positions, drawn.values)
    return drawn, np.where(counts, log_ratios, -np.inf)
