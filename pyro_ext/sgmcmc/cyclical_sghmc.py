"""Stochastic gradient Hamiltonian Monte Carlo with steps that rise and fall in cycles."""

from __future__ import annotations

from ppl_ext.sgmcmc.kernels import Cycles
from pyro_ext.sgmcmc.sghmc import SGHMC


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
