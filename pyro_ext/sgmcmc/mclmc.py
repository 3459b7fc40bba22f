"""Microcanonical Langevin Monte Carlo."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ppl_ext.engines.judgement import Judgement
from ppl_ext.microcanonical.dynamics import Evaluate
from ppl_ext.microcanonical.functions import Eager
from ppl_ext.microcanonical.kernel import MCLMCShell
from pyro_ext.gradients import Full
from pyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel


class Fused(Eager):
    """The same with operations that need no arrays in between."""

    def dot(self, one: Tensor, other: Tensor) -> Tensor:
        # Of one long row without an array in between; of several that is slower.
        return torch.dot(one[0], other[0])[None] if len(one) == 1 else super().dot(one, other)

    def combined(self, first: Tensor, one: Tensor, second: Tensor, other: Tensor) -> Tensor:
        return (first[:, None] * one).addcmul_(second[:, None], other)

    def moved(self, position: Tensor, length: Tensor, scale: Tensor, direction: Tensor) -> Tensor:
        return torch.addcmul(position, length * scale, direction)


FUNCTIONS = Fused(torch)


class MCLMC(MCLMCShell, StochasticGradientKernel):
    """Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     scale = pyro.sample("scale", dist.HalfNormal(2.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, scale), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> _ = torch.manual_seed(0)
    >>> kernel = px.MCLMC(model)
    >>> mcmc = px.MCMC(kernel, num_samples=500, warmup_steps=500, num_chains=8)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    >>> print(kernel.judgement.doubtful)
    False
    """

    _full = Full
    _warns_after_warmup = False

    def setup_chains(self, num_chains: int, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Start chains that are run as one; see the base class.

        Raises
        ------
        ArgumentError
            There is no warm-up to tune in.
        """
        resumed = self._pending is not None
        if not resumed:
            self._check_tuned("warmup_steps", warmup_steps)
        super().setup_chains(num_chains, warmup_steps, *args, **kwargs)
        self._moves_of_chains = moves = self._moves(FUNCTIONS, self.target.epsilon)
        if resumed:
            return
        z = self.state.z
        with torch.no_grad():
            evaluate, estimators = self._evaluation(self.state.estimator)
            noise, spare = (self._normal(z, number) for number in (moves.whole, moves.spare))
            dynamics = moves.first(z, noise, spare, warmup_steps * self.num_steps, evaluate)
        self._state = self.state._replace(
            dynamics=dynamics, estimator=estimators[-1], step_size=float(dynamics.step.value)
        )

    def _settings(self) -> str:
        return f"{super()._settings()}, adjusted={self.adjusted}, num_steps={self.num_steps}"

    def _move(self, *_: Any) -> tuple[Tensor, dict[str, Tensor]]:
        raise NotImplementedError  # A move is more than a step; see _advance.

    def _normal(self, z: Tensor, number: int) -> Tensor:
        shape = (len(z), number)
        return torch.randn(shape, generator=self._generator, dtype=z.dtype).to(z.device)

    def _evaluation(self, before: dict[str, Any]) -> tuple[Evaluate, list[dict[str, Any]]]:
        """Scores of the rows that follow on a state of the estimator, and the states after them."""
        data, states, rows = self._data, list[dict[str, Any]](), self._generator
        seed = 0
        if self.noisy:
            # Rows have a generator of their own, so that they can be drawn again.
            rows = torch.Generator()
            seed = int(torch.randint(2**62, (1,), generator=self._generator))

        def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
            own = before
            if self.noisy:
                # The same rows at every evaluation of a move, as its energy error is that of one
                # density.
                rows.manual_seed(seed)
                own = copy.deepcopy(before)
            found, after = self._score_estimator.estimate(self.target, own, z, data, rows)
            states.append(after)
            return found.log_density(self.target.likelihood_temperature), found.score

        return evaluate, states

    def _advance(self, state: KernelState) -> KernelState:
        z, moves, total = state.z, self._moves_of_chains, self._warmup_draws * self.num_steps
        evaluate, estimators = self._evaluation(state.estimator)
        uniform = torch.rand(len(z) + 1, generator=self._generator, dtype=z.dtype).to(z.device)
        z, dynamics, diverged = moves.move(
            state.dynamics,
            z,
            state.step,
            total,
            partial(self._normal, z, moves.whole),
            uniform[1:].log(),
            uniform[0],
            evaluate,
        )
        if state.step < total:
            diverged = torch.zeros_like(diverged)  # How the warm-up finds what is too long.
        return state._replace(
            z=z,
            step=state.step + 1,
            dynamics=dynamics,
            estimator=estimators[-1],
            step_size=float(dynamics.step.value),
            potential_energy=dynamics.energy,
            diverging=state.diverging | diverged,
            num_diverging=state.num_diverging + diverged,
        )

    def judge(self) -> Judgement:
        """What the chains of the last run say of their draws."""
        state = self.state
        dynamics = state.dynamics
        return self._judged(
            dynamics.squares.double().cpu().numpy(),
            float(dynamics.moves),
            state.num_diverging.cpu().numpy(),
            self._energies(),
            float(dynamics.step.value / dynamics.length),
            self._site_heat,
        )
