"""Fisher information of Pyro's distributions; see :mod:`ppl_ext.curvature.fisher_information`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.curvature.fisher_information import FisherRoots, Parameters
from ppl_ext.target.outputs import BASE
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
register_output_fisher, root_for = _FISHER.register, _FISHER.root_for
needs_draws, moving = _FISHER.needs_draws, _FISHER.moving
no_changes, whitened_parts = _FISHER.no_changes, _FISHER.whitened_outputs


def fisher_root(
    output: Output, tangents: Parameters, values: Float[Tensor, "S ..."] | None = None
) -> Float[Tensor, "... R"]:
    """Root of an observed site's Fisher information, shape batch + (R,).

    Parameters
    ----------
    output : Output
        The site at the point where F is taken.
    tangents : dict of str to tensor
        Changes of ``output.parameters``.
    values : tensor, optional
        For distributions without a registered root: values by :func:`drawn_values`.
    """

    def estimated() -> Tensor:
        drawn = drawn_values(output) if values is None else values
        return _monte_carlo_root(output, tangents, drawn)

    return _FISHER.known_root(output, tangents, estimated)


#: Values drawn for one element.
DRAWS = 16


def drawn_values(output: Output) -> Float[Tensor, "S ..."]:
    """Values of a site drawn from its distribution (S, ...), by torch's global generator.

    Raises
    ------
    ArgumentError
        The distribution cannot be built from its parameters, or not be drawn from.
    """
    return drawn_at_each(output, {name: p[None] for name, p in output.parameters.items()})[0]


def drawn_at_each(output: Output, parameters: Parameters) -> Float[Tensor, "P S ..."]:
    """Values of a site at P positions, from its parameters there, each with a leading axis of P.

    They are drawn apart from what is made of them, since neither ``torch.func.vmap`` nor a traced
    graph draws as the samplers of all distributions do.

    Parameters
    ----------
    output : Output
        The site anywhere.
    parameters : dict of str to tensor

    Raises
    ------
    ArgumentError
        The distribution cannot be built from its parameters, or not be drawn from.
    """
    try:
        _FISHER.rebuilt(output, {})
        values: Tensor = output.built(parameters).sample(torch.Size([DRAWS])).detach()
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _FISHER.cannot_draw(output, error) from error
    return values.movedim(1, 0)


def _monte_carlo_root(output: Output, tangents: Parameters, values: Tensor) -> Tensor:
    """1/S sum of score score^T at S values drawn from the distribution; positive semidefinite."""
    count = len(values)
    # Each value has parameters of its own, so that one gradient holds the scores of all.
    every = {name: p.expand(count, *p.shape) for name, p in output.parameters.items()}
    moved = {name: every[name] for name in moving(output)}

    def log_density(parameters: dict[str, Tensor]) -> Tensor:
        # The elements are independent: the gradient of the sum is that of each.
        return output.built({**every, **parameters}).log_prob(values).sum()

    scores = torch.func.grad(log_density)(moved)
    parts = [
        (scores[name] * tangents[name]).reshape((count, *output.batch, -1)).sum(-1)
        for name in moved
    ]
    return torch.stack(parts).sum(0).movedim(0, -1) / math.sqrt(count)
