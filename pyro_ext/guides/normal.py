"""Closed forms of the flat log density and the score for Pyro's Normal guides."""

from __future__ import annotations

import math

import torch
from pyro.infer import autoguide
from torch import Tensor
from torch.distributions import transform_to

from pyro_ext.guides.flat_density import (
    FlatDensity,
    Moments,
    Parameters,
    register_flat_density,
)

LOG_TWO_PI = math.log(2.0 * math.pi)


class NormalDensity(FlatDensity):
    """What the three Normal guides have in common."""

    def _prepare(self) -> None:
        """The host creates every parameter of these guides when it sets them up."""

    def _scale(self, parameters: Parameters) -> Tensor:
        constraint = self.guide.scale_constraint
        return transform_to(constraint)(parameters["scale_unconstrained"])

    def _unconstrained_scale(self, scale: Tensor) -> Tensor:
        return transform_to(self.guide.scale_constraint).inv(scale).clone()

    def _noise(
        self, parameters: Parameters, generator: torch.Generator, shape: tuple[int, ...]
    ) -> Tensor:
        loc = parameters["loc"]
        noise = torch.randn(shape, generator=generator, dtype=loc.dtype, device=generator.device)
        return noise.to(loc.device)


class DiagonalNormalDensity(NormalDensity):
    """``AutoDiagonalNormal``: closed forms in O(D) memory per draw."""

    covariance_structure = "diagonal"

    @torch.no_grad()
    def sample(self, parameters: Parameters, generator: torch.Generator, num: int) -> Tensor:
        noise = self._noise(parameters, generator, (num, self.dim))
        return noise.mul_(self._scale(parameters)).add_(parameters["loc"])

    def log_prob(self, parameters: Parameters, theta: Tensor) -> Tensor:
        scale = self._scale(parameters)
        standard = (theta - parameters["loc"]) / scale
        return -0.5 * (standard.square().sum(-1) + self.dim * LOG_TWO_PI) - scale.log().sum()

    def score(self, parameters: Parameters, theta: Tensor) -> Tensor:
        return (parameters["loc"] - theta) / self._scale(parameters).square()

    def mean_square_residual(
        self, parameters: Parameters, theta: Tensor, target: Tensor
    ) -> tuple[Tensor, Parameters]:
        # With g = -(theta - loc) / scale^2: dg/dloc = 1 / scale^2, dg/dscale = -2 g / scale.
        unconstrained = parameters["scale_unconstrained"].detach().requires_grad_()
        with torch.enable_grad():
            scale = transform_to(self.guide.scale_constraint)(unconstrained)
        with torch.no_grad():
            precision = scale.square().reciprocal_()
            score = (parameters["loc"] - theta).mul_(precision)
            residual = score - target
            value = residual.square().sum(-1).mean()
            factor = 2.0 / residual[..., 0].numel()
            loc_gradient = residual.sum(0).mul_(precision).mul_(factor)
            scale_gradient = residual.mul_(score).sum(0).div_(scale).mul_(-2.0 * factor)
        (gradient,) = torch.autograd.grad(scale, unconstrained, scale_gradient)
        return value, {"loc": loc_gradient, "scale_unconstrained": gradient}

    def moments(self, parameters: Parameters) -> Moments:
        return Moments(parameters["loc"], self._scale(parameters))

    def set_moments(self, parameters: Parameters, moments: Moments) -> Parameters:
        scale = self._unconstrained_scale(moments.scale)
        return {"loc": moments.mean.clone(), "scale_unconstrained": scale}


