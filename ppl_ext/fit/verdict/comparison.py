"""Draws of any method beside those of chains that leave the posterior as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import betainc, ndtri

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.verdict.figures import label
from ppl_ext.fit.verdict.verdict import MOST_SHOWN, SiteFigures, Value
from ppl_ext.statistics.convergence import Convergence, convergence, in_chains, ranks, varies
from ppl_ext.statistics.effective import distinct_number, effective_number
from ppl_ext.target.on_host import on_host

#: What to do where draws are too few.
MORE_DRAWS = "Take more draws, of particles by num_particles=."
#: Error of a mean that is let pass, in standard deviations: four hundred draws leave half of it.
MEAN = 0.1
#: Error of the logarithm of a standard deviation that is let pass.
DEVIATION = 0.1
#: Kolmogorov distance of a marginal that is let pass.
DISTANCE = 0.05
#: Mass of a tail, as a share of what it should be, that is let pass; or the other way round.
TAIL_RATIO = 0.7
#: Probability of each tail.
TAIL = 0.015
#: The log density adds up the errors of all coordinates. Where each standard deviation is off by as
#: much as is let pass, its mean is off by so many of its own standard deviations, times the root of
#: the number of dimensions.
OF_DENSITY = 0.14
#: Probability of refusing right draws, over all columns and figures together.
LEVEL = 0.01
#: Particles count as so many draws at least, but for their tails: they are spread evenly, so that
#: chance does not excuse what few of them are off by.
SPREAD = 400.0
#: Error of a standard deviation that is not ruled out, up to which draws may be confirmed. Two
#: thousand draws of a log-normal leave a third, since large ones are rare.
UNSURE = 0.5
#: Error of a rank correlation that is let pass; and columns of which it is looked at, so
#: that the matrices stay small.
CORRELATION, MOST_PAIRED = 0.1, 300
#: Pairs that are off at first and are looked at more closely, at most.
MOST_DOUBTED = 50
#: Figures of a column, each a test: mean, standard deviation, distance and two tails.
FIGURES = 5


@dataclass(frozen=True)
class Columns:
    """Scalars of draws, each a column.

    Attributes
    ----------
    names : sequence of str
        Such as "theta[2]".
    sites : sequence of str
        Of each column; "" of the log density, the last.
    values : array (S, K)
    chains : int
        Chains that the draws are of, one after the other.
    is_spread : bool
        Whether the draws are particles, which are spread evenly, and not by chance.
    """

    names: Sequence[str]
    sites: Sequence[str]
    values: Float[np.ndarray, "S K"]
    chains: int = 1
    is_spread: bool = False

    @cached_property
    def effective(self) -> Float[np.ndarray, " K"]:
        """Effective number of draws of each column."""
        return effective_number(in_chains(self.values, self.chains))

    @cached_property
    def worth(self) -> Float[np.ndarray, " K"]:
        """The same, of draws that differ."""
        return np.minimum(self.effective, distinct_number(self.values))


@dataclass(frozen=True)
class Off:
    """How far one column of draws is from that of the chains.

    Attributes
    ----------
    name, site : str
        Of the column.
    mean : float
        In standard deviations.
    deviation : float
        Ratio of standard deviations.
    distance : float
        Kolmogorov's.
    lower, upper : float
        Mass beyond the ends beyond which the chains have 1.5 % each.
    share : float
        The worst of these figures, as a share of what chance and tolerance allow.
    mean_bound, deviation_bound : float
        What the errors of the mean and of the standard deviation are at most, chance allowed for.
        Infinite where tails are so heavy that a standard deviation has no reliable error: such a
        column is judged by its marginal alone.
    """

    name: str
    site: str
    mean: float
    deviation: float
    distance: float
    lower: float
    upper: float
    share: float
    mean_bound: float = math.nan
    deviation_bound: float = math.nan

    @property
    def told(self) -> str:
        """The figures in words."""
        return (
            f"Compared with chains, '{self.name}' differs most: its mean by {self.mean:.2f} sd, "
            f"its sd is {self.deviation:.2f} times theirs, {self.distance:.1%} of the probability "
            f"lies elsewhere (Kolmogorov distance), and its tails are {self.lower:.1%} and "
            f"{self.upper:.1%} where theirs are {TAIL:.1%} each."
        )


@dataclass(frozen=True)
class Dependence:
    """The two columns whose dependence is furthest from that of chains.

    Attributes
    ----------
    names : tuple of str
        Of the columns.
    own, theirs : float
        Their rank correlations.
    share : float
        The difference, as a share of what chance and tolerance allow.
    """

    names: tuple[str, str]
    own: float
    theirs: float
    share: float

    @property
    def told(self) -> str:
        """The figures in words."""
        first, second = self.names
        return (
            f"Draws of '{first}' and '{second}' have a rank correlation of {self.own:.2f}, those "
            f"of chains {self.theirs:.2f}: what depends on both is off."
        )


@dataclass(frozen=True)
class Comparison:
    """Every column beside the chains' own.

    Attributes
    ----------
    found : list of Off
        Constant columns are left out.
    by_site : dict of str to SiteFigures
    dependence : Dependence, optional
        Of the two columns whose dependence differs most.
    """

    found: Sequence[Off]
    by_site: Mapping[str, SiteFigures]
    dependence: Dependence | None = None

    @property
    def worst(self) -> Off:
        """The column that is furthest off."""
        return max(self.found, key=lambda off: off.share)

    @property
    def wrong(self) -> int:
        """Columns that are off by more than chance and tolerance allow."""
        return sum(off.share > 1.0 for off in self.found)

    @property
    def dependent(self) -> str:
        """What is to be said of columns that depend on each other in another way; "" if nothing."""
        found = self.dependence
        return "" if found is None or found.share <= 1.0 else found.told

    @property
    def unsure(self) -> str:
        """What keeps draws that do not differ from being confirmed, in words; "" if nothing."""
        large = [off for off in self.found if off.site and UNSURE < off.deviation_bound < math.inf]
        if not large:
            return ""
        worst = max(large, key=lambda off: off.deviation_bound)
        return (
            f"Not confirmed: the sd of '{worst.name}' may be off by {worst.deviation_bound:.0%}, "
            f"as far as these draws and chains tell. {MORE_DRAWS}"
        )


def flat_columns(
    draws: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], chains: int = 1
) -> Columns:
    """Scalars of sites of these shapes.

    Raises
    ------
    ArgumentError
        A site is missing, or has another shape.
    """
    names, sites, columns = [], [], []
    for name, shape in shapes.items():
        if name not in draws:
            raise ArgumentError(
                f"Expected draws of every latent site, found none of '{name}'. Sites that were "
                f"drawn: {', '.join(map(str, draws))}."
            )
        own = np.asarray(on_host(draws[name]), np.float64)
        if own.ndim == 0 or own.shape[1:] != shape:
            raise ArgumentError(
                f"Expected draws of '{name}' with shape (draws, {', '.join(map(str, shape))}), "
                f"found {own.shape}. Chains are one axis with the draws, as get_samples() gives "
                "them."
            )
        flat = own.reshape(len(own), math.prod(shape))
        columns.append(flat)
        sites += [name] * flat.shape[1]
        names += [label(name, shape, k) for k in range(flat.shape[1])]
    lengths = {len(column) for column in columns}
    if len(lengths) > 1 or 0 in lengths:
        raise ArgumentError(
            f"Expected as many draws of every site, and some, found {sorted(lengths)}."
        )
    return Columns(names, sites, np.concatenate(columns, axis=1), chains)


def with_further(
    columns: Columns, names: Sequence[str], sites: Sequence[str], values: Float[np.ndarray, "S D"]
) -> Columns:
    """The columns with further ones."""
    joined = np.concatenate([columns.values, values], axis=1)
    return replace(
        columns, names=[*columns.names, *names], sites=[*columns.sites, *sites], values=joined
    )


@np.errstate(all="ignore")
def compared(own: Columns, theirs: Columns, dim: int) -> Comparison:
    """Draws beside those of chains, column by column."""
    scale = theirs.values.std(0)
    figures = convergence(in_chains(theirs.values, theirs.chains))
    chosen = np.flatnonzero(scale > 0.0)
    each = LEVEL / (FIGURES * max(1, len(chosen)))
    numbers = _Numbers(own.worth, theirs.effective, *_of_tails(theirs))
    found = [_off(own, theirs, int(k), numbers, figures, each, dim) for k in chosen]
    by_site = {
        site: _of_site([off for off in found if off.site == site], own, own.worth, site)
        for site in dict.fromkeys(own.sites)
        if site
    }
    return Comparison(found, by_site, dependence(own, theirs))


@np.errstate(all="ignore")
def dependence(own: Columns, theirs: Columns) -> Dependence | None:
    """The furthest dependence of two columns; None where there are no two, or very many.

    Rank correlations know of no scale and hardly of tails. Errors are those of D. Bonett and T.
    Wright, "Sample size requirements for estimating Pearson, Kendall and Spearman correlations"
    (2000). A product of two columns may be worth less than each of them, as in chains that turn
    round at every step, so that it is looked at as well before two columns are called off.
    """
    both = own, theirs
    chosen = np.flatnonzero(varies(own.values) & varies(theirs.values))
    chosen = chosen[np.isfinite(own.values[:, chosen]).all(0)]
    if not 2 <= len(chosen) <= MOST_PAIRED:
        return None
    first, second = np.triu_indices(len(chosen), 1)
    quantile = -float(ndtri(0.5 * LEVEL / len(first)))
    white, correlations, numbers = [], [], []
    for columns in both:
        values = columns.values[:, chosen]
        of_ranks = np.stack([ranks(column) for column in values.T], 1)
        of_ranks = (of_ranks - of_ranks.mean(0)) / of_ranks.std(0)
        white.append(of_ranks)
        correlations.append((of_ranks.T @ of_ranks)[first, second] / len(values))
        numbers.append(np.minimum(*(columns.worth[chosen[each]] for each in (first, second))))

    def shares(which: Any, numbers: Sequence[Any]) -> np.ndarray:
        found = np.stack([each[which] for each in correlations])
        squares = np.square(1.0 - found**2) * (1.0 + 0.5 * found**2)
        error = np.sqrt((squares / np.maximum(np.stack(numbers) - 3.0, 1.0)).sum(0))
        share: np.ndarray = np.abs(found[0] - found[1]) / np.hypot(CORRELATION, quantile * error)
        return share

    every = shares(slice(None), numbers)
    worst = np.argsort(-every)[:MOST_DOUBTED]
    doubted = worst[every[worst] > 1.0]
    if len(doubted):
        of_products = []
        for columns, each, number in zip(both, white, numbers, strict=True):
            products = each[:, first[doubted]] * each[:, second[doubted]]
            worth = effective_number(in_chains(products, columns.chains))
            of_products.append(np.minimum(worth, number[doubted]))
        every[doubted] = shares(doubted, of_products)
        worst = worst[np.argsort(-every[worst])]
    k = int(worst[0])
    names = own.names[chosen[first[k]]], own.names[chosen[second[k]]]
    return Dependence(names, correlations[0][k], correlations[1][k], every[k])


@dataclass(frozen=True)
class _Numbers:
    """Effective numbers by column: of the draws, and of the reference's middle and tails."""

    own: Float[np.ndarray, " K"]
    bulk: Float[np.ndarray, " K"]
    lower: Float[np.ndarray, " K"]
    upper: Float[np.ndarray, " K"]


