"""The nearest Kronecker products to the blocks of a sum R' R whose rows come in chunks.

For each site that is a matrix that is the A (x) B nearest to its block of R' R in the Frobenius
norm (Van Loan and Pitsianis 1993, https://doi.org/10.1007/978-94-015-8196-7_17), the leading
singular pair of the rearranged block. It is found by power iteration from B = identity. Each half
step is a sum over rows, so that nothing but the factors is kept from one chunk of rows to the next,
and every iterate is positive semidefinite.

A row by the weights of a linear layer is, as a matrix, what comes back times what goes in. Where
all rows of a site are such products, sums over them take products with the vectors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

from ppl_ext.curvature.curvature import Curvature, KroneckerBlock, Sums
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
    kind : type of Curvature
        The package's matrices.
    repeated : callable
        Takes a number of steps, a step from one tree of arrays to the next, and the first tree, to
        the last.
    chosen : callable
        Takes a truth value, two functions and a tree of arrays to what the first or the second
        gives of the tree.
    """

    def __init__(
        self,
        functions: Any,
        constant: Callable[[NDArray[Any], Any], Any],
        kind: type[Curvature],
        repeated: Callable[[int, Callable[[Any], Any], Any], Any],
        chosen: Callable[..., Any],
    ) -> None:
        self.functions, self.constant, self.held = functions, constant, kind.detached
        self.kind, self.repeated, self.chosen = kind, repeated, chosen

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
        # (P, r, r): the squared products u_r . u_s, by which weights go from one side to the other.
        of_left, of_right = ((each @ each.mT) ** 2 for each in vectors)
        # The first right factor is the identity.
        of_rows = (right**2).sum(axis=-1)[..., None] / right.shape[-1]
        across = self._across(of_left, of_rows)
        for _ in range(KRONECKER_STEPS - 1):
            of_rows = self._across(of_right, across)
            across = self._across(of_left, of_rows)
        # A = sum_r w_r u_r u_r', and B likewise with the weights of the last half step.
        return (of_rows * left).mT @ left, (across * right).mT @ right

    def _across(self, squares: Any, weights: Any) -> Any:
        """Weights (P, r, 1) of the other side."""
        found = squares @ weights
        # The squared norm of the other side's factor, by which `scaled` divides.
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
                # M B M' of a row M = u v' is (v' B v) u u': the row is not formed.
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

    def quick_factors(
        self, rows: Any, matrices: Mapping[str, Any], quick: Collection[str]
    ) -> dict[str, tuple[Any, Any]]:
        """Both Kronecker factors of those of the rank-one sites ``quick`` that have few rows.

        Their alternating steps need no pass over the rows each: see :meth:`OuterProducts.factors`.
        """
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


#: Takes rows (P, r, D'), and arrays that are held, to their sums.
OfRows = Callable[[Any, Sums], Sums]
#: Left and right factors by site.
Factors = tuple[Sums, Sums]


def kronecker_factors(
    products: OuterProducts,
    total: Callable[[OfRows, Sums], Sums],
    slices: Mapping[str, slice],
    shapes: Mapping[str, Collection[int]],
    like: Any,
    rank_one: Collection[str] = (),
    rows: Any | None = None,
) -> Any:
    """A sum R' R as Kronecker blocks of its sites, differentiable in the rows.

    A site that is no matrix has its whole block, or the diagonal of it where it is long.

    Parameters
    ----------
    products : OuterProducts
    total : callable
        Takes a function of rows (P, r, D') and of held arrays, and these, to its sum over all
        chunks of rows. It is called for every half step, and once for all sites that are not
        matrices. Held are the arrays of the function that may have a derivative.
    slices : dict of str to slice
        Where each site is among the D' coordinates.
    shapes : dict of str to tuple of int
        Shapes of the sites.
    like : array
        Any of shape (P, r, D') and of the rows' dtype.
    rank_one : collection of str
        Sites whose rows, as matrices, had rank one by :meth:`OuterProducts.sites`. That is seen
        again of these rows, since other arguments may have others.
    rows : array, optional
        All rows (P, r, D'), where they are one chunk. Of few such rows all steps are taken at once.
    """
    xp, sites = products.functions, KroneckerSums(products, slices, shapes, rank_one)
    nothing = xp.zeros_like(like[:, :1])
    # Found once and before any condition, which would else need the rows in one piece.
    of_all = None if rows is None else sites.matrices(rows)

    def matrices_of(chunk: Any) -> Sums:
        """Rows of a chunk, as matrices by site."""
        return of_all if of_all is not None and chunk is rows else sites.matrices(chunk)

    def half(side: int, other: Sums, quick: Collection[str]) -> Sums:
        def part(rows: Any, held: Sums) -> Sums:
            return sites.half(side, rows, matrices_of(rows), held, quick)

        return sites.scaled(total(part, other), other)

    def found_by(quick: Collection[str], start: Factors) -> Factors:
        found: dict[str, tuple[Any, Any]] = {}
        if rows is not None and quick:
            found = sites.quick_factors(rows, matrices_of(rows), quick)
        others = [name for name in sites.factored if name not in found]

        def both(factors: Factors) -> Factors:
            left = half(0, factors[1], quick)
            return left, half(1, left, quick)

        if others:
            first, second = ({name: side[name] for name in others} for side in start)
            first, second = products.repeated(KRONECKER_STEPS, both, (first, second))
            found |= {name: (first[name], second[name]) for name in others}
        left, right = ({name: found[name][side] for name in sites.factored} for side in (0, 1))
        return left, right

    def identity(size: int) -> Any:
        return xp.tile(xp.diag(xp.ones_like(nothing[0, 0, :size])), (len(like), 1, 1))

    plain = len(sites.factored) < len(slices)
    sums = total(lambda rows, _: sites.plain(rows), {}) if plain else {}
    found: Factors = (
        {name: xp.zeros_like(identity(size)) for name, (size, _) in sites.factored.items()},
        {name: identity(size) for name, (_, size) in sites.factored.items()},
    )
    if rank_one:
        beyond = total(lambda rows, _: sites.beyond(rows, matrices_of(rows)), {})
        outer, any_rank = partial(found_by, rank_one), partial(found_by, ())
        found = products.chosen(sum(beyond.values()) == 0.0, outer, any_rank, found)
    elif sites.factored:
        found = found_by((), found)
    alone = sites.diagonals()
    # The same for all particles where there are blocks alone, which solvers make use of.
    zeros = nothing[:, 0] if alone else nothing[:1, 0]
    parts = [sums[name] if name in alone else zeros[:, at] for name, at in slices.items()]
    pairs = {name: (found[0][name], found[1][name]) for name in sites.factored}
    blocks = sites.blocks(pairs, sums, xp.ones_like(nothing[:, :, :1]))
    return products.kind(xp.concatenate(parts, axis=1), blocks=blocks)
