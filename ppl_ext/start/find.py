"""The search for a start: quasi-Newton paths, local Normals at their ends, and better ones nearby.

After Pathfinder (L. Zhang, B. Carpenter, A. Gelman and A. Vehtari, "Pathfinder: Parallel
quasi-Newton variational inference", 2022): paths from random points towards modes, Normals, and of
these the one with the highest bound on the evidence. Modes of hierarchical models may be useless,
far down a funnel: where a path finds no end, Normals at points on its way are tried as well. A
Normal that is a bad picture of the density is moved and reshaped by a few natural-gradient steps
(see :func:`improved`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ppl_ext.start.local_normal import local_deviations, local_factor, lower_factor
from ppl_ext.start.paths import GAIN, Evaluate, Path, Vector, side_by_side
from ppl_ext.start.start import Mode, Start

#: Paths side by side.
PATHS = 4
#: Beyond so many dimensions a Hessian costs too many evaluations; the diagonal's sign is enough.
MOST_DIMENSIONS = 600
#: Points of a path without an end at which a Normal is tried.
CANDIDATES = 5
#: Draws that a Normal is judged by.
DRAWS = 16
#: A Normal is good when the log ratios of density and Normal vary so little over its draws: their
#: standard deviation in nats, and what each dimension may add.
GOOD, GOOD_PER_DIMENSION = 0.5, 0.02
#: Two ends are one mode when no point between them lies so many nats below the lower of them: of a
#: few that are evenly apart, on all of which other modes may lie, and of some whose distances from
#: one end grow by a factor.
DIP, BETWEEN, OUTWARDS = 1.0, 3, 8
#: Squared distance from a Normal's mean, beside the dimensions, up to which an end is its own, and
#: nats by which the density may exceed the Normal's there: more is a narrower mode within it.
NEAR, EXCESS = 9.0, 3.0
#: Nats, and share of the fall from a Normal's top, by which a density may differ from the Normal's
#: where the Normal explains it.
AGREES, SHARE = 2.0, 0.05
#: Spread in nats of the best Normal at a path's end, and points of the path, from which on others
#: on its way are tried: in single precision a path down a funnel may end by rounding.
FALSE_END, LONG = 2.5, 50
#: Newton steps at most from the last point of a path without an end, and the mean square, in
#: standard deviations, up to which such steps from the Normal's own draws may miss its mean, in any
#: coordinate: 0 for a Normal, 1 where there is no curvature.
NEWTON_STEPS, LEFT = 4, 0.25
#: Rounds of natural-gradient steps, each with draws for every dimension, and their length.
ROUNDS, DRAWS_PER_DIMENSION, RATE = 8, 2, 0.7
#: In a round no curvature changes by more than these factors, no mean by more than so many
#: standard deviations.
CHANGES, FARTHEST = (0.25, 9.0), 3.0
#: Nats below the median at which a draw counts less by a factor of e.
TOLERANCE = 3.0
#: Draws that the present Normal counts as, where the curvature is estimated anew.
PRIOR_DRAWS = 2.0


class Counted:
    """A log density whose evaluations are counted."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.evaluations = 0

    def __call__(
        self, positions: Float[np.ndarray, "P D"]
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "P D"]]:
        self.evaluations += len(positions)
        return self._evaluate(positions)


# Positions far out may have densities that overflow, which tells that they are bad.
@np.errstate(all="ignore")
def find(
    evaluate: Evaluate,
    starting_points: Callable[[int], Float[np.ndarray, "P D"]],
    generator: np.random.Generator,
    epsilon: float,
    most_full: int = MOST_DIMENSIONS,
) -> Start:
    """Search for a start.

    Parameters
    ----------
    evaluate : callable
        Log densities (P,) and scores (P, D) at positions (P, D).
    starting_points : callable
        Of a number: so many random positions, with finite density and score.
    generator : numpy.random.Generator
    epsilon : float
        Relative precision of densities and scores.
    most_full : int
        Dimensions beyond which covariances are diagonal, which takes a few evaluations in place of
        several for each dimension.
    """
    counted = Counted(evaluate)
    starts = starting_points(PATHS)
    paths = side_by_side(counted, starts, *counted(starts), epsilon)
    # The highest end first: lower ends are tried against its Normal, and most are of it.
    paths.sort(key=lambda path: path.values[-1], reverse=True)
    noise = generator.normal(size=(DRAWS, starts.shape[1]))

    normal = partial(local_normal, counted, noise=noise, epsilon=epsilon, most_full=most_full)
    modes = _at_ends(counted, [path for path in paths if path.settled], normal, Counter())
    if not modes:
        # Densities at the last points of endless paths tell nothing of their mass.
        modes = _by_newton(counted, paths[0], noise, epsilon, most_full)
        modes = modes or _on_the_way(paths[0], normal)
    modes.sort(key=lambda mode: mode.log_mass, reverse=True)
    if not is_good(modes[0]) and modes[0].factor.ndim == 2:
        end, first = modes[0].mean, improved(counted, modes[0], generator)
        path = next((path for path in paths if path.settled and path.positions[-1] is end), None)
        if path is not None and (first.spread > FALSE_END or len(path.values) > LONG):
            other = improved(counted, _on_the_way(path, normal)[0], generator)
            first = max(first, other, key=lambda mode: mode.log_mass)
        modes[0] = first
        modes.sort(key=lambda mode: mode.log_mass, reverse=True)
    return Start(tuple(modes), counted.evaluations)


