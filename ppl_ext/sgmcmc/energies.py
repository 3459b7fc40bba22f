"""How far log densities of a chain's draws spread: beyond a posterior's, the chain has run off."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float

from ppl_ext.engines.judgement import SPREAD, Judgement

#: Draws of a chain from which on their spread tells.
ENOUGH = 100
#: Standard errors by which the variance that minibatches add is taken to be larger than it is
#: estimated. Relative to the draws' variance the error is 1 / sqrt(n), whatever the noise's tails
#: (J. von Neumann, 1941).
ERRORS = 5.0


class Energies(NamedTuple):
    """Sums over the energies of a chain's draws after the warm-up, or of C chains.

    An energy is the negative log density before the last step, of all rows or estimated from a
    minibatch, whose noise differs from draw to draw. What changes from one draw to the next is
    therefore no spread. The first draw of a cycle of step sizes does not count: the step before it
    explored.

    Attributes
    ----------
    seen : array () or (C,)
        Draws, those of the warm-up too.
    number : array () or (C,)
        Draws that count.
    mean : array () or (C,)
    squares : array () or (C,)
        Sum of squared differences from the mean.
    changes : array () or (C,)
        Sum of squared differences between one draw and the next, where energies are noisy.
    last : array () or (C,)
        Energy of the last draw that counts.
    """

    seen: Float[Any, "*C"]
    number: Float[Any, "*C"]
    mean: Float[Any, "*C"]
    squares: Float[Any, "*C"]
    changes: Float[Any, "*C"]
    last: Float[Any, "*C"]

    @classmethod
    def none(cls, zeros: Any) -> Self:
        """Before the first draw; of zeros () or (C,)."""
        return cls(*(zeros,) * len(cls._fields))

    @classmethod
    def of(cls, energies: Float[np.ndarray, "C S"], noisy: bool = False) -> Self:
        """The sums of C chains over S draws that count."""
        number, energies = np.full(len(energies), float(energies.shape[1])), energies.astype(float)
        if not energies.shape[1]:
            return cls.none(number)
        mean = energies.mean(1)
        with np.errstate(invalid="ignore"):
            squares = ((energies - mean[:, None]) ** 2).sum(1)
            changes = noisy * (np.diff(energies) ** 2).sum(1)
        return cls(number, number, mean, squares, changes, energies[:, -1])

    def after(
        self, energy: Float[Any, "*C"], num_warmup: Any, counts: Any = 1.0, noisy: bool = False
    ) -> Self:
        """The same with the energy of one more draw.

        Parameters
        ----------
        energy : array () or (C,)
            Finite where it does not count.
        num_warmup : int array
            Draws that do not count.
        counts : bool array () or (C,)
            Whether this one does after these.
        noisy : bool
            Whether it is an estimate from a minibatch.
        """
        counted = 1.0 * (self.seen >= num_warmup) * counts
        number = self.number + counted
        off = energy - self.mean
        # Welford's updates: a difference of a sum of squares and a squared sum would cancel, since
        # energies are large beside their spread. Before the first draw the divisor is 1, not 0.
        mean = self.mean + counted * off / (number + (number < 1.0))
        return type(self)(
            self.seen + 1.0,
            number,
            mean,
            self.squares + counted * off * (energy - mean),
            self.changes + noisy * counted * (self.number > 0.0) * (energy - self.last) ** 2,
            self.last + counted * (energy - self.last),
        )

    def variance(self) -> Float[Any, "*C"]:
        """Variance of the energies (), (C,), in nats squared, less that of minibatches.

        Half the mean squared difference of independent numbers is their variance.
        """
        steps = self.number - 1.0 + (self.number < 2.0)
        return (self.squares - 0.5 * (1.0 + ERRORS / steps**0.5) * self.changes) / steps

    def beyond(self, dim: int) -> Bool[Any, "*C"]:
        """Whether energies spread farther than those of a posterior of D dimensions.

        Those that are not finite do.
        """
        held = self.variance() <= SPREAD**2 * dim
        return (self.number >= ENOUGH) & (held == 0)

    def judged(self, kernel: str, dim: int) -> Judgement:
        """What the energies say of the draws of a kernel."""
        number = np.ravel(np.asarray(self.number, float))
        if number.max() < ENOUGH:
            few = f"Not judged: {int(number.max())} draws a chain after the warm-up."
            return Judgement(kernel, told=(few,), draws=int(number.sum()), of_chains=True)
        variance = np.ravel(np.asarray(self.variance(), float))
        beyond = np.ravel(np.asarray(self.beyond(dim)))
        # Noise that is taken off may be more than there is.
        spread = float(np.sqrt(np.maximum(variance, 0.0)).max())
        line = "Log densities of the draws differ by no more than the noise of minibatches"
        if spread != 0.0:
            line = (
                f"Log densities of the draws of a chain have a standard deviation of {spread:.3g} "
                "nats beside the noise of minibatches; a Normal posterior of "
                f"{dim:,} dimensions has {math.sqrt(dim / 2.0):.3g}"
            )
        if not beyond.any():
            return Judgement(kernel, (), (f"{line}.",), int(number.sum()), of_chains=True)
        doubt = (
            f"{line}: {beyond.sum()} of {len(beyond)} chains have run off or are still on their "
            "way. Take a tenth of the step size against the one, a longer warm-up or a nearer "
            "start against the other."
        )
        return Judgement(kernel, (doubt,), (), int(number.sum()), of_chains=True)
