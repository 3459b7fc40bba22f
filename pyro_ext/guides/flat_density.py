"""The flat log density of Pyro's autoguides; see :mod:`ppl_ext.guides.flat_density`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from pyro import poutine
from pyro.infer import autoguide
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.infer.autoguide.structured import AutoStructured
from torch import Generator, Tensor, nn
from torch.distributions import biject_to

from ppl_ext.arguments import entry
from ppl_ext.errors import ArgumentError
from ppl_ext.guides import flat_density as shared
from ppl_ext.guides.registry import (
    PER_SITE,
    FlatDensityRegistry,
    Registered,
    check_same_sites,
)
from ppl_ext.process import swapping
from pyro_ext.density.enumeration import is_enumerated
from pyro_ext.density.handlers import LARGE_SITE, global_generator, isolated_parameters, narrowed
from pyro_ext.density.layout import Layout
from pyro_ext.guides.arrays import TensorFunctions

Parameters = dict[str, Tensor]
Draws = Float[Tensor, "num D"]
Moments = shared.Moments


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
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> guide = pyro.infer.autoguide.AutoDiagonalNormal(model, init_scale=1.0)
    >>> density = px.flat_density(guide, (y,))
    >>> parameters = density.initial_parameters()
    >>> theta = parameters["loc"] + torch.tensor([[0.0], [1.0]])  # two positions (P, D)
    >>> print(density.score(parameters, theta).round(decimals=2).flatten().abs().tolist())
    [0.0, 1.0]
    """

    arrays = TensorFunctions

    def __init__(
        self, guide: autoguide.guides.AutoContinuous, dtype: torch.dtype | None = None
    ) -> None:
        self.guide = guide
        flow = isinstance(guide, autoguide.guides.AutoNormalizingFlow)
        if flow and dtype not in (None, torch.get_default_dtype()):
            raise ArgumentError(
                f"Expected the default dtype {torch.get_default_dtype()} with "
                f"{type(guide).__name__}, found {dtype}: Pyro's flows compute in torch's default "
                f"dtype. Call torch.set_default_dtype({dtype}) before making the guide."
            )
        self._prepare()
        if dtype is not None:
            guide.to(dtype)
        if not dict(guide.named_parameters()):
            raise ArgumentError(
                f"Expected a guide with parameters to fit, found {type(guide).__name__} with none "
                "(a guide made by laplace_approximation() holds fixed values). Make a new guide "
                "from the model, for example AutoMultivariateNormal(model)."
            )

    def _prepare(self) -> None:
        """Create parameters that the host creates late, and see that log q can be evaluated."""
        guide = self.guide
        posterior = guide.get_posterior()
        with torch.no_grad():
            theta = posterior.sample()
        try:
            # A new tensor: the host's flows remember the inverse of the last value they drew.
            log_prob = guide.get_posterior().log_prob(theta + 0.5)
        except (KeyError, NotImplementedError) as error:
            raise self._not_invertible(error) from error
        if log_prob.shape != ():
            raise ArgumentError(
                f"Expected get_posterior() of {type(guide).__name__} to be a distribution over the "
                f"flat vector with a scalar log density, found shape {tuple(log_prob.shape)}. Wrap "
                "it with .to_event()."
            )

    def initial_parameters(self) -> Parameters:
        return {
            name: parameter.detach().clone() for name, parameter in self.guide.named_parameters()
        }

    def live_parameters(self) -> Parameters:
        """The guide's unconstrained parameters themselves: writing in place changes the guide."""
        return {name: parameter.detach() for name, parameter in self.guide.named_parameters()}

    def sample(self, parameters: Parameters, generator: Generator, num: int) -> Draws:
        """Draw (num, D) from q, without gradients."""
        # The host's distributions draw from torch's global generator alone. It is seeded for this
        # draw, and goes on as it was after it.
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device).item())
        with torch.no_grad(), global_generator(seed):
            return self._with_posterior(parameters, lambda q: q.sample((num,)))

    def log_prob(self, parameters: Parameters, theta: Float[Tensor, "*S D"]) -> Float[Tensor, "*S"]:
        return self._with_posterior(parameters, lambda q: q.log_prob(theta))

    def score(self, parameters: Parameters, theta: Float[Tensor, "*S D"]) -> Float[Tensor, "*S D"]:
        # A second derivative costs memory, and is needed only where a gradient in the parameters is
        # taken of the score.
        differentiable = torch.is_grad_enabled() and any(
            parameter.requires_grad for parameter in parameters.values()
        )
        with torch.enable_grad():
            # A new tensor: the host's flows remember the inverse of the last value they drew.
            theta = theta.detach().clone().requires_grad_()
            total = self.log_prob(parameters, theta).sum()
            (score,) = torch.autograd.grad(total, theta, create_graph=differentiable)
        return score

    def mean_square_residual(
        self, parameters: Parameters, theta: Float[Tensor, "S D"], target: Float[Tensor, "S D"]
    ) -> tuple[Float[Tensor, ""], Parameters]:
        def value(leaves: Parameters) -> Tensor:
            return (self.score(leaves, theta) - target).square().sum(-1).mean()

        return value_and_gradient(value, parameters)

    @torch.no_grad()
    def write_back(self, parameters: Mapping[str, Tensor]) -> None:
        """Put the parameters into the guide, in place, so that the guide itself is the result.

        ``guide.median()``, ``guide.quantiles()``, ``Predictive(model, guide=guide)`` and ``SVI``
        go on from here.
        """
        for name, parameter in self.guide.named_parameters():
            parameter.copy_(parameters[name])

    def _with_posterior(self, parameters: Parameters, function: Callable[[Any], Tensor]) -> Tensor:
        # torch replaces parameters only while the forward method of a module runs, and that of the
        # guide draws from the posterior.
        access = _PosteriorAccess(self.guide)
        replaced = {f"guide.{name}": value for name, value in parameters.items()}
        return torch.func.functional_call(access, replaced, (function,))


