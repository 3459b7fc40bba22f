"""How a model uses the indices of its subsampled plates, read from its jaxpr.

Two questions are answered before any step. Does the model look rows up by the indices at all?
If not, a batch was passed as arguments and the plate's rows cannot be chosen by the engine. And
can every array that is looked up be reached by every index? JAX clamps an index that is out of
range without a word, so an array shorter than its plate would give a wrong answer silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend.core import Jaxpr, Literal

# Primitives through which an index stays an index (possibly shifted by a constant).
_INDEX_PRESERVING = frozenset(
    {
        "add",
        "broadcast_in_dim",
        "concatenate",
        "convert_element_type",
        "copy",
        "expand_dims",
        "reshape",
        "select_n",
        "slice",
        "squeeze",
        "sub",
        "transpose",
    }
)
_CALLS = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call"}
)

Use = dict[str, bool]  # plate -> True while the value is still an index of that plate


def _inner_jaxpr(params: Mapping[str, Any]) -> Jaxpr | None:
    for key in ("jaxpr", "call_jaxpr"):
        if key in params:
            inner = params[key]
            return inner.jaxpr if hasattr(inner, "jaxpr") else inner
    return None


def _walk(
    jaxpr: Jaxpr, inputs: list[Use], sizes: Mapping[str, int], short: dict[str, int]
) -> list[Use]:
    uses: dict[Any, Use] = dict(zip(jaxpr.invars, inputs, strict=True))

    def use_of(atom: Any) -> Use:
        return {} if isinstance(atom, Literal) else uses.get(atom, {})

    for equation in jaxpr.eqns:
        operands = [use_of(atom) for atom in equation.invars]
        if not any(operands):
            continue
        primitive = equation.primitive.name
        inner = _inner_jaxpr(equation.params) if primitive in _CALLS else None
        if inner is not None and len(inner.invars) == len(operands):
            for variable, use in zip(
                equation.outvars, _walk(inner, operands, sizes, short), strict=True
            ):
                uses[variable] = use
            continue
        if primitive == "gather":
            numbers = equation.params["dimension_numbers"]
            rows = getattr(equation.invars[0].aval, "shape", ())
            for name, direct in operands[1].items():
                indexed = numbers.start_index_map
                # Of an index along several axes at once it is not known which part comes from the
                # plate.
                if direct and len(indexed) == 1 and rows[indexed[0]] < sizes[name]:
                    short[name] = rows[indexed[0]]
        merged: Use = {}
        for use in operands:
            for name, direct in use.items():
                merged[name] = merged.get(name, False) or direct
        if primitive not in _INDEX_PRESERVING:
            # What is computed from an index depends on it, but need not be a row number any more.
            merged = dict.fromkeys(merged, False)
        for variable in equation.outvars:
            uses[variable] = dict(merged)
    return [use_of(atom) for atom in jaxpr.outvars]


def outputs_from(program: Jaxpr, number: int) -> list[bool]:
    """Which outputs of a program operations lead to from one of so many of its first inputs."""
    reached = set(program.invars[:number])

    def is_reached(atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in reached

    for operation in program.eqns:
        if any(map(is_reached, operation.invars)):
            reached.update(operation.outvars)
    return list(map(is_reached, program.outvars))


def index_use(
    function: Callable[..., Any],
    indices: Mapping[str, Any],
    sizes: Mapping[str, int],
    *args: Any,
) -> tuple[set[str], dict[str, int]]:
    """Which plates' indices reach the value of ``function(indices, *args)``.

    Parameters
    ----------
    function : callable
        Maps the indices and further arguments to arrays.
    indices : mapping of str to array
        Rows of each subsampled plate.
    sizes : mapping of str to int
        Full size of each plate.

    Returns
    -------
    used : set of str
        Plates whose indices the value depends on.
    short : dict of str to int
        Plates whose indices look up an array with fewer rows than the plate, and how many it
        has.
    """
    closed = jax.make_jaxpr(function)(indices, *args)
    names = sorted(indices)  # the order in which a dictionary is flattened
    inputs: list[Use] = [{name: True} for name in names]
    inputs += [{} for _ in range(len(closed.jaxpr.invars) - len(names))]
    short: dict[str, int] = {}
    outputs = _walk(closed.jaxpr, inputs, sizes, short)
    used: set[str] = set()
    for use in outputs:
        used.update(use)
    return used, short
