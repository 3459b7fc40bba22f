"""What a fit asks of a program: a density to evaluate, and the way back to its sites.

A :class:`Problem` is the only thing that a climb knows of a program. It has no host's types in its
way, so that everything beyond it is NumPy's. A :class:`Meter` counts what a climb spends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.fit.problem.observed import Observed
from ppl_ext.fit.problem.views import Views
from ppl_ext.fit.verdict import facts
from ppl_ext.running.settling import Settling
from ppl_ext.start.paths import Evaluate, SpentError
from ppl_ext.start.rows import Minibatches
from ppl_ext.start.search import WIDTH, InPieces
from ppl_ext.start.start import Start
from ppl_ext.statistics.convergence import varies
from ppl_ext.target.bounds import Look
from ppl_ext.target.layouts import names_of_coordinates

#: Positions that are mapped at once: fewer are filled up, so that one program is compiled for all.
MAPPED = 128

Positions = Float[np.ndarray, "P D"]


@dataclass(frozen=True)
class Approximated:
    """What an engine gave.

    Attributes
    ----------
    name : str
        The engine, with what it fitted.
    positions : array (S, D)
        Equally weighted draws on the unconstrained space.
    steps : int
    settling : Settling
        Whether its figures came to rest.
    """

    name: str
    positions: Positions
    steps: int
    settling: Settling

    @property
    def engine(self) -> facts.Engine:
        """What the verdict's rules ask of it."""
        found = self.settling
        moving = 0.0 if found.settled else max(found.drift, found.noise)
        words = {"moving": "still moving"}.get(str(found), str(found))
        return facts.Engine(self.name, self.steps, found.settled, moving, words)


Approximate = Callable[["Start | None", "Meter"], Approximated]
#: So many draws of the prior, by a seed.
Prior = Callable[[int, int], Positions]
#: From positions to values by site, and back.
Maps = tuple[
    Callable[[Positions], dict[str, np.ndarray]], Callable[[Mapping[str, np.ndarray]], Positions]
]