class MultivariateNormalDensity(NormalDensity):
    """``AutoMultivariateNormal``: closed forms by two triangular solves."""

    covariance_structure = "full"

    def _scale_tril(self, parameters: Parameters) -> Tensor:
        constraint = self.guide.scale_tril_constraint
        unit = transform_to(constraint)(parameters["scale_tril_unconstrained"])
        return self._scale(parameters).unsqueeze(-1) * unit

    @torch.no_grad()
    def sample(self, parameters: Parameters, generator: torch.Generator, num: int) -> Tensor:
        noise = self._noise(parameters, generator, (num, self.dim))
        return parameters["loc"] + noise @ self._scale_tril(parameters).T

    def log_prob(self, parameters: Parameters, theta: Tensor) -> Tensor:
        scale_tril = self._scale_tril(parameters)
        standard = _solve_lower(scale_tril, theta - parameters["loc"])
        log_determinant = scale_tril.diagonal().log().sum()
        return -0.5 * (standard.square().sum(-1) + self.dim * LOG_TWO_PI) - log_determinant

    def score(self, parameters: Parameters, theta: Tensor) -> Tensor:
        scale_tril = self._scale_tril(parameters)
        standard = _solve_lower(scale_tril, parameters["loc"] - theta)
        return _solve_lower(scale_tril, standard, transpose=True)

    def moments(self, parameters: Parameters) -> Moments:
        return Moments(parameters["loc"], self._scale_tril(parameters))

    def set_moments(self, parameters: Parameters, moments: Moments) -> Parameters:
        scale = moments.scale.diagonal()
        unit = moments.scale / scale.unsqueeze(-1)
        constraint = self.guide.scale_tril_constraint
        return {
            "loc": moments.mean.clone(),
            "scale_unconstrained": self._unconstrained_scale(scale),
            "scale_tril_unconstrained": transform_to(constraint).inv(unit).clone(),
        }


class LowRankNormalDensity(NormalDensity):
    """``AutoLowRankMultivariateNormal``: closed forms by Woodbury's identity.

    The covariance is S (I + W W^T) S with S = diag(scale) and W = ``cov_factor`` (D, r), so only
    r x r systems are solved.
    """

    covariance_structure = "low_rank"

    @torch.no_grad()
    def sample(self, parameters: Parameters, generator: torch.Generator, num: int) -> Tensor:
        factor = parameters["cov_factor"]
        noise = self._noise(parameters, generator, (num, self.dim))
        noise += self._noise(parameters, generator, (num, factor.shape[-1])) @ factor.T
        return noise.mul_(self._scale(parameters)).add_(parameters["loc"])

    def _whiten(self, parameters: Parameters, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scale, standardised theta, and the Cholesky factor of I + W^T W (r, r)."""
        scale, factor = self._scale(parameters), parameters["cov_factor"]
        identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        capacitance = torch.linalg.cholesky(identity + factor.T @ factor)
        return scale, (theta - parameters["loc"]) / scale, capacitance

    def log_prob(self, parameters: Parameters, theta: Tensor) -> Tensor:
        scale, standard, capacitance = self._whiten(parameters, theta)
        inner = _solve_lower(capacitance, standard @ parameters["cov_factor"])
        square = standard.square().sum(-1) - inner.square().sum(-1)
        log_determinant = scale.log().sum() + capacitance.diagonal().log().sum()
        return -0.5 * (square + self.dim * LOG_TWO_PI) - log_determinant

    def score(self, parameters: Parameters, theta: Tensor) -> Tensor:
        scale, standard, capacitance = self._whiten(parameters, theta)
        factor = parameters["cov_factor"]
        inner = _solve_lower(capacitance, standard @ factor)
        inner = _solve_lower(capacitance, inner, transpose=True)
        return (inner @ factor.T - standard) / scale

    def moments(self, parameters: Parameters) -> Moments:
        scale, factor = self._scale(parameters), parameters["cov_factor"]
        scaled = scale.unsqueeze(-1) * factor
        covariance = scaled @ scaled.T + torch.diag(scale.square())
        return Moments(parameters["loc"], torch.linalg.cholesky(covariance))


def _solve_lower(scale_tril: Tensor, vectors: Tensor, transpose: bool = False) -> Tensor:
    """Solve L x = v, or L^T x = v, for vectors v in the rows of ``vectors`` (..., D)."""
    rows = vectors.reshape(-1, vectors.shape[-1])
    # x^T = v^T L^{-T}: the rows are solved from the right, by an upper triangular matrix for L.
    if transpose:
        solved = torch.linalg.solve_triangular(scale_tril, rows, upper=False, left=False)
    else:
        solved = torch.linalg.solve_triangular(scale_tril.T, rows, upper=True, left=False)
    return solved.reshape(vectors.shape)


register_flat_density(autoguide.AutoDiagonalNormal)(DiagonalNormalDensity)
register_flat_density(autoguide.AutoMultivariateNormal)(MultivariateNormalDensity)
register_flat_density(autoguide.AutoLowRankMultivariateNormal)(LowRankNormalDensity)
