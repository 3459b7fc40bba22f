"""Mixtures of Normals as a NumPyro guide (``AutoGaussianMixture``), with a closed-form score.

The guide q(theta) = sum_k w_k N(theta; mu_k, Sigma_k) over the flat unconstrained vector can hold
several modes, which no single Normal can. It is an ordinary host autoguide: it works in ``SVI``,
``Predictive`` and ``sample_posterior``, and score-based engines match its score

    grad log q(theta) = sum_k r_k(theta) Sigma_k^{-1} (mu_k - theta),

where r_k(theta) is the posterior probability of component k at theta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp, ndtr, ndtri
from numpyro.distributions import constraints
from numpyro.infer import autoguide
from numpyro.infer.initialization import init_to_uniform

from numpyro_ext.draws import standard_gumbel, standard_normal
from numpyro_ext.guides.flat_density import (
    FlatDensity,
    Moments,
    Parameters,
    register_flat_density,
)
from ppl_ext.errors import ArgumentError
from ppl_ext.guides.mixture import check_options, initial_rank, initial_scales

LOG_TWO_PI = math.log(2.0 * math.pi)
#: Halvings of a bracket when the distribution function is inverted: more than a float64 can tell.
HALVINGS = 100


class GaussianMixture(dist.Distribution):
    """Mixture of K Normals over vectors of length D, with draws that can be differentiated.

    Draws are exact: a component is chosen by the largest of the logits with Gumbel noise added,
    and the draw is that component's. See :class:`AutoGaussianMixture` for their gradient.

    Parameters
    ----------
    logits : array (K,)
        Logarithms of the weights, up to a constant.
    loc : array (K, D)
        Means.
    scale : array (K, D), optional
        Standard deviations; with ``cov_factor`` the S of S (I + W W^T) S.
    scale_tril : array (K, D, D), optional
        Lower triangular Cholesky factors of the covariances, in place of ``scale``.
    cov_factor : array (K, D, r), optional
        The W of S (I + W W^T) S.
    temperature : float
        Of the softmax that stands for the choice of the component in gradients.
    """

    support = constraints.real_vector
    pytree_data_fields = ("logits", "loc", "scale", "scale_tril", "cov_factor")
    pytree_aux_fields = ("temperature",)

    def __init__(
        self,
        logits: Array,
        loc: Array,
        *,
        scale: Array | None = None,
        scale_tril: Array | None = None,
        cov_factor: Array | None = None,
        temperature: float = 0.05,
        validate_args: bool | None = None,
    ) -> None:
        self.logits, self.loc = logits, loc
        self.scale, self.scale_tril, self.cov_factor = scale, scale_tril, cov_factor
        self.temperature = temperature
        super().__init__((), (loc.shape[-1],), validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:
        return True

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws (*sample_shape, D)."""
        assert key is not None
        key_choice, key_diagonal, key_factor = jax.random.split(key, 3)
        number, dim = self.loc.shape
        dtype = jnp.result_type(self.loc)
        noise = standard_normal(key_diagonal, (*sample_shape, dim), dtype)
        # Every component's draw from the same noise: only one of them is used.
        if self.scale_tril is not None:
            draws = self.loc + jnp.einsum("kde,...e->...kd", self.scale_tril, noise)
        else:
            assert self.scale is not None
            draws = noise[..., None, :]
            if self.cov_factor is not None:
                rank = self.cov_factor.shape[-1]
                noise = standard_normal(key_factor, (*sample_shape, rank), dtype)
                draws = draws + jnp.einsum("kdr,...r->...kd", self.cov_factor, noise)
            draws = self.loc + self.scale * draws
        perturbed = self.logits + standard_gumbel(key_choice, (*sample_shape, number), dtype)
        chosen = jax.nn.one_hot(jnp.argmax(perturbed, -1), number, dtype=dtype)
        soft = jax.nn.softmax(perturbed / self.temperature, -1)
        # In value exactly the choice; in the gradient the choice's soft stand-in.
        chosen = chosen + (soft - jax.lax.stop_gradient(soft))
        return jnp.einsum("...k,...kd->...d", chosen, draws)

    def log_prob(self, value: Array, intermediates: list[Any] | None = None) -> Array:
        """Log density at ``value`` (..., D), shape (...,)."""
        return logsumexp(self._components(value)[0], -1)

    def score(self, value: Array) -> Array:
        """Gradient of the log density with respect to ``value`` (..., D)."""
        joint, pull = self._components(value)
        return jnp.einsum("...k,...kd->...d", jax.nn.softmax(joint, -1), pull)

    def quantile(self, probabilities: Array) -> Array:
        """Quantiles of every coordinate's own distribution, for probabilities of any shape (...).

        The distribution function of a coordinate is a weighted sum of the components' and has no
        closed inverse; it is inverted by bisection between the least and the greatest of the
        components' quantiles, which always enclose the mixture's. Where it is flat to rounding,
        as between two distant modes, the middle of the flat part is taken.

        Returns
        -------
        array (..., D)
        """
        weights, scale = jax.nn.softmax(self.logits), self._marginal_scale()
        level = jnp.asarray(probabilities, scale.dtype)[..., None]
        of_components = self.loc + scale * ndtri(level)[..., None]
        bracket = of_components.min(-2), of_components.max(-2)

        def halved(_: int, ends: tuple[Array, ...]) -> tuple[Array, ...]:
            low, high, low_of_last, high_of_last = ends
            first = 0.5 * low + 0.5 * high
            last = 0.5 * low_of_last + 0.5 * high_of_last
            left, right = below(first) < level, below(last) <= level
            return (
                jnp.where(left, first, low),
                jnp.where(left, high, first),
                jnp.where(right, last, low_of_last),
                jnp.where(right, high_of_last, last),
            )

        def below(point: Array) -> Array:
            standard = (point[..., None, :] - self.loc) / scale
            return jnp.einsum("k,...kd->...d", weights, ndtr(standard))

        _, first, last, _ = jax.lax.fori_loop(0, HALVINGS, halved, bracket * 2)
        return 0.5 * first + 0.5 * last

    @property
    def mean(self) -> Array:
        """Mean (D,)."""
        return jax.nn.softmax(self.logits) @ self.loc

    @property
    def variance(self) -> Array:
        """Variance of each coordinate (D,)."""
        second = jnp.square(self._marginal_scale()) + jnp.square(self.loc - self.mean)
        return jax.nn.softmax(self.logits) @ second

    @property
    def covariance_matrix(self) -> Array:
        """Covariance (D, D): that within the components and that of their means."""
        weights, apart = jax.nn.softmax(self.logits), self.loc - self.mean
        between = jnp.einsum("k,kd,ke->de", weights, apart, apart)
        if self.scale_tril is not None:
            root = self.scale_tril
            return between + jnp.einsum("k,kdr,ker->de", weights, root, root)
        assert self.scale is not None
        within = jnp.diag(weights @ jnp.square(self.scale))
        if self.cov_factor is not None:
            root = self.scale[..., None] * self.cov_factor
            within += jnp.einsum("k,kdr,ker->de", weights, root, root)
        return between + within

    def _marginal_scale(self) -> Array:
        """Standard deviation of each component in each coordinate, (K, D)."""
        if self.scale_tril is not None:
            return jnp.linalg.norm(self.scale_tril, axis=-1)
        assert self.scale is not None
        if self.cov_factor is None:
            return self.scale
        return self.scale * jnp.sqrt(1.0 + jnp.square(self.cov_factor).sum(-1))

    def _components(self, value: Array) -> tuple[Array, Array]:
        """Log of weight times density of each component (..., K), and each one's score.

        The score of component k is Sigma_k^{-1} (mu_k - theta), (..., K, D).
        """
        number, dim = self.loc.shape
        difference = self.loc - value[..., None, :]
        if self.scale_tril is not None:
            # Components first and points last: one triangular solve per component.
            columns = jnp.moveaxis(jnp.reshape(difference, (-1, number, dim)), 0, -1)
            standard = _solve_lower(self.scale_tril, columns)
            pull = jnp.moveaxis(_solve_lower(self.scale_tril, standard, transpose=True), -1, 0)
            pull = jnp.reshape(pull, difference.shape)
            square = jnp.reshape(jnp.square(standard).sum(-2).T, difference.shape[:-1])
            diagonal = jnp.diagonal(self.scale_tril, axis1=-2, axis2=-1)
            log_determinant = jnp.log(diagonal).sum(-1)
        else:
            assert self.scale is not None
            standard = difference / self.scale
            square = jnp.square(standard).sum(-1)
            log_determinant = jnp.log(self.scale).sum(-1)
            if self.cov_factor is not None:
                # With c = (I + W^T W)^{-1} W^T z: (I + W W^T)^{-1} z = z - W c, and
                # z^T (I + W W^T)^{-1} z = |z - W c|^2 + |c|^2, which no rounding makes negative.
                factor = self.cov_factor
                identity = jnp.eye(factor.shape[-1], dtype=factor.dtype)
                inner = jnp.einsum("kdr,kds->krs", factor, factor) + identity
                capacitance = jnp.linalg.cholesky(inner)
                projected = jnp.einsum("kdr,...kd->...kr", factor, standard)
                columns = jnp.moveaxis(jnp.reshape(projected, (-1, *projected.shape[-2:])), 0, -1)
                columns = _solve_lower(capacitance, columns)
                columns = _solve_lower(capacitance, columns, transpose=True)
                within = jnp.reshape(jnp.moveaxis(columns, -1, 0), projected.shape)
                standard = standard - jnp.einsum("kdr,...kr->...kd", factor, within)
                square = jnp.square(standard).sum(-1) + jnp.square(within).sum(-1)
                diagonal = jnp.diagonal(capacitance, axis1=-2, axis2=-1)
                log_determinant = log_determinant + jnp.log(diagonal).sum(-1)
            pull = standard / self.scale
        log_weights = jax.nn.log_softmax(self.logits)
        joint = log_weights - log_determinant - 0.5 * (square + dim * LOG_TWO_PI)
        return joint, pull


