"""Mixtures of Normals as a Pyro guide (``AutoGaussianMixture``), with a closed-form score.

The guide q(theta) = sum_k w_k N(theta; mu_k, Sigma_k) over the flat unconstrained vector can hold
several modes, which no single Normal can. It is an ordinary host autoguide: it works in ``SVI``
and ``Predictive``, and score-based engines match its score

    grad log q(theta) = sum_k r_k(theta) Sigma_k^{-1} (mu_k - theta),

where r_k(theta) is the posterior probability of component k at theta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pyro.distributions import TorchDistribution
from pyro.infer import autoguide
from pyro.infer.autoguide.initialization import init_to_median
from pyro.nn.module import PyroParam
from torch import Tensor, nn
from torch.distributions import biject_to, constraints, transform_to

from ppl_ext.errors import ArgumentError
from ppl_ext.guides.mixture import check_options, initial_rank, initial_scales
from pyro_ext.guides.flat_density import (
    FlatDensity,
    Moments,
    Parameters,
    register_flat_density,
)

LOG_TWO_PI = math.log(2.0 * math.pi)
#: Halvings of a bracket when the distribution function is inverted: more than a float64 can tell.
HALVINGS = 100


class GaussianMixture(TorchDistribution):
    """Mixture of K Normals over vectors of length D, with draws that can be differentiated.

    Draws are exact: a component is chosen by the largest of the logits with Gumbel noise added,
    and the draw is that component's. See :class:`AutoGaussianMixture` for their gradient.

    Parameters
    ----------
    logits : tensor (K,)
        Logarithms of the weights, up to a constant.
    loc : tensor (K, D)
        Means.
    scale : tensor (K, D), optional
        Standard deviations; with ``cov_factor`` the S of S (I + W W^T) S.
    scale_tril : tensor (K, D, D), optional
        Lower triangular Cholesky factors of the covariances, in place of ``scale``.
    cov_factor : tensor (K, D, r), optional
        The W of S (I + W W^T) S.
    temperature : float
        Of the softmax that stands for the choice of the component in gradients.
    """

    # The parameters are read from tensors that the guide has constrained already.
    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - the host's attribute
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        logits: Tensor,
        loc: Tensor,
        *,
        scale: Tensor | None = None,
        scale_tril: Tensor | None = None,
        cov_factor: Tensor | None = None,
        temperature: float = 0.05,
        validate_args: bool | None = None,
    ) -> None:
        self.logits, self.loc = logits, loc
        self.scale, self.scale_tril, self.cov_factor = scale, scale_tril, cov_factor
        self.temperature = temperature
        super().__init__(torch.Size(), loc.shape[-1:], validate_args=validate_args)

    def rsample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """Draws (*sample_shape, D), from torch's global generator unless another is given."""
        shape, (number, dim) = tuple(sample_shape), self.loc.shape
        device = self.loc.device if generator is None else generator.device

        def empty(*size: int) -> Tensor:
            return torch.empty((*shape, *size), dtype=self.loc.dtype, device=device)

        noise = empty(dim).normal_(generator=generator).to(self.loc.device)
        # Every component's draw from the same noise: only one of them is used.
        if self.scale_tril is not None:
            draws = self.loc + torch.einsum("kde,...e->...kd", self.scale_tril, noise)
        else:
            assert self.scale is not None
            draws = noise.unsqueeze(-2)
            if self.cov_factor is not None:
                rank = self.cov_factor.shape[-1]
                noise = empty(rank).normal_(generator=generator).to(self.loc.device)
                draws = draws + torch.einsum("kdr,...r->...kd", self.cov_factor, noise)
            draws = self.loc + self.scale * draws
        # The smallest positive number keeps a draw of exactly zero from becoming infinite.
        exponential = empty(number).exponential_(generator=generator).to(self.loc.device)
        gumbel = -exponential.clamp_min(torch.finfo(self.loc.dtype).tiny).log()
        perturbed = self.logits + gumbel
        index = perturbed.argmax(-1, keepdim=True)
        if not torch.is_grad_enabled():
            return draws.gather(-2, index.unsqueeze(-1).expand(*shape, 1, dim)).squeeze(-2)
        chosen = torch.zeros_like(perturbed).scatter(-1, index, 1.0)
        soft = (perturbed / self.temperature).softmax(-1)
        # In value exactly the choice; in the gradient the choice's soft stand-in.
        chosen = chosen + (soft - soft.detach())
        return torch.einsum("...k,...kd->...d", chosen, draws)

    @torch.no_grad()
    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """Draws (*sample_shape, D) without gradients, otherwise as :meth:`rsample`."""
        return self.rsample(sample_shape, generator)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at ``value`` (..., D), shape (...,)."""
        if self._validate_args:
            self._validate_sample(value)
        return self._components(value)[0].logsumexp(-1)

    def score(self, value: Tensor) -> Tensor:
        """Gradient of the log density with respect to ``value`` (..., D)."""
        joint, pull = self._components(value)
        return torch.einsum("...k,...kd->...d", joint.softmax(-1), pull)

    @torch.no_grad()
    def quantile(self, probabilities: Tensor) -> Tensor:
        """Quantiles of every coordinate's own distribution, for probabilities of any shape (...).

        The distribution function of a coordinate is a weighted sum of the components' and has no
        closed inverse; it is inverted by bisection between the least and the greatest of the
        components' quantiles, which always enclose the mixture's. Where it is flat to rounding,
        as between two distant modes, the middle of the flat part is taken.

        Returns
        -------
        tensor (..., D)
        """
        weights, scale = self.logits.softmax(-1), self._marginal_scale()
        level = probabilities.to(scale).unsqueeze(-1)
        of_components = self.loc + scale * torch.special.ndtri(level).unsqueeze(-1)
        low = low_of_last = of_components.amin(-2)
        high = high_of_last = of_components.amax(-2)

        def below(point: Tensor) -> Tensor:
            standard = (point.unsqueeze(-2) - self.loc) / scale
            return torch.einsum("k,...kd->...d", weights, torch.special.ndtr(standard))

        for _ in range(HALVINGS):
            first, last = 0.5 * low + 0.5 * high, 0.5 * low_of_last + 0.5 * high_of_last
            left, right = below(first) < level, below(last) <= level
            low, high = first.where(left, low), high.where(left, first)
            low_of_last = last.where(right, low_of_last)
            high_of_last = high_of_last.where(right, last)
        return 0.5 * high + 0.5 * low_of_last

    @property
    def mean(self) -> Tensor:
        """Mean (D,)."""
        return self.logits.softmax(-1) @ self.loc

    @property
    def variance(self) -> Tensor:
        """Variance of each coordinate (D,)."""
        second = self._marginal_scale().square() + (self.loc - self.mean).square()
        return self.logits.softmax(-1) @ second

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance (D, D): that within the components and that of their means."""
        weights, apart = self.logits.softmax(-1), self.loc - self.mean
        between = torch.einsum("k,kd,ke->de", weights, apart, apart)
        if self.scale_tril is not None:
            root = self.scale_tril
            return between + torch.einsum("k,kdr,ker->de", weights, root, root)
        assert self.scale is not None
        within = torch.diag(weights @ self.scale.square())
        if self.cov_factor is not None:
            root = self.scale.unsqueeze(-1) * self.cov_factor
            within = within + torch.einsum("k,kdr,ker->de", weights, root, root)
        return between + within

    def _marginal_scale(self) -> Tensor:
        """Standard deviation of each component in each coordinate, (K, D)."""
        if self.scale_tril is not None:
            return torch.linalg.vector_norm(self.scale_tril, dim=-1)
        assert self.scale is not None
        if self.cov_factor is None:
            return self.scale
        return self.scale * (1.0 + self.cov_factor.square().sum(-1)).sqrt()

    def _components(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Log of weight times density of each component (..., K), and each one's score.

        The score of component k is Sigma_k^{-1} (mu_k - theta), (..., K, D).
        """
        number, dim = self.loc.shape
        difference = self.loc - value.unsqueeze(-2)
        if self.scale_tril is not None:
            # Components first: one triangular solve per component, points in the rows.
            rows = difference.reshape(-1, number, dim).transpose(0, 1)
            standard = _solve_lower(self.scale_tril, rows)
            pull = _solve_lower(self.scale_tril, standard, transpose=True).transpose(0, 1)
            pull = pull.reshape(difference.shape)
            square = standard.square().sum(-1).T.reshape(difference.shape[:-1])
            log_determinant = self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        else:
            assert self.scale is not None
            standard = difference / self.scale
            log_determinant = self.scale.log().sum(-1)
            if self.cov_factor is None:
                square = standard.square().sum(-1)
            else:
                # With c = (I + W^T W)^{-1} W^T z: (I + W W^T)^{-1} z = z - W c, and
                # z^T (I + W W^T)^{-1} z = |z - W c|^2 + |c|^2, which no rounding makes negative.
                factor = self.cov_factor
                identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
                capacitance = torch.linalg.cholesky(identity + factor.mT @ factor)
                rows = standard.reshape(-1, number, dim).transpose(0, 1)
                within = _solve_lower(capacitance, rows @ factor)
                within = _solve_lower(capacitance, within, transpose=True)
                standard = rows - within @ factor.mT
                square = standard.square().sum(-1) + within.square().sum(-1)
                square = square.T.reshape(difference.shape[:-1])
                standard = standard.transpose(0, 1).reshape(difference.shape)
                diagonal = capacitance.diagonal(dim1=-2, dim2=-1)
                log_determinant = log_determinant + diagonal.log().sum(-1)
            pull = standard / self.scale
        log_weights = self.logits.log_softmax(-1)
        return log_weights - log_determinant - 0.5 * (square + dim * LOG_TWO_PI), pull


class AutoGaussianMixture(autoguide.guides.AutoContinuous):
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
        A Pyro model.
    num_components : int
        Number K of components.
    covariance : {"full", "diag", "low_rank"}
        Form of every Sigma_k: any, diagonal, or S (I + W W^T) S with S diagonal (D) and W (D, r),
        as in the host's ``AutoMultivariateNormal``, ``AutoDiagonalNormal`` and
        ``AutoLowRankMultivariateNormal``.
    init_loc_fn : callable
        Initialisation strategy of ``pyro.infer.autoguide.initialization``, for the point around
        which the means start.
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
    The parameters are ``logits`` (K,), ``loc`` (K, D), ``scale`` (K, D) and, for "full",
    ``scale_tril`` (K, D, D) with a diagonal of ones, which ``scale`` multiplies from the left, or,
    for "low_rank", ``cov_factor`` (K, D, r).

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
        check_options(num_components, covariance, rank, init_scale, init_spread, temperature)
        super().__init__(model, init_loc_fn=init_loc_fn)
        self.num_components = num_components
        self.covariance = covariance
        self.rank = rank
        self.temperature = temperature
        self._init_scale, self._init_spread = init_scale, init_spread

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        number, dim, center = self.num_components, self.latent_dim, self._init_loc()
        self.logits = nn.Parameter(center.new_zeros(number))
        self.loc = nn.Parameter(center + self._init_scale * center.new_empty(number, dim).normal_())
        widths = initial_scales(number, self._init_scale, self._init_spread)
        scale = center.new_tensor(widths).unsqueeze(-1).repeat(1, dim)
        if self.covariance == "full":
            identity = torch.eye(dim, dtype=center.dtype, device=center.device)
            unit = identity.expand(number, dim, dim).contiguous()
            self.scale_tril = PyroParam(unit, self.scale_tril_constraint)
        elif self.covariance == "low_rank":
            # Not W = 0: the score depends on W through W W^T and no gradient would leave there.
            rank = initial_rank(self.rank, dim)
            draws = center.new_empty(number, dim, rank).normal_()
            self.cov_factor = nn.Parameter(draws / math.sqrt(rank))
            scale = math.sqrt(0.5) * scale
        self.scale = PyroParam(scale, self.scale_constraint)

    def get_posterior(self, *args: Any, **kwargs: Any) -> GaussianMixture:
        """The mixture with the present parameters, a distribution over the flat vector."""
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
        """Median of each coordinate, by site, in the constrained space."""
        return {name: values[0] for name, values in self.quantiles([0.5]).items()}

    @torch.no_grad()
    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Quantiles of each coordinate, by site, in the constrained space.

        Parameters
        ----------
        quantiles : list or tensor
            Probabilities between 0 and 1.

        Returns
        -------
        dict of tensors
            By site, with the quantiles along the first dimension.
        """
        probabilities = torch.as_tensor(quantiles, dtype=self.loc.dtype, device=self.loc.device)
        by_site: dict[str, list[Tensor]] = {}
        for latent in self.get_posterior().quantile(probabilities):
            for site, value in self._unpack_latent(latent):
                constrained = biject_to(site["fn"].support)(value)
                by_site.setdefault(site["name"], []).append(constrained)
        return {name: torch.stack(values) for name, values in by_site.items()}


class Components(NamedTuple):
    """Components of a mixture with full covariances.

    Parameters
    ----------
    logits : tensor (K,)
        Logarithms of the weights, up to a constant.
    loc : tensor (K, D)
        Means.
    scale_tril : tensor (K, D, D)
        Lower triangular Cholesky factors of the covariances.
    """

    logits: Tensor
    loc: Tensor
    scale_tril: Tensor


@register_flat_density(AutoGaussianMixture)
class GaussianMixtureDensity(FlatDensity):
    """``AutoGaussianMixture``: closed-form score, so that its fit needs one reverse pass."""

    guide: AutoGaussianMixture

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

    def components(self, parameters: Parameters) -> Components:
        """The components, for ``covariance="full"``.

        Raises
        ------
        ArgumentError
            The guide has another covariance.
        """
        self._check_full()
        mixture = self._mixture(parameters)
        assert mixture.scale_tril is not None
        return Components(mixture.logits, mixture.loc, mixture.scale_tril)

    def set_components(self, parameters: Parameters, components: Components) -> Parameters:
        """New parameters with which the guide has these components, for ``covariance="full"``.

        Raises
        ------
        ArgumentError
            The guide has another covariance.
        """
        self._check_full()
        guide, scale = self.guide, components.scale_tril.diagonal(dim1=-2, dim2=-1)
        unit = components.scale_tril / scale.unsqueeze(-1)
        return {
            "logits": components.logits.clone(),
            "loc": components.loc.clone(),
            "scale_unconstrained": transform_to(guide.scale_constraint).inv(scale),
            "scale_tril_unconstrained": transform_to(guide.scale_tril_constraint).inv(unit),
        }

    def _check_full(self) -> None:
        if self.guide.covariance != "full":
            raise ArgumentError(
                "Expected AutoGaussianMixture with covariance='full', found "
                f"{self.guide.covariance!r}."
            )

    def sample(self, parameters: Parameters, generator: torch.Generator, num: int) -> Tensor:
        return self._mixture(parameters).sample((num,), generator)

    def log_prob(self, parameters: Parameters, theta: Tensor) -> Tensor:
        return self._mixture(parameters).log_prob(theta)

    def score(self, parameters: Parameters, theta: Tensor) -> Tensor:
        return self._mixture(parameters).score(theta)

    def moments(self, parameters: Parameters) -> Moments:
        """Mean (D,) and Cholesky factor (D, D) of the covariance of the whole mixture.

        Exact, but they do not determine the mixture, unlike a Normal guide's.
        """
        mixture = self._mixture(parameters)
        return Moments(mixture.mean, torch.linalg.cholesky(mixture.covariance_matrix))


def _solve_lower(scale_tril: Tensor, rows: Tensor, transpose: bool = False) -> Tensor:
    """Solve L_k x = v, or L_k^T x = v, for each component; ``rows`` is (K, N, D)."""
    # x^T = v^T L^{-T}: the rows are solved from the right, by an upper triangular matrix for L.
    if transpose:
        return torch.linalg.solve_triangular(scale_tril, rows, upper=False, left=False)
    return torch.linalg.solve_triangular(scale_tril.mT, rows, upper=True, left=False)
