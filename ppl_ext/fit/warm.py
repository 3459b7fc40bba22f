"""Warm chains: the metric and the first points that a start, a fit or draws give to chains.

Chains in coordinates in which the density is near a standard Normal need neither a long warm-up
nor long trajectories. What is known before gives those coordinates, and only the step size is
adapted. If it is wrong, chains are slower, and still leave the density exactly as it is.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular
from scipy.special import fdtri

from ppl_ext.chains.hamiltonian import LENGTH, Chains, Factor, Positions, trajectory
from ppl_ext.errors import ArgumentError, DoubtfulFitWarning
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.options import check_choice, check_count, check_number
from ppl_ext.start.given import DrawnStart, Started, normal_of
from ppl_ext.start.paths import Evaluate
from ppl_ext.start.start import Mode, Start
from ppl_ext.statistics.convergence import split_r_hat
from ppl_ext.statistics.farthest import farthest

#: Transitions that adapt the step size, unless told otherwise.
WARMUP = 150
#: How often first points are drawn at most, where the density or its score is not finite at some.
TRIES = 20
#: Points that are drawn for each that is taken: a mode with a tenth of the mass has one of 32.
TO_CHOOSE_FROM = 8
#: Gain of the corrections of the log step size, which falls with the root of their number.
GAIN = 1.5
#: R-hat from which on chains have not come to rest: halves of a few chains of some hundred draws
#: come to 1.03 by chance.
R_HAT = 1.05
#: Probability of saying so by chance, over all coordinates.
LEVEL = 1e-3
#: Draws of half a chain below which nothing is said: ranks of fewer are not Normal.
LEAST_HALF = 10

Covariance = Float[np.ndarray, "D D"] | Float[np.ndarray, " D"]


def known(found: Started | None) -> Start:
    """The start that was found.

    Raises
    ------
    ArgumentError
        It is the host's, which knows nothing of the posterior.
    """
    if found is None:
        raise ArgumentError(
            "Expected a start that knows of the posterior, found the host's own. Pass find_start "
            "of this model, a fit, or draws."
        )
    return found.start


def covariance_of(start: Start) -> Covariance:
    """The mean covariance of a start's Normals; variances where one has no more."""
    factors = [mode.factor for mode in start.modes]
    if any(each.ndim == 1 for each in factors):
        parts = [np.square(mode.deviations) for mode in start.modes]
    else:
        parts = [each @ each.T for each in factors]
    found: Covariance = np.tensordot(start.weights, np.stack(parts), 1)
    return found


def of_fit(fit: Fit) -> Start:
    """The draws of a fit, with the covariance of its chains."""
    climbed = fit.climbed
    flat = climbed.positions.reshape(-1, climbed.positions.shape[2])
    if climbed.symmetry is not None:
        # Orders of labels are modes as well, and chains that began in several would never agree.
        flat = climbed.symmetry.ordered(flat)
    modes, sampled = climbed.evidence.modes, climbed.sampled
    if sampled is None or modes is None or modes.number == 1 or sampled.kernel.is_mixture:
        return DrawnStart((normal_of(flat),), 0, points=flat)
    # Where modes are separate the covariances are those around each of them: that of all draws
    # would be of the distances between modes. The components of a mixture are no modes.
    kernel = sampled.kernel
    each = zip(kernel.proposal.modes, kernel.factors, np.log(kernel.weights), strict=True)
    normals = (Mode(mode.mean, factor, float(weight), 0.0) for mode, factor, weight in each)
    return DrawnStart(tuple(normals), 0, points=flat)


def standard(dim: int) -> Start:
    """A standard Normal, to which a flow leads."""
    return Start((Mode(np.zeros(dim), np.ones(dim), 0.0, 0.0),), 0)


def first_points(
    start: Start, number: int, evaluate: Evaluate, generator: np.random.Generator
) -> Positions:
    """So many first points with finite density and score, far apart.

    Raises
    ------
    ArgumentError
        There are none near the start.
    """
    found = np.zeros((0, len(start.mean)))
    for _ in range(TRIES):
        drawn = start.draw(TO_CHOOSE_FROM * number, int(generator.integers(2**62)))
        values, scores = evaluate(drawn)
        finite = np.isfinite(values) & np.isfinite(scores).all(-1)
        found = np.concatenate([found, drawn[finite]])
        if len(found) >= number:
            return _apart(start, found, number)
    raise ArgumentError(
        "Expected a start near which density and score of the model are finite, found "
        f"{len(found)} such points of {TRIES * TO_CHOOSE_FROM * number}. Pass find_start of this "
        "model and data."
    )


@np.errstate(all="ignore")
def _apart(start: Start, points: Positions, number: int) -> Positions:
    """So many of the points, each as far as can be from those before it.

    Chains that all begin in one mode agree there, and nothing would tell of the others.
    """
    found = covariance_of(start)
    deviations = np.sqrt(found if found.ndim == 1 else np.diag(found))
    white = points / np.where(deviations > 0.0, deviations, 1.0)
    return points[[0, *farthest(white, white[:1], number - 1)]]


def check_options(
    num_samples: int,
    num_chains: int,
    num_warmup: int,
    target_accept_prob: float,
    *,
    progress_bar: bool,
) -> None:
    """See that options have a meaning.

    Raises
    ------
    ArgumentError
        One has none.
    """
    check_count("num_samples", num_samples)
    check_count("num_chains", num_chains)
    check_count("num_warmup", num_warmup)
    check_number("target_accept_prob", target_accept_prob, most=0.999)
    check_choice("progress_bar", progress_bar, (True, False))


