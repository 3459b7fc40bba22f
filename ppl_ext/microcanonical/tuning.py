"""How a warm-up tunes microcanonical Langevin dynamics, over all chains together.

One chain alone may find a step length that suits only where it is, and stand still there. So every
figure here is of all chains: the step length, the scale of the coordinates and the length after
which a direction is forgotten. ``xp`` is ``numpy``, ``torch`` or ``jax.numpy``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self, TypeVar

from jaxtyping import Bool, Float

from ppl_ext.microcanonical.functions import Functions

#: Variance of the energy's error in a step, for each dimension, that steps are tuned to; the bias
#: of draws grows with it. That of arXiv:2212.08549, section 4.
ENERGY_VARIANCE = 5e-4
#: The same from which on draws are doubtful. On Normals the standard deviations are off by a
#: twentieth there.
DOUBTFUL_VARIANCE = 2e-2
#: Mean probability of acceptance that adjusted moves are tuned to (arXiv:2503.01707, section 4).
ACCEPTANCE = 0.9
#: Steps that the estimate of the energy's variance remembers: some lengths after which a direction
#: is forgotten, so that it is of more than one place.
MEMORY = 100.0
#: Width, in powers of e of the step length, within which an energy tells of steps of other lengths
#: (its variance grows as the sixth power).
TRUST = 1.5
#: Most that a step changes the step length by, in the warm-up.
MOST_CHANGE = 2.0
#: What a move that has diverged counts as, in units of the variance that is asked for: it makes the
#: next steps of all chains shorter by a fifth for a chain in ten.
COUNTED = 1e4
#: Coordinates whose past is looked at for autocorrelations, at most, and steps that are kept.
TRACED, KEPT = 64, 400
#: Dimensions up to which each coordinate has a scale of its own. Weights of larger networks are of
#: one order, and two more vectors of them would take memory.
MOST_SCALED = 100_000
#: Decoherence length by the length in which autocorrelations vanish (arXiv:2212.08549, section 4).
OF_AUTOCORRELATION = 0.4
#: Autocorrelation times that a window holds where it shows them. In a shorter one, each chain about
#: its own mean, all that is slower has a time of a sixth to a quarter of the window.
RESOLVED = 8.0
#: Decoherence length by the root of the number of dimensions where coordinates are slower than the
#: window. On Normals with correlations and on two networks this gave 1.15 to 2.6 times the
#: effective draws of 1, and 3 to 12 times those of 0.3.
LONGER = 2.5
#: Draws' worth of the common scale that is added to each coordinate's own.
PRIOR_DRAWS = 5.0
#: Ends of the windows, in per cent of the warm-up, after which the scale is that of the window: the
#: first travel to where the mass is.
WINDOWS = (10, 15, 25, 40, 60)
#: Where autocorrelations have been seen, in per cent of the warm-up.
SEEN = 90
#: What the noise of minibatches may add to a variance, relative to the posterior's, as the bound of
#: :func:`heat_of` has it in directions weighted by their noise. Normals had 0.4 of it; where few
#: directions have most of the noise, all others have less. Steps to forget a draw go with 1 / it.
HEAT = 1.0
#: By how much more it may be in the windows of the warm-up from the second on: while chains travel
#: noise is large, and no worse than the way.
HEATS = (math.inf, 40.0, 4.0, 1.0)
#: Every so many moves after the warm-up a second score, of the same rows, is taken where a move
#: begins, so that the energy's error is that of the step: a twentieth more evaluations.
LOOK = 20
#: Step length at the start, by the root of the number of dimensions; it doubles while it is short.
FIRST = 1e-3
#: Steps in which a direction is forgotten while nothing is known of the scale.
FIRST_STEPS = 10.0


class Schedule(NamedTuple):
    """Which moves of the warm-up do what; numbers, or arrays () of integers.

    Parameters
    ----------
    total : int
        Moves of the warm-up.
    """

    total: Any

    @property
    def windows(self) -> tuple[Any, ...]:
        """Moves after which the scale is taken anew; a window begins where the last one ended."""
        return tuple(self.total * share // 100 for share in WINDOWS)

    @property
    def moving(self) -> Any:
        """Moves until the scale stays as it is."""
        return self.windows[-1]

    @property
    def seen(self) -> Any:
        """Moves until autocorrelations are known."""
        return self.total * SEEN // 100

    @property
    def remembered(self) -> int:
        """How many moves are kept for autocorrelations; of a whole number as ``total``."""
        number = self.seen - self.moving
        return int(number // max(1, -(-number // KEPT)))

    def every(self, kept: int) -> Any:
        """Every so many moves are kept, where ``kept`` are."""
        return (self.seen - self.moving) // kept


class StepLength(NamedTuple):
    """The step length ε, and what it follows from.

    Parameters
    ----------
    value : array ()
        ε.
    rate, weight : array ()
        Weighted sum of the energy's variance that steps of this length would have, which grows as
        the sixth power, in units of the variance that is asked for; and the sum of its weights.
    """

    value: Float[Any, ""]
    rate: Float[Any, ""]
    weight: Float[Any, ""]

    def after(
        self,
        error: Float[Any, " C"],
        diverged: Bool[Any, " C"],
        log_density: Float[Any, " C"],
        dim: int,
        variance: float,
        epsilon: float,
        xp: Any,
    ) -> Self:
        """The same after a step of all chains.

        Parameters
        ----------
        error : array (C,)
            What the energy has gained.
        diverged : bool array (C,)
        log_density : array (C,)
            Where the chains are: its rounding is no error of a step.
        dim : int
        variance : float
            That is asked for, for each dimension.
        epsilon : float
            Machine epsilon.

        References
        ----------
        J. Robnik and others, https://arxiv.org/abs/2212.08549, section 4, and the code of
        BlackJAX's authors; here one average of all chains, with the chains that have diverged.
        """
        rounding = (2.0 * epsilon * log_density) ** 2
        ratio = error * error / (dim * variance + rounding)
        ratio = xp.where(diverged, COUNTED * xp.ones_like(ratio), ratio) + 1e-8
        # An energy tells less of the length that is wanted the further its variance is from that.
        trust = xp.exp(-0.5 * (xp.log(ratio) / (6.0 * TRUST)) ** 2)
        # The decay of an average that remembers MEMORY steps, as in BlackJAX.
        kept = (MEMORY - 1.0) / (MEMORY + 1.0)
        rate = kept * self.rate + (trust * ratio).mean()
        weight = kept * self.weight + trust.mean()
        # The variance goes with ε^6: this change makes the mean of ``ratio`` one.
        change = (weight / rate) ** (1.0 / 6.0)
        most = MOST_CHANGE * xp.ones_like(change)
        change = xp.where(change < 1.0 / most, 1.0 / most, xp.where(change > most, most, change))
        # What was seen, as it would have been with steps of the new length.
        return type(self)(self.value * change, rate * change**6, weight)

    def at_most(self, limit: Any, xp: Any) -> Self:
        """The same, no longer than a limit."""
        value = xp.where(self.value < limit, self.value, limit)
        return type(self)(value, self.rate * (value / self.value) ** 6, self.weight)

    def rescaled(self, factor: Any, xp: Any) -> Self:
        """The same in coordinates of another scale: nothing else of the past is true there."""
        zero = xp.zeros_like(self.rate)
        return type(self)(self.value * factor, zero, zero)

    def accepted(self, chance: Float[Any, " C"], number: Any, xp: Any) -> Self:
        """The same after an adjusted move, before which ``number`` were made.

        ``rate`` is then a running mean of log ε, in which late moves count more.
        """
        gain = chance.mean() - ACCEPTANCE
        # As Robbins and Monro do: changes that fall with the number of moves, so that ε settles.
        value = self.value * xp.exp(gain * (1.0 + 0.1 * number) ** -0.5)
        share = 1.0 / (1.0 + 0.2 * number)
        mean = self.rate + share * (xp.log(value) - self.rate)
        return type(self)(value, mean, self.weight)


Past = TypeVar("Past", bound="Noise | Moments")


def cleared(past: Past, xp: Any) -> Past:
    """What was seen so far, without a past."""
    return type(past)(*(xp.zeros_like(each) for each in past))


class Noise(NamedTuple):
    """What the scores of other rows say of the noise of minibatches.

    Of differences d between scores of two sets of rows at one position, whose covariance is 2 V.

    Parameters
    ----------
    number, pairs : array ()
        Moves so far, and those that were multiplied with one before.
    squares : array ()
        Sum over moves of |d|², in the mean over chains.
    products : array ()
        The same of (d·d')², d' of other rows and the same chain two moves before. Other chains may
        be at other modes, where other directions are noisy.
    coordinates : array (K,)
        The same of the squares of each coordinate, where each has a scale of its own.
    other : array (C, D)
        A difference that is kept for this; zeros where there is none.
    """

    number: Float[Any, ""]
    pairs: Float[Any, ""]
    squares: Float[Any, ""]
    products: Float[Any, ""]
    coordinates: Float[Any, " K"]
    other: Float[Any, "C D"]

    def after(self, difference: Float[Any, "C D"], number: Any, functions: Functions) -> Self:
        """The same with the differences of one more move, before which ``number`` were made."""
        xp, dot = functions.xp, functions.dot
        finite = xp.isfinite(dot(difference, difference).sum())
        difference = xp.where(finite, difference, xp.zeros_like(difference))
        own = difference[:, : len(self.coordinates)]
        # Differences that follow on each other have rows in common.
        phase = number % 4
        kept = functions.cond(
            phase == 0, lambda new, _: new, lambda _, old: old, difference, self.other
        )
        pair = (phase == 2) & (dot(self.other, self.other).min() > 0.0)
        return type(self)(
            self.number + finite,
            self.pairs + finite * pair,
            self.squares + dot(difference, difference).mean(),
            self.products + pair * (dot(difference, self.other) ** 2).mean(),
            self.coordinates + (own * own).mean(0),
            kept,
        )

    def excess(self, dim: int, xp: Any) -> Any:
        """tr(V²) / tr(V) - tr(V) / D: the noise's variance along a direction, weighted by itself,
        beyond that of noise that is alike in all directions.

        Of independent differences E[(d·d')²] = 4 tr(V²).
        """
        square = self.squares / (self.number + (self.number < 1.0))
        doubled = 0.5 * self.products / (self.pairs + (self.pairs < 1.0))
        excess = doubled / (square + (square <= 0.0)) - 0.5 * square / dim
        return xp.where(excess > 0.0, excess, 0.0 * excess)

    def quieted(self, scale: Float[Any, " D"], old: Float[Any, " D"], xp: Any) -> Any:
        """A scale whose coordinates have no more noise than the mean of all had, n / (1 + n / n̄).

        Noise that is small beside the scores themselves, whose variances are about 1, stays.

        Parameters
        ----------
        scale : array (D,)
            Without regard to noise.
        old : array (D,)
            In whose coordinates the noise was seen.
        """
        number = self.number + (self.number < 1.0)
        noise = 0.5 * (scale / old) ** 2 * self.coordinates / number
        return scale / xp.sqrt(1.0 + noise / (1.0 + noise.mean()))


class Moments(NamedTuple):
    """Means and squares of coordinates over chains and steps.

    Parameters
    ----------
    number : array ()
        Positions so far.
    mean, squares : array (K,)
        Mean, and the sum of squared distances from it.
    """

    number: Float[Any, ""]
    mean: Float[Any, " K"]
    squares: Float[Any, " K"]

    def after(self, positions: Float[Any, "C K"]) -> Self:
        """The same with C more positions."""
        count = positions.shape[0]
        number = self.number + count
        centre = positions.mean(0)
        # Sums of two samples joined (Chan, Golub and LeVeque 1979): between their means number *
        # count / (number + count) times the squared distance.
        moved = centre - self.mean
        squares = (
            self.squares
            + ((positions - centre) ** 2).sum(0)
            + moved**2 * (self.number * count / number)
        )
        return type(self)(number, self.mean + moved * (count / number), squares)

    @property
    def variance(self) -> Float[Any, " K"]:
        """By coordinate."""
        return self.squares / (self.number - 1.0 + (self.number < 2.0) * 1.0)


def scaled(
    scale: Float[Any, " D"], variance: Float[Any, " D"], worth: Any, xp: Any
) -> Float[Any, " D"]:
    """The scale after a window: standard deviations, drawn towards those of all together.

    Parameters
    ----------
    scale : array (D,)
        Before the window.
    variance : array (D,)
        Of the window's positions.
    worth : array ()
        How many independent draws they are worth, about.
    """
    ratio = variance / scale**2
    mixed = (worth * ratio + PRIOR_DRAWS * ratio.mean()) / (worth + PRIOR_DRAWS)
    usable = xp.isfinite(mixed) & (mixed > 0.0)
    return scale * xp.sqrt(xp.where(usable, mixed, xp.ones_like(mixed)))


def autocorrelation_time(records: Float[Any, "T C K"], xp: Any) -> Any:
    """Integrated autocorrelation time, in records, as the mean over coordinates.

    Autocorrelations are of each chain about its own mean, averaged over chains and coordinates,
    each of which counts by its own variance, and summed up to the first that is not positive.

    Parameters
    ----------
    records : array (T, C, K)
        T at least 4.
    """
    number = records.shape[0]
    centred = records - records.mean(0)
    columns = centred.reshape(number, -1)
    squares = (columns * columns).sum(0)
    squares = xp.where(squares > 0.0, squares, xp.ones_like(squares))
    columns = columns / xp.sqrt(squares)
    # (T, T): products of all pairs of times, whose k-th diagonal sums up to the autocovariance of
    # lag k.
    gram = columns @ columns.T / columns.shape[1]
    # Rows of twice their length, read as rows of one more, have the diagonals as columns.
    zeros = xp.zeros_like(gram)
    wide = xp.concatenate((xp.concatenate((gram, zeros), -1).reshape(-1), zeros[0]), -1)
    sums = wide.reshape(number, 2 * number + 1).sum(0)[:number]
    positive = xp.cumprod((sums > 0.0) * xp.ones_like(sums), 0)
    # 1 + 2 sum of rho_k over k >= 1, as sums[0] is 1 and is in the sum.
    return 2.0 * (positive * sums).sum() - sums[0]


def heat_of(step: Any, length: Any, variance: Any, dim: int) -> Any:
    """What noise of a variance in scores adds to a variance, relative to the posterior's.

    A step turns the direction by ε ξ / (D - 1), ξ the noise, and what that puts into a direction is
    forgotten over a length L: ε L V / 2 (D - 1), to first order. Noise that is alike in all
    directions is no heat: speed is constant, and the turn forgets as noise that is added does. So
    this is a bound.

    Parameters
    ----------
    step, length : array ()
        ε and L.
    variance : array
        Of the noise, in the coordinates of the scale.
    dim : int
    """
    return 0.5 * step * length * variance / (dim - 1)


def forgetful_length(step: Any, time: Any, seen: Any, natural: float, xp: Any) -> Any:
    """L by autocorrelations, which make it longer than its natural length and never shorter.

    On a Normal of the scale that is known, the natural length is the best, and autocorrelations
    show it. Where they last longer than the window, they seem to be short.

    Parameters
    ----------
    step : array ()
        ε.
    time : array ()
        Autocorrelation time, in moves.
    seen : array ()
        Moves in which it was seen.
    natural : float
        The root of the number of dimensions.
    """
    shown = OF_AUTOCORRELATION * step * time
    least = natural * xp.where(seen < RESOLVED * time, LONGER * xp.ones_like(shown), 1.0)
    return xp.where(shown > least, shown, least)
