"""Mixtures of Normals as a Pyro guide (``AutoGaussianMixture``); see ``ppl_ext.guides.mixture``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from pyro.distributions import TorchDistribution
from pyro.infer import autoguide
from pyro.infer.autoguide.initialization import init_to_median
from pyro.nn.module import PyroParam
from torch import Generator, Tensor, nn
from torch.distributions import constraints, transform_to

from ppl_ext.guides import mixture as shared
from pyro_ext.density.handlers import transform_to_support
from pyro_ext.guides.arrays import TensorFunctions
from pyro_ext.guides.flat_density import Draws, FlatDensity, Parameters, register_flat_density

Components = shared.Components


class GaussianMixture(shared.MixtureFormulas, TorchDistribution):
    arrays = TensorFunctions
    # The parameters are read from tensors that the guide has constrained already.
    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - the host's attribute
    support = constraints.real_vector
    has_rsample = True

    def rsample(
        self, sample_shape: Any = (), generator: Generator | None = None
    ) -> Float[Tensor, "*S D"]:
        """Draws (*sample_shape, D), from torch's global generator unless another is given."""
        shape, (number, dim) = tuple(sample_shape), self.loc.shape
        device = self.loc.device if generator is None else generator.device

        def empty(*size: int) -> Tensor:
            return torch.empty((*shape, *size), dtype=self.loc.dtype, device=device)

        noise, inner = empty(dim).normal_(generator=generator).to(self.loc.device), None
        if self.cov_factor is not None:
            rank = self.cov_factor.shape[-1]
            inner = empty(rank).normal_(generator=generator).to(self.loc.device)
        # The smallest positive number keeps a draw of exactly zero from becoming infinite.
        exponential = empty(number).exponential_(generator=generator).to(self.loc.device)
        gumbel = -exponential.clamp_min(torch.finfo(self.loc.dtype).tiny).log()
        draws, perturbed = self._noisy(noise, inner, gumbel)
        # The relaxed choice is needed for gradients alone. Its value is the draw that is gathered
        # below.
        if torch.is_grad_enabled():
            return self._chosen(draws, perturbed)
        index = perturbed.argmax(-1, keepdim=True)
        return draws.gather(-2, index.unsqueeze(-1).expand(*shape, 1, dim)).squeeze(-2)

    @torch.no_grad()
    def sample(
        self, sample_shape: Any = (), generator: Generator | None = None
    ) -> Float[Tensor, "*S D"]:
        """Draws (*sample_shape, D) without gradients, otherwise as :meth:`rsample`."""
        return self.rsample(sample_shape, generator)

    def log_prob(self, value: Float[Tensor, "*S D"]) -> Float[Tensor, "*S"]:
        """Log density at ``value`` (..., D), shape (...,)."""
        if self._validate_args:
            self._validate_sample(value)
        return self._components(value)[0].logsumexp(-1)

    @torch.no_grad()
    def quantile(self, probabilities: Float[Tensor, " ..."]) -> Float[Tensor, "... D"]:
        return super().quantile(probabilities)


