"""Distributions of the observed sites, as parameters that can be differentiated.

Curvature needs the outputs of a model: the parameters of each observed distribution as a
function of the flat vector, with the scale and mask that the log density applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from pyro.distributions import MaskedDistribution, MixtureSameFamily, ZeroInflatedDistribution
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Bernoulli, Binomial, Categorical, Distribution, Independent

from ppl_ext.target.outputs import BASE, COMPONENT, MIXING, Host, ObservedOutput, Parts, can_expand
from pyro_ext.density.handlers import SiteHandler, is_deterministic, is_factor, plate_frames

HOST = Host(
    *(Independent, MaskedDistribution, ExpandedDistribution),
    *(Bernoulli, Categorical),
    torch.as_tensor,
    torch,
    (Bernoulli, Binomial, Categorical),
    lambda limits: limits.eps,
)
#: Parameters of distributions that another one is kept as, and their event dimensions.
_VECTORS = {"concentration": 1}


@dataclass(frozen=True, kw_only=True)
class Output(ObservedOutput[Tensor]):
    """One observed site; see :class:`~ppl_ext.target.outputs.ObservedOutput`."""

    def repeated_along(self, parameter: str) -> tuple[int, ...]:
        """Axes of ``batch`` along which a parameter is one, which the model gave once for all."""
        # What was broadcast has no stride; this does not hold of what was computed in between.
        strides = self.parameters[parameter].stride()
        return tuple(
            axis for axis, size in enumerate(self.batch) if size > 1 and strides[axis] == 0
        )

    @property
    def weight(self) -> Float[Tensor, "*batch"]:
        """Factor on each element's log probability, scale and mask together, shape ``batch``."""
        dtype = next(iter(self.parameters.values())).dtype
        scale = torch.as_tensor(self.scale, dtype=dtype)
        weight = scale.reshape(scale.shape + (1,) * self.declared).expand(self.batch)
        if self.mask is None:
            return weight
        return torch.where(self.mask, weight, torch.zeros_like(weight))


def _broadcast(fn: Any, batch: tuple[int, ...]) -> dict[str, Tensor]:
    """The parameters of a distribution, each broadcast to batch + its event shape."""
    found = {}
    for name, value in output_parameters(fn).items():
        constraint = fn.arg_constraints.get(name)
        # Beta is kept as a Dirichlet, whose parameter is a vector.
        own = constraint.event_dim if constraint is not None else _VECTORS.get(name, 0)
        shape = batch + (tuple(value.shape[value.dim() - own :]) if own else ())
        # Fisher information refuses by name a site whose parameters are not of its elements.
        found[name] = value.expand(shape) if can_expand(value.shape, shape) else value
    return found


def _mixture(fn: Any, batch: tuple[int, ...]) -> tuple[Parts | None, dict[str, Tensor]]:
    """What a mixture is made of, and the parameters of its parts, broadcast to batch + own."""
    outer = fn.component_distribution
    component, masks, inside = HOST.unwrapped(outer)
    # Masked components are none of a family; without parameters they are refused by name.
    if masks:
        return None, {}
    shape = tuple(outer.event_shape)[:inside]
    each = _broadcast(component, batch + tuple(outer.batch_shape[-1:]) + shape)
    found = {f"{COMPONENT}{name}": value for name, value in each.items()}
    for name, value in _broadcast(fn.mixture_distribution, batch).items():
        found[f"{MIXING}{name}"] = value
    return Parts(type(fn.mixture_distribution), type(component), inside), found


def output_parameters(fn: Distribution) -> dict[str, Tensor]:
    """The parameters that ``fn`` was built from, in the parameterization that the model chose.

    A class such as Bernoulli names both ``probs`` and ``logits``; only the one that was given
    is stored on a new instance, and the other is computed on demand and stored then.
    """
    stored = fn.__dict__
    found = {
        name: stored[name] for name in fn.arg_constraints if isinstance(stored.get(name), Tensor)
    }
    if "probs" in found and "logits" in found:
        # Torch keeps the given one as ``_param`` besides; the other was computed on demand.
        given = "probs" if stored.get("_param") is stored["probs"] else "logits"
        del found["logits" if given == "probs" else "probs"]
    # A mixture declares no parameters: those of its parts are not its own.
    if fn.arg_constraints and not found:
        # Distributions built on another one, such as Multinomial, keep their parameters there.
        inner = next((each for each in stored.values() if isinstance(each, Distribution)), None)
        found = {} if inner is None else output_parameters(inner)
    # A number of draws may be kept as a plain number.
    if found and isinstance(stored.get("total_count"), int):
        found["total_count"] = torch.tensor(stored["total_count"])
    return found


class OutputHandler(SiteHandler):
    """Collects the distributions of the observed sites, before anything is evaluated on them."""

    def __init__(self, unconstrained: Mapping[str, Tensor], indices: Mapping[str, Tensor]) -> None:
        super().__init__(unconstrained, indices)
        self.outputs: dict[str, Output] = {}
        self.factors: list[str] = []

    def _pyro_sample(self, msg: Any) -> None:
        super()._pyro_sample(msg)
        if is_factor(msg) and plate_frames(msg):
            self.factors.append(msg["name"])
        if (
            not msg["is_observed"]
            or site_is_subsample(msg)
            or is_factor(msg)
            or is_deterministic(msg)
        ):
            return
        outer = msg["fn"]
        fn, masks, declared = HOST.unwrapped(outer)
        batch = tuple(outer.batch_shape) + tuple(outer.event_shape[:declared])
        parameters = _broadcast(fn, batch)
        base = None
        if isinstance(fn, ZeroInflatedDistribution):
            base = type(fn.base_dist)
            inside = _broadcast(fn.base_dist, batch)
            # The base has latent parameters as well as the gate.
            parameters |= {f"{BASE}{name}": value for name, value in inside.items()}
        parts = None
        if type(fn) is MixtureSameFamily:
            parts, parameters = _mixture(fn, batch)
        self.outputs[msg["name"]] = Output(
            name=msg["name"],
            distribution=type(fn),
            parameters=parameters,
            value=msg["value"],
            scale=msg["scale"],
            mask=HOST.joint_mask([(msg["mask"], 0), *masks], declared, batch),
            event_dim=outer.event_dim,
            declared=declared,
            batch=batch,
            event_shape=tuple(fn.event_shape),
            plates=tuple(frame.name for frame in msg["cond_indep_stack"]),
            base=base,
            parts=parts,
        )

    def _pyro_post_sample(self, msg: Any) -> None:
        return
