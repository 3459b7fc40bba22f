"""A proposal made better by its own draws: mixtures of Normals fitted to weighted draws, in turn.

O. Cappé, R. Douc, A. Guillin, J.-M. Marin and C. P. Robert, "Adaptive importance sampling in
general mixture classes" (2008). All draws so far count, weighted by the density over the mean of
the densities of all proposals so far (J.-M. Cornuet, J.-M. Marin, A. Mira and C. P. Robert,
"Adaptive multiple importance sampling", 2012). Where few draws have all of the weight, weights are
raised to a power below one, so that each proposal goes a part of the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_ext.chains.bends import fitted_bend
from ppl_ext.chains.hamiltonian import Chains, Factor
from ppl_ext.chains.mixture import fitted
from ppl_ext.chains.proposal import LogRatios, Proposal, drawn_from
from ppl_ext.chains.symmetry import Symmetry
from ppl_ext.start.paths import Evaluate
from ppl_ext.statistics.effective import weighted_number

#: Effective draws that a mixture is fitted to: so many for each dimension and so many more, but at
#: most this share of all that count; and the powers of weights to choose from.
EFFECTIVE, BESIDE, MOST_SHARE, POWERS = 10, 50, 0.5, np.linspace(1.0, 0.0, 41)
#: Weights of the first proposal and of one wide Normal beside the mixture, and how many times wider
#: than all draws that is. A mixture fitted to few draws is too narrow between its components and
#: beyond them, where ratios would be large: with half of the wide one chains of jumps take 1.2
#: times as many draws for an effective one.
FIRST, WIDE, WIDER = 0.1, 0.2, 1.5


class Weighted(NamedTuple):
    """A proposal, with draws of its own alone, so that their ratios tell what it is worth.

    Attributes
    ----------
    proposal : Proposal
    drawn : Chains
        Draws (S, D).
    log_ratios : array (S,)
        Of density and proposal there; minus infinity where a draw does not count.
    """

    proposal: Proposal
    drawn: Chains
    log_ratios: LogRatios


@dataclass(frozen=True)
class Adapted:
    """A proposal that was fitted to draws, and all draws so far.

    Attributes
    ----------
    metric : array (D, D)
        Root of the covariance of the bulk of the density, as far as the draws before tell.
    known : tuple of Weighted
        Of all proposals so far, this one last.
    """

    metric: Factor
    known: tuple[Weighted, ...]


@np.errstate(all="ignore")
def adapted(
    evaluate: Evaluate,
    known: Sequence[Weighted],
    generator: np.random.Generator,
    symmetry: Symmetry | None = None,
    *,
    may_bend: bool = True,
) -> Iterator[Adapted]:
    """Proposals that come nearer in turn, each with as many draws of its own and their log ratios.

    Parameters
    ----------
    evaluate : callable
        Log densities (S,) and scores (S, D).
    known : sequence of Weighted
        Proposals and their draws so far. The first of them stays beside the mixtures.
    generator : numpy.random.Generator
    symmetry : Symmetry, optional
        Labels that can be exchanged: draws with labels in order stand for all.
    may_bend : bool
        Whether mixtures may be of coordinates in which curved ridges are straight.

    Yields
    ------
    Adapted

    Raises
    ------
    SpentError
        The evaluations ended.
    """
    every, number = tuple(known), len(known[0].log_ratios)
    while (found := fitted_to(every, generator, may_bend=may_bend)) is not None:
        proposal, metric = found
        drawn = drawn_from(proposal, number, evaluate, generator, symmetry)
        every = (*every, Weighted(proposal, *drawn))
        yield Adapted(metric, every)


@np.errstate(all="ignore")
def fitted_to(
    known: Sequence[Weighted], generator: np.random.Generator, *, may_bend: bool = True
) -> tuple[Proposal, Factor] | None:
    """A mixture fitted to all weighted draws, and a root of the covariance of their bulk.

    Beside the mixture it has one wide Normal and the first proposal, so that ratios stay bounded
    where theirs do. None where too few draws count for a covariance.
    """
    every = np.concatenate([one.drawn.positions for one in known])
    ratios = np.concatenate([one.log_ratios for one in known])
    values = np.concatenate([one.drawn.values for one in known])
    densities = np.stack([one.proposal.log_density(every) for one in known])
    logs = np.where(np.isneginf(ratios), -np.inf, values - logsumexp(densities, axis=0))
    counts = flattened(logs, every.shape[1])
    if counts is None:
        return None
    first = known[0].proposal
    given, bend = first.given, None
    if given is not None:
        # Given hyperparameters all else stays as it was found.
        straight = every[:, given.which]
    elif may_bend and (bend := fitted_bend(every, counts)) is not None:
        straight = bend.straight(every)[0]
    else:
        straight = every
    modes, shares, whole = fitted(straight, generator, counts)
    own, metric = (*modes, replace(whole, factor=WIDER * whole.factor)), whole.factor
    if given is not None:
        own = tuple(map(given.widened, own))
        noise = generator.normal(size=(len(every), len(given.which)))
        metric = given.root(whole.at(noise), generator)
    core = (1.0 - WIDE - FIRST) * shares
    weights = np.concatenate([core, [WIDE], FIRST * first.weights])
    proposal = Proposal((*own, *first.modes), weights, bend, len(first.modes), given)
    return proposal, metric


def flattened(log_weights: LogRatios, dim: int) -> LogRatios | None:
    """Weights to a power at which they leave enough draws, which they sum to.

    None where too few draws count for a covariance.
    """
    counts = ~np.isneginf(log_weights)
    least = min(EFFECTIVE * dim + BESIDE, MOST_SHARE * counts.sum())
    if least <= dim:
        return None
    scaled = np.where(counts, log_weights - log_weights[counts].max(), 0.0)
    for power in POWERS:
        weights = counts * np.exp(power * scaled)
        effective = weighted_number(weights)
        if effective >= least:
            break
    found: LogRatios = weights * (effective / weights.sum())
    return found
