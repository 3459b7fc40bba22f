"""Distributions of observed sites without their wrappers, as parameters to be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple

from ppl_ext.target.scores import Array

#: Before the names of a base distribution's parameters.
BASE = "base_dist."
#: Before the names of the parameters of a mixture's parts.
MIXING, COMPONENT = "mixing.", "component."

# For JAX: what is no array is part of a program.
_STATIC = {"static": True}


class Parts(NamedTuple):
    """What a mixture of one family is made of.

    Parameters
    ----------
    mixing, component : type
        Classes of the distribution over components, and of the components.
    declared : int
        Rightmost dimensions of the components that ``to_event`` made event dimensions.
    """

    mixing: type
    component: type
    declared: int


@dataclass(frozen=True, kw_only=True)
class ObservedOutput(Generic[Array]):
    """One observed site: a distribution's parameters at a latent position, and the data.

    The batch shape of the parameters counts the dimensions that ``to_event`` declared as event
    dimensions, because the elements along them are independent.

    Parameters
    ----------
    parameters : dict of str to array
        What the distribution was built from, each broadcast to ``batch`` + its event shape. In Pyro
        left as it is where that is impossible, as of a distribution with fewer batch dimensions
        than its parameter has.
    value : array
        Observed value.
    scale : float or array
        Factor on the log probability (plates, handlers of scale), broadcastable to the site's batch
        shape.
    mask : bool array or None
        Which elements count, in the shape of the parameters' batch; None when all do.
    distribution : type
        Class of the distribution without its wrappers (independent, expanded, masked).
    event_dim : int
        Number of rightmost dimensions that belong to one observation, ``to_event`` included.
    name : str
    declared : int
        Rightmost dimensions of ``batch`` that ``to_event`` made event dimensions.
    batch : tuple of int
        Shape of the elements that are independent given the parameters.
    event_shape : tuple of int
        Event shape of the distribution without its wrappers.
    plates : tuple of str
        Plates around the site.
    base : type or None
        For a zero-inflated distribution: the class that it is made of, whose parameters are
        among this one's as ``base_dist.NAME``.
    parts : Parts or None
        For a mixture: what it is made of. Its parameters are those of the parts, as ``mixing.NAME``
        and ``component.NAME``.
    """

    parameters: dict[str, Array]
    value: Array
    scale: Any
    mask: Array | None
    distribution: type = field(metadata=_STATIC)
    event_dim: int = field(metadata=_STATIC)
    name: str = field(metadata=_STATIC)
    declared: int = field(metadata=_STATIC)
    batch: tuple[int, ...] = field(metadata=_STATIC)
    event_shape: tuple[int, ...] = field(metadata=_STATIC)
    plates: tuple[str, ...] = field(metadata=_STATIC)
    base: type | None = field(default=None, metadata=_STATIC)
    parts: Parts | None = field(default=None, metadata=_STATIC)

    def built(self, parameters: Mapping[str, Array]) -> Any:
        """The distribution, without its wrappers, with other values of some parameters."""
        given = {**self.parameters, **parameters}
        if self.parts is None:
            return self.distribution(**given)

        def of(kind: type, prefix: str) -> Any:
            names = [name for name in given if name.startswith(prefix)]
            return kind(**{name.removeprefix(prefix): given[name] for name in names})

        mixing, kind, declared = self.parts
        components = of(kind, COMPONENT)
        if declared:
            components = components.to_event(declared)
        return self.distribution(of(mixing, MIXING), components)


def can_expand(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether an array of a shape can be repeated to another one."""
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(size in (1, other) for size, other in pairs)


class Host(NamedTuple):
    """What of a host is needed to read its distributions.

    Parameters
    ----------
    independent, masked, expanded : type
        The wrappers of distributions.
    of_two, of_several : type or tuple of type
        Distributions over two classes and over several, with ``probs``.
    as_array : callable
        Makes an array of numbers.
    xp : module
        ``torch`` or ``jax.numpy``.
    held : tuple of type
        Distributions whose ``probs`` the host holds off 0 and 1.
    least : callable
        From the limits of a precision to the least probability that it leaves.
    """

    independent: Any
    masked: Any
    expanded: Any
    of_two: Any
    of_several: Any
    as_array: Callable[[Any], Any]
    xp: Any
    held: tuple[Any, ...]
    least: Callable[[Any], float]

    def unwrapped(self, fn: Any) -> tuple[Any, list[tuple[Any, int]], int]:
        """Innermost distribution, masks with the declared dimensions outside them, and these.

        Declared are the event dimensions that come from ``to_event``, not from the distribution.
        """
        masks: list[tuple[Any, int]] = []
        declared = 0
        while isinstance(fn, (self.independent, self.masked, self.expanded)):
            if isinstance(fn, self.independent):
                declared += fn.reinterpreted_batch_ndims
            elif isinstance(fn, self.masked):
                masks.append((fn._mask, declared))
            fn = fn.base_dist
        return fn, masks, declared

    def joint_mask(
        self, masks: Sequence[tuple[Any, int]], declared: int, batch: tuple[int, ...]
    ) -> Any:
        """The conjunction of masks, in the shape of the parameters' batch; None when all count."""
        joint: Any = None
        for part, within in masks:
            if part is None or part is True:
                continue
            mask = self.as_array(part)
            mask = mask.reshape(tuple(mask.shape) + (1,) * (declared - within))
            mask = self.xp.broadcast_to(mask, batch)
            joint = mask if joint is None else joint & mask
        return joint

    def prediction(
        self, outer: Any, value: Any, around: Sequence[tuple[Any, int]] = ()
    ) -> dict[str, Any]:
        """What a distribution says of values that are yet to be seen, in the shape of a value.

        Parameters
        ----------
        outer : distribution
        value : array
        around
            Masks of handlers around its site, as those of :meth:`unwrapped`.

        Returns
        -------
        dict of str to array
            For distributions over classes ``probabilities``, with a last axis for the classes. For
            others ``mean`` and ``variance``, where the distribution has them, and for continuous
            ones ``cdf``, the distribution function at the value, likewise. ``mask`` says which
            elements count, where some do not.
        """
        found: dict[str, Any] = {}
        fn, masks, declared = self.unwrapped(outer)
        shape = tuple(self.xp.broadcast_shapes(value.shape, outer.shape()))
        broadcast = self.xp.broadcast_to
        if isinstance(fn, self.of_two):
            classes = self.xp.stack([1.0 - fn.probs, fn.probs], -1)
            found["probabilities"] = broadcast(classes, (*shape, 2))
        elif isinstance(fn, self.of_several):
            found["probabilities"] = broadcast(fn.probs, shape + tuple(fn.probs.shape[-1:]))
        else:
            # A host's base class raises this where a distribution does not have what is asked for.
            for name in ("mean", "variance"):
                with suppress(NotImplementedError):
                    found[name] = broadcast(getattr(outer, name), shape)
            if not fn.event_shape and not fn.support.is_discrete:
                with suppress(NotImplementedError):
                    found["cdf"] = broadcast(fn.cdf(value), shape)
        batch = tuple(outer.batch_shape) + tuple(outer.event_shape[:declared])
        if (mask := self.joint_mask([*around, *masks], declared, batch)) is not None:
            # The mask is of elements, and the terms have the axes of an event as well.
            own = (1,) * len(fn.event_shape)
            found["mask"] = broadcast(mask.reshape(tuple(mask.shape) + own), shape)
        return found
