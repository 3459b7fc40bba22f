"""A density that is evaluated as its operations, the repeated ones at once, where that is known."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_ext.graphs.joined_steps import joined

#: Sites from which on a program may be one of many steps.
MANY_SITES = 32
#: Largest relative and absolute difference between the two ways, in values and gradients.
_ROUNDING = {torch.float64: (1e-7, 1e-8)}

Plan = Callable[[list[Tensor]], Any]


class Shortened:
    """A function of one position and arguments, in its short form while :meth:`using` one.

    Parameters
    ----------
    function : callable
        Gives a pytree of tensors.
    """

    def __init__(self, function: Callable[[Tensor, Any], Any]) -> None:
        self.function = function
        self._plans: dict[Hashable, Plan | None] = {}
        self._used: Plan | None = None

    def __call__(self, z: Tensor, arguments: Any) -> Any:
        if self._used is None:
            return self.function(z, arguments)
        return self._used([z, *_tensors(arguments)])

    def forget(self) -> None:
        """Forget the short forms, for example after changing a tensor the model closes over."""
        self._plans.clear()

    def plan(self, z: Tensor, arguments: Any, key: Hashable) -> Plan | None:
        """The short form for arguments of this kind; None where there is none.

        Parameters
        ----------
        z : tensor (D,)
            Where the operations are recorded.
        arguments
            The same ones.
        key : hashable
            What arguments of this kind have in common.
        """
        if key not in self._plans:
            leaves, spec = pytree.tree_flatten(arguments)

            def run(inputs: Any) -> Any:
                given = iter(inputs[1:])
                filled = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                return self.function(inputs[0], pytree.tree_unflatten(filled, spec))

            inputs = [z, *_tensors(arguments)]
            plan = joined(run, inputs)
            # Elsewhere: where it was recorded, what depends on values would look right.
            inputs[0] = z + 0.125 * torch.cos(torch.arange(len(z), dtype=z.dtype)).to(z)
            self._plans[key] = plan if plan is not None and _same(run, plan, inputs) else None
        return self._plans[key]

    @contextmanager
    def using(self, plan: Plan | None) -> Iterator[None]:
        """Context in which the function is evaluated by its short form."""
        self._used = plan
        try:
            yield
        finally:
            self._used = None


def _tensors(arguments: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]


def _same(one: Plan, other: Plan, inputs: list[Tensor]) -> bool:
    """Whether two functions have the same values and gradients there."""
    found = []
    for function in (one, other):
        z = inputs[0].detach().requires_grad_()
        with torch.enable_grad():
            values = pytree.tree_leaves(function([z, *inputs[1:]]))
            sums = [value.sum() for value in values if value.requires_grad]
            found.append([*values, *torch.autograd.grad(sums, z)])
    rtol, atol = _ROUNDING.get(inputs[0].dtype, (1e-3, 1e-5))
    return all(
        torch.allclose(left, right, rtol=rtol, atol=atol * float(1 + left.abs().max()))
        for left, right in zip(*found, strict=True)
    )
