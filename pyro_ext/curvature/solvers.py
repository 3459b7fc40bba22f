"""Solvers of positive definite systems. None raises: what fails is not a number, or says so."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.curvature import woodbury as shared
from ppl_ext.curvature.solvers import IterativeSolution, beginning


def cholesky_solve(
    matrices: Float[Tensor, "... n n"], right_sides: Float[Tensor, "... n m"]
) -> Float[Tensor, "... n m"]:
    """x with A x = b for A (..., n, n) and b (..., n, m); NaN where A is not positive definite."""
    factor, failed = torch.linalg.cholesky_ex(matrices)
    found = torch.cholesky_solve(right_sides, factor)
    # ``cholesky_ex`` leaves a factor of the part that was definite, which solves another system.
    return found.masked_fill((failed != 0)[..., None, None], torch.nan)


def symmetric_eigen(
    matrices: Float[Tensor, "... n n"],
) -> tuple[Float[Tensor, "... n"], Float[Tensor, "... n n"]]:
    """Eigenvalues (..., n), rising, and eigenvectors of symmetric matrices, without derivatives.

    Values are NaN where a matrix is not finite.
    """
    held = matrices.detach()
    finite = torch.isfinite(held).all(-1).all(-1)[..., None, None]
    # In single precision the solver sometimes gives up on matrices with many equal eigenvalues.
    values, vectors = torch.linalg.eigh(torch.where(finite, held, 0.0).double())
    values = torch.where(finite[..., 0], values, torch.nan)
    return values.to(held.dtype), vectors.to(held.dtype)


def woodbury(
    diagonal: Float[Tensor, "... D"],
    rows: Float[Tensor, "P R D"] | None,
    vectors: Float[Tensor, "P n D"],
) -> tuple[Float[Tensor, "P n n"], Callable[[Tensor], Tensor]]:
    """Solutions of A_p x = v, A_p = diag(d_p) + R_p' R_p, exactly, by systems of the size of R_p.

    Parameters
    ----------
    diagonal : Tensor
        d > 0, shape (P, D), or (1, D) where it is the same for all.
    rows : Tensor or None
        R, shape (P, R, D).
    vectors : Tensor
        v, n for each of P, shape (P, n, D).

    Returns
    -------
    tuple
        The products v_pi' A_p^-1 v_pj, shape (P, n, n), and the map of weights w (P, n) to
        A_p^-1 sum_i w_pi v_pi, shape (P, D).
    """
    root = diagonal.rsqrt()[:, None]
    return shared.woodbury(torch, root, rows, vectors, torch.matmul, cholesky_solve)


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    right_side: Float[Tensor, " ..."],
    preconditioner: Callable[[Tensor], Tensor],
    tolerance: float = 1e-4,
    max_iterations: int = 50,
) -> IterativeSolution:
    """x with A x = b, by conjugate gradients from zero (Hestenes and Stiefel 1952).

    Parameters
    ----------
    product : callable
        Maps a tensor of the shape of b to A times it.
    right_side : Tensor
        b, of any shape.
    preconditioner : callable
        Maps a tensor of the shape of b to nearly A^-1 times it, by a positive definite matrix.
    tolerance : float
        Residual, relative to b, at which to stop.
    max_iterations : int
    """
    size = float(right_side.norm())
    now = beginning(right_side, torch.zeros_like(right_side), preconditioner)
    definite, count = True, 0
    # What is not a number is not short either.
    while count < max_iterations and not float(now.residual.norm()) <= tolerance * size:
        image = product(now.direction)
        curvature = (now.direction * image).sum()
        count += 1
        # Negative curvature, or nothing finite.
        definite = bool(curvature > 0.0)
        if not definite:
            break
        now = now.after(now.fall / curvature, image, preconditioner)
    relative = float(now.residual.norm()) / (size if size > 0.0 else 1.0)
    return IterativeSolution(now.solution, relative, count, definite)
