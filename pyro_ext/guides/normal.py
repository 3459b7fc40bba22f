"""Pyro's Normal guides; see :mod:`ppl_ext.guides.normal`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from pyro.distributions.transforms import SoftplusTransform, UnitLowerCholeskyTransform
from pyro.infer import autoguide
from torch import Generator, Tensor
from torch.distributions import transform_to
from torch.distributions.transforms import ExpTransform, Transform

from ppl_ext.guides import normal as shared
from pyro_ext.guides.flat_density import (
    Draws,
    FlatDensity,
    Moments,
    Parameters,
    register_flat_density,
)
from pyro_ext.pieces import of_vector, side_by_side


class NormalDensity(FlatDensity):
    def _prepare(self) -> None:
        """The host creates every parameter of these guides when it sets them up."""

    def mean(self, parameters: Parameters) -> Float[Tensor, " D"]:
        """Mean of the guide, in the unconstrained space."""
        return parameters["loc"]

    @cached_property
    def scale_transform(self) -> Transform:
        """From the unconstrained to the standard deviations."""
        return transform_to(self.guide.scale_constraint)

    def _scale(self, parameters: Parameters) -> Tensor:
        return self.scale_transform(parameters["scale_unconstrained"])

    def _unconstrained_scale(self, scale: Tensor) -> Tensor:
        return self.scale_transform.inv(scale).clone()

    def noise(
        self, parameters: Parameters, generator: Generator, shape: tuple[int, ...]
    ) -> Float[Tensor, " ..."]:
        """Standard normal numbers of the guide's kind."""
        loc = parameters["loc"]
        noise = torch.randn(shape, generator=generator, dtype=loc.dtype, device=generator.device)
        return noise.to(loc.device)

    def set_parts(self, loc: Tensor, scale: Tensor, factor: Tensor) -> Parameters:
        """Parameters of a guide with a low-rank factor: its mean, the diagonal of S, and W."""
        unconstrained = self._unconstrained_scale(scale)
        return {"loc": loc, "scale_unconstrained": unconstrained, "cov_factor": factor}


class DiagonalNormalDensity(shared.DiagonalFormulas, NormalDensity):
    covariance_structure = "diagonal"

    @torch.no_grad()
    def sample(
        self,
        parameters: Parameters,
        generator: Generator,
        num: int,
        out: Draws | None = None,
    ) -> Draws:
        loc = parameters["loc"]
        theta = loc.new_empty(num, self.dim) if out is None else out
        where = of_vector(theta, self.dim)
        # Pieces have generators of their own, so that they can be drawn side by side.
        seed = _seed(generator) if len(where) > 1 else None

        def worker() -> Callable[[tuple[int, slice]], None]:
            own = generator if seed is None else Generator()

            def draw(numbered: tuple[int, slice]) -> None:
                number, piece = numbered
                if seed is not None:
                    # The numbers of a piece depend on its place alone, not on the thread that
                    # happens to draw it.
                    own.manual_seed(seed + number)
                scale = self._scale(part_of(parameters, piece))
                for row in theta[:, piece]:
                    # A generator draws on its own device only.
                    if own.device == row.device:
                        row.normal_(generator=own)
                    else:
                        row.copy_(self.noise(parameters, own, tuple(row.shape)))
                    row.mul_(scale).add_(loc[piece])

            return draw

        side_by_side(worker, list(enumerate(where)))
        return theta

    @torch.no_grad()
    def mean_square_residual(
        self, parameters: Parameters, theta: Float[Tensor, "S D"], target: Float[Tensor, "S D"]
    ) -> tuple[Float[Tensor, ""], Parameters]:
        # With g = (loc - theta) / scale^2: dg/dloc = 1 / scale^2, dg/dscale = -2 g / scale.
        scale = self._scale(parameters)
        inverse = scale.reciprocal()
        score = (parameters["loc"] - theta).mul_(inverse).mul_(inverse)
        residual = score - target
        scaled = (residual * inverse).mul_(2.0 / len(theta))
        loc_gradient = sum_draws(scaled).mul(inverse)
        scale_gradient = sum_draws(scaled.mul_(score)).mul_(-2.0)
        gradient = self._pull_back(parameters["scale_unconstrained"], scale, scale_gradient)
        value = residual.square_().sum(-1).mean()
        return value, {"loc": loc_gradient, "scale_unconstrained": gradient}

    def _pull_back(self, unconstrained: Tensor, scale: Tensor, gradient: Tensor) -> Tensor:
        """Gradient in the unconstrained scale from that in the scale, which is overwritten."""
        transform = self.scale_transform
        if isinstance(transform, SoftplusTransform):
            return gradient.mul_(unconstrained.sigmoid())
        if isinstance(transform, ExpTransform):
            return gradient.mul_(scale)
        leaf = unconstrained.detach().requires_grad_()
        with torch.enable_grad():
            (result,) = torch.autograd.grad(transform(leaf), leaf, gradient)
        return result

    @torch.no_grad()
    def largest_gradient(
        self,
        parameters: Parameters,
        theta: Float[Tensor, "S D"],
        score: Float[Tensor, "S D"],
        reach: float,
    ) -> float:
        transform = self.scale_transform
        # The bound below is derived for these two transforms. Infinity says that nothing is known.
        if not isinstance(transform, (SoftplusTransform, ExpTransform)) or not reach < math.inf:
            return math.inf

        def worker() -> Callable[[slice], tuple[Tensor, ...]]:
            memory = theta.new_empty(0)

            def find(where: slice) -> tuple[Tensor, ...]:
                piece = part_of(parameters, where)
                low, high = score[:, where].aminmax()
                memory.resize_(theta[:, where].shape)
                distance = torch.sub(piece["loc"], theta[:, where], out=memory).abs_().amax()
                return distance, piece["scale_unconstrained"].amin(), -low, high

            return find

        extremes = side_by_side(worker, of_vector(theta, self.dim))
        # Of each piece: together the bound would combine the worst of coordinates that have
        # nothing to do with each other.
        distance, least, low, high = (
            torch.stack(each).double() for each in zip(*extremes, strict=True)
        )
        distance = distance + reach
        precision = transform(least - reach).square().reciprocal()
        residual = 2.0 * (distance * precision + torch.maximum(low, high))
        # Both transforms have a derivative of at most their value, which cancels a division.
        slope = torch.maximum(2.0 * precision, 4.0 * distance * precision).clamp_min(1.0)
        # NaN comes through a maximum of tensors.
        return float((residual * slope).amax())

    def moments(self, parameters: Parameters) -> Moments:
        return Moments(parameters["loc"], self._scale(parameters))

    def set_moments(self, parameters: Parameters, moments: Moments) -> Parameters:
        scale = self._unconstrained_scale(moments.scale)
        return {"loc": moments.mean.clone(), "scale_unconstrained": scale}


