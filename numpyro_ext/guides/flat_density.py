"""The flat log density of NumPyro's autoguides; see :mod:`ppl_ext.guides.flat_density`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, lax
from jaxtyping import Float
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    ScaledUnitLowerCholeskyTransform,
    SoftplusTransform,
    biject_to,
)
from numpyro.infer import autoguide

from numpyro_ext.density.handlers import handling
from numpyro_ext.density.layout import Data, Layout
from numpyro_ext.guides.arrays import JaxFunctions
from numpyro_ext.guides.set_up import set_up
from numpyro_ext.programs import Program
from numpyro_ext.sharding import entry
from ppl_ext.guides import flat_density as shared
from ppl_ext.guides.registry import (
    FlatDensityRegistry,
    Registered,
    check_same_sites,
)
from ppl_ext.process import swapped

Parameters = dict[str, Any]
Draws = Float[Array, "num D"]
Moments = shared.Moments


class _ScaledUnitLowerCholesky(ScaledUnitLowerCholeskyTransform):
    """The host's transform, by indices: XLA compiles its scatter several times as slowly, and it
    finds the places with operations that are compiled one by one."""

    def __call__(self, x: Array) -> Array:
        size = math.isqrt(2 * x.shape[-1])
        row, column = (lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
        below = x[..., row * (row - 1) // 2 + column]
        unit = jnp.where(row > column, below, jnp.where(row == column, 1.0, 0.0))
        return unit * jax.nn.softplus(x[..., -size:])[..., None]

    def _inverse(self, y: Array) -> Array:
        diagonal = jnp.diagonal(y, axis1=-2, axis2=-1)
        rows, columns = np.tril_indices(y.shape[-1], -1)
        below = (y / diagonal[..., None])[..., rows, columns]
        return jnp.concatenate([below, SoftplusTransform().inv(diagonal)], -1)


def _transform_to(constraint: Any) -> Any:
    transform = biject_to(constraint)
    scatters = type(transform) is ScaledUnitLowerCholeskyTransform
    return _ScaledUnitLowerCholesky() if scatters else transform


class FlatDensity(shared.FlatDensityShell):
    """Flat log density of an ``AutoContinuous`` guide, by automatic differentiation.

    Subclasses give closed forms. All methods are pure functions of ``parameters``, but for
    ``write_back`` in Pyro, whose guides hold their parameters.

    Parameters
    ----------
    guide : AutoContinuous
        A guide that has been set up (its prototype exists).
    dtype : torch.dtype, optional
        In Pyro: the guide's parameters are converted to it. Default: as they are.
    rng_key : jax.Array
        In NumPyro: key of the random draws with which the host initialises parameters such as a
        flow's.

    Attributes
    ----------
    covariance_structure : CovarianceStructure or None
        None when the guide is not a Normal.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> guide = numpyro.infer.autoguide.AutoDiagonalNormal(model, init_scale=1.0)
    >>> density = nx.flat_density(guide, jax.random.key(0), (y,))
    >>> parameters = density.initial_parameters()
    >>> loc = density.to_host(parameters)["auto_loc"]
    >>> theta = loc + jnp.array([[0.0], [1.0]])  # two positions (P, D)
    >>> print(abs(density.score(parameters, theta)).round(2).flatten())
    [0. 1.]
    """

    arrays = JaxFunctions

    def __init__(self, guide: autoguide.AutoContinuous, rng_key: Array) -> None:
        self.guide = guide
        self._rng_key = rng_key
        self._transforms: dict[str, Any] = {}

        def learn_transforms(arrays: dict[str, Any], rng_key: Array) -> None:
            for name, site in self._statements(arrays, rng_key).items():
                constraint = site["kwargs"].get("constraint", constraints.real)
                self._transforms[name] = _transform_to(constraint)

        # The statements are traced for their constraints alone. The initial values are not computed
        # here.
        jax.eval_shape(learn_transforms, self._arrays, rng_key)
        self._check_evaluable()

    @property
    def _arrays(self) -> dict[str, Any]:
        """What the guide keeps of its set-up in arrays, such as the initial latent vector."""

        def is_array(value: Any) -> bool:
            if isinstance(value, np.ndarray):
                return True
            entries = list(value.values()) if isinstance(value, dict) else [value]
            return bool(entries) and all(isinstance(entry, Array) for entry in entries)

        return {name: value for name, value in vars(self.guide).items() if is_array(value)}

    def _statements(self, arrays: dict[str, Any], rng_key: Array) -> dict[str, Any]:
        """The host's statements of the guide's parameters, with their initial values."""
        # The guide itself must not hold the arrays of a program that is being traced.
        guide = copy.copy(self.guide)
        vars(guide).update(arrays)
        posterior = handlers.seed(guide._get_posterior, rng_key)
        # A check of values known while tracing would be compiled, operation by operation.
        with handling(), swapped(numpyro.validation_enabled(False)):
            trace = handlers.trace(posterior).get_trace()
        return {name: site for name, site in trace.items() if site["type"] == "param"}

    def _host_start(self, arrays: dict[str, Any], rng_key: Array) -> Parameters:
        """Initial parameters as the host has them (constrained)."""
        sites = self._statements(arrays, rng_key)
        return {name: site["value"] for name, site in sites.items()}

    def _start(self, arrays: dict[str, Any], rng_key: Array) -> Parameters:
        """Initial unconstrained parameters, in memory of their own."""
        return jax.tree.map(jnp.copy, self.from_host(self._host_start(arrays, rng_key)))

    def _check_evaluable(self) -> None:
        # Tracing is enough to see whether the host can invert the guide's transform.
        theta = jax.ShapeDtypeStruct((self.dim,), jnp.result_type(float))
        try:
            jax.eval_shape(self.log_prob, self.abstract_parameters(), theta)
        except NotImplementedError as error:
            raise self._not_invertible(error) from error

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The host's names of the guide's parameters."""
        return tuple(self._transforms)

    def initial_parameters(self) -> Parameters:
        # As arguments of the program, not constants: they can be long.
        return Program(self._start, rarely=True)(self._arrays, self._rng_key)

    def abstract_parameters(self) -> Parameters:
        """Shapes and dtypes of :meth:`initial_parameters`; nothing is computed."""
        return jax.eval_shape(self._start, self._arrays, self._rng_key)

    def to_host(self, parameters: Mapping[str, Any]) -> Parameters:
        """Parameters as the host gives and takes them (constrained)."""
        return {name: self._transforms[name](value) for name, value in parameters.items()}

    def from_host(self, params: Mapping[str, Any]) -> Parameters:
        """Unconstrained parameters of the host's: inverse of :meth:`to_host`."""
        # One program: JAX would compile each operation of the transforms by itself.
        own = {name: params[name] for name in self._transforms}
        return Program(self._from_host, rarely=True)(own)

    def _from_host(self, params: Parameters) -> Parameters:
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
        posterior = handlers.substitute(self.guide._get_posterior, data=self.to_host(parameters))
        # The transforms give valid parameters. Checking them would compile, while they are traced,
        # what the check makes without them, operation by operation.
        with handling(), swapped(numpyro.validation_enabled(False)):
            return posterior()

    #: Whether a draw is made of D standard normal numbers, which ``sample`` takes in place of a
    #: key: what computes them of a key is half of what there is to compile.
    takes_noise: ClassVar[bool] = False

    def sample(self, parameters: Parameters, rng_key: Array, num: int) -> Draws:
        """Draw (num, D) from q; no gradient flows through the draws."""
        return jax.lax.stop_gradient(self._posterior(parameters).sample(rng_key, (num,)))

    def log_prob(self, parameters: Parameters, theta: Float[Array, "*S D"]) -> Float[Array, "*S"]:
        return jnp.vectorize(self._log_prob_of(parameters), signature="(d)->()")(theta)

    def score(self, parameters: Parameters, theta: Float[Array, "*S D"]) -> Float[Array, "*S D"]:
        single = jax.grad(self._log_prob_of(parameters))
        return jnp.vectorize(single, signature="(d)->(d)")(theta)

    def _log_prob_of(self, parameters: Parameters) -> Callable[[Array], Array]:
        def single(theta: Array) -> Array:
            return jnp.sum(self._posterior(parameters).log_prob(theta))

        return single

    def mean_square_residual(
        self, parameters: Parameters, theta: Float[Array, "S D"], target: Float[Array, "S D"]
    ) -> tuple[Float[Array, ""], Parameters]:
        def value(parameters: Parameters) -> Array:
            return jnp.square(self.score(parameters, theta) - target).sum(-1).mean()

        return jax.value_and_grad(value)(parameters)


