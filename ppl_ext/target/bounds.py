"""Parameters and observations that lie outside of the bounds of their distribution.

A density is one inside of its bounds alone. Without validation, which traced programs do without,
hosts compute a number elsewhere as well: a Poisson with a negative rate has probabilities above 1
of a count of 0, and a shifted exponential goes on rising before it begins. A posterior that reaches
there is not the one that its program means.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_ext.target.families import innermost_constraint
from ppl_ext.target.outputs import Host

#: How far out of bounds numbers may be by rounding.
ROUNDING = 1e-5
#: Draws whose bounds are looked at, so many of them at once, for as many seconds as no user minds.
LOOKED_AT, TOGETHER, LONGEST = 128, 16, 1.0
#: Name of probabilities that a host holds off 0 and 1, and nats by which trials without success
#: may count too much.
HELD, LITTLE = "held", 0.5
#: Rows of a plate that the engine subsamples, up to which all are looked at.
MOST_ROWS = 10_000
#: Share of them that may be out of bounds: so little mass moves no mean by more than some
#: hundredths of a standard deviation.
BEYOND = 0.01

#: Of positions (S, D): truth values (S,), where a parameter or an observation of a site is out of
#: the bounds of its distribution, by site and what.
Look = Callable[[Float[np.ndarray, "S D"]], Mapping[str, Mapping[str, Any]]]


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
        By the name of a parameter, or "value". What has no bounds is not there, nor what a
        distribution of the user's own does not tell.
    """
    found: dict[str, Any] = {}
    with suppress(Exception):
        for name, beyond in _elements(host, outer, value, around):
            found[name] = found[name] | beyond.any() if name in found else beyond.any()
    return found


def _elements(
    host: Host, outer: Any, value: Any, around: Sequence[tuple[Any, int]]
) -> Iterator[tuple[str, Any]]:
    """Which elements of parameters and values are out of bounds, and count."""
    fn, masks, declared = host.unwrapped(outer)
    masks = [*around, *masks]

    def counted(beyond: Any) -> Any:
        for part, within in masks if beyond is not None else ():
            if part is not None and part is not True:
                mask = host.as_array(part)
                beyond = beyond & mask.reshape((*mask.shape, *(1,) * (declared - within)))
        return beyond

    while True:
        given: Mapping[str, Any] = vars(fn)
        for name, constraint in fn.arg_constraints.items():
            # Of parameters that can be written in two ways the one that was given.
            if name in given and hasattr(given[name], "ndim"):
                beyond = counted(_beyond(host, constraint, given[name]))
                if beyond is not None:
                    yield name, beyond
        if value is not None:
            held = counted(_held(host, fn, value))
            if held is not None:
                yield HELD, held
        base = given.get("base_dist")
        # A truncated or an inflated one has no transforms, and its values by itself.
        if base is None or not hasattr(fn, "transforms"):
            beyond = None if value is None else counted(_beyond(host, fn.support, value))
            if beyond is not None:
                yield "value", beyond
            value = None
        if base is None:
            return
        if value is not None:
            for transform in reversed(fn.transforms):
                value = transform.inv(value)
        fn, inner, more = host.unwrapped(base)
        masks += [(part, declared + within) for part, within in inner]
        declared += more


def _beyond(host: Host, constraint: Any, numbers: Any) -> Any:
    """Which elements are out of the bounds of a constraint; None where it has none."""
    within, constraint = constraint, innermost_constraint(constraint)
    bounds = {"lower_bound": -math.inf, "upper_bound": math.inf}
    if not any(hasattr(constraint, name) for name in bounds):
        return None
    lower, upper = (getattr(constraint, name, default) for name, default in bounds.items())
    numbers = 1 * host.as_array(numbers)  # of truth values too
    slack = ROUNDING * (1.0 + abs(numbers))
    beyond = (numbers < lower - slack) | (numbers > upper + slack)
    # Elements of an event count together.
    for _ in range(within.event_dim):
        beyond = beyond.any(-1)
    return beyond


def _held(host: Host, fn: Any, value: Any) -> Any:
    """Which observations are of an event whose probability a host holds off 0; None without such.

    Torch holds probabilities that are given as ``probs`` between a machine epsilon and 1 less that,
    JAX below the latter. What is observed in spite of them costs 16 nats in single precision then,
    however small its probability is.
    """
    probs = vars(fn).get("probs")
    # Of torch's distributions that were given logits this may be what was computed of them.
    is_given = "probs" in fn.arg_constraints and vars(fn).get("_param", probs) is probs
    if not (is_given and hasattr(probs, "ndim") and isinstance(fn, host.held)):
        return None
    limits, value = host.xp.finfo(probs.dtype), host.as_array(value)
    least = host.least(limits)
    if isinstance(fn, host.of_several):
        classes = (0.0 * probs + 1.0).cumsum(-1) - 1.0
        return ((value[..., None] == classes) & (probs >= 0.0) & (probs <= least)).any(-1)
    total = vars(fn).get("total_count", 1)
    # Also where nothing was observed of very many trials.
    few = (probs >= 0.0) & (probs < least) & ((value > 0) | (total * least > LITTLE))
    many = (probs <= 1.0) & (probs > 1.0 - limits.eps) & (value < total)
    return few | many


def words_of_bounds(site: str, what: str, share: float) -> str:
    """What is said of draws at which something is out of bounds."""
    if what == HELD:
        return (
            f"At {share:.1%} of the draws probabilities of '{site}' are so near to 0 or 1 that "
            "they are held off them, and what was observed does not count as it should. Give "
            "logits= in place of probs=, or use double precision."
        )
    is_value = what == "value"
    of = f"observations of '{site}' lie" if is_value else f"parameter '{what}' of '{site}' lies"
    return (
        f"At {share:.1%} of the draws {of} out of the bounds of its distribution, where it has no "
        "density. Keep it inside by exp, softplus or sigmoid, or add a factor of -inf beyond."
    )


def look_of(at: Callable[..., Any], target: Any, data: Any) -> Look | None:
    """What looks at positions of a target with these arguments, by a package's function ``at``.

    None where rows are very many, or where discrete sites have all their values at once, some of
    which may allow no observation.
    """
    has_many = any(plate.size > MOST_ROWS for plate in target.plates.values())
    return None if has_many or target.bound.enumerated else partial(at, target, data)


def told_of_bounds(look: Look | None, draws: Float[np.ndarray, "S D"]) -> tuple[str, ...]:
    """What is said of draws at which something is out of the bounds of its distribution.

    Of some of them, by ``look``; nothing without it.
    """
    if look is None or not len(draws):
        return ()
    rows = np.linspace(0, len(draws) - 1, min(LOOKED_AT, len(draws))).astype(int)
    counts, looked, began = Counter[tuple[str, str]](), 0, time.perf_counter()
    for some in np.split(rows, range(TOGETHER, len(rows), TOGETHER)):
        # It is a look beside the fit, which must not end with it.
        with suppress(Exception):
            for site, found in look(draws[some]).items():
                for what, flags in found.items():
                    counts[site, what] += int(flags.sum())
        looked += len(some)
        if time.perf_counter() - began > LONGEST:
            break
    shares = ((at, number / looked) for at, number in counts.items())
    return tuple(words_of_bounds(*at, share) for at, share in shares if share > BEYOND)
