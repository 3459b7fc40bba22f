"""Mixtures of Normals as a NumPyro guide (``AutoGaussianMixture``).

See :mod:`ppl_ext.guides.mixture`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import logsumexp
from jaxtyping import Float
from numpyro.distributions import constraints
from numpyro.infer import autoguide
from numpyro.infer.initialization import init_to_uniform

from numpyro_ext.draws import standard_gumbel, standard_normal
from numpyro_ext.guides.arrays import JaxFunctions
from numpyro_ext.guides.flat_density import Draws, FlatDensity, Parameters, register_flat_density
from ppl_ext.guides import mixture as shared

Components = shared.Components


class GaussianMixture(shared.MixtureFormulas, dist.Distribution):
    arrays = JaxFunctions
    support = constraints.real_vector
    pytree_data_fields = ("logits", "loc", "scale", "scale_tril", "cov_factor")
    pytree_aux_fields = ("temperature",)

    @property
    def has_rsample(self) -> bool:
        return True

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Float[Array, "*S D"]:
        """Draws (*sample_shape, D)."""
        assert key is not None
        key_choice, key_diagonal, key_factor = jax.random.split(key, 3)
        number, dim = self.loc.shape
        dtype = jnp.result_type(self.loc)
        noise, inner = standard_normal(key_diagonal, (*sample_shape, dim), dtype), None
        if self.cov_factor is not None:
            rank = self.cov_factor.shape[-1]
            inner = standard_normal(key_factor, (*sample_shape, rank), dtype)
        gumbel = standard_gumbel(key_choice, (*sample_shape, number), dtype)
        return self._chosen(*self._noisy(noise, inner, gumbel))

    def log_prob(
        self, value: Float[Array, "*S D"], intermediates: list[Any] | None = None
    ) -> Float[Array, "*S"]:
        """Log density at ``value`` (..., D), shape (...,)."""
        return logsumexp(self._components(value)[0], -1)


class AutoGaussianMixture(shared.MixtureGuide, autoguide.AutoContinuous):
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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Poisson(rate), obs=y)
    >>> y = jnp.array([2, 0, 1, 3, 1])
    >>> guide = nx.AutoGaussianMixture(model, num_components=2)
    >>> engine = nx.ProximalScoreVI(model, guide)
    >>> result = engine.run(jax.random.key(0), 100, y)
    >>> draws = engine.get_samples(result.state, jax.random.key(1), 1000)
    >>> print(f"{draws['rate'].mean():.1f} {draws['rate'].std():.1f}")  # of a Gamma(9, 6)
    1.5 0.5
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
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)
        self._set_options(num_components, covariance, rank, init_scale, init_spread, temperature)
        self._init_values: dict[str, Array] = {}

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        number, dim, center = self.num_components, self.latent_dim, self._init_latent
        key_loc, key_factor = jax.random.split(numpyro.prng_key())
        apart = self._init_scale * jax.random.normal(key_loc, (number, dim), center.dtype)
        widths = jnp.asarray(self._initial_scales(), center.dtype)
        scale = jnp.tile(widths[:, None], (1, dim))
        values = {"logits": jnp.zeros(number, center.dtype), "loc": center + apart}
        if self.covariance == "full":
            values["scale_tril"] = scale[..., None] * jnp.eye(dim, dtype=center.dtype)
        elif self.covariance == "diag":
            values["scale"] = scale
        else:
            # Not W = 0: the score depends on W through W W^T and no gradient would leave there.
            rank = self._initial_rank(dim)
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
        values = {name: params[f"{self.prefix}_{name}"] for name in self._init_values}
        return GaussianMixture(**values, temperature=self.temperature)

    def median(self, params: Mapping[str, Any]) -> dict[str, Array]:
        return self.quantiles(params, 0.5)

    def quantiles(self, params: Mapping[str, Any], quantiles: Any) -> dict[str, Array]:
        latent = self.get_posterior(params).quantile(jnp.asarray(quantiles))
        return self._unpack_and_constrain(latent, params)


@register_flat_density(AutoGaussianMixture)
class GaussianMixtureDensity(shared.MixtureDensity, FlatDensity):
    def _check_evaluable(self) -> None:
        """The closed forms can always be evaluated."""

    def _mixture(self, parameters: Parameters) -> GaussianMixture:
        return self.guide.get_posterior(self.to_host(parameters))

    def set_components(self, parameters: Parameters, components: Components) -> Parameters:
        self._check_full()
        values = components._asdict()
        return self.from_host(
            {f"{self.guide.prefix}_{name}": value for name, value in values.items()}
        )

    def sample(self, parameters: Parameters, rng_key: Array, num: int) -> Draws:
        return jax.lax.stop_gradient(self._mixture(parameters).sample(rng_key, (num,)))
