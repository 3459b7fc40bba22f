"""Steps of an optimizer down an objective, for the engines that fit parameters by them.

Their plans have ``learning_rate``, the default optimizer's at the start of a run, and
``clip_norm``, a limit on the length of the gradient or None. The saved state of their algorithm has
``total_steps``. Their options are in :mod:`ppl_ext.engines.descent`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ppl_ext.errors import ArgumentError
from pyro_ext.optim import EngineOptimizer, Undo, check_optimizer

Parameters: TypeAlias = Mapping[str, Tensor]


def checked_optimizer(optim: Any) -> Any:
    """An optimizer that an engine was given, which is one that it can use."""
    if optim is not None:
        check_optimizer(optim)
    return optim


def check_shapes(what: str, kind: str, saved: Parameters, present: Parameters) -> None:
    """See that saved tensors are those of a guide or sampler, by their names and shapes.

    Raises
    ------
    ArgumentError
        They are not.
    """
    found, expected = (
        {name: tuple(value.shape) for name, value in each.items()} for each in (saved, present)
    )
    if found != expected:
        raise ArgumentError(
            f"The saved state belongs to another {what}: expected {kind} {expected}, found {found}."
        )


def run_length(engine: Any) -> int | None:
    """T of the engine's run; outside a run its ``total_steps``."""
    if engine._horizon is None or engine.num_steps_taken >= engine._horizon:
        return engine.total_steps
    return engine._horizon


def progress(engine: Any) -> float:
    """Fraction t/T of the run that is done."""
    total = run_length(engine)
    return min(engine.num_steps_taken / total, 1.0) if total else 0.0


def set_default_rate(engine: Any, plan: Any, optimizer: EngineOptimizer) -> None:
    """Give the default optimizers their present learning rate."""
    # By a cosine to zero at the end of the run.
    rate = plan.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress(engine)))
    for default in optimizer.defaults:
        for group in default.param_groups:
            group["lr"] = rate


def descend(
    engine: Any,
    plan: Any,
    optimizer: EngineOptimizer,
    objective: Callable[[Any], tuple[Tensor, Any]],
    num_steps: int = 1,
    can_break: bool = True,
) -> bool:
    """Take optimizer steps down an objective, a function to a value and a gradient.

    Returns whether all was finite; if not, parameters and optimizer are as before. Without
    ``can_break`` the caller knows that all will be finite, so that nothing has to be copied.
    """
    # Optimizers write into the parameters and into their own state. Both are put back if a later
    # one of the steps fails.
    undo = Undo(optimizer.parameters.values(), optimizer) if can_break else nullcontext()
    with undo:
        set_default_rate(engine, plan, optimizer)
        finite = True
        for _ in range(num_steps):
            value, gradient = objective(optimizer.parameters)
            finite = math.isfinite(float(value))
            if not finite:
                break
            if plan.clip_norm is not None:
                gradient = clipped(gradient, plan.clip_norm)
            optimizer.step(gradient)
        finite = finite and all_finite(optimizer.parameters)
        if not finite and isinstance(undo, Undo):
            undo()
    return finite


def clipped(gradient: Parameters, norm: float) -> dict[str, Tensor]:
    """The gradient, as one vector over all parameters, shortened to ``norm`` if it is longer."""
    lengths = [torch.linalg.vector_norm(entry) for entry in gradient.values()]
    factor = (norm / torch.linalg.vector_norm(torch.stack(lengths))).clamp(max=1.0)
    return {name: entry * factor for name, entry in gradient.items()}


@torch.no_grad()
def all_finite(parameters: Parameters) -> bool:
    """Whether every entry of every parameter is finite."""
    # A finite sum says so at once; one that is not may have overflowed.
    return all(
        math.isfinite(float(value.sum())) or bool(value.isfinite().all())
        for value in parameters.values()
    )
