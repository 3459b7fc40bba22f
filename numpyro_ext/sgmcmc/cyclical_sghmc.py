"""Stochastic gradient Hamiltonian Monte Carlo with steps that rise and fall in cycles."""

from __future__ import annotations

from numpyro_ext.sgmcmc.sghmc import SGHMC
from ppl_ext.sgmcmc.kernels import Cycles


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
