"""The linear system of Stein variational Newton on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.stein import newton_system
from ppl_ext.stein.newton_system import Solution
from pyro_ext.curvature import cholesky_solve, conjugate_gradients, woodbury


class LinearSystem(newton_system.LinearSystem):
    xp: ClassVar[Any] = torch
    cholesky_solve, woodbury = staticmethod(cholesky_solve), staticmethod(woodbury)
    conjugate_gradients = staticmethod(conjugate_gradients)

    @staticmethod
    def identity(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
        return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)

    @staticmethod
    def mean_of_diagonal(matrix: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
        return matrix.diagonal().mean()

    @staticmethod
    def factored(gram: Float[Tensor, "P P"]) -> tuple[Float[Tensor, "P P"], Float[Tensor, "P P"]]:
        factor, failed = torch.linalg.cholesky_ex(gram)
        if bool(failed):
            factor = torch.full_like(gram, torch.nan)
        one = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        return factor, torch.linalg.solve_triangular(factor, one, upper=False)

    @staticmethod
    def eliminated(
        features: Float[Tensor, "P P Q"],
        inverse: Float[Tensor, "P P"],
        plain: Float[Tensor, "P Q"],
        inner: Float[Tensor, "P Q Q"],
    ) -> Float[Tensor, "P Q"]:
        number, dim = plain.shape
        # (m, j) by (p, q): products of matrices, which start sooner than sums over named axes do.
        mixing = features[:, :, None, :] * inverse[:, None, :, None]
        mixing = mixing.reshape(number * number, number, dim)
        flat = mixing.flatten(1)
        spread = (mixing.swapdims(0, 1) @ inner).swapdims(0, 1)
        # The system of Woodbury's identity, with one row for each pair (m, j) of particles.
        capacity = spread.flatten(1) @ flat.T
        # Woodbury's identity: I + W A^-1 W' is all that is solved.
        capacity = capacity + LinearSystem.identity(capacity)
        seen = flat @ plain.reshape(-1, 1)
        return (flat.T @ cholesky_solve(capacity, seen)).reshape(number, -1)

    @staticmethod
    def squared(
        features: Float[Tensor, "P P Q"], inner: Float[Tensor, "P Q"]
    ) -> Float[Tensor, "P Q"]:
        return (features.mT @ (features @ inner[..., None]))[..., 0]

    @staticmethod
    def expanded(values: Tensor, number: int) -> Tensor:
        return values.expand(number, *values.shape[1:])

    @staticmethod
    def block_factors(
        roots: Float[Tensor, "P P"], features: Float[Tensor, "P P Q"], count: int
    ) -> list[Tensor]:
        return [
            torch.block_diag(torch.diag(root.repeat_interleave(count)), own)
            for root, own in zip(roots, features, strict=True)
        ]

    @staticmethod
    def for_each(function: Callable[..., Any], *values: Any) -> Float[Tensor, "P D"]:
        return torch.stack([function(*each) for each in zip(*values, strict=True)])

    @staticmethod
    def direct(moves: Float[Tensor, "P D"]) -> Solution:
        return Solution(moves, True, 0.0, 0)

    @staticmethod
    def checked(found: Solution) -> Solution:
        if found.solved and bool(torch.isfinite(found.moves).all()):
            return found
        return found._replace(moves=torch.zeros_like(found.moves), solved=False)