@dataclass
class Problem:
    """A program with its arguments, on the flat unconstrained space of D numbers.

    Attributes
    ----------
    name : str
        How the program is written, such as "as written" or "non-centred".
    evaluate : InPieces
        Log densities (P,) and scores (P, D) at positions (P, D).
    dim : int
    epsilon : float
        Machine epsilon with which densities are computed.
    starting_points : callable
        Of a number: so many random positions with finite density and score.
    coordinates : dict of str to slice
        Range of the flat vector that each site takes.
    values : callable
        Of positions (P, D): the sites of the program as it was written, constrained, as arrays
        whose first axis is the positions.
    target : object
        The host's target of the program as it was written.
    own, data : object
        That of the program as it is evaluated, and its arguments, those of the batch where
        ``evaluate`` takes one from a loader.
    digest : callable
        A digest of the arguments.
    of_all_rows : callable, optional
        The same evaluations with all rows, where ``evaluate`` takes a batch of them.
    times_all_rows : float
        Rows of the data over those of the batch.
    reading : float
        Seconds that all rows take to be read, where they come from a loader.
    rows_of_batch : int
    parts : callable
        The same evaluations with parts of the batch.
    minibatches : Minibatches, optional
        The same with rows that are drawn anew, where the program looks them up in its plates and
        chains with all rows may take too long.
    approximate : callable, optional
        Of a start, or of None for the engine's own, and a meter: draws by an engine that takes
        minibatches and many dimensions. None where no engine can.
    maps : tuple of callable, optional
        From positions (P, D) to the values of the sites that are evaluated, and back.
    latents : mapping of str to str
        By site that is non-centred, the latent site that stands for it.
    lengths : mapping of str to int
        Of such sites whose entries are vectors, the length of each.
    entry_data : mapping of str to array
        By site that is partly non-centred, what data tell of its entries, as arrays: see
        :mod:`ppl_ext.fit.ladder.centring`.
    scales : tuple of int
        Coordinates on which the scales of sites of latent scale depend, where known.
    partly : callable, optional
        Of such a mapping: the program with its sites written so.
    other_form : Problem, optional
        Another way to write the program, that has some of its sites in another form.
    observed : Observed
        What of the data the program sees.
    prior : callable, optional
        Of a number and a seed: positions of so many draws of the prior. Raises
        ``NotImplementedError`` where a site has none.
    out_of_bounds : callable, optional
        See :data:`~ppl_ext.target.bounds.Look`.
    views : Views, optional
        What a fit of it shows of the program.
    """

    name: str
    evaluate: InPieces
    dim: int
    epsilon: float
    starting_points: Callable[[int], Positions]
    coordinates: Mapping[str, slice]
    values: Callable[[Positions], dict[str, Any]]
    target: Any
    own: Any
    data: Any
    digest: Callable[[], str]
    of_all_rows: InPieces | None = None
    times_all_rows: float = 1.0
    reading: float = 0.0
    rows_of_batch: int = 0
    parts: Callable[[], Sequence[Evaluate]] = tuple
    minibatches: Minibatches | None = None
    approximate: Approximate | None = None
    maps: Maps | None = None
    latents: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    entry_data: Mapping[str, np.ndarray] = field(default_factory=dict)
    scales: tuple[int, ...] = ()
    partly: Callable[[Mapping[str, np.ndarray]], Problem] | None = None
    other_form: Problem | None = None
    observed: Observed = field(default_factory=Observed)
    prior: Prior | None = None
    out_of_bounds: Look | None = None
    views: Views | None = None

    @property
    def strain(self) -> float:
        """Infinite where entries are standardised given their data: see ``facts.Program``.

        However even their widths are, the density falls slowly where their scale is near zero. But
        for mixtures along scales approximations have few draws there, and what chains lack of that
        tail nothing tells.
        """
        return math.inf if self.entry_data else 1.0

    @property
    def entries(self) -> np.ndarray:
        """1 for coordinates of sites of latent scale (D,), where these are known, 0 for others."""
        other = self.other_form
        return self.coordinates_of(
            self.latents.values() if other is None else other.latents
        ).astype(float)

    def coordinates_of(self, sites: Iterable[str]) -> np.ndarray:
        """Which coordinates (D,) are those of these sites."""
        found = np.zeros(self.dim, bool)
        for name in sites:
            found[self.coordinates[name]] = True
        return found

    def names_of(self, coordinates: Iterable[int]) -> list[str]:
        """Names of coordinates: of their sites, with the place in those that have several."""
        names = names_of_coordinates(self.coordinates)
        return [names[at] for at in coordinates]

    @property
    def is_whole(self) -> bool:
        """Whether every evaluation takes all rows."""
        return self.of_all_rows is None

    def of_prior(self, number: int, seed: int) -> tuple[Positions, str]:
        """So many draws of the prior, not all of them finite; or none, and what the prior is."""
        none = np.zeros((0, self.dim))
        if self.prior is None:
            return none, ""
        try:
            return self.prior(number, seed), ""
        except NotImplementedError:
            return none, "which is improper, or has no draws"
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the fit.
            return none, f"whose draws failed ({type(error).__name__})"

    def numbers(self, positions: Positions) -> dict[str, np.ndarray]:
        """``values`` as NumPy's, in pieces of one size, for which one program is compiled.

        What varies by rounding alone, such as the diagonal of a correlation matrix, is one number.
        """
        numbers = _in_pieces(self.values, positions)
        for name, array in numbers.items():
            at = self.coordinates.get(self.latents.get(name, name))
            if at is not None and array[:1].size > at.stop - at.start:
                where = varies(array.reshape(len(array), -1)).reshape(array.shape[1:])
                numbers[name] = np.where(where, array, array[:1])
        return {name: np.asarray(array, np.float64) for name, array in numbers.items()}

    def positions_of(self, other: Problem, positions: Positions) -> Positions:
        """Where positions of another way to write the program lie in this one, which has maps."""
        assert self.maps is not None
        return self.maps[1](other.numbers(positions))

    def seconds_with_all_rows(self, each: float) -> float:
        """Seconds that an evaluation with all rows takes, where one as they are takes ``each``.

        Positions of a piece share a pass over a loader.
        """
        return each * self.times_all_rows + self.reading / WIDTH

    def between(self, entry_data: Mapping[str, np.ndarray]) -> Problem:
        """The program with entries standardised given their data.

        Itself where there are no such data, or this way to write it does not lead to that one.
        """
        if not entry_data or self.partly is None:
            return self
        return replace(self.partly(entry_data), views=self.views)

    def with_all_rows(self, points: Callable[[int], Positions]) -> Problem:
        """The problem whose evaluations take all rows, and whose searches start from points."""
        assert self.of_all_rows is not None
        return replace(
            self,
            evaluate=self.of_all_rows,
            starting_points=points,
            of_all_rows=None,
            times_all_rows=1.0,
            reading=0.0,
            parts=tuple,
        )


