"""Host optimizers on tensors that an engine owns, outside Pyro's global parameter store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from pyro.optim import PyroLRScheduler, PyroOptim
from torch import Tensor

from pyro_ext.errors import ArgumentError

OptimizerLike: TypeAlias = Any  # PyroOptim, or a callable from tensors to a torch optimizer


class EngineOptimizer:
    """One optimizer over named tensors, updated in place.

    Parameters
    ----------
    optim : PyroOptim or callable
        A Pyro optimizer (also ``ClippedAdam`` and schedulers such as
        ``pyro.optim.ExponentialLR``), or a callable that takes a list of tensors and returns a
        ``torch.optim.Optimizer``, such as ``functools.partial(torch.optim.Adam, lr=0.01)``.
        Pyro's schedulers advance once a step.
    parameters : mapping of str to tensor
        Tensors to update; they become leaves with ``requires_grad``.

    Raises
    ------
    ArgumentError
        ``optim`` is something else, such as a torch optimizer that is already bound to tensors.
    """

    def __init__(self, optim: OptimizerLike, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = dict(parameters)
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
        tensors = list(self.parameters.values())
        self._scheduler: Any = None
        self._clip: dict[str, float] = {}
        if isinstance(optim, PyroOptim):
            options = _fixed_options(optim.pt_optim_args, "optim_args")
            self._optimizer = optim.pt_optim_constructor(tensors, **options)
            if isinstance(optim, PyroLRScheduler):
                self._scheduler = optim.pt_scheduler_constructor(self._optimizer, **optim.kwargs)
            self._clip = dict(_fixed_options(optim.pt_clip_args or {}, "clip_args"))
        elif isinstance(optim, torch.optim.Optimizer) or not callable(optim):
            raise ArgumentError(
                "Expected a Pyro optimizer such as pyro.optim.Adam({'lr': 0.01}) or a callable "
                "from tensors to a torch optimizer such as "
                f"functools.partial(torch.optim.Adam, lr=0.01), found {type(optim).__name__}."
            )
        else:
            built = optim(tensors)
            if not isinstance(built, torch.optim.Optimizer):
                raise ArgumentError(
                    "Expected optim(tensors) to return a torch.optim.Optimizer, found "
                    f"{type(built).__name__}."
                )
            self._optimizer = built

    @property
    def description(self) -> str:
        """Names of the optimizer and of its schedule."""
        parts = [self._optimizer] if self._scheduler is None else [self._optimizer, self._scheduler]
        return ", ".join(type(part).__name__ for part in parts)

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Descend along ``gradients``, one tensor for each parameter."""
        for name, parameter in self.parameters.items():
            parameter.grad = gradients[name].detach().to(parameter.dtype)
        tensors = list(self.parameters.values())
        if "clip_norm" in self._clip:
            torch.nn.utils.clip_grad_norm_(tensors, self._clip["clip_norm"])
        if "clip_value" in self._clip:
            torch.nn.utils.clip_grad_value_(tensors, self._clip["clip_value"])
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        for parameter in tensors:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizer and its schedule, for saving."""
        scheduler = None if self._scheduler is None else self._scheduler.state_dict()
        return {"optimizer": self._optimizer.state_dict(), "scheduler": scheduler}

    def snapshot(self) -> dict[str, Any]:
        """A copy of the state, which later steps leave as it is, for :meth:`load_state_dict`."""
        state = self.state_dict()
        # The dictionary is new, but its tensors are those that the next step writes to.
        state["optimizer"]["state"] = {
            index: {
                name: value.clone() if isinstance(value, Tensor) else value
                for name, value in entries.items()
            }
            for index, entries in state["optimizer"]["state"].items()
        }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state from :meth:`state_dict`."""
        self._optimizer.load_state_dict(dict(state["optimizer"]))
        if self._scheduler is not None:
            self._scheduler.load_state_dict(dict(state["scheduler"]))


def _fixed_options(options: Any, name: str) -> dict[str, Any]:
    """Options of a Pyro optimizer; options that depend on the parameter's name are refused."""
    if callable(options):
        raise ArgumentError(
            f"Expected {name} of the Pyro optimizer to be a dictionary, found a function of the "
            "parameter's name: the engine updates particles or guide parameters as whole tensors, "
            "which have no names in the parameter store."
        )
    return dict(options)
