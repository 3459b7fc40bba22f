"""Draws of an approximation and their importance weights: what chains begin with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from ppl_ext.chains.adaptive import Weighted, adapted
from ppl_ext.chains.hamiltonian import Chains, Factor
from ppl_ext.chains.proposal import Proposal, drawn_from
from ppl_ext.chains.symmetry import Symmetry
from ppl_ext.fit.ladder.given_hyperparameters import given_hyperparameters, has_room
from ppl_ext.fit.ladder.hyperparameters import hyperparameters
from ppl_ext.fit.ladder.modes import LEAST_MASS, LEAST_WEIGHT
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.fit.verdict import facts, policy
from ppl_ext.start.paths import Evaluate, SpentError
from ppl_ext.start.start import Mode, Start
from ppl_ext.statistics.effective import weighted_number
from ppl_ext.statistics.khat import LogRatios, pareto_khat

#: Share of the mass from which on a mode counts as the only one, as far as Normals tell: others may
#: be its own far ends, such as the narrow end of a funnel.
ALONE = 0.99
#: Standard deviation, in nats, of the log ratios of density and Normal below which a Normal at the
#: mode is as good as Normals along scales.
NORMAL = 0.1


@dataclass(frozen=True)
class Approximation:
    """What chains begin with: draws of a proposal (S,), with logs of their importance ratios.

    The proposal is of Normals at the modes, or a mixture fitted to weighted draws, with a metric.
    ``weighted`` is the same with what the weights say of the modes' shares, and ``first`` the
    figures of what mixtures are fitted to at first. ``known`` are draws of all proposals so far,
    that one's first.
    """

    start: Start
    weighted: Proposal
    proposal: Proposal
    drawn: Chains
    log_ratios: Float[np.ndarray, " S"]
    correction: facts.Correction
    first: facts.Correction
    weights: Float[np.ndarray, " S"]
    metric: Factor | None = None
    known: tuple[Weighted, ...] = ()


def first_approximation(
    evaluate: Evaluate,
    limited: Evaluate,
    problem: Problem,
    start: Start,
    symmetry: Symmetry | None,
    rounding: float,
    generator: np.random.Generator,
) -> Approximation:
    """Normals given hyperparameters where there are any and they are near; or Normals at the modes.

    Draws given hyperparameters that are far are not gone on from; else it is the nearer one.
    ``limited`` leaves what chains take at least.

    Raises
    ------
    SpentError
        The evaluations ended.
    """
    best: Approximation | None = None
    for proposal, metric in _first_proposals(limited, problem, start, symmetry, generator):
        counted = evaluate if best is None else limited
        try:
            drawn, log_ratios = drawn_from(proposal, policy.DRAWS, counted, generator, symmetry)
        except SpentError:
            if best is None:
                raise
            break
        known = Weighted(proposal, drawn, log_ratios)
        if proposal.given is not None and not _has_all_mass(known, start.modes[1:], evaluate):
            continue
        correction, weights = correction_of(known, rounding)
        before = () if best is None else best.known
        is_far = best is not None and policy.is_far(best.correction)
        if best is None or is_far or policy.is_better(correction, best.correction):
            best = Approximation(
                *(start, proposal, proposal, drawn, log_ratios, correction, correction, weights),
                *(metric, (known, *before)),
            )
        else:
            best = replace(best, known=(*before, known))
        if policy.is_reliable(correction):
            break
    assert best is not None
    return best


@np.errstate(all="ignore")
def _has_all_mass(known: Weighted, others: Sequence[Mode], evaluate: Evaluate) -> bool:
    """Whether other modes, by their heights and widths, have next to no mass beside the draws'."""
    if not others:
        return True
    heights, _ = evaluate(np.stack([mode.mean for mode in others]))
    log_masses = [mode.log_mass - mode.log_top for mode in others] + heights
    mass = logsumexp(known.log_ratios) - np.log(len(known.log_ratios))
    return bool((log_masses < mass + np.log(LEAST_MASS)).all())


