"""A Normal guide with a Kronecker covariance for each matrix-shaped site (``AutoMatrixNormal``).

A weight matrix W (n x p) has the posterior approximation ``W = M + A E B^T`` with standard Normal
E: the matrix normal distribution with row covariance U = A A^T and column covariance V = B B^T.
The entries of W taken row by row have the covariance U (x) V, which is described by
n (n + 1) / 2 + p (p + 1) / 2 numbers and never formed.

Source of the distribution: A. P. Dawid, "Some matrix-variate distribution theory: notational
considerations and a Bayesian application", Biometrika 68 (1981). As an approximate posterior of
network weights: C. Louizos and M. Welling, "Structured and efficient variational deep learning
with matrix Gaussian posteriors", ICML 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.linalg import block_diag
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_uniform

from numpyro_ext.guides.flat_density import Moments, Parameters, register_flat_density
from numpyro_ext.guides.normal import LOG_TWO_PI, NormalDensity, _solve_lower
from ppl_ext.guides.layouts import Blocks, find_blocks
from ppl_ext.options import check_number


class Factors(NamedTuple):
    """What an ``AutoMatrixNormal`` is made of.

    ``mean`` is (D,). ``scale`` holds the standard deviations (R,) of the coordinates that belong
    to no matrix, in flat order. ``matrices`` gives for each matrix-shaped site, by name, the lower
    triangular factors A (n, n) and B (p, p) of the covariance A A^T (x) B B^T.
    """

    mean: jax.Array
    scale: jax.Array
    matrices: dict[str, tuple[jax.Array, jax.Array]]


class MatrixNormalTransform(Transform):
    """``mean + A E B^T`` for each matrix of the flat vector, ``mean + scale * e`` for the rest.

    Parameters
    ----------
    factors : Factors
    blocks : Blocks
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, factors: Factors, blocks: Blocks) -> None:
        self.factors = factors
        self.blocks = blocks

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.factors.mean + _scaled(x, self.factors, self.blocks)

    def _inverse(self, y: jax.Array) -> jax.Array:
        return _whitened(y - self.factors.mean, self.factors, self.blocks)

    def log_abs_det_jacobian(self, x: jax.Array, y: jax.Array, intermediates: Any = None) -> Any:
        return jnp.broadcast_to(_log_determinant(self.factors, self.blocks), jnp.shape(x)[:-1])

    def tree_flatten(self) -> Any:
        return (self.factors,), (("factors",), {"blocks": self.blocks})


class AutoMatrixNormal(AutoContinuous):
    """Normal guide whose covariance is a Kronecker product for each matrix-shaped site.

    The covariance over the flat unconstrained vector is block diagonal by site. A site whose
    unconstrained value has at least two axes longer than one is taken as a matrix W: its first
    axis (axes of length one aside) is the n rows, the remaining ones together are the p columns.
    It is ``W = M + A E B^T`` with standard Normal E, hence its entries, row by row, have the
    covariance ``A A^T (x) B B^T``. Every other site is diagonal.

    A and B are lower triangular with a positive diagonal. They share one scale, as (c A, B / c) is
    the same guide; at the start, and after
    :meth:`MatrixNormalDensity.set_factors`, it is divided evenly.

    Parameters
    ----------
    model : callable
        NumPyro model.
    prefix : str
        Prefix of the parameters' names; NumPyro's default.
    init_loc_fn : callable
        Initial values by site; NumPyro's default.
    init_scale : float
        Initial standard deviation of each unconstrained coordinate; NumPyro's default.

    Notes
    -----
    Parameters: ``auto_loc`` (D,); ``auto_scale`` (R,), where R > 0 coordinates belong to no
    matrix; and for each matrix-shaped site A as ``auto_<site>_row_tril`` (n, n) and B as
    ``auto_<site>_column_tril`` (p, p).

    Raises
    ------
    ArgumentError
        ``init_scale`` is not a positive number.
    """

    scale_constraint = constraints.softplus_positive
    scale_tril_constraint = constraints.scaled_unit_lower_cholesky

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        prefix: str = "auto",
        init_loc_fn: Callable[..., Any] = init_to_uniform,
        init_scale: float = 0.1,
    ) -> None:
        check_number("init_scale", init_scale)
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)
        self._init_scale = float(init_scale)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        shapes = {name: jnp.shape(value) for name, value in self._init_locs.items()}
        self.blocks = find_blocks(shapes)

    def _factors(self) -> Factors:
        dtype = self._init_latent.dtype
        loc = numpyro.param(f"{self.prefix}_loc", self._init_latent)
        scale = jnp.full(self.blocks.num_rest, self._init_scale, dtype)
        if self.blocks.num_rest:
            scale = numpyro.param(f"{self.prefix}_scale", scale, constraint=self.scale_constraint)

        def factor(name: str, side: str, length: int) -> Any:
            return numpyro.param(
                f"{self.prefix}_{name}_{side}_tril",
                math.sqrt(self._init_scale) * jnp.identity(length, dtype),
                constraint=self.scale_tril_constraint,
            )

        matrices = {
            name: (factor(name, "row", shape[0]), factor(name, "column", shape[1]))
            for name, _, shape in self.blocks.matrices
        }
        return Factors(loc, scale, matrices)

    def _get_posterior(self) -> dist.TransformedDistribution:
        transform = MatrixNormalTransform(self._factors(), self.blocks)
        return dist.TransformedDistribution(self.get_base_dist(), transform)

    def get_base_dist(self) -> Any:
        """Standard Normal over the flat vector."""
        return dist.Normal(jnp.zeros(self.latent_dim, self._init_latent.dtype), 1).to_event(1)

    def median(self, params: dict[str, Any]) -> dict[str, Any]:
        """Median of each latent site under these parameters."""
        return self._unpack_and_constrain(params[f"{self.prefix}_loc"], params)

    def quantiles(self, params: dict[str, Any], quantiles: Any) -> dict[str, Any]:
        """Quantiles of each latent site, coordinate by coordinate, under these parameters."""
        factors = handlers.substitute(self._factors, data=params)()
        # The marginal variance of W_ij is U_ii V_jj.
        matrices = [
            jnp.outer(*(jnp.linalg.norm(factor, axis=-1) for factor in factors.matrices[name]))
            for name, _, _ in self.blocks.matrices
        ]
        deviations = _join(matrices, factors.scale, self.blocks)
        latent = dist.Normal(factors.mean, deviations).icdf(jnp.asarray(quantiles)[..., None])
        return self._unpack_and_constrain(latent, params)


