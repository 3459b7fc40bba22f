"""Which entries of a flat vector belong to which site, which plates are subsampled, and in which
pieces their rows are swept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

#: Rows of a subsampled plate that a full-data sweep evaluates at once, unless told otherwise.
DEFAULT_DATA_CHUNK = 2048


@dataclass(frozen=True)
class FlatLayout:
    """Names and unconstrained shapes of the latent sites, in trace order.

    Trace order is that in which the model draws them, as in the hosts' own autoguides, so that a
    flat vector means the same to an engine and to a guide.

    Parameters
    ----------
    names : tuple of str
        Latent sites in the order in which the model draws them.
    shapes : dict of str to tuple of int
        Unconstrained shape of each site; sites inside a subsampled plate have the plate's
        full length.
    families: dict of str to str
        Family and support of each site's distribution, see
        :func:`ppl_ext.target.families.family_of`.
    improper : tuple of str
        Sites whose density has no normaliser, see :func:`ppl_ext.target.families.is_improper`.
    """

    names: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    families: dict[str, str] = field(default_factory=dict)
    improper: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of entries of each site."""
        return {name: math.prod(self.shapes[name]) for name in self.names}

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Range of the flat vector that each site takes."""
        stops = itertools.accumulate(self.sizes.values())
        return {
            name: slice(stop - self.sizes[name], stop)
            for name, stop in zip(self.names, stops, strict=True)
        }

    @cached_property
    def dim(self) -> int:
        """Length D of the flat vector."""
        return sum(self.sizes.values())


def names_of_coordinates(slices: Mapping[str, slice]) -> list[str]:
    """Name of each coordinate of a flat vector: of its site, with the place in a site of several.

    Parameters
    ----------
    slices : mapping of str to slice
        Range of the flat vector that each site takes, in order.
    """
    found = []
    for name, where in slices.items():
        size = where.stop - where.start
        found += [f"{name}[{k}]" for k in range(size)] if size > 1 else [name] * size
    return found


@dataclass(frozen=True)
class DataPlate:
    """A plate that the model subsamples.

    Parameters
    ----------
    name : str
    size : int
        Number N of rows of the full data.
    subsample_size : int
        Number B of rows that the model asks for.
    dim : int or None
        Batch dimension (negative) of the plate, None when it holds no sites.
    """

    name: str
    size: int
    subsample_size: int
    dim: int | None


class Piece(NamedTuple):
    """Chunks of one plate that have the same length, and follow each other.

    Parameters
    ----------
    start : int
        First row of the first chunk.
    rows : int
        Rows of each chunk.
    chunks : int
        Number of chunks.
    share : float
        Rows of one chunk over those of the plate.
    """

    start: int
    rows: int
    chunks: int
    share: float


def sweep_pieces(plates: Mapping[str, DataPlate], chunk: int | None) -> list[dict[str, Piece]]:
    """How all rows are swept: the cross product of the plates' pieces, grouped by shape.

    Nested plates multiply, so that each gets its share of about ``chunk`` rows.
    """
    chunk = chunk or DEFAULT_DATA_CHUNK
    share = max(1, round(chunk ** (1.0 / max(1, len(plates)))))
    in_one_piece = math.prod(plate.size for plate in plates.values()) <= chunk
    pieces = []
    for plate in plates.values():
        rows = plate.size if in_one_piece else min(share, plate.size)
        whole, tail = divmod(plate.size, rows)
        own = [Piece(0, rows, whole, rows / plate.size)]
        if tail:
            own.append(Piece(whole * rows, tail, 1, tail / plate.size))
        pieces.append(own)
    return [dict(zip(plates, group, strict=True)) for group in itertools.product(*pieces)]


def sweep_ranges(
    plates: Mapping[str, DataPlate], chunk: int | None
) -> list[tuple[float, dict[str, range]]]:
    """Chunks that cover all rows once, with weights that sum to one.

    A chunk of n rows of a plate of N is evaluated with the plate's scale N/n and weighted by n/N,
    which is exact for sites inside the plate and outside it.
    """
    chunks = []
    for group in sweep_pieces(plates, chunk):
        weight = math.prod(piece.share for piece in group.values())
        ranges = [
            [
                range(first, first + piece.rows)
                for first in range(piece.start, piece.start + piece.rows * piece.chunks, piece.rows)
            ]
            for piece in group.values()
        ]
        chunks += [
            (weight, dict(zip(group, rows, strict=True))) for rows in itertools.product(*ranges)
        ]
    return chunks
