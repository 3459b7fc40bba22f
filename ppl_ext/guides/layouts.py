"""Which coordinates of the flat vector belong together in a structured Normal guide.

``AutoMatrixNormal`` treats sites that are matrices apart from all others, and
``AutoLayerLowRankNormal`` divides the sites into the layers of a network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ppl_ext.errors import ArgumentError


class MatrixBlock(NamedTuple):
    """A matrix-shaped site: its name, its place in the flat vector, its rows and columns (n, p).

    The n p entries stand in the flat vector row by row.
    """

    name: str
    where: slice
    shape: tuple[int, int]


class Blocks(NamedTuple):
    """Division of the flat vector: matrix-shaped sites, and the slices of all the rest.

    Both in the order of the flat vector; slices of the rest that touch are one.
    """

    matrices: tuple[MatrixBlock, ...]
    rest: tuple[slice, ...]

    @property
    def num_rest(self) -> int:
        """Number R of coordinates that belong to no matrix."""
        return sum(where.stop - where.start for where in self.rest)

    def split(self, xp: Any, x: Any) -> tuple[list[Any], Any]:
        """Matrices (..., n, p) and the rest (..., R) of flat vectors (..., D)."""
        lead = x.shape[:-1]
        matrices = [x[..., where].reshape(*lead, *shape) for _, where, shape in self.matrices]
        rest = [x[..., where] for where in self.rest]
        return matrices, xp.concatenate(rest, -1) if rest else x[..., :0]

    def join(self, xp: Any, matrices: Sequence[Any], rest: Any) -> Any:
        """Inverse of :meth:`split`."""
        # Keyed by the first coordinate, since matrices and the rest take turns in the flat vector.
        parts = {
            block.where.start: matrix.reshape(*matrix.shape[:-2], -1)
            for block, matrix in zip(self.matrices, matrices, strict=True)
        }
        used = 0
        for where in self.rest:
            size = where.stop - where.start
            parts[where.start] = rest[..., used : used + size]
            used += size
        return xp.concatenate([parts[start] for start in sorted(parts)], -1)


def find_blocks(shapes: Mapping[str, Sequence[int]]) -> Blocks:
    """Divide the flat vector of sites with these unconstrained shapes.

    A site is a matrix when at least two of its axes are longer than one. Axes of length one do
    not count; of the others the first is the rows and all further ones together are the columns.
    """
    matrices: list[MatrixBlock] = []
    rest: list[slice] = []
    start = 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        axes = [length for length in shape if length != 1]
        if len(axes) > 1 and stop > start:
            block = MatrixBlock(name, slice(start, stop), (axes[0], math.prod(axes[1:])))
            matrices.append(block)
        elif rest and rest[-1].stop == start:
            rest[-1] = slice(rest[-1].start, stop)
        elif stop > start:
            rest.append(slice(start, stop))
        start = stop
    return Blocks(tuple(matrices), tuple(rest))


class Layer(NamedTuple):
    """Sites that are correlated: a name, and their places in the flat vector as (start, stop)."""

    name: str
    places: tuple[tuple[int, int], ...]


def layer_of_site(name: str) -> str:
    """The layer to which a site belongs by its name: all before the last dot.

    Networks of the hosts name their sites "net/Dense_0.kernel" or "net.0.weight". A site without
    a dot is a layer of its own.
    """
    return name.rpartition(".")[0] or name


def find_layers(
    shapes: Mapping[str, Sequence[int]], layers: Mapping[str, str] | None = None
) -> tuple[Layer, ...]:
    """Divide the flat vector of sites with these unconstrained shapes into layers.

    Parameters
    ----------
    shapes : mapping of str to shape
        Of the sites, in flat order.
    layers : mapping of str to str, optional
        Names of layers by site. Sites that are not in it belong to the layer of their name.

    Raises
    ------
    ArgumentError
        ``layers`` names a site that there is not.
    """
    given = dict(layers or {})
    if unknown := sorted(set(given) - set(shapes)):
        raise ArgumentError(
            f"Expected layers to be a mapping from names of latent sites to names of layers, "
            f"found {unknown} among its sites. The model has {list(shapes)}."
        )
    places: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        if stop == start:
            continue
        of_layer = places.setdefault(given.get(name, layer_of_site(name)), [])
        if of_layer and of_layer[-1][1] == start:
            of_layer[-1] = of_layer[-1][0], stop
        else:
            of_layer.append((start, stop))
        start = stop
    return tuple(Layer(name, tuple(found)) for name, found in places.items())
