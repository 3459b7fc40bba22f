"""The Gauss-Newton matrix of all rows at one position, in its structure, differentiable.

The structures are those of :mod:`ppl_ext.curvature`. Here they are those of
the whole likelihood, however many chunks the rows come in: the nearest Kronecker product is found
by a sweep for each half step, and the leading terms of ``"low_rank"`` are updated chunk by chunk
(exact for one chunk, else those of a merged decomposition; the diagonal is exact always). And they
follow the change of the Fisher information with the position, which the gradient of the log
determinant needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_ext.curvature import (
    Curvature,
    GaussNewton,
    RowStructure,
    symmetric_eigen,
)
from pyro_ext.curvature.coordinates import Coordinates
from pyro_ext.curvature.fisher import needs_draws, same_draws
from pyro_ext.curvature.gauss_newton import rows_of_one
from pyro_ext.curvature.kronecker import Sums, kronecker_factors
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.layout import Indices

#: Dimension up to which ``"full"`` is a matrix even where there are fewer rows than dimensions.
MATRIX_UP_TO = 2000


class LikelihoodCurvature:
    """The Gauss-Newton matrix of a program's likelihood over all rows.

    Parameters
    ----------
    target : LogDensity
    coordinates : Coordinates
        D' in number.
    options : GaussNewton
    structure : RowStructure
        What is known of the rows.
    """

    def __init__(
        self,
        target: LogDensity,
        coordinates: Coordinates,
        options: GaussNewton,
        structure: RowStructure,
    ) -> None:
        self.target, self.coordinates, self.options = target, coordinates, options
        self.structure = structure

    def drawn_sites(self, position: Tensor, data: Data) -> list[str]:
        """Observed sites whose Fisher information is estimated by drawing observations."""
        found = self.target.outputs(position, data, self.target.first_rows())
        return [name for name, output in found.items() if needs_draws(output)]

    def at(self, position: Tensor, data: Data) -> Curvature:
        """The matrix at a position (D,), of one position.

        Distributions without a registered Fisher information are drawn from by torch's global
        generator.
        """
        rows = _Rows(self, position, data)
        structure = self.options.structure
        nothing = position.new_zeros(len(self.coordinates))
        if structure == "full":
            if len(nothing) <= MATRIX_UP_TO or rows.count >= len(nothing):
                matrix = rows.sum(lambda r, _: {"": r.T @ r})[""]
                return Curvature(nothing[None], matrix[None])
            return Curvature(nothing[None], rows=rows.all()[None])
        if structure == "diag":
            return Curvature(rows.sum(lambda r, _: {"": r.square().sum(dim=0)})[""][None])
        if structure == "low_rank":
            return _low_rank(rows, min(self.options.rank, rows.count, len(nothing)), nothing)
        return kronecker_factors(
            lambda function, held: rows.sum(lambda r, held: function(r[None], held), held),
            self.coordinates.slices,
            self.target.layout.shapes,
            position[None],
        )

    def rows_of_batch(self, position: Tensor, data: Data, indices: Indices) -> Tensor:
        """Rows F^(1/2) J of one batch at a position (D,), shape (R, D'), differentiable in it."""
        names = self.target.outputs(position.detach(), data, indices)
        latents = tuple(self.coordinates.slices)
        return rows_of_one(self.target, position, data, indices, names, self.structure, latents)


def _low_rank(rows: _Rows, rank: int, nothing: Tensor) -> Curvature:
    """The leading ``rank`` terms of R' R, and the diagonal of the others."""

    def merge(carry: Sums, r: Tensor, _: Sums) -> Sums:
        squares = r.square().sum(dim=0)
        if not carry:
            return {"kept": _leading(r, rank), "total": squares}
        merged = _leading(torch.cat([carry["kept"], r]), rank)
        return {"kept": merged, "total": carry["total"] + squares}

    found = rows.fold(merge, {})
    kept, total = found["kept"], found["total"]
    rest = total - kept.square().sum(dim=0)
    # A difference within rounding of zero is zero, not a precision.
    rounding = 10.0 * rows.count * torch.finfo(nothing.dtype).eps * total
    return Curvature(
        torch.where(rest > rounding, rest, torch.zeros_like(rest))[None], rows=kept[None]
    )


def _leading(rows: Tensor, rank: int) -> Tensor:
    """Rows (rank, D) with the leading terms of R' R, and their derivative up to rotations."""
    gram = rows @ rows.T
    held = gram.detach()
    if not torch.isfinite(held).all():
        return rows[:rank]
    values, vectors = symmetric_eigen(held)
    kept, dropped = vectors[:, -rank:], vectors[:, :-rank]
    # First-order change of the leading eigenspace, into the other one.
    gaps = values[-rank:] - values[:-rank, None]
    rounding = len(values) * torch.finfo(rows.dtype).eps * values[-1]
    apart = gaps > rounding
    slopes = torch.where(apart, 1.0 / torch.where(apart, gaps, 1.0), 0.0)
    kept = kept + dropped @ (slopes * (dropped.T @ (gram - held) @ kept))
    return kept.T @ rows


class _Rows:
    """The rows R (R, D') of the Jacobian of all whitened outputs at one position, by chunks."""

    def __init__(self, curvature: LikelihoodCurvature, position: Tensor, data: Data) -> None:
        self.curvature = curvature
        self.position, self.data = position, data
        self.chunks = curvature.target.sweep()
        self.only: Tensor | None = None
        if len(self.chunks) == 1:
            self.only = self._of_chunk(position, *self.chunks[0])
            self.count = len(self.only)
        else:
            counts: dict[tuple[int, ...], int] = {}
            self.count = 0
            for _, indices in self.chunks:
                size = tuple(len(numbers) for numbers in indices.values())
                if size not in counts:
                    with torch.no_grad():
                        counts[size] = len(self._of_chunk(position, 1.0, indices))
                self.count += counts[size]

    def _of_chunk(self, position: Tensor, weight: float, indices: Indices) -> Tensor:
        found = self.curvature.rows_of_batch(position, self.data, indices)
        return math.sqrt(weight) * found

    def fold(
        self,
        function: Callable[[Sums, Tensor, Sums], Sums],
        initial: Sums,
        held: Sums | None = None,
    ) -> Sums:
        """``function(carry, rows, held)`` over the chunks, from ``initial``.

        Tensors that the function uses and that have a derivative must be in ``held``.
        """
        held = held or {}
        if self.only is not None:
            return function(initial, self.only, held)
        # A structure that takes several sweeps is that of one matrix.
        with same_draws(0):
            return self._folded(function, initial, held)

    def _folded(
        self, function: Callable[[Sums, Tensor, Sums], Sums], carry: Sums, held: Sums
    ) -> Sums:
        for weight, indices in self.chunks:

            def chunk(
                position: Tensor,
                carry: Sums,
                held: Sums,
                weight: float = weight,
                indices: Indices = indices,
            ) -> Sums:
                return function(carry, self._of_chunk(position, weight, indices), held)

            if torch.is_grad_enabled() and self.position.requires_grad:
                carry = _recomputed(chunk, self.position, carry, held)
            else:
                carry = chunk(self.position, carry, held)
        return carry

    def sum(self, function: Callable[[Tensor, Sums], Sums], held: Sums | None = None) -> Sums:
        """The sum of ``function(rows, held)`` over the chunks."""

        def add(carry: Sums, rows: Tensor, held: Sums) -> Sums:
            part = function(rows, held)
            return {name: carry[name] + part[name] if carry else part[name] for name in part}

        return self.fold(add, {}, held)

    def all(self) -> Tensor:
        """All rows, (R, D')."""
        if self.only is not None:
            return self.only
        return torch.cat([self._of_chunk(self.position, *chunk) for chunk in self.chunks])


def _recomputed(
    function: Callable[[Tensor, Sums, Sums], Sums], position: Tensor, carry: Sums, held: Sums
) -> Sums:
    """``function(position, carry, held)``, of which nothing is kept for its derivative.

    Chunks are there for the memory, and derivatives would keep all of them. As
    ``torch.utils.checkpoint``, which does not work around ``torch.func``.
    """
    keys: list[str] = []

    def call(inputs: Sequence[Tensor]) -> Sums:
        first, second = inputs[1 : 1 + len(carry)], inputs[1 + len(carry) :]
        return function(
            inputs[0],
            dict(zip(carry, first, strict=True)),
            dict(zip(held, second, strict=True)),
        )

    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
            ctx.save_for_backward(*inputs)
            found = call(inputs)
            keys[:] = list(found)
            return tuple(found.values())

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
            inputs = [each.detach().requires_grad_() for each in ctx.saved_tensors]
            with torch.enable_grad():
                found = call(inputs)
            pairs = zip(found.values(), gradients, strict=True)
            moving = [pair for pair in pairs if pair[0].requires_grad]
            if not moving:
                return tuple(torch.zeros_like(each) for each in inputs)
            return torch.autograd.grad(
                [output for output, _ in moving],
                inputs,
                [gradient for _, gradient in moving],
                materialize_grads=True,
            )

    inputs = (position, *carry.values(), *held.values())
    outputs = Recomputed.apply(*inputs)
    return dict(zip(keys, outputs, strict=True))
