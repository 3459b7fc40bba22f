"""A Normal guide with low-rank covariances by layer; see :mod:`ppl_ext.guides.layer_low_rank`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.infer.autoguide.guides import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_median
from pyro.nn.module import PyroParam
from torch import Generator, Tensor, nn

from ppl_ext.guides import layer_low_rank as shared
from ppl_ext.guides.layouts import find_layers
from pyro_ext.guides.arrays import TensorFunctions
from pyro_ext.guides.flat_density import Draws, Parameters, register_flat_density
from pyro_ext.guides.normal import NormalDensity


class LayerLowRankNormal(shared.LayerFormulas, TorchDistribution):
    arrays = TensorFunctions
    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real_vector,
        "scale": constraints.independent(constraints.positive, 1),
        "cov_factor": constraints.independent(constraints.real, 2),
    }
    support = constraints.real_vector
    has_rsample = True

    def expand(self, batch_shape: Any, _instance: Any = None) -> LayerLowRankNormal:
        # The batch shape is read off the mean alone. The scale and the factor broadcast against it.
        loc = self.loc.expand((*batch_shape, *self.event_shape))
        return LayerLowRankNormal(
            loc, self.scale, self.cov_factor, self.layers, validate_args=False
        )

    def rsample(
        self, sample_shape: Any = (), generator: Generator | None = None
    ) -> Float[Tensor, "*S D"]:
        """Differentiable draws (..., D), from torch's global generator unless one is given."""
        lead = (*sample_shape, *self.batch_shape)

        def normal(*shape: int) -> Tensor:
            # A generator draws on its own device only. The numbers are moved afterwards.
            device = self.loc.device if generator is None else generator.device
            noise = torch.randn(
                (*lead, *shape), generator=generator, dtype=self.loc.dtype, device=device
            )
            return noise.to(self.loc.device)

        noise = normal(*self.event_shape)
        return self._draw(noise, normal(len(self.layers), self.cov_factor.shape[-1]))


class AutoLayerLowRankNormal(shared.LayerGuide, AutoContinuous):
    """Normal guide with a low-rank plus diagonal covariance for each layer of a network.

    Within a layer the covariance is ``S (I + W W^T) S``, S a diagonal of scales and W of ``rank``
    columns; layers are independent. Sites whose names are the same up to the last dot are one
    layer: "net.0.weight" and "net.0.bias", or "net/Dense_0.kernel" and "net/Dense_0.bias". A site
    without a dot is a layer of its own.

    Parameters
    ----------
    model : callable
        The host's model.
    rank : int
        Columns of W in each layer.
    layers : mapping of str to str, optional
        Names of layers by site, for sites that belong to another one than their name says.
    prefix : str
        Prefix of the parameters' names, in NumPyro alone; the host's default.
    init_loc_fn : callable
        Initial values by site; the host's default.
    init_scale : float
        Initial standard deviation of each unconstrained coordinate, on average; the host's default.

    Notes
    -----
    Parameters in Pyro, by the names of ``named_parameters()``: ``loc`` (D,),
    ``scale_unconstrained`` (D,) and ``cov_factor`` (D, rank), the rows of W for all layers; in
    NumPyro ``auto_loc`` (D,), ``auto_scale`` (D,) and ``auto_cov_factor`` (D, rank). W starts at
    random, since the gradient in W is zero at W = 0.

    Raises
    ------
    ArgumentError
        An option is out of range; when the guide first sees its model, ``layers`` names a site
        that there is not.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(x, y=None):
    ...     w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 1]).to_event(2))
    ...     with pyro.plate("rows", len(x)):
    ...         pyro.sample("y", dist.Normal((x @ w)[:, 0], 0.1), obs=y)
    >>> x = torch.eye(2).repeat(10, 1)
    >>> y = x @ torch.tensor([1.0, -1.0])
    >>> guide = px.AutoLayerLowRankNormal(model, rank=1)
    >>> engine = px.ProximalScoreVI(model, guide, seed=0)
    >>> result = engine.run(50, x, y)
    >>> print(guide.median()["w"][:, 0].round().tolist())
    [1.0, -1.0]
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
        super().__init__(model, init_loc_fn=init_loc_fn)
        self._set_options(rank, layers, init_scale)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        self.layers = find_layers(self._unconstrained_shapes, self._given_layers)
        self.loc = nn.Parameter(self._init_loc())
        # A row of the factor has squares that sum to one in expectation. The variance, scale^2 (1 +
        # 1), is then init_scale^2.
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
class LayerLowRankNormalDensity(shared.LayerDensity, NormalDensity):
    covariance_structure = "layer_low_rank"

    def _posterior(self, parameters: Parameters) -> LayerLowRankNormal:
        loc, factor = parameters["loc"], parameters["cov_factor"]
        scale = self._scale(parameters)
        # Validation costs more than the density.
        return LayerLowRankNormal(loc, scale, factor, self.guide.layers, validate_args=False)

    @torch.no_grad()
    def sample(self, parameters: Parameters, generator: Generator, num: int) -> Draws:
        return self._posterior(parameters).rsample((num,), generator)
