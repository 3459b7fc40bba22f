"""The model's arguments by name: what an error says of the array that it may come from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ppl_ext.errors import ArgumentError
from ppl_ext.options import described

#: How many arrays a message names at most.
_NAMED = 5


def check_callable(model: Any, host: str) -> None:
    """See that a model can be called.

    Raises
    ------
    ArgumentError
        It cannot.
    """
    if not callable(model):
        raise ArgumentError(
            f"Expected model to be a callable with {host} primitives, found {described(model)}."
        )


def named_arrays(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The arrays among a model's arguments, also those inside of containers, with their names."""
    try:
        named = inspect.signature(getattr(model, "forward", model)).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        named = {**{f"args[{number}]": each for number, each in enumerate(args)}, **kwargs}
    for name, value in named.items():
        yield from _arrays_in(name, value)


def _arrays_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _arrays_in(f"{name}[{key!r}]", each)
    elif isinstance(value, tuple | list):
        for number, each in enumerate(value):
            yield from _arrays_in(f"{name}[{number}]", each)
    elif hasattr(value, "__array__") and hasattr(value, "shape"):
        yield name, value


def nonfinite_arguments(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """A sentence on the arguments that hold NaN or infinity, for the end of a message.

    Empty where none does, or where that cannot be told.
    """
    found = []
    for name, value in named_arrays(model, args, kwargs):
        try:
            array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
            if array.dtype.kind not in "fc":
                continue
            broken = ~np.isfinite(array)
        except Exception:  # noqa: BLE001 a message must not fail: objects, half types, tracers
            continue
        if broken.any():
            first = [int(each) for each in np.argwhere(broken)[0]]
            found.append(f"'{name}' ({int(broken.sum())} of {broken.size}, the first at {first})")
    if not found:
        return ""
    more = f" and {len(found) - _NAMED} others" if len(found) > _NAMED else ""
    return f" NaN or infinite entries are in argument {', '.join(found[:_NAMED])}{more}."
