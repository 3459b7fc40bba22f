"""Host optimizers as engines use them, and what saved states say of them."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import jax
from numpyro import optim as numpyro_optim

from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_learning_rate, describe, described, is_number


def as_optimizer(optim: Any, may_hold: bool = False) -> Any:
    """A NumPyro optimizer from a NumPyro or an optax one.

    Raises
    ------
    ArgumentError
        For anything else, for optimizers that evaluate the objective themselves, and for learning
        rates that are known to be zero, negative or not finite.
    """
    if isinstance(optim, numpyro_optim.Minimize):
        raise ArgumentError(
            "Expected optim to follow a direction, which is all that engines give it, found "
            "numpyro.optim.Minimize, which evaluates its objective several times a step. Use "
            "another NumPyro optimizer, such as Adam, or optax's."
        )
    if isinstance(optim, numpyro_optim._NumPyroOptim):
        _check_rate(optim, may_hold)
        return optim
    methods = [getattr(optim, name, None) for name in ("init", "update")]
    if all(map(callable, methods)) and not isinstance(optim, type):
        optim = numpyro_optim.optax_to_numpyro(optim)
        _check_rate(optim, may_hold)
        return optim
    raise ArgumentError(
        "Expected optim to be a NumPyro optimizer, such as numpyro.optim.Adam(1e-2), or an optax "
        f"gradient transformation, such as optax.adam(1e-2), found {described(optim)}."
    )


def kind_and_settings(optim: Any) -> tuple[str, str]:
    """What kind of optimizer this is, and with which numbers, as far as it can be read.

    Optimizers are functions made by other functions: their kind is the names of these, and their
    settings are the numbers that they close over.

    Parameters
    ----------
    optim : NumPyro optimizer or None
    """
    if optim is None:
        return "none", "none"
    names: list[str] = []
    settings: list[str] = []
    _read(optim.update_fn, names, settings, 12)
    if type(optim) is numpyro_optim._NumPyroOptim:  # what optax's are wrapped in
        return " ".join(names), ", ".join(settings)
    return type(optim).__name__, ", ".join(settings)


def _check_rate(optim: Any, may_hold: bool) -> None:
    """See that an optimizer's constant step moves something and downhill.

    Functions of both libraries close over a constant step as ``step_size``; optax's is negative.
    Schedules are not looked at, nor the signs of several steps, which may be factors of one.
    """
    steps: dict[int, float] = {}
    _find_steps(optim.update_fn, steps, 12)
    # Optax adds its updates, so that a step downhill is a negative factor.
    sign = -1.0 if type(optim) is numpyro_optim._NumPyroOptim else 1.0
    for step in steps.values():
        check_learning_rate(sign * step if len(steps) == 1 else abs(step), may_hold)


def _find_steps(value: Any, steps: dict[int, float], depth: int) -> None:
    """Add the constant steps that a function closes over, each under its function's number."""
    if isinstance(value, tuple | list):
        for part in value:
            _find_steps(part, steps, depth - 1)
    if hasattr(value, "init") and hasattr(value, "update"):
        value = value.update
    if not inspect.isfunction(value) or not depth:
        return
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable without a value
            # Inside jax.jit a learning rate may be an argument, which has no value yet.
            if isinstance(cell.cell_contents, jax.core.Tracer):
                continue
            if name == "step_size" and is_number(cell.cell_contents):
                steps[id(value)] = float(cell.cell_contents)
            else:
                _find_steps(cell.cell_contents, steps, depth - 1)


def _read(value: Any, names: list[str], settings: list[str], depth: int) -> None:
    """Add the names of a function and of those that it closes over, and the settings likewise."""
    parts: list[Any] = []
    if isinstance(value, bool):
        settings.append(str(value))
    elif isinstance(value, int | float):
        # Some schedules turn their numbers into others of the same value when they are called.
        settings.append(f"{float(value):g}")
    elif hasattr(value, "__array__"):
        settings.append(describe(value))
    elif isinstance(value, functools.partial):
        parts = [value.func, value.args, value.keywords]
    elif hasattr(value, "init") and hasattr(value, "update"):
        parts = [value.update]
    elif isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, tuple | list):
        parts = list(value)
    elif inspect.isfunction(value):
        maker = value.__qualname__.partition(".<locals>")[0]
        if maker not in _WRAPPERS:
            names.append(maker)
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # a variable without a value
                parts.append(cell.cell_contents)
    if depth:
        for part in parts:
            _read(part, names, settings, depth - 1)


#: What stands around every optimizer of optax.
_WRAPPERS = ("optax_to_numpyro", "with_extra_args_support")
