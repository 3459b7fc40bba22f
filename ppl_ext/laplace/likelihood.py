"""The Gauss-Newton matrix of all rows at one position, in its structure, differentiable.

The structures are those of :mod:`ppl_ext.curvature.program_curvature`. Here they are those of
the whole likelihood, however many chunks the rows come in: the nearest Kronecker product is found
by a sweep for each half step, and the leading terms of ``"low_rank"`` are updated chunk by chunk
(exact for one chunk, else those of a merged decomposition; the diagonal is exact always). And they
follow the change of the Fisher information with the position, which the gradient of the log
determinant needs.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol, Self

from ppl_ext.batches.passes import Passes
from ppl_ext.curvature.program_curvature import GaussNewton, RowStructure
from ppl_ext.documented import documents_subclasses

#: Numbers of rows of ``"full"`` above which they are summed up to a matrix, where that is smaller:
#: 80 MB in single precision. A matrix has lost digits that the rows have.
ROWS_UP_TO = 20_000_000


class Rows(Protocol):
    """The rows R (R, D') of the Jacobian of all whitened outputs at one position, by chunks."""

    count: int

    def total(self, function: Any) -> Any:
        """The sum over chunks of a function of their rows, an array."""

    def all(self) -> Any:
        """All rows, (R, D')."""


@documents_subclasses
class LikelihoodShell:
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
        self, target: Any, coordinates: Any, options: GaussNewton, structure: RowStructure
    ) -> None:
        self.target, self.coordinates, self.options = target, coordinates, options
        self.structure = structure

    def over(self, passes: Passes) -> Self:
        """The same over the rows of a loader."""
        other = copy.copy(self)
        other.target = self.target.over(passes)
        return other

    def _summed(self, rows: Rows, nothing: Any, kind: Any) -> Any:
        """The ``"full"`` or ``"diag"`` matrix, a curvature; ``nothing`` are D' zeros."""
        if self.options.structure == "diag":
            return kind(rows.total(lambda r: (r**2).sum(0))[None])
        if rows.count <= len(nothing) or rows.count * len(nothing) <= ROWS_UP_TO:
            return kind(nothing[None], rows=rows.all()[None])
        return kind(nothing[None], rows.total(lambda r: r.T @ r)[None])

    def _leading_terms(self, rows: Any, kept: Any, total: Any, kind: Any, xp: Any) -> Any:
        """The leading terms (rank, D') of R' R, and what its diagonal has beyond them."""
        rest = total - (kept**2).sum(0)
        # A difference within rounding of zero is zero, not a precision.
        rounding = 10.0 * rows.count * xp.finfo(total.dtype).eps * total
        return kind(xp.where(rest > rounding, rest, 0.0)[None], rows=kept[None])
