"""What the diagnostics of a fit share: its target, the data on all rows, and its draws."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.batches.passes import Passes
from ppl_ext.diagnostics import fit as shared
from ppl_ext.diagnostics.fit import (
    Evaluate,
    check_arguments,
    check_fits_a_guide,
    check_model,
    chunk_sizes,
    target_of_engine,
)
from ppl_ext.errors import ArgumentError, DataWarning, HeldParameterWarning
from ppl_ext.options import as_seed
from ppl_ext.process import swapped
from pyro_ext.density import Data, LogDensity
from pyro_ext.engine import seeded_generator
from pyro_ext.guides.flat_density import check_has_flat_density, flat_density

#: What diagnostics say of their draws' randomness.
SEED = """
seed : int, optional
    Seed of the draws of a guide, which come from a generator of their own. Default: 0.
"""

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
        self, num_samples: int, draw_chunk: int | None, evaluate: Evaluate
    ) -> tuple[Float[np.ndarray, "S ..."], ...]:
        """What a function finds at draws of the guide, chunk by chunk, in host memory."""
        generator = diagnostic_generator(self.seed)
        pieces = []
        for size in chunk_sizes(num_samples, self.target.dim, draw_chunk):
            theta = self.draw(generator, size)
            found = evaluate(self.density, self.parameters, self.target, self.data, theta)
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
        check_fits_a_guide(fit)
        target, data = target_of_engine(fit, model, args, kwargs, passes)
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
    check_model(fit, model)
    assert model is not None
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
    check_arguments(args, kwargs)
    args, kwargs = args or (), dict(kwargs or {})
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
