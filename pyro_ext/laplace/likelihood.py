"""The Gauss-Newton matrix of all rows by torch; see :mod:`ppl_ext.laplace.likelihood`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.laplace.likelihood import LikelihoodShell
from pyro_ext.curvature import Curvature
from pyro_ext.curvature.fisher import drawn_values, needs_draws
from pyro_ext.curvature.gauss_newton import rows_of_one
from pyro_ext.curvature.kronecker import Sums, kronecker_factors
from pyro_ext.density import Data
from pyro_ext.density.batches import batches_of
from pyro_ext.density.handlers import global_generator
from pyro_ext.density.layout import Indices
from pyro_ext.laplace.gaussian import Algebra


class LikelihoodCurvature(LikelihoodShell):
    def drawn_sites(self, position: Float[Tensor, " D"], data: Data) -> list[str]:
        """Observed sites whose Fisher information is estimated by drawing observations.

        Raises
        ------
        ArgumentError
            A site's distribution is not drawn from.
        """
        found = self.target.outputs(position, data, self.target.first_rows())
        drawn = {name: output for name, output in found.items() if needs_draws(output)}
        with global_generator(0):
            for output in drawn.values():
                drawn_values(output)
        return list(drawn)

    def at(self, position: Float[Tensor, " D"], data: Data) -> Curvature:
        """The matrix at a position (D,), of one position.

        Distributions without a registered Fisher information are drawn from by torch's global
        generator.
        """
        rows = _Rows(self, position, data)
        if self.options.structure == "kfac":
            return kronecker_factors(
                lambda function, held: rows.sum(lambda r, held: function(r[None], held), held),
                self.coordinates.slices,
                self.target.layout.shapes,
                position[None],
            )
        if self.options.structure == "low_rank":
            return self._low_rank(rows)
        nothing = position.new_zeros(len(self.coordinates))
        return self._summed(rows, nothing, Curvature)

    def _low_rank(self, rows: _Rows) -> Curvature:
        rank = min(self.options.rank, rows.count, len(self.coordinates))

        def merge(carry: Sums, r: Tensor, _: Sums) -> Sums:
            squares = r.square().sum(dim=0)
            if not carry:
                return {"kept": Algebra.leading(r, rank), "total": squares}
            merged = Algebra.leading(torch.cat([carry["kept"], r]), rank)
            return {"kept": merged, "total": carry["total"] + squares}

        found = rows.fold(merge, {})
        return self._leading_terms(rows, found["kept"], found["total"], Curvature, torch)

    def rows_of_batch(
        self, position: Float[Tensor, " D"], data: Data, indices: Indices
    ) -> Float[Tensor, "R d"]:
        """Rows F^(1/2) J of one batch at a position (D,), shape (R, D'), differentiable in it."""
        names = self.target.outputs(position.detach(), data, indices)
        latents = tuple(self.coordinates.slices)
        return rows_of_one(self.target, position, data, indices, names, self.structure, latents)


class _Rows:
    """The rows R (R, D') of the Jacobian of all whitened outputs at one position, by chunks."""

    def __init__(self, curvature: LikelihoodCurvature, position: Tensor, data: Data) -> None:
        self.curvature = curvature
        self.position, self.data = position, data
        self.single: Tensor | None = None
        passes, self.chunks = curvature.target.passes, []
        if passes is not None:
            weight, batch, rows = next(batches_of(passes, curvature.target.bound, data))
            self.count = round(len(self._of_chunk(position, 1.0, batch, rows)) / weight)
            return
        self.chunks = [(weight, data, rows) for weight, rows in curvature.target.sweep()]
        if len(self.chunks) == 1:
            self.single = self._of_chunk(position, *self.chunks[0])
            self.count = len(self.single)
        else:
            counts: dict[tuple[int, ...], int] = {}
            self.count = 0
            for _, _, indices in self.chunks:
                size = tuple(len(numbers) for numbers in indices.values())
                if size not in counts:
                    with torch.no_grad():
                        counts[size] = len(self._of_chunk(position, 1.0, data, indices))
                self.count += counts[size]

    def _pass(self) -> Iterable[tuple[float, Data, Indices]]:
        """Weights, arguments and row indices of each chunk, or of each batch of a loader."""
        target = self.curvature.target
        if target.passes is None:
            return self.chunks
        return batches_of(target.passes, target.bound, self.data)

    def _of_chunk(self, position: Tensor, weight: float, data: Data, indices: Indices) -> Tensor:
        found = self.curvature.rows_of_batch(position, data, indices)
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
        if self.single is not None:
            return function(initial, self.single, held)
        # A structure that takes several sweeps is that of one matrix.
        with global_generator(0):
            return self._folded(function, initial, held)

    def _folded(
        self, function: Callable[[Sums, Tensor, Sums], Sums], carry: Sums, held: Sums
    ) -> Sums:
        for weight, data, indices in self._pass():

            def chunk(
                position: Tensor,
                carry: Sums,
                held: Sums,
                weight: float = weight,
                data: Data = data,
                indices: Indices = indices,
            ) -> Sums:
                return function(carry, self._of_chunk(position, weight, data, indices), held)

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

    def total(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The sum of ``function(rows)`` over the chunks, a tensor."""
        return self.sum(lambda rows, _: {"": function(rows)})[""]

    def all(self) -> Tensor:
        """All rows, (R, D')."""
        if self.single is not None:
            return self.single
        return torch.cat([self._of_chunk(self.position, *chunk) for chunk in self._pass()])


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
