"""Whether many chains have come to rest, and what their draws are worth.

R-hat is that of A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Buerkner,
"Rank-normalization, folding, and localization: an improved R-hat for assessing convergence of
MCMC" (2021). Many short chains have a larger one than few long chains that are worth as many
draws. So that of more than four chains is the nested R-hat of C. Margossian, M. Hoffman, P.
Sountsov, L. Riou-Durand, A. Vehtari and A. Gelman, "Nested R-hat: assessing the convergence of
Markov chain Monte Carlo when running many short chains" (2024), of four groups of chains, averaged
over all ways to form such groups.

Effective numbers of draws are the least of three estimates: from autocorrelations up to a window
(A. Sokal, "Monte Carlo methods in statistical mechanics", 1997), from how far the means of chains
lie apart, where these tell significantly more, and from halves of chains and Geyer's sequences
(:mod:`ppl_ext.statistics.effective`). The last one sees the long stays of single chains in a tail,
which fast moves of all others hide from a short window.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import chdtri, ndtri, stdtr

from ppl_ext.statistics.effective import effective_number
from ppl_ext.statistics.pareto import pareto_fit, tail_length

#: Probability of each end at which the tails' effective number is taken.
TAIL = 0.05
#: Groups of chains that R-hat is of. In so many chains 400 effective draws have one of 1.01.
GROUPS = 4
#: Autocorrelation times that the window of an effective number has at least: Sokal's four.
WINDOW = 4.0
#: Probability of calling chains at rest adrift, over all coordinates together, and a shift, in
#: standard deviations, below which nobody minds.
LEVEL, LEAST_SHIFT = 1e-3, 0.05
#: Error of a standard deviation from which on tails are called heavy, and the shape of a tail from
#: which on the variance of squares is infinite or nearly so.
UNCERTAIN, HEAVY = 0.05, 0.25
#: Standard errors of its shape by which a tail that is surely heavy is above that.
SURE = 2.0
#: Draws that are expected beyond the quantile where a tail's squares are cut, so that nine sets of
#: ten have none there, and points at which they are summed.
BEYOND, POINTS = 0.1, 200
#: Machine epsilons by which rounding spreads what is one number, such as the diagonal of a
#: correlation matrix.
ROUNDING = 16.0
#: Fourth moment, as a share of the squared variance, from which on a few draws make the variance: a
#: Normal has 3, an exponential 9.
FEW = 20.0

Draws = Float[np.ndarray, "N M D"]


@dataclass(frozen=True)
class Convergence:
    """Figures of M chains of N draws each, by coordinate.

    Attributes
    ----------
    r_hat : array (D,)
        The larger of rank-normalised split R-hat and that of distances from the median, of
        groups of chains.
    ess_bulk, ess_tail : array (D,)
        Effective numbers of draws, for the middle, as ranks and as a mean, and for the less certain
        of both tails.
    deviation_error : array (D,)
        Standard error of the standard deviation, as a share of it; infinite where the tail is so
        heavy that there is none.
    is_heavy : bool array (D,)
        Where the tails are so heavy that no number of draws makes a standard deviation certain, or
        that a few draws make it; quantiles tell what it cannot.
    is_surely_heavy : bool array (D,)
        Where this is certain: few draws of an exponential may look so by chance.
    drift : array (D,)
        Shift of the chains from their first halves to their second, in standard deviations;
        of positions or of distances from the median, whichever is larger.
    p_value : float
        Of the largest drift, corrected for the number of figures.
    """

    r_hat: Float[np.ndarray, " D"]
    ess_bulk: Float[np.ndarray, " D"]
    ess_tail: Float[np.ndarray, " D"]
    deviation_error: Float[np.ndarray, " D"]
    is_heavy: Bool[np.ndarray, " D"]
    is_surely_heavy: Bool[np.ndarray, " D"]
    drift: Float[np.ndarray, " D"]
    p_value: float

    def part(self, where: slice) -> Convergence:
        """The figures of some coordinates."""
        own = {
            each.name: getattr(self, each.name)[where]
            for each in fields(self)
            if each.name != "p_value"
        }
        return replace(self, **own)

    @property
    def worst_deviation(self) -> float:
        """The largest error of a standard deviation, of those that have a value."""
        return float(self._deviations.max())

    @property
    def worst_deviation_at(self) -> int:
        """Where it is."""
        return int(self._deviations.argmax())

    @property
    def _deviations(self) -> Float[np.ndarray, " D"]:
        return np.where(self.is_heavy, 0.0, self.deviation_error)

    @property
    def is_adrift(self) -> bool:
        """Whether the chains still move away from where they started."""
        return self.p_value < LEVEL and float(self.drift.max()) > LEAST_SHIFT


# Draws of a posterior without bound may be so far out that their squares overflow.
@np.errstate(all="ignore")
def convergence(draws: Draws) -> Convergence:
    """Figures of chains (N, M, D), N at least 4."""
    centered = np.abs(draws - np.median(draws, axis=(0, 1)))
    bulk, folded = _normal_scores(draws), _normal_scores(centered)
    low, high = np.quantile(draws, [TAIL, 1.0 - TAIL], axis=(0, 1))
    tails = [_effective_number((draws <= low) * 1.0), _effective_number((draws >= high) * 1.0)]
    squares = np.square((draws - draws.mean((0, 1))) / draws.std((0, 1)))
    fourth = np.square(squares).mean((0, 1))
    # The spread of few chains is small where none of them has seen a tail.
    worth = effective_number(squares)
    by_draws = 0.5 * np.sqrt(np.maximum(fourth - 1.0, 0.0) / worth)
    tailed = zip(centered.reshape(-1, draws.shape[2]).T, worth, strict=True)
    shapes, uncertain, by_tails = np.array([_tail(*each) for each in tailed]).T
    errors = np.fmax(np.fmax(_deviation_errors(draws), by_draws), by_tails)
    is_heavy = (errors > UNCERTAIN) & ((fourth > FEW) | (shapes > HEAVY))
    shifts, ratios = zip(*map(_drift, (bulk, folded)), strict=True)
    chains, dim = draws.shape[1:]
    p_value = 2.0 * stdtr(chains - 1, -np.max(ratios)) * 2 * dim
    # Ranks do not see how far a tail reaches; a mean does, where there is one.
    of_means = np.where(is_heavy, np.inf, effective_number(draws))
    # Draws that are one number are worth one draw, whose deviation is not known at all.
    is_fixed = np.ptp(draws, axis=(0, 1)) == 0.0
    return Convergence(
        np.where(is_fixed, np.inf, np.maximum(_nested_r_hat(bulk), _nested_r_hat(folded))),
        np.where(is_fixed, 1.0, np.minimum(_effective_number(bulk), of_means)),
        np.where(is_fixed, 1.0, np.minimum(*tails)),
        np.where(is_fixed, 1.0, errors),
        is_heavy,
        is_heavy & (shapes - SURE * uncertain > HEAVY),
        np.max(shifts, axis=0),
        float(min(1.0, p_value)),
    )


@np.errstate(all="ignore")
def split_r_hat(draws: Draws) -> Float[np.ndarray, " D"]:
    """R-hat (D,) of chains (N, M, D), as in :class:`Convergence`; one chain is enough."""
    centered = np.abs(draws - np.median(draws, axis=(0, 1)))
    return np.maximum(*(_r_hat(_normal_scores(each)) for each in (draws, centered)))


def _normal_scores(draws: Draws) -> Draws:
    """Normal quantiles of the ranks among all chains' draws, coordinate by coordinate."""
    flat = draws.reshape(-1, draws.shape[-1])
    found = np.stack([ranks(column) for column in flat.T], axis=1)
    return ndtri((found - 0.375) / (len(flat) + 0.25)).reshape(draws.shape)