Factory = Callable[..., FlatDensity]

_REGISTRY: FlatDensityRegistry[Factory] = FlatDensityRegistry(shared.ALTERNATIVES, autoguide)
check_has_flat_density = _REGISTRY.find
has_flat_density = _REGISTRY.knows
refuse_flat_density = _REGISTRY.refuse


def register_flat_density(guide_class: type) -> Callable[[Registered], Registered]:
    """Decorator that gives guides of a class (and its subclasses) a flat log density.

    Parameters
    ----------
    guide_class : type
        A subclass of the host's ``AutoContinuous``.

    Notes
    -----
    The decorated object is called with the guide (set up) and, in Pyro, ``dtype``; in NumPyro
    with the guide and a random key.

    Examples
    --------
    >>> import jax
    >>> import numpyro_ext as nx
    >>> from numpyro.infer.autoguide import AutoDiagonalNormal
    >>> class UnitNormal(AutoDiagonalNormal):
    ...     "A guide whose scales stay at 1."
    >>> @nx.register_flat_density(UnitNormal)
    ... class UnitNormalDensity(nx.FlatDensity):
    ...     def score(self, parameters, theta):  # in place of automatic differentiation
    ...         return self.to_host(parameters)["auto_loc"] - theta
    """
    return _REGISTRY.register(guide_class)


