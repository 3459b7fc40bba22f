"""Closed form for mixtures of full-covariance Normals.

See :mod:`ppl_ext.score_matching.regression.mixture`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import cho_factor, cho_solve
from jax.scipy.special import logsumexp
from jaxtyping import Bool, Float, Int

from numpyro_ext.draws import standard_normal
from numpyro_ext.score.overflow import Overflow
from numpyro_ext.score.regression.base import FormJaxArrays
from ppl_ext.score_matching.regression import mixture
from ppl_ext.score_matching.regression.mixture import MixtureRegression

T = TypeVar("T")


class MixtureForm(mixture.MixtureForm):
    arrays = FormJaxArrays
    verdict = staticmethod(Overflow)

    @staticmethod
    def truth(condition: Bool[Array, ""]) -> Bool[Array, ""]:
        return condition

    @staticmethod
    def noise(generator: Array, shape: tuple[int, ...], like: Array) -> Float[Array, "*shape"]:
        return standard_normal(generator, shape, like.dtype)

    @staticmethod
    def arange(number: int, like: Array) -> Int[Array, " number"]:
        return jnp.arange(number)

    @staticmethod
    def logsumexp(values: Float[Array, "... n"]) -> Float[Array, " ..."]:
        return logsumexp(values, -1)

    @staticmethod
    def damped_solution(
        matrix: Float[Array, "n n"], damping: Float[Array, ""], right: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        identity = jnp.eye(len(matrix), dtype=matrix.dtype)
        return cho_solve(cho_factor(matrix + damping * identity), right)

    @staticmethod
    def either(condition: Bool[Array, ""], one: Callable[[], T], other: Callable[[], T]) -> T:
        return lax.cond(condition, one, other)


__all__ = ["MixtureForm", "MixtureRegression"]
