"""Woodbury's identity, on the arrays of either package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Float


def woodbury(
    xp: Any,
    root: Float[Any, "P 1 D"],
    rows: Float[Any, "P R D"] | None,
    vectors: Float[Any, "P n D"],
    matmul: Callable[[Any, Any], Any],
    solve: Callable[[Any, Any], Any],
) -> tuple[Float[Any, "P n n"], Callable[[Any], Any]]:
    """What ``woodbury`` of either package gives.

    Parameters
    ----------
    xp : module
        ``torch`` or ``jax.numpy``.
    root : array
        The inverse root of the diagonals.
    rows, vectors : array
    matmul : callable
        In the precision that the products of rows are to have.
    solve : callable
        Of positive definite matrices and right sides: the solutions.
    """
    join, count = xp.concatenate, 0 if rows is None else rows.shape[1]
    # Rows and vectors together, so that what is long is passed over twice in all.
    every = root * (vectors if rows is None else join([rows, vectors], axis=1))
    gram = matmul(every, every.mT)
    # With Q the rows times the root: (I + Q'Q)^-1 = I - Q' (I + Q Q')^-1 Q, of which only the small
    # inverse is taken.
    inner = across = gram[:, :count, count:]
    if count:
        identity = xp.diag(xp.ones_like(gram[0, 0, :count]))
        inner = solve(gram[:, :count, :count] + identity, across)

    def solution(weights: Any) -> Any:
        of_rows = -(inner @ weights[..., None])[..., 0]
        mixed = join([of_rows, weights], axis=1)[:, None] @ every
        return (root * mixed)[:, 0]

    # v' A^-1 v = (v r)' (I - Q' (I + Q Q')^-1 Q) (v r) with r the inverse root.
    return gram[:, count:, count:] - across.mT @ inner, solution
