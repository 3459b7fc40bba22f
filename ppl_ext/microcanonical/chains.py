"""Chains of microcanonical Langevin dynamics: a move of all, and what it leaves of the tuning."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ppl_ext.microcanonical import tuning
from ppl_ext.microcanonical.dynamics import (
    Evaluate,
    Point,
    forgetting,
    leapfrog,
    metropolis,
    refreshed,
    with_spare,
)
from ppl_ext.microcanonical.functions import Functions

#: Refreshes in a decoherence length, at least, where steps are short enough; and steps from one to
#: the next, at most. Noise for each step would take as long as a gradient of a small network.
OFTEN, MOST_SELDOM = 4.0, 8.0
#: Length of an adjusted trajectory, in the mean, by the root of the number of dimensions: a quarter
#: of a period of a Normal whose deviations are one.
QUARTER = 0.5 * math.pi
#: Times that autocorrelations make an adjusted trajectory longer, at most.
MOST_LONGER = 10.0
#: Moves that are kept, from which on autocorrelations tell.
LEAST_KEPT = 20
#: Steps that an adjusted trajectory has at most: where the step length is found still.
MOST_STEPS = 1_000


class Dynamics(NamedTuple):
    """What C chains carry beside their positions.

    Parameters
    ----------
    direction, score : array (C, D + E)
        See :class:`~ppl_ext.microcanonical.dynamics.Point`.
    log_density : array (C,)
        That of the positions, spare coordinates included.
    spare : array (C, E)
        Standard Normal coordinates: one where the model has one number alone, else none.
    step : StepLength
    length : array ()
        L, after which a direction is forgotten; of adjusted moves the mean length.
    scale : array (D + E,) or (1,)
    moments : Moments
        Of the window of the warm-up.
    noise : Noise
        Of minibatches, in the window of the warm-up.
    records : array (T, C, K)
        Some coordinates of moves of the warm-up.
    squares : array (C,)
        Sum of squared errors of the energy after the warm-up; of adjusted moves, of the
        probabilities of acceptance.
    moves, evaluations : array ()
        Moves after the warm-up whose error was looked at, and evaluations of the score by each
        chain.
    """

    direction: Float[Any, "C E"]
    score: Float[Any, "C E"]
    log_density: Float[Any, " C"]
    spare: Float[Any, "C S"]
    step: tuning.StepLength
    length: Float[Any, ""]
    scale: Float[Any, " E"]
    moments: tuning.Moments
    noise: tuning.Noise
    records: Float[Any, "T C K"]
    squares: Float[Any, " C"]
    moves: Float[Any, ""]
    evaluations: Float[Any, ""]

    @property
    def energy(self) -> Float[Any, " C"]:
        """Minus the log density, without that of the spare coordinates."""
        return -(self.log_density + 0.5 * (self.spare * self.spare).sum(-1))


@dataclass(frozen=True)
class Microcanonical:
    """Moves of chains with these options.

    Parameters
    ----------
    dim : int
        D, numbers of the model.
    functions : Functions
    variance : float
        Variance of the energy's error, for each dimension, that steps are tuned to.
    adjusted : bool
        Whether a move is a trajectory that is accepted or not, after the first part of the warm-up.
    epsilon : float
        Machine epsilon.
    step_size, length : float, optional
        ε and L where they are given, in the coordinates as they are: nothing is tuned then.
    noisy : bool
        Whether scores are of a minibatch. All evaluations of one move are then of the same rows,
        and each move's are others.
    heat_allowed : float
        What noise may add to a variance, relative to the posterior's.
    """

    dim: int
    functions: Functions
    variance: float
    adjusted: bool
    epsilon: float
    step_size: float | None = None
    length: float | None = None
    noisy: bool = False
    heat_allowed: float = tuning.HEAT

    @property
    def spare(self) -> int:
        """Coordinates that are added, so that there are two at least."""
        return max(0, 2 - self.dim)

    @property
    def whole(self) -> int:
        """Coordinates in all."""
        return self.dim + self.spare

    @property
    def traced(self) -> np.ndarray:
        """The coordinates that are looked at for autocorrelations."""
        return np.unique(np.linspace(0, self.dim - 1, tuning.TRACED).round().astype(int))

    def first(
        self,
        z: Float[Any, "C D"],
        noise: Float[Any, "C E"],
        spare: Float[Any, "C S"],
        total: int,
        evaluate: Evaluate,
    ) -> Dynamics:
        """What chains at z carry before the first move.

        Parameters
        ----------
        z : array (C, D)
        noise : array (C, D + E)
            Standard Normal, for the directions.
        spare : array (C, E)
        total : int
            Moves of the warm-up.
        evaluate : callable
        """
        xp, schedule = self.functions.xp, tuning.Schedule(total)
        own = self._own_scales
        log_density, score = self._evaluate(evaluate)(self._joined(z, spare))
        one = xp.ones_like(log_density[0])
        zero, traced = xp.zeros_like(one), z[0, self.traced]
        value = tuning.FIRST * math.sqrt(self.whole) if self.step_size is None else self.step_size
        length = tuning.FIRST_STEPS * value if self.length is None else self.length
        kept = schedule.remembered if self.step_size is None else 0
        coordinates = xp.zeros_like(noise[0]) if own else xp.zeros_like(traced)
        rows = xp.zeros_like(z[:, self.traced])
        return Dynamics(
            direction=refreshed(xp.zeros_like(noise), noise, 1.0, self.functions),
            score=score,
            log_density=log_density,
            spare=spare,
            step=tuning.StepLength(value * one, zero, zero),
            length=length * one,
            scale=xp.ones_like(noise[0] if own else noise[0, :1]),
            moments=tuning.Moments(zero, coordinates, coordinates),
            noise=tuning.Noise(
                zero,
                zero,
                zero,
                zero,
                coordinates if own and self.noisy else noise[0, :0],
                xp.zeros_like(noise) if self.noisy else noise[:0],
            ),
            records=xp.stack([rows] * kept) if kept else rows[None][:0],
            squares=xp.zeros_like(log_density),
            moves=zero,
            evaluations=one,
        )

    def move(
        self,
        dynamics: Dynamics,
        z: Float[Any, "C D"],
        number: Any,
        total: Any,
        noise: Callable[[], Float[Any, "C E"]],
        log_uniform: Float[Any, " C"],
        share: Any,
        evaluate: Evaluate,
    ) -> tuple[Float[Any, "C D"], Dynamics, Bool[Any, " C"]]:
        """One move of all chains.

        Parameters
        ----------
        dynamics : Dynamics
        z : array (C, D)
        number, total : int or array ()
            Moves so far, and those of the warm-up.
        noise : callable
            Gives standard Normal numbers (C, D + E); called once at most.
        log_uniform : array (C,)
            Logarithms of uniform numbers, by which adjusted moves are accepted.
        share : array ()
            A uniform number, for the number of steps of an adjusted move.
        evaluate : callable

        Returns
        -------
        z : array (C, D)
        dynamics : Dynamics
        diverged : bool array (C,)
            Whether the move has diverged; it is not taken then.
        """
        xp = self.functions.xp
        evaluate = self._evaluate(evaluate)
        step_size, length = dynamics.step.value, dynamics.length
        every = xp.floor(length / (OFTEN * step_size))
        every = xp.where(every > MOST_SELDOM, MOST_SELDOM * xp.ones_like(every), every)
        every = xp.where(every > 1.0, every, xp.ones_like(every))
        # A refresh that comes once in ``every`` steps forgets for all of them.
        amount = forgetting(every * step_size, length, self.whole, xp)
        due = number % every < 1.0
        before = Point(
            self._joined(z, dynamics.spare),
            dynamics.direction,
            dynamics.log_density,
            dynamics.score,
        )
        looked: Any = 1.0
        if self.noisy:
            # Whether a move begins with a score of its own rows.
            looks = (number < total) | (number % tuning.LOOK == 0)
            looked = xp.ones_like(length) * looks
            before, dynamics = self.functions.cond(
                looks,
                lambda before, dynamics: self._with_these_rows(before, dynamics, number, evaluate),
                lambda before, dynamics: (before, dynamics),
                before,
                dynamics,
            )
        direction, count, chances = before.direction, xp.ones_like(length), None
        if self.adjusted:
            # Until the scale is known moves are single steps, all of which are taken.
            free = number < tuning.Schedule(total).moving
            held = 1.0 * free
            due = due | (held < 1.0)
            # Without a branch: a trajectory begins with a new direction, a single step keeps its
            # own.
            direction, amount = held * direction, held * amount + (1.0 - held)
            # Uniform up to twice the mean: of one length trajectories may come back to where they
            # began.
            steps = xp.ceil(2.0 * share * length / step_size)
            steps = xp.where(steps > MOST_STEPS, MOST_STEPS * count, steps)
            count = self.functions.cond(free, lambda: count, lambda: steps)
            # The logarithm of 0, with which every move is accepted.
            taken = -math.inf * xp.ones_like(log_uniform)
            chances = self.functions.cond(free, lambda: taken, lambda: log_uniform)
        direction = self.functions.cond(
            due,
            lambda direction: refreshed(direction, noise(), amount, self.functions),
            lambda direction: direction,
            direction,
        )
        before = before._replace(direction=direction)

        def step(carried: tuple[Point, Any]) -> tuple[Point, Any]:
            point, gained = leapfrog(
                carried[0], evaluate, step_size, dynamics.scale, self.functions
            )
            return point, carried[1] + gained

        first = (before, xp.zeros_like(before.log_density))
        after, error = step(first) if not self.adjusted else self.functions.loop(count, step, first)
        if self.noisy:
            # The rows of other scores are others: their densities tell of no step.
            error = xp.where((looked > 0.0) | ~xp.isfinite(error), error, xp.zeros_like(error))
        point, _, diverged, chance = metropolis(before, after, error, chances, self.functions)
        z, spare = point.position[:, : self.dim], point.position[:, self.dim :]
        moved = dynamics._replace(
            direction=point.direction,
            score=point.score,
            log_density=point.log_density,
            spare=spare,
            evaluations=dynamics.evaluations + count,
        )

        def watch(moved: Dynamics) -> Dynamics:
            # A move that has diverged is counted apart, and would be all of the sum.
            seen = chance if self.adjusted else xp.where(diverged, xp.zeros_like(error), error)
            return moved._replace(squares=moved.squares + seen * seen, moves=moved.moves + looked)

        def tune(moved: Dynamics) -> Dynamics:
            return self._tuned(moved, z, number, tuning.Schedule(total), error, diverged, chance)

        if self.step_size is not None:
            return z, watch(moved), diverged
        return z, self.functions.cond(number < total, tune, watch, moved), diverged

    def heat(self, dynamics: Dynamics) -> Any:
        """What the noise of minibatches adds to variances, by the warm-up's last window."""
        excess = dynamics.noise.excess(self.whole, self.functions.xp)
        return tuning.heat_of(dynamics.step.value, dynamics.length, excess, self.whole)

    def _with_these_rows(
        self, before: Point, dynamics: Dynamics, number: Any, evaluate: Evaluate
    ) -> tuple[Point, Dynamics]:
        """The same where a move begins, by the rows of the move, and what these say of noise."""
        log_density, score = evaluate(before.position)
        score = dynamics.scale * score
        noise = dynamics.noise.after(score - before.score, number, self.functions)
        dynamics = dynamics._replace(noise=noise, evaluations=dynamics.evaluations + 1.0)
        return before._replace(log_density=log_density, score=score), dynamics

    def _tuned(
        self,
        dynamics: Dynamics,
        z: Float[Any, "C D"],
        number: Any,
        schedule: tuning.Schedule,
        error: Float[Any, " C"],
        diverged: Bool[Any, " C"],
        chance: Float[Any, " C"],
    ) -> Dynamics:
        """The same with what a move of the warm-up has to say."""
        cond, free = self.functions.cond, number < schedule.moving
        xp, log_density = self.functions.xp, dynamics.log_density

        def by_energy() -> tuning.StepLength:
            return dynamics.step.after(
                error, diverged, log_density, self.whole, self.variance, self.epsilon, xp
            )

        def by_chance() -> tuning.StepLength:
            return dynamics.step.accepted(chance, number - schedule.moving, xp)

        step = cond(free, by_energy, by_chance) if self.adjusted else by_energy()
        if self.noisy:
            # Heat is proportional to ε, so that a bound on it is one on ε.
            each, allowed = self.heat(dynamics) / dynamics.step.value, math.inf
            for end, heat in zip(schedule.windows, tuning.HEATS, strict=False):
                allowed = cond(number >= end, lambda heat=heat: heat, lambda other=allowed: other)
            known = xp.where(each > 0.0, each, xp.ones_like(each))
            limit = self.heat_allowed * allowed / known
            step = step.at_most(xp.where(each > 0.0, limit, math.inf * known), xp)
        return cond(
            free,
            lambda dynamics: self._moving(dynamics, z, number, schedule),
            lambda dynamics: self._remembering(dynamics, z, number, schedule),
            dynamics._replace(step=step),
        )

    def _moving(
        self, dynamics: Dynamics, z: Float[Any, "C D"], number: Any, schedule: tuning.Schedule
    ) -> Dynamics:
        """The scale and the length while chains travel to where the mass is."""
        xp, (first, *others) = self.functions.xp, schedule.windows
        seen = self._joined(z, dynamics.spare) if self._own_scales else z[:, self.traced]
        # While nothing is known of the scale, L follows ε.
        unknown = 1.0 * (number + 1 < first)
        length = (
            unknown * tuning.FIRST_STEPS * dynamics.step.value + (1.0 - unknown) * self._natural
        )
        dynamics = dynamics._replace(
            moments=dynamics.moments.after(seen), length=length * xp.ones_like(dynamics.length)
        )
        ends = number + 1 == first
        for end in others:
            ends = ends | (number + 1 == end)
        return self.functions.cond(ends, self._rescaled, lambda same: same, dynamics)

    def _rescaled(self, dynamics: Dynamics) -> Dynamics:
        """The same at the end of a window, in the coordinates that it shows."""
        xp, moments, old = self.functions.xp, dynamics.moments, dynamics.scale
        variance = moments.variance if self._own_scales else moments.variance.mean()[None]
        # A direction lasts for L, and so does a draw.
        worth = moments.number * dynamics.step.value / dynamics.length
        scale = tuning.scaled(old, variance, worth, xp)
        if self.noisy and self._own_scales:
            scale = dynamics.noise.quieted(scale, old, xp)
        # So that a step stays as long in the model's own units.
        factor = xp.sqrt((old * old).mean() / (scale * scale).mean())
        return dynamics._replace(
            scale=scale,
            # The score is kept in the coordinates of the scale, see ``Point``.
            score=dynamics.score * (scale / old),
            moments=tuning.cleared(moments, xp),
            noise=tuning.cleared(dynamics.noise, xp),
            step=dynamics.step.rescaled(factor, xp),
        )

    def _remembering(
        self, dynamics: Dynamics, z: Float[Any, "C D"], number: Any, schedule: tuning.Schedule
    ) -> Dynamics:
        """The length by the autocorrelations of what is kept, in coordinates that stay."""
        functions, kept = self.functions, len(dynamics.records)
        if self.adjusted:
            begins = number == schedule.moving
            dynamics = functions.cond(begins, self._as_trajectories, lambda same: same, dynamics)
        # Where noise rules the step, a longer length would ask for shorter steps, and gain nothing.
        if kept >= LEAST_KEPT and not self.noisy:
            every = schedule.every(kept)
            place, rest = (number - schedule.moving) // every, (number - schedule.moving) % every
            records = functions.cond(
                (rest == 0) & (place < kept) & (number < schedule.seen),
                lambda records: functions.put(records, place, z[:, self.traced]),
                lambda records: records,
                dynamics.records,
            )
            dynamics = functions.cond(
                number + 1 == schedule.seen,
                lambda dynamics: self._forgetful(dynamics, every),
                lambda dynamics: dynamics,
                dynamics._replace(records=records),
            )
        if self.adjusted:
            ends = number + 1 == schedule.total
            dynamics = functions.cond(ends, self._averaged, lambda same: same, dynamics)
        return dynamics

    def _forgetful(self, dynamics: Dynamics, every: Any) -> Dynamics:
        """The same with the length that the autocorrelations show."""
        xp = self.functions.xp
        time = every * tuning.autocorrelation_time(dynamics.records, xp)
        if self.adjusted:
            # A trajectory through a Normal goes on as the root of the time shows.
            factor = xp.sqrt(time)
            factor = xp.where(factor > MOST_LONGER, MOST_LONGER * xp.ones_like(factor), factor)
            length = dynamics.length * xp.where(factor > 1.0, factor, xp.ones_like(factor))
        else:
            seen = every * len(dynamics.records)
            length = tuning.forgetful_length(dynamics.step.value, time, seen, self._natural, xp)
        return dynamics._replace(length=length)

    def _as_trajectories(self, dynamics: Dynamics) -> Dynamics:
        """The same where trajectories begin, with their length and a step to be tuned."""
        step = dynamics.step
        mean = self.functions.xp.log(step.value)
        return dynamics._replace(
            length=dynamics.length * QUARTER, step=tuning.StepLength(step.value, mean, 0.0 * mean)
        )

    def _averaged(self, dynamics: Dynamics) -> Dynamics:
        """The same with the mean of the last step lengths, which does not change any more."""
        step = dynamics.step
        return dynamics._replace(step=step._replace(value=self.functions.xp.exp(step.rate)))

    @property
    def _own_scales(self) -> bool:
        """Whether each coordinate has a scale of its own."""
        return self.whole <= tuning.MOST_SCALED and self.step_size is None

    @property
    def _natural(self) -> float:
        """Root of the sum of variances, where the scale makes these one."""
        return math.sqrt(self.whole)

    def _evaluate(self, evaluate: Evaluate) -> Evaluate:
        return with_spare(evaluate, self.dim, self.functions.xp) if self.spare else evaluate

    def _joined(self, z: Float[Any, "C D"], spare: Float[Any, "C S"]) -> Float[Any, "C E"]:
        return self.functions.xp.concatenate((z, spare), -1) if self.spare else z
