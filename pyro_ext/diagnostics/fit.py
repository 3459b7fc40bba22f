"""What the diagnostics of a fit share: its target, the data on all rows, and its draws.

Guides that the host's ``SVI`` has fitted and chains of its ``MCMC`` are seen as an engine is.
Whichever objective fitted it (``Trace_ELBO``, ``TraceGraph_ELBO``, ``RenyiELBO``, ...), a guide is
a distribution that can be drawn from. Its draws are those of its flat density where it has one,
and the host's own otherwise, so that site-by-site and hand-written guides are taken too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from pyro.infer import MCMC, Predictive
from torch import Tensor

from ppl_ext.batches.passes import Passes
from ppl_ext.diagnostics import fit as shared
from ppl_ext.errors import ArgumentError, DataWarning, HeldParameterWarning
from ppl_ext.options import as_seed
from ppl_ext.process import swapped
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.handlers import global_generator
from pyro_ext.engine import seeded_generator
from pyro_ext.guides.flat_density import check_has_flat_density, flat_density, has_flat_density

# Tells the diagnostics' draws from those that an engine of the same seed takes.
_STREAM = 2


@dataclass(frozen=True)
class FittedGuide(shared.FittedGuide):
    """A guide, its parameters, the log density that it approximates, and a seed for draws."""

    seed: int | None = None

    def draw(self, generator: torch.Generator, num: int) -> Float[Tensor, "num D"]:
        """Flat draws (num, D)."""
        drawn: Tensor = self.density.sample(self.parameters, generator, num)
        return drawn.to(self.target.dtype)

    @torch.no_grad()
    def at_draws(
        self, num_samples: int, draw_chunk: int | None, evaluate: shared.Evaluate
    ) -> tuple[Float[np.ndarray, "S ..."], ...]:
        """What a function finds at draws of the guide, chunk by chunk, in host memory."""
        generator = diagnostic_generator(self.seed)
        pieces = []
        for size in shared.chunk_sizes(num_samples, self.target.dim, draw_chunk):
            theta = self.draw(generator, size)
            found = evaluate(self.density, self.parameters, self.target, self.data, theta)
            # Draws may be more than the device holds, and sums over them are taken in double
            # precision.
            pieces.append([each.double().cpu().numpy() for each in found])
        return tuple(np.concatenate(each) for each in zip(*pieces, strict=True))


def fitted_guide(
    fit: Any,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    seed: int | None = None,
    passes: Passes | None = None,
) -> FittedGuide:
    """The guide of an engine, or a host autoguide with the model that it was fitted to.

    Parameters
    ----------
    fit
        An engine that has fitted a guide, or an autoguide fitted by Pyro's ``SVI``.
    model : callable, optional
        The model of an autoguide.
    args, kwargs : optional
        The model's arguments, with all rows of the data. Default: those that the engine saw last.
    seed : int, optional
        Of the draws. Default: 0.
    passes : Passes, optional
        All rows, from a loader.

    Raises
    ------
    ArgumentError
        ``fit`` is neither, its guide has no flat log density, or the arguments hold only some
        rows of a plate.
    """
    if hasattr(fit, "target"):
        shared.check_fits_a_guide(fit)
        target, data = shared.target_of_engine(fit, model, args, kwargs, passes)
        if hasattr(fit, "approximation"):
            density, parameters = fit.approximation()
            return FittedGuide(density, parameters, target, data, seed)
        return FittedGuide(fit.density, fit.density.live_parameters(), target, data, seed)
    check_has_flat_density(fit)
    if fit.prototype_trace is None:
        raise ArgumentError(
            f"Expected a guide that has been fitted, found {type(fit).__name__} that has not seen "
            "its model. Fit it with SVI, or pass the engine that fits it."
        )
    model = shared.checked_model(fit, model)
    # The target computes in the guide's precision, in which it was fitted.
    dtype = next((parameter.dtype for parameter in fit.parameters()), None)
    target, data = target_of_model(
        model, args, kwargs, dtype=dtype, allow_local_latents=False, passes=passes
    )
    # The guide is set up already: the seed only keeps the global generator as it is.
    density = flat_density(fit, data.args, data.kwargs, layout=target.layout, seed=0)
    return FittedGuide(density, density.live_parameters(), target, data, seed)


def target_of_model(
    model: Callable[..., Any],
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    *,
    dtype: torch.dtype | None = None,
    allow_local_latents: bool = True,
    all_rows: bool = True,
    passes: Passes | None = None,
) -> tuple[LogDensity, Data]:
    """A target for a model without an engine, with its parameters at their present values.

    Arguments that hold only some rows of a plate are refused where it has to be ``all_rows``.
    """
    args, kwargs = shared.checked_arguments(args, kwargs)
    with swapped(warnings.catch_warnings()):
        # Parameters that SVI has fitted beside the guide are meant to be where they are.
        warnings.simplefilter("ignore", HeldParameterWarning)
        if not all_rows:  # Of predictions: sites without values get some by place, not by row.
            warnings.simplefilter("ignore", DataWarning)
        target = LogDensity(
            model, args, kwargs, dtype=dtype, allow_local_latents=allow_local_latents
        )
    return shared.bound_rows(target, args, kwargs, passes, all_rows)


def diagnostic_generator(seed: int | None) -> torch.Generator:
    """A generator apart from every engine's and from torch's global one."""
    return seeded_generator(0 if seed is None else as_seed(seed), _STREAM)


class HostFit(shared.HostFit):
    """A fitted guide with the model that it approximates.

    Parameters
    ----------
    guide : callable
        An autoguide or a hand-written guide, fitted by Pyro's ``SVI``.
    model : callable
        Its model.
    args, kwargs
        The model's arguments, with all rows of the data.
    seed : int
        Seed of the draws, which leave torch's global generator as it is.
    passes : Passes, optional
        All rows, from a loader.

    Raises
    ------
    ArgumentError
        The guide has not been fitted or does not belong to the model, or the arguments hold only
        some rows of a plate.
    """

    def __init__(
        self,
        guide: Callable[..., Any],
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        seed: int = 0,
        passes: Passes | None = None,
    ) -> None:
        self.guide = guide
        self._seed = seed
        self.fitted: FittedGuide | None = None
        if has_flat_density(guide):
            self.fitted = fitted_guide(guide, model, args, kwargs, passes=passes)
            self.target, self._data = self.fitted.target, self.fitted.data
        else:
            parameters = guide.parameters() if isinstance(guide, torch.nn.Module) else iter(())
            dtype = next((parameter.dtype for parameter in parameters), None)
            self.target, self._data = target_of_model(
                model, args, kwargs, dtype=dtype, passes=passes
            )

    @torch.no_grad()
    def get_samples(self, num_samples: int = shared.HOST_DRAWS) -> dict[str, Tensor]:
        """Draws of the latent sites, leading dimension = draws."""
        if self.fitted is not None:
            theta = self.fitted.draw(diagnostic_generator(self._seed), num_samples)
            return self.target.constrain(theta, self._data)
        generator = diagnostic_generator(self._seed)
        # The guide draws from torch's global generator, which goes on afterwards as if it had not.
        with global_generator(int(torch.randint(2**62, (), generator=generator))):
            drawn = Predictive(self.guide, num_samples=num_samples)(
                *self._data.args, **self._data.kwargs
            )
        return shared.sites_of_guide(self.target.layout.names, drawn)

    @torch.no_grad()
    def sample_statistics(self, positions: Float[Tensor, "S D"]) -> dict[str, Tensor]:
        """Log density of the guide at flat positions (S, D), where it can be evaluated."""
        return self._log_q(positions)


class Chains(shared.Chains):
    """Draws of ``pyro.infer.MCMC``, by any kernel of a model.

    Parameters
    ----------
    mcmc : MCMC
        After ``run``.
    args, kwargs
        The model's arguments, with all rows of the data.
    passes : Passes, optional
        All rows, from a loader.
    num_samples : int, optional
        Draws that are taken, as many of each chain, at least. Default: all.

    Raises
    ------
    ArgumentError
        There are no draws yet, or fewer; or the kernel has no model.
    """

    def __init__(
        self,
        mcmc: MCMC,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        passes: Passes | None = None,
        num_samples: int | None = None,
    ) -> None:
        self._take(mcmc, mcmc.kernel, mcmc._samples is not None, num_samples)
        # Not the kernel's target: the kernel may have served other data since.
        self.target, _ = target_of_model(self._kernel.model, args, kwargs, passes=passes)

    def get_samples(self) -> dict[str, Tensor]:
        """Draws of all chains, one chain after another."""
        return self._drawn()

    def sample_statistics(self, positions: Float[Tensor, "S D"]) -> dict[str, Tensor]:
        """What the kernel reports of each draw."""
        per_chain = self._num_draws // self.num_chains
        statistics: dict[str, list[Tensor]] = {}
        for figures in self.mcmc._diagnostics:
            # Pyro lists the numbers of the draws that diverged, ArviZ has a flag for each draw.
            diverging = torch.zeros(per_chain, dtype=torch.bool)
            diverging[list(figures.get("divergences", []))] = True
            statistics.setdefault("diverging", []).append(diverging)
            for name, values in figures.items():
                # A list of another length is not of draws.
                if isinstance(values, list) and len(values) == per_chain and name != "divergences":
                    statistics.setdefault(name, []).append(torch.as_tensor(values))
        return {name: self._taken(torch.cat(values)) for name, values in statistics.items()}
