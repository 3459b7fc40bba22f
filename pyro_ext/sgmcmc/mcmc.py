"""Chains that are run as one vectorised update, with the verbs of ``pyro.infer.MCMC``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro import infer
from torch import Tensor
from tqdm.auto import tqdm

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count
from ppl_ext.sgmcmc.schedules import warn_of_broken_draws
from pyro_ext.sgmcmc.kernel import StochasticGradientKernel

#: Draws that are put into their supports at once.
_CONSTRAINED_AT_ONCE = 1000


class MCMC(infer.MCMC):
    """``pyro.infer.MCMC`` for the kernels of this package, with all chains in one update.

    Pyro's own runs chains one after another, or each in a process of its own. Here a step takes
    the scores of all chains at once, each at rows of its own, which for small models costs
    little more than one chain. ``get_samples``, ``diagnostics`` and ``summary`` are Pyro's.

    Parameters
    ----------
    kernel : StochasticGradientKernel
        Such as :class:`~pyro_ext.sgmcmc.SGLD`; or another of this package that has
        ``setup_chains``.
    num_samples : int
        Draws of each chain that are kept.
    warmup_steps : int, optional
        Draws before these, which are not. Default: ``num_samples``, as in Pyro.
    initial_params : mapping of str to tensor, optional
        Latent sites in unconstrained space to start from, with a leading axis of chains.
    num_chains : int
    thinning : int
        Keep every so many draws; ``num_samples`` are kept in any case.
    hook_fn : callable, optional
        ``hook_fn(kernel, state, stage, i)`` after every draw, with the kernel's state and
        "Warmup" or "Sample".
    disable_progbar : bool

    Raises
    ------
    ArgumentError
        The kernel is not one of this package, or a number is out of its range.

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
    >>> kernel = px.SGHMC(model, 0.3, friction=2.0)
    >>> mcmc = px.MCMC(kernel, num_samples=500, warmup_steps=100, num_chains=10)
    >>> mcmc.run(y)
    >>> print(round(mcmc.get_samples()["mean"].mean().item()))
    2
    >>> print(mcmc.diagnostics()["mean"]["r_hat"].item() < 1.1)
    True
    """

    def __init__(
        self,
        kernel: Any,
        num_samples: int,
        warmup_steps: int | None = None,
        initial_params: Mapping[str, Tensor] | None = None,
        num_chains: int = 1,
        *,
        thinning: int = 1,
        hook_fn: Callable[..., Any] | None = None,
        disable_progbar: bool = False,
    ) -> None:
        if not hasattr(kernel, "setup_chains"):
            raise ArgumentError(
                "Expected a kernel of this package, such as SGLD, found "
                f"{type(kernel).__name__}. Use pyro.infer.MCMC for Pyro's kernels."
            )
        check_count("num_samples", num_samples)
        check_count("num_chains", num_chains)
        check_count("thinning", thinning)
        check_count("warmup_steps", warmup_steps, 0, optional=True)
        super().__init__(
            kernel, num_samples, warmup_steps, disable_progbar=disable_progbar, num_chains=1
        )
        # After the host's own set-up, which would prepare a process for each chain.
        self.num_chains = num_chains
        self.thinning = thinning
        self._initial_params = initial_params
        self._hook = hook_fn
        self._disable_progbar = disable_progbar

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Draw from the posterior given these arguments of the model.

        Raises
        ------
        ModelCheckError, ArgumentError
            See :meth:`StochasticGradientKernel.setup`.
        """
        kernel, warmup = self.kernel, self.warmup_steps
        if self._initial_params is not None:
            kernel.initial_params = self._initial_params
        kernel.setup_chains(self.num_chains, warmup, *args, **kwargs)
        self._args, self._kwargs = args, kwargs
        target = kernel.target
        sharding = getattr(kernel, "sharding", None)
        hidden = self._disable_progbar or not (sharding is None or sharding.writes)
        total = warmup + self.num_samples * self.thinning
        shape = (self.num_samples, self.num_chains, target.dim)
        positions = torch.empty(shape, dtype=target.dtype, device=target.device)
        name = type(kernel).__name__
        with tqdm(total=total, desc="Warmup", disable=hidden) as bar:
            for number in range(total):
                state = kernel.draw()
                kept, rest = divmod(number - warmup + 1, self.thinning)
                if number >= warmup and rest == 0:
                    # As flat positions, which are put into their supports together at the end.
                    positions[kept - 1] = state.z
                if number == warmup:
                    bar.set_description(name, refresh=False)
                if not hidden:
                    bar.set_postfix(kernel.logging(), refresh=False)
                    bar.update()
                if self._hook is not None:
                    stage, i = (
                        ("Warmup", number) if number < warmup else ("Sample", number - warmup)
                    )
                    self._hook(kernel, state, stage, i)
        flat = positions.transpose(0, 1).reshape(-1, target.dim)
        pieces = [kernel.values(part) for part in flat.split(_CONSTRAINED_AT_ONCE)]
        lead = (self.num_chains, self.num_samples)
        self._samples = {
            site: torch.cat([piece[site] for piece in pieces]).unflatten(0, lead)
            for site in pieces[0]
        }
        self._diagnostics = [self._of_draws(kernel.diagnostics(c)) for c in range(self.num_chains)]
        warn_of_broken_draws(
            type(kernel).__name__,
            {name: each.flatten(0, 1).cpu().numpy() for name, each in self._samples.items()},
        )
        if isinstance(kernel, StochasticGradientKernel):
            kernel.look_at(positions)
        kernel.cleanup()

    def _of_draws(self, figures: dict[str, Any]) -> dict[str, Any]:
        """Figures of the draws that are kept."""
        every = self.thinning
        divergences = sorted({number // every for number in figures.pop("divergences")})
        kept = {name: values[every - 1 :: every] for name, values in figures.items()}
        return {"divergences": divergences, **kept}
