"""Chains of independent jumps alone, where the proposal is all but the density.

L. Tierney, "Markov chains for exploring posterior distributions" (1994), section 2.3.3. Their
proposals are draws whose importance ratios are known already, so that they cost no evaluation.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from ppl_ext.chains.coupling import Coupled, meetings
from ppl_ext.chains.hamiltonian import Chains, Positions
from ppl_ext.chains.proposal import Proposal
from ppl_ext.chains.sampler import Kernel, Sampled, Window
from ppl_ext.chains.symmetry import Symmetry
from ppl_ext.start.paths import Evaluate

#: Transitions of each chain that are discarded, and pairs that are to meet within as many and the
#: lag, which is as long: with 64 that all do, five in a hundred may not, with 95 % confidence.
FIRST, PAIRS = 5, 64


@np.errstate(all="ignore")
def jump(
    evaluate: Evaluate,
    proposal: Proposal,
    drawn: Chains,
    log_ratios: Float[np.ndarray, " S"],
    chains: int,
    generator: np.random.Generator,
    symmetry: Symmetry | None = None,
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
    generator : numpy.random.Generator
    symmetry : Symmetry, optional
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
    kept = np.stack(states)[FIRST:]
    allowed = np.stack(chances)[FIRST:]
    window = Window(drawn.positions[kept], allowed, np.zeros(len(kept)), allowed.mean(1))
    dim, factors = drawn.positions.shape[1], [mode.factor for mode in proposal.modes]
    kernel = Kernel(
        *(evaluate, proposal, factors, proposal.weights, dim**-0.25),
        symmetry=symmetry,
        has_trajectories=False,
    )
    return Sampled(window, FIRST + 1, drawn.rows(here), kernel)


@np.errstate(all="ignore")
def jumps_from(
    starts: tuple[Positions, Positions],
    evaluate: Evaluate,
    proposal: Proposal,
    log_ratios: Float[np.ndarray, " S"],
    generator: np.random.Generator,
) -> Coupled:
    """Pairs of such chains that start elsewhere (P, D), and are proposed the same draws."""
    pairs = len(starts[0])
    ratios = []
    for each in starts:
        values, _ = evaluate(each)
        found = values - proposal.log_density(each)
        ratios.append(np.where(np.isfinite(found), found, -np.inf))
    proposed = log_ratios[: len(log_ratios) // pairs * pairs].reshape(-1, pairs)
    uniforms = generator.uniform(size=proposed.shape)
    times = meetings(*ratios, proposed, np.log(uniforms), FIRST)
    return Coupled.of(times, FIRST, FIRST, len(proposed))
