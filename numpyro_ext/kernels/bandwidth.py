"""Bandwidth h of particles, by the rules that :mod:`ppl_ext.kernels.rules` describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from jax import Array
from jaxtyping import Float

from numpyro_ext.kernels.arrays import ARRAYS
from ppl_ext.kernels import bandwidth as rules

Bandwidth: TypeAlias = str | float | Callable[[Array], Array | float]


def bandwidth(rule: Bandwidth, particles: Float[Array, "P D"]) -> Float[Array, " ..."]:
    """Bandwidth h that ``rule`` gives for ``particles`` of shape (P, D), a squared distance.

    It is a scalar, or has shape (D,) for ``"pyro"`` and for callables that return a vector.
    """
    return rules.bandwidth(ARRAYS, rule, particles)
