"""Stochastic gradient Langevin dynamics with a diagonal preconditioner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ppl_ext.sgmcmc.kernels import PSGLDShell, ScoreMoments
from ppl_ext.sgmcmc.schedules import check_warmup
from pyro_ext.sgmcmc.dynamics import langevin_step
from pyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel


class PSGLD(PSGLDShell, StochasticGradientKernel):
    """Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> _ = torch.manual_seed(0)
    >>> kernel = px.PSGLD(model, 0.1)
    >>> mcmc = px.MCMC(kernel, num_samples=500, warmup_steps=300, num_chains=4)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """

    def setup_chains(self, num_chains: int, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Start chains that are run as one; see the base class.

        Raises
        ------
        ArgumentError
            There is no warm-up, in which alone the preconditioner adapts.
        """
        if self._pending is None:
            check_warmup(self.adapt, "warmup_steps", warmup_steps)
        super().setup_chains(num_chains, warmup_steps, *args, **kwargs)

    def _init_dynamics(self, num_chains: int) -> dict[str, Tensor]:
        target = self.target
        zero = torch.zeros(num_chains, target.dim, dtype=target.dtype, device=target.device)
        return ScoreMoments(zero, zero[:, :1], zero, zero, zero[:, :1])._asdict()

    def draw(self) -> KernelState:
        if self.adapt == "warmup" and 0 < self._warmup_draws == self._draws:
            found = self.state.dynamics
            self._warn_of_chains_on_their_way(found["mean"].cpu(), found["mean_square"].cpu())
        return super().draw()

    def _move(
        self,
        dynamics: dict[str, Tensor],
        z: Tensor,
        score: Tensor,
        noise: Tensor,
        step_size: float,
        warmup: bool,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        moments = ScoreMoments(**dynamics)
        if warmup or self.adapt == "always":
            moments = moments.with_score(score, self.decay)
        preconditioner = moments.preconditioner(self.damping)
        return langevin_step(z, score, noise, step_size, preconditioner), moments._asdict()
