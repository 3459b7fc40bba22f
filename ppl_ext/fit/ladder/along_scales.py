"""A mixture of Normals along scales: where all else lies, and how widely, given scales.

The log density of the others given scales is taken for that of a Normal, as H. Rue, S. Martino and
N. Chopin, "Approximate Bayesian inference for latent Gaussian models by using integrated nested
Laplace approximations" (2009), section 3, take it. Values of the scales lie on a grid that goes
on until little mass is left. So the mixture has draws where a scale is near zero, where a Normal at
the mode and mixtures fitted to its draws have few, and there they are as narrow as the others are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from ppl_ext.chains.hamiltonian import Factor
from ppl_ext.chains.proposal import Proposal
from ppl_ext.start.local_normal import step_of
from ppl_ext.start.paths import Evaluate
from ppl_ext.start.start import Mode

#: Scales of which there is a grid at most, and parameters: a point of it takes two evaluations for
#: each of them.
MOST_SCALES, MOST_PARAMETERS = 2, 50
#: Places along a scale, in standard deviations of the Normal at the mode to either side. Far out
#: they are further apart, as logarithms of scales have an exponential tail.
PLACES = (0.0, 0.7, 1.4, 2.2, 3.2, 4.5, 6.0, 8.0, 11.0, 15.0)
#: Nats below the largest density of the scales at which the grid ends: a tail of 1/3,000 is left.
DEPTH = 8.0
#: Standard deviation of a component along a scale, as a share of the distance between places: the
#: sum of Normals that far apart is even.
SHARE = 0.7
#: Newton's steps to where the others lie, and the longest, in standard deviations, after which no
#: further one is made.
STEPS, SHORT = 4, 0.2

Positions = Float[np.ndarray, "P D"]


@dataclass(frozen=True)
class Conditional:
    """The Normal of all others given scales: at one place of the grid.

    Attributes
    ----------
    mean : array (D,)
        The scales as they are there, and the others' means.
    slopes : array (R, K)
        By which these change with the scales.
    factor : array (R, R)
        Lower Cholesky factor of the others' covariance.
    log_density : float
        Of the scales, up to a constant.
    """

    mean: Float[np.ndarray, " D"]
    slopes: Float[np.ndarray, "R K"]
    factor: Float[np.ndarray, "R R"]
    log_density: float


@np.errstate(all="ignore")
def along_scales(
    evaluate: Evaluate, mode: Mode, scales: Sequence[int], epsilon: float
) -> tuple[Proposal, Factor] | None:
    """A mixture along scales, and a root of its covariance.

    None where there are more scales or parameters than grids are for, or no Normal was found.

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
    dim = len(mode.mean)
    if not 0 < len(scales) <= MOST_SCALES or dim > MOST_PARAMETERS or len(scales) == dim:
        return None
    which = np.asarray(scales)
    widths = mode.deviations[which]
    places = np.array([*(-place for place in PLACES[:0:-1]), *PLACES])
    middle = (len(PLACES) - 1,) * len(which)
    found: dict[tuple[int, ...], Conditional] = {}
    seen, wave = {middle}, {middle: mode.mean}
    while wave:
        points = np.stack(list(wave.values()))
        points[:, which] = mode.mean[which] + widths * places[np.array(list(wave))]
        for at, one in zip(
            wave, _conditionals(evaluate, points, which, mode, epsilon), strict=True
        ):
            if one is not None:
                found[at] = one
        if not found:
            return None
        top = max(one.log_density for one in found.values())
        wave = {}
        for at, one in found.items():
            if one.log_density < top - DEPTH:
                continue
            for axis, turn in itertools.product(range(len(which)), (-1, 1)):
                near = tuple(n + turn * (k == axis) for k, n in enumerate(at))
                if near in seen or not 0 <= near[axis] < len(places):
                    continue
                seen.add(near)
                wave[near] = _moved(one, which, widths * (places[list(near)] - places[list(at)]))
    return _mixture(found, which, widths, places)


