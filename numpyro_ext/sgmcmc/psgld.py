"""Stochastic gradient Langevin dynamics with a diagonal preconditioner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from numpyro_ext.sgmcmc.dynamics import langevin_step
from numpyro_ext.sgmcmc.kernel import KernelState, StochasticGradientKernel
from ppl_ext.sgmcmc.kernels import PSGLDShell, ScoreMoments
from ppl_ext.sgmcmc.schedules import check_warmup


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

    def _move(
        self,
        dynamics: Any,
        z: Array,
        score: Array,
        noise: Array,
        step_size: Array,
        step: Array,
        warmup: Array,
    ) -> tuple[Array, Any]:
        adapted = dynamics.with_score(score, self.decay)
        if self.adapt == "warmup":
            adapted = ScoreMoments(
                *(jnp.where(warmup, new, old) for new, old in zip(adapted, dynamics, strict=True))
            )
        preconditioner = adapted.preconditioner(self.damping)
        moved = langevin_step(z, score, noise, step_size, preconditioner)
        return moved, adapted
