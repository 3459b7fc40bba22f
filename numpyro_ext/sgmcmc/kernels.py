"""Kernels of stochastic gradient MCMC; see :mod:`ppl_ext.sgmcmc.kernels`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random

from numpyro_ext.density import Data
from numpyro_ext.sgmcmc.dynamics import hamiltonian_step, langevin_step
from numpyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel
from ppl_ext.sgmcmc import kernels as shared
from ppl_ext.sgmcmc.schedules import check_warmup


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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y), subsample_size=2) as rows:
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> from numpyro.infer import MCMC
    >>> mcmc = MCMC(nx.SGLD(model, 0.02), num_warmup=100, num_samples=2000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    """

    def _move(self, dynamics: Any, z: Array, step: shared.Step) -> tuple[Array, Any]:
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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> from numpyro.infer import MCMC
    >>> mcmc = MCMC(nx.PSGLD(model, 0.1), num_warmup=300, num_samples=2000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    """

    def init(self, rng_key: Array, num_warmup: int, *arguments: Any, **keywords: Any) -> Any:
        """State before the first step; see the base class.

        Raises
        ------
        ArgumentError
            There is no warm-up, in which alone the preconditioner adapts.
        """
        check_warmup(self.adapt, "num_warmup", num_warmup)
        return super().init(rng_key, num_warmup, *arguments, **keywords)

    def sample(
        self, state: KernelState, model_args: tuple[Any, ...], model_kwargs: Mapping[str, Any]
    ) -> KernelState:
        if self.adapt == "warmup":
            found, due = state.dynamics, state.step == state.num_warmup

            def report() -> None:
                jax.debug.callback(self._report, due, found.mean, found.mean_square)

            lax.cond(due, report, lambda: None)
        return super().sample(state, model_args, model_kwargs)

    def _report(self, due: Any, mean: Any, mean_square: Any) -> None:
        # Where chains are mapped over, both branches of the condition are run.
        if due:
            self._warn_of_chains_on_their_way(mean, mean_square)

    def _init_dynamics(self, num_chains: int, dim: int, dtype: Any) -> Any:
        zero, one = jnp.zeros((num_chains, dim), dtype), jnp.zeros((num_chains, 1), dtype)
        return shared.ScoreMoments(zero, one, zero, zero, one)

    def _move(self, dynamics: Any, z: Array, step: shared.Step) -> tuple[Array, Any]:
        adapted = dynamics.with_score(step.score, self.decay)
        if self.adapt == "warmup":
            chosen = partial(jnp.where, step.warmup)
            adapted = shared.ScoreMoments(*map(chosen, adapted, dynamics))
        preconditioner = adapted.preconditioner(self.damping)
        moved = langevin_step(z, step.score, step.noise, step.size, preconditioner)
        return moved, adapted


class _Momentum(NamedTuple):
    """Momentum (C, D), zero at the start."""

    momentum: Array


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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y), subsample_size=2) as rows:
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> from numpyro.infer import MCMC
    >>> mcmc = MCMC(nx.SGHMC(model, 0.1, friction=5.0), num_warmup=100, num_samples=2000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    """

    def _init_dynamics(self, num_chains: int, dim: int, dtype: Any) -> Any:
        self._mass()
        return _Momentum(jnp.zeros((num_chains, dim), dtype))

    def _move(self, dynamics: Any, z: Array, step: shared.Step) -> tuple[Array, Any]:
        moved, momentum = hamiltonian_step(
            z, dynamics.momentum, step.score, step.noise, step.size, self.friction, self._mass()
        )
        return moved, _Momentum(momentum)


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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> from numpyro.infer import MCMC
    >>> kernel = nx.CyclicalSGLD(model, 0.1, cycle_length=20)
    >>> print(kernel.draws_per_cycle)
    5
    >>> mcmc = MCMC(kernel, num_warmup=20, num_samples=1000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> from numpyro.infer import MCMC
    >>> kernel = nx.CyclicalSGHMC(model, 0.3, cycle_length=20)
    >>> print(kernel.draws_per_cycle)
    5
    >>> mcmc = MCMC(kernel, num_warmup=20, num_samples=1000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> from numpyro.infer import MCMC
    >>> kernel = nx.ReplicaExchangeSGLD(model, 0.05, (1.0, 2.0, 4.0))
    >>> print(kernel.num_replicas)
    3
    >>> mcmc = MCMC(kernel, num_warmup=20, num_samples=1000)
    >>> mcmc.run(jax.random.key(0), y)
    >>> print(f"{mcmc.get_samples()['mean'].mean():.0f}")
    2
    >>> print(kernel.exchange_rates(mcmc.last_state).shape)
    (1, 2)
    """

    def _init_replicas(self, z: Array, data: Data, key: Array) -> dict[str, Any]:
        exchanges = shared.Exchanges.none(jnp.zeros((len(z), self.num_replicas), z.dtype), jnp)
        positions = len(z) * self.num_replicas
        return {
            "z": jnp.repeat(z[:, None], self.num_replicas - 1, 1),
            # An order of rows of its own: two minibatches of one order are not independent.
            "estimator": self._estimator_for(positions).init(self.target, data, key, positions),
            **exchanges._asdict(),
        }

    def _after_steps(self, state: KernelState, data: Data, single: bool) -> KernelState:
        keys = state.rng_key[None] if single else state.rng_key
        num_chains, kept = len(keys), state.replicas
        z = self._positions(state, num_chains)
        score_estimator, energies, states = self._estimator_for(len(z)), [], []
        for before in (state.estimator, kept["estimator"]):
            estimate, after = score_estimator.estimate(self.target, before, z, data)
            energy = -estimate.log_density(self.target.likelihood_temperature)
            energies.append(energy.reshape(num_chains, -1))
            states.append(jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, before))
        both = jax.vmap(random.split)(keys)
        exchanges = shared.Exchanges(*(kept[name] for name in shared.Exchanges._fields))
        shape = (self.num_replicas - 1,)
        log_uniform = jnp.log(jax.vmap(lambda key: random.uniform(key, shape, z.dtype))(both[:, 1]))
        # Two estimates of each energy by rows of their own: their difference tells the noise, for
        # which the exchange is corrected.
        exchanges, exchanged = exchanges.after(
            energies[0], energies[1], log_uniform, jnp.asarray(self._gaps, z.dtype), jnp
        )
        # An exchange moves a replica one place up and its neighbour one down.
        up, down = (jnp.pad(exchanged, ((0, 0), sides)) for sides in ((0, 1), (1, 0)))
        order = jnp.arange(self.num_replicas) + up.astype(int) - down.astype(int)
        by_chain = z.reshape(num_chains, self.num_replicas, -1)
        z = jnp.take_along_axis(by_chain, order[:, :, None], 1).reshape(z.shape)
        following = kept | {"estimator": states[1], **exchanges._asdict()}
        state = state._replace(
            estimator=states[0],
            replicas=following,
            rng_key=both[0, 0] if single else both[:, 0],
        )
        return self._with_positions(state, z, single)
