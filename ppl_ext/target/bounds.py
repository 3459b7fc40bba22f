"""Parameters and observations that lie outside of the bounds of their distribution.

A density is one inside of its bounds alone. Without validation, which traced programs do without,
hosts compute a number elsewhere as well: a Poisson with a negative rate has probabilities above 1
of a count of 0, and a shifted exponential goes on rising before it begins. A posterior that reaches
there is not the one that its program means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ppl_ext.target.outputs import Host

#: How far out of bounds numbers may be by rounding.
ROUNDING = 1e-5


def out_of_bounds(
    host: Host, outer: Any, value: Any, around: Sequence[tuple[Any, int]] = ()
) -> dict[str, Any]:
    """Whether something of a distribution is out of its bounds, in an element that counts.

    Parameters
    ----------
    host : Host
    outer : distribution
    value : array or None
        Observations; None of a latent site, whose values are inside.
    around
        Masks of handlers around its site, as those of :meth:`Host.unwrapped`.

    Returns
    -------
    dict of str to bool array ()
        By the name of a parameter, or "value". What has no bounds is not there.
    """
    found: dict[str, Any] = {}
    fn, masks, declared = host.unwrapped(outer)
    batch = tuple(outer.batch_shape) + tuple(outer.event_shape[:declared])
    mask = host.joint_mask([*around, *masks], declared, batch)

    def note(name: str, constraint: Any, numbers: Any) -> None:
        beyond = _beyond(host, constraint, numbers)
        if beyond is not None:
            if mask is not None:
                beyond = host.xp.broadcast_to(beyond, batch) & mask
            found[name] = found[name] | beyond.any() if name in found else beyond.any()

    while True:
        given: Mapping[str, Any] = vars(fn)
        for name, constraint in fn.arg_constraints.items():
            # Of parameters that can be written in two ways the one that was given.
            if name in given and hasattr(given[name], "ndim"):
                note(name, constraint, given[name])
        base = given.get("base_dist")
        if base is None:
            break
        if not hasattr(fn, "transforms") and value is not None:
            # A truncated or an inflated one has its values by itself.
            note("value", fn.support, value)
            value = None
        if value is not None:
            try:
                for transform in reversed(fn.transforms):
                    value = transform.inv(value)
            except NotImplementedError:  # it has no inverse
                value = None
        fn, _, _ = host.unwrapped(base)
    if value is not None:
        note("value", fn.support, value)
    return found


def _beyond(host: Host, constraint: Any, numbers: Any) -> Any:
    """Which elements are out of the bounds of a constraint; None where it has none."""
    within = constraint
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    bounds = {"lower_bound": -math.inf, "upper_bound": math.inf}
    if not any(hasattr(constraint, name) for name in bounds):
        return None
    lower, upper = (getattr(constraint, name, default) for name, default in bounds.items())
    numbers = host.as_array(numbers)
    slack = ROUNDING * (1.0 + abs(numbers))
    beyond = (numbers < lower - slack) | (numbers > upper + slack)
    # Elements of an event count together.
    for _ in range(within.event_dim):
        beyond = beyond.any(-1)
    return beyond


def words_of_bounds(site: str, what: str, share: float) -> str:
    """What is said of draws at which something is out of bounds."""
    is_value = what == "value"
    of = f"observations of '{site}' lie" if is_value else f"parameter '{what}' of '{site}' lies"
    return (
        f"At {share:.1%} of the draws {of} out of the bounds of its distribution, where it has no "
        "density. Keep it inside by exp, softplus or sigmoid, or add a factor of -inf beyond."
    )
