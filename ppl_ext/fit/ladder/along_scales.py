"""A mixture of Normals along scales: where all else lies, and how widely, given scales.

The density of the others given scales is taken for that of a Normal, as H. Rue, S. Martino and
N. Chopin, "Approximate Bayesian inference for latent Gaussian models by using integrated nested
Laplace approximations" (2009), section 3, take it. Values of the scales lie on a grid that goes on
until little mass is left. So the mixture has draws where a scale is near zero, where a Normal at
the mode and mixtures fitted to its draws have few, and there they are as narrow as the others are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from ppl_ext.chains.hamiltonian import Factor
from ppl_ext.chains.proposal import Proposal
from ppl_ext.start.local_normal import lower_factor, step_of
from ppl_ext.start.paths import Evaluate, Vector
from ppl_ext.start.start import Mode

#: Parameters up to which there is a grid, by the number of scales: with two evaluations for each of
#: them at a place it takes no more than chains do at least.
MOST_PARAMETERS = {1: 100, 2: 30}
#: Places along a scale, in standard deviations of the Normal at the mode to either side. Far out
#: they are further apart, as logarithms of scales have an exponential tail. Where there are two
#: scales each has half as many.
PLACES = (0.0, 0.6, 1.2, 1.8, 2.4, 3.0, 3.7, 4.5, 5.5, 6.8, 8.5, 11.0, 14.0, 18.0, 23.0, 29.0)
#: Nats below the largest density of the scales at which the grid ends: a tail of 1/3,000 is left.
DEPTH = 8.0
#: Standard deviation of a component along a scale, as a share of the distance between places: the
#: sum of Normals that far apart is even.
SHARE = 0.9
#: Newton's steps to where the others lie at most, and nats by which the density that a step
#: predicts may be wrong for it to be the last.
STEPS, AGREED = 4, 0.05
#: Rounding of a log density, as a multiple of its relative precision, that is no such error.
ROUNDED = 4.0

Places = tuple[int, ...]
Positions = Float[np.ndarray, "P D"]


def has_grid(scales: int, dim: int) -> bool:
    """Whether there is a grid of so many scales among D parameters."""
    return scales < dim <= MOST_PARAMETERS.get(scales, 0)


@np.errstate(all="ignore")
def along_scales(
    evaluate: Evaluate, mode: Mode, scales: Sequence[int], epsilon: float
) -> tuple[Proposal, Factor] | None:
    """A mixture along scales, and a root of its covariance.

    None where there are more scales or parameters than grids are for, where the others are no
    Normal at some place, and where the grid ends before the density has fallen.

    Parameters
    ----------
    evaluate : callable
        Log densities (P,) and scores (P, D).
    mode : Mode
        A Normal, at whose mean the grid begins.
    scales : sequence of int
        Coordinates of the scales.
    epsilon : float
        Relative precision of scores.

    Raises
    ------
    SpentError
        The evaluations ended.
    """
    dim, which = len(mode.mean), np.asarray(scales, int)
    if not has_grid(len(which), dim):
        return None
    one_side = PLACES[:: len(which)]
    places = np.array([*(-place for place in one_side[:0:-1]), *one_side])
    widths, middle = mode.deviations[which], (len(one_side) - 1,) * len(which)
    found: dict[Places, tuple[Mode, Positions]] = {}
    seen, wave = {middle}, {middle: mode.mean}
    while wave:
        points = np.stack(list(wave.values()))
        points[:, which] = mode.mean[which] + widths * places[np.array(list(wave))]
        normals = _given(evaluate, points, which, mode, epsilon)
        if normals is None:
            return None
        found |= zip(wave, normals, strict=True)
        top, wave = max(normal.log_mass for normal, _ in found.values()), {}
        for at, (normal, slopes) in found.items():
            if normal.log_mass < top - DEPTH:
                continue
            for axis, turn in itertools.product(range(len(which)), (-1, 1)):
                near = tuple(n + turn * (k == axis) for k, n in enumerate(at))
                if not 0 <= near[axis] < len(places):
                    return None
                if near not in seen:
                    seen.add(near)
                    by = widths * (places[list(near)] - places[list(at)])
                    wave[near] = normal.mean + slopes @ by
    return _mixture(found, which, widths, places)


def _given(
    evaluate: Evaluate, points: Positions, scales: np.ndarray, mode: Mode, epsilon: float
) -> list[tuple[Mode, Positions]] | None:
    """The Normals given scales as they are at points (P, D), near which the others lie.

    In each the scales are fixed: their rows of the factor are zero, and its mass is their density.
    Beside it are the slopes (D, K) by which means change with the scales, for which these have
    slopes of 1. None where some point has no Normal.
    """
    number, dim = points.shape
    others = np.setdiff1d(np.arange(dim), scales)
    lengths = step_of(epsilon) * mode.deviations[others]
    moves = lengths[:, None] * np.eye(dim)[others]
    found: dict[int, tuple[Mode, Positions]] = {}
    left = np.arange(number)
    for _ in range(STEPS):
        here = points[left]
        around = np.concatenate([here[None], here + moves[:, None], here - moves[:, None]])
        values, scores = evaluate(around.reshape(-1, dim))
        values, scores = values[: len(left)], scores.reshape(*around.shape)
        ahead, behind = np.split(scores[1:], 2)
        # Minus the second derivatives (P, R, D): of all coordinates, by the others.
        curvatures = ((behind - ahead) / (2.0 * lengths[:, None, None])).swapaxes(0, 1)
        own = curvatures[:, :, others]
        try:
            roots = np.linalg.inv(np.linalg.cholesky(0.5 * (own + own.swapaxes(1, 2))))
        except np.linalg.LinAlgError:
            return None
        covariances = roots.swapaxes(1, 2) @ roots
        white = np.einsum("pij,pj->pi", roots, scores[0][:, others])
        points[np.ix_(left, others)] += np.einsum("pji,pj->pi", roots, white)
        after, _ = evaluate(points[left])
        if not np.isfinite(after).all():
            return None
        log_densities = after + np.log(np.abs(np.diagonal(roots, axis1=1, axis2=2))).sum(1)
        for row, at in enumerate(left.tolist()):
            slopes, factor = np.zeros((dim, len(scales))), np.zeros((dim, dim))
            slopes[scales] = np.eye(len(scales))
            slopes[others] = -covariances[row] @ curvatures[row][:, scales]
            factor[np.ix_(others, others)] = roots[row].T
            found[at] = Mode(points[at].copy(), factor, float(log_densities[row]), 0.0), slopes
        error = np.abs(values + 0.5 * np.square(white).sum(1) - after)
        left = left[~(error < AGREED + ROUNDED * epsilon * np.abs(after))]
        if not len(left):
            return [found[at] for at in range(number)]
    return None


def _mixture(
    found: dict[Places, tuple[Mode, Positions]],
    scales: np.ndarray,
    widths: Vector,
    places: Vector,
) -> tuple[Proposal, Factor]:
    """The mixture of these Normals, each of as much of the scales as is nearest to its place."""
    distances = np.gradient(places)[np.array(list(found))]
    log_weights = [normal.log_mass for normal, _ in found.values()] + np.log(distances).sum(1)
    weights = np.exp(log_weights - logsumexp(log_weights))
    modes = list[Mode]()
    for (normal, slopes), own in zip(found.values(), SHARE * widths * distances, strict=True):
        root = normal.root.copy()
        root[:, scales] = slopes * own
        modes.append(Mode(normal.mean, lower_factor(root), normal.log_mass, 0.0))
    means, roots = np.stack([m.mean for m in modes]), np.stack([m.root for m in modes])
    off = means - weights @ means
    covariance = np.einsum("k,kij,klj->il", weights, roots, roots)
    covariance += (weights[:, None] * off).T @ off
    return Proposal(tuple(modes), weights), np.linalg.cholesky(covariance)