class AutoGaussianMixture(shared.MixtureGuide, autoguide.guides.AutoContinuous):
    """Mixture of K Normals over the flat unconstrained vector.

    q(theta) = sum_k w_k N(theta; mu_k, Sigma_k), a guide for posteriors with several modes or
    with shapes that one Normal cannot take.

    The components start apart, since equal ones would get equal gradients and stay equal: each
    mean is the initial location plus ``init_scale`` times a standard normal draw. Standard
    deviations start evenly spaced on the logarithmic scale, the first component's at
    ``init_scale / init_spread`` and the last's at ``init_scale * init_spread``: in many dimensions
    narrow components find the modes nearby, and wide ones the wide modes, whose density is the
    greatest far out; of equally wide components, several often end at one mode. Weights start at
    1/K.

    Parameters
    ----------
    model : callable
        The host's model.
    num_components : int
        Number K of components.
    covariance : {"full", "diag", "low_rank"}
        Form of every Sigma_k: any, diagonal, or S (I + W W^T) S with S diagonal (D) and W (D, r),
        as in the host's ``AutoMultivariateNormal``, ``AutoDiagonalNormal`` and
        ``AutoLowRankMultivariateNormal``.
    prefix : str
        Of the names of the parameters, in NumPyro alone.
    init_loc_fn : callable
        Initialisation strategy of the host, for the point around which the means start.
    init_scale : float
        See above. In units of the unconstrained latents.
    init_spread : float
        See above; 1 for components that are equally wide. A single component has ``init_scale``.
    rank : int, optional
        The r of ``covariance="low_rank"``. Default: the square root of D, rounded.
    temperature : float
        Temperature of the softmax in the gradient of draws, see the notes.

    Raises
    ------
    ArgumentError
        A number is out of range, or ``covariance`` is unknown, or ``rank`` was given for another
        covariance than "low_rank".

    Notes
    -----
    The parameters are in Pyro ``logits`` (K,), ``loc`` (K, D), ``scale`` (K, D) and, for "full",
    ``scale_tril`` (K, D, D) with a diagonal of ones, which ``scale`` multiplies from the left, or,
    for "low_rank", ``cov_factor`` (K, D, r). In NumPyro they are ``auto_logits`` (K,), ``auto_loc``
    (K, D) and, for "full", ``auto_scale_tril`` (K, D, D), else ``auto_scale`` (K, D), with
    ``auto_cov_factor`` (K, D, r) for "low_rank".

    Draws are exact everywhere: the component is the largest logit after adding Gumbel noise. A
    choice has no derivative, so the gradient through a draw, which ``SVI`` needs, is the
    straight-through one: the choice is differentiated as if it were the softmax of the same
    noisy logits over ``temperature``. The default 0.05 is that of M. Kim, "Large-scale
    Score-based Variational Posterior Inference for Bayesian Deep Neural Networks", Appendix C.
    With respect to the components this gives the unbiased gradient of the draw. With respect to
    the logits it is biased: the function's slope at the draw stands for its difference between
    the components' draws, and these agree for linear functions only. Between modes that hardly
    overlap, the slope of the loss says almost nothing of its difference (a tenth of the exact
    gradient, for two modes four standard deviations apart), so that ``SVI`` determines the weights
    of such modes badly. ``ProximalScoreVI`` does not differentiate draws and has no such bias, but
    scores too know the weights only from where components overlap.

    ``median`` and ``quantiles`` are those of each unconstrained coordinate's own distribution,
    carried through the site's transform: exact for transforms that act on each coordinate alone.
    A mixture is no transform of one base distribution, so that ``get_base_dist`` and
    ``get_transform`` are not defined.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Poisson(rate), obs=y)
    >>> y = torch.tensor([2.0, 0.0, 1.0, 3.0, 1.0])
    >>> _ = pyro.set_rng_seed(0)
    >>> guide = px.AutoGaussianMixture(model, num_components=2)
    >>> engine = px.ProximalScoreVI(model, guide, seed=0)
    >>> result = engine.run(100, y)
    >>> draws = engine.get_samples(1000)
    >>> print(f"{draws['rate'].mean():.1f} {draws['rate'].std():.1f}")  # of a Gamma(9, 6)
    1.5 0.5
    """

    scale_constraint = autoguide.AutoMultivariateNormal.scale_constraint
    scale_tril_constraint = autoguide.AutoMultivariateNormal.scale_tril_constraint

    def __init__(
        self,
        model: Callable[..., Any],
        num_components: int,
        covariance: str = "full",
        *,
        init_loc_fn: Callable[..., Any] = init_to_median,
        init_scale: float = 0.25,
        init_spread: float = 4.0,
        rank: int | None = None,
        temperature: float = 0.05,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn)
        self._set_options(num_components, covariance, rank, init_scale, init_spread, temperature)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        number, dim, center = self.num_components, self.latent_dim, self._init_loc()
        self.logits = nn.Parameter(center.new_zeros(number))
        self.loc = nn.Parameter(center + self._init_scale * center.new_empty(number, dim).normal_())
        scale = center.new_tensor(self._initial_scales()).unsqueeze(-1).repeat(1, dim)
        if self.covariance == "full":
            identity = torch.eye(dim, dtype=center.dtype, device=center.device)
            unit = identity.expand(number, dim, dim).contiguous()
            self.scale_tril = PyroParam(unit, self.scale_tril_constraint)
        elif self.covariance == "low_rank":
            # Not W = 0: the score depends on W through W W^T and no gradient would leave there.
            rank = self._initial_rank(dim)
            draws = center.new_empty(number, dim, rank).normal_()
            self.cov_factor = nn.Parameter(draws / math.sqrt(rank))
            scale = math.sqrt(0.5) * scale
        self.scale = PyroParam(scale, self.scale_constraint)

    def get_posterior(self, *args: Any, **kwargs: Any) -> GaussianMixture:
        return self._mixture(
            self.logits,
            self.loc,
            self.scale,
            self.scale_tril if self.covariance == "full" else None,
            self.cov_factor if self.covariance == "low_rank" else None,
        )

    def _mixture(
        self,
        logits: Tensor,
        loc: Tensor,
        scale: Tensor,
        unit_tril: Tensor | None,
        cov_factor: Tensor | None,
    ) -> GaussianMixture:
        if unit_tril is not None:
            scale_tril = scale.unsqueeze(-1) * unit_tril
            return GaussianMixture(logits, loc, scale_tril=scale_tril, temperature=self.temperature)
        return GaussianMixture(
            logits, loc, scale=scale, cov_factor=cov_factor, temperature=self.temperature
        )

    @torch.no_grad()
    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return {name: values[0] for name, values in self.quantiles([0.5]).items()}

    @torch.no_grad()
    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        by_site: dict[str, list[Tensor]] = {}
        for latent in self.get_posterior().quantile(quantiles):
            for site, value in self._unpack_latent(latent):
                constrained = transform_to_support(site)(value)
                by_site.setdefault(site["name"], []).append(constrained)
        return {name: torch.stack(values) for name, values in by_site.items()}


@register_flat_density(AutoGaussianMixture)
class GaussianMixtureDensity(shared.MixtureDensity, FlatDensity):
    def _prepare(self) -> None:
        """The guide creates every parameter when it is set up."""

    def _mixture(self, parameters: Parameters) -> GaussianMixture:
        guide, unit = self.guide, parameters.get("scale_tril_unconstrained")
        return guide._mixture(
            parameters["logits"],
            parameters["loc"],
            transform_to(guide.scale_constraint)(parameters["scale_unconstrained"]),
            None if unit is None else transform_to(guide.scale_tril_constraint)(unit),
            parameters.get("cov_factor"),
        )

    def set_components(self, parameters: Parameters, components: Components) -> Parameters:
        self._check_full()
        guide, scale = self.guide, components.scale_tril.diagonal(dim1=-2, dim2=-1)
        unit = components.scale_tril / scale.unsqueeze(-1)
        return {
            "logits": components.logits.clone(),
            "loc": components.loc.clone(),
            "scale_unconstrained": transform_to(guide.scale_constraint).inv(scale),
            "scale_tril_unconstrained": transform_to(guide.scale_tril_constraint).inv(unit),
        }

    def sample(self, parameters: Parameters, generator: Generator, num: int) -> Draws:
        return self._mixture(parameters).sample((num,), generator)