@np.errstate(all="ignore")
def more_modes(
    evaluate: Evaluate,
    points: Float[np.ndarray, "P D"],
    modes: tuple[Mode, ...],
    generator: np.random.Generator,
    epsilon: float,
) -> tuple[tuple[Mode, ...], list[int]]:
    """The modes that paths from further points (P, D) find beside these.

    A path is left where a known mode explains density and score: most that lead to a mode whose
    Normal is a good picture take one evaluation.

    Returns
    -------
    tuple of Mode
        New ones.
    list of int
        How many of the paths led to each of the known modes, and to each of the new ones.
    """
    values, scores = evaluate(points)
    finite = np.isfinite(values) & np.isfinite(scores).all(-1)
    if not finite.any():
        return (), [0] * len(modes)
    hits = Counter[int]()

    def is_known(point: Vector, value: float, score: Vector) -> bool:
        for number, mode in enumerate(modes):
            if explains(mode, point, value, score):
                hits[number] += 1
                return True
        return False

    paths = side_by_side(
        evaluate, points[finite], values[finite], scores[finite], epsilon, is_known
    )
    noise = generator.normal(size=(DRAWS, points.shape[1]))

    normal = partial(local_normal, evaluate, noise=noise, epsilon=epsilon)
    ends = [path for path in paths if path.settled and not path.known]
    every = _at_ends(evaluate, ends, normal, hits, modes)
    new = [k for k in range(len(modes), len(every)) if gain(every[k], modes, noise) > 1.0]
    return tuple(every[k] for k in new), [hits[k] for k in (*range(len(modes)), *new)]


def is_good(mode: Mode) -> bool:
    """Whether a Normal is a fair picture of the density."""
    return mode.spread < GOOD + GOOD_PER_DIMENSION * len(mode.mean)


Normal = Callable[[Vector, float], "Mode | None"]


def _at_ends(
    evaluate: Evaluate,
    paths: list[Path],
    normal: Normal,
    hits: Counter[int],
    known: tuple[Mode, ...] = (),
) -> list[Mode]:
    """Known modes, and Normals at those of paths' ends that are separate from them.

    Paths are counted, in ``hits``, by the number of the mode that they lead to.
    """
    modes = list(known)
    for path in paths:
        for number, mode in enumerate(modes):
            if _is_of(mode, path) or _is_joined(evaluate, mode, path):
                hits[number] += 1
                break
        else:
            if (found := normal(path.positions[-1], path.scales[-1])) is not None:
                hits[len(modes)] += 1
                modes.append(found)
    return modes


def is_near(mode: Mode, points: Float[np.ndarray, "*S D"]) -> Bool[np.ndarray, "*S"]:
    """Whether points lie where a Normal has its mass."""
    near: np.ndarray = np.square(mode.whitened(points)).sum(-1) < NEAR + points.shape[-1]
    return near


def explains(mode: Mode, point: Vector, value: float, score: Vector) -> bool:
    """Whether density and score at a point, however far away, are those of a mode's Normal.

    A Newton step with the Normal's covariance ends at its mean then.
    """
    white = mode.whitened(point)
    pull = score * mode.factor if mode.factor.ndim == 1 else score @ mode.factor
    # In the Normal's coordinates its score is minus the position, so that ``left`` is zero for it.
    left, fall = white + pull, 0.5 * float(white @ white)
    agrees = abs(value - (mode.log_top - fall)) < AGREES + SHARE * fall
    return bool(agrees and float(left @ left) < NEAR + len(point))


