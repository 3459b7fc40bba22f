"""What targets of both hosts have in common: tempering, and what they refuse."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ppl_ext.errors import ArgumentError

Array = TypeVar("Array")


def tempered(log_prior: Array, log_likelihood: Array, temperature: float) -> Array:
    """Log prior + log likelihood / temperature, or the gradients of these."""
    prior: Any = log_prior
    likelihood: Any = log_likelihood
    joint: Array = prior + (likelihood if temperature == 1.0 else likelihood / temperature)
    return joint


def check_call(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """See that a model can be called with these arguments.

    Raises
    ------
    ArgumentError
        The arguments do not fit its signature.
    """
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"The arguments do not fit the model: {error}. Expected model{signature}, found "
            f"{len(args)} positional arguments and keywords {sorted(kwargs)}."
        ) from error


def nothing_to_temper(temperature: float) -> str:
    """The message for a temperature of a model without a likelihood."""
    return (
        f"likelihood_temperature={temperature} has nothing to divide: the model has no "
        "likelihood, that is neither observed sites nor factors inside a plate. The density of a "
        "Stan program is in one piece; temper it in the program."
    )


def check_all_rows(partial_plates: Mapping[str, tuple[int, int]], advice: str) -> None:
    """See that arguments hold every row of every plate whose rows the engine does not choose.

    Parameters
    ----------
    partial_plates : mapping of str to (int, int)
        Plates that arguments hold a batch of: all rows, and those that are held.
    advice : str
        What to do.

    Raises
    ------
    ArgumentError
        They hold a batch.
    """
    for name, (size, rows) in partial_plates.items():
        raise ArgumentError(
            f"Expected the full data: plate '{name}' has {size} rows, found arguments with "
            f"{rows}. {advice}"
        )