def met(ways: Iterator[Problem], source: Any) -> tuple[Any, Problem | None]:
    """The target of a program, and the way to write it of which a fit is, if that is the source.

    Raises
    ------
    ArgumentError
        The program subsamples, or is not the fit's.
    """
    way = next(ways)
    target = way.own
    if plates := {**target.plates, **target.batch_plates}:
        raise ArgumentError(
            f"Expected a model that evaluates all rows, found minibatches of plate "
            f"{', '.join(map(repr, plates))}. Chains are exact on all rows alone: leave "
            "subsample_size out, or use SGLD or SGHMC."
        )
    way.observed.warn()
    is_fit = isinstance(source, Fit) and source.has_program
    return target, way_of(source, itertools.chain([way], ways)) if is_fit else None


def way_of(fit: Fit, ways: Iterable[Problem]) -> Problem:
    """The way to write a program in which it was fitted.

    Raises
    ------
    ArgumentError
        There is none: the fit is another program's.
    """
    own = fit.climbed.problem
    for way in ways:
        way = way.between(own.entry_data)
        if way.name == own.name and way.own.layout.shapes == own.own.layout.shapes:
            return way
    raise ArgumentError(
        f"Expected a fit of this model, found one {own.name} with the sites "
        f"{own.own.layout.shapes}. Pass a fit of this model, or draws of its sites."
    )


def warn_unless_at_rest(draws: Mapping[str, Any], stacklevel: int) -> None:
    """Say that chains have not come to rest, or have draws that are not finite.

    Parameters
    ----------
    draws : mapping of str to array (chains, draws, ...)
    stacklevel : int
    """
    worst, found = "", 0.0
    for name, values in draws.items():
        each = np.asarray(values, np.float64)
        chains, number = each.shape[:2]
        columns = each.reshape(chains, number, -1).transpose(1, 0, 2)
        half = number // 2
        if not np.isfinite(columns).all():
            worst, found = name, math.inf
            break
        if half < LEAST_HALF or columns.shape[2] == 0:
            continue
        # Of halves that are alike, between over within has an F distribution.
        share = 0.5 * LEVEL / columns.shape[2]  # R-hat is the larger of two
        chance = fdtri(2 * chains - 1, 2 * chains * (half - 1), 1.0 - share)
        r_hat = float(split_r_hat(columns).max())
        if r_hat > max(found, R_HAT, math.sqrt((half - 1 + float(chance)) / half)):
            worst, found = name, r_hat
    if not found:
        return
    what = "draws that are not finite" if math.isinf(found) else f"R-hat {found:.2f}"
    warnings.warn(
        f"The chains have not come to rest: {what} in '{worst}', where 1.01 is wanted. Their draws "
        "are not the posterior's. Give a start that is as wide as the posterior (find_start, or a "
        "fit), a longer num_warmup and more num_samples, or use fit, whose chains go on until they "
        "agree.",
        DoubtfulFitWarning,
        stacklevel=stacklevel + 1,
    )


class Tuned:
    """Hamiltonian chains in fixed coordinates; step size and length of trajectories are adapted.

    Parameters
    ----------
    evaluate : callable
        Log densities (M,) and scores (M, D).
    factor : array (D, D) or (D,)
        Root of the covariance of the coordinates.
    positions : array (M, D)
    warmup : int
        Transitions that adapt the step size, to the mean of its logarithm over their last quarter,
        and, where the density is wider than its coordinates say, the length.
    acceptance : float
        For which the step size is adapted.
    generator : numpy.random.Generator
    """

    def __init__(
        self,
        evaluate: Evaluate,
        factor: Factor,
        positions: Positions,
        warmup: int,
        acceptance: float,
        generator: np.random.Generator,
    ) -> None:
        self._evaluate, self._factor, self._generator = evaluate, factor, generator
        self._warmup, self._acceptance = warmup, acceptance
        self.chains = Chains.at(positions, evaluate)
        self.step_size, self.length = 1.0 / positions.shape[1] ** 0.25, LENGTH
        self.transitions = 0
        self._window: list[Positions] = []
        self._logs: list[float] = []

    def __call__(self) -> tuple[Float[np.ndarray, " M"], np.ndarray]:
        """One transition: probabilities of acceptance (M,), and which diverged (M,)."""
        with np.errstate(all="ignore"):
            self.chains, chance, divergent = trajectory(
                self._evaluate,
                self.chains,
                self._factor,
                self.step_size,
                self._generator,
                self.length,
            )
        self.transitions += 1
        if self.transitions <= self._warmup:
            self._adapt(float(chance.mean()))
        return chance, divergent

    def _adapt(self, chance: float) -> None:
        gain = GAIN / math.sqrt(self.transitions) * (chance - self._acceptance)
        # The step size has no bound: in coordinates that are too narrow it may have to be long.
        self.step_size *= math.exp(gain)
        self._window.append(self.chains.positions)
        quarter = max(1, self._warmup // 4)
        if self.transitions in (quarter, 2 * quarter, 3 * quarter):
            self.length = LENGTH * max(1.0, self._width())
            self._window = []
        if self.transitions > self._warmup - quarter:
            self._logs.append(math.log(self.step_size))
        if self.transitions == self._warmup:
            self.step_size = math.exp(sum(self._logs) / len(self._logs))

    def _width(self) -> float:
        """Standard deviation of the latest draws in their widest direction, less chance."""
        drawn = np.concatenate(self._window)
        centred = drawn - drawn.mean(0)
        if self._factor.ndim == 1:
            white = centred / self._factor
            return float(white.std(0).max())
        white = solve_triangular(self._factor, centred.T, lower=True)
        # The largest eigenvalue of a sample's covariance is about so large by chance, where the
        # density is a standard Normal; draws count half, as neighbours are alike.
        chance = 1.0 + math.sqrt(2.0 * len(white) / len(drawn))
        return float(np.linalg.norm(white, 2)) / math.sqrt(len(drawn)) / chance
