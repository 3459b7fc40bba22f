"""Where a program as written has a neck, and how far each entry of a site is better centred.

An entry x of a site has location m and scale s, which is latent. In between centred and non-centred
it is written with w = s^(c - 1) (x - m) + c m: centred for c = 1, non-centred for c = 0. Data that
tell as much as a row of precision h leave w the precision s^(-2c) + h s^(2 - 2c). Chains are tuned
to one precision, so that it should depend on s as little as can be. It is the same at both ends
of the range of log s where c is the mean over that range of h s^2 / (1 + h s^2), the data's share
of what is known of x given the scale. So entries with few data are all but non-centred, those with
many all but centred. M. I. Gorinova, D. Moore and M. D. Hoffman, "Automatic reparameterisation of
probabilistic programs" (2020), write programs so, and fit c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float

from ppl_ext.fit.problem.problem import Meter, Problem
from ppl_ext.fit.verdict import policy
from ppl_ext.start.paths import Evaluate
from ppl_ext.start.start import Mode

#: How far to either side of a mode widths are compared, in standard deviations of a coordinate.
FAR = 3.0
#: Step of the differences that curvatures are from, in standard deviations.
STEP = 0.05
#: Where scales are looked at on both sides of a mode, in its standard deviations. An exponential
#: tail, which a scale without data has near 0, has fallen by ``FAR**2 / 2`` nats within seven of
#: them; a ridge, which the non-centred way makes of many data, has a mode that is narrower.
ALONG = np.array([1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0])
#: Coordinates that change a scale, up to which they are followed: each takes 100 evaluations.
MOST_FOLLOWED = 12
#: The number of these times that of all dimensions, likewise: for each of them matrices of all
#: dimensions are inverted at every place.
MOST_ENTRIES = 4_000
#: Newton steps at each place.
NEWTON_STEPS = 3
#: Places of the range of a scale at which precisions are compared.
ALONG_RANGE = 33
#: Largest centring up to which the non-centred way is as good, and needs no third program.
LEAST_CENTRED = 0.3
#: Centrings are multiples of this, which single precision has exactly.
GRAIN = 1.0 / 64.0

Positions = np.ndarray


@dataclass(frozen=True)
class Centring:
    """How far entries are centred.

    Attributes
    ----------
    entries : dict of str to array
        By site as written, numbers from 0 (non-centred) to 1 (centred) of the shape of a value of
        the site.
    strain : float
        Factor by which the precision of an entry that is written so still changes over the range of
        its scale, given the others.
    """

    entries: dict[str, np.ndarray] = field(default_factory=dict)
    strain: float = 1.0

    @property
    def least(self) -> float:
        """That of the entry that is centred least."""
        return min((float(each.min()) for each in self.entries.values()), default=np.inf)


@np.errstate(all="ignore")
def has_neck(written: Problem, other: Problem, mode: Mode, meter: Meter) -> bool:
    """Whether widths of the sites that another way has non-centred depend much on other sites.

    Parameters
    ----------
    written, other : Problem
        The program as written, and with sites non-centred.
    mode : Mode
        Of the program as written.
    meter : Meter
        Counts four evaluations for each other coordinate.
    """
    own = _own(written, list(other.latents))
    where = np.flatnonzero(~own)
    if not own.any() or not len(where):
        return False
    direction = np.where(own, mode.deviations, 0.0) * np.resize([1.0, -1.0], written.dim)
    ends = mode.mean + FAR * np.stack([np.diag(mode.deviations), -np.diag(mode.deviations)])
    points = ends[:, where, None] + STEP * direction * np.array([[1.0], [-1.0]])
    _, scores = meter.of(written.evaluate)(points.reshape(-1, written.dim))
    slopes = (scores @ direction).reshape(points.shape[:-1])
    curvatures = (slopes[..., 1] - slopes[..., 0]) / (2.0 * STEP)
    # Where a density is not finite, or not concave, nothing is said against the way it is written.
    return bool((curvatures.max(0) / curvatures.min(0) > policy.STRAINED).any())


@np.errstate(all="ignore")
def centring_of(written: Problem, other: Problem, mode: Mode, meter: Meter) -> Centring:
    """How far each entry of the sites that another way has non-centred should be centred.

    Parameters
    ----------
    written, other : Problem
        The program as written, and with sites non-centred.
    mode : Mode
        Of the program with sites non-centred.
    meter : Meter
        Counts 100 evaluations for each coordinate that changes a scale.

    Returns
    -------
    Centring
        Without entries where the non-centred way is as good, and where there are so many numbers
        that the mode has no covariances.
    """
    if written.maps is None or not other.latents or mode.factor.ndim == 1:
        return Centring()
    own = _own(other, list(other.latents.values()))
    places = [other.coordinates[latent] for latent in other.latents.values()]
    told = _told(mode, sorted(places, key=lambda place: place.start))
    if told.max(initial=0.0) / (1.0 + told.max(initial=0.0)) < LEAST_CENTRED:
        return Centring()
    at_mode = _log_scales(written, other, mode.mean[None])
    where = np.flatnonzero(~own)
    beside = mode.mean + np.diag(mode.deviations)[where]
    followed = where[(np.abs(_log_scales(written, other, beside) - at_mode) > STEP).any(1)]
    most = min(MOST_FOLLOWED, MOST_ENTRIES // other.dim)
    if not 0 < len(followed) <= most:
        return Centring()
    low, high = np.zeros(own.sum()), np.zeros(own.sum())
    steps = np.concatenate([-ALONG[::-1], [0.0], ALONG])
    for column in followed:
        points = np.repeat(mode.mean[None], len(steps), 0)
        points[:, column] += steps * mode.deviations[column]
        changes = _log_scales(written, other, points) - at_mode
        marginal = _marginal(meter.of(other.evaluate), mode, own, told, column, points, changes)
        if np.isneginf(marginal).all():
            return Centring()
        ends = np.stack(_ends(marginal, changes))
        low, high = np.minimum(low, ends.min(0)), np.maximum(high, ends.max(0))
    of_low, of_high = (np.log1p(told * np.exp(2.0 * end)) for end in (low, high))
    shares = (of_high - of_low) / (2.0 * np.maximum(high - low, STEP))
    centred = np.zeros(other.dim)
    centred[own] = GRAIN * np.round(np.clip(shares, 0.0, 1.0) / GRAIN)
    if not centred.max() >= LEAST_CENTRED:
        return Centring()
    shapes = other.own.layout.shapes
    entries = {
        site: centred[other.coordinates[latent]].reshape(shapes[latent])
        for site, latent in other.latents.items()
    }
    logs = low + np.linspace(0.0, 1.0, ALONG_RANGE)[:, None] * (high - low)
    precisions = np.log1p(told * np.exp(2.0 * logs)) - 2.0 * centred[own] * logs
    return Centring(entries, float(np.exp(np.ptp(precisions, axis=0).max())))


def _told(mode: Mode, sites: Sequence[slice]) -> Float[np.ndarray, " own"]:
    """What data tell of entries, as precisions beside those of their priors, which are 1.

    All that comes before them in the program is given, and all that is not such an entry. Entries
    of later sites are integrated out: these may have the former as their locations, and would tell
    more of them than the data do.
    """
    root = np.linalg.inv(mode.root)
    told, later = list[np.ndarray](), np.zeros(0, int)
    for place in reversed(sites):
        here = np.arange(place.start, place.stop)
        later = np.concatenate([here, later])
        covariance = np.linalg.inv(root[:, later].T @ root[:, later])
        told.append(1.0 / np.diag(covariance)[: len(here)] - 1.0)
    return np.maximum(np.concatenate(told[::-1]), 0.0)


def _ends(
    marginal: Float[np.ndarray, " P"], changes: Float[np.ndarray, "P own"]
) -> tuple[Float[np.ndarray, " own"], Float[np.ndarray, " own"]]:
    """Changes of log scales at both ends of where a density is high, between points if need be."""
    level = marginal.max() - FAR**2 / 2.0
    inside = np.flatnonzero(marginal >= level)

    def end(last: int, beyond: int) -> Float[np.ndarray, " own"]:
        if not 0 <= beyond < len(marginal) or np.isneginf(marginal[beyond]):
            return changes[last]
        share = (marginal[last] - level) / (marginal[last] - marginal[beyond])
        there: Float[np.ndarray, " own"] = changes[beyond] - changes[last]
        return changes[last] + share * there

    return end(inside[0], inside[0] - 1), end(inside[-1], inside[-1] + 1)


def _marginal(
    evaluate: Evaluate,
    mode: Mode,
    own: Bool[np.ndarray, " D"],
    told: Float[np.ndarray, " own"],
    column: int,
    points: Positions,
    changes: Float[np.ndarray, "P own"],
) -> Float[np.ndarray, " P"]:
    """Log densities of one coordinate at points along it, the others integrated out.

    By Laplace's approximation, after Newton steps from where the entries are with as much of their
    data's say as the scale leaves. The curvature is that of the mode, of which the data's part goes
    with the scales; where all is Normal given the scales, one step is exact. Steps that do not rise
    are halved. -inf where a density or a curvature is none.
    """
    points = points.copy()
    points[:, own] *= np.exp(changes) * (1.0 + told) / (1.0 + told * np.exp(2.0 * changes))
    others = np.delete(np.arange(points.shape[1]), column)
    root = np.linalg.inv(mode.root)[:, others]
    of_prior = own[others].astype(float)
    of_data = root.T @ root - np.diag(of_prior)
    grown = np.ones(points.shape)
    grown[:, own] = np.exp(changes)
    inverses, log_dets = [], np.full(len(points), np.inf)
    for number, factor in enumerate(grown[:, others]):
        precision = np.diag(of_prior) + factor[:, None] * of_data * factor
        inverses.append(np.zeros_like(precision))
        sign, log_det = np.linalg.slogdet(precision)
        if sign > 0.0 and np.isfinite(log_det):
            inverses[-1], log_dets[number] = np.linalg.inv(precision), log_det
    values, scores = evaluate(points)
    shares = np.ones(len(points))
    for _ in range(NEWTON_STEPS):
        moved = points.copy()
        along = np.einsum("pij,pj->pi", np.array(inverses), np.nan_to_num(scores[:, others]))
        moved[:, others] += shares[:, None] * along
        there, scores_there = evaluate(moved)
        better = there > values
        points[better], values[better], scores[better] = (
            moved[better],
            there[better],
            scores_there[better],
        )
        shares = np.where(better, 1.0, 0.5 * shares)
    marginal = values - 0.5 * log_dets
    return np.where(np.isfinite(marginal), marginal, -np.inf)


def _own(problem: Problem, names: list[str]) -> np.ndarray:
    """Which coordinates are those of these sites."""
    own = np.zeros(problem.dim, bool)
    for name in names:
        own[problem.coordinates[name]] = True
    return own


def _log_scales(written: Problem, other: Problem, points: Positions) -> Positions:
    """Logs of the scales of all entries that are non-centred, in the order of coordinates.

    They are found from a step of 1 of the non-centred entry, which moves the entry as written by
    its scale.
    """
    first = written.positions_of(other, points)
    found = np.zeros((len(points), other.dim))
    for site, latent in other.latents.items():
        shifted, place = points.copy(), other.coordinates[latent]
        shifted[:, place] += 1.0
        moved = written.positions_of(other, shifted)[:, written.coordinates[site]]
        found[:, place] = np.log(np.abs(moved - first[:, written.coordinates[site]]))
    return found[:, _own(other, list(other.latents.values()))]
