"""What the distribution of a latent site is, in words that are the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

#: Distributions that change the shape or the weight of another and say nothing of its family.
_WRAPPERS = ("Independent", "ExpandedDistribution", "MaskedDistribution", "ReshapedDistribution")


def family_of(distribution: Any, value_of: Callable[[Any], Any] = np.asarray) -> str:
    """Family and support of a distribution of either host, such as ``"Uniform on Interval to 1"``.

    The same name and shape with another family or support is another latent variable: its values
    mean something else in unconstrained space. Ends of an interval are named where the program
    states them, one for all entries; ``value_of`` raises for ends that depend on something.
    """
    while type(distribution).__name__ in _WRAPPERS:
        distribution = distribution.base_dist
    try:
        support = distribution.support
    except NotImplementedError:
        return type(distribution).__name__
    support = innermost_constraint(support)
    words = type(support).__name__.strip("_")
    ends = (("from", "lower_bound"), ("to", "upper_bound"))
    found = [f" {word} {_end(support, name, value_of)}" for word, name in ends]
    shown = "".join(each for each in found if not each.endswith(" "))
    return f"{type(distribution).__name__} on {words[:1].upper()}{words[1:]}{shown}"


def innermost_constraint(constraint: Any) -> Any:
    """The constraint of an element, without what counts several as one."""
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    return constraint


def is_improper(distribution: Any, mask: Any = None) -> bool:
    """Whether the density of a latent site has no normaliser: a uniform one, or a masked one.

    Parameters
    ----------
    distribution : distribution of either host
    mask : bool or array, optional
        What the host's handlers mask beside the distribution's own mask. A mask that cannot be
        read, as inside of a traced program, counts as one that hides something.
    """
    masks = [mask]
    while type(distribution).__name__ in _WRAPPERS:
        masks.append(getattr(distribution, "_mask", None))
        distribution = distribution.base_dist
    names = {kind.__name__ for kind in type(distribution).__mro__}
    return "ImproperUniform" in names or any(map(_hides, masks))


def _hides(mask: Any) -> bool:
    try:
        return mask is not None and not bool(np.all(np.asarray(mask)))
    except Exception:  # noqa: BLE001 a tracer, whose values nobody knows
        return True


def _end(support: Any, name: str, value_of: Callable[[Any], Any]) -> str:
    """One end of a support; empty where it has none, or none that is known."""
    try:
        values = np.unique(np.asarray(value_of(getattr(support, name)), np.float64))
    except Exception:  # noqa: BLE001 none, a tracer, or an end that depends on something
        return ""
    return f"{values[0]:g}" if values.size == 1 and np.isfinite(values[0]) else ""


def is_made_of(distribution: Any, kind: type) -> bool:
    """Whether a distribution of the host is of a kind, inside of what wraps it."""
    return isinstance(innermost(distribution, kind), kind)


def innermost(distribution: Any, kind: type | tuple[type, ...] = ()) -> Any:
    """A distribution without what wraps it, down to one of a kind."""
    while hasattr(distribution, "base_dist") and not isinstance(distribution, kind):
        distribution = distribution.base_dist
    return distribution
