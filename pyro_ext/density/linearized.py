"""Observed distributions made linear at one position; see :mod:`ppl_ext.linearized`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import biject_to, constraints

from ppl_ext.linearized import Linearized, Scale, identity
from pyro_ext.density.layout import Data, Indices
from pyro_ext.density.log_density import LogDensity


def scale_of(constraint: Any) -> Scale | None:
    """The scale without bounds of parameters under a constraint; None for counts.

    Raises
    ------
    NotImplementedError
        There is none.
    """
    base = getattr(constraint, "base_constraint", constraint)
    if base.is_discrete:
        return None
    if base is constraints.real:
        return Scale(identity, identity)
    if base is constraints.simplex:
        return Scale(_log, lambda value: value.softmax(-1))
    transform = biject_to(constraint)
    return Scale(transform.inv, transform)


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


def linearized(
    target: LogDensity, around: Float[Tensor, " D"], data: Data, indices: Indices
) -> Callable[[Float[Tensor, " D"]], dict[str, Any]]:
    """Observed distributions, by site, as a function of the move (D,) from a position (D,).

    Each call takes one product of the Jacobian with the move, by forward derivatives.
    """

    def outputs(z: Tensor) -> dict[str, Linearized]:
        found = target.outputs(z, data, indices)
        return {name: Linearized(output, scale_of) for name, output in found.items()}

    def natural(z: Tensor) -> dict[str, dict[str, Tensor]]:
        return {name: each.natural() for name, each in outputs(z).items()}

    # Outside of the derivative, for what has none: counts, masks and the kinds of distributions.
    sites = outputs(around)

    def moved(move: Tensor) -> dict[str, Any]:
        value, slope = torch.func.jvp(natural, (around,), (move,))
        return {
            name: site.distribution(
                {key: value[name][key] + slope[name][key] for key in site.scales}
            )
            for name, site in sites.items()
        }

    return moved
