"""Rows of a Jacobian that are outer products, as those of a linear layer are.

A row by the weights of a linear layer is, as a matrix, what comes back times what goes in. Where
all rows of a site are such products, sums over them take products with the vectors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from numpy.typing import NDArray

from ppl_ext.curvature.curvature import KroneckerBlock
from ppl_ext.curvature.program_curvature import (
    HALF_STEPS,
    KRONECKER_STEPS,
    RANK_ONE_UP_TO,
    factored_sides,
    generic_direction,
    kronecker_sides,
)


class OuterProducts:
    """Rows (P, r, D') by site, on the arrays of one package.

    Parameters
    ----------
    functions : module
        ``torch`` or ``jax.numpy``.
    constant : callable
        An array of NumPy's in the form of another array.
    held : callable
        An array without its derivative.
    """

    def __init__(
        self,
        functions: Any,
        constant: Callable[[NDArray[Any], Any], Any],
        held: Callable[[Any], Any],
    ) -> None:
        self.functions, self.constant, self.held = functions, constant, held

    def vectors(self, matrices: Any) -> tuple[Any, Any]:
        """u (P, r, a) and v (P, r, b) with u v' = M for matrices M (P, r, a, b) of rank one."""
        return self.looked_at(matrices)[0]

    def looked_at(self, matrices: Any) -> tuple[tuple[Any, Any], Any]:
        """What :meth:`vectors` gives; and 1 where a matrix has a rank above one, and else 0."""
        where, absolute, amax = (getattr(self.functions, n) for n in ("where", "abs", "amax"))
        directions = [self._direction(matrices, number) for number in (0, 1)]
        one, two = (matrices @ each for each in directions)
        sizes = [amax(absolute(self.held(seen)), axis=-1, keepdims=True) for seen in (one, two)]
        # The direction along which a matrix shows more: next to none has rows that are orthogonal
        # to both.
        first = sizes[0] >= sizes[1]
        left = where(first, one, two)
        # Relative to the largest entry, since squares of small ones have no reciprocals.
        size = self.functions.maximum(*sizes)
        left = left / where(size > 0.0, size, 1.0)
        squares = (left**2).sum(axis=-1, keepdims=True)
        right = (left[..., None, :] @ matrices)[..., 0, :]
        right = right / where(size > 0.0, squares, 1.0)
        # A matrix of rank one shows along the other direction what its vectors do.
        along = [(self.held(right) @ each)[..., None] for each in directions]
        rest = self.held(where(first, two, one)) - self.held(left) * where(first, *along[::-1])
        largest = size.max()
        # Squares of entries that are smaller than this are nothing, and so are their products.
        known = largest > self.functions.finfo(largest.dtype).tiny ** 0.5
        beyond = known & (absolute(rest).max() > RANK_ONE_UP_TO * largest)
        return (left, right), self.functions.ones_like(largest) * beyond

    def few(self, vectors: tuple[Any, Any]) -> bool:
        """Whether the products of all rows with each other are less work than the steps are."""
        left, right = vectors
        return bool(left.shape[1] <= 2 * (left.shape[2] + right.shape[2]))

    def factors(self, vectors: tuple[Any, Any]) -> tuple[Any, Any]:
        """The Kronecker factors A (P, a, a) and B (P, b, b) that the alternating steps end with.

        All iterates are sums of u u' and v v' over the rows, so that the steps are taken with the
        weights of the rows: sum_r w_r u_r u_r' leads to the weights u_r' A u_r of the other side,
        which are the squared products of all u times w.

        Parameters
        ----------
        vectors : tuple of array
            u (P, r, a) and v (P, r, b) of :meth:`vectors`.
        """
        left, right = vectors
        of_left, of_right = ((each @ each.mT) ** 2 for each in vectors)
        # The first right factor is the identity.
        of_rows = (right**2).sum(axis=-1)[..., None] / right.shape[-1]
        across = self._across(of_left, of_rows)
        for _ in range(KRONECKER_STEPS - 1):
            of_rows = self._across(of_right, across)
            across = self._across(of_left, of_rows)
        return (of_rows * left).mT @ left, (across * right).mT @ right

    def _across(self, squares: Any, weights: Any) -> Any:
        """Weights (P, r, 1) of the other side."""
        found = squares @ weights
        size = (weights * found).sum(axis=1, keepdims=True)
        return found / self.functions.where(size > 0.0, size, 1.0)

    def sites(
        self, rows: Any, slices: Mapping[str, slice], shapes: Mapping[str, Collection[int]]
    ) -> dict[str, Any]:
        """By site that is a matrix, whether its rows (P, r, D') all have rank one as matrices."""
        found = {}
        for name, matrices in self.matrices(rows, slices, shapes).items():
            beyond = self.looked_at(matrices)[1]
            found[name] = (self.functions.abs(matrices).max() > 0.0) & (beyond == 0.0)
        return found

    def matrices(
        self, rows: Any, slices: Mapping[str, slice], shapes: Mapping[str, Collection[int]]
    ) -> dict[str, Any]:
        """Rows (P, r, D') of the sites that have two factors, as matrices (P, r, a, b)."""
        sides = factored_sides(slices, shapes)
        return {
            name: rows[:, :, slices[name]].reshape((*rows.shape[:2], *pair))
            for name, pair in sides.items()
        }

    def _direction(self, matrices: Any, number: int) -> Any:
        return self.constant(generic_direction(matrices.shape[-1], number), matrices)


class LastRows:
    """What :meth:`OuterProducts.vectors` gives of some sites' rows, once where rows stay the same.

    Each half step to Kronecker factors takes the vectors of the rows, which are other ones only
    where rows come in several chunks.
    """

    def __init__(self, products: OuterProducts, names: Collection[str]) -> None:
        self._products, self._names = products, names
        self._rows: Any = None
        self._found: dict[str, tuple[tuple[Any, Any], Any]] = {}

    def vectors(self, rows: Any, matrices: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """By site, the vectors of rows (P, r, D'), given as matrices too."""
        return {name: found[0] for name, found in self._looked_at(rows, matrices).items()}

    def beyond(self, rows: Any, matrices: Mapping[str, Any]) -> dict[str, Any]:
        """By site, 1 where a row has a rank above one as a matrix, and else 0."""
        return {name: found[1] for name, found in self._looked_at(rows, matrices).items()}

    def _looked_at(self, rows: Any, matrices: Mapping[str, Any]) -> dict[str, Any]:
        if rows is not self._rows:
            found = {name: self._products.looked_at(matrices[name]) for name in self._names}
            self._rows, self._found = rows, found
        return self._found


class KroneckerSums:
    """Sums over rows (P, r, D') of which Kronecker factors are made, by site.

    Parameters
    ----------
    products : OuterProducts
    slices : dict of str to slice
        Where each site is among the D' coordinates.
    shapes : dict of str to tuple of int
        Shapes of the sites.
    rank_one : collection of str
        Sites whose rows had rank one as matrices.

    Attributes
    ----------
    factored : dict of str to (int, int)
        Sides of the sites that have two factors.
    """

    def __init__(
        self,
        products: OuterProducts,
        slices: Mapping[str, slice],
        shapes: Mapping[str, Collection[int]],
        rank_one: Collection[str],
    ) -> None:
        self._products, self._slices, self._shapes = products, slices, shapes
        self._last = LastRows(products, rank_one)
        self._sides = {name: kronecker_sides(shapes[name]) for name in slices}
        self.factored = factored_sides(slices, shapes)

    def matrices(self, rows: Any) -> dict[str, Any]:
        """Rows as matrices."""
        return self._products.matrices(rows, self._slices, self._shapes)

    def plain(self, rows: Any) -> dict[str, Any]:
        """What rows add to the sites that have no two factors: a whole block, or a diagonal."""
        found = {}
        for name, where in self._slices.items():
            if name not in self.factored:
                part = rows[:, :, where]
                found[name] = (part**2).sum(1) if self._sides[name] is None else part.mT @ part
        return found

    def half(
        self,
        side: int,
        rows: Any,
        matrices: Mapping[str, Any],
        other: Mapping[str, Any],
        quick: Collection[str],
    ) -> dict[str, Any]:
        """What rows add to the factors of a side, of the ``other`` side's.

        ``quick`` are the sites whose rows have rank one.
        """
        found, xp = {}, self._products.functions
        vectors = self._last.vectors(rows, matrices) if quick else {}
        for name, factor in other.items():
            if name in quick:
                own, across = vectors[name][side], vectors[name][1 - side]
                weights = ((across @ factor) * across).sum(axis=2, keepdims=True)
                found[name] = (weights * own).mT @ own
            else:
                found[name] = xp.einsum(HALF_STEPS[side], matrices[name], factor, matrices[name])
        return found

    def scaled(self, sums: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
        """The factors of a side, of their sums and the other side's."""
        xp = self._products.functions
        return {
            name: sums[name]
            / xp.clip((factor**2).sum((1, 2), keepdims=True), xp.finfo(factor.dtype).tiny)
            for name, factor in other.items()
        }

    def beyond(self, rows: Any, matrices: Mapping[str, Any]) -> dict[str, Any]:
        """1 where rows have a rank above one as matrices, and else 0."""
        return self._last.beyond(rows, matrices)

    def at_once(
        self, rows: Any, matrices: Mapping[str, Any], quick: Collection[str]
    ) -> dict[str, tuple[Any, Any]]:
        """The factors of those of the ``quick`` sites that have few rows, all steps at once."""
        vectors = self._last.vectors(rows, matrices)
        few = [name for name in quick if self._products.few(vectors[name])]
        return {name: self._products.factors(vectors[name]) for name in few}

    def diagonals(self) -> dict[str, slice]:
        """The sites that have nothing but a diagonal, and where they are."""
        return {name: self._slices[name] for name, pair in self._sides.items() if pair is None}

    def blocks(
        self, factors: Mapping[str, tuple[Any, Any]], sums: Mapping[str, Any], one: Any
    ) -> tuple[KroneckerBlock, ...]:
        """The blocks of all other sites; ``one`` are ones (P, 1, 1)."""
        return tuple(
            KroneckerBlock(
                *(factors[name] if name in factors else (one, sums[name])),
                self._slices[name].start,
            )
            for name, pair in self._sides.items()
            if pair is not None
        )
