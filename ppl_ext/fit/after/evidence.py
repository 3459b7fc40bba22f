"""The evidence of a fitted program, by bridge sampling from the fit's draws.

X.-L. Meng and W. H. Wong, "Simulating ratios of normalizing constants via a simple identity"
(1996); Q. F. Gronau and others, "A tutorial on bridge sampling" (2017). The error is that of
S. Frühwirth-Schnatter, "Estimating marginal likelihoods for mixture and Markov switching models
using bridge sampling techniques" (2004), in which draws of chains count as many independent ones
as their autocorrelation leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import expit, gammaln, logsumexp

from ppl_ext.chains.mixture import fitted
from ppl_ext.chains.proposal import Proposal
from ppl_ext.chains.symmetry import Symmetry
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.fit.verdict.verdict import Verdict
from ppl_ext.statistics.effective import effective_number
from ppl_ext.statistics.khat import LogRatios, pareto_khat

if TYPE_CHECKING:
    from ppl_ext.fit.ladder.climbed import Climbed

#: Draws of the fit that are looked at, at most: more would take much memory and tell little.
DRAWS = 8_000
#: Draws of the proposal at first. They are doubled until the error is small.
PROPOSED = 512
#: Draws of it at most.
MOST_PROPOSED = 4_096
#: Nats of error below which no more are taken.
SMALL = 0.02
#: Weight of the proposal that is fitted to draws, beside the one to which chains jump. If one of
#: them is bad, half of the draws are lost.
FITTED = 0.5
#: Pareto k-hat from which on the mean of importance weights has no reliable error.
KHAT = 0.7
#: Nats below the smallest log ratio from which on the log evidence is looked for. Draws of the
#: proposal at which there is no density pull it below that ratio.
FARTHEST = 50.0
#: Seed of the proposal's draws, apart from the chains' random numbers, which they leave unchanged.
SEED = (46, 1996)

Ratios = Float[np.ndarray, " S"]


@dataclass(frozen=True)
class LogEvidence:
    """Log of the evidence, the integral of a program's density over its latent sites.

    Attributes
    ----------
    value : float or None
        In nats; None where there is none, for the ``reason``.
    error : float or None
        Its standard error, in nats.
    reason : str
        Why there is none; else empty.
    evaluations : int
        Of the log density, that it took.

    Examples
    --------
    >>> found = LogEvidence(-12.34, 0.01)
    >>> print(found)
    -12.34 +- 0.01 nats
    >>> print(LogEvidence(None, None, "The draws are not trusted."))
    none: The draws are not trusted.
    """

    value: float | None
    error: float | None
    reason: str = ""
    evaluations: int = 0

    def __str__(self) -> str:
        if self.value is None or self.error is None:
            return f"none: {self.reason}"
        digits = max(0, 1 - math.floor(math.log10(max(self.error, 1e-4))) - 1)
        return f"{self.value:.{digits}f} +- {self.error:.{digits}f} nats"


def refused(problem: Problem, verdict: Verdict) -> str:
    """Why a fit has no evidence; empty where it may have one."""
    target = problem.target
    if not verdict.trusted:
        return "The draws are not trusted, and what they miss the evidence would miss as well."
    if verdict.of_outputs:
        return "The draws are judged by outputs: they need not have all modes of the weights."
    if target.parameter_sites:
        return (
            "The density of a Stan program is in one piece, which does not tell whether its priors "
            "are proper. Write it with the host's primitives."
        )
    if improper := target.layout.improper:
        names = ", ".join(f"'{name}'" for name in improper)
        return (
            f"The density of {names} has no normaliser, as that of an ImproperUniform or of a "
            "masked site: the evidence is known up to a constant only. Give a proper prior."
        )
    return ""


def log_evidence(climbed: Climbed, verdict: Verdict, seed: int) -> LogEvidence:
    """The evidence of the program that a fit is of; ``seed`` is the fit's.

    The integral is of the density as written: observed sites and factors with all their constants,
    discrete sites summed out, parameters without a prior where they are held. Neither transforms
    nor non-centred sites change it.
    """
    problem = climbed.problem
    if reason := refused(problem, verdict):
        return LogEvidence(None, None, reason)
    before = problem.evaluate.calls
    try:
        return _of_trusted(climbed, np.random.default_rng((*SEED, seed)))
    finally:
        # So that chains which go on are evaluated as if the evidence had not been asked for.
        problem.evaluate.calls = before


@np.errstate(all="ignore")
def _of_trusted(climbed: Climbed, generator: np.random.Generator) -> LogEvidence:
    problem, symmetry, sampled = climbed.problem, climbed.symmetry, climbed.sampled
    spacing = math.ceil(math.prod(climbed.positions.shape[:2]) / DRAWS)
    positions = climbed.positions[::spacing]
    if symmetry is not None:
        positions = symmetry.ordered(positions)
    number, chains, dim = positions.shape
    taken = 0

    def log_densities(points: Float[np.ndarray, "S D"]) -> Ratios:
        nonlocal taken
        taken += len(points)
        values, _ = problem.evaluate(points)
        counts = np.isfinite(values)
        if symmetry is not None:
            # The integral is over labels in order; other orders are counted in the end.
            counts &= symmetry.is_ordered(points)
        return np.where(counts, values, -np.inf)

    # The proposal is fitted to the first half of the draws and compared with the second: draws to
    # which it was fitted would look too near to it.
    half = number // 2 if sampled is not None else number
    given = None if sampled is None else sampled.kernel.proposal.given
    straight = positions[:half].reshape(-1, dim)
    if given is not None:
        straight, _ = given.straight(straight)
    modes, weights, _ = fitted(straight, generator)
    proposal = Proposal(modes, weights)
    of_draws: Float[np.ndarray, "N M"] | None = None
    if sampled is not None:
        own = sampled.kernel.proposal
        proposal = Proposal(
            (*own.modes, *modes),
            np.concatenate([(1.0 - FITTED) * own.weights, FITTED * weights]),
            own.bend,
            own.unbent + len(modes),
            given,
        )
        log_q = proposal.log_density(positions[half:].reshape(-1, dim))
        of_draws = sampled.window.values[::spacing][half:] - log_q.reshape(-1, chains)
    of_proposal = np.zeros(0)
    while True:
        drawn = proposal.draw(max(PROPOSED, len(of_proposal)), generator)
        more = log_densities(drawn) - proposal.log_density(drawn)
        of_proposal = np.concatenate([of_proposal, more])
        value, error = _estimate(of_draws, of_proposal)
        if error < SMALL or len(of_proposal) >= MOST_PROPOSED:
            break
    if not math.isfinite(error):
        reason = "No draw of the proposal has a density of the program."
        return LogEvidence(None, None, reason, taken)
    rounding = problem.epsilon * abs(value)
    if of_draws is None:
        khat = pareto_khat(LogRatios(of_proposal, rounding)).khat
        if not khat < KHAT:
            reason = (
                f"The importance weights are too uneven: Pareto k-hat {khat:.2f}, expected below "
                f"{KHAT}. Fit with exact=True."
            )
            return LogEvidence(None, None, reason, taken)
    value += _log_orders(symmetry)
    return LogEvidence(value, math.hypot(error, rounding), "", taken)


def _estimate(
    of_draws: Float[np.ndarray, "N M"] | None, of_proposal: Ratios
) -> tuple[float, float]:
    if of_draws is not None:
        return bridge(of_draws, of_proposal)
    # Without chains: the fit's draws were reweighted, and fresh ones tell as much.
    value = float(logsumexp(of_proposal)) - math.log(len(of_proposal))
    if math.isinf(value):
        return value, math.inf
    weights = np.exp(of_proposal - value)
    return value, float(weights.std() / math.sqrt(len(weights)))


def _log_orders(symmetry: Symmetry | None) -> float:
    """Log of the number of orders that labels can be in."""
    exchanges = () if symmetry is None else symmetry.exchanges
    return float(sum(gammaln(len(each.labels) + 1) for each in exchanges))


def bridge(of_draws: Float[np.ndarray, "N M"], of_proposal: Ratios) -> tuple[float, float]:
    """Log of the integral of p, and its standard error, by the optimal bridge.

    Parameters
    ----------
    of_draws : array (N, M)
        log p - log q at N draws of p of each of M chains.
    of_proposal : array (S,)
        The same at independent draws of q, whose integral is one; may be -inf. Where all are, the
        error is infinite.
    """
    if not np.isfinite(of_proposal).any():
        return math.nan, math.inf
    share = 0.5
    # The optimal bridge needs the number of independent draws, which the first round tells.
    for _ in range(2):
        odds = math.log(share / (1.0 - share))
        value = _fixed_point(of_draws.ravel(), of_proposal, odds)
        terms = expit(value - of_draws - odds)
        worth = float(effective_number(terms[:, :, None])[0])
        share = worth / (worth + len(of_proposal))
    proposed = expit(of_proposal - value + odds)
    error = math.sqrt(
        terms.var() / terms.mean() ** 2 / worth
        + proposed.var() / proposed.mean() ** 2 / len(proposed)
    )
    return value, error


def _fixed_point(of_draws: Ratios, of_proposal: Ratios, odds: float) -> float:
    """The log evidence that the optimal bridge, made with it, estimates again.

    There the difference of two means is zero, which are monotone in it.
    """

    def difference(value: float) -> float:
        one = logsumexp(-np.logaddexp(0.0, value - of_proposal - odds)) - math.log(len(of_proposal))
        other = logsumexp(-np.logaddexp(0.0, of_draws - value + odds)) - math.log(len(of_draws))
        return float(one - other - odds)

    ends = np.concatenate([of_draws, of_proposal[np.isfinite(of_proposal)]])
    low, high = float(ends.min()) - FARTHEST, float(ends.max()) + 1.0
    found: float = brentq(difference, low, high, xtol=1e-10)
    return found
