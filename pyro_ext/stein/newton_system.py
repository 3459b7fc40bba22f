"""The linear system of Stein variational Newton, and its solution by three solvers.

With the kernel matrix K, k_pm = k(z_p, z_m), its gradients g_pm = grad_{z_p} k(z_p, z_m), the
scores s_p, and the damped curvature H_p of -log pi at each particle, the Newton direction in the
kernel's space solves (Detommaso et al. 2018, https://arxiv.org/abs/1806.03085, equation 19, with H
the curvature of *minus* log pi)

    sum_n h_mn alpha_n = phi(z_m),   h_mn = 1/P sum_p [ k_pm k_pn H_p + g_pn g_pm' ],

and the particles move by sum_n k(z_n, z_m) alpha_n. Two forms of it are solved.

``"full"``
    All blocks, with the repulsion g g' on the diagonal blocks alone, where the system is positive
    definite (Leviyev et al. 2022, https://arxiv.org/abs/2204.09039), or on all of them. It is
    solved for the moves d = K alpha,

        [ blockdiag(H_p) + P K^-1 blockdiag(Q_m) K^-1 ] d = s + K^-1 r,

    with Q_m = 1/P sum_p g_pm g_pm' and r_m = sum_p g_pm: a Newton step of each particle by its own
    curvature, coupled by the repulsion.
``"block_diagonal"``
    The blocks h_mm alone; the particles move by alpha.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.stein.newton import NUGGET, NewtonSystem, Solver
from pyro_ext.curvature import (
    Curvature,
    cholesky_solve,
    conjugate_gradients,
    woodbury,
)
from pyro_ext.kernels import Interactions


class Solution(NamedTuple):
    """A direction and how it was found.

    Parameters
    ----------
    moves : Tensor
        Moves of the particles, shape (P, D); zero where the system could not be solved.
    solved : bool
        False if it was singular or indefinite.
    residual : float
        Of conjugate gradients, relative to the right side; 0 for direct solvers.
    iterations : int
        Of conjugate gradients; 0 for direct solvers.
    """

    moves: Float[Tensor, "P D"]
    solved: bool
    residual: float
    iterations: int


@dataclass(frozen=True)
class LinearSystem:
    """The system of one step.

    Parameters
    ----------
    interactions : Interactions
        Kernel matrix and gradients at all pairs of particles.
    curvature : Curvature
        H_p of each particle, without damping.
    scores : Tensor
        s, shape (P, D).
    damping : Tensor
        Diagonal that is added to every H_p, shape (D,).
    options : NewtonSystem
    """

    interactions: Interactions
    curvature: Curvature
    scores: Float[Tensor, "P D"]
    damping: Float[Tensor, " D"]
    options: NewtonSystem

    # -- pieces -------------------------------------------------------------------------------

    @property
    def _number(self) -> int:
        return len(self.scores)

    def _gram(self) -> Tensor:
        gram = self.interactions.gram
        size = gram.diagonal().mean()
        return gram + NUGGET * size * _identity(gram)

    def _damped(self) -> Curvature:
        found = self.curvature
        diagonal = found.diagonal + self.damping
        return replace(found, diagonal=diagonal)

    def _features(self) -> Tensor:
        """c_j(m), the coefficients of g_jm in the kernel's basis, shape (P_m, P_j, Q)."""
        return self.interactions.coefficients.swapdims(0, 1)

    def solve(self, solver: Solver) -> Solution:
        """The moves of the particles."""
        solve = self._solve_full if self.options.coupling == "full" else self._solve_blocks
        found = solve(solver)
        if found.solved and bool(torch.isfinite(found.moves).all()):
            return found
        return found._replace(moves=torch.zeros_like(found.moves), solved=False)

    # -- all blocks ---------------------------------------------------------------------------

    def _solve_full(self, solver: Solver) -> Solution:
        number, dim = self.scores.shape
        gram, basis = self._gram(), self.interactions.basis
        repulsion = self.interactions.repulsion()
        one_matrix = self.options.repulsion == "all" or dim <= number
        if solver == "dense" and one_matrix:
            return _direct(self._solve_matrix(gram, repulsion))
        inverse = cholesky_solve(gram, _identity(gram))
        right = self.scores + inverse @ repulsion
        if solver == "cg":
            diagonals = self._diagonals()
            return self._iterate(self._full_product(inverse), right, lambda v: v / diagonals)
        # By elimination: W maps moves to (m, j) -> g_jm . (K^-1 d)_m, through their products with
        # the basis.
        every = torch.cat([right[:, None], basis.expand(number, *basis.shape)], dim=1)
        products, solution = self._particle_solves(every, solver)
        plain, inner = products[:, 0, 1:], products[:, 1:, 1:]
        # (m, j) by (p, q): products of matrices, which start sooner than sums over named axes do.
        mixing = self._features()[:, :, None, :] * inverse[:, None, :, None]
        mixing = mixing.reshape(number * number, number, len(basis))
        flat = mixing.flatten(1)
        spread = (mixing.swapdims(0, 1) @ inner).swapdims(0, 1)
        capacity = spread.flatten(1) @ flat.T
        capacity = capacity + _identity(capacity)
        seen = flat @ plain.reshape(-1, 1)
        weights = (flat.T @ cholesky_solve(capacity, seen)).reshape(number, -1)
        return _direct(solution(torch.cat([weights.new_ones(number, 1), -weights], dim=1)))

    def _particle_solves(
        self, vectors: Tensor, solver: Solver
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Solutions with the damped curvature A_p of each particle for vectors v (P, n, D).

        The products v_pi' A_p^-1 v_pj, shape (P, n, n), and the map of weights w (P, n) to
        A_p^-1 sum_i w_pi v_pi, shape (P, D).
        """
        damped = self._damped()
        if solver == "dense":
            solved = cholesky_solve(damped.dense(), vectors.mT).mT
            return vectors @ solved.mT, lambda weights: (weights[:, None] @ solved)[:, 0]
        return woodbury(damped.diagonal, damped.rows, vectors)

    def _full_product(self, inverse: Tensor) -> Callable[[Tensor], Tensor]:
        """Products of the full system with moves, (P, D), given K^-1.

        All that meets K^-1 has one entry for each vector of the basis, not for each coordinate.
        """
        damped, features, basis = self._damped(), self._features(), self.interactions.basis

        def product(moves: Tensor) -> Tensor:
            inner = inverse @ (moves @ basis.T)  # (K^-1 d)_m . b_q
            if self.options.repulsion == "diagonal":
                back = features.mT @ (features @ inner[..., None])
                back = back[..., 0]
            else:
                # sum_n g_jn (g_jm . alpha_n) is no square: the coefficients of m meet those of n.
                seen = torch.einsum("mjq,nq->mnj", features, inner)
                back = torch.einsum("njq,mnj->mq", features, seen)
            return damped.product(moves) + (inverse @ back) @ basis

        return product

    def _solve_matrix(self, gram: Tensor, repulsion: Tensor) -> Tensor:
        """The moves by one matrix, (P D, P D).

        It is that of the weights L^-1 d with K = L L', since K^-1 on both sides of the repulsion
        has the square of the condition number.
        """
        number, dim = self.scores.shape
        factor, failed = torch.linalg.cholesky_ex(gram)
        if bool(failed):
            return torch.full_like(repulsion, torch.nan)
        inverse = torch.linalg.solve_triangular(factor, _identity(gram), upper=False)
        gradients = self._features() @ self.interactions.basis  # g_jm at [m, j]
        if self.options.repulsion == "diagonal":
            blocks = gradients.mT @ gradients
            coupled = torch.einsum("pm,mab,qm->paqb", inverse, blocks, inverse)
        else:
            every = torch.einsum("nja,mjb->manb", gradients, gradients)
            coupled = torch.einsum("pm,manb,qn->paqb", inverse, every, inverse)
        dense = self._of_each(self._damped().dense())
        own = torch.einsum("pm,pab,pn->manb", factor, dense, factor)
        matrix = (own + coupled).reshape(number * dim, number * dim)
        matrix = 0.5 * (matrix + matrix.T)
        right = factor.T @ self.scores + inverse @ repulsion
        found = cholesky_solve(matrix, right.reshape(-1, 1))
        return factor @ found.reshape(number, dim)

    def _of_each(self, values: Tensor) -> Tensor:
        """Values (P, ...) of each particle from those that may be the same for all, (1, ...)."""
        return values.expand(self._number, *values.shape[1:])

    def _diagonals(self) -> Tensor:
        return self._of_each(self._damped().diagonals())

    # -- blocks on the diagonal ---------------------------------------------------------------

    def _solve_blocks(self, solver: Solver) -> Solution:
        number = self._number
        gram = self._gram()
        right = (gram @ self.scores + self.interactions.repulsion()) / number
        weights = gram**2 / number  # of H_p in block m, at [m, p]
        damped, features, basis = self._damped(), self._features(), self.interactions.basis
        if solver == "cg":

            def product(moves: Tensor) -> Tensor:
                every = moves.expand(number, *moves.shape)
                curved = self._of_each(damped.products(every))
                mixed = torch.einsum("mp,pmd->md", weights, curved)
                seen = torch.einsum("mjq,mq->mj", features, moves @ basis.T)
                return mixed + torch.einsum("mjq,mj->mq", features, seen) @ basis / number

            diagonal = weights @ self._diagonals()
            return self._iterate(product, right, lambda moves: moves / diagonal)
        if solver == "dense":
            gradients = features @ basis
            blocks = torch.einsum("mp,pab->mab", weights, self._of_each(damped.dense()))
            blocks = blocks + gradients.mT @ gradients / number
            return _direct(cholesky_solve(blocks, right[..., None])[..., 0])
        return _direct(self._solve_blocks_dual(weights, right))

    def _solve_blocks_dual(self, weights: Tensor, right: Tensor) -> Tensor:
        """By Woodbury: block m is diag + V' L_m' L_m V, with V the rows of all and the basis."""
        number, dim = self.scores.shape
        damped, basis = self._damped(), self.interactions.basis
        rows = damped.rows
        count = 0 if rows is None else rows.shape[1]
        every = basis
        if rows is not None:
            every = torch.cat([rows.reshape(number * count, dim), basis])
        root = weights.sqrt()

        def factor(root: Tensor, features: Tensor) -> Tensor:
            """L_m, of shape (P R + P, P R + Q)."""
            of_rows = torch.diag(root.repeat_interleave(count))
            return torch.block_diag(of_rows, features / math.sqrt(number))

        factors = [factor(*each) for each in zip(root, self._features(), strict=True)]
        identity = _identity(factors[0][:, :0] @ factors[0][:, :0].T)

        def solve(
            factor: Tensor,
            products: Tensor,
            images: Tensor,
            scale: Tensor,
            base: Tensor,
            right: Tensor,
        ) -> Tensor:
            """One block with base scale * base, the products V base^-1 V' and V base^-1 b."""
            capacity = factor @ products @ factor.T / scale + identity
            inner = cholesky_solve(capacity, (factor @ images)[:, None])[:, 0] / scale
            return (right - (factor.T @ inner) @ every) / (scale * base)

        if len(damped.diagonal) == 1:
            # The blocks' diagonals are multiples of one, so one product of all rows serves all.
            base = damped.diagonal[0]
            products = (every / base) @ every.T
            images = (right / base) @ every.T
            scales = weights.sum(dim=1)
            blocks = zip(factors, images, scales, right, strict=True)
            return torch.stack(
                [solve(one, products, image, scale, base, b) for one, image, scale, b in blocks]
            )
        bases = weights @ damped.diagonal

        def alone(factor: Tensor, base: Tensor, right: Tensor) -> Tensor:
            products = (every / base) @ every.T
            images = every @ (right / base)
            return solve(factor, products, images, base.new_ones(()), base, right)

        return torch.stack([alone(*each) for each in zip(factors, bases, right, strict=True)])

    def _iterate(
        self,
        product: Callable[[Tensor], Tensor],
        right: Tensor,
        preconditioner: Callable[[Tensor], Tensor],
    ) -> Solution:
        found = conjugate_gradients(
            product, right, preconditioner, self.options.tolerance, self.options.max_iterations
        )
        return Solution(found.solution, found.definite, found.residual, found.iterations)


def _direct(moves: Tensor) -> Solution:
    """A solution by a direct solver."""
    return Solution(moves, True, 0.0, 0)


def _identity(matrix: Tensor) -> Tensor:
    """The identity in the shape of a square matrix."""
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
