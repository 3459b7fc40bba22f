"""``warm_chains``: NumPyro's NUTS in the coordinates of a start, a fit or draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.infer import MCMC, NUTS
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.reparam import NeuTraReparam

from numpyro_ext.density import LogDensity
from numpyro_ext.diagnostics.fit import FittedGuide, fitted_guide
from numpyro_ext.diagnostics.host_fit import HostFit
from numpyro_ext.fit import seed_of, ways_of
from numpyro_ext.start import piece_of
from ppl_ext.documented import documented
from ppl_ext.errors import ArgumentError
from ppl_ext.fit import warm
from ppl_ext.fit.check import draws_of
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.warm import WARM_DOCUMENTATION, WARMUP, Coordinates
from ppl_ext.start.search import InPieces
from ppl_ext.start.start import Start

#: Mean acceptance for which the step size is adapted.
ACCEPTANCE = 0.6


@documented(
    WARM_DOCUMENTATION,
    host="NumPyro",
    randomness="rng_key : array\n        JAX random key.",
    guides="a pair of a guide and its parameters, as ``svi.get_params(state)`` gives them, or of "
    "an engine and the result of its run",
    neutra="by the host's ``NeuTraReparam``",
    acceptance="Default: 0.6, with which a trajectory of NUTS through a Normal has three steps; "
    "with the host's 0.8 it often has seven.",
    mcmc="numpyro.infer.MCMC",
)
def warm_chains(
    rng_key: Array,
    model: Callable[..., Any],
    start_or_fit: Any,
    *args: Any,
    num_samples: int = 1_000,
    num_chains: int = 4,
    num_warmup: int = WARMUP,
    target_accept_prob: float = ACCEPTANCE,
    progress_bar: bool = True,
    **kwargs: Any,
) -> MCMC:
    """NUTS in the coordinates of what is known of the posterior; chains side by side."""
    warm.check_options(
        num_samples, num_chains, num_warmup, target_accept_prob, progress_bar=progress_bar
    )
    keys = random.split(rng_key, 3)
    generator = np.random.default_rng(np.asarray(random.bits(keys[0], (4,))))
    target, coordinates = _meet(model, start_or_fit, args, kwargs, keys[1], generator)
    data = target.bind(*args, **kwargs)
    evaluate = InPieces(piece_of(target, data, None))
    points = warm.first_points(coordinates, num_chains, evaluate, generator)
    split = target.layout.split(jnp.asarray(points, target.dtype))
    # Blocks are in the order of the names in their key; by themselves names would be sorted.
    names = target.layout.names
    kernel = NUTS(
        target.model,
        inverse_mass_matrix={names: jnp.asarray(coordinates.covariance, target.dtype)},
        dense_mass=[names] if coordinates.covariance.ndim == 2 else [],
        adapt_mass_matrix=False,
        target_accept_prob=target_accept_prob,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=progress_bar,
    )
    first = {name: value if num_chains > 1 else value[0] for name, value in split.items()}
    fields = ("num_steps", "accept_prob")
    mcmc.run(keys[2], *args, init_params=first, extra_fields=fields, **kwargs)
    return mcmc


def _meet(
    model: Callable[..., Any],
    source: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rng_key: Array,
    generator: np.random.Generator,
) -> tuple[LogDensity, Coordinates]:
    """The program that chains run on, and their coordinates."""
    ways = ways_of(model, args, kwargs, seed_of(rng_key), generator, "warm_chains")
    way = next(ways)
    target: LogDensity = way.own
    warm.check_whole(target.plates)
    if isinstance(source, Start):
        warm.check_start(source, target.layout.shapes, target.dim)
        return target, warm.of_start(source)
    if isinstance(source, Fit) and source.has_program:
        return warm.way_of(source, [way, *ways]).own, warm.of_fit(source)
    if isinstance(source, AutoGuide):
        raise ArgumentError(
            f"Expected a guide with its parameters, found {type(source).__name__} alone. Pass the "
            "pair (guide, svi.get_params(state))."
        )
    if isinstance(source, tuple) and len(source) == 2:
        fitted = _fitted(*source, model, args, kwargs)
        if isinstance(fitted, FittedGuide):
            return _of_guide(fitted, target, args, kwargs, rng_key)
    else:
        fitted = draws_of(source)
    positions = target.unconstrain(
        {name: jnp.asarray(value) for name, value in fitted.items()},
        target.bind(*args, **kwargs),
    )
    return target, warm.of_draws(np.asarray(positions, np.float64))


def _fitted(
    fit: Any,
    state: Any,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> FittedGuide | Mapping[str, Any]:
    """A guide with its parameters, or draws of what has no density."""
    if not hasattr(fit, "get_samples"):
        params = getattr(state, "params", state)
        host = HostFit(fit, params, model, args, kwargs)
        return host.get_samples(params) if host.fitted is None else host.fitted
    if hasattr(fit, "density") or hasattr(fit, "approximation"):
        return fitted_guide(fit, state, None, args, kwargs, None)
    drawn: Mapping[str, Any] = fit.get_samples(getattr(state, "state", state))
    return drawn


def _of_guide(
    fitted: FittedGuide,
    target: LogDensity,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rng_key: Array,
) -> tuple[LogDensity, Coordinates]:
    density, parameters = fitted.density, fitted.parameters
    warm.check_start(Start((), 0, fitted.target.layout.shapes), target.layout.shapes, target.dim)
    found = warm.of_guide(density, parameters, lambda each: np.asarray(each, np.float64))
    if found is not None:
        return target, found
    try:
        transport = NeuTraReparam(density.guide, density.to_host(parameters))
    except (TypeError, ValueError, NotImplementedError):
        drawn = density.sample(parameters, rng_key, warm.GUIDE_DRAWS)
        return target, warm.of_draws(np.asarray(drawn, np.float64))
    moved = transport.reparam(target.model)
    own = LogDensity(moved, rng_key, args, kwargs, check=False, engine="warm_chains")
    return own, warm.of_flow(own.dim)
