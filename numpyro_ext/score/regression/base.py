"""Functions of JAX arrays for the closed forms of the proximal step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from numpyro_ext.guides.arrays import JaxFunctions
from numpyro_ext.score.overflow import judged
from ppl_ext.score_matching.regression.base import FormArrays
from ppl_ext.score_matching.regression.pairs import Count

T = TypeVar("T")


class FormJaxArrays(FormArrays, JaxFunctions):
    judged = staticmethod(judged)

    @staticmethod
    def filled(shape: tuple[int, ...], like: Array, value: float = 0.0) -> Float[Array, "*shape"]:
        return jnp.full(shape, value, like.dtype)

    @staticmethod
    def first_count(like: Array) -> Count:
        # Arrays of their own each, so that the state can be donated.
        return Count(*(jnp.zeros((), kind) for kind in (jnp.int32, jnp.int32, like.dtype)))

    @staticmethod
    def where_ready(condition: Bool[Array, ""], function: Callable[[T], T], value: T) -> T:
        return lax.cond(condition, function, lambda same: same, value)