class AutoGaussianMixture(autoguide.AutoContinuous):
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
        A NumPyro model.
    num_components : int
        Number K of components.
    covariance : {"full", "diag", "low_rank"}
        Form of every Sigma_k: any, diagonal, or S (I + W W^T) S with S diagonal (D) and W (D, r),
        as in the host's ``AutoMultivariateNormal``, ``AutoDiagonalNormal`` and
        ``AutoLowRankMultivariateNormal``.
    prefix : str
        Of the names of the parameters.
    init_loc_fn : callable
        Initialisation strategy of ``numpyro.infer.initialization``, for the point around which
        the means start.
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
    The parameters are ``auto_logits`` (K,), ``auto_loc`` (K, D) and, for "full",
    ``auto_scale_tril`` (K, D, D), else ``auto_scale`` (K, D), with ``auto_cov_factor`` (K, D, r)
    for "low_rank".

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

    scale_constraint = constraints.softplus_positive
    scale_tril_constraint = constraints.scaled_unit_lower_cholesky

    def __init__(
        self,
        model: Callable[..., Any],
        num_components: int,
        covariance: str = "full",
        *,
        prefix: str = "auto",
        init_loc_fn: Callable[..., Any] = init_to_uniform,
        init_scale: float = 0.25,
        init_spread: float = 4.0,
        rank: int | None = None,
        temperature: float = 0.05,
    ) -> None:
        check_options(num_components, covariance, rank, init_scale, init_spread, temperature)
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)
        self.num_components = num_components
        self.covariance = covariance
        self.rank = rank
        self.temperature = temperature
        self._init_scale, self._init_spread = init_scale, init_spread
        self._init_values: dict[str, Array] = {}

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        number, dim, center = self.num_components, self.latent_dim, self._init_latent
        key_loc, key_factor = jax.random.split(numpyro.prng_key())
        apart = self._init_scale * jax.random.normal(key_loc, (number, dim), center.dtype)
        widths = initial_scales(number, self._init_scale, self._init_spread)
        scale = jnp.tile(jnp.asarray(widths, center.dtype)[:, None], (1, dim))
        values = {"logits": jnp.zeros(number, center.dtype), "loc": center + apart}
        if self.covariance == "full":
            values["scale_tril"] = scale[..., None] * jnp.eye(dim, dtype=center.dtype)
        elif self.covariance == "diag":
            values["scale"] = scale
        else:
            # Not W = 0: the score depends on W through W W^T and no gradient would leave there.
            rank = initial_rank(self.rank, dim)
            draws = jax.random.normal(key_factor, (number, dim, rank), center.dtype)
            values["cov_factor"] = draws / math.sqrt(rank)
            values["scale"] = math.sqrt(0.5) * scale
        self._init_values = values

    def _get_posterior(self) -> GaussianMixture:
        constrained = {
            "scale": self.scale_constraint,
            "scale_tril": self.scale_tril_constraint,
        }
        values = {
            name: numpyro.param(
                f"{self.prefix}_{name}", value, constraint=constrained.get(name, constraints.real)
            )
            for name, value in self._init_values.items()
        }
        return GaussianMixture(**values, temperature=self.temperature)

    def get_transform(self, params: Mapping[str, Any]) -> Any:
        """Not defined: a mixture is no transform of one base distribution."""
        raise NotImplementedError(
            "AutoGaussianMixture is a mixture, which is no transform of one base distribution. "
            "Use get_posterior(params), which can be sampled and evaluated."
        )

    def get_posterior(self, params: Mapping[str, Any]) -> GaussianMixture:
        """The mixture with these parameters, a distribution over the flat vector.

        Parameters
        ----------
        params : dict of arrays
            As ``SVI.get_params`` or an engine's result gives them.
        """
        values = {name: params[f"{self.prefix}_{name}"] for name in self._init_values}
        return GaussianMixture(**values, temperature=self.temperature)

    def median(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """Median of each coordinate, by site, in the constrained space."""
        return self.quantiles(params, 0.5)

    def quantiles(self, params: Mapping[str, Any], quantiles: Any) -> dict[str, Array]:
        """Quantiles of each coordinate, by site, in the constrained space.

        Parameters
        ----------
        params : dict of arrays
            As ``SVI.get_params`` or an engine's result gives them.
        quantiles : float or list
            Probabilities between 0 and 1.
        """
        latent = self.get_posterior(params).quantile(jnp.asarray(quantiles))
        return self._unpack_and_constrain(latent, params)


class Components(NamedTuple):
    """Components of a mixture with full covariances.

    Parameters
    ----------
    logits : array (K,)
        Logarithms of the weights, up to a constant.
    loc : array (K, D)
        Means.
    scale_tril : array (K, D, D)
        Lower triangular Cholesky factors of the covariances.
    """

    logits: Array
    loc: Array
    scale_tril: Array


@register_flat_density(AutoGaussianMixture)
class GaussianMixtureDensity(FlatDensity):
    """``AutoGaussianMixture``: closed-form score, so that its fit needs one reverse pass."""

    def _check_evaluable(self) -> None:
        """The closed forms can always be evaluated."""

    def _mixture(self, parameters: Parameters) -> GaussianMixture:
        return self.guide.get_posterior(self.to_host(parameters))

    def components(self, parameters: Parameters) -> Components:
        """The components, for ``covariance="full"``.

        Raises
        ------
        ArgumentError
            The guide has another covariance.
        """
        self._check_full()
        host = self.to_host(parameters)
        return Components(*(host[f"{self.guide.prefix}_{name}"] for name in Components._fields))

    def set_components(self, parameters: Parameters, components: Components) -> Parameters:
        """New parameters with which the guide has these components, for ``covariance="full"``.

        Raises
        ------
        ArgumentError
            The guide has another covariance.
        """
        self._check_full()
        values = components._asdict()
        return self.from_host(
            {f"{self.guide.prefix}_{name}": value for name, value in values.items()}
        )

    def _check_full(self) -> None:
        if self.guide.covariance != "full":
            raise ArgumentError(
                "Expected AutoGaussianMixture with covariance='full', found "
                f"{self.guide.covariance!r}."
            )

    def sample(self, parameters: Parameters, rng_key: Array, num: int) -> Array:
        return jax.lax.stop_gradient(self._mixture(parameters).sample(rng_key, (num,)))

    def log_prob(self, parameters: Parameters, theta: Array) -> Array:
        return self._mixture(parameters).log_prob(theta)

    def score(self, parameters: Parameters, theta: Array) -> Array:
        return self._mixture(parameters).score(theta)

    def moments(self, parameters: Parameters) -> Moments:
        """Mean (D,) and Cholesky factor (D, D) of the covariance of the whole mixture.

        Exact, but they do not determine the mixture, unlike a Normal guide's.
        """
        mixture = self._mixture(parameters)
        return Moments(mixture.mean, jnp.linalg.cholesky(mixture.covariance_matrix))


def _solve_lower(scale_tril: Array, columns: Array, transpose: bool = False) -> Array:
    """Solve L_k x = v, or L_k^T x = v, for each component; ``columns`` is (K, D, N)."""

    def solve(scale_tril: Array, columns: Array) -> Array:
        return solve_triangular(scale_tril, columns, trans=1 if transpose else 0, lower=True)

    return jax.vmap(solve)(scale_tril, columns)
