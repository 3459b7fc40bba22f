"""Sites whose scale is latent, non-centred by NumPyro's own handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.extend.core import Literal
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam

from numpyro_ext.density.layout import Data
from numpyro_ext.density.log_density import LogDensity


def noncentered(
    target: LogDensity, data: Data
) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """A target's model with sites of latent scale non-centred, and their names.

    None where it has no such sites.
    """
    bound, others = target.bound, dict[str, tuple[str, ...]]()

    def scales(position: Array, data: Data) -> dict[str, Array]:
        found = {}
        for name, site in bound.trace(position, data, bound.first_rows()).items():
            base: Any = site["fn"] if name in bound.layout.names else None
            if site.get("_control_flow_done", False):
                continue  # scan runs its body again with values, which the handler refuses
            while hasattr(base, "base_dist"):
                base = base.base_dist
            names = set(getattr(base, "arg_constraints", ()))
            if {"loc", "scale"} <= names and base.support is constraints.real:
                others[name] = tuple(sorted(names - {"loc", "scale"}))
                found[name] = base.scale
        return found

    position = jax.ShapeDtypeStruct((target.dim,), target.dtype)
    program = jax.make_jaxpr(scales)(position, target.arguments.as_evaluated(data)).jaxpr
    latent = {program.invars[0]}
    for operation in program.eqns:
        if any(each in latent for each in operation.invars if not isinstance(each, Literal)):
            latent.update(operation.outvars)
    # A dictionary's leaves come in the order of its sorted keys.
    names = tuple(
        name
        for name, out in zip(sorted(others), program.outvars, strict=True)
        if not isinstance(out, Literal) and out in latent
    )
    if not names:
        return None
    config = {name: LocScaleReparam(0.0, shape_params=others[name]) for name in names}
    return handlers.reparam(target.model, config=config), names
