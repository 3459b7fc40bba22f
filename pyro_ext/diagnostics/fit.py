"""What the diagnostics of a fit share: its target, the data on all rows, and its draws."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ppl_ext.diagnostics.fit import (
    PASS_ALL_ROWS,
    check_arguments,
    check_fits_a_guide,
    check_model,
    check_no_model,
)
from ppl_ext.errors import ArgumentError, HeldParameterWarning
from pyro_ext.density import Data, LogDensity
from pyro_ext.engine import seeded_generator
from pyro_ext.guides.flat_density import (
    FlatDensity,
    Parameters,
    check_has_flat_density,
    flat_density,
)

# Tells the diagnostics' draws from those that an engine of the same seed takes.
_STREAM = 2


class FittedGuide(NamedTuple):
    """A guide, its parameters, and the log density that it approximates."""

    density: FlatDensity
    parameters: Parameters
    target: LogDensity
    data: Data


def fitted_guide(
    fit: Any,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
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

    Raises
    ------
    ArgumentError
        ``fit`` is neither, its guide has no flat log density, or the arguments hold only some
        rows of a plate.
    """
    if hasattr(fit, "target"):
        check_fits_a_guide(fit)
        target, data = target_of_engine(fit, model, args, kwargs)
        density = fit.density
        return FittedGuide(density, density.live_parameters(), target, data)
    check_has_flat_density(fit)
    if fit.prototype_trace is None:
        raise ArgumentError(
            f"Expected a guide that has been fitted, found {type(fit).__name__} that has not seen "
            "its model. Fit it with SVI, or pass the engine that fits it."
        )
    check_model(fit, model)
    assert model is not None
    dtype = next((parameter.dtype for parameter in fit.parameters()), None)
    target, data = target_of_model(model, args, kwargs, dtype=dtype, allow_local_latents=False)
    # The guide is set up already: the seed only keeps the global generator as it is.
    density = flat_density(fit, data.args, data.kwargs, layout=target.layout, seed=0)
    return FittedGuide(density, density.live_parameters(), target, data)


def target_of_engine(
    engine: Any,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
) -> tuple[LogDensity, Data]:
    """An engine's target, and the model's arguments with all rows."""
    check_arguments(args, kwargs)
    check_no_model(engine, model)
    target = engine.target
    if args is None and kwargs is None:
        data = engine.data
    else:
        data = target.bind(*(args or ()), **dict(kwargs or {}))
    target.require_all_rows(data, PASS_ALL_ROWS)
    return target, data


def target_of_model(
    model: Callable[..., Any],
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    *,
    dtype: torch.dtype | None = None,
    allow_local_latents: bool = True,
    all_rows: bool = True,
) -> tuple[LogDensity, Data]:
    """A target for a model without an engine, with its parameters at their present values.

    Arguments that hold only some rows of a plate are refused where it has to be ``all_rows``.
    """
    check_arguments(args, kwargs)
    args, kwargs = args or (), dict(kwargs or {})
    with warnings.catch_warnings():
        # Parameters that SVI has fitted beside the guide are meant to be where they are.
        warnings.simplefilter("ignore", HeldParameterWarning)
        target = LogDensity(
            model, args, kwargs, dtype=dtype, allow_local_latents=allow_local_latents
        )
    data = target.bind(*args, **kwargs)
    if all_rows:
        target.require_all_rows(data, PASS_ALL_ROWS)
    return target, data


def diagnostic_generator(seed: int | None) -> torch.Generator:
    """A generator apart from every engine's and from torch's global one."""
    return seeded_generator(0 if seed is None else seed, _STREAM)


def draw(fitted: FittedGuide, generator: torch.Generator, num: int) -> Tensor:
    """Flat draws (num, D) of a fitted guide."""
    return fitted.density.sample(fitted.parameters, generator, num).to(fitted.target.dtype)
