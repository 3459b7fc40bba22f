"""Checks of the options of engines and guides, made before any work is done."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ppl_ext.errors import ArgumentError


def is_count(value: Any, least: float = 1) -> bool:
    """Whether a value is a whole number of at least ``least``; truth values are not."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return whole and int(value) >= least


def check_count(name: str, value: Any, least: int = 1, *, optional: bool = False) -> None:
    """See that an option is a whole number of at least ``least``; or None, if that is allowed.

    Raises
    ------
    ArgumentError
        It is not.
    """
    if value is None and optional:
        return
    if not is_count(value, least):
        raise ArgumentError(f"Expected {name} to be an int >= {least}, found {described(value)}.")


def as_seed(value: Any) -> int:
    """A seed as every generator takes it: any whole number, modulo 2^63.

    Raises
    ------
    ArgumentError
        It is no whole number.
    """
    if not is_count(value, -math.inf):
        raise ArgumentError(f"Expected seed to be an int, found {described(value)}.")
    return int(value) % 2**63


def described(value: Any) -> str:
    """A value in a message: itself where that is short, else its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else type(value).__name__


def refuse(owner: type, options: Mapping[str, Any], *names: str) -> None:
    """See that options for a base class are none that a class has no use for.

    Raises
    ------
    TypeError
        One is, as for any other keyword that is not expected.
    """
    for name in names:
        if name in options:
            raise TypeError(
                f"{owner.__name__}.__init__() got an unexpected keyword argument {name!r}"
            )


def is_number(value: Any) -> bool:
    """Whether a value is one real number, which an array without axes may hold too."""
    if isinstance(value, bool):
        return False
    return isinstance(value, numbers.Real) or getattr(value, "shape", None) == ()


def check_number(
    name: str,
    value: Any,
    above: float = 0.0,
    *,
    most: float = math.inf,
    optional: bool = False,
) -> None:
    """See that an option is one finite number greater than ``above`` and at most ``most``.

    With ``optional`` it may be None.

    Raises
    ------
    ArgumentError
        It is not.
    """
    if value is None and optional:
        return
    if not is_number(value) or not above < float(value) <= most or math.isinf(float(value)):
        bound = "" if math.isinf(most) else f" and <= {most:g}"
        raise ArgumentError(
            f"Expected {name} to be a finite number > {above:g}{bound}, found {described(value)}."
        )


def check_learning_rate(value: Any, may_hold: bool = False) -> None:
    """See that a learning rate, where it is known as a number, moves something and downhill.

    Parameters
    ----------
    value
    may_hold : bool
        Zero holds some of the sites where they are, while others move.

    Raises
    ------
    ArgumentError
        It is zero, negative or not finite.
    """
    if may_hold and is_number(value) and float(value) == 0.0:
        return
    if is_number(value) and not 0.0 < float(value) < math.inf:
        raise ArgumentError(
            f"Expected a finite learning rate > 0, found {float(value):g}: nothing would move, or "
            "uphill. Give the optimizer another, such as 0.01."
        )


def check_choice(name: str, value: Any, allowed: Sequence[Any], other: str = "") -> None:
    """See that an option is one of those allowed; ``other`` says what else might have been given.

    Raises
    ------
    ArgumentError
        It is not.
    """
    if not any(value is each or (isinstance(value, str) and value == each) for each in allowed):
        choices = ", ".join(repr(each) for each in allowed)
        raise ArgumentError(
            f"Expected {name} to be one of {choices}{f' or {other}' if other else ''}, found "
            f"{described(value)}."
        )


def check_names(name: str, value: Any, *, empty: bool = True) -> None:
    """See that an option is None or a sequence of names, not one name.

    Raises
    ------
    ArgumentError
        It is not, or it has no names and may not be ``empty``.
    """
    if value is None:
        return
    several = isinstance(value, Sequence) and not isinstance(value, str)
    if not several or not all(isinstance(each, str) for each in value) or not (value or empty):
        raise ArgumentError(
            f"Expected {name} to be a sequence of names of sites, such as ['w', 'b'], found "
            f"{described(value)}."
        )


def options_of(value: Any) -> dict[str, Any]:
    """The options that an object was given and holds under their names, but for the defaults."""
    found: dict[str, Any] = {}
    seen: set[str] = set()
    # The options of a class come before those of the classes above it, as a default may differ.
    for kind in type(value).__mro__[:-1]:
        if "__init__" not in vars(kind):
            continue
        parameters = inspect.signature(vars(kind)["__init__"]).parameters
        for name, parameter in parameters.items():
            if name in seen or not hasattr(value, name):
                continue
            seen.add(name)
            held = getattr(value, name)
            # Texts are compared, because ``!=`` of arrays is an array.
            if held is not parameter.default and repr(held) != repr(parameter.default):
                found[name] = held
        # Options go on to the next class by ``**options`` alone.
        if all(each.kind is not each.VAR_KEYWORD for each in parameters.values()):
            break
    return found


def decisions(plan: Any) -> dict[str, str]:
    """The fields of a plan, a dataclass, that are shown and compared, each described by itself."""
    shown = [field.name for field in dataclasses.fields(plan) if field.repr and field.compare]
    values = {name: getattr(plan, name) for name in shown}
    return {
        name: each if isinstance(each, str) else describe(each) for name, each in values.items()
    }


#: Arrays with more numbers are described by a digest.
_SHOWN = 8


def describe(value: Any) -> str:
    """An option in words that are the same in every process, for saved states.

    Dataclasses, such as kernels and estimators, are described by those fields that are shown and
    compared, functions by their names, those of ``functools.partial`` with what is bound to them,
    objects that do not describe themselves by their classes.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [field.name for field in dataclasses.fields(value) if field.repr and field.compare]
        pairs = [f"{name}={describe(getattr(value, name))}" for name in shown]
        return f"{type(value).__name__}({', '.join(pairs)})"
    if isinstance(value, functools.partial):
        bound = [describe(each) for each in (value.func, *value.args)]
        bound += sorted(f"{name}={describe(each)}" for name, each in value.keywords.items())
        return f"partial({', '.join(bound)})"
    if isinstance(value, tuple | list):
        return f"({', '.join(describe(item) for item in value)})"
    if isinstance(value, set | frozenset):
        # The order of a set differs by process, as the hashes of texts do.
        return f"({', '.join(sorted(describe(item) for item in value))})"
    if isinstance(value, Mapping):
        pairs = sorted(f"{describe(key)}: {describe(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if hasattr(value, "__array__"):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if array.size <= _SHOWN:
            return str(array.tolist())
        digest = hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
        return f"<{array.dtype} array of shape {array.shape}, digest {digest}>"
    kind: Any = type(value)
    # Such a text has the address of the object, which differs by process.
    if kind.__repr__ is object.__repr__:
        return str(kind.__name__)
    if callable(value):
        return str(getattr(value, "__qualname__", kind.__name__))
    return repr(value)
