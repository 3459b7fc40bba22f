"""Kernels of stochastic gradient MCMC; see :mod:`ppl_ext.sgmcmc.kernels`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ppl_ext.sgmcmc import kernels as shared
from ppl_ext.sgmcmc.schedules import check_warmup
from pyro_ext.sgmcmc.dynamics import hamiltonian_step, langevin_step
from pyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel


class SGLD(shared.SGLDShell, StochasticGradientKernel):
    """Stochastic gradient Langevin dynamics: gradient ascent on minibatches with Normal noise.

        z <- z + α s(z) + sqrt(2 α) ε

    There is no accept step, so draws have a bias of the order of the step size α: for a Normal
    target with exact scores the variance is too large by 1 / (1 - α / (2 variance)), and the
    noise of minibatches adds α / 2 times its variance to that of the injected noise. Take α well
    below the smallest posterior variance, or let it fall
    (:func:`~ppl_ext.sgmcmc.schedules.polynomial_decay`).

    Parameters
    ----------
    model, step_size, **options
        See :class:`~ppl_ext.sgmcmc.kernels.StochasticGradientShell`. Many texts write α / 2 for
        the α here.

    References
    ----------
    M. Welling and Y. W. Teh, "Bayesian learning via stochastic gradient Langevin dynamics", ICML
    2011, equation 4.

    Examples
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
        self, dynamics: dict[str, Tensor], z: Tensor, step: shared.Step
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return langevin_step(z, step.score, step.noise, step.size), dynamics


class PSGLD(shared.PSGLDShell, StochasticGradientKernel):
    """SGLD with steps scaled by RMSprop's running mean of squared scores.

        G = 1 / (λ + sqrt(v)),   z <- z + α G s(z) + sqrt(2 α G) ε

    so that coordinates in which the density is steep take shorter steps. The scores are those of
    all rows, so v grows with their number; for the mean score of N rows, as in the paper, divide
    α by N.

    Parameters
    ----------
    model, step_size, **options
        See :class:`~ppl_ext.sgmcmc.kernels.StochasticGradientShell`.
    decay : float
        Weight of the past in v at every step, between 0 and 1.
    damping : float
        λ, positive.
    adapt : {"warmup", "always"}
        "warmup" holds G after the warm-up, which leaves the posterior's moments right.
        "always" goes on adapting, as in the paper, which leaves out the term for the derivative
        of G (its Γ): the bias that stays does not vanish with the step size.

    Raises
    ------
    ArgumentError
        An option is out of its range; from ``MCMC.run``, there is no warm-up to adapt in.

    Warns
    -----
    ConvergenceWarning
        At the end of the warm-up chains are still on their way: over its second half the scores
        of a coordinate point one way. G is then that of the steep slopes on the way, so that the
        steps that follow are too short to get over it.

    References
    ----------
    C. Li, C. Chen, D. Carlson and L. Carin, "Preconditioned stochastic gradient Langevin dynamics
    for deep neural networks", AAAI 2016, https://arxiv.org/abs/1512.07666, algorithm 1.

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
        return shared.ScoreMoments(zero, zero[:, :1], zero, zero, zero[:, :1])._asdict()

    def draw(self) -> KernelState:
        if self.adapt == "warmup" and 0 < self._warmup_draws == self._draws:
            found = self.state.dynamics
            self._warn_of_chains_on_their_way(found["mean"].cpu(), found["mean_square"].cpu())
        return super().draw()

    def _move(
        self, dynamics: dict[str, Tensor], z: Tensor, step: shared.Step
    ) -> tuple[Tensor, dict[str, Tensor]]:
        moments = shared.ScoreMoments(**dynamics)
        if step.warmup or self.adapt == "always":
            moments = moments.with_score(step.score, self.decay)
        preconditioner = moments.preconditioner(self.damping)
        moved = langevin_step(z, step.score, step.noise, step.size, preconditioner)
        return moved, moments._asdict()


class SGHMC(shared.SGHMCShell, StochasticGradientKernel):
    """Stochastic gradient Hamiltonian Monte Carlo: momentum, friction and the noise to it.

        dz = M^-1 r dt,   dr = s(z) dt - γ r dt + sqrt(2 γ M) dW

    Friction takes out the energy that the noise of minibatches puts in; without it chains heat
    up for ever. A step of size ε is a symmetric splitting (see ``hamiltonian_step`` of the
    package's ``sgmcmc.dynamics``), with exact scores right for a Normal target at every stable ε.
    Noise of variance V in the scores heats the momenta by about ε V / (2 γ M), relative to one:
    more friction or shorter steps make it smaller.

    Parameters
    ----------
    model
        The host's model.
    step_size : float or callable
        ε, a time, so that ε² plays the part of the step size of ``SGLD``: stable below twice the
        smallest posterior standard deviation, with unit mass.
    friction : float
        γ = C M^-1: 1 / γ is the time in which momentum is forgotten. Of the order of a posterior
        standard deviation, with unit mass, is best.
    mass : float, array (D,) or mapping of str to array, optional
        The diagonal of M, in unconstrained space, for all coordinates or by site. The inverse
        posterior variances make all coordinates alike. Default: 1.
    num_steps : int
        Steps that a draw takes.
    **options
        See :class:`~ppl_ext.sgmcmc.kernels.StochasticGradientShell`.

    Raises
    ------
    ArgumentError
        An option is out of its range; from ``MCMC.run``, the mass does not fit the model.

    References
    ----------
    T. Chen, E. Fox and C. Guestrin, "Stochastic gradient Hamiltonian Monte Carlo", ICML 2014,
    https://arxiv.org/abs/1402.4102, equation 9.

    Examples
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
        self, dynamics: dict[str, Tensor], z: Tensor, step: shared.Step
    ) -> tuple[Tensor, dict[str, Tensor]]:
        pushed = dynamics["momentum"], step.score, step.noise, step.size
        moved, momentum = hamiltonian_step(z, *pushed, self.friction, self._diagonal)
        return moved, {"momentum": momentum}


