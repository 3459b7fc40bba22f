"""Curvature matrices on tensors, see :mod:`ppl_ext.curvature.curvature`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ppl_ext.curvature import curvature, outer_products
from ppl_ext.curvature.curvature import KroneckerBlock
from pyro_ext.curvature.solvers import symmetric_eigen


class Curvature(curvature.Curvature):
    """H_p = diag(d_p) + M_p + R_p' R_p + blocks A_p (x) B_p, positive semidefinite.

    Parameters
    ----------
    diagonal : Tensor
        d, shape (P, D), or (1, D) where it is the same for all particles.
    matrix : Tensor or None
        M, shape (P, D, D).
    rows : Tensor or None
        R, shape (P, R, D).
    blocks : tuple of KroneckerBlock
        Blocks on the diagonal.
    """

    xp: ClassVar[Any] = torch
    eigen = staticmethod(symmetric_eigen)
    detached = staticmethod(Tensor.detach)

    def as_tensors(self) -> dict[str, Any]:
        """The parts in a dictionary of tensors and numbers, for saving."""
        blocks = [(block.left, block.right, block.start) for block in self.blocks]
        return {
            "diagonal": self.diagonal,
            "matrix": self.matrix,
            "rows": self.rows,
            "blocks": blocks,
        }

    @classmethod
    def from_tensors(cls, saved: dict[str, Any]) -> Curvature:
        """The curvature of :meth:`as_tensors`."""
        blocks = tuple(KroneckerBlock(*block) for block in saved["blocks"])
        return cls(saved["diagonal"], saved["matrix"], saved["rows"], blocks)

    @staticmethod
    def _added(total: Tensor, where: Any, values: Tensor) -> Tensor:
        total[where] += values
        return total


def _repeated(steps: int, step: Callable[[Any], Any], tree: Any) -> Any:
    for _ in range(steps):
        tree = step(tree)
    return tree


OUTER_PRODUCTS = outer_products.OuterProducts(
    torch,
    lambda direction, like: torch.from_numpy(direction).to(like),
    Curvature,
    _repeated,
    lambda holds, first, second, tree: (first if bool(holds) else second)(tree),
)


__all__ = ["OUTER_PRODUCTS", "Curvature", "KroneckerBlock"]