def value_and_gradient(
    function: Callable[[Parameters], Float[Tensor, ""]], parameters: Mapping[str, Tensor]
) -> tuple[Float[Tensor, ""], Parameters]:
    """A function's value at parameters, and its gradient in all of them."""
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    with torch.enable_grad():
        value = function(leaves)
        # A parameter on which the function does not depend has a gradient of zeros, not None.
        gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return value.detach(), dict(zip(leaves, gradients, strict=True))


class _PosteriorAccess(nn.Module):
    """Evaluates a function of the guide's posterior under replaced parameters."""

    guide: Any

    def __init__(self, guide: nn.Module) -> None:
        super().__init__()
        self.guide = guide

    def forward(self, function: Callable[[Any], Tensor]) -> Tensor:
        return function(self.guide.get_posterior())


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
    >>> import torch
    >>> import pyro_ext as px
    >>> from pyro.infer.autoguide import AutoDiagonalNormal
    >>> class UnitNormal(AutoDiagonalNormal):
    ...     "A guide whose scales stay at 1."
    >>> @px.register_flat_density(UnitNormal)
    ... class UnitNormalDensity(px.FlatDensity):
    ...     def score(self, parameters, theta):  # in place of automatic differentiation
    ...         return parameters["loc"] - theta
    """
    return _REGISTRY.register(guide_class)


@entry
def flat_density(
    guide: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    layout: Layout | None = None,
    dtype: torch.dtype | None = None,
    seed: int | None = None,
) -> FlatDensity:
    """Flat log density of a guide, which is set up on its model first where it has not been.

    Parameters
    ----------
    guide : AutoContinuous
        A host guide.
    args, kwargs
        Arguments of the model, needed when the guide has not been set up.
    layout : Layout, optional
        Order and shapes of the target's sites, which the guide's must equal.
    dtype : torch.dtype, optional
        The guide's parameters are converted to it. Default: as they are.
    seed : int, optional
        Seed of the random draws with which the host initialises the guide. Default: the global
        generator goes on.

    Raises
    ------
    ArgumentError
        The guide has no flat log density, or orders the latent sites otherwise than ``layout``.

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
    >>> guide = pyro.infer.autoguide.AutoDiagonalNormal(model, init_scale=1.0)
    >>> density = px.flat_density(guide, (y,))
    >>> parameters = density.initial_parameters()
    >>> print(f"{density.log_prob(parameters, parameters['loc']):.2f}")  # -log(2 pi) / 2
    -0.92
    """
    factory = check_has_flat_density(guide)
    # The model may hold pyro.param statements, which would otherwise register themselves.
    alone = nullcontext() if seed is None else global_generator(seed)
    # The set-up runs the model. What it registers by pyro.param must not stay in the global
    # parameter store.
    with isolated_parameters(), alone:
        if guide.prototype_trace is None:
            try:
                with _without_discrete(guide):
                    guide._setup_prototype(*args, **dict(kwargs or {}))
            except NotImplementedError as error:
                raise ArgumentError(
                    f"Pyro's {type(guide).__name__} could not be set up: "
                    f"{str(error).splitlines()[0]}. Expected sites "
                    "that can be drawn from, which ImproperUniform is not; give them a proper "
                    "prior, or use SVGD, which does not draw from them."
                ) from error
        density = factory(guide, dtype=dtype)
    if layout is not None:
        check_same_layout(guide, layout)
    _release_prototype(guide)
    return density


@swapping
@contextmanager
def _without_discrete(guide: Any) -> Iterator[None]:
    """Hide discrete latent sites from the guide, for its set-up: the target sums them out.

    The host puts its initial values around the model when it makes the guide.
    """
    held, initialise = guide._model, InitMessenger._pyro_sample
    # The host keeps the model in a tuple, as a module held directly would become a part of the
    # guide, with its parameters.
    guide._model = (poutine.block(held[0], hide_fn=is_enumerated),)
    InitMessenger._pyro_sample = lambda self, msg: (
        None if is_enumerated(msg) else initialise(self, msg)
    )
    try:
        yield
    finally:
        guide._model, InitMessenger._pyro_sample = held, initialise


def _release_prototype(guide: Any) -> None:
    """Let go of large values in the trace that the host keeps of the guide's set-up.

    The host reads their shapes alone from then on, and together they are as long as the flat
    vector. A single number, expanded, has the same shape.
    """
    for _, site in guide.prototype_trace.iter_stochastic_nodes():
        value = site["value"]
        if value.numel() >= LARGE_SITE:
            site["value"] = value.detach().reshape(-1)[:1].clone().expand_as(value)


def has_own_start(guide: Any) -> bool:
    """Whether a guide was made with another place or scale to start from than by default."""
    # The host wraps the model in a messenger that holds the strategy.
    wrapped = getattr(guide.model, "func", None)
    messenger = next(iter(getattr(wrapped, "args", ())), None)
    return shared.has_own_start(guide, getattr(messenger, "init_fn", None))


def check_same_layout(guide: Any, layout: Layout) -> None:
    """See that the guide's flat vector has the sites of ``layout``, in its order.

    Raises
    ------
    ArgumentError
        It has not, or takes a site to another place than these engines do.
    """
    for name, site in guide.prototype_trace.iter_stochastic_nodes():
        if narrowed(site["fn"]) is not None:
            raise ArgumentError(
                f"The guide takes the support of '{name}' for {site['fn'].support}, which is that "
                "of its last transform and wider than what is transformed has. Expected a guide "
                "that stays inside: sample what is transformed, and compute the rest by "
                "pyro.deterministic."
            )
    found = {
        name: tuple(biject_to(site["fn"].support).inv(site["value"]).shape)
        for name, site in guide.prototype_trace.iter_stochastic_nodes()
    }
    check_same_sites(found, layout)


register_flat_density(autoguide.guides.AutoContinuous)(FlatDensity)

refuse_flat_density(AutoStructured, PER_SITE)
refuse_flat_density(autoguide.AutoDiscreteParallel, "it is discrete")
refuse_flat_density(
    autoguide.AutoLaplaceApproximation,
    "it is a point estimate until laplace_approximation() is called",
)
refuse_flat_density(autoguide.effect.AutoMessenger, PER_SITE)
