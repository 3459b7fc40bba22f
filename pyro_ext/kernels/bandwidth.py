"""Bandwidth h of particles, by the rules that :mod:`ppl_ext.kernels.rules` describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor

from ppl_ext.kernels import bandwidth as rules
from pyro_ext.kernels.arrays import ARRAYS

Bandwidth: TypeAlias = str | float | Callable[[Tensor], Tensor | float]


def bandwidth(rule: Bandwidth, particles: Float[Tensor, "P D"]) -> Float[Tensor, " ..."]:
    """Bandwidth h that ``rule`` gives for ``particles`` of shape (P, D), a squared distance.

    It is a scalar, or has shape (D,) for ``"pyro"`` and for callables that return a vector.
    """
    return rules.bandwidth(ARRAYS, rule, particles)