def gain(mode: Mode, others: tuple[Mode, ...], noise: Float[np.ndarray, "S D"]) -> float:
    """Nats by which the density exceeds others' Normals, on average over a mode's own draws."""
    own = mode.log_top - 0.5 * np.square(noise).sum(-1)
    drawn = mode.at(noise)
    theirs = [each.log_top - 0.5 * np.square(each.whitened(drawn)).sum(-1) for each in others]
    return float(np.mean(own - np.logaddexp.reduce(theirs, axis=0)))


def _is_of(mode: Mode, path: Path) -> bool:
    """Whether the end of a path lies where a Normal has its mass, and is no higher than that."""
    white = mode.whitened(path.positions[-1])
    square = float(white @ white)
    most = mode.log_top - 0.5 * square + EXCESS + 2.0 * mode.spread
    return square < NEAR + len(white) and path.values[-1] < most


def _is_joined(evaluate: Evaluate, mode: Mode, path: Path) -> bool:
    """Whether the density has no dip between a mode and the end of a path, nor a peak there."""
    end, top = path.positions[-1], path.values[-1]
    evenly = np.arange(BETWEEN + 1) / (BETWEEN + 1)
    # From one standard deviation of the mode on, where its Normal begins to fall.
    nearest = 1.0 / max(2.0, float(np.linalg.norm(mode.whitened(end))))
    outwards = np.geomspace(nearest, 1.0, OUTWARDS, endpoint=False)
    values, _ = evaluate(mode.mean + evenly[:, None] * (end - mode.mean))
    height = values[0]
    if values.min() > min(height, top) - DIP:
        values, _ = evaluate(mode.mean + outwards[:, None] * (end - mode.mean))
    has_dip = values.min() <= min(height, top) - DIP
    return not has_dip and bool(top < height + EXCESS + 2.0 * mode.spread)


def _by_newton(
    evaluate: Evaluate,
    path: Path,
    noise: Float[np.ndarray, "S D"],
    epsilon: float,
    most_full: int,
) -> list[Mode]:
    """The Normal at the mode that Newton steps from a path's last point come to, if they do.

    A quasi-Newton path of a hundred dimensions and more may spend its iterations some standard
    deviations from its mode, where the curvature is that of the mode already. The path ends at the
    mode then, for two evaluations of each dimension and a few more.
    """
    point, value, score = path.positions[-1], path.values[-1], path.scores[-1]
    if len(point) > most_full:
        return []
    factor = local_factor(evaluate, point, path.scales[-1] * np.eye(len(point)), epsilon)
    if factor is None:
        return []
    for _ in range(NEWTON_STEPS):
        # The Newton step is L L' s; its length in standard deviations is that of L's.
        move = score @ factor
        # What the step would gain by its quadratic model.
        if 0.5 * float(move @ move) < GAIN:
            break
        point = point + factor @ move
        values, scores = evaluate(point[None])
        if not values[0] > value:
            return []
        value, score = float(values[0]), scores[0]
    mode = Mode(point, factor, 0.0, 0.0)
    values, scores = evaluate(mode.at(noise))
    # What a Newton step from each draw leaves of its distance to the mean. Down a funnel the
    # curvature along it is that of differences over more than its width.
    left = noise + scores @ factor
    if not np.square(left).mean(0).max() < LEFT:
        return []
    path.add(point, value, score, path.scales[-1] ** 2)
    path.settled = True
    return [judged(mode, values, noise)]


def _on_the_way(path: Path, normal: Normal) -> list[Mode]:
    """The Normal with the highest bound of some along a path; close together at first, since a
    path down a funnel leaves what is worth having early."""
    last = len(path.positions) - 1
    rows = np.unique(np.geomspace(1, max(1, last), CANDIDATES).round().astype(int))
    points = [(path.positions[row], path.scales[row]) for row in rows if row <= last]
    points = points or [(path.positions[0], path.scales[0])]
    found = [mode for given in points if (mode := normal(*given)) is not None]
    if not found:
        dim = len(path.positions[0])
        return [Mode(path.positions[0], 0.1 * np.eye(dim), -math.inf, math.inf)]
    return [max(found, key=lambda mode: mode.log_mass)]


