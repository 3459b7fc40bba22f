"""Stochastic gradient Langevin dynamics with a step size that rises and falls in cycles."""

from __future__ import annotations

from numpyro_ext.sgmcmc.sgld import SGLD
from ppl_ext.sgmcmc.kernels import Cycles


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