def _first_proposals(
    evaluate: Evaluate,
    problem: Problem,
    start: Start,
    symmetry: Symmetry | None,
    generator: np.random.Generator,
) -> Iterator[tuple[Proposal, Factor | None]]:
    """Yield Normals given hyperparameters, with a metric, then Normals at the modes.

    The former are left out where several modes have some mass, where labels can be exchanged, where
    there are too many scales, and where the Normal at the mode is a close approximation already.
    """
    mode, number = start.modes[0], max(1, len(problem.scales))
    is_normal = mode.spread < NORMAL and not policy.is_strained(problem.strain)
    has_none = symmetry is not None or is_normal or not has_room(number, problem.dim)
    found: tuple[Proposal, Factor] | None = None
    if start.weights[0] > ALONE and not has_none:
        common = problem.epsilon, generator
        # Where the density of hyperparameters cannot be interpolated, Normals at the modes follow.
        with suppress(SpentError, np.linalg.LinAlgError):
            which = hyperparameters(evaluate, mode, problem.scales, problem.entries, *common)
            found = given_hyperparameters(evaluate, mode, which, *common) if which else None
    if found is not None:
        yield found
    yield Proposal(start.modes, proposed_weights(start.weights)), None


def better_approximations(
    evaluate: Evaluate,
    begun: Approximation,
    program: facts.Program,
    generator: np.random.Generator,
    symmetry: Symmetry | None,
) -> Iterator[Approximation]:
    """Better approximations in turn, by mixtures fitted to weighted draws."""
    best = begun.correction
    found = adapted(
        *(evaluate, begun.known, generator, symmetry),
        may_bend=policy.may_bend(program, has_labels=symmetry is not None),
    )
    for number, one in enumerate(found, 1):
        proposal, drawn, log_ratios = one.known[-1]
        correction, weights = correction_of(one.known[-1], program.rounding)
        begun = replace(begun, known=one.known)
        if policy.is_better(correction, best):
            best = correction
            yield replace(
                begun,
                weighted=proposal,
                proposal=proposal,
                drawn=drawn,
                log_ratios=log_ratios,
                correction=correction,
                weights=weights,
                metric=one.metric,
            )
        if policy.is_adapted(best, number, jumps=policy.covers(program, begun.first)):
            return


def proposed_weights(shares: Float[np.ndarray, " modes"]) -> Float[np.ndarray, " modes"]:
    """Weights of modes in a proposal: their shares of the mass, and some at least of each mode.

    The shares are estimates, and a mode that is proposed too seldom gets very large ratios.
    """
    weights = np.maximum(shares, LEAST_WEIGHT)
    found: Float[np.ndarray, " modes"] = weights / weights.sum()
    return found


def correction_of(
    known: Weighted, rounding: float
) -> tuple[facts.Correction, Float[np.ndarray, " S"]]:
    """Figures of importance ratios, and weights (S,) of sum 1, the largest of them truncated.

    They are cut at their mean times the root of their number, where the variance of what they
    average is finite and the bias vanishes with more draws: E. L. Ionides, "Truncated importance
    sampling" (2008).
    """
    proposal, drawn, log_ratios = known
    given = proposal.given is not None
    number, is_nan = len(log_ratios), np.isnan(drawn.values)
    undefined = float(is_nan.mean())
    if np.isneginf(log_ratios).all():
        return facts.Correction(np.inf, 0.0, undefined, given), np.full(number, 1.0 / number)
    weights = np.exp(log_ratios - log_ratios.max())
    khat = pareto_khat(LogRatios(log_ratios, rounding)).khat
    share = weighted_number(weights) / number
    weights = np.minimum(weights, weights.mean() * np.sqrt(number))
    near = 0.0
    if undefined > 0.0:
        densities = proposal.log_density(drawn.positions)
        median = np.quantile(densities, 0.5, weights=weights, method="inverted_cdf")
        near = float(is_nan[densities >= median].mean())
    return facts.Correction(khat, share, undefined, given, near), weights / weights.sum()


def resampled(
    weights: Float[np.ndarray, " S"], number: int, generator: np.random.Generator
) -> np.ndarray:
    """Rows in proportion to weights, as evenly as can be, in random order."""
    points = (np.arange(number) + generator.uniform()) / number
    rows = np.minimum(np.searchsorted(np.cumsum(weights), points), len(weights) - 1)
    return generator.permutation(rows)