def _moved(
    one: Conditional, scales: np.ndarray, by: Float[np.ndarray, " K"]
) -> Float[np.ndarray, " D"]:
    """Where the others lie, by their slopes, if the scales change."""
    moved = one.mean.copy()
    moved[np.setdiff1d(np.arange(len(moved)), scales)] += one.slopes @ by
    return moved


def _conditionals(
    evaluate: Evaluate,
    points: Positions,
    scales: np.ndarray,
    mode: Mode,
    epsilon: float,
) -> list[Conditional | None]:
    """The Normals of the others at points, which are first guesses; None where there is none."""
    number, dim = points.shape
    others = np.setdiff1d(np.arange(dim), scales)
    found: list[Conditional | None] = [None] * number
    left, moves = np.arange(number), step_of(epsilon) * np.diag(mode.deviations)
    for _ in range(STEPS):
        here = points[left]
        around = np.stack(
            [here, *(here + each for each in moves), *(here - each for each in moves)]
        )
        values, scores = evaluate(around.reshape(-1, dim))
        values, scores = values.reshape(-1, len(left)), scores.reshape(-1, len(left), dim)
        # Minus the second derivatives, by a coordinate of each difference.
        change = (scores[dim + 1 :] - scores[1 : dim + 1]) / (2.0 * np.diag(moves)[:, None, None])
        again = []
        for k, row in enumerate(left):
            precision = 0.5 * (change[:, k] + change[:, k].T)
            own = precision[np.ix_(others, others)]
            try:
                root = np.linalg.cholesky(own)
            except np.linalg.LinAlgError:
                continue
            inverse = np.linalg.inv(root)
            white = inverse @ scores[0, k, others]
            if not np.isfinite(white).all() or not np.isfinite(values[0, k]):
                continue
            points[row, others] += inverse.T @ white
            if np.linalg.norm(white) > SHORT:
                again.append(row)
            factor = np.linalg.cholesky(inverse.T @ inverse)
            found[row] = Conditional(
                points[row].copy(),
                -inverse.T @ inverse @ precision[np.ix_(others, scales)],
                factor,
                float(values[0, k] + 0.5 * white @ white - np.log(np.diag(root)).sum()),
            )
        left = np.array(again, dtype=int)
        if not len(left):
            break
    return found


def _mixture(
    found: dict[tuple[int, ...], Conditional],
    scales: np.ndarray,
    widths: Float[np.ndarray, " K"],
    places: Float[np.ndarray, " G"],
) -> tuple[Proposal, Factor]:
    """The mixture of these Normals, each of as much of the scales as is nearest to its place."""
    distances = np.gradient(places)
    modes, log_weights = list[Mode](), list[float]()
    for at, one in found.items():
        own = SHARE * widths * distances[list(at)]
        dim = len(one.mean)
        others = np.setdiff1d(np.arange(dim), scales)
        root = np.zeros((dim, dim))
        root[np.ix_(scales, np.arange(len(scales)))] = np.diag(own)
        root[np.ix_(others, np.arange(len(scales)))] = one.slopes * own
        root[np.ix_(others, np.arange(len(scales), dim))] = one.factor
        log_weights.append(one.log_density + float(np.log(distances[list(at)]).sum()))
        modes.append(Mode(one.mean, _lower(root), log_weights[-1], 0.0))
    weights = np.exp(np.array(log_weights) - logsumexp(log_weights))
    means, roots = np.stack([m.mean for m in modes]), np.stack([m.root for m in modes])
    off = means - weights @ means
    covariance = np.einsum("k,kij,klj->il", weights, roots, roots)
    covariance += (weights[:, None] * off).T @ off
    return Proposal(tuple(modes), weights), np.linalg.cholesky(covariance)


def _lower(root: Float[np.ndarray, "D D"]) -> Float[np.ndarray, "D D"]:
    """The lower Cholesky factor of which another root of the same covariance is."""
    upper = np.linalg.qr(root.T).R
    found: Float[np.ndarray, "D D"] = upper.T * np.where(np.diag(upper) < 0.0, -1.0, 1.0)
    return found