def _of_tails(theirs: Columns) -> tuple[Float[np.ndarray, " K"], ...]:
    draws = in_chains(theirs.values, theirs.chains)
    low, high = np.quantile(draws, [TAIL, 1.0 - TAIL], axis=(0, 1))
    return tuple(map(effective_number, ((draws < low) * 1.0, (draws > high) * 1.0)))


def _of_site(
    found: Sequence[Off], own: Columns, numbers: Float[np.ndarray, " K"], site: str
) -> SiteFigures:
    rows = [k for k, name in enumerate(own.sites) if name == site]
    number = float(numbers[rows].min())
    mean = max((off.mean_bound for off in found), default=math.nan)
    deviation = max((off.deviation_bound for off in found), default=math.nan)
    bounds = {off.name: (off.mean_bound, off.deviation_bound) for off in found}
    return SiteFigures(
        number,
        number,
        math.nan,
        mean_bound=mean,
        deviation_error=deviation,
        size=len(rows),
        values=column_values(own, rows, numbers, bounds),
    )


def column_values(
    own: Columns,
    rows: Sequence[int],
    numbers: Float[np.ndarray, " K"],
    bounds: Mapping[str, tuple[float, float]],
) -> tuple[Value, ...]:
    """Mean and standard deviation of a site's columns, or of the least certain where many.

    Bounds on the errors, by column, are in standard deviations, and as a share of one.
    """
    chosen = rows if len(rows) <= MOST_SHOWN else [min(rows, key=lambda k: numbers[k])]
    values = []
    for k in chosen:
        mean, sd = float(own.values[:, k].mean()), float(own.values[:, k].std())
        of_mean, of_sd = bounds.get(own.names[k], (math.nan, math.nan))
        worth = float(numbers[k])
        ends = map(float, np.quantile(own.values[:, k], [0.05, 0.95]))
        figures = mean, sd, sd * of_mean, sd * of_sd, worth, worth, math.nan
        values.append(Value(own.names[k], *figures, *ends))
    return tuple(values)


