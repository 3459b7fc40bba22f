"""A network's parameters by name, and which prior each of them has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ppl_ext.errors import ArgumentError

#: How many names a message lists at most.
_NAMED = 10


@dataclass(frozen=True)
class Parameter:
    """One array of a network.

    Parameters
    ----------
    name : str
        Path in the module, with dots: "layer1.weight".
    shape : tuple of int
    inputs, units : tuple of int
        Axes that number the inputs of the layer, over which it sums, and those that number its
        units. Both are empty of what is no weight of a layer: biases, scales of normalisation,
        embeddings, arrays that a module of the user's own keeps.
    centre : float
        Where a prior that shrinks has its centre: 1 for scales of normalisation, else 0.
    value : array
        The module's own.
    """

    name: str
    shape: tuple[int, ...]
    inputs: tuple[int, ...]
    units: tuple[int, ...]
    centre: float
    value: Any

    @property
    def fan_in(self) -> int:
        """How many inputs each unit sums, the pixels of a convolution's window included.

        1 for arrays without inputs.
        """
        if not self.inputs:
            return 1
        return math.prod(size for axis, size in enumerate(self.shape) if axis not in self.units)


def names_of(parameters: Iterable[str]) -> str:
    """The names for a message, the first of many."""
    names = list(parameters)
    more = f" and {len(names) - _NAMED} others" if len(names) > _NAMED else ""
    return f"{names[:_NAMED]}{more}"


def prior_by_pattern(
    given: Mapping[str, Any], parameters: Mapping[str, Parameter]
) -> dict[str, Any]:
    """The prior of each parameter from a dictionary by names and patterns.

    A name itself comes before patterns, of which the first that fits counts. Patterns are those of
    file names: ``*`` stands for any text, dots included.

    Raises
    ------
    ArgumentError
        A pattern fits no parameter, or a parameter fits none.
    """
    idle = [
        pattern
        for pattern in given
        if pattern not in parameters and not any(fnmatchcase(name, pattern) for name in parameters)
    ]
    if idle:
        raise ArgumentError(
            f"Expected names or patterns of the module's parameters {names_of(parameters)}, found "
            f"{idle}, which fit none of them. Names are without that of the random module."
        )
    found, left = {}, []
    for name in parameters:
        fits = [pattern for pattern in given if fnmatchcase(name, pattern)]
        if name in given:
            found[name] = given[name]
        elif fits:
            found[name] = given[fits[0]]
        else:
            left.append(name)
    if left:
        raise ArgumentError(
            f"Expected a prior for every parameter, found none for {left[:_NAMED]}. Add a pattern "
            "that fits them; '*': None leaves the rest without prior, at the module's values."
        )
    return found
