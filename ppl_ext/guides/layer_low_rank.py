"""A Normal guide with a low-rank covariance for each layer of a network.

Weights and biases of one layer are jointly Normal with covariance ``S (I + W W^T) S``, S a
diagonal of scales and W a factor with few columns; layers are independent of each other. For the
same number of columns this describes correlations within every layer, where one low-rank
covariance over all weights shares its few directions between them, at the same cost.

Source of the covariance: V. M.-H. Ong, D. J. Nott and M. S. Smith, "Gaussian variational
approximation with a factor covariance structure", Journal of Computational and Graphical
Statistics 27 (2018), https://arxiv.org/abs/1701.03208. For the layers of networks: M. Tomczak, S.
Swaroop and R. Turner, "Efficient low rank Gaussian variational inference for neural networks",
NeurIPS 2020,
https://proceedings.neurips.cc/paper/2020/file/310cc7ca5a76a446f85c1a0d641ba96d-Paper.pdf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from ppl_ext.documented import documents_subclasses
from ppl_ext.guides.arrays import LOG_TWO_PI, ArrayFunctions
from ppl_ext.guides.flat_density import FlatDensityShell, Moments
from ppl_ext.guides.layouts import Layer
from ppl_ext.guides.normal import with_scale
from ppl_ext.options import check_count, check_number
from ppl_ext.start.start import Start


@documents_subclasses
class LayerFormulas:
    """Normal over a flat vector, of covariance ``S (I + W W^T) S`` within each layer.

    Parameters
    ----------
    loc : array (..., D)
        Without further axes in NumPyro.
    scale : array (D,)
        The diagonal of S, positive.
    cov_factor : array (D, r)
        The rows of W, layer by layer independent of each other.
    layers : tuple of Layer
        Together they are the whole vector.
    """

    arrays: ClassVar[type[ArrayFunctions]]

    def __init__(
        self,
        loc: Float[Any, "... D"],
        scale: Float[Any, " D"],
        cov_factor: Float[Any, "D r"],
        layers: tuple[Layer, ...],
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.loc: Any = loc
        self.scale: Any = scale
        self.cov_factor: Any = cov_factor
        self.layers = layers
        # What follows in a package's class is the host's distribution.
        shapes: Any = loc.shape[:-1], loc.shape[-1:]
        super().__init__(*shapes, validate_args=validate_args)  # type: ignore[call-arg]

    def _draw(self, noise: Any, inner: Any) -> Any:
        """Draws (..., D) from standard Normal numbers (..., D) and (..., layers, r)."""
        return self.loc + self.scale * (noise + self._lifted(inner))

    def _left(self, value: Any, root: Any) -> tuple[Any, Any]:
        """Of z = S^{-1} (value - loc): z - W c (..., D) and c = (I + W^T W)^{-1} W^T z."""
        standard = (value - self.loc) / self.scale
        inner = self._solved(root, self._projected(standard))
        inner = self._solved(root, inner, transpose=True)
        return standard - self._lifted(inner), inner

    def log_prob(self, value: Any) -> Any:
        log, root = self.arrays.xp.log, self._roots()
        left, inner = self._left(value, root)
        # z^T (I + W W^T)^{-1} z as a sum: |z|^2 less what W explains cancels where W is large.
        square = (left**2).sum(-1) + (inner**2).sum((-2, -1))
        # det(S (I + W W') S) = det(S)^2 det(I + W' W), by the roots.
        log_determinant = log(self.scale).sum() + log(self.arrays.diagonal(root)).sum()
        return -0.5 * (square + len(self.scale) * LOG_TWO_PI) - log_determinant

    def score(self, value: Any) -> Any:
        """Gradient of the log density, (..., D)."""
        left, _ = self._left(value, self._roots())
        return -left / self.scale

    @property
    def mean(self) -> Any:
        return self.loc

    @property
    def variance(self) -> Any:
        return self.scale**2 * (1.0 + (self.cov_factor**2).sum(-1))

    def covariance_matrix(self) -> Any:
        """Dense covariance (D, D): for small D only."""
        scaled = self.scale[:, None] * self.cov_factor
        # Rows of ones at the coordinates of a layer: its products are 1 where two are of one layer.
        member = np.zeros((len(self.layers), len(self.scale)))
        for number, layer in enumerate(self.layers):
            for start, stop in layer.places:
                member[number, start:stop] = 1.0
        together = self.arrays.as_array(member.T @ member, scaled)
        return together * (scaled @ scaled.T) + self.arrays.xp.diag(self.scale**2)

    def _projected(self, x: Any) -> Any:
        """``x^T W`` in each layer, (..., layers, r), of vectors (..., D)."""
        factor = self.cov_factor
        products = [
            sum(x[..., start:stop] @ factor[start:stop] for start, stop in layer.places)
            for layer in self.layers
        ]
        return self.arrays.xp.stack(products, -2)

    def _lifted(self, inner: Any) -> Any:
        """``W z`` in each layer, (..., D), of vectors (..., layers, r)."""
        parts = {
            start: inner[..., number, :] @ self.cov_factor[start:stop].T
            for number, layer in enumerate(self.layers)
            for start, stop in layer.places
        }
        return self.arrays.xp.concatenate([parts[start] for start in sorted(parts)], -1)

    def _roots(self) -> Any:
        """Cholesky factor of I + W^T W in each layer, (layers, r, r)."""
        factor = self.cov_factor
        products = [
            sum(factor[start:stop].T @ factor[start:stop] for start, stop in layer.places)
            for layer in self.layers
        ]
        identity = self.arrays.identity(factor.shape[-1], factor)
        return self.arrays.xp.linalg.cholesky(identity + self.arrays.xp.stack(products))

    def _solved(self, root: Any, inner: Any, transpose: bool = False) -> Any:
        """Solve L x = v, or L^T x = v, in each layer, for vectors (..., layers, r)."""
        # Layers first, and the vectors of all draws in the rows.
        rows = self.arrays.xp.moveaxis(inner.reshape(-1, *root.shape[:2]), 0, 1)
        solved = self.arrays.solve_lower(root, rows, transpose)
        return self.arrays.xp.moveaxis(solved, 0, 1).reshape(inner.shape)


@documents_subclasses
class LayerGuide:
    """Normal guide with a low-rank plus diagonal covariance for each layer of a network.

    Each package's ``AutoLayerLowRankNormal`` has the whole text.
    """

    def _set_options(self, rank: int, layers: Mapping[str, str] | None, init_scale: float) -> None:
        check_count("rank", rank)
        check_number("init_scale", init_scale)
        self.rank = rank
        self._init_scale = float(init_scale)
        self._given_layers = None if layers is None else dict(layers)


class LayerDensity(FlatDensityShell):
    """``AutoLayerLowRankNormal``: closed forms by Woodbury's identity in each layer.

    O(D r) operations per draw, and a Cholesky factor of size r for each layer.
    """

    set_parts: Callable[..., Any]
    set_scale = with_scale

    def _posterior(self, parameters: Any) -> Any:
        """The distribution with these parameters."""
        raise NotImplementedError

    def parts(self, parameters: Any) -> tuple[Any, Any, Any]:
        """The mean, the diagonal of S, and W."""
        posterior = self._posterior(parameters)
        return posterior.loc, posterior.scale, posterior.cov_factor

    def set_start(self, parameters: Any, start: Start) -> Any:
        """The start's mean and deviations of each coordinate given the others; W stays."""
        present, deviations = self._posterior(parameters), start.modes[0].conditional_deviations
        loc, scale = (self.arrays.as_array(each, present.loc) for each in (start.mean, deviations))
        # What the factor adds to the variance is taken from the scale.
        scale = scale * present.scale / self.arrays.xp.sqrt(present.variance)
        return self.set_parts(loc, scale, present.cov_factor)

    def log_prob(self, parameters: Any, theta: Any) -> Any:
        return self._posterior(parameters).log_prob(theta)

    def score(self, parameters: Any, theta: Any) -> Any:
        return self._posterior(parameters).score(theta)

    def moments(self, parameters: Any) -> Moments:
        """Mean (D,) and dense Cholesky factor (D, D): for small D only."""
        posterior = self._posterior(parameters)
        return Moments(posterior.loc, self.arrays.xp.linalg.cholesky(posterior.covariance_matrix()))