@register_flat_density(AutoMatrixNormal)
class MatrixNormalDensity(NormalDensity):
    """``AutoMatrixNormal``: closed forms by triangular solves with A and B.

    O(n p (n + p)) operations per draw and matrix, O(n p) memory.
    """

    covariance_structure = "matrix_normal"

    def blocks(self) -> Blocks:
        """Which parts of the flat vector are matrices and which are the rest."""
        return self.guide.blocks

    def factors(self, parameters: Parameters) -> Factors:
        """Mean, factors of each matrix, and standard deviations of the rest.

        Differentiable in the parameters. Only the products A (x) B are determined: (c A, B / c)
        is the same density.
        """
        loc = self._get(parameters, "loc")
        rest = self.blocks().num_rest
        scale = self._get(parameters, "scale") if rest else jnp.zeros(0, loc.dtype)
        matrices = {
            name: (
                self._get(parameters, f"{name}_row_tril"),
                self._get(parameters, f"{name}_column_tril"),
            )
            for name, _, _ in self.blocks().matrices
        }
        return Factors(loc, scale, matrices)

    def set_factors(self, parameters: Parameters, factors: Factors) -> Parameters:
        """New parameters with which the guide has these factors.

        The scale that A and B share is divided so that their diagonals have the same geometric
        mean; the density is that of the given factors.

        Parameters
        ----------
        parameters : dict of arrays
            Present parameters.
        factors : Factors
            As :meth:`factors` gives them: A and B lower triangular with positive diagonals.

        Returns
        -------
        dict of arrays
        """
        values = {"loc": factors.mean}
        if self.blocks().num_rest:
            values["scale"] = factors.scale
        for name, (row, column) in factors.matrices.items():
            row_level, column_level = (
                jnp.log(jnp.diagonal(factor)).mean() for factor in (row, column)
            )
            ratio = jnp.exp(0.5 * (column_level - row_level))
            values[f"{name}_row_tril"] = row * ratio
            values[f"{name}_column_tril"] = column / ratio
        return self._set(**values)

    def set_scale(self, parameters: Parameters, scale: float) -> Parameters:
        """New parameters with this standard deviation everywhere, uncorrelated, the same mean."""
        factors = self.factors(parameters)
        mean, half = factors.mean, math.sqrt(scale)

        def unit(length: int) -> Any:
            return half * jnp.eye(length, dtype=mean.dtype)

        matrices = {
            name: (unit(rows), unit(columns)) for name, _, (rows, columns) in self.blocks().matrices
        }
        return self.set_factors(
            parameters, Factors(mean, jnp.full_like(factors.scale, scale), matrices)
        )

    def sample(self, parameters: Parameters, rng_key: jax.Array, num: int) -> jax.Array:
        factors = self.factors(parameters)
        noise = self.noise(parameters, rng_key, (num, self.dim))
        draws = factors.mean + _scaled(noise, factors, self.blocks())
        return jax.lax.stop_gradient(draws)

    def log_prob(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        factors, blocks = self.factors(parameters), self.blocks()
        standard = _whitened(theta - factors.mean, factors, blocks)
        square = jnp.square(standard).sum(-1) + self.dim * LOG_TWO_PI
        return -0.5 * square - _log_determinant(factors, blocks)

    def score(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        factors, blocks = self.factors(parameters), self.blocks()
        matrices, rest = _split(factors.mean - theta, blocks)
        # grad log q (W) = -U^{-1} (W - M) V^{-1}.
        scores = [
            _solve(pair, _solve(pair, matrix), transpose=True)
            for pair, matrix in zip(_pairs(factors, blocks), matrices, strict=True)
        ]
        return _join(scores, rest / jnp.square(factors.scale), blocks)

    def moments(self, parameters: Parameters) -> Moments:
        """Mean (D,) and dense Cholesky factor (D, D): for small D only."""
        factors, blocks = self.factors(parameters), self.blocks()
        dense = {
            where.start: jnp.kron(*factors.matrices[name]) for name, where, _ in blocks.matrices
        }
        used = 0
        for where in blocks.rest:
            size = where.stop - where.start
            dense[where.start] = jnp.diag(factors.scale[used : used + size])
            used += size
        return Moments(factors.mean, block_diag(*(dense[start] for start in sorted(dense))))


def _pairs(factors: Factors, blocks: Blocks) -> list[tuple[jax.Array, jax.Array]]:
    """Factors in the order of the flat vector: JAX sorts dictionaries by their keys."""
    return [factors.matrices[name] for name, _, _ in blocks.matrices]


def _split(x: jax.Array, blocks: Blocks) -> tuple[list[jax.Array], jax.Array]:
    """Matrices (..., n, p) and the rest (..., R) of flat vectors (..., D)."""
    lead = jnp.shape(x)[:-1]
    matrices = [x[..., where].reshape(*lead, *shape) for _, where, shape in blocks.matrices]
    rest = [x[..., where] for where in blocks.rest]
    return matrices, jnp.concatenate(rest, -1) if rest else x[..., :0]


def _join(matrices: Sequence[jax.Array], rest: jax.Array, blocks: Blocks) -> jax.Array:
    """Inverse of :func:`_split`."""
    parts = {
        block.where.start: matrix.reshape(*matrix.shape[:-2], -1)
        for block, matrix in zip(blocks.matrices, matrices, strict=True)
    }
    used = 0
    for where in blocks.rest:
        size = where.stop - where.start
        parts[where.start] = rest[..., used : used + size]
        used += size
    return jnp.concatenate([parts[start] for start in sorted(parts)], -1)


def _scaled(x: jax.Array, factors: Factors, blocks: Blocks) -> jax.Array:
    """``A E B^T`` and ``scale * e`` of standard Normal vectors (..., D)."""
    matrices, rest = _split(x, blocks)
    scaled = [
        row @ (matrix @ column.T)
        for (row, column), matrix in zip(_pairs(factors, blocks), matrices, strict=True)
    ]
    return _join(scaled, rest * factors.scale, blocks)


def _whitened(x: jax.Array, factors: Factors, blocks: Blocks) -> jax.Array:
    """Inverse of :func:`_scaled`."""
    matrices, rest = _split(x, blocks)
    whitened = [
        _solve(pair, matrix) for pair, matrix in zip(_pairs(factors, blocks), matrices, strict=True)
    ]
    return _join(whitened, rest / factors.scale, blocks)


def _solve(
    pair: tuple[jax.Array, jax.Array], matrix: jax.Array, transpose: bool = False
) -> jax.Array:
    """``A^{-1} X B^{-T}``, or ``A^{-T} X B^{-1}``, of matrices (..., n, p)."""
    row, column = pair
    # Right-hand sides of all draws together, so that each factor is read once.
    half = _solve_lower(column, matrix, transpose)
    return _solve_lower(row, half.mT, transpose).mT


def _log_determinant(factors: Factors, blocks: Blocks) -> jax.Array:
    """Log determinant of the map from standard Normal vectors."""
    total = jnp.log(factors.scale).sum()
    for name, _, (rows, columns) in blocks.matrices:
        row, column = factors.matrices[name]
        # det(A (x) B) = det(A)^p det(B)^n.
        total += columns * jnp.log(jnp.diagonal(row)).sum()
        total += rows * jnp.log(jnp.diagonal(column)).sum()
    return total
