"""Stochastic gradient Langevin dynamics with a step size that rises and falls in cycles."""

from __future__ import annotations

from ppl_ext.sgmcmc.kernels import Cycles
from pyro_ext.sgmcmc.sgld import SGLD


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
