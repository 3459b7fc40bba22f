"""What the engines share that fit parameters by steps of an optimizer (``DescentEngine``).

Their plans have ``learning_rate``, the default optimizer's at the start of a run, and
``clip_norm``, a limit on the length of the gradient or None. The saved state of their algorithm has
``total_steps``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ppl_ext.engines.descent import DescentShell
from pyro_ext.optim import EngineOptimizer, Undo, check_optimizer

Parameters: TypeAlias = Mapping[str, Tensor]


class DescentEngine(DescentShell):
    # Of the engine that this is a part of.
    num_steps_taken: int
    _horizon: int | None

    @staticmethod
    def _host_optimizer(optim: Any) -> Any:
        if optim is not None:
            check_optimizer(optim)
        return optim

    @property
    def _total(self) -> int | None:
        if self._horizon is None or self.num_steps_taken >= self._horizon:
            return self.total_steps
        return self._horizon

    def _progress(self) -> float:
        """Fraction t/T of the run that is done."""
        total = self._total
        return min(self.num_steps_taken / total, 1.0) if total else 0.0

    def _set_default_rate(self, plan: Any, optimizer: EngineOptimizer) -> None:
        rate = plan.learning_rate * 0.5 * (1.0 + math.cos(math.pi * self._progress()))
        for default in optimizer.defaults:
            for group in default.param_groups:
                group["lr"] = rate

    def _descend(
        self,
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
        undo = Undo(optimizer.parameters.values(), optimizer) if can_break else nullcontext()
        with undo:
            self._set_default_rate(plan, optimizer)
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
