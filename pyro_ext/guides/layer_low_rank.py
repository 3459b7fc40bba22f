"""A Normal guide with a low-rank covariance for each layer of a network.

Weights and biases of one layer are jointly Normal with covariance ``S (I + W W^T) S``, S a
diagonal of scales and W a factor with few columns; layers are independent of each other. For the
same number of columns this describes correlations within every layer, where one low-rank
covariance over all weights shares its few directions between them, at the same cost.

Source of the covariance: V. M.-H. Ong, D. J. Nott and M. S. Smith, "Gaussian variational
approximation with a factor covariance structure", Journal of Computational and Graphical
Statistics 27 (2018). For the layers of networks: M. Tomczak, S. Swaroop and R. Turner, "Efficient
low rank Gaussian variational inference for neural networks", NeurIPS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.infer.autoguide.guides import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_median
from pyro.nn.module import PyroParam
from torch import Tensor, nn

from ppl_ext.guides.layouts import Layer, find_layers
from ppl_ext.options import check_count, check_number
from pyro_ext.guides.flat_density import Moments, Parameters, register_flat_density
from pyro_ext.guides.normal import LOG_TWO_PI, NormalDensity


class LayerLowRankNormal(TorchDistribution):
    """Normal over a flat vector, of covariance ``S (I + W W^T) S`` within each layer.

    Parameters
    ----------
    loc : tensor (..., D)
    scale : tensor (D,)
        The diagonal of S, positive.
    cov_factor : tensor (D, r)
        The rows of W, layer by layer independent of each other.
    layers : tuple of Layer
        Together they are the whole vector.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real_vector,
        "scale": constraints.independent(constraints.positive, 1),
        "cov_factor": constraints.independent(constraints.real, 2),
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor,
        cov_factor: Tensor,
        layers: tuple[Layer, ...],
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale, self.cov_factor, self.layers = loc, scale, cov_factor, layers
        super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> LayerLowRankNormal:
        loc = self.loc.expand((*batch_shape, *self.event_shape))
        return LayerLowRankNormal(
            loc, self.scale, self.cov_factor, self.layers, validate_args=False
        )

    def rsample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """Differentiable draws (..., D), from torch's global generator unless one is given."""
        lead = (*sample_shape, *self.batch_shape)

        def normal(*shape: int) -> Tensor:
            device = self.loc.device if generator is None else generator.device
            noise = torch.randn(
                (*lead, *shape), generator=generator, dtype=self.loc.dtype, device=device
            )
            return noise.to(self.loc.device)

        noise = normal(*self.event_shape)
        inner = normal(len(self.layers), self.cov_factor.shape[-1])
        noise = noise + _lifted(inner, self.cov_factor, self.layers)
        return self.loc + self.scale * noise

    def log_prob(self, value: Tensor) -> Tensor:
        standard = (value - self.loc) / self.scale
        root = _roots(self.cov_factor, self.layers)
        inner = _solved(root, _projected(standard, self.cov_factor, self.layers))
        square = standard.square().sum(-1) - inner.square().sum((-2, -1))
        log_determinant = self.scale.log().sum()
        log_determinant = log_determinant + root.diagonal(dim1=-2, dim2=-1).log().sum()
        return -0.5 * (square + self.event_shape[0] * LOG_TWO_PI) - log_determinant

    def score(self, value: Tensor) -> Tensor:
        """Gradient of the log density, (..., D)."""
        standard = (value - self.loc) / self.scale
        root = _roots(self.cov_factor, self.layers)
        inner = _solved(root, _projected(standard, self.cov_factor, self.layers))
        inner = _solved(root, inner, transpose=True)
        return (_lifted(inner, self.cov_factor, self.layers) - standard) / self.scale

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (1.0 + self.cov_factor.square().sum(-1))

    def covariance_matrix(self) -> Tensor:
        """Dense covariance (D, D): for small D only."""
        scaled = self.scale.unsqueeze(-1) * self.cov_factor
        member = scaled.new_zeros(len(self.layers), *self.event_shape)
        for number, layer in enumerate(self.layers):
            for start, stop in layer.places:
                member[number, start:stop] = 1.0
        return (member.T @ member) * (scaled @ scaled.T) + torch.diag(self.scale.square())


