"""Groups of NumPy arrays as an ArviZ object, for ArviZ 0.23 and for ArviZ 1.

ArviZ 0.23 has ``InferenceData``, ArviZ 1 has xarray's ``DataTree``; both hold one xarray
dataset for each group. The datasets are made here, because the pointwise log likelihood and
the observations of a site share a name but not always their dimensions, which the two
``from_dict`` functions cannot express. Names are made safe for netCDF, where "/" separates
groups.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from ppl_ext.errors import ArgumentError
from ppl_ext.options import described

Array = NDArray[Any]

#: Groups whose arrays have one entry for each draw.
DRAW_GROUPS = (
    "posterior",
    "posterior_predictive",
    "log_likelihood",
    "log_prior",
    "sample_stats",
    "unconstrained_posterior",
    "prior",
    "prior_sbc",
)
#: Groups that ArviZ's schema does not have.
_CUSTOM = ("optimization", "prior_sbc")
_CONSTANTS = "constant_data"
#: Dimensions before those of a variable.
_LEAD: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(DRAW_GROUPS, ("chain", "draw")),
    "optimization": ("step",),
}

_RESERVED = ("chain", "draw", "step")


@dataclass(frozen=True)
class Variable:
    """One array of a group, without its draw dimension in ``dims``.

    Parameters
    ----------
    values : array
        With draws first in the groups of ``DRAW_GROUPS``.
    dims : tuple of str or None
        Name of each axis after the draws, its plate as a rule; None for an axis without one.
    """

    values: Shaped[Array, " ..."]
    dims: tuple[str | None, ...] = ()


#: Arrays of a group with the names of their axes, and labels along axes.
NamedGroup = tuple[dict[str, tuple[tuple[str, ...], Array]], dict[str, Array]]


@dataclass
class SafeNames:
    """Names that netCDF and both ArviZ generations accept, one for each original name.

    "/" becomes ".", a first character other than a letter, digit or underscore gets an
    underscore before it, and a name that is taken already gets the smallest free number.
    """

    given: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: set(_RESERVED))

    def reserve(self, names: Sequence[str]) -> None:
        """Give every name that is safe as it is to itself, before others can take it."""
        for name in names:
            if name not in self.taken and self._clean(name) == name:
                self.given[name] = name
                self.taken.add(name)

    def __call__(self, name: str) -> str:
        if name not in self.given:
            clean = self._clean(name)
            candidate, number = clean, 2
            while candidate in self.taken:
                candidate, number = f"{clean}_{number}", number + 1
            self.given[name] = candidate
            self.taken.add(candidate)
        return self.given[name]

    @staticmethod
    def _clean(name: str) -> str:
        clean = re.sub(r"[\x00-\x1f\x7f]", "_", name.replace("/", ".")).rstrip()
        return clean if re.match(r"[^\W]", clean) else f"_{clean}"

    @property
    def changed(self) -> dict[str, str]:
        """Safe name -> original name, where the two differ."""
        return {safe: name for name, safe in self.given.items() if safe != name}


def _attribute(value: Any) -> Any:
    """A value that netCDF can store as an attribute."""
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (str, int, float, np.integer, np.floating)):
        return value
    return json.dumps(value, default=str)


def _storable(values: Array) -> Array:
    """The array in a type that netCDF has (half precision and bfloat16 become float32)."""
    values = np.asarray(values)
    if values.dtype.kind == "V" or values.dtype.name in ("float16", "bfloat16"):
        return values.astype(np.float32)
    return values


def named_arguments(
    signature: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by the names of the parameters that take them."""
    named: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        kind = signature.parameters[name].kind
        if kind is kind.VAR_POSITIONAL:
            named.update({f"{name}_{i}": item for i, item in enumerate(value)})
        elif kind is kind.VAR_KEYWORD:
            named.update(value)
        elif isinstance(value, Mapping):
            named.update({f"{name}.{key}": item for key, item in value.items()})
        else:
            named[name] = value
    return named


def constant_variables(
    arguments: Mapping[str, Array], observed: Mapping[str, Array], plate_sizes: Mapping[str, int]
) -> dict[str, Variable]:
    """Array arguments of the model that are not observations themselves.

    The first axis is named after the plate of its length, where just one plate has it.
    """
    constants = {}
    for name, values in arguments.items():
        if values.ndim == 0 or values.dtype.kind not in "biuf":
            continue
        if any(_same_numbers(values, np.asarray(seen)) for seen in observed.values()):
            continue
        constants[name] = Variable(values, leading_plate(values, plate_sizes))
    return constants