def local_normal(
    evaluate: Evaluate,
    point: Vector,
    guess: float,
    noise: Float[np.ndarray, "S D"],
    epsilon: float,
    most_full: int = MOST_DIMENSIONS,
) -> Mode | None:
    """The Normal with the curvature at a point, judged by draws; None where there is none."""
    factor: Any
    if len(point) > most_full:
        factor = local_deviations(evaluate, point, guess, noise, epsilon)
    else:
        factor = local_factor(evaluate, point, guess * np.eye(len(point)), epsilon)
    if factor is None:
        return None
    mode = Mode(point, factor, 0.0, 0.0)
    values, _ = evaluate(mode.at(noise))
    return judged(mode, values, noise)


def judged(mode: Mode, values: Float[np.ndarray, " S"], noise: Float[np.ndarray, "S D"]) -> Mode:
    """A Normal with its bound and spread, from log densities at its draws."""
    ratios = values + 0.5 * np.square(noise).sum(-1)
    if not np.isfinite(ratios).all():
        return Mode(mode.mean, mode.factor, -math.inf, math.inf)
    # Minus the Normal's log density but for -|noise|^2 / 2, which ``ratios`` have.
    constant = mode.log_scale + 0.5 * noise.shape[1] * math.log(2.0 * math.pi)
    return Mode(mode.mean, mode.factor, float(ratios.mean()) + constant, float(ratios.std()))


def improved(evaluate: Evaluate, mode: Mode, generator: np.random.Generator) -> Mode:
    """The best of a Normal and those that some natural-gradient steps on the bound make of it.

    The steps of variational inference with a full Normal (M. Opper and C. Archambeau, "The
    variational Gaussian approximation revisited", 2009: the precision becomes minus the mean
    Hessian, the mean moves by covariance times mean score), with both means by a linear regression
    of scores on draws. Draws far below the others in log ratio, as in the neck of a funnel, count
    little: a Normal too wide would learn from nothing else.
    """
    dim = len(mode.mean)
    half = max(DRAWS, DRAWS_PER_DIMENSION * dim) // 2
    best = mode
    for number in range(ROUNDS):
        noise = generator.normal(size=(half, dim))
        # Mirrored, so that the mean of the draws is the Normal's and takes no part in the
        # regression's slope.
        noise = np.concatenate([noise, -noise])
        values, scores = evaluate(mode.at(noise))
        mode = judged(mode, values, noise)
        # The first estimate was made with fewer draws.
        if number == 0 or mode.log_mass > best.log_mass:
            best = mode
        if is_good(mode):
            break
        mode = _step(mode, values, scores, noise)
    return best


def _step(
    mode: Mode,
    values: Float[np.ndarray, " S"],
    scores: Float[np.ndarray, "S D"],
    noise: Float[np.ndarray, "S D"],
) -> Mode:
    """The Normal one natural-gradient step on."""
    finite = np.isfinite(values) & np.isfinite(scores).all(-1)
    if not finite.any():
        return Mode(mode.mean, 0.5 * mode.factor, -math.inf, math.inf)
    values, scores, noise = values[finite], scores[finite], noise[finite]
    ratios = values + 0.5 * np.square(noise).sum(-1)
    # The root of the weights, since least squares squares it; 1 above the median, so that no draw
    # rules.
    root = np.exp(0.5 * np.minimum(0.0, ratios - np.median(ratios)) / TOLERANCE)[:, None]
    dim = noise.shape[1]
    # Scores in the Normal's own coordinates are push - curvature noise where the density is a
    # Normal; the last rows say that the curvature is the present one's.
    prior = math.sqrt(PRIOR_DRAWS) * np.eye(dim)
    design = np.block([[root, root * noise], [np.zeros((dim, 1)), prior]])
    found = np.linalg.lstsq(design, np.concatenate([root * (scores @ mode.factor), -prior]))[0]
    push, curvature = found[0], -0.5 * (found[1:] + found[1:].T)
    sizes, vectors = np.linalg.eigh(curvature)
    sizes = np.clip(1.0 + RATE * (sizes - 1.0), *CHANGES)
    # The natural step is push over curvature; where the curvature is below 1 the Normal is too
    # narrow to trust it, and the step stays that of the present width.
    move = RATE * (vectors @ ((vectors.T @ push) / np.maximum(sizes, 1.0)))
    move *= min(1.0, FARTHEST / max(float(np.linalg.norm(move)), FARTHEST))
    factor = lower_factor(mode.factor @ (vectors / np.sqrt(sizes)))
    return Mode(mode.mean + mode.factor @ move, factor, -math.inf, math.inf)
