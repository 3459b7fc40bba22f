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
from jaxtyping import Float
from numpyro.distributions.discrete import (
    BernoulliLogits,
    BernoulliProbs,
    BinomialProbs,
    CategoricalLogits,
    CategoricalProbs,
    ZeroInflatedProbs,
)
from numpyro.distributions.distribution import (
    Distribution,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
)
from numpyro.distributions.mixtures import MixtureSameFamily

from numpyro_ext.density.handlers import Site
from ppl_ext.target.outputs import BASE, COMPONENT, MIXING, Host, ObservedOutput, Parts, can_expand

HOST = Host(
    *(Independent, MaskedDistribution, ExpandedDistribution),
    *((BernoulliProbs, BernoulliLogits), (CategoricalProbs, CategoricalLogits)),
    jnp.asarray,
    jnp,
    (BernoulliProbs, BinomialProbs, CategoricalProbs),
    lambda limits: limits.tiny,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Output(ObservedOutput[Array]):
    """One observed site, a pytree; see :class:`~ppl_ext.target.outputs.ObservedOutput`.

    Parameters
    ----------
    repeated : tuple of (str, tuple of int)
        Parameters that the model did not give for each element, and the axes of ``batch`` along
        which they are one.
    """

    repeated: tuple[tuple[str, tuple[int, ...]], ...] = field(default=(), metadata={"static": True})

    @property
    def weight(self) -> Float[Array, "*batch"]:
        """Factor on each element's log probability, scale and mask together, shape ``batch``."""
        scale = self.scale.reshape(self.scale.shape + (1,) * self.declared)
        weight = jnp.broadcast_to(scale, self.batch)
        return weight if self.mask is None else jnp.where(self.mask, weight, 0.0)


def output_of(site: Site) -> Output:
    """The distribution of an observed site, unwrapped."""
    outer = site["fn"]
    event_dim, outer_batch, outer_event = outer.event_dim, outer.batch_shape, outer.event_shape
    fn, masks, declared = HOST.unwrapped(outer)
    batch = tuple(outer_batch) + tuple(outer_event[:declared])

    parameters, repeated = _parameters(fn, batch)
    base, parts = None, None
    if type(fn) is MixtureSameFamily:
        component, inner_masks, levels = HOST.unwrapped(fn.component_distribution)
        # Masked components are none of a family; without parameters they are refused by name.
        if not inner_masks:
            mixing = fn.mixing_distribution
            parts = Parts(type(mixing), type(component), levels)
            shape = tuple(fn.component_distribution.event_shape)[:levels]
            count = tuple(fn.component_distribution.batch_shape[-1:])
            of_parts = {
                MIXING: _parameters(mixing, batch),
                COMPONENT: _parameters(component, batch + count + shape),
            }
            for prefix, (values, axes) in of_parts.items():
                parameters |= {f"{prefix}{name}": value for name, value in values.items()}
                for name, ones in axes.items():
                    if own := tuple(axis for axis in ones if axis < len(batch)):
                        repeated[f"{prefix}{name}"] = own
    inner = getattr(fn, "base_dist", None)
    if isinstance(fn, ZeroInflatedProbs) and isinstance(inner, Distribution):
        # Its parameters are latent as well as the gate; a class of its own may name them itself.
        inside, _ = _parameters(inner, batch)
        for name, value in inside.items():
            parameters[f"{BASE}{name}"] = parameters.pop(name, value)
        base = type(inner)

    scale = jnp.asarray(1.0 if site["scale"] is None else site["scale"])
    return Output(
        parameters=parameters,
        value=jnp.asarray(site["value"]),
        scale=scale,
        mask=HOST.joint_mask(masks, declared, batch),
        distribution=type(fn),
        event_dim=event_dim,
        name=site["name"],
        declared=declared,
        batch=batch,
        event_shape=tuple(fn.event_shape),
        plates=tuple(frame.name for frame in site["cond_indep_stack"]),
        base=base,
        repeated=tuple(repeated.items()),
        parts=parts,
    )


def _parameters(
    fn: Any, batch: tuple[int, ...]
) -> tuple[dict[str, Array], dict[str, tuple[int, ...]]]:
    """The arguments of a distribution, each broadcast to batch + its event shape.

    Also the axes of the batch along which each has been broadcast.
    """
    parameters, repeated = {}, {}
    for name, value in fn.get_args().items():
        own = fn.arg_constraints[name].event_dim if name in fn.arg_constraints else 0
        value = jnp.asarray(value)
        trailing = value.shape[value.ndim - own :] if own else ()
        if not can_expand(value.shape, batch + trailing):
            # Fisher information refuses by name a site whose parameters are not of its elements.
            parameters[name] = value
            continue
        # Shape as it was given, with leading ones: axes where it is one and the batch is not were
        # broadcast.
        given = (1,) * (len(batch) + own - value.ndim) + value.shape
        axes = tuple(axis for axis, size in enumerate(batch) if given[axis] == 1 < size)
        if axes:
            repeated[name] = axes
        parameters[name] = jnp.broadcast_to(value, batch + trailing)
    return parameters, repeated
