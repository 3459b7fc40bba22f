"""Closed form for mixtures of full-covariance Normals.

See :mod:`ppl_ext.score_matching.regression.mixture`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ppl_ext.score_matching.regression import mixture
from ppl_ext.score_matching.regression.mixture import MixtureRegression
from pyro_ext.score.overflow import Overflow
from pyro_ext.score.regression.base import FormTensors

T = TypeVar("T")


class MixtureForm(mixture.MixtureForm):
    arrays = FormTensors

    @staticmethod
    def noise(
        generator: torch.Generator, shape: tuple[int, ...], like: Tensor
    ) -> Float[Tensor, "*shape"]:
        return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)

    @staticmethod
    def arange(number: int, like: Tensor) -> Int[Tensor, " number"]:
        return torch.arange(number, device=like.device)

    @staticmethod
    def logsumexp(values: Float[Tensor, "... n"]) -> Float[Tensor, " ..."]:
        return values.logsumexp(-1)

    @staticmethod
    def damped_solution(
        matrix: Float[Tensor, "n n"], damping: Float[Tensor, ""], right: Float[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        matrix.diagonal().add_(damping)
        return torch.cholesky_solve(right[:, None], torch.linalg.cholesky(matrix))[:, 0]

    @staticmethod
    def either(condition: bool, one: Callable[[], T], other: Callable[[], T]) -> T:
        return one() if condition else other()

    @staticmethod
    def truth(condition: Bool[Tensor, ""]) -> bool:
        return bool(condition)

    @staticmethod
    def verdict(wild: Bool[Tensor, ""], spoilt: Bool[Tensor, ""]) -> Overflow:
        return Overflow(bool(wild), bool(spoilt))


__all__ = ["MixtureForm", "MixtureRegression"]