class AutoLayerLowRankNormal(AutoContinuous):
    """Normal guide with a low-rank plus diagonal covariance for each layer of a network.

    Within a layer the covariance is ``S (I + W W^T) S``, S a diagonal of scales and W of ``rank``
    columns; layers are independent. Which sites are one layer is read from their names, all
    before the last dot: "net.0.weight" and "net.0.bias" are. A site without a dot is a layer of
    its own.

    Parameters
    ----------
    model : callable
        Pyro model.
    rank : int
        Columns of W in each layer.
    layers : mapping of str to str, optional
        Names of layers by site, for sites that belong to another one than their name says.
    init_loc_fn : callable
        Initial values by site; Pyro's default.
    init_scale : float
        Initial standard deviation of each unconstrained coordinate, on average; Pyro's default.

    Notes
    -----
    Parameters, by the names of ``named_parameters()``: ``loc`` (D,), ``scale_unconstrained`` (D,)
    and ``cov_factor`` (D, rank), the rows of W for all layers. W starts at random, since nothing
    would leave W = 0.

    Raises
    ------
    ArgumentError
        An option is out of range; when the guide first sees its model, ``layers`` names a site
        that there is not.
    """

    scale_constraint = constraints.softplus_positive

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        rank: int = 5,
        layers: Mapping[str, str] | None = None,
        init_loc_fn: Callable[..., Any] = init_to_median,
        init_scale: float = 0.1,
    ) -> None:
        check_count("rank", rank)
        check_number("init_scale", init_scale)
        super().__init__(model, init_loc_fn=init_loc_fn)
        self.rank = rank
        self._init_scale = float(init_scale)
        self._given_layers = None if layers is None else dict(layers)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        self.layers = find_layers(self._unconstrained_shapes, self._given_layers)
        self.loc = nn.Parameter(self._init_loc())
        scale = self.loc.new_full((self.latent_dim,), math.sqrt(0.5) * self._init_scale)
        self.scale = PyroParam(scale, self.scale_constraint)
        factor = self.loc.new_empty(self.latent_dim, self.rank)
        self.cov_factor = nn.Parameter(factor.normal_(0.0, 1.0 / math.sqrt(self.rank)))

    def get_posterior(self, *args: Any, **kwargs: Any) -> LayerLowRankNormal:
        """The posterior over the flat vector."""
        return LayerLowRankNormal(self.loc, self.scale, self.cov_factor, self.layers)

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        posterior = self.get_posterior()
        return posterior.mean, posterior.variance.sqrt()


@register_flat_density(AutoLayerLowRankNormal)
class LayerLowRankNormalDensity(NormalDensity):
    """``AutoLayerLowRankNormal``: closed forms by Woodbury's identity in each layer.

    O(D r) operations per draw, and a Cholesky factor of size r for each layer.
    """

    covariance_structure = "layer_low_rank"

    def _posterior(self, parameters: Parameters) -> LayerLowRankNormal:
        loc, factor = parameters["loc"], parameters["cov_factor"]
        scale = self._scale(parameters)
        # Validation costs more than the density.
        return LayerLowRankNormal(loc, scale, factor, self.guide.layers, validate_args=False)

    @torch.no_grad()
    def sample(self, parameters: Parameters, generator: torch.Generator, num: int) -> Tensor:
        return self._posterior(parameters).rsample((num,), generator)

    def log_prob(self, parameters: Parameters, theta: Tensor) -> Tensor:
        return self._posterior(parameters).log_prob(theta)

    def score(self, parameters: Parameters, theta: Tensor) -> Tensor:
        return self._posterior(parameters).score(theta)

    def set_scale(self, parameters: Parameters, scale: float) -> Parameters:
        """New parameters with this standard deviation everywhere, and the same mean and W."""
        factor = parameters["cov_factor"]
        deviations = scale * (1.0 + factor.square().sum(-1)).rsqrt()
        return {**parameters, "scale_unconstrained": self._unconstrained_scale(deviations)}

    def moments(self, parameters: Parameters) -> Moments:
        """Mean (D,) and dense Cholesky factor (D, D): for small D only."""
        posterior = self._posterior(parameters)
        return Moments(posterior.loc, torch.linalg.cholesky(posterior.covariance_matrix()))


def _projected(x: Tensor, factor: Tensor, layers: Sequence[Layer]) -> Tensor:
    """``x^T W`` in each layer, (..., layers, r), of vectors (..., D)."""
    products = [
        torch.stack([x[..., start:stop] @ factor[start:stop] for start, stop in layer.places])
        for layer in layers
    ]
    return torch.stack([product.sum(0) for product in products], -2)


def _lifted(inner: Tensor, factor: Tensor, layers: Sequence[Layer]) -> Tensor:
    """``W z`` in each layer, (..., D), of vectors (..., layers, r)."""
    parts = {
        start: inner[..., number, :] @ factor[start:stop].T
        for number, layer in enumerate(layers)
        for start, stop in layer.places
    }
    return torch.cat([parts[start] for start in sorted(parts)], -1)


def _roots(factor: Tensor, layers: Sequence[Layer]) -> Tensor:
    """Cholesky factor of I + W^T W in each layer, (layers, r, r)."""
    products = [
        torch.stack([factor[start:stop].T @ factor[start:stop] for start, stop in layer.places])
        for layer in layers
    ]
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.cholesky(identity + torch.stack([product.sum(0) for product in products]))


def _solved(root: Tensor, inner: Tensor, transpose: bool = False) -> Tensor:
    """Solve L x = v, or L^T x = v, in each layer, for vectors (..., layers, r)."""
    # Layers first, and the vectors of all draws as columns.
    columns = inner.reshape(-1, *root.shape[:2]).movedim(0, -1)
    matrix = root.mT if transpose else root
    solved = torch.linalg.solve_triangular(matrix, columns, upper=transpose)
    return solved.movedim(-1, 0).reshape(inner.shape)