def _off(
    own: Columns,
    theirs: Columns,
    k: int,
    numbers: _Numbers,
    figures: Convergence,
    each: float,
    dim: int,
) -> Off:
    name, site = own.names[k], own.sites[k]
    x, y = own.values[:, k], theirs.values[:, k]
    if not np.isfinite(x).all():
        return Off(name, site, math.nan, math.nan, 1.0, math.nan, math.nan, math.inf)
    in_tails, of_mean = float(numbers.own[k]), float(numbers.bulk[k])
    number = max(SPREAD, in_tails) if own.is_spread else in_tails
    of_tails = float(numbers.lower[k]), float(numbers.upper[k])
    scale, center = float(y.std()), float(y.mean())
    white = (y - center) / scale
    noise = 1.0 / number + 1.0 / of_mean
    quantile = -float(ndtri(0.5 * each))
    # E. Cornish and R. Fisher's correction of a mean's quantile for skewness.
    skewness = abs(float((white**3).mean()))
    corrected = quantile + (quantile**2 - 1.0) * skewness * math.sqrt(noise) / 6.0
    error = math.hypot(
        0.5 * math.sqrt(max(0.0, float((white**4).mean()) - 1.0) / number),
        float(figures.deviation_error[k]),
    )
    mean = abs(float(x.mean()) - center) / scale
    deviation = float(x.std()) / scale
    off = abs(math.log(max(deviation, 1e-300)))
    tolerance = 1.0 if site else max(1.0, OF_DENSITY / MEAN * math.sqrt(dim))
    by_moments = (
        mean / math.hypot(tolerance * MEAN, corrected * math.sqrt(noise)),
        off / math.hypot(tolerance * DEVIATION, quantile * error),
    )
    distance = _distance(x, y)
    of_distance = math.sqrt(-0.5 * math.log(0.5 * each) * noise)
    shares = [distance / math.hypot(tolerance * DISTANCE, of_distance)]
    low, high = np.quantile(y, [TAIL, 1.0 - TAIL])
    # Ties count half, so that a rounded value at the end counts in neither.
    lower = float(((x < low).mean() + (x <= low).mean()) / 2)
    upper = float(((x > high).mean() + (x >= high).mean()) / 2)
    if site:
        masses = zip((lower, upper), of_tails, strict=True)
        shares += [_tail_share(mass, in_tails, theirs_of, each) for mass, theirs_of in masses]
    deviation_bound = math.inf
    if not figures.is_heavy[k]:
        shares += by_moments
        deviation_bound = math.expm1(off + quantile * error)
    return Off(
        name,
        site,
        mean,
        deviation,
        distance,
        lower,
        upper,
        max(shares),
        mean + corrected * math.sqrt(noise),
        deviation_bound,
    )


def _tail_share(mass: float, own: float, theirs: float, each: float) -> float:
    """How far a tail's mass is off, as a share of what is allowed: wrong beyond 1.

    Given how many draws of both sets together lie in the tail, the number of those of one set is
    binomial. Its chance is computed for masses that differ by just the ratio that is let pass.
    """
    ours, reference = mass * own, TAIL * theirs
    few = TAIL_RATIO * own / (TAIL_RATIO * own + theirs)
    many = own / (own + TAIL_RATIO * theirs)
    chances = [
        float(betainc(reference, ours + 1.0, 1.0 - few)) if mass < TAIL else 1.0,
        float(betainc(ours, reference + 1.0, many)) if mass > TAIL else 1.0,
    ]
    return math.log(max(min(chances), 1e-300)) / math.log(0.5 * each)


def _distance(own: Float[np.ndarray, " S"], theirs: Float[np.ndarray, " R"]) -> float:
    """Kolmogorov distance of two sets of draws. SciPy's takes half a second to import."""
    points = np.concatenate([own, theirs])
    below = [
        np.searchsorted(np.sort(each), points, side="right") / len(each) for each in (own, theirs)
    ]
    return float(np.abs(below[0] - below[1]).max())
