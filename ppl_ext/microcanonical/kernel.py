"""The microcanonical kernel without arrays: its options, and what its chains say of themselves."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from ppl_ext.engines.judgement import Judgement
from ppl_ext.errors import ArgumentError, DivergenceWarning
from ppl_ext.microcanonical import tuning
from ppl_ext.microcanonical.chains import Microcanonical
from ppl_ext.microcanonical.dynamics import DIVERGED
from ppl_ext.microcanonical.functions import Functions
from ppl_ext.options import check_choice, check_count, check_number
from ppl_ext.sgmcmc.energies import Energies
from ppl_ext.sgmcmc.heat import judged_heat
from ppl_ext.sgmcmc.kernels import APART, LEAST_DRAWS, StochasticGradientShell
from ppl_ext.statistics.convergence import split_r_hat

#: Mean probability of acceptance below which adjusted chains hardly move.
REFUSED = 0.3
#: Share of moves that have diverged, from which on draws are doubtful.
OFTEN = 0.01
#: Moves after the warm-up, from which on figures tell; and steps by the length after which a
#: direction is forgotten, below which no run has independent draws: each takes 10,000 moves.
LEAST_MOVES, STILL = 20, 1e-4


class MCLMCShell(StochasticGradientShell):
    """Microcanonical Langevin Monte Carlo: chains of constant speed that the score turns.

    Each package's ``MCLMC`` has the whole text.
    """

    #: The exact score.
    _full: ClassVar[type]

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        adjusted: bool = False,
        num_steps: int = 1,
        energy_variance: float = tuning.ENERGY_VARIANCE,
        step_size: float | None = None,
        length: float | None = None,
        estimator: Any = None,
        heat: float = tuning.HEAT,
        **options: Any,
    ) -> None:
        check_choice("adjusted", adjusted, (False, True))
        check_count("num_steps", num_steps)
        check_number("energy_variance", energy_variance)
        check_number("heat", heat)
        if (step_size is None) != (length is None):
            raise ArgumentError(
                "Expected step_size and length, or neither, found one of them. Leave both out, and "
                "the warm-up finds them."
            )
        estimator = self._full() if estimator is None else estimator
        noisy = not isinstance(estimator, self._full)
        if adjusted and noisy:
            raise ArgumentError(
                "Expected no estimator with adjusted=True, found "
                f"{type(estimator).__name__}: whether a move is accepted depends on the density of "
                "all rows. Leave one of them out."
            )
        for name, value in {"step_size": step_size, "length": length}.items():
            if value is not None:
                check_number(name, value)
        super().__init__(
            model, 1.0 if step_size is None else step_size, estimator=estimator, **options
        )
        self.noisy = noisy
        self.heat = float(heat)
        self.adjusted = adjusted
        self.num_steps = int(num_steps)
        self.energy_variance = float(energy_variance)
        self.given = None if step_size is None or length is None else (step_size, length)

    def _moves(self, functions: Functions, epsilon: float) -> Microcanonical:
        """Moves of the chains of this target."""
        step_size, length = self.given or (None, None)
        return Microcanonical(
            self.target.dim,
            functions,
            self.energy_variance,
            self.adjusted,
            float(epsilon),
            step_size,
            length,
            self.noisy,
            self.heat,
        )

    def _heat(self, dynamics: Any, step_size: Any) -> Any:
        return tuning.heat_of(
            step_size, dynamics.length, dynamics.scale**2, len(dynamics.direction[0])
        )

    def _check_tuned(self, name: str, number: int) -> None:
        """See that there is a warm-up where something is tuned.

        Raises
        ------
        ArgumentError
            There is none.
        """
        if self.given is None and number < 1:
            raise ArgumentError(
                f"Expected a warm-up, in which {type(self).__name__} finds its step, found "
                f"{name}=0. Take {name} of some hundred, or give step_size and length."
            )

    def _warn_of_divergences(self, number: int, steps: int = 0) -> None:
        """Say that so many moves have diverged; adjusted ones are refused as others are."""
        if number and not self.adjusted:
            warnings.warn(
                f"{number} moves of {type(self).__name__} or more have diverged after the warm-up "
                f"and were not taken: the energy was off by {DIVERGED:,.0f} nats or not finite. "
                "The density bends more sharply there than steps can follow. Take a longer "
                "warm-up or a smaller energy_variance, and write sites of a latent scale "
                "non-centred.",
                DivergenceWarning,
                stacklevel=3,
            )

    def _warn_of_variance(
        self, squares: Float[np.ndarray, " C"], moves: float, pace: float
    ) -> None:
        """Say that steps are too long or too short, if they are, before a run has ended."""
        diverged, energies = np.zeros(len(squares), int), np.zeros((1, 0))
        self._judged(squares, moves, diverged, energies, pace).warn()

    def _judged(
        self,
        squares: Float[np.ndarray, " C"],
        moves: float,
        diverged: Int[np.ndarray, " C"],
        energies: Float[np.ndarray, "C S"],
        pace: float,
        heat: Float[np.ndarray, "C sites"] | None = None,
        doubts: Sequence[str] = (),
    ) -> Judgement:
        """What chains say of their draws.

        Parameters
        ----------
        squares : array (C,)
            Sum over moves of the energy's squared errors, or of squared chances of acceptance.
        moves : float
            After the warm-up.
        diverged : array (C,)
            Moves that have diverged.
        energies : array (C, S)
            Negative log densities at the draws, of the rows of their steps.
        pace : float
            Step length by the length after which a direction is forgotten.
        heat : array (C, sites), optional
            Of :func:`~ppl_ext.sgmcmc.heat.heat_by_site`, where scores are noisy.
        doubts : sequence of str
            Of the draws.
        """
        name, reasons, told = type(self).__name__, list(doubts), list[str]()
        # Not ``<=``: a pace that is not a number is none.
        if self.given is None and not pace > STILL:
            number = 1.0 / max(pace, 1e-30)
            still = (
                f"The chains stand still: a direction is forgotten after {number:.1g} moves, so "
                "that the draws are where the chains started, or little farther. Start nearer to "
                "the mass, such as by init_strategy, or take a longer warm-up"
                f"{', larger minibatches or a larger heat' * self.noisy}."
            )
            return Judgement(name, (still,), draws=energies.size, of_chains=True)
        if moves < LEAST_MOVES:
            few = f"Not judged: only {int(moves)} moves after the warm-up."
            return Judgement(name, told=(few,), draws=energies.size)
        if self.adjusted:
            chance = np.sqrt(squares / moves)
            line = (
                f"Moves were accepted with probability {chance.min():.2f} to {chance.max():.2f} by "
                f"chain ({tuning.ACCEPTANCE:g} was asked for)"
            )
            if chance.min() < REFUSED:
                reasons.append(f"{line}: a chain hardly moves. Take a longer warm-up.")
            else:
                told.append(f"{line}.")
        else:
            # By as many coordinates as steps are tuned to: a single one has a spare beside it.
            variance = squares / moves / max(2, self.target.dim)
            line = (
                "The energy's error in a step has a variance of up to "
                f"{variance.max():.2g} for each dimension in a chain ({self.energy_variance:.2g} "
                "was asked for)"
            )
            if variance.max() > max(tuning.DOUBTFUL_VARIANCE, 4.0 * self.energy_variance):
                reasons.append(
                    f"{line}: steps are too long there, and the draws too wide. Take a longer "
                    "warm-up, a smaller energy_variance or adjusted=True; where the density bends "
                    "sharply, as in the neck of a funnel, write the sites of its scale non-centred."
                )
            else:
                told.append(f"{line}.")
        if diverged.sum():
            share = diverged.sum() / moves / len(diverged)
            line = f"{share:.2%} of the moves have diverged, and were not taken."
            (reasons if share > OFTEN else told).append(line)
        reasons += Energies.of(energies, self.noisy).judged(name, self.target.dim).reasons
        if heat is not None:
            doubts, also = judged_heat(heat, self.target.layout.names)
            reasons, told = [*reasons, *doubts], [*told, *also]
        whole = np.isfinite(energies).all()
        if len(energies) > 1 and energies.shape[1] >= LEAST_DRAWS and whole:
            r_hat = float(split_r_hat(energies.T[:, :, None])[0])
            line = f"R-hat of the log density is {r_hat:.3f}"
            if r_hat > APART or not math.isfinite(r_hat):
                reasons.append(f"{line}: the chains do not agree. Run them longer.")
            elif not self.noisy:
                told.append(f"{line}.")
        if self.noisy and self._is_network:
            # The noise of their densities hides how far chains are apart, unless they are far.
            told.append("Whether the chains agree is not judged: look at the R-hat of outputs.")
        return Judgement(name, tuple(reasons), tuple(told), energies.size, of_chains=True)
