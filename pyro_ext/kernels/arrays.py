"""What the formulas of :mod:`ppl_ext.kernels` need of tensors beyond what all arrays share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.kernels.arrays import KernelArrays


@dataclass(frozen=True)
class _Divided:
    """What :func:`divided_coordinates` is given."""

    added: Callable[[Tensor], Tensor]
    number: int
    filled: int


_divided: ContextVar[_Divided | None] = ContextVar("divided coordinates", default=None)


@contextmanager
def divided_coordinates(
    added: Callable[[Tensor], Tensor], number: int, filled: int
) -> Iterator[None]:
    """Context in which processes have some coordinates of all particles each.

    Parameters
    ----------
    added : callable
        Adds a tensor of each process up, so that all have the sum.
    number : int
        Number of all coordinates.
    filled : int
        Number of last columns of this process that are no coordinates.
    """
    token = _divided.set(_Divided(added, number, filled))
    try:
        yield
    finally:
        _divided.reset(token)


class KernelTensors(KernelArrays):
    package, functions = "pyro_ext", torch

    def over_coordinates(self, total: Float[Tensor, "P P"]) -> Float[Tensor, "P P"]:
        divided = _divided.get()
        return total if divided is None else divided.added(total)

    def num_coordinates(self, particles: Float[Tensor, "P D"]) -> int:
        divided = _divided.get()
        return int(particles.shape[1]) if divided is None else divided.number

    def num_filled(self, particles: Float[Tensor, "P D"]) -> int:
        divided = _divided.get()
        return 0 if divided is None else divided.filled

    def as_array(self, value: Any, like: Tensor) -> Float[Tensor, " ..."]:
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)

    def identity(self, size: int, like: Tensor) -> Float[Tensor, "size size"]:
        return torch.eye(size, dtype=like.dtype, device=like.device)

    # Torch's own function, without a call of this class around it.
    inverse_root = staticmethod(torch.rsqrt)  # type: ignore[assignment]

    def product(
        self, left: Float[Tensor, "m k"], right: Float[Tensor, "k n"]
    ) -> Float[Tensor, "m n"]:
        return left @ right

    def cholesky(self, matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
        # A matrix that is not positive definite is told by NaN, as JAX does. torch's usual function
        # raises an error instead.
        factor, failed = torch.linalg.cholesky_ex(matrix)
        return torch.where(failed == 0, factor, torch.nan)

    def solve_lower(
        self, factor: Float[Tensor, "n n"], right: Float[Tensor, "n m"]
    ) -> Float[Tensor, "n m"]:
        return torch.linalg.solve_triangular(factor, right, upper=False)

    def value_of(
        self, metric: Callable[[Tensor], Tensor], particles: Float[Tensor, "P D"]
    ) -> Float[Tensor, " ..."]:
        # It may differentiate, and change the copy that it is given.
        with torch.enable_grad():
            return torch.as_tensor(metric(particles.detach().clone())).detach()

    def squared_distances(
        self, centred: Float[Tensor, "P D"], products: Float[Tensor, "P P"] | None = None
    ) -> Float[Tensor, "P P"]:
        if products is None:
            products = centred @ centred.T
            if (divided := _divided.get()) is not None:
                products = divided.added(products)
        norms = products.diagonal()
        totals = norms.unsqueeze(1) + norms
        squared = torch.add(totals, products, alpha=-2.0)
        # What is left of equal particles after the cancellation is rounding, no distance.
        rounding = 8.0 * torch.finfo(centred.dtype).eps
        return squared.masked_fill(squared <= rounding * totals, 0.0)

    def of_pairs(self, matrix: Float[Tensor, "P P"]) -> Float[Tensor, " pairs"]:
        return matrix.reshape(-1).index_select(0, _pair_indices(len(matrix), matrix.device))

    def order_statistics(
        self, values: Float[Tensor, " n"], ranks: tuple[int | None, int | None]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        lower_rank, upper_rank = ranks
        if upper_rank is None:
            return values.new_zeros(()), values.new_zeros(())
        if lower_rank is None:
            return values.new_zeros(()), values.min()
        if values.device.type != "cpu":
            lower, upper = (values.kthvalue(rank + 1).values for rank in (lower_rank, upper_rank))
            return lower, upper
        # NumPy's selection is vectorized and several times as fast as torch's on a CPU.
        ordered = np.partition(values.detach().numpy(), lower_rank)
        lower = values.new_tensor(ordered[lower_rank])
        if upper_rank == lower_rank:
            return lower, lower
        # Everything behind the selected value is at least as large.
        return lower, values.new_tensor(ordered[upper_rank:].min())

    def by_coordinate(
        self, function: Callable[[Tensor], Tensor], points: Float[Tensor, "P D"]
    ) -> Float[Tensor, " D"]:
        return torch.stack([function(coordinate) for coordinate in points.unbind(dim=1)])


@functools.lru_cache(maxsize=16)
def _pair_indices(num: int, device: torch.device) -> Tensor:
    """Positions of the pairs i<j in a flattened (P, P) matrix."""
    rows, columns = torch.triu_indices(num, num, offset=1, device=device)
    return rows * num + columns


ARRAYS = KernelTensors()
