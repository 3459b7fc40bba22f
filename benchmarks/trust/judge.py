"""Whether draws are right, by exact draws or those of a reference, marginal by marginal.

A fit is *right* when no figure of any marginal is out:

- its mean is within 0.1 standard deviations of the reference's,
- its standard deviation is within 10 % of the reference's (the logarithm of their ratio within
  0.1), and
- its Kolmogorov distance to the reference is within 0.05.

Where the reference's own standard deviation is not stable (`is_unstable`), five quantiles take the
place of the first two: the probability that the reference gives to the fit's quantile must be as
near as it is for a Normal whose mean is off by 0.1 standard deviations or whose standard deviation
is off by 10 % (`quantile_tolerances`: 0.017, 0.032, 0.040, 0.032 and 0.017 at 5, 25, 50, 75 and
95 %).

**Sampling error.** A figure is out when it is farther off than hypot(tolerance, q e), where e is
its standard error from the effective numbers of both sets and q the quantile for all figures of
all M marginals together: those of exact draws are all within q e with a probability of at least
99 % (Bonferroni's bound over 6 M figures: no marginal has more). Of means q has E. Cornish's and
R. Fisher's correction for the reference's skewness g, q + (q^2 - 1) |g| e / 6, and of quantiles
for that of order statistics; the Kolmogorov distance has the quantile of its own distribution. An
effective number below 400 counts as 400: a fit with fewer draws does not become
right by that. The reference's counts as it is.

Draws that are not finite, and sites that do not vary where the reference does, are wrong. NumPy
and SciPy's Normal quantile only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from benchmarks.trust.effective import autocorrelation_time, effective_number

Floats = NDArray[np.float64]

#: Standard deviations, relative, and probability.
MEAN, DEVIATION, KOLMOGOROV = 0.1, 0.1, 0.05
#: Where quantiles are compared.
PROBABILITIES = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
#: Probability with which exact draws may be called wrong.
LEVEL = 0.01
#: Effective draws that every fit is taken to have.
LEAST_EFFECTIVE = 400
#: A standard deviation's sampling error rests on the fourth moment, which tails of an index above
#: 1/4 do not have (the distribution function falls short of 1 by x^(-1 / index)). An index must be
#: below that by so many of its standard errors.
HEAVY, DISTANCE = 0.25, 2.0
#: Such a share of the draws may hold such a share of the fourth moment: 0.06 of a Normal's, 0.3 of
#: an Exponential's.
FEW, MOST = 0.001, 0.5


@dataclass(frozen=True)
class Worst:
    """The marginal that is worst in a figure, by how far beyond what is allowed it is.

    Attributes
    ----------
    name : str
    value : float
    allowed : float
        How far off it may be.
    off : float
        How far off it is.
    """

    name: str
    value: float
    allowed: float
    off: float

    @property
    def is_out(self) -> bool:
        """Whether it is farther off than it may be; NaN is."""
        return not self.off <= self.allowed


@dataclass(frozen=True)
class Judgement:
    """What :func:`judge` found.

    Attributes
    ----------
    right : bool
    reasons : tuple of str
        What is out, in words; empty where the fit is right.
    mean, deviation, kolmogorov, quantile : Worst or None
        The worst error of a mean in standard deviations of the reference, ratio of standard
        deviations, Kolmogorov distance, and error of a quantile in probability; None where no
        marginal is judged by it, or the draws are not finite.
    by_quantiles : tuple of str
        Marginals whose moments the reference does not know.
    effective : float
        The least effective number of the fit's draws.
    """

    right: bool
    reasons: tuple[str, ...]
    mean: Worst | None = None
    deviation: Worst | None = None
    kolmogorov: Worst | None = None
    quantile: Worst | None = None
    by_quantiles: tuple[str, ...] = ()
    effective: float = 0.0

    def figures(self) -> dict[str, Any]:
        """The same for a record."""
        found: dict[str, Any] = {"right": self.right, "reasons": list(self.reasons)}
        for title, worst in (
            ("mean error", self.mean),
            ("sd ratio", self.deviation),
            ("Kolmogorov", self.kolmogorov),
            ("quantile error", self.quantile),
        ):
            if worst is not None:
                found[title] = worst.value
                found[f"{title} of"] = worst.name
        found["judged by quantiles"] = len(self.by_quantiles)
        found["effective"] = self.effective
        return found


def judge(
    draws: Mapping[str, Floats],
    reference: Mapping[str, Floats],
    *,
    effective: float | None = None,
    reference_effective: float | None = None,
) -> Judgement:
    """Whether draws are right; the module says what that is.

    Parameters
    ----------
    draws : dict
        Of the fit, by scalar, each (n,), equally weighted, in the order in which they were made.
    reference : dict
        Exact draws or such as are as good, by the same names, each (m,).
    effective, reference_effective : float, optional
        Effective numbers of draws where they are known better than :func:`effective_number` can
        tell.

    Raises
    ------
    ValueError
        A scalar of the reference is missing among the draws, or lengths differ, or the reference
        itself is not finite.
    """
    ours, true, names = _matched(draws, reference)
    if not np.isfinite(ours).all():
        share = float(np.mean(~np.isfinite(ours).all(1)))
        return Judgement(False, (f"{share:.1%} of the draws are not finite",))
    constant = np.ptp(true, axis=0) == 0.0
    # Such as the upper half of a Cholesky factor.
    moved = [
        name
        for name, fixed, column, value in zip(names, constant, ours.T, true[0], strict=True)
        if fixed and not np.allclose(column, value, rtol=1e-4, atol=1e-6)
    ]
    reasons = [f"{name} varies or is elsewhere, where the reference is constant" for name in moved]
    names = [name for name, fixed in zip(names, constant, strict=True) if not fixed]
    ours, true = ours[:, ~constant], true[:, ~constant]
    if not names:
        return Judgement(not reasons, tuple(reasons), effective=float(len(ours)))

    numbers = _numbers(ours, effective)
    if reference_effective is None:
        # Its draws are not resampled, and where they are rounded equal ones are no fault.
        true_numbers = len(true) / autocorrelation_time(true)
    else:
        true_numbers = _numbers(true, reference_effective)
    errors = np.sqrt(1.0 / np.maximum(numbers, LEAST_EFFECTIVE) + 1.0 / true_numbers)
    each = LEVEL / (6.0 * len(names))
    normal, kolmogorov = -float(ndtri(0.5 * each)), float(np.sqrt(-0.5 * np.log(0.5 * each)))
    unstable = np.array([is_unstable(column) for column in true.T])
    distances = kolmogorov_distances(ours, true)
    found = {"kolmogorov": _worst(names, distances, distances, KOLMOGOROV, kolmogorov * errors)}
    if not unstable.all():
        stable = ~unstable
        kept = [name for name, good in zip(names, stable, strict=True) if good]
        a, b, e = ours[:, stable], true[:, stable], errors[stable]
        centred = b - b.mean(0)
        scale = np.sqrt(np.square(centred).mean(0))
        skewness, kurtosis = (np.power(centred / scale, k).mean(0) for k in (3, 4))
        means = np.abs((a - b.mean(0)).mean(0)) / scale
        found["mean"] = _worst(kept, means, means, MEAN, _skewed(normal, e, skewness))
        ratios = a.std(0) / scale
        spread = 0.5 * np.sqrt(np.maximum(kurtosis - 1.0, 0.0))
        with np.errstate(divide="ignore"):
            off = np.abs(np.log(ratios))
        found["deviation"] = _worst(kept, ratios, off, DEVIATION, normal * spread * e)
    if unstable.any():
        kept = [name for name, bad in zip(names, unstable, strict=True) if bad]
        e = errors[unstable]
        found["quantile"] = _quantile(kept, ours[:, unstable], true[:, unstable], normal, e)
    reasons += [_said(kind, worst) for kind, worst in found.items() if worst.is_out]
    by_quantiles = tuple(name for name, bad in zip(names, unstable, strict=True) if bad)
    return Judgement(
        not reasons,
        tuple(reasons),
        **found,
        by_quantiles=by_quantiles,
        effective=float(numbers.min()),
    )


def _matched(
    draws: Mapping[str, Floats], reference: Mapping[str, Floats]
) -> tuple[Floats, Floats, list[str]]:
    names = list(reference)
    missing = [name for name in names if name not in draws]
    if missing or not names:
        raise ValueError(
            f"Expected draws of all {len(names)} scalars of the reference, found none of "
            f"{', '.join(missing[:3]) or 'any'} among {', '.join(list(draws)[:5])}."
        )
    for what, columns in (("draws", draws), ("reference", reference)):
        shapes = {np.shape(columns[name]) for name in names}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1 or next(iter(shapes))[0] < 2:
            raise ValueError(f"Expected columns (n,) of one length n >= 2, found {shapes}: {what}.")
    ours = np.stack([np.asarray(draws[name], np.float64) for name in names], 1)
    true = np.stack([np.asarray(reference[name], np.float64) for name in names], 1)
    if not np.isfinite(true).all():
        raise ValueError("Expected a reference of finite draws, found others.")
    return ours, true, names


def _numbers(columns: Floats, given: float | None) -> Floats:
    """Effective numbers by column, all as given where something is."""
    if given is None:
        return effective_number(columns)
    return np.full(columns.shape[1], float(min(given, len(columns))))


def is_unstable(column: Floats) -> bool:
    """Whether a standard deviation is not to be had from these draws.

    So where the tail's index may be 1/4 or more, or a thousandth of the draws holds more than half
    of the fourth moment about the mean. Of ten thousand draws those of Student's t with four
    degrees of freedom are so and may be with five, and those of a lognormal whose logarithm has a
    standard deviation of 1. Fewer draws tell less of tails, and those of an Exponential may be.
    """
    index, error = tail_index(column)
    fourth = np.sort((column - column.mean()) ** 4)
    few = max(1, round(FEW * len(column)))
    return bool(index + DISTANCE * error > HEAVY or fourth[-few:].sum() > MOST * fourth.sum())


def tail_index(column: Floats) -> tuple[float, float]:
    """Index of the tails of a distribution, from distances to its median, and its standard error.

    The moment estimator of A. Dekkers, J. Einmahl and L. de Haan ("A moment estimator for the
    index of an extreme-value distribution", 1989) from the 5 sqrt(n) farthest draws: 0 for tails
    that fall exponentially, 1 / nu for Student's t with nu degrees of freedom, negative for short
    tails; -inf where those draws are all as far.
    """
    distances = np.sort(np.abs(column - np.median(column)))
    number = int(min(len(column) / 5, 5 * np.sqrt(len(column))))
    if number < 2 or not 0.0 < distances[-number - 1] < distances[-1]:
        return -np.inf, 0.0
    logarithms = np.log(distances[-number:] / distances[-number - 1])
    first, second = logarithms.mean(), np.square(logarithms).mean()
    if first**2 >= second:
        return -np.inf, 0.0
    index = float(first + 1.0 - 0.5 / (1.0 - first**2 / second))
    return index, number**-0.5


def quantile_tolerances() -> Floats:
    """How far the probabilities of a Normal's quantiles move with its mean or its scale."""
    points = ndtri(PROBABILITIES)
    heights = np.exp(-0.5 * points**2) / np.sqrt(2.0 * np.pi)
    moved: Floats = heights * np.maximum(MEAN, DEVIATION * np.abs(points))
    return moved


def kolmogorov_distances(ours: Floats, true: Floats) -> Floats:
    """Greatest distances (M,) of empirical distribution functions of (n, M) and (m, M)."""
    return np.array([_kolmogorov(a, b) for a, b in zip(ours.T, true.T, strict=True)])


def _kolmogorov(ours: Floats, true: Floats) -> float:
    ours, true = np.sort(ours), np.sort(true)
    points = np.concatenate([ours, true])
    below = np.searchsorted(ours, points, side="right") / len(ours)
    expected = np.searchsorted(true, points, side="right") / len(true)
    return float(np.abs(below - expected).max())


def _worst(
    names: list[str], values: Floats, off: Floats, tolerance: float, allowance: Floats
) -> Worst:
    """The worst of one figure, whose values are so far off, by name."""
    allowed = np.hypot(tolerance, allowance)
    index = int(np.argmax(np.where(np.isfinite(off), off / allowed, np.inf)))
    return Worst(names[index], float(values[index]), float(allowed[index]), float(off[index]))


def _skewed(normal: float, errors: Floats | float, skewness: Floats) -> Floats:
    """Sampling errors of a mean of so many draws, in standard deviations of one."""
    return errors * (normal + (normal**2 - 1.0) * np.abs(skewness) * errors / 6.0)


def _quantile(names: list[str], ours: Floats, true: Floats, normal: float, errors: Floats) -> Worst:
    """The worst error in probability of the quantiles."""
    tolerances = quantile_tolerances()
    spread = np.sqrt(PROBABILITIES * (1.0 - PROBABILITIES))
    # The probability below an order statistic is Beta distributed, with this skewness.
    skewness = 2.0 * (1.0 - 2.0 * PROBABILITIES) / spread
    found = []
    for name, a, b, error in zip(names, ours.T, true.T, errors, strict=True):
        reached = _between(np.sort(b), np.quantile(a, PROBABILITIES))
        allowed = np.hypot(tolerances, spread * _skewed(normal, error, skewness))
        off = np.abs(reached - PROBABILITIES)
        index = int(np.argmax(off / allowed))
        label = f"{name} at {PROBABILITIES[index]:.0%}"
        found.append(Worst(label, float(off[index]), float(allowed[index]), float(off[index])))
    return max(found, key=lambda worst: worst.off / worst.allowed)


def _between(ordered: Floats, points: Floats) -> Floats:
    """Empirical distribution function at points, half way up its steps."""
    below = np.searchsorted(ordered, points, side="left")
    upto = np.searchsorted(ordered, points, side="right")
    return 0.5 * (below + upto) / len(ordered)


def _said(kind: str, worst: Worst) -> str:
    told = {
        "mean": f"mean of {worst.name} is {worst.value:.2f} sd off",
        "deviation": f"sd of {worst.name} is {worst.value:.2f} times the true one",
        "kolmogorov": f"Kolmogorov distance of {worst.name} is {worst.value:.2f}",
        "quantile": f"quantile of {worst.name} is off by {worst.value:.3f} in probability",
    }
    return f"{told[kind]} (allowed: {worst.allowed:.3f})"


def inside(column: Floats) -> Floats:
    """Infinite numbers replaced by the farthest finite ones on their side.

    So for draws that rounding has put on the edge of their support, where there is no unconstrained
    number.
    """
    finite = column[np.isfinite(column)]
    if not len(finite):
        return column
    found: Floats = np.where(column == np.inf, finite.max(), column)
    return np.where(found == -np.inf, finite.min(), found)