class CyclicalSGLD(shared.Cycles, SGLD):
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


class CyclicalSGHMC(shared.Cycles, SGHMC):
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


class ReplicaExchangeSGLD(shared.ReplicaExchangeSGLDShell, SGLD):
    """Parallel tempering: replicas of every chain at several temperatures, which change places.

    Replica r follows ``SGLD`` on the posterior to the power 1 / T_r; that at T_1 = 1 gives the
    draws. Hot replicas cross from mode to mode and hand their places down, so that modes get
    their masses, where ``CyclicalSGLD`` finds modes without weighing them. All replicas of all
    chains are one vectorised update.

    After ``num_steps`` steps neighbours are exchanged, even and odd pairs in turn, with probability

        min(1, exp(δ (U_r - U_r+1) - δ² (v_r + v_r+1) / 2)),   δ = 1 / T_r - 1 / T_r+1

    where U are energies, negative log densities, from minibatches, and v the variances of their
    noise. Without the second term noise makes exchanges too frequent, and draws too hot. With it
    exchanges leave the posterior as it is when the noise is Normal of that variance (Ceperley and
    Dewing); what bias is left is that of the steps. An energy is the mean of two independent
    minibatches, whose difference gives v.

    Noise makes exchanges rare: δ² v has to be of the order of one at most, and v grows as the
    square of the number of rows over that of a minibatch. Take larger minibatches, temperatures
    that lie nearer to each other or a ``ControlVariate`` when
    :meth:`exchange_rates` are below 0.1 or so.

    Parameters
    ----------
    model, step_size
        See :class:`~ppl_ext.sgmcmc.kernels.SGLDShell`; one step size for all temperatures, whose
        relative bias it makes the same.
    temperatures : sequence of float
        T_1 = 1 < T_2 < ...; at the last one the barrier between modes should be low. Ratios of
        neighbours of about 1 + sqrt(2 / D) keep exchanges frequent.
    num_steps : int
        Steps that a draw takes, between exchanges. An exchange costs two more minibatches.
    **options
        See :class:`~ppl_ext.sgmcmc.kernels.StochasticGradientShell`.

    Raises
    ------
    ArgumentError
        An option is out of its range.

    Notes
    -----
    The power 1 / T of a density with heavy tails, in unconstrained space, may have no integral:
    with a Cauchy prior from T = 2 on.

    References
    ----------
    W. Deng, Q. Feng, L. Gao, F. Liang and G. Lin, "Non-convex learning via replica exchange
    stochastic gradient MCMC", ICML 2020, https://arxiv.org/abs/2008.05367; D. Ceperley and M.
    Dewing, "The penalty method for random walks with uncertain energies", Journal of Chemical
    Physics 1999, https://doi.org/10.1063/1.478034.

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
        exchanges = shared.Exchanges.none(z.new_zeros(len(z), self.num_replicas), torch)
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
        exchanges = shared.Exchanges(*(kept[name] for name in shared.Exchanges._fields))
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
