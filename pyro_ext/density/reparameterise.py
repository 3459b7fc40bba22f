"""Sites whose scale is latent, non-centred by Pyro's own handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.infer.reparam import LocScaleReparam
from torch.distributions import constraints

from pyro_ext.density.handlers import global_generator, running
from pyro_ext.density.layout import Data
from pyro_ext.density.log_density import LogDensity


def noncentered(
    target: LogDensity, data: Data
) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """A target's model with sites of latent scale non-centred, and their names.

    None where it has no such sites.
    """
    found = target.constrain(torch.zeros(1, target.dim, dtype=target.dtype), data)
    # What is computed from latent values wants their gradient.
    values = {
        name: found[name][0].detach().clone().requires_grad_() for name in target.layout.names
    }
    with global_generator(0), running(target.bound.held, None), torch.enable_grad():
        model = poutine.trace(poutine.condition(target.model, data=values))
        nodes = model.get_trace(*data.args, **data.kwargs).nodes
    config = {}
    for name in target.layout.names:
        base = nodes[name]["fn"]
        while hasattr(base, "base_dist"):
            base = base.base_dist
        names = set(getattr(base, "arg_constraints", ()))
        if not {"loc", "scale"} <= names or base.support is not constraints.real:
            continue
        if base.scale.requires_grad:
            other = tuple(sorted(names - {"loc", "scale"}))
            config[name] = LocScaleReparam(0.0, shape_params=other)
    return (poutine.reparam(target.model, config=config), tuple(config)) if config else None
