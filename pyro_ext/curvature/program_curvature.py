"""A program's curvature.

Its structures are described in :mod:`ppl_ext.curvature.program_curvature`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.curvature.program_curvature import (
    LARGEST_JACOBIANS,
    GaussNewton,
    check_no_factors,
    sites_with_curvature,
)
from pyro_ext.curvature.coordinates import Coordinates
from pyro_ext.curvature.curvature import Curvature, KroneckerBlock
from pyro_ext.curvature.gauss_newton import Parameters, drawn_at, drawn_from, rows_of_one
from pyro_ext.curvature.kronecker import OfRows, Sums, kronecker_factors, rank_one_sites
from pyro_ext.curvature.prior import (
    prior_curvature_of_one,
    prior_structure,
    without_negative,
)
from pyro_ext.curvature.row_structure import row_structure
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.handlers import global_generator
from pyro_ext.density.layout import Indices
from pyro_ext.graphs import Inputs, as_arguments


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


class ProgramCurvature:
    """The curvature of a program, with all that is found once: what is diagonal, what is apart.

    Parameters
    ----------
    target : LogDensity
    data : Data
        Concrete arguments of the model.
    options : GaussNewton

    Attributes
    ----------
    where : Coordinates
        The D' coordinates of the flat vector that have curvature.
    coordinates : tensor of int
        Their numbers.
    slices : dict of str to slice
        Where each of their latent sites is among them.
    sites : tuple of str
        These sites, in the order of the layout.

    Raises
    ------
    ArgumentError
        A site is not latent, or the model's likelihood has factors, which have no outputs.
    """

    def __init__(self, target: LogDensity, data: Data, options: GaussNewton) -> None:
        self.options = options
        self.where = Coordinates(target, sites_with_curvature(options, target.layout.names))
        self.coordinates, self.slices = self.where.numbers, self.where.slices
        self.sites = tuple(self.slices)
        # Anywhere will do: these positions show the structure, and are not started from.
        drawn = np.random.default_rng(0).uniform(-1.0, 1.0, (2, target.dim))
        positions = torch.as_tensor(drawn, dtype=target.dtype, device=target.device)
        indices = target.first_rows()
        check_no_factors(target.likelihood_factors(positions[0], data, indices), "pyro")
        self.prior = prior_structure(target, positions, data, options.prior_form, self.sites)
        self.rows = row_structure(target, positions[0], data, indices)
        outputs = target.outputs(positions[0], data, indices)
        self._names = tuple(outputs)
        self._outputs = outputs
        self._drawing = bool(drawn_from(outputs))

        def rows(position: Tensor, arguments: Any) -> Tensor:
            args, kwargs, indices, drawn = arguments
            whole = Data(args, kwargs), indices, self._names
            return rows_of_one(target, position, *whole, self.rows, self.sites, drawn)

        def parameters(position: Tensor, arguments: Any) -> Parameters:
            args, kwargs, indices = arguments
            return drawn_from(target.outputs(position, Data(args, kwargs), indices))

        def prior(position: Tensor, arguments: Any) -> Tensor:
            data = Data(arguments[0], arguments[1])
            return prior_curvature_of_one(target, self.prior, position, data)

        self._rows = target.lift(rows)
        self._parameters = target.lift(parameters)
        self._prior = target.lift(prior)
        self.rank_one = self._rank_one(target, positions, data)
        self._kept: _KeptPrior | None = None
        self._retraced = target.retraced

    def _rank_one(self, target: LogDensity, positions: Tensor, data: Data) -> frozenset[str]:
        """Sites whose rows have rank one as matrices, where Kronecker factors are wanted."""
        indices = target.first_rows()
        numbers = len(positions) * self._numbers_of_a_particle(indices)
        if self.options.structure != "kfac" or numbers > LARGEST_JACOBIANS:
            return frozenset()
        with global_generator(0), torch.no_grad():
            rows = self._rows_of_chunk(positions, data, indices, 1.0)
            found = rank_one_sites(rows, self.slices, target.layout.shapes)
        return frozenset(name for name, holds in found.items() if holds)

    def at(
        self, target: LogDensity, z: Float[Tensor, "P D"], data: Data, indices: Indices | None
    ) -> Curvature:
        """Curvature at positions z (P, D) of a batch of rows, or of all rows without one."""
        if self._retraced != target.retraced:
            for function in (self._rows, self._parameters, self._prior):
                function.retrace()
            self._kept, self._retraced = None, target.retraced
        if indices is None:
            likelihood = self._sweep(target, z, data)
        else:
            likelihood = self._likelihood(target, z, data, indices)
        return self._prior_part(target, z, data).plus(likelihood)

    def _prior_part(self, target: LogDensity, z: Tensor, data: Data) -> Curvature:
        if self.prior.constant:
            return Curvature(self._constant_prior(target, z[:1], data))
        arguments = as_arguments(data.args, data.kwargs, target.first_rows())
        return Curvature.of_prior(without_negative(self._prior(z, arguments)))

    def _constant_prior(self, target: LogDensity, z: Tensor, data: Data) -> Tensor:
        """The diagonal (1, D') that all positions have, found once for the same arguments."""
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

    def _sweep(self, target: LogDensity, z: Tensor, data: Data) -> Curvature:
        """The Gauss-Newton part of all rows, chunk by chunk."""
        chunks = target.sweep()
        if self.options.structure == "kfac" and len(chunks) > 1:
            seed = int(torch.randint(2**62, ())) if self._drawing else 0

            def factors(positions: Tensor) -> Curvature:
                def total(function: OfRows, held: Sums) -> Sums:
                    sums: Sums = {}
                    with global_generator(seed) if self._drawing else nullcontext():
                        for weight, indices in chunks:
                            rows = self._rows_of_chunk(positions, data, indices, weight)
                            part = function(rows, held)
                            sums = {n: sums[n] + part[n] if sums else part[n] for n in part}
                    return sums

                return self._factored(total, target, positions)

            return self._in_turns(factors, z, chunks[0][1])
        total: Curvature | None = None
        for weight, indices in chunks:
            found = self._likelihood(target, z, data, indices, weight)
            total = found if total is None else self._shortened(total.plus(found))
        assert total is not None
        return total

    def _shortened(self, found: Curvature) -> Curvature:
        """The same with a matrix for rows where that is smaller."""
        rows, size = found.rows, len(self.coordinates)
        if self.options.structure != "full" or rows is None:
            return found
        if found.matrix is None and rows.shape[1] <= size:
            return found
        gram = rows.mT @ rows
        return Curvature(
            found.diagonal, gram if found.matrix is None else found.matrix + gram, None
        )

    def _likelihood(
        self, target: LogDensity, z: Tensor, data: Data, indices: Indices, weight: float = 1.0
    ) -> Curvature:
        """The Gauss-Newton part of one batch, in its structure."""

        def found(positions: Tensor) -> Curvature:
            rows = self._rows_of_chunk(positions, data, indices, weight)
            if self.options.structure != "kfac":
                return Curvature.of_rows(rows, self.options.structure, self.options.rank)
            return self._factored(lambda function, held: function(rows, held), target, rows, rows)

        return found(z) if self.options.structure == "full" else self._in_turns(found, z, indices)

    def _rows_of_chunk(self, z: Tensor, data: Data, indices: Indices, weight: float) -> Tensor:
        """Rows (P, R, D') of a batch, which count ``weight`` times."""
        arguments = as_arguments(data.args, data.kwargs, indices)
        drawn = {}
        if self._drawing:
            drawn = drawn_at(self._outputs, self._parameters(z, arguments))
        rows: Tensor = self._rows(z, (*arguments, drawn), (None, None, None, 0))
        return rows if weight == 1.0 else math.sqrt(weight) * rows

    def _in_turns(
        self, function: Callable[[Tensor], Curvature], z: Tensor, indices: Indices
    ) -> Curvature:
        """A function of positions at z; where batches are large, one by one."""
        if len(z) * self._numbers_of_a_particle(indices) <= LARGEST_JACOBIANS:
            return function(z)
        return _stacked([function(one[None]) for one in z])

    def _numbers_of_a_particle(self, indices: Indices) -> int:
        """Entries of the Jacobian of one particle, by a guess of two outputs for each row."""
        rows = math.prod(len(numbers) for numbers in indices.values()) if indices else 1
        return 2 * rows * len(self.coordinates)

    def _factored(
        self,
        total: Callable[[OfRows, Sums], Sums],
        target: LogDensity,
        like: Tensor,
        rows: Tensor | None = None,
    ) -> Curvature:
        shapes = target.layout.shapes
        return kronecker_factors(total, self.slices, shapes, like, self.rank_one, rows)


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