def _in_pieces(
    function: Callable[[Positions], Mapping[str, Any]],
    positions: Positions,
    names: Collection[str] | None = None,
) -> dict[str, np.ndarray]:
    """Arrays by site of any number of positions, of all sites or of some."""
    found = [function(each) for each in _pieces(positions)]
    chosen = found[0] if names is None else names
    together = {name: np.concatenate([np.asarray(each[name]) for each in found]) for name in chosen}
    return {name: values[: len(positions)] for name, values in together.items()}


def maps_of(
    names: Sequence[str],
    constrain: Callable[[Positions], Mapping[str, Any]],
    unconstrain: Callable[[Mapping[str, np.ndarray]], Any],
) -> Maps:
    """Maps of any number of positions, in pieces of one size, for which one is compiled."""

    def there(positions: Positions) -> dict[str, np.ndarray]:
        found = _in_pieces(constrain, positions, names)
        return {name: np.asarray(array, np.float64) for name, array in found.items()}

    def back(values: Mapping[str, np.ndarray]) -> Positions:
        number = len(values[names[0]])
        each = zip(*(_pieces(values[name]) for name in names), strict=True)
        found = [unconstrain(dict(zip(names, piece, strict=True))) for piece in each]
        return np.concatenate([np.asarray(piece, np.float64) for piece in found])[:number]

    return there, back


def _pieces(array: np.ndarray) -> list[np.ndarray]:
    """An array in pieces of one length, the last filled up."""
    filled = np.concatenate([array, np.repeat(array[-1:], -len(array) % MAPPED, axis=0)])
    return np.split(filled, len(filled) // MAPPED)


def timed(
    evaluate: Evaluate,
    position: Float[np.ndarray, " D"],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Log density at a position, and the seconds that an evaluation takes by a clock."""
    positions = position[None].repeat(WIDTH, 0)
    evaluate(positions)
    began = clock()  # the second compiles nothing
    values, _ = evaluate(positions)
    return float(values[0]), (clock() - began) / WIDTH


@dataclass
class Meter:
    """Evaluations and seconds of a fit, against what it may spend.

    ``for_engines`` are the evaluations that an engine may take: those that the user allows, or any.
    """

    budget: int
    seconds: float
    bar: Any = None
    evaluations: int = 0
    for_engines: float = math.inf
    clock: Callable[[], float] = time.perf_counter
    started: float = field(init=False)
    _rest: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def of(
        self,
        evaluate: Evaluate,
        leaves: float = 0.0,
        share: float = 1.0,
        timely: bool = False,
    ) -> Evaluate:
        """The same evaluations, counted; they end where fewer than ``leaves`` would be left.

        ``share`` is that of the rows that they take: so much each of them counts. Those that
        are ``timely`` end with the seconds as well.
        """

        def counted(
            positions: Positions,
        ) -> tuple[Float[np.ndarray, " P"], Positions]:
            if timely and self.elapsed > self.seconds:
                raise SpentError
            self._take(share * len(positions), leaves)
            return evaluate(positions)

        return counted

    def points(self, problem: Problem) -> Callable[[int], Positions]:
        """The same starting points, an evaluation each."""

        def counted(number: int) -> Positions:
            self._take(number)
            return problem.starting_points(number)

        return counted

    def _take(self, count: float, leaves: float = 0.0) -> None:
        number = int(count + self._rest)
        if self.left - number < leaves:
            raise SpentError
        self._rest += count - number
        self.evaluations += number
        if self.bar is not None:
            self.bar.update(number)

    def shows(self, worth: float, wanted: float, seconds: float) -> None:
        """Let the bar say what the draws are worth after so many seconds, and about when they end.

        What independent draws are worth grows with time.
        """
        if self.bar is not None and worth > 0.0:
            left = max(0.0, seconds * (wanted / worth - 1.0))
            self.bar.set_postfix_str(
                f"ESS {worth:.0f} of {wanted:.0f}, about {left:.0f} s left", refresh=False
            )

    @property
    def left(self) -> int:
        """Evaluations that may still be made."""
        return self.budget - self.evaluations

    @property
    def elapsed(self) -> float:
        """Seconds since the fit began."""
        return self.clock() - self.started

    def allows(self, share: float = 1.0, of_engine: float | None = None) -> bool:
        """Whether less than a share of the budget and of the seconds is spent.

        ``of_engine`` are evaluations of an engine beside those that are counted.
        """
        spent = self.evaluations + (of_engine or 0.0)
        budget = self.budget if of_engine is None else self.for_engines
        return spent < share * budget and self.elapsed < share * self.seconds
