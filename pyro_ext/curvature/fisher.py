"""Fisher information of Pyro's distributions; see :mod:`ppl_ext.fisher_information`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.fisher_information import FisherRoots, Parameters, Root
from ppl_ext.outputs import BASE
from pyro_ext.density.outputs import Output


class _PyroRoots(FisherRoots):
    host, distributions, functions, base = "Pyro", dist, torch, BASE

    def sigmoid(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def softmax(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=-1)

    def trigamma(self, x: Tensor) -> Tensor:
        return torch.special.polygamma(1, x)

    def solve_lower(self, factor: Tensor, right: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(factor, right, upper=False)

    def gradient(self, function: Callable[[Parameters], Tensor]) -> Callable[[Parameters], Any]:
        return torch.func.grad(function)

    def is_floating(self, value: Tensor) -> bool:
        return value.is_floating_point()


_FISHER = _PyroRoots()
_ROOTS = _FISHER.roots
register_output_fisher, root_for = _FISHER.register, _FISHER.root_for
needs_draws = _FISHER.needs_draws


def fisher_root(
    output: Output, tangents: Parameters, values: Sequence[Float[Tensor, " ..."]] = ()
) -> Float[Tensor, "... R"]:
    """Root of an observed site's Fisher information, shape batch + (R,).

    Parameters
    ----------
    output : Output
        The site at the point where F is taken.
    tangents : dict of str to tensor
        Changes of ``output.parameters``.
    values : sequence of tensors
        For distributions without a registered root: values by :func:`drawn_values`.
    """
    root = root_for(output.distribution)
    if root is not None:
        return root(output.parameters, tangents)
    if output.base is not None:
        return _FISHER.zero_inflated(output, tangents)
    return _monte_carlo_root(output, tangents, values)


def drawn_values(output: Output, draws: int = 16) -> list[Float[Tensor, " ..."]]:
    """Values of a site drawn from its distribution, by torch's global generator.

    They cannot be drawn inside ``torch.func.vmap``.

    Raises
    ------
    ArgumentError
        The distribution cannot be built from its parameters, or not be drawn from.
    """
    try:
        built = _FISHER.rebuilt(output, {})
        return [built.sample().detach() for _ in range(draws)]
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _FISHER.cannot_draw(output, error) from error


def _monte_carlo_root(output: Output, tangents: Parameters, values: Sequence[Tensor]) -> Tensor:
    """1/S sum of score score^T at S values drawn from the distribution; positive semidefinite."""
    moving = {name: value for name, value in output.parameters.items() if value.is_floating_point()}

    def root(value: Tensor) -> Tensor:
        # The elements are independent: the gradient of the sum is that of each.
        scores = torch.func.grad(lambda parameters: output.built(parameters).log_prob(value).sum())(
            moving
        )
        parts = [
            (scores[name] * tangents[name]).reshape((*output.batch, -1)).sum(-1) for name in moving
        ]
        return torch.stack(parts).sum(0)

    return torch.stack([root(value) for value in values], -1) / math.sqrt(len(values))


__all__ = [
    "Parameters",
    "Root",
    "drawn_values",
    "fisher_root",
    "needs_draws",
    "register_output_fisher",
    "root_for",
]
