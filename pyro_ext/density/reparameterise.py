"""Sites whose location or scale is latent, non-centred by Pyro's own handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.infer.reparam import LocScaleReparam
from torch.distributions import constraints

from ppl_ext.fit.noncentered import Family, varying
from pyro_ext.density.handlers import global_generator, running
from pyro_ext.density.log_density import LogDensity


def noncentered(
    target: LogDensity, args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: int
) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """A target's model with sites of latent location or scale non-centred, and their names.

    None where it has no such sites.
    """
    families = [_families(target, args, kwargs, seed + number) for number in range(2)]
    names = varying(*families)
    if not names:
        return None
    config = {name: LocScaleReparam(0.0, shape_params=families[0][name].other) for name in names}
    return poutine.reparam(target.model, config=config), names


def _families(
    target: LogDensity, args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: int
) -> dict[str, Family]:
    """Latent sites with a location and a scale, in one run of the model."""
    with global_generator(seed), running(target.bound.held, None), torch.no_grad():
        trace = poutine.trace(target.model).get_trace(*args, **kwargs)
    found = {}
    for name, site in trace.nodes.items():
        if site["type"] != "sample" or site["is_observed"]:
            continue
        base = site["fn"]
        while hasattr(base, "base_dist"):
            base = base.base_dist
        if not {"loc", "scale"} <= set(getattr(base, "arg_constraints", ())):
            continue
        if base.support is not constraints.real:
            continue
        other = tuple(key for key in base.arg_constraints if key not in ("loc", "scale"))
        found[name] = Family(_numbers(base.loc), _numbers(base.scale), other)
    return found


def _numbers(value: torch.Tensor) -> tuple[float, ...]:
    return tuple(value.flatten().tolist())
