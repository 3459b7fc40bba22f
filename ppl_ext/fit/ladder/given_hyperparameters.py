"""Draws of hyperparameters, and of all else given them: a first proposal.

The density of the others given hyperparameters is taken for that of a Normal, as H. Rue, S. Martino
and N. Chopin, "Approximate Bayesian inference for latent Gaussian models by using integrated nested
Laplace approximations" (2009), section 3, take it. It is found at a few places, of which those
after the first lie where most mass is far from the others, and is interpolated between them. So
there are draws where a scale is near zero, where a Normal at the mode and mixtures fitted to its
draws have few, and there they are as narrow as the others are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.interpolate import RBFInterpolator

from ppl_ext.chains.given import Given, row_of
from ppl_ext.chains.hamiltonian import Factor
from ppl_ext.chains.mixture import fitted
from ppl_ext.chains.proposal import Proposal
from ppl_ext.start.local_normal import step_of
from ppl_ext.start.paths import Evaluate, Vector
from ppl_ext.start.start import Mode
from ppl_ext.statistics.farthest import farthest

#: Hyperparameters at most, and evaluations for curvatures at all places: no more than chains take
#: at least.
MOST, MOST_EVALUATIONS = 5, 6_000
#: Distance of the first places from the mode, in standard deviations of its Normal.
FIRST = 1.2
#: How many places more than hyperparameters there are in each further round, which there are two
#: of at most where room is looked for. Before and after them the density is looked at, with one
#: evaluation, at so many points for each hyperparameter, and so often.
ROUNDS, FURTHER, SEEN, LOOKS = 2, 3, 6, 4
#: Nats by which a Normal at half of the places of a round differs from what was expected there,
#: below which there are places enough, and rounds at most; and draws among which the farthest are
#: the next places, so that these have some mass around them.
ENOUGH, MOST_ROUNDS, AMONG = 0.1, 10, 500
#: Nats that a Newton's step may add where the density is looked at once.
MOST_GAIN = 5.0
#: Draws of the interpolated density of hyperparameters, to look where it is next and for the
#: proposal, of which a quarter is kept; rounds in which the Student t distribution that they come
#: from is fitted to it, with its degrees of freedom and how much wider it is.
DRAWN, LAST, REFITTED, FREEDOM, WIDER = 2_000, 8_000, 6, 5.0, 1.3
#: How far draws go to either side, as a multiple of the farthest place and so many standard
#: deviations of the Normal at the mode more: what is interpolated beyond its places soon tells
#: nothing. And the share of the last draws that may lie in the last tenth of that: a density that
#: falls leaves fewer.
FARTHER, LEFT = (1.5, 2.0), 0.05
#: Nats below the largest density at which places no longer count for the density.
DEPTH = 60.0
#: Standard deviations that draws have at least.
NARROWEST = 1e-3
#: Weight of one Normal of all hyperparameters beside their mixture, and how many times wider it is.
BESIDE, WIDE = 0.15, 1.5
#: Newton's steps to where the others lie at most, and nats by which the density that a step
#: predicts may be wrong for it to be the last.
STEPS, NEAR = 4, 0.05
#: Rounding of a log density, as a multiple of its relative precision, that is no such error.
ROUNDED = 4.0

Positions = Float[np.ndarray, "P D"]
Places = Float[np.ndarray, "K Q"]


class Normals(NamedTuple):
    """Normals of the others given hyperparameters.

    Attributes
    ----------
    means : array (K, R)
    factors : array (K, R, R)
        Lower factors of precisions.
    log_densities : array (K,)
        Of the hyperparameters, the others integrated out, up to a constant.
    """

    means: Float[np.ndarray, "K R"]
    factors: Float[np.ndarray, "K R R"]
    log_densities: Float[np.ndarray, " K"]

    def rows(self, rows: np.ndarray) -> Normals:
        """Some of them."""
        return Normals(*(part[rows] for part in self))


def places_of(number: int) -> int:
    """Places at which Normals given so many hyperparameters are found at most."""
    return (number + 1) * (number + 2) // 2 + ROUNDS * (number + FURTHER)


def has_room(number: int, dim: int) -> bool:
    """Whether Normals given so many of D parameters are found at a bearable cost."""
    most = MOST_EVALUATIONS / (2 * dim)
    return 0 < number < dim and number <= MOST and places_of(number) <= most


@np.errstate(all="ignore")
def given_hyperparameters(
    evaluate: Evaluate,
    mode: Mode,
    which: Sequence[int],
    epsilon: float,
    generator: np.random.Generator,
) -> tuple[Proposal, Factor] | None:
    """Draws of hyperparameters and of Normals given these, and a root of their covariance.

    None where there are more of them or of all parameters than there is room for, where the others
    are no Normal given the mode's or at most others of the first places, and where the density of
    the hyperparameters does not fall.

    Parameters
    ----------
    evaluate : callable
        Log densities (P,) and scores (P, D).
    mode : Mode
        A Normal, around which the first places lie.
    which : sequence of int
        Coordinates of the hyperparameters.
    epsilon : float
        Relative precision of scores.
    generator : numpy.random.Generator

    Raises
    ------
    SpentError
        The evaluations ended.
    numpy.linalg.LinAlgError
        Too few of the places have a Normal, and a density that counts.
    """
    dim, number = len(mode.mean), len(which)
    if not has_room(number, dim):
        return None
    own = np.asarray(which, int)
    others = np.setdiff1d(np.arange(dim), own)
    covariance = mode.root @ mode.root.T
    block = covariance[np.ix_(own, own)]
    scale = np.linalg.cholesky(block)
    slopes = np.linalg.solve(block, covariance[np.ix_(own, others)])
    first = FIRST * np.eye(number)
    pairs = [one + two for one, two in itertools.combinations(first, 2)]
    places = np.vstack([np.zeros(number), first, -first, *pairs])
    points = mode.mean + np.zeros((len(places), dim))
    points[:, own] += places @ scale.T
    points[:, others] += places @ scale.T @ slopes
    normals, is_normal = _normals(evaluate, points, own, mode, epsilon)
    if not is_normal[0] or is_normal.sum() <= number:
        return None
    center, factor = normals.means[0], normals.factors[0]
    rows, size = row_of(factor[None])[:0], len(others)
    given = Given(
        *(own, mode.mean[own], scale, center, factor),
        *(np.zeros((0, number)), np.zeros((0, size)), rows),
    )
    logs, seen = np.zeros(0), _Seen(np.zeros((0, number)), np.zeros(0), np.zeros((0, size)))
    lost = np.inf
    for turn in range(MOST_ROUNDS + 1):
        means, factors = (normals.means - center) @ factor, np.linalg.solve(factor, normals.factors)
        known = places[is_normal]
        if turn:
            lost = float(np.median(_lost(given, known, means, factors)))
        given = replace(
            given,
            places=np.concatenate([given.places, known]),
            means=np.concatenate([given.means, means]),
            factors=np.concatenate([given.factors, row_of(factors)]),
        )
        logs = np.concatenate([logs, normals.log_densities])
        for _ in range(LOOKS):
            density = _density(given, logs, seen)
            drawn, _ = _draws_of(*density, DRAWN, generator)
            seen = seen.and_at(_farthest(drawn, density[0], SEEN * number), given, evaluate)
        drawn, is_ended = _draws_of(*_density(given, logs, seen), LAST, generator)
        has_ended = 2 * size * (len(given.places) + number + FURTHER) > MOST_EVALUATIONS
        if lost < ENOUGH or has_ended or turn == MOST_ROUNDS:
            break
        places = _farthest(drawn[:AMONG], given.places, number + FURTHER)
        normals, is_normal = _normals(evaluate, given.at(places), own, mode, epsilon)
        if not is_normal.any():
            break
    return _proposal(given, drawn, generator) if is_ended else None


def _lost(
    given: Given,
    places: Places,
    means: Float[np.ndarray, "K R"],
    factors: Float[np.ndarray, "K R R"],
) -> Vector:
    """Nats (K,) by which Normals given hyperparameters differ from those that a map has there."""
    expected, roots, log_determinants = given.standardised(places)
    log_diagonals = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(1)
    off = np.einsum("kr,krt->kt", means - expected, roots)
    widths = np.linalg.solve(factors, roots)
    squares = np.square(off).sum(1) + np.square(widths).sum((1, 2)) - means.shape[1]
    found: Vector = 0.5 * squares + log_diagonals - log_determinants
    return found


@dataclass(frozen=True)
class _Seen:
    """Hyperparameters at which the density was looked at once, near where the others lie.

    Attributes
    ----------
    places : array (K, Q)
    values : array (K,)
        Log densities.
    scores : array (K, R)
        Of the others.
    """

    places: Places
    values: Vector
    scores: Float[np.ndarray, "K R"]

    def and_at(self, places: Places, given: Given, evaluate: Evaluate) -> _Seen:
        """These and others."""
        values, scores = evaluate(given.at(places))
        is_finite = np.isfinite(values) & np.isfinite(scores).all(1)
        new = places[is_finite], values[is_finite], scores[is_finite][:, given.others]
        old = self.places, self.values, self.scores
        return _Seen(*map(np.concatenate, zip(old, new, strict=True)))


def _density(given: Given, log_densities: Vector, seen: _Seen) -> tuple[Places, Vector]:
    """Hyperparameters, and the log of their density there.

    Where it was looked at once a Newton's step goes to where the others lie.
    """
    _, factors, logs = given.standardised(seen.places)
    white = np.linalg.solve(factors, np.linalg.solve(given.factor, seen.scores.T).T[..., None])
    gains = 0.5 * np.square(white).sum((1, 2))
    is_near = gains < MOST_GAIN
    looked = seen.values + gains - logs - np.log(np.diag(given.factor)).sum()
    return (
        np.concatenate([given.places, seen.places[is_near]]),
        np.concatenate([log_densities, looked[is_near]]),
    )


def _normals(
    evaluate: Evaluate, points: Positions, which: np.ndarray, mode: Mode, epsilon: float
) -> tuple[Normals, np.ndarray]:
    """Normals given hyperparameters as they are at points (P, D), near which the others lie.

    Of those points that have one; beside them is told which (P,) these are.
    """
    number, dim = points.shape
    others = np.setdiff1d(np.arange(dim), which)
    lengths = step_of(epsilon) * mode.deviations[others]
    moves = lengths[:, None] * np.eye(dim)[others]
    size = len(others)
    means, factors = np.zeros((number, size)), np.zeros((number, size, size))
    logs, is_normal = np.full(number, -np.inf), np.zeros(number, bool)
    left = np.arange(number)
    for _ in range(STEPS):
        here = points[left]
        around = np.concatenate([here[None], here + moves[:, None], here - moves[:, None]])
        values, scores = evaluate(around.reshape(-1, dim))
        values, scores = values[: len(left)], scores.reshape(*around.shape)[..., others]
        ahead, behind = np.split(scores[1:], 2)
        precisions = ((behind - ahead) / (2.0 * lengths[:, None, None])).swapaxes(0, 1)
        roots, is_positive = _roots(0.5 * (precisions + precisions.swapaxes(1, 2)))
        left, roots = left[is_positive], roots[is_positive]
        if not len(left):
            break
        values, scores = values[is_positive], scores[0][is_positive]
        white = np.linalg.solve(roots, scores[..., None])
        moved = points[np.ix_(left, others)]
        moved += np.linalg.solve(roots.swapaxes(1, 2), white)[..., 0]
        points[np.ix_(left, others)] = moved
        after, _ = evaluate(points[left])
        means[left], factors[left] = moved, roots
        logs[left] = after - np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)
        error = np.abs(values + 0.5 * np.square(white[..., 0]).sum(1) - after)
        is_last = error < NEAR + ROUNDED * epsilon * np.abs(after)
        is_normal[left] = is_last
        left = left[~is_last & np.isfinite(after)]
        if not len(left):
            break
    return Normals(means, factors, logs).rows(is_normal), is_normal


def _roots(
    precisions: Float[np.ndarray, "P R R"],
) -> tuple[Float[np.ndarray, "P R R"], np.ndarray]:
    """Lower factors of those that are positive definite, and which these are."""
    is_finite = np.isfinite(precisions).all((1, 2))
    roots = np.zeros_like(precisions)
    is_positive = np.zeros(len(precisions), bool)
    is_positive[is_finite] = np.linalg.eigvalsh(precisions[is_finite])[:, 0] > 0.0
    roots[is_positive] = np.linalg.cholesky(precisions[is_positive])
    return roots, is_positive


def _interpolated(places: Places, log_densities: Float[np.ndarray, " K"]) -> RBFInterpolator:
    """The log density of hyperparameters between places.

    Raises ``LinAlgError`` where these do not span the space.

    It is around a quadratic where all places are near the mode. Further ones tell how it falls, and
    it falls on like a straight line: logarithms of scales have an exponential tail.
    """
    counts = log_densities > log_densities.max() - DEPTH
    number = places.shape[1]
    is_near = np.abs(places).max() <= FIRST and 2 * counts.sum() >= (number + 1) * (number + 2)
    degree = 2 if is_near else 1
    if counts.sum() <= number:
        raise np.linalg.LinAlgError
    return RBFInterpolator(places[counts], log_densities[counts], kernel="cubic", degree=degree)


def _draws_of(
    places: Places, log_densities: Vector, size: int, generator: np.random.Generator
) -> tuple[Places, bool]:
    """Draws of the density that is interpolated, and whether it has fallen where they end.

    Raises ``LinAlgError`` where it is no number.
    """
    number = places.shape[1]
    log_density = _interpolated(places, log_densities - log_densities.max())
    low, high = (FARTHER[0] * end for end in (places.min(0), places.max(0)))
    middle, reach = 0.5 * (low + high), 0.5 * (high - low) + FARTHER[1]
    mean, root = np.zeros(number), np.eye(number)
    for _ in range(REFITTED):
        noise = generator.standard_t(FREEDOM, size=(size, number))
        drawn = mean + WIDER * noise @ root.T
        distances = (np.abs(drawn - middle) / reach).max(1)
        logs = log_density(drawn)
        logs += 0.5 * (FREEDOM + 1.0) * np.log1p(np.square(noise) / FREEDOM).sum(1)
        logs = np.where(distances < 1.0, logs, -np.inf)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        if not np.isfinite(weights).all():
            raise np.linalg.LinAlgError
        mean = weights @ drawn
        off = drawn - mean
        covariance = (weights[:, None] * off).T @ off + NARROWEST**2 * np.eye(number)
        root = np.linalg.cholesky(covariance)
    is_ended = bool(weights @ (distances > 0.9) < LEFT)
    return drawn[generator.choice(size, size // 4, p=weights)], is_ended


def _farthest(draws: Places, places: Places, number: int) -> Places:
    """So many draws, each of those that are farthest from the places and from those before."""
    root = np.linalg.cholesky(np.cov(draws.T).reshape(2 * draws.shape[1:]))
    white, known = (np.linalg.solve(root, each.T).T for each in (draws, places))
    return draws[farthest(white, known, number)]


def _proposal(
    given: Given, places: Places, generator: np.random.Generator
) -> tuple[Proposal, Factor]:
    """A mixture fitted to draws of the hyperparameters, and a root of the covariance of all."""
    draws = given.middle + places @ given.scale.T
    modes, shares, whole = fitted(draws, generator)
    wide = Mode(whole.mean, WIDE * whole.factor, whole.log_mass, whole.spread)
    every = tuple(map(given.widened, (*modes, wide)))
    proposal = Proposal(every, np.append((1.0 - BESIDE) * shares, BESIDE), given=given)
    return proposal, given.root(draws, generator)
