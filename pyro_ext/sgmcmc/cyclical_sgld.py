"""Stochastic gradient Langevin dynamics with a step size that rises and falls in cycles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppl_ext.sgmcmc import check_cycles, cosine_cycles
from pyro_ext.sgmcmc.sgld import SGLD


class CyclicalSGLD(SGLD):
    """SGLD in cycles: long steps that look for other modes, then short ones that draw.

    In each cycle of L steps the step size falls from ``step_size`` to nearly zero along a cosine
    (:func:`~pyro_ext.sgmcmc.cosine_cycles`). The first steps of a cycle explore and give no
    draws; those after give one each. So a cycle gives ``draws_per_cycle`` draws, and
    ``num_samples`` of ``MCMC`` should be a multiple of it. The field ``cycle`` of the state
    labels each draw: ``mcmc.diagnostics()["cycle"]``.

    Parameters
    ----------
    model
        Pyro model.
    step_size : float
        α_0, the largest step size.
    cycle_length : int
        L, in steps: for M cycles in T steps, ⌈T / M⌉.
    exploration : float
        Share of a cycle that explores, from 0 to less than 1.
    exploration_temperature : float
        Temperature of the noise while exploring: 1 is Langevin dynamics throughout, 0 gradient
        ascent, as in algorithm 1 of the paper.
    **options
        See :class:`~pyro_ext.sgmcmc.StochasticGradientKernel`.

    Raises
    ------
    ArgumentError
        An option is out of its range, or ``step_size`` is a schedule.

    References
    ----------
    R. Zhang, C. Li, J. Zhang, C. Chen and A. G. Wilson, "Cyclical stochastic gradient MCMC for
    Bayesian deep learning", ICLR 2020.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        step_size: float,
        cycle_length: int,
        *,
        exploration: float = 0.75,
        exploration_temperature: float = 1.0,
        **options: Any,
    ) -> None:
        check_cycles(step_size, cycle_length, exploration, exploration_temperature)
        super().__init__(model, cosine_cycles(step_size, cycle_length), **options)
        self.cycle_length = int(cycle_length)
        self.num_exploring = int(exploration * cycle_length)
        self.exploration_temperature = float(exploration_temperature)

    @property
    def draws_per_cycle(self) -> int:
        """Draws that a cycle gives."""
        return self.cycle_length - self.num_exploring

    def _steps_to_next_draw(self, step: int) -> int:
        return 1 + max(0, self.num_exploring - step % self.cycle_length)

    def _temperature(self, step: int) -> float:
        exploring = step % self.cycle_length < self.num_exploring
        return self.exploration_temperature if exploring else 1.0

    def _cycle(self, step: int) -> int:
        return step // self.cycle_length
