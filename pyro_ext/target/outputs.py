"""Distributions of the observed sites, as parameters that can be differentiated.

Curvature needs the outputs of a model: the parameters of each observed distribution as a
function of the flat vector, with the scale and mask that the log density applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Distribution

from pyro_ext.target.handlers import SiteHandler, is_deterministic, is_factor


@dataclass(frozen=True)
class Output:
    """One observed site.

    Parameters
    ----------
    name : str
    distribution : type
        Class of the innermost distribution, wrappers (independent, expanded, masked) removed.
    parameters : dict of str to tensor
        The parameters that the distribution was built from, broadcast to its batch shape.
    value : tensor
        Observed value.
    scale : float or tensor
        Factor of the log density (plates, ``poutine.scale``).
    mask : bool tensor, bool or None
        Entries of the batch shape that count.
    event_dim : int
        Number of rightmost dimensions that belong to one observation.
    fn : Distribution
        The distribution itself, unwrapped, built on the parameters.
    """

    name: str
    distribution: type
    parameters: dict[str, Tensor]
    value: Tensor
    scale: Any
    mask: Any
    event_dim: int
    fn: Any


def _unwrap(fn: Any) -> tuple[Any, Any]:
    """Innermost distribution, and the conjunction of the masks met on the way."""
    mask = None
    while "base_dist" in getattr(fn, "__dict__", {}) and not hasattr(fn, "transforms"):
        own = getattr(fn, "_mask", None)
        if own is not None:
            mask = own if mask is None else mask & own
        fn = fn.base_dist
    return fn, mask


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
        given = "probs" if stored.get("_param") is stored["probs"] else "logits"
        del found["logits" if given == "probs" else "probs"]
    if found:
        return found
    # Distributions built on another one, such as Multinomial, keep their parameters there.
    for attribute in stored.values():
        if isinstance(attribute, Distribution):
            return output_parameters(attribute)
    return {}


class OutputHandler(SiteHandler):
    """Collects the distributions of the observed sites, before anything is evaluated on them."""

    def __init__(self, unconstrained: Mapping[str, Tensor], indices: Mapping[str, Tensor]) -> None:
        super().__init__(unconstrained, indices)
        self.outputs: dict[str, Output] = {}

    def _pyro_sample(self, msg: Any) -> None:
        super()._pyro_sample(msg)
        if (
            not msg["is_observed"]
            or site_is_subsample(msg)
            or is_factor(msg)
            or is_deterministic(msg)
        ):
            return
        fn, mask = _unwrap(msg["fn"])
        if msg["mask"] is not None:
            mask = msg["mask"] if mask is None else mask & msg["mask"]
        self.outputs[msg["name"]] = Output(
            name=msg["name"],
            distribution=type(fn),
            parameters=output_parameters(fn),
            value=msg["value"],
            scale=msg["scale"],
            mask=mask,
            event_dim=msg["fn"].event_dim,
            fn=fn,
        )

    def _pyro_post_sample(self, msg: Any) -> None:
        return
