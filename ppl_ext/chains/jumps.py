"""Chains of independent jumps alone, where the proposal is all but the density.

L. Tierney, "Markov chains for exploring posterior distributions" (1994), section 2.3.3. Their
proposals are draws whose importance ratios are known already, so that they cost no evaluation.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from ppl_ext.chains.coupling import Coupled, meetings
from ppl_ext.chains.hamiltonian import Chains, Positions
from ppl_ext.chains.proposal import Proposal, drawn_from
from ppl_ext.chains.sampler import Kernel, Sampled, Window
from ppl_ext.chains.symmetry import Symmetry
from ppl_ext.start.paths import Evaluate

#: Transitions of each chain that are discarded at most, for chains of pairs to meet; and those that
#: one chain of a pair is ahead.
MOST_DISCARDED, LAG = 10, 5
#: Pairs that are to meet: where all of 64 do, five in a hundred may not, with 95 % confidence.
PAIRS = 64
#: Transitions of pairs at most, of those that have not met when the known draws end; and the share
#: of pairs from which on that is not tried.
MOST_TRANSITIONS, MOST_APART = 60, 0.1


@np.errstate(all="ignore")
def jump(
    evaluate: Evaluate,
    proposal: Proposal,
    drawn: Chains,
    log_ratios: Float[np.ndarray, " S"],
    chains: int,
    discarded: int,
    generator: np.random.Generator,
    symmetry: Symmetry | None = None,
    *,
    is_mixture: bool = False,
) -> Sampled:
    """Chains whose proposals are draws (S,) that were evaluated already, each used once.

    Parameters
    ----------
    evaluate : callable
        Log densities (M,) and scores (M, D), for chains that go on.
    proposal : Proposal
    drawn : Chains
        Its draws (S, D).
    log_ratios : array (S,)
        Of density and proposal there; minus infinity where chains must not go.
    chains : int
        M, between which the draws are divided.
    discarded : int
        First transitions of each that are left out.
    generator : numpy.random.Generator
    symmetry : Symmetry, optional
    is_mixture : bool
        See :class:`~ppl_ext.chains.sampler.Kernel`.
    """
    # They start at draws where they may be; those before would not have been taken.
    here = np.flatnonzero(~np.isneginf(log_ratios))[:chains]
    rows = np.setdiff1d(np.arange(len(log_ratios)), here)
    states, chances = [], []
    for proposed in rows[: len(rows) // chains * chains].reshape(-1, chains):
        chance = np.exp(np.minimum(0.0, log_ratios[proposed] - log_ratios[here]))
        here = np.where(generator.uniform(size=chains) < chance, proposed, here)
        states.append(here)
        chances.append(chance)
    kept = np.stack(states)[discarded:]
    allowed = np.stack(chances)[discarded:]
    window = Window(
        drawn.positions[kept], allowed, np.zeros(len(kept)), allowed, drawn.values[kept]
    )
    dim, factors = drawn.positions.shape[1], [mode.factor for mode in proposal.modes]
    kernel = Kernel(
        *(evaluate, proposal, factors, proposal.weights, dim**-0.25),
        symmetry=symmetry,
        has_trajectories=False,
        is_mixture=is_mixture,
    )
    return Sampled(window, discarded + 1, drawn.rows(here), kernel)


@np.errstate(all="ignore")
def jumps_from(
    starts: tuple[Positions, Positions],
    evaluate: Evaluate,
    proposal: Proposal,
    log_ratios: Float[np.ndarray, " S"],
    generator: np.random.Generator,
    symmetry: Symmetry | None = None,
) -> Coupled:
    """Pairs of such chains that start elsewhere (P, D), and are proposed the same draws.

    The distance is bounded after as many transitions as the last pair takes to meet, or after as
    many as are discarded at most.
    """
    pairs = len(starts[0])
    first, second = (proposal.log_ratios(each, evaluate(each)[0]) for each in starts)
    proposed = log_ratios[: len(log_ratios) // pairs * pairs].reshape(-1, pairs)
    uniforms = np.log(generator.uniform(size=proposed.shape))
    times = meetings(first, second, proposed, uniforms, LAG)
    apart, made = np.isinf(times), len(proposed)
    if 0 < apart.sum() < MOST_APART * pairs:
        # The few that are slow go on with draws of their own.
        shape = (MOST_TRANSITIONS - made, int(apart.sum()))
        _, ratios = drawn_from(proposal, math.prod(shape), evaluate, generator, symmetry)
        proposed = np.concatenate([proposed[:, apart], ratios.reshape(shape)])
        further = np.log(generator.uniform(size=shape))
        uniforms = np.concatenate([uniforms[:, apart], further])
        times[apart] = meetings(first[apart], second[apart], proposed, uniforms, LAG)
        made = MOST_TRANSITIONS
    slowest = float(times.max()) - LAG  # Infinite where a pair has not met.
    return Coupled.of(times, LAG, int(np.clip(slowest, 1, MOST_DISCARDED)), made)
