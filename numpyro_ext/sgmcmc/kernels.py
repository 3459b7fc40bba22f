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


class SGLD(SGLDShell, StochasticGradientKernel):
    """Examples
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

    def _move(self, dynamics: Any, z: Array, step: Step) -> tuple[Array, Any]:
        return langevin_step(z, step.score, step.noise, step.size), dynamics


class PSGLD(PSGLDShell, StochasticGradientKernel):
    """Examples
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
        return ScoreMoments(zero, one, zero, zero, one)

    def _move(self, dynamics: Any, z: Array, step: Step) -> tuple[Array, Any]:
        adapted = dynamics.with_score(step.score, self.decay)
        if self.adapt == "warmup":
            chosen = partial(jnp.where, step.warmup)
            adapted = ScoreMoments(*map(chosen, adapted, dynamics))
        preconditioner = adapted.preconditioner(self.damping)
        moved = langevin_step(z, step.score, step.noise, step.size, preconditioner)
        return moved, adapted


class _Momentum(NamedTuple):
    """Momentum (C, D), zero at the start."""

    momentum: Array


class SGHMC(SGHMCShell, StochasticGradientKernel):
    """Examples
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

    def _move(self, dynamics: Any, z: Array, step: Step) -> tuple[Array, Any]:
        moved, momentum = hamiltonian_step(
            z, dynamics.momentum, step.score, step.noise, step.size, self.friction, self._mass()
        )
        return moved, _Momentum(momentum)


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


class ReplicaExchangeSGLD(ReplicaExchangeSGLDShell, SGLD):
    """Examples
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
        exchanges = Exchanges.none(jnp.zeros((len(z), self.num_replicas), z.dtype), jnp)
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
        exchanges = Exchanges(*(kept[name] for name in Exchanges._fields))
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
