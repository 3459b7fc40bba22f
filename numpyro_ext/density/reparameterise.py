"""Sites whose location or scale is latent, non-centred by NumPyro's own handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array, random
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam

from ppl_ext.fit.noncentered import Family, varying


def noncentered(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], rng_key: Array
) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """The model with sites of latent location or scale non-centred, and their names.

    None where it has no such sites.
    """
    families = [_families(model, args, kwargs, key) for key in random.split(rng_key)]
    names = varying(*families)
    if not names:
        return None
    config = {name: LocScaleReparam(0.0, shape_params=families[0][name].other) for name in names}
    return handlers.reparam(model, config=config), names


def _families(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], rng_key: Array
) -> dict[str, Family]:
    """Latent sites with a location and a scale, in one run of the model."""
    with handlers.seed(rng_seed=rng_key):
        trace = handlers.trace(model).get_trace(*args, **kwargs)
    found = {}
    for name, site in trace.items():
        if site["type"] != "sample" or site["is_observed"]:
            continue
        base = site["fn"]
        while hasattr(base, "base_dist"):
            base = base.base_dist
        if not {"loc", "scale"} <= set(base.arg_constraints):
            continue
        if base.support is not constraints.real:
            continue
        other = tuple(key for key in base.arg_constraints if key not in ("loc", "scale"))
        found[name] = Family(_numbers(base.loc), _numbers(base.scale), other)
    return found


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(float(each) for each in jnp.ravel(jnp.asarray(value)))
