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
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Float

from ppl_ext.documented import documents_subclasses
from ppl_ext.stein.damping import damping_scale
from ppl_ext.stein.newton import NUGGET, NewtonSystem, Solver


class Solution(NamedTuple):
    """A direction and how it was found.

    Numbers are a package's own: Python's in Pyro, arrays without axes in NumPyro.

    Parameters
    ----------
    moves : array
        Moves of the particles, shape (P, D); zero where the system could not be solved.
    solved : bool
        False if it was singular or indefinite.
    residual : float
        Of conjugate gradients, relative to the right side; 0 for direct solvers.
    iterations : int
        Of conjugate gradients; 0 for direct solvers.
    """

    moves: Float[Any, "P D"]
    solved: Any
    residual: Any
    iterations: Any


@documents_subclasses
@dataclass(frozen=True)
class LinearSystem(ABC):
    """The system of one step.

    Parameters
    ----------
    interactions : Interactions
        Kernel matrix and gradients at all pairs of particles.
    curvature : Curvature
        H_p of each particle, without damping.
    scores : array
        s, shape (P, D).
    damping : array
        Diagonal that is added to every H_p, shape (D,).
    options : NewtonSystem
    """

    interactions: Any
    curvature: Any
    scores: Float[Any, "P D"]
    damping: Float[Any, " D"]
    options: NewtonSystem

    #: ``torch`` or ``jax.numpy``, of which only functions are used that are the same in both.
    xp: ClassVar[Any]
    #: Of ``curvature.solvers``.
    cholesky_solve: ClassVar[Callable[..., Any]]
    woodbury: ClassVar[Callable[..., Any]]
    conjugate_gradients: ClassVar[Callable[..., Any]]

    @classmethod
    def solved(
        cls,
        kernel: Any,
        curvature: Any,
        points: Float[Any, "P D"],
        scores: Float[Any, "P D"],
        damping: Any,
        options: NewtonSystem,
        solver: Solver,
    ) -> tuple[Solution, Float[Any, "P D"]]:
        """Newton's moves at points (P, D), and the direction of SVGD there.

        ``damping`` is in units of :func:`~ppl_ext.stein.damping.damping_scale`.
        """
        interactions = kernel.interactions(points)
        scale = damping_scale(cls.xp, curvature.diagonals())
        system = cls(interactions, curvature, scores, damping * scale, options)
        return system.solve(solver), interactions.direction(scores)

    # -- arrays of a package ------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def identity(matrix: Float[Any, "n n"]) -> Float[Any, "n n"]:
        """The identity in the shape of a square matrix."""

    @staticmethod
    @abstractmethod
    def mean_of_diagonal(matrix: Float[Any, "n n"]) -> Float[Any, ""]:
        """Mean of the entries on a diagonal."""

    @staticmethod
    @abstractmethod
    def factored(gram: Float[Any, "P P"]) -> tuple[Float[Any, "P P"], Float[Any, "P P"]]:
        """L with L L' the kernel matrix, and its inverse; not numbers where there is none."""

    @staticmethod
    @abstractmethod
    def eliminated(
        features: Float[Any, "P P Q"],
        inverse: Float[Any, "P P"],
        plain: Float[Any, "P Q"],
        inner: Float[Any, "P Q Q"],
    ) -> Float[Any, "P Q"]:
        """Weights of the basis at each particle, by elimination of the gradients.

        Parameters
        ----------
        features : array
            c_j(m), shape (P, P, Q).
        inverse : array
            K^-1.
        plain, inner : array
            Products of the basis, after the solve with each particle's curvature, with the right
            side (P, Q) and with itself (P, Q, Q).
        """

    @staticmethod
    @abstractmethod
    def squared(features: Float[Any, "P P Q"], inner: Float[Any, "P Q"]) -> Float[Any, "P Q"]:
        """sum_j c_j(m) (c_j(m) . x_m) for each particle m."""

    @staticmethod
    @abstractmethod
    def expanded(values: Any, number: int) -> Any:
        """Values of shape (1, ...) or (number, ...) as (number, ...), without a copy."""

    @staticmethod
    @abstractmethod
    def block_factors(roots: Float[Any, "P P"], features: Float[Any, "P P Q"], count: int) -> Any:
        """For each particle m the matrix diag(its roots, ``count`` times each, features of m)."""

    @staticmethod
    @abstractmethod
    def for_each(function: Callable[..., Any], *values: Any) -> Float[Any, "P D"]:
        """A function of the entries, along the first axes, of several arrays."""

    @staticmethod
    @abstractmethod
    def direct(moves: Float[Any, "P D"]) -> Solution:
        """A solution by a direct solver."""

    @staticmethod
    @abstractmethod
    def checked(found: Solution) -> Solution:
        """The solution, unsolved and without moves where these are not finite."""

    # -- pieces -------------------------------------------------------------------------------

    @property
    def _number(self) -> int:
        return len(self.scores)

    def _gram(self) -> Any:
        gram = self.interactions.gram
        # Coincident particles make the kernel matrix singular.
        return gram + NUGGET * self.mean_of_diagonal(gram) * self.identity(gram)

    def _damped(self) -> Any:
        found = self.curvature
        # The damping (D,) is the same for all particles; the diagonal is (1, D) or (P, D).
        return replace(found, diagonal=found.diagonal + self.damping)

    def _features(self) -> Any:
        """c_j(m), the coefficients of g_jm in the kernel's basis, shape (P_m, P_j, Q)."""
        return self.interactions.coefficients.swapaxes(0, 1)

    def solve(self, solver: Solver) -> Solution:
        """The moves of the particles."""
        solve = self._solve_full if self.options.coupling == "full" else self._solve_blocks
        return self.checked(solve(solver))

    # -- all blocks ---------------------------------------------------------------------------

    def _solve_full(self, solver: Solver) -> Solution:
        number, dim = self.scores.shape
        gram, basis = self._gram(), self.interactions.basis
        repulsion = self.interactions.repulsion()
        # Elimination needs a repulsion that is a square, and pays where D is above P.
        one_matrix = self.options.repulsion == "all" or dim <= number
        if solver == "dense" and one_matrix:
            return self.direct(self._solve_matrix(gram, repulsion))
        # K^-1 itself, (P, P): it multiplies the repulsion, the features and, in conjugate
        # gradients, every iterate.
        inverse = self.cholesky_solve(gram, self.identity(gram))
        right = self.scores + inverse @ repulsion
        if solver == "cg":
            diagonals = self._diagonals()
            # Preconditioned by the curvature's diagonals alone; the coupling has none that is
            # cheap.
            return self._iterate(self._full_product(inverse), right, lambda v: v / diagonals)
        # By elimination: W maps moves to (m, j) -> g_jm . (K^-1 d)_m, through their products with
        # the basis.
        shared = self.expanded(basis[None], number)
        # One solve with each particle's curvature serves the right side and the basis.
        every = self.xp.concatenate([right[:, None], shared], axis=1)
        products, solution = self._particle_solves(every, solver)
        # Vector 0 of each particle is the right side, all others are the basis.
        plain, inner = products[:, 0, 1:], products[:, 1:, 1:]
        weights = self.eliminated(self._features(), inverse, plain, inner)
        ones = self.xp.ones_like(weights[:, :1])
        return self.direct(solution(self.xp.concatenate([ones, -weights], axis=1)))

    def _particle_solves(self, vectors: Any, solver: Solver) -> tuple[Any, Callable[[Any], Any]]:
        """Solutions with the damped curvature A_p of each particle for vectors v (P, n, D).

        The products v_pi' A_p^-1 v_pj, shape (P, n, n), and the map of weights w (P, n) to
        A_p^-1 sum_i w_pi v_pi, shape (P, D).
        """
        damped = self._damped()
        if solver == "dense":
            solved = self.cholesky_solve(damped.dense(), vectors.mT).mT
            return vectors @ solved.mT, lambda weights: (weights[:, None] @ solved)[:, 0]
        found: tuple[Any, Callable[[Any], Any]]
        found = self.woodbury(damped.diagonal, damped.rows, vectors)
        return found

    def _full_product(self, inverse: Any) -> Callable[[Any], Any]:
        """Products of the full system with moves, (P, D), given K^-1.

        All that meets K^-1 has one entry for each vector of the basis, not for each coordinate.
        """
        damped, features, basis = self._damped(), self._features(), self.interactions.basis

        def product(moves: Any) -> Any:
            # Gradients g_jm lie in the span of the basis (Q, D): products with it take (P, Q)
            # numbers, where gradients of all pairs would take (P, P, D).
            inner = inverse @ (moves @ basis.T)  # (K^-1 d)_m . b_q
            if self.options.repulsion == "diagonal":
                back = self.squared(features, inner)
            else:
                # sum_n g_jn (g_jm . alpha_n) is no square: the coefficients of m meet those of n.
                seen = self.xp.einsum("mjq,nq->mnj", features, inner)
                back = self.xp.einsum("njq,mnj->mq", features, seen)
            return damped.product(moves) + (inverse @ back) @ basis

        return product

    def _solve_matrix(self, gram: Any, repulsion: Any) -> Any:
        """The moves by one matrix, (P D, P D).

        It is that of the weights L^-1 d with K = L L', since K^-1 on both sides of the repulsion
        has the square of the condition number.
        """
        number, dim = self.scores.shape
        xp, (factor, inverse) = self.xp, self.factored(gram)
        gradients = self._features() @ self.interactions.basis  # g_jm at [m, j]
        if self.options.repulsion == "diagonal":
            blocks = gradients.mT @ gradients
            coupled = xp.einsum("pm,mab,qm->paqb", inverse, blocks, inverse)
        else:
            every = xp.einsum("nja,mjb->manb", gradients, gradients)
            coupled = xp.einsum("pm,manb,qn->paqb", inverse, every, inverse)
        dense = self._of_each(self._damped().dense())
        # L' from the left, and d = L x:  L' H L x + L^-1 (P Q) L^-T x = L' s + L^-1 r.
        own = xp.einsum("pm,pab,pn->manb", factor, dense, factor)
        matrix = (own + coupled).reshape(number * dim, number * dim)
        # Symmetric up to rounding; factorisations read one triangle alone.
        matrix = 0.5 * (matrix + matrix.T)
        right = factor.T @ self.scores + inverse @ repulsion
        found = self.cholesky_solve(matrix, right.reshape(-1, 1))
        return factor @ found.reshape(number, dim)

    def _of_each(self, values: Any) -> Any:
        """Values (P, ...) of each particle from those that may be the same for all, (1, ...)."""
        return self.expanded(values, self._number)

    def _diagonals(self) -> Any:
        return self._of_each(self._damped().diagonals())

    # -- blocks on the diagonal ---------------------------------------------------------------

    def _solve_blocks(self, solver: Solver) -> Solution:
        number = self._number
        gram = self._gram()
        # phi, the direction of SVGD: 1/P (K s + r).
        right = (gram @ self.scores + self.interactions.repulsion()) / number
        # h_mm: the squared kernel weighs the curvature of each particle.
        weights = gram**2 / number  # of H_p in block m, at [m, p]
        damped, features, basis = self._damped(), self._features(), self.interactions.basis
        xp = self.xp
        if solver == "cg":

            def product(moves: Any) -> Any:
                every = self.expanded(moves[None], number)
                curved = self._of_each(damped.products(every))
                mixed = xp.einsum("mp,pmd->md", weights, curved)
                seen = xp.einsum("mjq,mq->mj", features, moves @ basis.T)
                return mixed + xp.einsum("mjq,mj->mq", features, seen) @ basis / number

            diagonal = weights @ self._diagonals()
            return self._iterate(product, right, lambda moves: moves / diagonal)
        if solver == "dense":
            gradients = features @ basis
            blocks = xp.einsum("mp,pab->mab", weights, self._of_each(damped.dense()))
            blocks = blocks + gradients.mT @ gradients / number
            return self.direct(self.cholesky_solve(blocks, right[..., None])[..., 0])
        return self.direct(self._solve_blocks_dual(weights, right))

    def _solve_blocks_dual(self, weights: Any, right: Any) -> Any:
        """By Woodbury: block m is diag + V' L_m' L_m V, with V the rows of all and the basis."""
        number, dim = self.scores.shape
        damped, basis = self._damped(), self.interactions.basis
        rows = damped.rows
        count = 0 if rows is None else rows.shape[1]
        every = basis
        if rows is not None:
            every = self.xp.concatenate([rows.reshape(number * count, dim), basis])
        # L_m, of shape (P R + P, P R + Q).
        features = self._features() / math.sqrt(number)
        # The root of h_mm: the rows of particle p times sqrt(w_mp), and the features over sqrt(P),
        # whose square is Q_m.
        factors = self.block_factors(self.xp.sqrt(weights), features, count)

        def solve(
            factor: Any, products: Any, images: Any, scale: Any, base: Any, right: Any
        ) -> Any:
            """One block with base scale * base, the products V base^-1 V' and V base^-1 b."""
            # Woodbury's identity with U = L_m V and a base B: (B + U'U)^-1 b = B^-1 b - B^-1 U' (I
            # + U B^-1 U')^-1 U B^-1 b.
            capacity = factor @ products @ factor.T / scale
            capacity = capacity + self.identity(capacity)
            inner = self.cholesky_solve(capacity, (factor @ images)[:, None])[:, 0] / scale
            return (right - (factor.T @ inner) @ every) / (scale * base)

        if len(damped.diagonal) == 1:
            # The blocks' diagonals are multiples of one, so one product of all rows serves all.
            base = damped.diagonal[0]
            products = (every / base) @ every.T
            images = (right / base) @ every.T

            def scaled(factor: Any, images: Any, scale: Any, right: Any) -> Any:
                return solve(factor, products, images, scale, base, right)

            return self.for_each(scaled, factors, images, weights.sum(axis=1), right)
        bases = weights @ damped.diagonal

        def alone(factor: Any, base: Any, right: Any) -> Any:
            products = (every / base) @ every.T
            images = every @ (right / base)
            return solve(factor, products, images, self.xp.ones_like(base[0]), base, right)

        return self.for_each(alone, factors, bases, right)

    def _iterate(
        self,
        product: Callable[[Any], Any],
        right: Any,
        preconditioner: Callable[[Any], Any],
    ) -> Solution:
        found = self.conjugate_gradients(
            product, right, preconditioner, self.options.tolerance, self.options.max_iterations
        )
        return Solution(found.solution, found.definite, found.residual, found.iterations)
