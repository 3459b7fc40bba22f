"""The outputs of a program at rows: what a fit of a network is judged by.

Outputs are the parameters of the observed distributions at the rows of training, and at those that
are held out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from ppl_ext.diagnostics.calibration import calibration_curve, calibration_error
from ppl_ext.diagnostics.predictive_data import (
    is_classification,
    mixture_probabilities,
    unbounded_outputs,
)
from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.fit.problem.problem import Problem, timed
from ppl_ext.fit.verdict import policy
from ppl_ext.target.on_host import on_host

if TYPE_CHECKING:
    from xarray import Dataset

#: Draws that calibration is judged by.
CALIBRATED_BY = 400
#: Draws that NumPyro predicts together, if there are as many.
PIECE = 128
#: Outputs of each kind that are judged at most.
MOST_OUTPUTS = 60
#: Numbers of a prediction that are held at once, 32 MB.
AT_ONCE = 4_000_000
#: Calibration error that does no harm, and is let pass whether or not chance explains it.
CALIBRATED = 0.05
#: Held-out rows from which on calibration is judged: fewer may be off by much by chance.
LEAST_ROWS = 20
#: Sets of rows that are drawn from the predictions, to see what error chance makes.
SIMULATED = 200
#: Quantile of these errors up to which the error of the held-out rows is let pass.
SURE = 0.99

Positions = Float[np.ndarray, "S D"]
Columns = dict[str, Float[np.ndarray, "S K"]]
#: Positional and keyword arguments of a model.
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


def held_out_arguments(held_out: Any) -> Arguments | None:
    """The model's arguments with rows that were held out, as a user gives them.

    Raises
    ------
    ArgumentError
        They are neither a tuple of arguments nor a mapping from their names.
    """
    if held_out is None:
        return None
    if isinstance(held_out, Mapping):
        return (), dict(held_out)
    if not isinstance(held_out, tuple):
        raise ArgumentError(
            "Expected held_out to be the model's arguments with rows that are not among those "
            "that are fitted, a tuple such as (x_test, y_test) or a mapping from names, found "
            f"{type(held_out).__name__}."
        )
    return held_out, {}


@dataclass(frozen=True)
class Outputs:
    """The outputs of a program at rows.

    Attributes
    ----------
    problem : Problem
        Every evaluation takes all rows; ``problem.minibatches`` are there where that is too slow.
    rows : mapping of str to Arguments
        By name: those of training, "", and, where there are some, "held out".
    """

    problem: Problem
    rows: Mapping[str, Arguments]
    #: By rows and site. The model is looked at once for all looks at the chains.
    _predictors: dict[tuple[str, str], Callable[..., Dataset]] = field(
        default_factory=dict, compare=False, repr=False
    )
    #: By rows, how many draws are predicted at once.
    _sizes: dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    def predictions(self, positions: Positions, rows: str) -> Iterator[tuple[str, Dataset]]:
        """The predictive distribution of each observed site, by site.

        Raises
        ------
        ArgumentError
            A site has none.
        """
        # The program's modules take numbers of its own precision only.
        kinds = {name: each.dtype for name, each in self.problem.values(positions[:1]).items()}
        draws = {
            name: each.astype(str(kinds[name]).removeprefix("torch."))
            for name, each in self.problem.numbers(positions).items()
        }
        for site in self.problem.target.observed_sites:
            if (rows, site) not in self._predictors:
                views = self.problem.views
                assert views is not None and views.predictor is not None
                args, kwargs = self.rows[rows]
                self._predictors[rows, site] = views.predictor(draws, args, kwargs, site=site)
            yield site, self._predictors[rows, site](draws, return_sites=())

    def columns(self, positions: Positions) -> Columns:
        """Numbers without bounds that stand for the outputs, by site, kind and rows.

        Of regression the mean and the logarithm of the standard deviation, of classes the logits
        less their mean; of many rows some, evenly apart. Those that are NaN or infinite are there.
        """
        found: dict[str, list[np.ndarray]] = {}
        for name in self.rows:
            first, size = 0, self._sizes.get(name, 2)
            while first < len(positions):
                own = positions[first : first + size]
                held = 0
                for site, each in self.predictions(_filled_up(own), name):
                    held += sum(variable.size for variable in each.data_vars.values())
                    for kind, values in unbounded_outputs(each):
                        label = f"{site}: {kind}{', ' * bool(name)}{name}"
                        found.setdefault(label, []).append(_some(values)[: len(own)])
                # Two draws tell how many numbers a draw takes.
                first += size
                if name not in self._sizes:
                    size = max(2, AT_ONCE * size // max(held, 1))
                    # Whole pieces, where it is one or more.
                    self._sizes[name] = size = size // PIECE * PIECE or size
        varying = {name: _varying(np.concatenate(each)) for name, each in found.items()}
        return {name: own for name, own in varying.items() if own.shape[1]}

    def calibration(self, positions: Positions, generator: np.random.Generator) -> Calibration:
        """Whether held-out rows are as the draws predict them."""
        if "held out" not in self.rows:
            return Calibration(told="Give held_out=, rows by which the predictions are judged.")
        few = positions[_evenly(len(positions), CALIBRATED_BY)]
        found = [
            _calibration(site, each, generator)
            for site, each in self.predictions(few, "held out")
            if "observed" in each and ("probabilities" in each or "cdf" in each)
        ]
        none = Calibration(told="Nothing is observed in held_out=. Give its responses as well.")
        return max(found, key=lambda each: each.over, default=none)


def _filled_up(positions: Positions) -> Positions:
    """More of the last one, up to whole pieces, so that few programs are compiled."""
    number = len(positions)
    whole = number if number < PIECE else -(-number // PIECE) * PIECE
    return positions[np.minimum(np.arange(whole), number - 1)]


def _some(values: Float[np.ndarray, "S K"]) -> Float[np.ndarray, "S k"]:
    """Some of the columns, evenly apart."""
    chosen: np.ndarray = values[:, _evenly(values.shape[1], MOST_OUTPUTS)]
    return chosen


def _evenly(size: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(int))


def _varying(values: Float[np.ndarray, "S K"]) -> Float[np.ndarray, "S K"]:
    varies: Bool[np.ndarray, " K"] = np.ptp(values, axis=0) != 0.0  # NaN counts
    return values[:, varies]


def finite_columns(columns: Columns) -> tuple[Columns, list[str]]:
    """Those of numbers in all draws, and a sentence on the others of each name."""
    kept, told = {}, []
    for name, own in columns.items():
        finite = np.isfinite(own)
        if not finite.all():
            told.append(
                f"{(~finite).any(0).sum():,} of {own.shape[1]:,} outputs '{name}' are NaN or "
                f"infinite in {(~finite).any(1).mean():.0%} of the draws, and are not judged. "
                "Look for a mean that a distribution does not have, or a number that overflows."
            )
        if finite.all(0).any():
            kept[name] = own[:, finite.all(0)]
    return kept, told


@dataclass(frozen=True)
class Calibration:
    """The calibration error on held-out rows, and what chance explains of it; NaN without any."""

    error: float = math.nan
    chance: float = math.nan
    told: str = ""

    @property
    def over(self) -> float:
        """By how much the error is larger than chance explains, and larger than does harm."""
        return -math.inf if math.isnan(self.error) else self.error - max(self.chance, CALIBRATED)

    @property
    def is_good(self) -> bool:
        """Whether there are held-out rows, and they are calibrated."""
        return math.isfinite(self.over) and self.over <= 0.0


def _calibration(site: str, found: Dataset, generator: np.random.Generator) -> Calibration:
    rows, classes = found.sizes["row"], is_classification(found)
    if rows < LEAST_ROWS:
        return Calibration(told=f"Give {LEAST_ROWS} held-out rows at least, found {rows}.")
    # The mixture of the draws is one draw.
    mixture = found.mean("draw").expand_dims("draw").assign(observed=found["observed"])
    error = calibration_error(calibration_curve(mixture))
    if classes:
        cumulated = mixture_probabilities(mixture).cumsum(-1)
    simulated = []
    for _ in range(SIMULATED):
        if classes:
            uniform = generator.uniform(size=(*cumulated.shape[:-1], 1))
            drawn = (uniform > cumulated[..., :-1]).sum(-1).reshape(mixture["observed"].shape)
            other = mixture.assign(observed=mixture["observed"].copy(data=drawn))
        else:
            uniform = generator.uniform(size=mixture["cdf"].shape)
            other = mixture.assign(cdf=mixture["cdf"].copy(data=uniform))
        simulated.append(calibration_error(calibration_curve(other)))
    chance = float(np.quantile(simulated, SURE))
    most = "which does no harm" if chance < CALIBRATED else "as much as chance may make it"
    told = (
        f"On {rows} held-out rows of '{site}' the calibration error is {error:.3f}, expected at "
        f"most {max(chance, CALIBRATED):.3f}, {most}."
    )
    return Calibration(error, chance, told)


def _are_same(one: Arguments, other: Arguments) -> bool:
    """Whether two calls have the same numbers, by position or by name."""
    (args, kwargs), (others, named) = one, other
    if kwargs.keys() == named.keys():  # in any order
        named = {name: named[name] for name in kwargs}
    first, second = [*args, *kwargs.values()], [*others, *named.values()]
    if not first or len(first) != len(second):
        return False
    pairs = zip(first, second, strict=True)
    try:
        return all(a is b or np.array_equal(on_host(a), on_host(b)) for a, b in pairs)
    except (RuntimeError, TypeError, ValueError):  # what has no numbers here, as on other devices
        return False


def outputs_of(
    problem: Problem,
    judge: str | None,
    held_out: Arguments | None,
    *,
    is_network: bool,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Outputs | None:
    """The outputs that a fit is judged by, or None where its sites are.

    ``clock`` counts the seconds.

    Raises
    ------
    ArgumentError
        Outputs were asked for, and there are none, or their rows come from a loader, or take too
        long without rows that are held out.
    """
    asks = judge == "outputs" or held_out is not None
    if judge == "sites" or not (asks or is_network):
        if held_out is not None:
            raise ArgumentError("Expected held_out with judge='outputs', found judge='sites'.")
        return None
    views, refused = problem.views, ""
    assert views is not None
    if views.batches is not None:
        refused = "Outputs at rows of a loader are not judged. Pass the rows as arguments."
    elif problem.minibatches is not None:
        whole = problem if problem.is_whole else problem.with_all_rows(problem.starting_points)
        _, each = timed(whole.evaluate, problem.starting_points(1)[0], clock)
        problem = whole
        if policy.CHAIN_EVALUATIONS * each <= seconds:
            problem = replace(whole, minibatches=None)
        elif held_out is None:
            refused = (
                f"Chains with all rows would take about {policy.CHAIN_EVALUATIONS * each:,.0f} s, "
                f"more than the {seconds:.3g} s that seconds= allows. Give held_out=, rows by "
                "which chains by minibatches are judged, or more seconds."
            )
    rows = {"": (views.args, views.kwargs)}
    if held_out is not None:
        if _are_same(held_out, rows[""]):
            raise ArgumentError(
                "Expected held_out to be rows that are not fitted, found those that are: they "
                "confirm nothing."
            )
        # Where rows are too many for all to be evaluated, held-out ones alone are predicted.
        rows = rows if problem.minibatches is None else {}
        rows = {**rows, "held out": held_out}
    found = Outputs(problem, rows)
    if not refused:
        try:
            columns, broken = finite_columns(found.columns(problem.starting_points(2)))
            if columns:
                return found
            refused = (*broken, "Observed distributions do not depend on latent sites.")[0]
        except ArgumentError as error:
            refused = str(error)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:  # of the model
            if held_out is None or isinstance(error, ModelCheckError):
                raise
            told = f"{type(error).__name__}: {error}".partition("\n")[0]
            refused = f"The model failed with the arguments of held_out: {told}"
    if asks:
        raise ArgumentError(f"Outputs cannot be judged. {refused}")
    return None


__all__ = ["Calibration", "Columns", "Outputs", "Positions", "held_out_arguments", "outputs_of"]
