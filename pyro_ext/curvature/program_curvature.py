"""A program's curvature.

Its structures are described in :mod:`ppl_ext.curvature.program_curvature`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.curvature import program_curvature as shared
from ppl_ext.curvature.curvature import Rows, Sums
from ppl_ext.curvature.outer_products import kronecker_factors
from pyro_ext.curvature.coordinates import Coordinates
from pyro_ext.curvature.curvature import OUTER_PRODUCTS, Curvature, KroneckerBlock
from pyro_ext.curvature.fisher import drawn_values
from pyro_ext.curvature.gauss_newton import Parameters, drawn_at, drawn_from, rows_of_one
from pyro_ext.curvature.prior import (
    prior_curvature_of_one,
    prior_structure,
    without_negative,
)
from pyro_ext.curvature.row_structure import row_structure
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.batches import batches_of
from pyro_ext.density.handlers import global_generator
from pyro_ext.density.layout import Indices
from pyro_ext.graphs import Inputs, as_arguments

#: Weight, arguments and row indices of a chunk of rows.
Chunk: TypeAlias = tuple[float, Data, Indices]
#: All chunks, or what begins a pass over a loader.
Chunks: TypeAlias = list[Chunk] | Callable[[], Iterable[Chunk]]
#: Rows (P, r, D') at positions (P, D) of a chunk with its weight.
OfChunk: TypeAlias = Callable[[Tensor, Data, Indices, float], Tensor]


class _KeptPrior(NamedTuple):
    """A constant curvature of the prior, and the arguments that it was found for.

    Parameters
    ----------
    inputs : Inputs
        The arguments, held so that no other object takes their place in memory.
    versions : list of int
        How often torch had written into each tensor among them.
    diagonal : Tensor
        Shape (1, D').
    """

    inputs: Inputs
    versions: list[int]
    diagonal: Float[Tensor, "1 d"]


class ProgramCurvature(shared.ProgramCurvatureShell):
    kind = Curvature
    factors = staticmethod(partial(kronecker_factors, OUTER_PRODUCTS))

    def __init__(
        self, target: LogDensity, data: Data, options: shared.GaussNewton, *, often: bool = True
    ) -> None:
        sites = shared.sites_with_curvature(options, target.layout.names)
        super().__init__(options, Coordinates(target, sites), target.layout.shapes)
        # Anywhere will do: these positions show the structure, and are not started from.
        drawn = np.random.default_rng(0).uniform(-1.0, 1.0, (2, target.dim))
        positions = torch.as_tensor(drawn, dtype=target.dtype, device=target.device)
        indices = target.first_rows()
        shared.check_no_factors(target.likelihood_factors(positions[0], data, indices), "pyro")
        self.prior = prior_structure(target, positions, data, options.prior_form, self.sites)
        self.rows = row_structure(target, positions[0], data, indices)
        outputs = target.outputs(positions[0], data, indices)
        self._outputs, self.drawn = outputs, tuple(drawn_from(outputs))
        with global_generator(0):
            for name in self.drawn:
                # What cannot be drawn from is told here, before any step.
                drawn_values(outputs[name])

        def rows(position: Tensor, arguments: Any) -> Tensor:
            args, kwargs, indices, drawn = arguments
            of = self._outputs, self.rows, self.sites
            return rows_of_one(target, position, Data(args, kwargs), indices, *of, drawn)

        def parameters(position: Tensor, arguments: Any) -> Parameters:
            args, kwargs, indices = arguments
            return drawn_from(target.outputs(position, Data(args, kwargs), indices))

        def prior(position: Tensor, arguments: Any) -> Tensor:
            data = Data(arguments[0], arguments[1])
            return prior_curvature_of_one(target, self.prior, position, data)

        self._rows = target.lift(rows)
        self._parameters = target.lift(parameters)
        self._prior = target.lift(prior)
        # Rows of a chunk, by its weight: found by computing them.
        self._counts: dict[float, int] = {}
        if often and options.structure == "kfac":
            self.rank_one = self._rank_one(target, positions, data)
        self._kept: _KeptPrior | None = None
        self._retraced = target.retraced

    def _rank_one(self, target: LogDensity, positions: Tensor, data: Data) -> frozenset[str]:
        """Sites whose rows have rank one as matrices."""
        indices = target.first_rows()
        if len(positions) * self._numbers_of_a_particle(indices) > shared.LARGEST_JACOBIANS:
            return frozenset()
        with global_generator(0), torch.no_grad():
            rows = self._rows_of_chunk(positions, data, indices, 1.0)
            found = OUTER_PRODUCTS.sites(rows, self.slices, target.layout.shapes)
        return frozenset(name for name, holds in found.items() if holds)

    def at(
        self, target: LogDensity, z: Float[Tensor, "P D"], data: Data, indices: Indices | None
    ) -> Curvature:
        """Curvature at positions z (P, D) of a batch of rows, or of all rows without one."""
        if self._retraced != target.retraced:
            for function in (self._rows, self._parameters, self._prior):
                function.retrace()
            self._kept, self._retraced = None, target.retraced
        sweep = target.sweep() if indices is None else [(1.0, indices)]
        chunks = [(weight, data, rows) for weight, rows in sweep]
        # A single batch is computed once; several are passed over more than once, and draw the same
        # again.
        seed = int(torch.randint(2**62, ())) if self.drawn and len(chunks) > 1 else 0

        def likelihood(positions: Tensor) -> Curvature:
            return self._summed(self._over(chunks, positions, self._rows_of_chunk, seed))

        part = self._in_turns(likelihood, z, chunks[0][2])
        return self._prior_part(target, z, data).plus(part)

    def of_all_rows(
        self, target: LogDensity, position: Float[Tensor, " D"], data: Data
    ) -> Curvature:
        """The likelihood's curvature of all rows at a position (D,), differentiable in it.

        It follows the change of the Fisher information with the position. All rows may be those of
        a loader. Distributions without a registered Fisher information are drawn from by torch's
        global generator.
        """

        def rows(z: Tensor, data: Data, indices: Indices, weight: float) -> Tensor:
            # Rows enter as r' r, so that a chunk's weight goes into them by its root.
            of = self._outputs, self.rows, self.sites
            return math.sqrt(weight) * rows_of_one(target, z[0], data, indices, *of)[None]

        chunks: Chunks = [(weight, data, rows) for weight, rows in target.sweep()]
        if target.passes is not None:
            chunks = partial(batches_of, target.passes, target.bound, data)
        return self._summed(self._over(chunks, position[None], rows, 0), shared.ROWS_UP_TO)

    def _over(self, chunks: Chunks, z: Tensor, of_chunk: OfChunk, seed: int) -> _Rows:
        # Draws that are the same at every pass are of one matrix.
        alike = partial(global_generator, seed) if self.drawn else nullcontext
        nothing = z.new_zeros(len(z), 1, len(self.coordinates))
        return _Rows(nothing, chunks, z, of_chunk, alike, self._counts)

    def _prior_part(self, target: LogDensity, z: Tensor, data: Data) -> Curvature:
        if self.prior.constant:
            return Curvature(self._constant_prior(target, z[:1], data))
        arguments = as_arguments(data.args, data.kwargs, target.first_rows())
        return Curvature.of_prior(without_negative(self._prior(z, arguments)))

    def _constant_prior(self, target: LogDensity, z: Tensor, data: Data) -> Tensor:
        """Diagonal (1, D') of the prior's curvature, the same at all positions.

        D' is the number of coordinates with a curvature. It is computed again where arguments have
        changed.
        """
        inputs = Inputs((data.args, data.kwargs, {}))
        versions = [0 if each.is_inference() else each._version for each in inputs.tensors]
        kept = self._kept
        if (
            kept is None
            or versions != kept.versions
            or inputs.key != kept.inputs.key  # the same arguments may have other names
            or any(map(operator.is_not, inputs.leaves, kept.inputs.leaves))
        ):
            arguments = as_arguments(data.args, data.kwargs, target.first_rows())
            kept = _KeptPrior(inputs, versions, without_negative(self._prior(z, arguments)))
            self._kept = kept
        return kept.diagonal

    def _rows_of_chunk(self, z: Tensor, data: Data, indices: Indices, weight: float) -> Tensor:
        """Rows (P, R, D') of a batch, which count ``weight`` times."""
        arguments = as_arguments(data.args, data.kwargs, indices)
        drawn = {}
        if self.drawn:
            drawn = drawn_at(self._outputs, self._parameters(z, arguments))
        rows: Tensor = self._rows(z, (*arguments, drawn), (None, None, None, 0))
        return rows if weight == 1.0 else math.sqrt(weight) * rows

    def _in_turns(
        self, function: Callable[[Tensor], Curvature], z: Tensor, indices: Indices
    ) -> Curvature:
        """A function of positions at z; where batches are large, one by one.

        Rows that are kept take as much memory either way.
        """
        numbers = len(z) * self._numbers_of_a_particle(indices)
        if self.options.structure == "full" or numbers <= shared.LARGEST_JACOBIANS:
            return function(z)
        return _stacked([function(one[None]) for one in z])

    def _numbers_of_a_particle(self, indices: Indices) -> int:
        """Entries of the Jacobian of one particle, by a guess of two outputs for each row."""
        rows = math.prod(len(numbers) for numbers in indices.values()) if indices else 1
        return 2 * rows * len(self.coordinates)


class _Rows(Rows):
    """Jacobian rows of the chunks of a sweep, which are computed again at every pass.

    Parameters
    ----------
    nothing : Tensor
        Zeros (P, 1, D').
    chunks : list or callable
        Weights, arguments and row indices of each chunk, or a function that begins a pass over a
        loader's batches.
    z : Tensor
        Positions (P, D).
    of_chunk : callable
        From positions and a chunk to its Jacobian rows (P, r, D').
    alike : callable
        Returns a context that sets torch's generator, so that every pass draws the same numbers.
    counts : dict of float to int
        Number of Jacobian rows of a chunk by its weight. It is filled as they are found.
    """

    def __init__(
        self,
        nothing: Tensor,
        chunks: Chunks,
        z: Tensor,
        of_chunk: OfChunk,
        alike: Callable[[], AbstractContextManager[None]],
        counts: dict[float, int],
    ) -> None:
        self._z, self._of_chunk, self._alike, self._counts = z, of_chunk, alike, counts
        self._pass = chunks if callable(chunks) else partial(iter, chunks)
        single = None
        if not callable(chunks) and len(chunks) == 1:
            weight, data, indices = chunks[0]
            single = of_chunk(z, data, indices, weight)
        super().__init__(nothing, single)

    @property
    def count(self) -> int:
        if self.single is not None:
            return self.single.shape[1]
        weight, data, indices = next(iter(self._pass()))
        if weight not in self._counts:
            with torch.no_grad(), self._alike():
                self._counts[weight] = self._of_chunk(self._z, data, indices, 1.0).shape[1]
        # A weight is the share of all rows that a chunk has.
        return round(self._counts[weight] / weight)

    def fold(self, function: Callable[[Sums, Tensor, Sums], Sums], carry: Sums, held: Sums) -> Sums:
        # Only derivatives would keep what a chunk has computed.
        recomputed = torch.is_grad_enabled() and self._z.requires_grad
        with self._alike():
            for weight, data, indices in self._pass():

                def chunk(
                    z: Tensor,
                    carry: Sums,
                    held: Sums,
                    weight: float = weight,
                    data: Data = data,
                    indices: Indices = indices,
                ) -> Sums:
                    return function(carry, self._of_chunk(z, data, indices, weight), held)

                found = partial(_recomputed, chunk) if recomputed else chunk
                carry = found(self._z, carry, held)
        return carry

    def all(self) -> Tensor:
        if self.single is not None:
            return self.single
        with self._alike():
            parts = [
                self._of_chunk(self._z, data, indices, weight)
                for weight, data, indices in self._pass()
            ]
        return torch.cat(parts, dim=1)


def _stacked(parts: list[Curvature]) -> Curvature:
    """Curvatures of single particles as one."""
    first = parts[0]
    blocks = tuple(
        KroneckerBlock(
            torch.cat([part.blocks[i].left for part in parts]),
            torch.cat([part.blocks[i].right for part in parts]),
            block.start,
        )
        for i, block in enumerate(first.blocks)
    )
    rows = [part.rows for part in parts if part.rows is not None]
    return Curvature(
        torch.cat([part.diagonal for part in parts]),
        rows=torch.cat(rows) if rows else None,
        blocks=blocks,
    )


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
