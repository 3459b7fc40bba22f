"""Which of a model's arguments hold its observations."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ppl_ext.errors import ArgumentError


class Observations:
    """The model's arguments, in which observations are put.

    Parameters
    ----------
    model : callable
    args, kwargs
        As they were given.
    observed : mapping of str to str, optional
        Argument by site, where the user says it.

    Raises
    ------
    ArgumentError
        The model cannot be called with these arguments.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        observed: Mapping[str, str] | None,
    ) -> None:
        signature = inspect.signature(getattr(model, "forward", model))
        try:
            self._bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"The model cannot be called with these arguments: {error}.") from (
                error
            )
        self._bound.apply_defaults()
        self._more = next(
            (
                name
                for name, each in signature.parameters.items()
                if each.kind is inspect.Parameter.VAR_KEYWORD
            ),
            None,
        )
        self.places = dict(observed or {})
        if unknown := [name for name in self.places.values() if name not in self.named]:
            raise ArgumentError(
                f"observed names {unknown}, which are no arguments. Expected some of "
                f"{list(self.named)}."
            )

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by name, with defaults and with those of ``**kwargs``."""
        named = dict(self._bound.arguments)
        return {**named, **named.pop(self._more)} if self._more else named

    def with_values(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments to call the model with, some of them replaced."""
        arguments = dict(self._bound.arguments)
        for name, value in values.items():
            if name in arguments:
                arguments[name] = value
            elif self._more is not None:
                arguments[self._more] = {**arguments[self._more], name: value}
        bound = inspect.BoundArguments(self._bound.signature, OrderedDict(arguments))
        return bound.args, bound.kwargs

    def with_rows(
        self,
        drawn: Mapping[str, np.ndarray],
        number: int,
        like: Callable[[np.ndarray, Any], Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with the observations of one data set.

        Parameters
        ----------
        drawn : mapping of str to array (N, ...)
            New observations by site.
        number : int
            Of the data set.
        like : callable
            New observations in the form of those that were given.
        """
        return self.with_values(
            {
                argument: like(drawn[site][number], self.named[argument])
                for site, argument in self.places.items()
            }
        )

    def with_placeholders(self, drawn: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with a value of the model's own wherever an observation is None.

        Parameters
        ----------
        drawn : mapping of str to array
            Values of the sites in one run of the model.
        """
        sites = {argument: site for site, argument in self.places.items()}
        missing = [name for name, value in self.named.items() if value is None]
        found = {
            name: drawn[sites.get(name, name)] for name in missing if sites.get(name, name) in drawn
        }
        self._bound.arguments.update({n: v for n, v in found.items() if n in self._bound.arguments})
        return self.with_values(found)

    def find(self, seen: Mapping[str, np.ndarray], as_array: Callable[[Any], Any]) -> None:
        """Find the argument of every observed site.

        Parameters
        ----------
        seen : mapping of str to array
            Values of the observed sites in the model, on all rows.
        as_array : callable
            An argument as a NumPy array, or None.

        Raises
        ------
        ArgumentError
            There is none, or several, or it does not hold what the site observes; or no site
            observes anything.
        """
        if not seen:
            raise ArgumentError(
                "Expected a model with observations to draw, found no observed site with these "
                "arguments. Pass what it observes."
            )
        arrays = {name: as_array(value) for name, value in self.named.items()}
        arrays = {name: value for name, value in arrays.items() if value is not None}
        for site, value in seen.items():
            same = [name for name, each in arrays.items() if _same(each, value)]
            # First what the user says, then an argument of the site's name, then the only one that
            # holds the numbers.
            argument = self.places.get(site, site if site in arrays else None)
            if argument is None and len(same) == 1:
                argument = same[0]
            if argument is None or argument not in same:
                told = "none" if argument is None else f"'{argument}', with other numbers or shape"
                raise ArgumentError(
                    f"Expected an argument that is the observations of '{site}' as they are, of "
                    f"shape {value.shape}, found {told if len(same) < 2 else same}. Give the model "
                    "its observations as they are, and say which they are by observed={"
                    f"'{site}': 'name of the argument'}}."
                )
            self.places[site] = argument


def _same(argument: np.ndarray, seen: np.ndarray) -> bool:
    """Whether an argument is the observations, but for axes of length one and rounding."""
    if np.squeeze(argument).shape != np.squeeze(seen).shape:
        return False
    # What is missing (NaN) in the argument may be anything.
    given, value = np.squeeze(argument).astype(float), np.squeeze(seen).astype(float)
    return bool(np.all(np.isclose(given, value, rtol=1e-5, atol=1e-6) | np.isnan(given)))
