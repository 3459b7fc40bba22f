"""What the diagnostics of a fit share: its target, the data on all rows, and its draws.

Everything is evaluated on the full data, in chunks of rows (the target's own sweep) and in
chunks of draws, so that neither many rows nor many draws of a network take much memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
from jax import Array, random

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.engine import EngineState, RunResult, key_of_draws
from numpyro_ext.guides.flat_density import (
    FlatDensity,
    Parameters,
    check_has_flat_density,
    check_same_layout,
    flat_density,
)
from ppl_ext.errors import ArgumentError, HeldParameterWarning
from ppl_ext.options import check_count, check_number

#: Draws evaluated at once unless told otherwise, and the most numbers that these may hold.
DRAW_CHUNK = 100
DRAW_ELEMENTS = 2**24
#: What to do about a batch.
PASS_ALL_ROWS = "Pass all rows, as args=(...) and kwargs={...}."


class FittedGuide(NamedTuple):
    """A guide, its parameters, the log density that it approximates, and a key for draws."""

    density: FlatDensity
    parameters: Parameters
    target: LogDensity
    data: Data
    rng_key: Array


def fitted_guide(
    fit: Any,
    state: Any,
    model: Callable[..., Any] | None,
    args: tuple[Any, ...] | None,
    kwargs: Mapping[str, Any] | None,
    rng_key: Array | None,
) -> FittedGuide:
    """The guide of an engine, or a host autoguide with the model that it was fitted to.

    Parameters
    ----------
    fit
        An engine that has fitted a guide, or an autoguide fitted by NumPyro's ``SVI``.
    state
        State or result of the engine's run; or the parameters of the autoguide, as
        ``SVI.get_params`` gives them, or the result of ``SVI.run``.
    model : callable, optional
        The model of an autoguide.
    args, kwargs : optional
        The model's arguments, with all rows of the data. Default: those that the engine saw last.
    rng_key : array, optional
        Default: a key derived from the engine's state; ``jax.random.key(0)`` for an autoguide.

    Raises
    ------
    ArgumentError
        ``fit`` is neither, ``state`` does not belong to it, its guide has no flat log density, or
        the arguments hold only some rows of a plate.
    """
    if hasattr(fit, "target"):
        if not hasattr(fit, "density"):
            raise ArgumentError(
                f"Expected an engine that fits a guide, found {type(fit).__name__}, whose "
                "particles have no log density. Use ksd, which takes particles and guides."
            )
        state = state_of_engine(fit, state)
        target, data = target_of_engine(fit, model, args, kwargs)
        key = key_of_draws(state) if rng_key is None else rng_key
        return FittedGuide(fit.density, state.algorithm.parameters, target, data, key)
    check_has_flat_density(fit)
    params = getattr(state, "params", state)
    if not isinstance(params, Mapping):
        raise ArgumentError(
            f"Expected the parameters of {type(fit).__name__}, as svi.get_params(state) gives "
            f"them, found {type(state).__name__}."
        )
    if model is None:
        raise ArgumentError(
            f"Expected the model of {type(fit).__name__}, found none. Pass model=..., and its "
            "arguments with all rows of the data as args=(...) and kwargs={...}."
        )
    target, data = target_of_model(
        model, args, kwargs, held=params, allow_local_latents=False, owner=type(fit).__name__
    )
    density = _density(fit, target, data)
    missing = sorted(set(density.parameter_names) - set(params))
    if missing:
        raise ArgumentError(
            f"Expected the parameters of {type(fit).__name__}, as svi.get_params(state) gives "
            f"them, found none of the name {missing} among {sorted(params)}."
        )
    key = random.key(0) if rng_key is None else rng_key
    return FittedGuide(density, density.from_host(params), target, data, key)


def _density(guide: Any, target: LogDensity, data: Data) -> FlatDensity:
    key = random.key(0)
    if guide.prototype_trace is None:
        return flat_density(guide, key, data.args, data.kwargs, layout=target.layout)
    # Setting a guide up again would change where its next fit starts.
    check_same_layout(guide, target.layout)
    return check_has_flat_density(guide)(guide, key)


def state_of_engine(engine: Any, state: Any) -> EngineState:
    """The state of an engine's run, or of its result.

    Raises
    ------
    ArgumentError
        It is neither.
    """
    if isinstance(state, RunResult):
        state = state.state
    if not isinstance(state, EngineState):
        raise ArgumentError(
            f"Expected the state of {type(engine).__name__} as the second argument, "
            f"engine.run(...).state or the result itself, found {type(state).__name__}."
        )
    return state


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
    held: Mapping[str, Any] | None = None,
    allow_local_latents: bool = True,
    all_rows: bool = True,
    owner: str = "LogDensity",
) -> tuple[LogDensity, Data]:
    """A target for a model without an engine, with parameters of the model as in ``held``.

    Arguments that hold only some rows of a plate are refused where it has to be ``all_rows``.
    """
    check_arguments(args, kwargs)
    args, kwargs = args or (), dict(kwargs or {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        target = LogDensity(
            model,
            random.key(0),
            args,
            kwargs,
            allow_local_latents=allow_local_latents,
            engine=owner,
        )
    fitted = {name: held[name] for name in target.held if held and name in held}
    for warning in caught:
        # Parameters that SVI has fitted beside the guide are meant to be where they are.
        told = issubclass(warning.category, HeldParameterWarning) and len(fitted) > 0
        if not told:
            warnings.warn(warning.message, warning.category, stacklevel=2)
    if fitted:
        target = target.with_held({**target.held, **fitted})
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


def draws(fitted: FittedGuide, sizes: list[int]) -> Iterator[tuple[Array, Array]]:
    """Chunks of draws (num, D) of a fitted guide, each with its log density q (num,)."""
    chunk = _compiled_draws(fitted.density)
    dtype = fitted.target.dtype
    for key, size in zip(random.split(fitted.rng_key, len(sizes)), sizes, strict=True):
        yield chunk(fitted.parameters, key, size, dtype)


# One compiled program serves all diagnostics of an engine; a few are kept.
@lru_cache(maxsize=4)
def _compiled_draws(density: FlatDensity) -> Callable[..., tuple[Array, Array]]:
    def chunk(parameters: Parameters, key: Array, num: int, dtype: Any) -> tuple[Array, Array]:
        theta = density.sample(parameters, key, num).astype(dtype)
        return theta, density.log_prob(parameters, theta)

    return jax.jit(chunk, static_argnums=(2, 3))