def _same_numbers(values: Array, seen: Array) -> bool:
    """Whether an argument became these observations, converted and reshaped on the way.

    JAX rounds 64-bit arguments to 32 bits unless told otherwise, so floats are compared in the
    coarser of the two types. What is missing (NaN) in the argument may be anything.
    """
    one, two = np.squeeze(values), np.squeeze(seen)
    if one.shape != two.shape:
        return False
    # Half types that NumPy does not know as floats (bfloat16) have kind "V".
    floats = [a.dtype for a in (one, two) if a.dtype.kind in "fV"]
    coarser = min(floats, key=lambda dtype: dtype.itemsize, default=np.dtype(float))
    with np.errstate(over="ignore", invalid="ignore"):
        one, two = one.astype(coarser), two.astype(coarser)
    return bool(np.all((one == two) | (one != one)))


def leading_plate(
    values: Shaped[Array, " ..."], plate_sizes: Mapping[str, int]
) -> tuple[str | None, ...]:
    """Dims of an array whose first axis may run along a plate."""
    fitting = [name for name, size in plate_sizes.items() if values.shape[:1] == (size,)]
    first = fitting[0] if len(fitting) == 1 else None
    return (first, *([None] * (values.ndim - 1))) if values.ndim else ()


def inference_data(
    groups: Mapping[str, Mapping[str, Variable]],
    plate_sizes: Mapping[str, int],
    *,
    attributes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Build an ``InferenceData`` (ArviZ 0.23) or a ``DataTree`` (ArviZ 1).

    Parameters
    ----------
    groups, plate_sizes, **options
        As in :func:`named_groups`.
    attributes : mapping, optional
        Attributes of the whole and of every group.

    Raises
    ------
    ArgumentError
        ``dims`` or ``coords`` do not fit the arrays, ``dims`` names nothing, or an axis has two
        lengths.
    """
    import arviz
    import xarray

    named, safe = named_groups(groups, plate_sizes, **options)
    attributes = {key: _attribute(value) for key, value in (attributes or {}).items()}
    if safe.changed:
        attributes["renamed"] = json.dumps(safe.changed, sort_keys=True)
    datasets = {
        group: xarray.Dataset(arrays, labels, attributes)
        for group, (arrays, labels) in named.items()
    }
    if int(arviz.__version__.split(".")[0]) < 1:
        standard: Any = {name: value for name, value in datasets.items() if name not in _CUSTOM}
        result = arviz.InferenceData(attrs=dict(attributes), **standard)
        if custom := {name: value for name, value in datasets.items() if name in _CUSTOM}:
            result.add_groups(custom, warn_on_custom_groups=False)
        return result
    tree = xarray.DataTree.from_dict({f"/{name}": value for name, value in datasets.items()})
    tree.attrs.update(attributes)
    return tree


def named_groups(
    groups: Mapping[str, Mapping[str, Variable]],
    plate_sizes: Mapping[str, int],
    *,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    num_chains: int = 1,
    sites: Collection[str] = (),
    draws_of: Mapping[str, Sequence[int] | NDArray[np.int64]] = MappingProxyType({}),
) -> tuple[dict[str, NamedGroup], SafeNames]:
    """Arrays of each group with the names of their axes, and the labels along these.

    Parameters
    ----------
    groups : mapping of group to mapping of name to Variable
        Empty groups are left out.
    plate_sizes : mapping of str to int
        Plates that become dimensions.
    dims : mapping of str to sequence of str, optional
        Dimension names of a variable, without chain and draw, in place of those found.
    coords : mapping of str to sequence, optional
        Labels along a dimension. Default: 0, 1, 2, ... Those of dimensions that are not there are
        left alone, as ArviZ's own converters do: one mapping serves several models.
    num_chains : int
        Chains that the draws are of, one after another.
    sites : collection of str
        Of the model, whose names may be among ``dims`` where no group has them.
    draws_of : mapping of str to sequence of int, optional
        By group the draws of each chain that it has, where these are not all.

    Raises
    ------
    ArgumentError
        ``dims`` or ``coords`` do not fit the arrays, ``dims`` names nothing, or an axis has two
        lengths.
    """
    groups = {name: variables for name, variables in groups.items() if variables}
    safe = SafeNames()
    every_name = [name for variables in groups.values() for name in variables]
    axes_of = {group: _named_axes(variables) for group, variables in groups.items()}
    every_axis = dict.fromkeys([*plate_sizes, *itertools.chain(*axes_of.values())])
    # Before any name is changed, so that a changed one cannot take that of another site.
    safe.reserve([*every_name, *every_axis])
    for name in every_name:
        safe(name)
    # In one dataset an array and a dimension cannot share a name. Arguments of the model often have
    # that of a plate: among them the axis goes without.
    taken = {
        name
        for group, axes in axes_of.items()
        if group != _CONSTANTS
        for name in axes
        if name in groups[group]
    }
    axis_of = {name: safe(f"{name}_plate" if name in taken else name) for name in every_axis}
    dims, coords = by_name("dims", dims), by_name("coords", coords)
    wanted_dims = {safe(name): listed("dims", name, given) for name, given in dims.items()}
    wanted_coords = {
        axis_of.get(name, name): listed("coords", name, axis) for name, axis in coords.items()
    }
    if unknown := [name for name in dims if name not in every_name and name not in sites]:
        raise ArgumentError(
            f"dims names {unknown}, which are no variables. Expected some of "
            f"{sorted({*every_name, *sites})}."
        )

    found: dict[str, NamedGroup] = {}
    for group, variables in groups.items():
        arrays: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for name, variable in variables.items():
            label, values = safe(name), _storable(variable.values)
            lead = _LEAD.get(group, ())
            if group in DRAW_GROUPS:
                # Not -1, which is any number where a site is of length zero.
                each = len(values) // num_chains
                values = values.reshape((num_chains, each, *values.shape[1:]))
            shape = values.shape[len(lead) :]
            own = variable.dims
            if group == _CONSTANTS:
                own = tuple(None if each in variables else each for each in own)
            axes = _axis_names(label, own, shape, wanted_dims.get(label), group, axis_of)
            arrays[label] = (lead + axes, values)
            for axis, length in zip(lead + axes, values.shape, strict=True):
                if lengths.setdefault(axis, length) != length:
                    raise ArgumentError(
                        f"Expected dimension '{axis}' to have one length in group {group}, found "
                        f"{lengths[axis]} and, of '{label}', {length}. Give axes of different "
                        "lengths different names, by dims= or in the model."
                    )
        if shared := sorted(set(lengths).intersection(arrays)):
            raise ArgumentError(
                f"Expected dimensions with names that no variable of group {group} has, found "
                f"{shared}. Give them other names by dims=."
            )
        labels = {axis: np.arange(length) for axis, length in lengths.items()}
        if group in draws_of:
            labels["draw"] = np.asarray(draws_of[group])
        for axis, length in lengths.items():
            if axis in wanted_coords:
                labels[axis] = np.asarray(wanted_coords[axis])
                if len(labels[axis]) != length:
                    raise ArgumentError(
                        f"Expected {length} labels along dimension '{axis}', found "
                        f"{len(labels[axis])} in coords."
                    )
        found[group] = arrays, labels
    return found, safe


def _named_axes(variables: Mapping[str, Variable]) -> set[str]:
    return {name for each in variables.values() for name in each.dims if name is not None}


def by_name(what: str, given: Any) -> Mapping[str, Any]:
    """What is given by name, or nothing.

    Raises
    ------
    ArgumentError
        It is no mapping.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ArgumentError(
            f"Expected {what} to be a mapping from names to lists, found {described(given)}."
        )
    return given or {}


def listed(what: str, name: str, given: Any) -> tuple[Any, ...]:
    """Names of axes, or labels along one.

    Raises
    ------
    ArgumentError
        They are no list.
    """
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else None
    names = what == "dims"
    if found is None or any(np.ndim(x) or (names and not isinstance(x, str)) for x in found):
        kind = "a list of names" if names else "a list of labels"
        raise ArgumentError(
            f"Expected {what}[{name!r}] to be {kind}, found {described(given)}. Write "
            f"{what}={{{name!r}: [...]}}."
        )
    twice = [] if names else [label for label, count in Counter(found).items() if count > 1]
    if twice:
        raise ArgumentError(
            f"Expected coords[{name!r}] to have a label of its own for each place, found "
            f"{twice[0]!r} twice."
        )
    return found


def _axis_names(
    label: str,
    plates: tuple[str | None, ...],
    shape: tuple[int, ...],
    wanted: tuple[str, ...] | None,
    group: str,
    axis_of: Mapping[str, str],
) -> tuple[str, ...]:
    # Several axes of one name (a covariance of rows, say) cannot share a dimension.
    names, seen = [], set()
    for axis in range(len(shape)):
        plate = plates[axis] if axis < len(plates) else None
        name = f"{label}_dim_{axis}" if plate is None or plate in seen else axis_of[plate]
        seen.add(plate)
        names.append(name)
    if wanted is None:
        return tuple(names)
    if len(set(wanted)) < len(wanted):
        raise ArgumentError(
            f"Expected dims of '{label}' with a name of its own for each axis, found {wanted}."
        )
    if len(wanted) == len(shape):
        return wanted
    if group in ("log_likelihood", "log_prior") and len(wanted) > len(shape):
        # Log densities lack the event axes, which come last.
        return wanted[: len(shape)]
    raise ArgumentError(
        f"Expected {len(shape)} dims for '{label}' in group {group} (chain and draw are added), "
        f"found {wanted}."
    )
