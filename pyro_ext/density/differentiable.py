"""Scores that can be differentiated in the positions, by products with the Hessian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ppl_ext.target.scores import Score, tempered
from pyro_ext.density.handlers import SiteHandler, evaluating
from pyro_ext.density.layout import Data
from pyro_ext.density.log_density import LogDensity
from pyro_ext.graphs import as_arguments, lift


class _WithProduct(torch.autograd.Function):
    """Scores (P, D) at positions z whose gradient is a product with the Hessian there."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, score: Tensor, product: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        ctx.save_for_backward(z)
        ctx.product = product
        return score.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, vectors: Tensor) -> tuple[Tensor, None, None]:
        (z,) = ctx.saved_tensors
        return ctx.product(z, vectors), None, None


class DifferentiableTarget:
    """A target whose ``score`` and ``full_score`` can be differentiated in the positions, once.

    Estimators take it in place of the target. Scores are the target's own; their derivative is a
    Hessian-vector product on the same rows, evaluated as the target evaluates its scores.

    Parameters
    ----------
    target : LogDensity
    """

    def __init__(self, target: LogDensity) -> None:
        self._target = target
        self._product = lift(
            self._single_product, target.evaluation, target.particle_chunk, around=evaluating
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # which copies ask for before there is a target
            raise AttributeError(name)
        return getattr(self._target, name)

    def score(self, z: Float[Tensor, "P D"], data: Data, indices: Any = None) -> Score:
        """As :meth:`~pyro_ext.density.LogDensity.score`."""

        def product(z: Tensor, vectors: Tensor) -> Tensor:
            return self._times_hessian(z, vectors, data, indices or {})

        found = self._target.score(z, data, indices)
        return found._replace(score=_WithProduct.apply(z, found.score, product))

    def full_score(self, z: Float[Tensor, "P D"], data: Data) -> Score:
        """As :meth:`~pyro_ext.density.LogDensity.full_score`."""

        def product(z: Tensor, vectors: Tensor) -> Tensor:
            total = torch.zeros_like(vectors)
            for weight, indices in self._target.sweep():
                part = self._times_hessian(z, vectors, data, indices)
                total = total.add(part, alpha=weight)
            return total

        found = self._target.full_score(z, data)
        return found._replace(score=_WithProduct.apply(z, found.score, product))

    def _times_hessian(self, z: Tensor, vectors: Tensor, data: Data, indices: Any) -> Tensor:
        arguments = as_arguments(data.args, data.kwargs, indices)
        return self._product(torch.cat([z, vectors], -1), arguments)

    def _single_product(self, packed: Tensor, arguments: Any) -> Tensor:
        z, vector = packed.chunk(2)
        target = self._target

        def log_density(z: Tensor) -> Tensor:
            handler = SiteHandler(target.layout.split(z), arguments[2])
            target.run(handler, arguments)
            return tempered(
                handler.log_prior, handler.log_likelihood, target.likelihood_temperature
            )

        # Reverse over reverse: forward over reverse fails in float32 with scalar latents.
        pullback = torch.func.vjp(torch.func.grad(log_density), z)[1]
        return pullback(vector)[0]
