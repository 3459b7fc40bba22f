"""What Markov chains say of themselves: R-hat, effective draws, divergences, energies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ppl_ext.statistics.convergence import split_r_hat
from ppl_ext.statistics.effective import effective_number

#: Chains with a larger R-hat disagree, or with fewer effective draws tell nothing.
R_HAT, LEAST_ESS = 1.05, 100.0
#: Share of divergences, and E-BFMI, from which on they are warned of.
DIVERGENT, LEAST_BFMI = 0.005, 0.3
#: Probability of each end at which the tails' effective number is taken.
TAIL = 0.05


@dataclass(frozen=True)
class OwnChains:
    """Figures of M chains.

    Attributes
    ----------
    r_hat, ess_bulk, ess_tail : array (K,)
        By column.
    divergent : float or None
    bfmi : float or None
        Least energy Bayesian fraction of missing information of a chain.
    names : sequence of str
        Of the columns.
    """

    r_hat: Float[np.ndarray, " K"]
    ess_bulk: Float[np.ndarray, " K"]
    ess_tail: Float[np.ndarray, " K"]
    divergent: float | None
    bfmi: float | None
    names: Sequence[str]

    @property
    def disagree(self) -> bool:
        """Whether the chains are not all of one distribution."""
        return not self.r_hat.max() < R_HAT

    @property
    def against(self) -> list[str]:
        """What speaks against the chains."""
        reasons = []
        worst = int(self.r_hat.argmax())
        if self.disagree:
            reasons.append(
                f"Its own chains disagree: R-hat {self.r_hat[worst]:.3f} of '{self.names[worst]}', "
                f"expected below {R_HAT}."
            )
        least = int(self.ess_bulk.argmin())
        if self.ess_bulk[least] < LEAST_ESS:
            reasons.append(
                f"Its chains are worth {self.ess_bulk[least]:.0f} draws in '{self.names[least]}', "
                f"expected {LEAST_ESS:.0f}. Run them longer."
            )
        return reasons

    @property
    def told(self) -> str:
        """The figures in words."""
        parts = [
            f"R-hat {self.r_hat.max():.3f}",
            f"ESS {self.ess_bulk.min():.0f} (tails {self.ess_tail.min():.0f})",
        ]
        if self.divergent is not None:
            parts.append(f"{self.divergent:.1%} divergent transitions")
        if self.bfmi is not None:
            parts.append(f"E-BFMI {self.bfmi:.2f}")
        text = f"Its own chains: {', '.join(parts)}."
        if self.divergent is not None and self.divergent > DIVERGENT:
            text += " Divergences: draws from where the density bends sharply may be missing."
        if self.bfmi is not None and self.bfmi < LEAST_BFMI:
            text += " A low E-BFMI: tails are visited slowly."
        return text


@np.errstate(all="ignore")
def own_chains(
    draws: Float[np.ndarray, "N M K"],
    names: Sequence[str],
    divergent: float | None = None,
    energy: Float[np.ndarray, "N M"] | None = None,
) -> OwnChains:
    """Figures of chains (N, M, K)."""
    low, high = np.quantile(draws, [TAIL, 1.0 - TAIL], axis=(0, 1))
    # Effective numbers of the indicators of both tails, as in A. Vehtari and others,
    # "Rank-normalization, folding, and localization: an improved R-hat" (2021).
    tails = [effective_number((draws <= low) * 1.0), effective_number((draws >= high) * 1.0)]
    return OwnChains(
        # A column that does not vary has no R-hat, and does not disagree.
        np.nan_to_num(split_r_hat(draws), nan=1.0),
        effective_number(draws),
        np.minimum(*tails),
        divergent,
        None if energy is None else energy_fraction(energy),
        names,
    )


def energy_fraction(energy: Float[np.ndarray, "N M"]) -> float:
    """E-BFMI of the worst chain: squared changes of the energy over its variance.

    M. Betancourt, "Diagnosing suboptimal cotangent disintegrations in Hamiltonian Monte Carlo"
    (2016).
    """
    change = np.square(np.diff(energy, axis=0)).mean(0)
    return float((change / np.maximum(energy.var(0), np.finfo(float).tiny)).min())
