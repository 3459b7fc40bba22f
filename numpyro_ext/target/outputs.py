"""Observed distributions and their parameters, for curvature (Gauss-Newton, Fisher) methods.

Wrappers that NumPyro puts around a distribution (``Independent``, ``ExpandedDistribution``,
``MaskedDistribution``) are taken off; what is left has one class, parameters broadcast to one
batch shape, and one mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from numpyro.distributions.distribution import (
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
)

from numpyro_ext.target.handlers import Site


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Output:
    """One observed site: a distribution's parameters at a latent position, and the data.

    The batch shape of the parameters counts the dimensions that ``to_event`` declared as event
    dimensions, because the elements along them are independent.

    Parameters
    ----------
    parameters : dict of str to array
        The distribution's own arguments, each broadcast to batch shape + its event shape.
    value : array
        Observed value.
    scale : array
        Factor on the log probability (subsampling, ``handlers.scale``), broadcastable to the
        site's batch shape.
    mask : array or None
        Which elements count, in the shape of the parameters' batch; None when all do.
    distribution : type
        Class of the distribution without its wrappers.
    event_dim : int
        Rightmost dimensions of the site that are event dimensions, ``to_event`` included.
    name : str
        Name of the site.
    """

    parameters: dict[str, Array]
    value: Array
    scale: Array
    mask: Array | None
    distribution: type = field(metadata={"static": True})
    event_dim: int = field(metadata={"static": True})
    name: str = field(metadata={"static": True})


def output_of(site: Site) -> Output:
    """The distribution of an observed site, unwrapped."""
    fn = site["fn"]
    event_dim, outer_batch, outer_event = fn.event_dim, fn.batch_shape, fn.event_shape
    declared = 0  # event dimensions that come from to_event, not from the distribution
    masks: list[tuple[Any, int]] = []
    while isinstance(fn, ExpandedDistribution | Independent | MaskedDistribution):
        if isinstance(fn, Independent):
            declared += fn.reinterpreted_batch_ndims
        elif isinstance(fn, MaskedDistribution):
            masks.append((fn._mask, declared))
        fn = fn.base_dist
    batch = tuple(outer_batch) + tuple(outer_event[:declared])

    parameters = {}
    for name, value in fn.get_args().items():
        own = fn.arg_constraints[name].event_dim if name in fn.arg_constraints else 0
        value = jnp.asarray(value)
        trailing = value.shape[value.ndim - own :] if own else ()
        parameters[name] = jnp.broadcast_to(value, batch + trailing)

    mask: Array | None = None
    for part, inside in masks:
        if part is True:
            continue
        array = jnp.asarray(part)
        array = array.reshape(array.shape + (1,) * (declared - inside))
        array = jnp.broadcast_to(array, batch)
        mask = array if mask is None else mask & array
    scale = jnp.asarray(1.0 if site["scale"] is None else site["scale"])
    return Output(
        parameters=parameters,
        value=jnp.asarray(site["value"]),
        scale=scale,
        mask=mask,
        distribution=type(fn),
        event_dim=event_dim,
        name=site["name"],
    )
