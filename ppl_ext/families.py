"""What the distribution of a latent site is, in words that are the same in every process."""

from __future__ import annotations

from typing import Any

#: Distributions that change the shape or the weight of another and say nothing of its family.
_WRAPPERS = ("Independent", "ExpandedDistribution", "MaskedDistribution", "ReshapedDistribution")


def family_of(distribution: Any) -> str:
    """Family and support of a distribution of either host, such as ``"Gamma on Positive"``.

    The same name and shape with another family or support is another latent variable: its values
    mean something else in unconstrained space.
    """
    while type(distribution).__name__ in _WRAPPERS:
        distribution = distribution.base_dist
    try:
        support = distribution.support
    except NotImplementedError:
        return type(distribution).__name__
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    words = type(support).__name__.strip("_")
    return f"{type(distribution).__name__} on {words[:1].upper()}{words[1:]}"
