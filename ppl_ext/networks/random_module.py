"""``random_module`` without a framework: what it takes, and the walk over the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ppl_ext.errors import ArgumentError
from ppl_ext.networks.parameters import Parameter, prior_by_pattern
from ppl_ext.networks.priors import Host, Prior
from ppl_ext.options import described

_drawn: ContextVar[set[str] | None] = ContextVar("_drawn", default=None)


@contextmanager
def watched() -> Iterator[set[str]]:
    """Names of the networks with random weights of programs that are run meanwhile."""
    names: set[str] = set()
    token = _drawn.set(names)
    try:
        yield names
    finally:
        _drawn.reset(token)


def note(name: str) -> None:
    """Say that a program that is run has a network of this name with random weights."""
    if (names := _drawn.get()) is not None:
        names.add(name)


def check_name(name: Any) -> None:
    """See that the module's name is one.

    Raises
    ------
    ArgumentError
        It is not.
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError(
            f"Expected name to be a text that names the module's sites, such as 'net', found "
            f"{described(name)}."
        )


def draw_parameters(
    name: str,
    parameters: Mapping[str, Parameter],
    prior: Any,
    host: Host,
    is_distribution: Callable[[Any], bool],
) -> dict[str, Any]:
    """Values of all parameters that have a prior, drawn at sites in their order.

    Parameters
    ----------
    name : str
        Of the random module.
    parameters : mapping of str to Parameter
    prior
        As ``random_module`` takes it.
    host : Host
    is_distribution : callable
        Whether something is a distribution of the host.

    Raises
    ------
    ArgumentError
        See ``random_module``.
    """
    check_name(name)
    note(name)
    if not parameters:
        raise ArgumentError("Expected a module with parameters, found one without.")
    given = prior_by_pattern(prior, parameters) if isinstance(prior, Mapping) else {}
    values = {}
    for path, parameter in parameters.items():
        chosen = given.get(path) if isinstance(prior, Mapping) else prior
        if callable(chosen) and not is_distribution(chosen) and not isinstance(chosen, type):
            chosen = chosen(path, parameter.shape)
        site = f"{name}.{path}"
        # None for all is no prior, and refused below; None among others leaves the parameter as it
        # is.
        if chosen is None and prior is not None:
            continue
        if isinstance(chosen, Prior):
            value = chosen.value(site, parameter, host)
        elif is_distribution(chosen):
            value = host.sample(site, chosen, parameter.shape)
        else:
            raise ArgumentError(
                f"Expected the prior of parameter '{path}' to be a distribution, one of priors, or "
                f"None for none, found {described(chosen)}."
            )
        if tuple(value.shape) != parameter.shape:
            raise ArgumentError(
                f"Expected a value of shape {parameter.shape} at site '{site}', found "
                f"{tuple(value.shape)}. Call random_module outside of every plate, before the "
                "rows, and let nothing run the model with several draws at once by further "
                "dimensions, as vectorize_particles and Predictive(parallel=True) do."
            )
        values[path] = value
    return values


def expandable(distribution: Any, shape: tuple[int, ...], site: str) -> tuple[int, ...]:
    """The batch shape that a distribution needs for values of a shape.

    Raises
    ------
    ArgumentError
        There is none.
    """
    event = tuple(distribution.event_shape)
    batch = shape[: len(shape) - len(event)]
    own = tuple(distribution.batch_shape)
    fits = len(event) <= len(shape) and shape[len(batch) :] == event and len(own) <= len(batch)
    pairs = zip(reversed(own), reversed(batch), strict=False)
    if not fits or any(size not in (1, wanted) for size, wanted in pairs):
        raise ArgumentError(
            f"Expected a prior that can be expanded to the shape {shape} of site '{site}', found "
            f"batch shape {own} and event shape {event}. Give one without dimensions, or one for "
            "each parameter by a function or a dictionary."
        )
    return batch
