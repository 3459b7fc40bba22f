"""When a run may stop: its draws move no more, as far as their noise lets one tell.

A run with ``until=Settled()`` is looked at ever more rarely, so that there are 128 to 256 looks at
equal distances however long it is (more where more noise than drift is allowed). A look sees flat
positions: particles, or draws of a guide, each time with the same noise. Kept of them are, by
coordinate, the mean and the logarithm of the standard deviation. Means count in present standard
deviations; logarithms need no unit. How far these figures still go, and how far they swing, is
worked out in :mod:`ppl_ext.running.noisy_sequences`.

A run has settled when both are within the tolerance for every figure, three times in a row, at
tests that are 10 % of the run apart. The idea, running averages that are compared with their Monte
Carlo error, is that of Welandawe, Andersen, Vehtari and Huggins, "A framework for improving the
reliability of black-box variational inference", https://arxiv.org/abs/2203.15945; they ask for
stationary iterates (R-hat), which engines without noise never have, and then lower the rate.

*What cannot be seen.* Whether what has settled is right: a rate that falls to nothing stops any
run, and modes that nothing has gone to are not missed. Nor a drift that is hidden in the noise of
the run so far, as where a tiny step size follows scores that are little but noise: then a few
figures seem to rest, while many are seen to spread.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from ppl_ext.errors import ArgumentError, UnsettledWarning
from ppl_ext.options import check_number, described
from ppl_ext.running.noisy_sequences import judged

#: Looks that are kept at the most, the same where more noise is allowed than drift, whose averages
#: take more, and looks before the first test.
MOST_LOOKS, MOST_OF_NOISE, LEAST_LOOKS = 256, 2048, 64
#: How much longer the run is at the next test, and tests in a row that must be passed.
GROWTH, IN_A_ROW = 1.1, 3
#: Coordinates that are looked at, at most: a random choice of more.
MOST_COORDINATES = 1024
#: Draws of a guide at a look: numbers at most, and bounds on the draws.
NUMBERS, FEWEST_DRAWS, MOST_DRAWS = 2**17, 2, 32
#: Names of units.
DEVIATIONS, SIZES = "sd", "of its size"
#: Units in the last place within which figures do not move.
ROUNDING = 32.0


@dataclass(frozen=True)
class Settled:
    """The rule by which a run stops when it has settled: ``run(..., until=Settled())``.

    Parameters
    ----------
    tolerance : float, default 0.1
        How far the means of draws may still go, in their standard deviations, and the logarithms
        of the latter.
    noise : float, optional
        How far both may swing about where they stay, one standard deviation, as they do in runs
        with noisy scores. Default: the tolerance.

    Raises
    ------
    ArgumentError
        A number is not positive.

    Examples
    --------
    >>> rule = Settled(tolerance=0.05)
    >>> rule.most_noise
    0.05
    """

    tolerance: float = 0.1
    noise: float | None = None

    def __post_init__(self) -> None:
        check_number("tolerance", self.tolerance)
        check_number("noise", self.noise, optional=True)

    @property
    def most_noise(self) -> float:
        """The noise that is allowed."""
        return self.tolerance if self.noise is None else self.noise


def rule_of(until: Any) -> Settled | None:
    """The rule that a run is given.

    Raises
    ------
    ArgumentError
        It is none.
    """
    if until is None or isinstance(until, Settled):
        return until
    if isinstance(until, str) and until == "settled":
        return Settled()
    raise ArgumentError(
        "Expected until to be 'settled' or Settled(tolerance=...), or None for all of num_steps, "
        f"found {described(until)}."
    )


class Settling(NamedTuple):
    """How settled a run is.

    Parameters
    ----------
    settled : bool
        Whether it is, by its rule.
    step : int
        Steps that had been taken at the last test, from the engine's first.
    looks : int
        Looks that there are.
    drift : float
        How far the figures still go, in standard deviations, the most of all: infinite where they
        do not slow down, NaN before the first test.
    drift_site : str
        The latent site of that.
    noise : float
        How far they swing, in standard deviations, the most of all; NaN before the first test.
    noise_site : str
        The latent site of that.
    rule : Settled
    unit : str
        What the figures count in: "sd", or, where each position is an answer of its own, "of its
        size", the root mean square of all numbers of a latent site.

    Examples
    --------
    >>> found = Settling(True, 900, 80, 0.02, "w", 0.03, "b", Settled())
    >>> print(found, found.drift_site)
    0.03 sd w
    """

    settled: bool
    step: int
    looks: int
    drift: float
    drift_site: str
    noise: float
    noise_site: str
    rule: Settled
    unit: str = DEVIATIONS

    def __str__(self) -> str:
        """The larger of both figures, as the progress bar shows it."""
        if math.isnan(self.drift):
            return "too early to tell"
        if math.isinf(self.drift):
            return "moving"
        return f"{max(self.drift, self.noise):.2g} {self.unit}"


#: What a watch knows beside its looks.
_KEPT: dict[str, type] = {
    **dict.fromkeys(("first", "interval", "since", "skipped", "passed"), int),
    **dict.fromkeys(("next_test", "epsilon"), float),
    "apart": bool,
}


class SettlingWatch:
    """Looks at a run until it has settled.

    Parameters
    ----------
    rule : Settled
    first : int
        Steps after which it begins to look.
    positions : callable
        The present flat positions (n, D), of the engine's precision.
    sites : mapping
        Latent sites to their slices of D.
    apart : bool
        Whether each position is an answer of its own, and not a draw of one: then they are judged
        themselves, in units of the root mean square of all numbers of a latent site. So is a
        single position.
    """

    def __init__(
        self,
        rule: Settled,
        first: int,
        positions: Callable[[], Float[np.ndarray, "n D"]],
        sites: Mapping[str, slice],
        apart: bool = False,
    ) -> None:
        self._rule, self._positions, self._sites = rule, positions, sites
        self._first, self._interval = first, 1
        # Noise averages out as the root of the number of looks.
        ratio = max(1.0, rule.most_noise / rule.tolerance)
        self._most_looks = min(round(MOST_LOOKS * ratio**2), MOST_OF_NOISE)
        self._looks: list[np.ndarray] = []
        self._chosen: np.ndarray | None = None
        self._apart = apart
        self._epsilon = 0.0
        # Steps that the figures rest on: those that were taken, between the looks that count.
        self._since, self._skipped = first, -1
        self._next_test, self._passed = 0.0, 0
        self._over = False
        self.found = Settling(False, first, 0, math.nan, "", math.nan, "", rule)

    def saved(self) -> UInt8[np.ndarray, " bytes"] | None:
        """What the watch has seen, for :meth:`go_on`; None once the run is at its end."""
        if self._over:
            return None
        seen = {name: getattr(self, f"_{name}") for name in _KEPT}
        text = json.dumps({**seen, "rule": self._its_rule(), "looks": len(self._looks)})
        looks = np.asarray(self._looks, np.float64)
        return np.frombuffer(text.encode() + b"\n" + looks.tobytes(), np.uint8)

    def go_on(self, saved: UInt8[np.ndarray, " bytes"] | None) -> None:
        """Watch on where a watch with the same rule was that :meth:`saved` is of.

        Raises
        ------
        ValueError
            It is of none.
        """
        if saved is None:
            return
        seen, looks = _parsed(saved)
        if seen["rule"] != self._its_rule():
            return
        for name, kind in _KEPT.items():
            setattr(self, f"_{name}", kind(seen[name]))
        self._looks = list(looks)

    def _its_rule(self) -> list[float]:
        return [float(self._rule.tolerance), float(self._rule.most_noise)]

    def next_look(self, position: int) -> int:
        """The next step after ``position`` at which to look."""
        start = max(position, self._first)
        return self._first + ((start - self._first) // self._interval + 1) * self._interval

    def look(self, position: int, skipped: int, *, last: bool = False) -> bool:
        """Look at the present state; whether the run has settled.

        Parameters
        ----------
        position : int
            Steps taken so far.
        skipped : int
            Those of them that were not finite and have moved nothing.
        last : bool
            Whether no step follows, and so it is the time to test.
        """
        if position > self._first and (position - self._first) % self._interval == 0:
            self._keep(position, skipped)
        # Looks times their distance are steps; the state after the last step may be none.
        count = len(self._usable())
        length = count * self._interval
        if count >= LEAST_LOOKS and (length >= self._next_test or last):
            self._next_test = GROWTH * length
            self._test(position)
        self.found = self.found._replace(looks=count)
        self._over = last or self.found.settled
        return self.found.settled

    def _keep(self, position: int, skipped: int) -> None:
        # Those of an earlier run are known at the first look.
        taken = position - self._since
        missed = skipped - self._skipped if self._skipped >= 0 else 0
        self._since, self._skipped = position, skipped
        figures = self._figures_now()
        # A state that stays because its steps were skipped has not settled. Its look keeps its
        # place, so that looks are at equal distances also once they are halved.
        if 2 * missed > taken or not np.isfinite(figures).all():
            figures = np.full_like(figures, math.nan)
        self._looks.append(figures)
        if len(self._looks) == self._most_looks:
            # Every other look from the last: the next one, at twice the distance, is as far from
            # it.
            self._looks = self._looks[::-2][::-1]
            self._interval *= 2

    def _usable(self) -> list[np.ndarray]:
        """Looks that were not left out, whose figures are not all NaN."""
        return [each for each in self._looks if not math.isnan(each[0])]

    def _figures_now(self) -> np.ndarray:
        positions = np.asarray(self._positions())
        count, dim = positions.shape
        self._epsilon = float(np.finfo(positions.dtype).eps)
        if self._chosen is None:
            self._apart |= count == 1
            most = max(1, MOST_COORDINATES // count) if self._apart else MOST_COORDINATES
            # The same coordinates in every process, and after a resume.
            draws = np.random.default_rng(0)
            everything = np.arange(dim)
            chosen = draws.choice(dim, most, replace=False) if dim > most else everything
            self._chosen = np.sort(chosen)
        if dim > len(self._chosen):
            positions = positions[:, self._chosen]
        positions = positions.astype(np.float64)
        return positions.ravel() if self._apart else figures_of(positions)

    def _test(self, position: int) -> None:
        looks = np.stack(self._usable())
        # Of draws the means come first and then the deviations, both in the order of the sites.
        sites = np.resize(self._sites_looked_at(), looks.shape[1])
        unit = np.ones(looks.shape[1])
        if self._apart:
            unit = _root_mean_squares(looks[-1], sites)
        else:
            dim = len(unit) // 2
            # Means in units of the deviations of the second half, when the first moves are over.
            unit[:dim] = np.exp(looks[-len(looks) // 2 :, dim:].mean(0))
        looks = looks / unit
        found = judged(looks, ROUNDING * self._epsilon * (1.0 + np.abs(looks[-1])))
        drift, noise = int(found.drift.argmax()), int(found.noise.argmax())
        still = found.drift[drift] <= self._rule.tolerance
        still &= found.noise[noise] <= self._rule.most_noise
        self._passed = self._passed + 1 if still else 0
        names = list(self._sites)
        self.found = Settling(
            self._passed >= IN_A_ROW,
            position,
            self.found.looks,
            float(found.drift[drift]),
            names[sites[drift]],
            float(found.noise[noise]),
            names[sites[noise]],
            self._rule,
            SIZES if self._apart else DEVIATIONS,
        )

    def _sites_looked_at(self) -> np.ndarray:
        """Number of the latent site of each coordinate that is looked at."""
        if self._chosen is None:  # a run that goes on, and has not looked yet
            self._figures_now()
        assert self._chosen is not None
        of_all = np.zeros(max(each.stop for each in self._sites.values()), int)
        for number, where in enumerate(self._sites.values()):
            of_all[where] = number
        return of_all[self._chosen]


def check_saved(saved: Any) -> None:
    """See that :meth:`SettlingWatch.saved` may have given this.

    Raises
    ------
    ValueError
        It has not.
    """
    if saved is not None:
        _parsed(saved)


def _parsed(saved: Any) -> tuple[dict[str, Any], Float[np.ndarray, "looks M"]]:
    text, _, numbers = np.asarray(saved, np.uint8).tobytes().partition(b"\n")
    seen: dict[str, Any] = json.loads(text)
    if missing := {*_KEPT, "rule", "looks"} - seen.keys():
        raise ValueError(f"it has no {sorted(missing)}")
    looks = np.frombuffer(numbers, np.float64)
    return seen, looks.reshape(seen["looks"], -1) if len(looks) else looks.reshape(0, 0)


def figures_of(positions: Float[np.ndarray, "n D"]) -> Float[np.ndarray, " M"]:
    """Means by coordinate, and logarithms of standard deviations (2 D,)."""
    means = positions.mean(0)
    # Positions that coincide have a deviation of 0, whose logarithm would be no number to compare.
    tiny = np.finfo(np.float32).tiny
    return np.concatenate([means, np.log(np.maximum(positions.std(0, ddof=1), tiny))])


def _root_mean_squares(values: Float[np.ndarray, " D"], sites: np.ndarray) -> np.ndarray:
    """Root mean square of the values of each one's site; one where that is zero."""
    counts = np.maximum(np.bincount(sites), 1)
    found = np.sqrt(np.bincount(sites, np.square(values)) / counts)[sites]
    return np.where(found > 0.0, found, 1.0)


def warn_if_unsettled(name: str, found: Settling | None, asked: int) -> None:
    """Say so when a run of the engine of this name has not settled in the steps it was given."""
    if found is None or found.settled:
        return
    rule = found.rule
    if math.isnan(found.drift):
        what = f"only {found.looks} states to look at"
        how = "Raise num_steps."
    elif math.isinf(found.drift):
        what = "that they move, and do not slow down"
        how = "Raise num_steps, or the learning rate where that is small."
    elif found.drift > rule.tolerance:
        what = f"that they may still go {found.drift:.2g} {found.unit} (site '{found.drift_site}')"
        how = "Raise num_steps."
    elif found.noise > rule.most_noise:
        what = f"that they swing by {found.noise:.2g} {found.unit} (site '{found.noise_site}')"
        how = (
            "Lower the learning rate, let it fall over the run, take more draws or rows a step, or "
            "allow the swing by Settled(noise=...)."
        )
    else:
        what = "that it came to rest in the last steps only"
        how = "Raise num_steps."
    warnings.warn(
        f"Expected the draws of {name} to settle in {asked} steps, to {rule.tolerance:g} "
        f"{found.unit}, found {what}. {how}",
        UnsettledWarning,
        stacklevel=4,
    )
