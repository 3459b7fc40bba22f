"""Nearly the inverse of a curvature, by which conjugate gradients take few products.

A Kronecker block with a diagonal, A (x) B + diag(d), has no factored inverse. With d near to the
outer product of u and v it is near to (A + p diag(u)) (x) (B + diag(v) / p), which has one, for any
p > 0; p balances the two factors (Martens and Grosse 2015, https://arxiv.org/abs/1503.05671,
section 6.3, where d is one number).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

#: A factor is inverted where that costs no more than so many products with its block.
PRODUCTS = 50
#: Share of a factor's trace, in units of the rounding error, that is added to its diagonal.
SHARE = 8.0


def near_inverse(
    curvature: Any, functions: Any, cholesky_solve: Callable[[Any, Any], Any]
) -> Callable[[Any], Any]:
    """The map of vectors (P, D) to nearly H_p^-1 times them; a positive definite matrix each.

    Rows and matrices of the curvature count by their diagonals.

    Parameters
    ----------
    curvature : Curvature
        H_p, with a diagonal > 0.
    functions : module
        ``torch`` or ``jax.numpy``.
    cholesky_solve : callable
        That of the package.
    """
    rest = replace(curvature, blocks=()).diagonals()
    blocks = sorted(curvature.blocks, key=lambda block: block.start)
    solves = [_of_block(block, rest[:, block.where], functions, cholesky_solve) for block in blocks]

    def apply(vectors: Any) -> Any:
        parts, stop = [], 0
        for block, solve in zip(blocks, solves, strict=True):
            between = slice(stop, block.start)
            parts += [vectors[:, between] / rest[:, between], solve(vectors[:, block.where])]
            stop = block.where.stop
        return functions.concatenate([*parts, vectors[:, stop:] / rest[:, stop:]], axis=1)

    return apply


def _of_block(
    block: Any, diagonal: Any, functions: Any, cholesky_solve: Callable[[Any, Any], Any]
) -> Callable[[Any], Any]:
    """The map of one block's part of the vectors (P, a b)."""
    left, right = block.left, block.right
    rows, columns = left.shape[1], right.shape[1]

    def inverse(matrix: Any, added: Any, other: int) -> Any:
        """That of a factor with a diagonal, (P, n, n), or of its diagonal alone, (P, n, 1)."""
        own = functions.diagonal(matrix, 0, 1, 2)
        size = matrix.shape[1]
        rounding = SHARE * functions.finfo(matrix.dtype).eps
        added = added + rounding * own.sum(axis=1)[:, None]
        of_diagonal = (1.0 / (own + added))[..., None]
        if size**2 > PRODUCTS * other * (size + other):
            return of_diagonal
        identity = functions.diag(functions.ones_like(matrix[0, 0]))
        shifted = matrix + added[..., None] * identity
        found = cholesky_solve(shifted, 0.0 * shifted + identity)
        return functions.where(functions.isfinite(found), found, of_diagonal * identity)

    if rows == 1:
        only = inverse(left * right, diagonal, 1)
        return lambda vectors: _times(only, vectors[..., None])[..., 0]
    grid = diagonal.reshape((-1, rows, columns))
    by_row, by_column = grid.mean(axis=2), grid.mean(axis=1)
    mean = by_row.mean(axis=1)[:, None]
    by_column = by_column / mean
    sizes = [functions.diagonal(each, 0, 1, 2).mean(axis=1)[:, None] for each in (left, right)]
    # Factors of nothing are balanced by their diagonals alone.
    tiny = functions.finfo(left.dtype).tiny ** 0.5
    balance = functions.sqrt((sizes[0] / mean + tiny) / (sizes[1] + tiny))
    of_left = inverse(left, balance * by_row, columns)
    of_right = inverse(right, by_column / balance, rows)

    def solve(vectors: Any) -> Any:
        part = _times(of_left, vectors.reshape((-1, rows, columns)))
        return _times(of_right, part.mT).mT.reshape((len(vectors), -1))

    return solve


def _times(inverse: Any, vectors: Any) -> Any:
    """Products with matrices (P, n, n), or with diagonals (P, n, 1), of columns (P, n, m)."""
    return inverse * vectors if inverse.shape[2] == 1 else inverse @ vectors
