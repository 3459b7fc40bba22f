"""A guide by planar flows, with an exact inverse; see :mod:`ppl_ext.guides.planar_flow`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from pyro.distributions import Normal, constraints
from pyro.infer.autoguide.guides import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_median
from pyro.nn.module import PyroParam
from torch import Generator, Tensor, nn
from torch.distributions import transform_to
from torch.distributions.transforms import AffineTransform, ComposeTransform, Transform

from ppl_ext.guides import planar_flow as shared
from ppl_ext.guides.planar_flow import INITIAL_DIRECTION
from pyro_ext.guides.arrays import TensorFunctions
from pyro_ext.guides.flat_density import (
    Draws,
    FlatDensity,
    Parameters,
    register_flat_density,
    value_and_gradient,
)


class PlanarTransform(shared.PlanarMap, Transform):
    arrays = TensorFunctions
    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True


class AutoPlanarFlow(shared.PlanarGuide, AutoContinuous):
    """Guide by planar flows: ``theta = loc + scale * (f_K o ... o f_1)(z)``, z standard Normal.

    Each of the K maps ``f(z) = z + u_hat tanh(w . z + b)`` bends the Normal along one direction.
    At the start the guide is close to a Normal about the initial values with standard deviations
    ``init_scale``. Its density can be evaluated, and differentiated, at any point.

    Parameters
    ----------
    model : callable
        The host's model.
    num_flows : int
        Number K of planar maps, at least one.
    prefix : str
        Prefix of the parameters' names, in NumPyro alone; the host's default.
    init_loc_fn : callable
        Initial values by site. Default: the prior's median, as of Pyro's other guides. In NumPyro,
        whose other guides start at a random point, a flow has less far to go from there.
    init_scale : float
        Initial standard deviation of each unconstrained coordinate; the host's default.

    Notes
    -----
    Parameters in Pyro, by the names of ``named_parameters()``: ``loc`` and ``scale_unconstrained``
    (D,); ``weight`` (w) and ``direction`` (u), (K, D); ``bias`` (b), (K,). In NumPyro:
    ``auto_loc`` and ``auto_scale`` (D,); ``auto_weight`` (w) and ``auto_direction`` (u), (K, D);
    ``auto_bias`` (b), (K,). The first w and u are random, in Pyro from torch's global generator. As
    for the hosts' flows there are no closed-form medians and quantiles.

    Raises
    ------
    ArgumentError
        ``num_flows`` is not a positive whole number, or ``init_scale`` not a positive number.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> _ = pyro.set_rng_seed(0)
    >>> guide = px.AutoPlanarFlow(model, num_flows=2)
    >>> engine = px.ProximalScoreVI(model, guide, seed=0)
    >>> result = engine.run(200, y)
    >>> print(round(engine.get_samples(500)["mean"].mean().item()))
    2
    """

    scale_constraint = constraints.softplus_positive

    def __init__(
        self,
        model: Callable[..., Any],
        num_flows: int = 4,
        *,
        init_loc_fn: Callable[..., Any] = init_to_median,
        init_scale: float = 0.1,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn)
        self._set_options(num_flows, init_scale)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        self.loc = nn.Parameter(self._init_loc())
        self.scale = PyroParam(torch.full_like(self.loc, self._init_scale), self.scale_constraint)
        shape, length = (self.num_flows, self.latent_dim), self.latent_dim**-0.5
        self.weight = nn.Parameter(self.loc.new_empty(shape).normal_(0, length))
        direction = self.loc.new_empty(shape).normal_(0, INITIAL_DIRECTION * length)
        self.direction = nn.Parameter(direction)
        self.bias = nn.Parameter(self.loc.new_zeros(self.num_flows))

    def get_base_dist(self) -> Any:
        """Standard Normal over the flat vector."""
        return Normal(torch.zeros_like(self.loc), torch.ones_like(self.loc)).to_event(1)

    def get_transform(self, *args: Any, **kwargs: Any) -> Transform:
        """From the standard Normal to the posterior."""
        parts: list[Transform] = [
            PlanarTransform(weight, direction, bias)
            for weight, direction, bias in zip(self.weight, self.direction, self.bias, strict=True)
        ]
        return ComposeTransform([*parts, AffineTransform(self.loc, self.scale, event_dim=1)])

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Raises: the host's ``median`` and ``quantiles`` need a location and scale by coordinate.

        The coordinates of a flow are not Normal, so that there are none.
        """
        raise NotImplementedError(shared.NO_QUANTILES)


@register_flat_density(AutoPlanarFlow)
class PlanarFlowDensity(shared.PlanarDensity, FlatDensity):
    def _prepare(self) -> None:
        """The guide creates every parameter when it is set up, and can always be inverted."""

    def _flow(self, parameters: Parameters) -> shared.Flow:
        scale = transform_to(self.guide.scale_constraint)(parameters["scale_unconstrained"])
        weight, direction, bias = (parameters[name] for name in ("weight", "direction", "bias"))
        return self._flow_of(parameters["loc"], scale, weight, direction, bias)

    def set_location_and_scale(self, parameters: Parameters, loc: Any, scale: Any) -> Parameters:
        unconstrained = transform_to(self.guide.scale_constraint).inv(scale)
        return {**parameters, "loc": loc, "scale_unconstrained": unconstrained}

    @torch.no_grad()
    def sample(self, parameters: Parameters, generator: Generator, num: int) -> Draws:
        flow = self._flow(parameters)
        shape, loc = (num, self.dim), flow.loc
        noise = torch.randn(shape, generator=generator, dtype=loc.dtype, device=generator.device)
        y = noise.to(loc.device)
        # One matrix product for all flows. What the earlier flows add to a later one follows from
        # the products of their directions and weights, which are K x K numbers.
        argument = y @ flow.weight.T + flow.bias
        bends = torch.zeros_like(argument)
        for k in range(len(flow.bias)):
            inner = argument[:, k] + bends[:, :k] @ flow.products[k, :k]
            bends[:, k] = torch.tanh(inner)
        return y.addmm_(bends, flow.direction).mul_(flow.scale).add_(loc)

    def mean_square_residual(
        self, parameters: Parameters, theta: Float[Tensor, "S D"], target: Float[Tensor, "S D"]
    ) -> tuple[Float[Tensor, ""], Parameters]:
        def value(leaves: Parameters) -> Tensor:
            # The score is differentiated once, for which one Newton step is enough.
            residual = self._score(leaves, theta, newton_steps=1) - target
            return residual.square().sum(-1).mean()

        return value_and_gradient(value, parameters)

    @torch.no_grad()
    def _find_roots(self, shifted: Tensor, slope: Tensor, later: Tensor) -> Tensor:
        x, bends = torch.empty_like(shifted), torch.zeros_like(shifted)
        # The roots are found from the last flow to the first, as each depends on those of the flows
        # after it.
        for k in reversed(range(len(slope))):
            x[..., k] = self.find_root(shifted[..., k] - bends @ later[k], slope[k])
            bends[..., k] = torch.tanh(x[..., k])
        return x