@entry
def flat_density(
    guide: Any,
    rng_key: Array,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    layout: Layout | None = None,
    drawn: bool = True,
) -> FlatDensity:
    """Flat log density of a guide, which is set up on its model with the given arguments.

    A guide that was set up before is set up again, so that the initial parameters depend on
    ``rng_key`` and the arguments alone.

    Parameters
    ----------
    guide : AutoContinuous
        A host guide.
    rng_key : Array
        Key of the random draws with which the host initialises the guide.
    args, kwargs
        Arguments of the model.
    layout : Layout, optional
        Order and shapes of the target's sites, which the guide's must equal.
    drawn : bool
        Whether the guide's initial values are asked for: drawn by its init strategy, where the
        density is finite. Where they are not, sites are at 0 in unconstrained space, and a large
        model is set up many times as fast.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, or orders the latent sites otherwise than ``layout``.

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> guide = numpyro.infer.autoguide.AutoDiagonalNormal(model, init_scale=1.0)
    >>> density = nx.flat_density(guide, jax.random.key(0), (y,))
    >>> parameters = density.initial_parameters()
    >>> loc = density.to_host(parameters)["auto_loc"]
    >>> print(f"{density.log_prob(parameters, loc):.2f}")  # -log(2 pi) / 2
    -0.92
    """
    factory = check_has_flat_density(guide)
    key_setup, key_parameters = _two_keys(rng_key)
    set_up(guide, key_setup, Data(args, kwargs), drawn=drawn)
    if layout is not None:
        check_same_layout(guide, layout)
    return factory(guide, key_parameters)


# One program, where JAX would compile the split and the taking apart one by one.
_two_keys = Program(lambda rng_key: tuple(jax.random.split(rng_key)), rarely=True)


def has_own_start(guide: Any) -> bool:
    """Whether a guide was made with another place or scale to start from than by default."""
    return shared.has_own_start(guide, getattr(guide, "init_loc_fn", None))


def check_same_layout(guide: Any, layout: Layout) -> None:
    """See that the guide's flat vector has the sites of ``layout``, in its order.

    Raises
    ------
    ArgumentError
        It has not.
    """
    found = {name: tuple(jnp.shape(value)) for name, value in guide._init_locs.items()}
    check_same_sites(found, layout)


register_flat_density(autoguide.AutoContinuous)(FlatDensity)

_ANNEALED = "its density is known only through auxiliary variables"
refuse_flat_density(autoguide.AutoBNAFNormal, "its flow has no analytic inverse")
refuse_flat_density(autoguide.AutoDAIS, _ANNEALED)
refuse_flat_density(autoguide.AutoSemiDAIS, _ANNEALED)
refuse_flat_density(autoguide.AutoSurrogateLikelihoodDAIS, _ANNEALED)
refuse_flat_density(autoguide.AutoLaplaceApproximation, "it is a point estimate while it is fitted")