def ranks(column: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """Ranks from 1 on; equal draws, as of values at the edge of their support, have equal ones.

    SciPy's take half a second to import.
    """
    ordered = np.sort(column)
    below, upto = (np.searchsorted(ordered, column, side=side) for side in ("left", "right"))
    return 0.5 * (below + upto + 1.0)


def _r_hat(draws: Draws) -> Float[np.ndarray, " D"]:
    half = len(draws) // 2
    split = np.concatenate([draws[:half], draws[-half:]], axis=1)
    within = split.var(0, ddof=1).mean(0)
    between = split.mean(0).var(0, ddof=1)
    return np.sqrt((half - 1) / half + between / np.maximum(within, np.finfo(float).tiny))


def _nested_r_hat(draws: Draws) -> Float[np.ndarray, " D"]:
    """R-hat of groups of chains, averaged over ways to form them; of few chains R-hat itself.

    Means of groups of g chains vary by a g-th of what means of chains do.
    """
    if draws.shape[1] <= GROUPS:
        return _r_hat(draws)
    half = len(draws) // 2
    between = np.square(_r_hat(draws)) - (half - 1) / half
    return np.sqrt(1.0 + between * GROUPS / draws.shape[1])


def _effective_number(draws: Draws) -> Float[np.ndarray, " D"]:
    number, chains, dim = draws.shape
    most = float(number * chains)
    apart = draws.mean(0).var(0, ddof=1) / chains
    total = draws.var(axis=(0, 1))
    of_means = np.minimum(most, total / np.maximum(apart, np.finfo(float).tiny))
    own = most / _autocorrelation_times(draws)
    # What means of so many chains that are at rest fall short of by chance, in the worst column.
    chance = float(chdtri(chains - 1, LEVEL / dim)) / (chains - 1) if chains > 1 else np.inf
    own = np.minimum(own, effective_number(draws))
    return np.where(chance * of_means < own, of_means, own)


def _autocorrelation_times(draws: Draws) -> Float[np.ndarray, " D"]:
    """Integrated autocorrelation times (D,), 1 at least, of chains about their common mean."""
    number, chains, _ = draws.shape
    centered = draws - draws.mean((0, 1))
    spectrum = np.abs(np.fft.rfft(centered, 1 << (2 * number - 1).bit_length(), axis=0)) ** 2
    sums = np.fft.irfft(spectrum, axis=0)[:number].mean(1)
    correlations = np.where(sums[0] > 0.0, sums / sums[0], 0.0)
    # Sums over all pairs of a lag have the weights that lags have in the variance of a mean.
    times = 1.0 + 2.0 * np.cumsum(correlations[1:], axis=0)
    windows = np.arange(1, number)[:, None]
    closed = windows >= WINDOW * np.maximum(times, 1.0)
    ends = np.where(closed.any(0), closed.argmax(0), number - 2)
    # What the common mean, which is estimated, takes from each correlation.
    taken = (2.0 * ends + 3.0) / (number * chains)
    return np.maximum(1.0, np.take_along_axis(times, ends[None], axis=0)[0] * (1.0 + taken))


def _deviation_errors(draws: Draws) -> Float[np.ndarray, " D"]:
    squares = np.square(draws - draws.mean((0, 1)))
    variance = squares.mean((0, 1))
    error = squares.mean(0).std(0, ddof=1) / np.sqrt(draws.shape[1])
    return 0.5 * error / np.maximum(variance, np.finfo(float).tiny)


def _tail(distances: Float[np.ndarray, " S"], worth: float) -> tuple[float, float, float]:
    """Shape of the tail of distances from a middle, its error, and the standard deviation's by it.

    The largest distances have a generalised Pareto distribution. Draws that are independent and
    ``worth`` so many have seen its squares up to a quantile, beyond which they have none; what lies
    beyond is missing from their standard deviation. The variance of the squares up to there and the
    square of what is missing make the error, a share of the standard deviation. It is infinite
    where the distribution has none.
    """
    number = len(distances)
    count = tail_length(number)
    ordered = np.sort(distances)
    edge = ordered[-count - 1]
    body, excesses = ordered[: number - count], ordered[ordered > edge] - edge
    if len(excesses) < 5:
        return 0.0, 0.0, 0.0
    unit = excesses.mean()
    shape, scale = pareto_fit(excesses / unit)
    # So few draws know a shape of some size to this error, and what they miss is of heavier ones.
    found, uncertain = shape, (1.0 + shape) / np.sqrt(len(excesses))
    if not shape < 0.5:
        return shape, uncertain, np.inf if np.isfinite(shape) else 0.0
    shape = min(shape + uncertain * np.clip(shape / HEAVY, 0.0, 1.0), 0.5 * (shape + 0.5))
    share = count / number
    cut = min(BEYOND / worth, share)
    # Midpoints of logarithms of the probabilities of what lies further out.
    steps = np.geomspace(cut, share, POINTS + 1)
    places = np.sqrt(steps[1:] * steps[:-1])

    def quantile(beyond: Float[np.ndarray, " P"] | float) -> Float[np.ndarray, " P"]:
        return edge + unit * scale / shape * np.expm1(-shape * np.log(beyond / share))

    seen = np.square(quantile(places))
    second = np.square(body).sum() / number + np.diff(steps) @ seen
    fourth = np.power(body, 4).sum() / number + np.diff(steps) @ np.square(seen)
    # The integral of squared quantiles from 0 to the cut, term by term.
    slope = unit * scale / shape
    low, power = edge - slope, (cut / share) ** -shape
    missing = cut * (
        low**2
        + 2.0 * low * slope * power / (1.0 - shape)
        + slope**2 * power**2 / (1.0 - 2.0 * shape)
    )
    error = np.sqrt((fourth - second**2) / worth + missing**2)
    return found, uncertain, 0.5 * float(error / (second + missing))


def _drift(draws: Draws) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
    """Sizes of shifts between halves, and their ratios to the standard error."""
    half = len(draws) // 2
    change = draws[-half:].mean(0) - draws[:half].mean(0)
    error = change.std(0, ddof=1) / np.sqrt(len(change))
    size = np.abs(change.mean(0))
    return size, np.where(error > 0.0, size / np.where(error > 0.0, error, 1.0), 0.0)


def varies(columns: Float[np.ndarray, "S K"]) -> Bool[np.ndarray, " K"]:
    """Which columns hold more than one number and its rounding, in the precision that they have."""
    if not columns.size:
        return np.zeros(columns.shape[1], bool)
    epsilon = np.finfo(columns.dtype).eps if columns.dtype.kind == "f" else 0.0
    numbers = columns.astype(np.float64)
    return np.ptp(numbers, axis=0) > ROUNDING * epsilon * np.abs(numbers).min(0)


def in_chains(columns: Float[np.ndarray, "S K"], chains: int) -> Float[np.ndarray, "N M K"]:
    """Columns of draws, chain after chain, as N draws of each of M chains."""
    length = len(columns) // chains
    return columns[: length * chains].reshape(chains, length, -1).transpose(1, 0, 2)
