"""A NumPyro program run forwards: parameters from the prior."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array
from numpyro import handlers
from numpyro.infer import Predictive

from numpyro_ext.density.handlers import alone, is_factor, run_trace


def one_run(
    model: Callable[..., Any], rng_key: Array, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Array], list[str]]:
    """Values of the sample sites in one run of a model, and the names of its factors."""
    trace = run_trace(handlers.seed(model, rng_key), args, kwargs)
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    factors = [name for name, site in sites.items() if is_factor(site)]
    return {name: site["value"] for name, site in sites.items()}, factors


@alone
def prior_draws(
    model: Callable[..., Any],
    rng_key: Array,
    names: Sequence[str],
    num: int,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    held: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Draws (num, *site shape) of latent sites from their prior, by the host's ``Predictive``.

    Parameters without a prior are ``held``.
    """
    predictive = Predictive(
        handlers.substitute(model, data=dict(held)), num_samples=num, return_sites=list(names)
    )
    drawn = predictive(rng_key, *args, **kwargs)
    return {name: np.asarray(drawn[name]) for name in names}
