"""Arguments of a lifted function: tensors, which a graph takes as inputs, and everything else."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_LEAVES = (Tensor, torch.nn.Parameter, int, float, bool, str, type(None))
_PLAIN = (Tensor, complex, bytes, torch.dtype, FunctionType, BuiltinFunctionType, type)


def _static_key(leaf: Any) -> Hashable:
    if isinstance(leaf, (bool, int, float, complex, str, bytes, type(None), torch.dtype)):
        return type(leaf), leaf
    # By identity: an object's own equality may look at arrays that it holds, or miss a change.
    return type(leaf), id(leaf)


class Inputs:
    """Arguments split into tensors, which a graph takes as inputs, and everything else."""

    def __init__(self, arguments: Any) -> None:
        leaves, self._spec = _flattened(arguments)
        # Identity keys are safe only while the objects live, so whoever keeps the key keeps them.
        self.leaves = leaves
        #: Whether these are (args, kwargs, row indices) without containers inside.
        self.is_flat = type(self._spec) is tuple
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.key: tuple[Hashable, ...] = (
            str(self._spec) if isinstance(self._spec, pytree.TreeSpec) else self._spec,
            *(
                (leaf.shape, leaf.dtype, leaf.device)
                if isinstance(leaf, Tensor)
                else _static_key(leaf)
                for leaf in leaves
            ),
        )

    @property
    def may_change(self) -> bool:
        """Whether an argument is an object that may change without being seen from outside."""
        return not all(type(leaf) in _LEAVES or isinstance(leaf, _PLAIN) for leaf in self.leaves)

    def is_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the arguments of a call are these very ones, each of the form that it had.

        Values of tensors may differ. False where one would have to look into containers.
        """
        if not self.is_flat or (len(args), tuple(kwargs)) != self._spec[:2]:
            return False
        given = (*args, *kwargs.values())
        for value, leaf, form in zip(given, self.leaves, self.key[1:], strict=False):
            if value is not leaf:
                return False
            # A tensor may be resized in place.
            if isinstance(leaf, Tensor) and (leaf.shape, leaf.dtype, leaf.device) != form:
                return False
        return True

    def rebuild(self, tensors: list[Tensor] | tuple[Tensor, ...]) -> Any:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        if isinstance(self._spec, pytree.TreeSpec):
            return pytree.tree_unflatten(leaves, self._spec)
        number, *names = self._spec
        rest = iter(leaves[number:])
        return (tuple(leaves[:number]), *(dict(zip(keys, rest, strict=False)) for keys in names))


def _flattened(arguments: Any) -> tuple[list[Any], Any]:
    """The leaves of a pytree, and what it takes to put them together again.

    Those of :func:`as_arguments` are found without torch's help, which takes as long as ten
    operations on small tensors.
    """
    # Of exactly these types: a subclass may be a pytree of another kind.
    if len(arguments) == 3 and type(arguments[1]) is type(arguments[2]) is dict:
        args, kwargs, indices = arguments
        leaves = [*args, *kwargs.values(), *indices.values()]
        if all(type(leaf) in _LEAVES for leaf in leaves):
            return leaves, (len(args), tuple(kwargs), tuple(indices))
    return pytree.tree_flatten(arguments)


#: For ``BatchedFunction``: particles share the arguments but have row indices of their own.
OWN_ROWS = (None, None, 0)


def part_of(arguments: Any, in_dims: Any, start: int, count: int | None = None) -> Any:
    """The arguments of one particle, or of ``count`` from ``start`` on."""
    if in_dims is None:
        return arguments
    where = start if count is None else slice(start, start + count)
    return tuple(
        part if dim is None else pytree.tree_map(lambda tensor: tensor[where], part)
        for part, dim in zip(arguments, in_dims, strict=True)
    )


def as_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], indices: Mapping[str, Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Tensor]]:
    """The pytree that single functions take: positional, keyword arguments and row indices."""
    return (tuple(args), dict(kwargs), dict(indices))