class MultivariateNormalDensity(shared.FullFormulas, NormalDensity):
    covariance_structure = "full"
    _masks: tuple[Any, tuple[Tensor, Tensor]] | None = None

    @cached_property
    def _unit_transform(self) -> Transform:
        return transform_to(self.guide.scale_tril_constraint)

    def _scale_tril(self, parameters: Parameters) -> Tensor:
        transform = self._unit_transform
        scale, unit = self._scale(parameters), parameters["scale_tril_unconstrained"]
        if isinstance(transform, UnitLowerCholeskyTransform):
            # One operation, where the host's tril starts all threads for the smallest matrix.
            below, identity = self._unit_lower(unit)
            return torch.where(below, unit, identity).mul(scale.unsqueeze(-1))
        return scale.unsqueeze(-1) * transform(unit)

    def _unit_lower(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Which entries are below the diagonal, and the identity, (D, D) each."""
        kind = like.dtype, like.device
        if self._masks is None or self._masks[0] != kind:
            identity = torch.eye(self.dim, dtype=like.dtype, device=like.device)
            below = torch.ones_like(identity, dtype=torch.bool).tril(-1)
            self._masks = kind, (below, identity)
        return self._masks[1]

    @torch.no_grad()
    def sample(self, parameters: Parameters, generator: Generator, num: int) -> Draws:
        noise = self.noise(parameters, generator, (num, self.dim))
        return parameters["loc"] + noise @ self._scale_tril(parameters).T

    def moments(self, parameters: Parameters) -> Moments:
        return Moments(parameters["loc"], self._scale_tril(parameters))

    def set_moments(self, parameters: Parameters, moments: Moments) -> Parameters:
        scale = moments.scale.diagonal()
        unit = moments.scale / scale.unsqueeze(-1)
        return {
            "loc": moments.mean,
            "scale_unconstrained": self._unconstrained_scale(scale),
            "scale_tril_unconstrained": self._unit_transform.inv(unit),
        }


class LowRankNormalDensity(shared.LowRankFormulas, NormalDensity):
    covariance_structure = "low_rank"

    @torch.no_grad()
    def sample(self, parameters: Parameters, generator: Generator, num: int) -> Draws:
        factor = parameters["cov_factor"]
        noise = self.noise(parameters, generator, (num, self.dim))
        noise += self.noise(parameters, generator, (num, factor.shape[-1])) @ factor.T
        return noise.mul_(self._scale(parameters)).add_(parameters["loc"])

    def parts(self, parameters: Parameters) -> tuple[Tensor, Tensor, Tensor]:
        return parameters["loc"], self._scale(parameters), parameters["cov_factor"]


def part_of(parameters: Parameters, where: slice) -> Parameters:
    """Some coordinates of the parameters of a diagonal Normal."""
    return {name: value[where] for name, value in parameters.items()}


def _seed(generator: Generator) -> int:
    """A seed for generators of pieces, from the engine's."""
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


def sum_draws(values: Tensor) -> Tensor:
    """Sum over the rows (S, D); of a single row a view."""
    return values[0] if len(values) == 1 else values.sum(0)


register_flat_density(autoguide.AutoDiagonalNormal)(DiagonalNormalDensity)
register_flat_density(autoguide.AutoMultivariateNormal)(MultivariateNormalDensity)
register_flat_density(autoguide.AutoLowRankMultivariateNormal)(LowRankNormalDensity)
