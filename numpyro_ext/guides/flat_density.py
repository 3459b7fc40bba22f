"""The flat log density of a guide: what score-based inference needs to know of a NumPyro autoguide.

A guide takes part in score-based inference through a :class:`FlatDensity`: a view of the guide
as a density log q(theta) over the flat unconstrained vector, with pure functions of a dictionary
of *unconstrained* parameter arrays under the host's names (``auto_loc``, ...). Normal guides
have closed forms for the score, grad_theta log q(theta); other continuous guides whose posterior
can be evaluated at a given point are differentiated automatically. The registry is open:
:func:`register_flat_density` adds a guide class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to
from numpyro.infer import autoguide

from numpyro_ext.errors import ArgumentError
from numpyro_ext.target.layout import Layout

Parameters = dict[str, Any]
CovarianceStructure = Literal["diagonal", "full", "low_rank"]

LOG_TWO_PI = math.log(2.0 * math.pi)


class Moments(NamedTuple):
    """First two moments of a Normal guide.

    ``mean`` is (D,). ``scale`` is the standard deviations (D,) of a diagonal guide, and the lower
    triangular Cholesky factor (D, D) of the covariance of any other.
    """

    mean: jax.Array
    scale: jax.Array


class FlatDensity:
    """Flat log density of an ``AutoContinuous`` guide, by automatic differentiation.

    Subclasses give closed forms. All methods are pure functions of ``parameters``.

    Parameters
    ----------
    guide : AutoContinuous
        A guide that has been set up (its prototype exists).
    rng_key : jax.Array
        Key of the random draws with which the host initialises parameters such as a flow's.

    Attributes
    ----------
    covariance_structure : {"diagonal", "full", "low_rank"} or None
        None when the guide is not a Normal.
    """

    covariance_structure: CovarianceStructure | None = None

    def __init__(self, guide: autoguide.AutoContinuous, rng_key: jax.Array) -> None:
        self.guide = guide
        trace = handlers.trace(handlers.seed(guide._get_posterior, rng_key)).get_trace()
        sites = {name: site for name, site in trace.items() if site["type"] == "param"}
        self._transforms = {
            name: biject_to(site["kwargs"].get("constraint", constraints.real))
            for name, site in sites.items()
        }
        self._initial = self.from_host({name: site["value"] for name, site in sites.items()})
        self._check_evaluable()

    def _check_evaluable(self) -> None:
        theta = jax.ShapeDtypeStruct((self.dim,), jnp.result_type(float))
        try:
            jax.eval_shape(self.log_prob, self._initial, theta)
        except NotImplementedError as error:
            raise ArgumentError(
                f"Expected a guide whose log density can be evaluated at any point, found "
                f"{type(self.guide).__name__}, which cannot be inverted ({error}). {ALTERNATIVES}"
            ) from error

    @property
    def dim(self) -> int:
        """Length D of the flat unconstrained vector."""
        return int(self.guide.latent_dim)

    def initial_parameters(self) -> Parameters:
        """The guide's initial unconstrained parameters, by host name (copies)."""
        return jax.tree.map(jnp.copy, self._initial)

    def to_host(self, parameters: Mapping[str, Any]) -> Parameters:
        """Parameters as the host gives and takes them (constrained)."""
        return {name: self._transforms[name](value) for name, value in parameters.items()}

    def from_host(self, params: Mapping[str, Any]) -> Parameters:
        """Unconstrained parameters of the host's: inverse of :meth:`to_host`."""
        parameters = {
            name: transform.inv(params[name]) for name, transform in self._transforms.items()
        }
        # Weakly typed values would change type after the first step and compile it twice.
        return jax.tree.map(
            lambda value: jax.lax.convert_element_type(value, jnp.result_type(value)), parameters
        )

    def write_back(self, parameters: Mapping[str, Any]) -> Parameters:
        """The result in the host's form.

        NumPyro's guides hold no parameters: pass this dictionary as ``params`` to
        ``guide.sample_posterior``, ``guide.median``, ``guide.get_posterior`` and ``Predictive``,
        or as ``init_params`` to ``SVI.init``.
        """
        return self.to_host(parameters)

    def _posterior(self, parameters: Parameters) -> Any:
        return handlers.substitute(self.guide._get_posterior, data=self.to_host(parameters))()

    def sample(self, parameters: Parameters, rng_key: jax.Array, num: int) -> jax.Array:
        """Draw (num, D) from q; no gradient flows through the draws."""
        return jax.lax.stop_gradient(self._posterior(parameters).sample(rng_key, (num,)))

    def log_prob(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        """Log density at theta (..., D), shape (...,)."""

        def single(theta: jax.Array) -> jax.Array:
            return jnp.sum(self._posterior(parameters).log_prob(theta))

        return jnp.vectorize(single, signature="(d)->()")(theta)

    def score(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        """Gradient of the log density with respect to theta, (..., D)."""

        def single(theta: jax.Array) -> jax.Array:
            return jnp.sum(self._posterior(parameters).log_prob(theta))

        return jnp.vectorize(jax.grad(single), signature="(d)->(d)")(theta)

    def mean_square_residual(
        self, parameters: Parameters, theta: jax.Array, target: jax.Array
    ) -> tuple[jax.Array, Parameters]:
        """Mean over draws of ||grad log q(theta) - target||^2, and its gradient.

        Parameters
        ----------
        parameters : dict of arrays
        theta, target : arrays (S, D)
            Held fixed.

        Returns
        -------
        value : scalar array
        gradient : dict of arrays
            With respect to ``parameters``.
        """

        def value(parameters: Parameters) -> jax.Array:
            return jnp.square(self.score(parameters, theta) - target).sum(-1).mean()

        return jax.value_and_grad(value)(parameters)

    def moments(self, parameters: Parameters) -> Moments:
        """Mean and scale of a Normal guide.

        Raises
        ------
        ArgumentError
            The guide is not a Normal.
        """
        raise ArgumentError(
            f"Expected a Normal guide, found {type(self.guide).__name__}, whose moments have no "
            "closed form. Draw samples instead."
        )

    def set_moments(self, parameters: Parameters, moments: Moments) -> Parameters:
        """New parameters with which a diagonal or full Normal guide has these moments.

        Raises
        ------
        ArgumentError
            The guide is not a diagonal or full Normal.
        """
        raise ArgumentError(
            "Expected AutoDiagonalNormal or AutoMultivariateNormal, found "
            f"{type(self.guide).__name__}, which cannot be set to given moments."
        )


class _NormalDensity(FlatDensity):
    """What the three Normal guides have in common."""

    def _check_evaluable(self) -> None:
        """The closed forms can always be evaluated."""

    def _get(self, parameters: Parameters, name: str) -> jax.Array:
        name = f"{self.guide.prefix}_{name}"
        return self._transforms[name](parameters[name])

    def _noise(self, parameters: Parameters, rng_key: jax.Array, shape: tuple[int, ...]) -> Any:
        return jax.random.normal(rng_key, shape, self._get(parameters, "loc").dtype)

    def _set(self, **values: jax.Array) -> Parameters:
        return self.from_host(
            {f"{self.guide.prefix}_{name}": value for name, value in values.items()}
        )


class DiagonalNormalDensity(_NormalDensity):
    """``AutoDiagonalNormal``: closed forms in O(D) memory per draw."""

    covariance_structure = "diagonal"

    def sample(self, parameters: Parameters, rng_key: jax.Array, num: int) -> jax.Array:
        loc, scale = self.moments(parameters)
        draws = loc + scale * self._noise(parameters, rng_key, (num, self.dim))
        return jax.lax.stop_gradient(draws)

    def log_prob(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        loc, scale = self.moments(parameters)
        square = jnp.square((theta - loc) / scale).sum(-1)
        return -0.5 * (square + self.dim * LOG_TWO_PI) - jnp.log(scale).sum()

    def score(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        loc, scale = self.moments(parameters)
        return (loc - theta) / jnp.square(scale)

    def moments(self, parameters: Parameters) -> Moments:
        return Moments(self._get(parameters, "loc"), self._get(parameters, "scale"))

    def set_moments(self, parameters: Parameters, moments: Moments) -> Parameters:
        return self._set(loc=moments.mean, scale=moments.scale)


class MultivariateNormalDensity(_NormalDensity):
    """``AutoMultivariateNormal``: closed forms by two triangular solves."""

    covariance_structure = "full"

    def sample(self, parameters: Parameters, rng_key: jax.Array, num: int) -> jax.Array:
        loc, scale_tril = self.moments(parameters)
        draws = loc + self._noise(parameters, rng_key, (num, self.dim)) @ scale_tril.T
        return jax.lax.stop_gradient(draws)

    def log_prob(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        loc, scale_tril = self.moments(parameters)
        standard = _solve_lower(scale_tril, theta - loc)
        log_determinant = jnp.log(jnp.diagonal(scale_tril)).sum()
        square = jnp.square(standard).sum(-1)
        return -0.5 * (square + self.dim * LOG_TWO_PI) - log_determinant

    def score(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        loc, scale_tril = self.moments(parameters)
        return _solve_lower(scale_tril, _solve_lower(scale_tril, loc - theta), transpose=True)

    def moments(self, parameters: Parameters) -> Moments:
        return Moments(self._get(parameters, "loc"), self._get(parameters, "scale_tril"))

    def set_moments(self, parameters: Parameters, moments: Moments) -> Parameters:
        return self._set(loc=moments.mean, scale_tril=moments.scale)


class LowRankNormalDensity(_NormalDensity):
    """``AutoLowRankMultivariateNormal``: closed forms by Woodbury's identity.

    The covariance is S (I + W W^T) S with S = diag(scale) and W = ``cov_factor`` (D, r), so only
    r x r systems are solved.
    """

    covariance_structure = "low_rank"

    def __init__(self, guide: autoguide.AutoContinuous, rng_key: jax.Array) -> None:
        super().__init__(guide, rng_key)
        # The host starts at W = 0. The score depends on W through W W^T, so no gradient would
        # ever leave there; Pyro's random start, with the same marginal scale, is taken instead.
        factor_name, scale_name = f"{guide.prefix}_cov_factor", f"{guide.prefix}_scale"
        host = self.to_host(self._initial)
        factor, scale = host[factor_name], host[scale_name]
        if not factor.any():
            draws = jax.random.normal(rng_key, factor.shape, factor.dtype)
            host[factor_name] = draws / math.sqrt(factor.shape[-1])
            host[scale_name] = scale * math.sqrt(0.5)
            self._initial = self.from_host(host)

    def _parts(self, parameters: Parameters) -> tuple[jax.Array, jax.Array, jax.Array]:
        loc, scale = self._get(parameters, "loc"), self._get(parameters, "scale")
        return loc, scale, self._get(parameters, "cov_factor")

    def sample(self, parameters: Parameters, rng_key: jax.Array, num: int) -> jax.Array:
        loc, scale, factor = self._parts(parameters)
        key_diagonal, key_factor = jax.random.split(rng_key)
        noise = self._noise(parameters, key_diagonal, (num, self.dim))
        noise += self._noise(parameters, key_factor, (num, factor.shape[-1])) @ factor.T
        return jax.lax.stop_gradient(loc + scale * noise)

    def log_prob(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        loc, scale, factor = self._parts(parameters)
        standard, capacitance = (theta - loc) / scale, _capacitance(factor)
        inner = _solve_lower(capacitance, standard @ factor)
        square = jnp.square(standard).sum(-1) - jnp.square(inner).sum(-1)
        log_determinant = jnp.log(scale).sum() + jnp.log(jnp.diagonal(capacitance)).sum()
        return -0.5 * (square + self.dim * LOG_TWO_PI) - log_determinant

    def score(self, parameters: Parameters, theta: jax.Array) -> jax.Array:
        loc, scale, factor = self._parts(parameters)
        standard = (theta - loc) / scale
        projected = jnp.reshape(standard @ factor, (-1, factor.shape[-1]))
        inner = cho_solve((_capacitance(factor), True), projected.T).T
        inner = jnp.reshape(inner, (*standard.shape[:-1], factor.shape[-1]))
        return (inner @ factor.T - standard) / scale

    def moments(self, parameters: Parameters) -> Moments:
        loc, scale, factor = self._parts(parameters)
        scaled = scale[:, None] * factor
        covariance = scaled @ scaled.T + jnp.diag(jnp.square(scale))
        return Moments(loc, jnp.linalg.cholesky(covariance))


def _capacitance(factor: jax.Array) -> jax.Array:
    """Cholesky factor of I + W^T W, (r, r)."""
    return jnp.linalg.cholesky(jnp.eye(factor.shape[-1], dtype=factor.dtype) + factor.T @ factor)


def _solve_lower(scale_tril: jax.Array, vectors: jax.Array, transpose: bool = False) -> jax.Array:
    """Solve L x = v, or L^T x = v, for vectors v in the rows of ``vectors`` (..., D)."""
    rows = jnp.reshape(vectors, (-1, vectors.shape[-1]))
    solved = solve_triangular(scale_tril, rows.T, trans=1 if transpose else 0, lower=True).T
    return jnp.reshape(solved, vectors.shape)


ALTERNATIVES = (
    "Use AutoDiagonalNormal, AutoMultivariateNormal or AutoLowRankMultivariateNormal, or another "
    "AutoContinuous guide whose posterior has an evaluable log density, such as AutoIAFNormal; "
    "or register one with register_flat_density."
)

Factory = Callable[..., FlatDensity]
FactoryType = TypeVar("FactoryType", bound=Factory)

_FACTORIES: dict[type, Factory] = {}
_REFUSALS: dict[type, str] = {}


def register_flat_density(guide_class: type) -> Callable[[FactoryType], FactoryType]:
    """Decorator that gives guides of a class (and its subclasses) a flat log density.

    Parameters
    ----------
    guide_class : type
        A subclass of NumPyro's ``AutoContinuous``.

    Examples
    --------
    >>> @register_flat_density(MyGuide)          # doctest: +SKIP
    ... class MyDensity(FlatDensity):
    ...     def score(self, parameters, theta): ...

    The decorated object is called with the guide (set up) and a random key.
    """

    def decorate(factory: FactoryType) -> FactoryType:
        _FACTORIES[guide_class] = factory
        _REFUSALS.pop(guide_class, None)
        return factory

    return decorate


def refuse_flat_density(guide_class: type, reason: str) -> None:
    """Refuse guides of a class (and its subclasses), with a reason that completes a sentence."""
    _REFUSALS[guide_class] = reason
    _FACTORIES.pop(guide_class, None)


def check_has_flat_density(guide: Any) -> Factory:
    """The factory for a guide, found by its type.

    Raises
    ------
    ArgumentError
        The guide has no flat log density; the message names alternatives.
    """
    for guide_class in type(guide).__mro__:
        if guide_class in _FACTORIES:
            return _FACTORIES[guide_class]
        if guide_class in _REFUSALS:
            raise ArgumentError(
                "Expected a guide with a log density over the flat unconstrained vector, found "
                f"{type(guide).__name__}: {_REFUSALS[guide_class]}. {ALTERNATIVES}"
            )
    found = guide.__name__ if callable(guide) and hasattr(guide, "__name__") else type(guide)
    raise ArgumentError(
        "Expected an autoguide object with a log density over the flat unconstrained vector, "
        f"found {found}. {ALTERNATIVES}"
    )


def flat_density(
    guide: Any,
    rng_key: jax.Array,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    layout: Layout | None = None,
) -> FlatDensity:
    """Flat log density of a guide, which is set up on its model with the given arguments.

    A guide that was set up before is set up again, so that the initial parameters depend on
    ``rng_key`` and the arguments alone.

    Parameters
    ----------
    guide : AutoContinuous
        A host guide.
    rng_key : jax.Array
        Key of the random draws with which the host initialises the guide.
    args, kwargs
        Arguments of the model.
    layout : Layout, optional
        Order and shapes of the target's sites, which the guide's must equal.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, or orders the latent sites otherwise than ``layout``.
    """
    factory = check_has_flat_density(guide)
    key_setup, key_parameters = jax.random.split(rng_key)
    with handlers.seed(rng_seed=key_setup):
        guide._setup_prototype(*args, **dict(kwargs or {}))
    if layout is not None:
        check_same_layout(guide, layout)
    return factory(guide, key_parameters)


def check_same_layout(guide: Any, layout: Layout) -> None:
    """See that the guide's flat vector has the sites of ``layout``, in its order.

    Raises
    ------
    ArgumentError
        It has not.
    """
    found = {name: tuple(jnp.shape(value)) for name, value in guide._init_locs.items()}
    expected = {name: tuple(layout.shapes[name]) for name in layout.names}
    if list(found.items()) != list(expected.items()):
        raise ArgumentError(
            f"Expected a guide over the latent sites {expected} in this order, found {found}. "
            "Make the guide from the same model that the engine is given."
        )


register_flat_density(autoguide.AutoContinuous)(FlatDensity)
register_flat_density(autoguide.AutoDiagonalNormal)(DiagonalNormalDensity)
register_flat_density(autoguide.AutoMultivariateNormal)(MultivariateNormalDensity)
register_flat_density(autoguide.AutoLowRankMultivariateNormal)(LowRankNormalDensity)

_PER_SITE = "it works site by site and has no distribution over the flat vector"
_ANNEALED = "its density is known only through auxiliary variables"
refuse_flat_density(autoguide.AutoGuide, _PER_SITE)
refuse_flat_density(autoguide.AutoNormal, _PER_SITE + " (AutoDiagonalNormal is its flat equal)")
refuse_flat_density(autoguide.AutoDelta, "a point estimate has no density")
refuse_flat_density(autoguide.AutoGuideList, "it is a list of guides")
refuse_flat_density(autoguide.AutoBNAFNormal, "its flow has no analytic inverse")
refuse_flat_density(autoguide.AutoDAIS, _ANNEALED)
refuse_flat_density(autoguide.AutoSemiDAIS, _ANNEALED)
refuse_flat_density(autoguide.AutoSurrogateLikelihoodDAIS, _ANNEALED)
refuse_flat_density(autoguide.AutoLaplaceApproximation, "it is a point estimate while it is fitted")
