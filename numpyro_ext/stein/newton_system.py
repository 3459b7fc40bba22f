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

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float, Int

from numpyro_ext.curvature import (
    Curvature,
    cholesky_solve,
    conjugate_gradients,
    woodbury,
)
from numpyro_ext.kernels import Interactions
from ppl_ext.stein.newton import NUGGET, NewtonSystem, Solver


class Solution(NamedTuple):
    """A direction and how it was found.

    Parameters
    ----------
    moves : Array
        Moves of the particles, shape (P, D); zero where the system could not be solved.
    solved : Array
        False if it was singular or indefinite.
    residual : Array
        Of conjugate gradients, relative to the right side; 0 for direct solvers.
    iterations : Array
        Of conjugate gradients; 0 for direct solvers.
    """

    moves: Float[Array, "P D"]
    solved: Bool[Array, ""]
    residual: Float[Array, ""]
    iterations: Int[Array, ""]


@dataclass(frozen=True)
class LinearSystem:
    """The system of one step.

    Parameters
    ----------
    interactions : Interactions
        Kernel matrix and gradients at all pairs of particles.
    curvature : Curvature
        H_p of each particle, without damping.
    scores : Array
        s, shape (P, D).
    damping : Array
        Diagonal that is added to every H_p, shape (D,).
    options : NewtonSystem
    """

    interactions: Interactions
    curvature: Curvature
    scores: Float[Array, "P D"]
    damping: Float[Array, " D"]
    options: NewtonSystem

    # -- pieces -------------------------------------------------------------------------------

    @property
    def _number(self) -> int:
        return len(self.scores)

    def _gram(self) -> Array:
        gram = self.interactions.gram
        size = jnp.trace(gram) / self._number
        return gram + NUGGET * size * jnp.eye(self._number, dtype=gram.dtype)

    def _damped(self) -> Curvature:
        found = self.curvature
        diagonal = found.diagonal + self.damping
        return replace(found, diagonal=diagonal)

    def _features(self) -> Array:
        """c_j(m), the coefficients of g_jm in the kernel's basis, shape (P_m, P_j, Q)."""
        return self.interactions.coefficients.swapaxes(0, 1)

    def solve(self, solver: Solver) -> Solution:
        """The moves of the particles."""
        solve = self._solve_full if self.options.coupling == "full" else self._solve_blocks
        found = solve(solver)
        solved = found.solved & jnp.isfinite(found.moves).all()
        return found._replace(moves=jnp.where(solved, found.moves, 0.0), solved=solved)

    # -- all blocks ---------------------------------------------------------------------------

    def _solve_full(self, solver: Solver) -> Solution:
        number, dim = self.scores.shape
        gram, basis = self._gram(), self.interactions.basis
        repulsion = self.interactions.repulsion()
        one_matrix = self.options.repulsion == "all" or dim <= number
        if solver == "dense" and one_matrix:
            return _direct(self._solve_matrix(gram, repulsion))
        inverse = cholesky_solve(gram, jnp.eye(number, dtype=gram.dtype))
        right = self.scores + inverse @ repulsion
        if solver == "cg":
            diagonals = self._diagonals()
            return self._iterate(self._full_product(inverse), right, lambda v: v / diagonals)
        # By elimination: W maps moves to (m, j) -> g_jm . (K^-1 d)_m, through their products with
        # the basis.
        every = jnp.concatenate(
            [right[:, None], jnp.broadcast_to(basis, (number, *basis.shape))], axis=1
        )
        products, solution = self._particle_solves(every, solver)
        plain, inner = products[:, 0, 1:], products[:, 1:, 1:]
        mixing = jnp.einsum("mjq,mp->mjpq", self._features(), inverse)
        mixing = mixing.reshape(number * number, number, len(basis))
        spread = jnp.einsum("kpq,pqr->kpr", mixing, inner)
        capacity = spread.reshape(len(mixing), -1) @ mixing.reshape(len(mixing), -1).T
        capacity = capacity + jnp.eye(len(mixing), dtype=capacity.dtype)
        seen = jnp.einsum("kpq,pq->k", mixing, plain)[:, None]
        weights = jnp.einsum("kpq,k->pq", mixing, cholesky_solve(capacity, seen)[:, 0])
        ones = jnp.ones((number, 1), weights.dtype)
        return _direct(solution(jnp.concatenate([ones, -weights], axis=1)))

    def _particle_solves(
        self, vectors: Array, solver: Solver
    ) -> tuple[Array, Callable[[Array], Array]]:
        """Solutions with the damped curvature A_p of each particle for vectors v (P, n, D).

        The products v_pi' A_p^-1 v_pj, shape (P, n, n), and the map of weights w (P, n) to
        A_p^-1 sum_i w_pi v_pi, shape (P, D).
        """
        damped = self._damped()
        if solver == "dense":
            solved = cholesky_solve(damped.dense(), vectors.mT).mT
            return vectors @ solved.mT, lambda weights: (weights[:, None] @ solved)[:, 0]
        return woodbury(damped.diagonal, damped.rows, vectors)

    def _full_product(self, inverse: Array) -> Callable[[Array], Array]:
        """Products of the full system with moves, (P, D), given K^-1.

        All that meets K^-1 has one entry for each vector of the basis, not for each coordinate.
        """
        damped, features, basis = self._damped(), self._features(), self.interactions.basis

        def product(moves: Array) -> Array:
            inner = inverse @ (moves @ basis.T)  # (K^-1 d)_m . b_q
            if self.options.repulsion == "diagonal":
                seen = jnp.einsum("mjq,mq->mj", features, inner)
                back = jnp.einsum("mjq,mj->mq", features, seen)
            else:
                # sum_n g_jn (g_jm . alpha_n) is no square: the coefficients of m meet those of n.
                seen = jnp.einsum("mjq,nq->mnj", features, inner)
                back = jnp.einsum("njq,mnj->mq", features, seen)
            return damped.product(moves) + (inverse @ back) @ basis

        return product

    def _solve_matrix(self, gram: Array, repulsion: Array) -> Array:
        """The moves by one matrix, (P D, P D).

        It is that of the weights L^-1 d with K = L L', since K^-1 on both sides of the repulsion
        has the square of the condition number.
        """
        number, dim = self.scores.shape
        factor = jnp.linalg.cholesky(gram)
        inverse = solve_triangular(factor, jnp.eye(number, dtype=gram.dtype), lower=True)
        gradients = self._features() @ self.interactions.basis  # g_jm at [m, j]
        if self.options.repulsion == "diagonal":
            blocks = gradients.mT @ gradients
            coupled = jnp.einsum("pm,mab,qm->paqb", inverse, blocks, inverse)
        else:
            every = jnp.einsum("nja,mjb->manb", gradients, gradients)
            coupled = jnp.einsum("pm,manb,qn->paqb", inverse, every, inverse)
        dense = self._of_each(self._damped().dense())
        own = jnp.einsum("pm,pab,pn->manb", factor, dense, factor)
        matrix = (own + coupled).reshape(number * dim, number * dim)
        matrix = 0.5 * (matrix + matrix.T)
        right = factor.T @ self.scores + inverse @ repulsion
        found = cholesky_solve(matrix, right.reshape(-1, 1))
        return factor @ found.reshape(number, dim)

    def _of_each(self, values: Array) -> Array:
        """Values (P, ...) of each particle from those that may be the same for all, (1, ...)."""
        return jnp.broadcast_to(values, (self._number, *values.shape[1:]))

    def _diagonals(self) -> Array:
        return self._of_each(self._damped().diagonals())

    # -- blocks on the diagonal ---------------------------------------------------------------

    def _solve_blocks(self, solver: Solver) -> Solution:
        number = self._number
        gram = self._gram()
        right = (gram @ self.scores + self.interactions.repulsion()) / number
        weights = gram**2 / number  # of H_p in block m, at [m, p]
        damped, features, basis = self._damped(), self._features(), self.interactions.basis
        if solver == "cg":

            def product(moves: Array) -> Array:
                every = jnp.broadcast_to(moves, (number, *moves.shape))
                curved = self._of_each(damped.products(every))
                mixed = jnp.einsum("mp,pmd->md", weights, curved)
                seen = jnp.einsum("mjq,mq->mj", features, moves @ basis.T)
                return mixed + jnp.einsum("mjq,mj->mq", features, seen) @ basis / number

            diagonal = weights @ self._diagonals()
            return self._iterate(product, right, lambda moves: moves / diagonal)
        if solver == "dense":
            gradients = features @ basis
            blocks = jnp.einsum("mp,pab->mab", weights, self._of_each(damped.dense()))
            blocks = blocks + gradients.mT @ gradients / number
            return _direct(cholesky_solve(blocks, right[..., None])[..., 0])
        return _direct(self._solve_blocks_dual(weights, right))

    def _solve_blocks_dual(self, weights: Array, right: Array) -> Array:
        """By Woodbury: block m is diag + V' L_m' L_m V, with V the rows of all and the basis."""
        number, dim = self.scores.shape
        damped, basis = self._damped(), self.interactions.basis
        rows = damped.rows
        count = 0 if rows is None else rows.shape[1]
        every = basis
        if rows is not None:
            every = jnp.concatenate([rows.reshape(number * count, dim), basis])
        root = jnp.sqrt(weights)

        def factor(root: Array, features: Array) -> Array:
            """L_m, of shape (P R + P, P R + Q)."""
            of_rows = jnp.diag(jnp.repeat(root, count))
            return jax.scipy.linalg.block_diag(of_rows, features / math.sqrt(number))

        factors = jax.vmap(factor)(root, self._features())
        identity = jnp.eye(factors.shape[1], dtype=every.dtype)

        def solve(
            factor: Array, products: Array, images: Array, scale: Array, base: Array, right: Array
        ) -> Array:
            """One block with base scale * base, the products V base^-1 V' and V base^-1 b."""
            capacity = factor @ products @ factor.T / scale + identity
            inner = cholesky_solve(capacity, (factor @ images)[:, None])[:, 0] / scale
            return (right - (factor.T @ inner) @ every) / (scale * base)

        if len(damped.diagonal) == 1:
            # The blocks' diagonals are multiples of one, so one product of all rows serves all.
            base = damped.diagonal[0]
            products = (every / base) @ every.T
            images = (right / base) @ every.T
            return jax.vmap(solve, (0, None, 0, 0, None, 0))(
                factors, products, images, weights.sum(axis=1), base, right
            )
        bases = weights @ damped.diagonal

        def alone(factor: Array, base: Array, right: Array) -> Array:
            products = (every / base) @ every.T
            images = every @ (right / base)
            return solve(factor, products, images, jnp.ones((), base.dtype), base, right)

        return jax.vmap(alone)(factors, bases, right)

    def _iterate(
        self,
        product: Callable[[Array], Array],
        right: Array,
        preconditioner: Callable[[Array], Array],
    ) -> Solution:
        found = conjugate_gradients(
            product, right, preconditioner, self.options.tolerance, self.options.max_iterations
        )
        return Solution(found.solution, found.definite, found.residual, found.iterations)


def _direct(moves: Array) -> Solution:
    """A solution by a direct solver."""
    zero = jnp.zeros((), moves.dtype)
    return Solution(moves, jnp.asarray(True), zero, jnp.asarray(0, jnp.int32))
