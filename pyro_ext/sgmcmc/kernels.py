"""Kernels of stochastic gradient MCMC; see :mod:`ppl_ext.sgmcmc.kernels`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ppl_ext.sgmcmc.kernels import (
    Cycles,
    Exchanges,
    PSGLDShell,
    ReplicaExchangeSGLDShell,
    ScoreMoments,
    SGHMCShell,
    SGLDShell,
    Step,
)
from ppl_ext.sgmcmc.schedules import check_warmup
from pyro_ext.sgmcmc.dynamics import hamiltonian_step, langevin_step
from pyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel


class SGLD(SGLDShell, StochasticGradientKernel):
    """Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y), subsample_size=2) as rows:
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> _ = torch.manual_seed(0)
    >>> mcmc = px.MCMC(px.SGLD(model, 0.02), num_samples=500, warmup_steps=100, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """

    def _move(
        self, dynamics: dict[str, Tensor], z: Tensor, step: Step
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return langevin_step(z, step.score, step.noise, step.size), dynamics


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
        self, dynamics: dict[str, Tensor], z: Tensor, step: Step
    ) -> tuple[Tensor, dict[str, Tensor]]:
        moments = ScoreMoments(**dynamics)
        if step.warmup or self.adapt == "always":
            moments = moments.with_score(step.score, self.decay)
        preconditioner = moments.preconditioner(self.damping)
        moved = langevin_step(z, step.score, step.noise, step.size, preconditioner)
        return moved, moments._asdict()


class SGHMC(SGHMCShell, StochasticGradientKernel):
    """Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y), subsample_size=2) as rows:
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> _ = torch.manual_seed(0)
    >>> kernel = px.SGHMC(model, 0.1, friction=5.0)
    >>> mcmc = px.MCMC(kernel, num_samples=500, warmup_steps=100, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """

    def setup_chains(self, num_chains: int, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Start chains that are run as one; see the base class."""
        super().setup_chains(num_chains, warmup_steps, *args, **kwargs)
        self._diagonal = self._mass()

    def _init_dynamics(self, num_chains: int) -> dict[str, Tensor]:
        target = self.target
        shape = (num_chains, target.dim)
        return {"momentum": torch.zeros(shape, dtype=target.dtype, device=target.device)}

    def _move(
        self, dynamics: dict[str, Tensor], z: Tensor, step: Step
    ) -> tuple[Tensor, dict[str, Tensor]]:
        pushed = dynamics["momentum"], step.score, step.noise, step.size
        moved, momentum = hamiltonian_step(z, *pushed, self.friction, self._diagonal)
        return moved, {"momentum": momentum}


class CyclicalSGLD(Cycles, SGLD):
    """SGLD in cycles: long steps that look for other modes, then short ones that draw.

    In each cycle of L steps the step size falls from ``step_size`` to nearly zero along a cosine
    (:func:`~ppl_ext.sgmcmc.schedules.cosine_cycles`). The first steps of a cycle explore and give
    no draws; those after give one each. So a cycle gives ``draws_per_cycle`` draws, and
    ``num_samples`` of ``MCMC`` should be a multiple of it. The field ``cycle`` of the state labels
    each draw: ``mcmc.get_extra_fields()["cycle"]`` in NumPyro, and ``mcmc.diagnostics()["cycle"]``
    in Pyro.

    Parameters
    ----------
    model
        The host's model.
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
        See :class:`~ppl_ext.sgmcmc.kernels.StochasticGradientShell`.

    Raises
    ------
    ArgumentError
        An option is out of its range, or ``step_size`` is a schedule.

    References
    ----------
    R. Zhang, C. Li, J. Zhang, C. Chen and A. G. Wilson, "Cyclical stochastic gradient MCMC for
    Bayesian deep learning", ICLR 2020, https://arxiv.org/abs/1902.03932.

    Examples
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
    >>> kernel = px.CyclicalSGLD(model, 0.1, cycle_length=20)
    >>> print(kernel.draws_per_cycle)
    5
    >>> mcmc = px.MCMC(kernel, num_samples=100, warmup_steps=20, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """


class CyclicalSGHMC(Cycles, SGHMC):
    """SGHMC in cycles: long steps that look for other modes, then short ones that draw.

    As ``CyclicalSGLD``, with momentum. The squares of the step sizes fall along the cosine, since
    ε² plays the part of the step size of ``SGLD``: ε_t = ε_0 cos(π mod(t - 1, L) / 2 L). Draws are
    labelled and counted as those of ``CyclicalSGLD`` are.

    Parameters
    ----------
    model
        The host's model.
    step_size : float
        ε_0, the largest step size, a time.
    cycle_length : int
        L, in steps.
    exploration : float
        Share of a cycle that explores and gives no draws, from 0 to less than 1.
    exploration_temperature : float
        Temperature of the noise while exploring: 1 is the dynamics throughout, 0 descent with
        momentum.
    friction : float
        γ of ``SGHMC``.
    mass : float, array (D,) or mapping of str to array, optional
        The diagonal of M of ``SGHMC``.
    **options
        See :class:`~ppl_ext.sgmcmc.kernels.StochasticGradientShell`.

    Raises
    ------
    ArgumentError
        An option is out of its range, ``step_size`` is a schedule, or ``num_steps`` is given: after
        the exploring steps of a cycle every step gives a draw.

    References
    ----------
    R. Zhang, C. Li, J. Zhang, C. Chen and A. G. Wilson, "Cyclical stochastic gradient MCMC for
    Bayesian deep learning", ICLR 2020, https://arxiv.org/abs/1902.03932.

    Examples
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
    >>> kernel = px.CyclicalSGHMC(model, 0.3, cycle_length=20)
    >>> print(kernel.draws_per_cycle)
    5
    >>> mcmc = px.MCMC(kernel, num_samples=100, warmup_steps=20, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    """

    # Of the squares: a step size is a time here.
    _power = 0.5


class ReplicaExchangeSGLD(ReplicaExchangeSGLDShell, SGLD):
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
    >>> kernel = px.ReplicaExchangeSGLD(model, 0.05, (1.0, 2.0, 4.0))
    >>> print(kernel.num_replicas)
    3
    >>> mcmc = px.MCMC(kernel, num_samples=100, warmup_steps=20, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    >>> print(kernel.exchange_rates(kernel.state).shape)
    (10, 2)
    """

    def _init_replicas(self, z: Tensor) -> dict[str, Any]:
        exchanges = Exchanges.none(z.new_zeros(len(z), self.num_replicas), torch)
        return {
            "z": z[:, None].repeat(1, self.num_replicas - 1, 1),
            # An order of rows of its own: two minibatches of one order are not independent.
            "estimator": self._score_estimator.init(self.target, self._data, self._generator),
            **exchanges._asdict(),
        }

    def _after_steps(self, state: KernelState) -> KernelState:
        num_chains, kept = len(state.z), state.replicas
        z = self._positions(state)
        energies, states = [], []
        for before in (state.estimator, kept["estimator"]):
            estimate, after = self._score_estimator.estimate(
                self.target, before, z, self._data, self._generator
            )
            energy = -estimate.log_density(self.target.likelihood_temperature)
            energies.append(energy.view(num_chains, -1))
            states.append(after)
        exchanges = Exchanges(*(kept[name] for name in Exchanges._fields))
        uniform = torch.rand(exchanges.due.shape, generator=self._generator, dtype=z.dtype)
        gaps = torch.as_tensor(self._gaps, dtype=z.dtype, device=z.device)
        log_uniform = uniform.log().to(z.device)
        # Two estimates of each energy by rows of their own: their difference tells the noise, for
        # which the exchange is corrected.
        exchanges, exchanged = exchanges.after(energies[0], energies[1], log_uniform, gaps, torch)
        # An exchange moves a replica one place up and its neighbour one down.
        order = torch.arange(self.num_replicas, device=z.device).repeat(num_chains, 1)
        order += pad(exchanged.long(), (0, 1)) - pad(exchanged.long(), (1, 0))
        by_chain = z.unflatten(0, (num_chains, -1))
        z = by_chain.take_along_dim(order[:, :, None], 1).flatten(0, 1)
        following = kept | {"estimator": states[1], **exchanges._asdict()}
        return self._with_positions(state._replace(estimator=states[0], replicas=following), z)
