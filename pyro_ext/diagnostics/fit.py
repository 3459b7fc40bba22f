"""What the diagnostics of a fit share: its target, the data on all rows, and its draws.

Everything is evaluated on the full data, in chunks of rows (the target's own sweep) and in
chunks of draws, so that neither many rows nor many draws of a network take much memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ppl_ext.errors import ArgumentError, HeldParameterWarning
from ppl_ext.options import check_count, check_number
from pyro_ext.density import Data, LogDensity
from pyro_ext.engine import seeded_generator
from pyro_ext.guides.flat_density import (
    FlatDensity,
    Parameters,
    check_has_flat_density,
    flat_density,
)

#: Draws evaluated at once unless told otherwise, and the most numbers that these may hold.
DRAW_CHUNK = 100
DRAW_ELEMENTS = 2**24
#: What to do about a batch.
PASS_ALL_ROWS = "Pass all rows, as args=(...) and kwargs={...}."

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
        if not hasattr(fit, "density"):
            raise ArgumentError(
                f"Expected an engine that fits a guide, found {type(fit).__name__}, whose "
                "particles have no log density. Use ksd, which takes particles and guides."
            )
        target, data = target_of_engine(fit, model, args, kwargs)
        density = fit.density
        return FittedGuide(density, density.live_parameters(), target, data)
    check_has_flat_density(fit)
    if fit.prototype_trace is None:
        raise ArgumentError(
            f"Expected a guide that has been fitted, found {type(fit).__name__} that has not seen "
            "its model. Fit it with SVI, or pass the engine that fits it."
        )
    if model is None:
        raise ArgumentError(
            f"Expected the model of {type(fit).__name__}, found none. Pass model=..., and its "
            "arguments with all rows of the data as args=(...) and kwargs={...}."
        )
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
    if model is not None:
        raise ArgumentError(
            f"Expected no model with {type(engine).__name__}, which has one. Leave model out."
        )
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


def chunk_sizes(num: int, dim: int, draw_chunk: int | None) -> list[int]:
    """Lengths of the chunks in which ``num`` draws of D numbers are evaluated."""
    check_count("draw_chunk", draw_chunk, optional=True)
    chunk = draw_chunk or max(1, min(DRAW_CHUNK, DRAW_ELEMENTS // dim))
    whole, tail = divmod(num, chunk)
    return [chunk] * whole + [tail] * (tail > 0)


def check_arguments(args: Any, kwargs: Any) -> None:
    """See that the model's arguments come as a tuple and a mapping.

    Raises
    ------
    ArgumentError
        They do not.
    """
    if args is not None and not isinstance(args, (tuple, list)):
        raise ArgumentError(
            f"Expected args to be a tuple of the model's arguments, found {type(args).__name__}. "
            "Write args=(x,) for a single one."
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ArgumentError(
            f"Expected kwargs to be a mapping from names to arguments, found "
            f"{type(kwargs).__name__}."
        )


def check_temperature(target: LogDensity, temperature: float | None) -> float:
    """The temperature asked for; that of the target when none is.

    Raises
    ------
    ArgumentError
        It is not positive.
    """
    if temperature is None:
        return target.likelihood_temperature
    check_number("likelihood_temperature", temperature)
    return float(temperature)


def diagnostic_generator(seed: int | None) -> torch.Generator:
    """A generator apart from every engine's and from torch's global one."""
    return seeded_generator(0 if seed is None else seed, _STREAM)


def draw(fitted: FittedGuide, generator: torch.Generator, num: int) -> Tensor:
    """Flat draws (num, D) of a fitted guide."""
    return fitted.density.sample(fitted.parameters, generator, num).to(fitted.target.dtype)
