"""The door for a model's arguments: what is refused before anything is computed of them.

Every entry point that takes a model's arguments takes them through here. :func:`entry` refuses
keywords that an entry point and the model both have. :func:`check_call` refuses arguments that do
not fit the model's signature, masks that would be lost, and numbers that the host's precision does
not hold. Errors name the arrays as the model does (:func:`named_arrays`).
"""

from __future__ import annotations

import dis
import inspect
import math
import operator
import warnings
import weakref
from collections import deque
from collections.abc import (
    Callable,
    ItemsView,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Set,
    ValuesView,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import is_dataclass
from functools import lru_cache, partial, wraps
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Float

from ppl_ext.errors import ArgumentError, DataWarning
from ppl_ext.options import as_seed, described
from ppl_ext.process import between_steps

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
#: From the type of an array of NumPy's to the one that it gets in a host.
Kept: TypeAlias = Callable[[np.dtype[Any]], np.dtype[Any]]

#: How many arrays a message names at most.
_NAMED = 5
#: Containers of an argument that are looked into, and objects: these may hold a whole program.
_CONTAINERS, _OBJECTS = 100_000, 1_000
#: Functions and objects around a model that are looked at for what it holds.
_AROUND = 50
#: Whose arrays are in the host's precision already.
_FRAMEWORKS = ("torch", "jax", "jaxlib")
#: What holds no arrays.
_PLAIN = (str, bytes, bool, int, float, complex, type, type(None))
#: Rounding of a column, as a share of its spread, that no answer may depend on unseen.
ROUNDED = 1e-3
#: The same, from where on the numbers are not those that were meant: with errors of a twentieth of
#: a column's spread its slope is off by as much as 400 rows leave it uncertain.
LOST = 0.05
#: Entries of an array that the look at rounding takes, spread evenly, and the rows of a wide one:
#: how large numbers are beside their spread shows in few.
_LOOKED_AT, _ROWS = 2**14, 2**7
#: Roundings of double precision within which the entries of a column are one number, computed.
_ONE_NUMBER = 1e4
#: Standard deviations of a Normal between its quartiles.
_QUARTILES = 1.349
#: Where an entry point's argument has its model.
_MODELS = ("model", "sampler.model", "kernel.model", "target.model")
#: What torch says in a ValueError of an observation or a parameter that is none of its tensors.
_WANTS_TENSOR = ("must be a Tensor", "must all be instances of Number, torch.Tensor")
#: What torch says of a method in the place of numbers, as ``values`` of its tensors is one.
_OF_METHOD = "Could not infer dtype of builtin_function_or_method"
#: How to have double precision.
_DOUBLE = "double precision: numpyro.enable_x64() first, or dtype=torch.float64"


def entry(
    verb: Callable[Parameters, Result],
    within: Callable[..., AbstractContextManager[tuple[Any, Any]]] | None = None,
) -> Callable[Parameters, Result]:
    """An entry point, in which Ctrl-C waits (:mod:`ppl_ext.process`) and names may not clash.

    Those are keywords which its own signature and the model's both have. The model is its parameter
    ``model``, or that of its first parameter: an engine, a fit or the host's ``MCMC``.

    Parameters
    ----------
    verb : callable
    within : callable, optional
        Of a call's ``args`` and ``kwargs``: a context for it, which gives those to call with.
    """
    signature = inspect.signature(verb)
    parameters = signature.parameters.values()
    own = {each.name for each in parameters if each.kind not in (_ARGS, _KWARGS)}
    by_place = [each.name for each in parameters if each.kind is _BY_PLACE]
    places = {name: number for number, name in enumerate(by_place)}

    @wraps(verb)
    def entered(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        given = own.intersection(kwargs)
        if given:
            check_own_names(_model_of(places, args, kwargs), given, verb.__name__)
        twice = sorted(name for name in given if places.get(name, len(args)) < len(args))
        if twice:
            raise ArgumentError(
                f"Expected each parameter of {verb.__name__} once, found {twice} by position and "
                "by keyword. Where the model has one of that name, bind it before: "
                f"functools.partial(model, {twice[0]}=...)."
            )
        if "seed" in given:
            kwargs["seed"] = as_seed(kwargs["seed"])
        try:
            around = nullcontext((args, kwargs)) if within is None else within(args, kwargs)
            with between_steps(), around as (args, kwargs):
                return verb(*args, **kwargs)
        except ArgumentError as error:
            # Its words tell all, and where it comes from is a page for each frame in a notebook.
            raise error.with_traceback(None) from error.__cause__

    return entered


_ARGS, _KWARGS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_BY_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _model_of(places: Mapping[str, int], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The model of a call, or None."""
    if kwargs.get("model") is not None:
        return kwargs["model"]
    if places.get("model", len(args)) < len(args):
        return args[places["model"]]
    owner = args[0] if args else kwargs.get(next(iter(places)))
    for path in _MODELS:
        try:
            return operator.attrgetter(path)(owner)
        except (AttributeError, ArgumentError):
            continue
    return None


def check_own_names(model: Any, given: set[str], verb: str) -> None:
    """See that keywords which an entry point takes for itself are not meant for the model.

    Parameters
    ----------
    model : callable or None
    given : set of str
        Names that were given by keyword, of the entry point's own parameters.
    verb : str
        Its name.

    Raises
    ------
    ArgumentError
        The model has a parameter of one of these names.
    """
    parameters = getattr(_signature(model), "parameters", {})
    bound = getattr(model, "keywords", {})
    names = sorted(name for name in given if name in parameters and name not in bound)
    if names:
        raise ArgumentError(
            f"Expected keywords that are of {verb} alone, found {names}, which are parameters of "
            f"the model as well, so that {verb} would take them for itself. Bind the model's "
            f"before, and give {verb} that one: functools.partial(model, {names[0]}=...)."
        )


def _signature(model: Any) -> inspect.Signature | None:
    """The signature of a function or a module; None where Python cannot tell."""
    try:
        return inspect.signature(getattr(model, "forward", model))
    except (TypeError, ValueError):
        return None


def check_call(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    kept: Kept | None = None,
    fraction: np.dtype[Any] | None = None,
    *,
    anew: bool = False,
) -> None:
    """See that a model can be called with these arguments, and that nothing of them is lost.

    What a model holds beside them, by ``functools.partial``, in an object that it calls, in its
    closure or as a global, it may compute with before the host does: where something of that may be
    lost a warning says so.

    Parameters
    ----------
    model : callable
    args, kwargs
        Its arguments.
    kept : callable, optional
        What the host makes of types of NumPy's arrays; None where they stay as they are.
    fraction : numpy.dtype, optional
        In which the model computes with lists, and with whole numbers.
    anew : bool
        Whether arrays that were looked at before are looked at again: they may have been written
        to.

    Raises
    ------
    ArgumentError
        The arguments do not fit its signature, hold masked arrays, whose mask would be lost, or
        numbers that the host's precision does not hold.
    """
    signature = _signature(model)
    named = _by_position(args, kwargs)
    if signature is not None:
        try:
            named = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ArgumentError(
                f"The arguments do not fit the model: {error}. Expected model{signature}, found "
                f"{len(args)} positional arguments and keywords {sorted(kwargs)}."
            ) from None
    for name, value in _iterators_in(named):
        raise ArgumentError(
            f"Expected arguments that are the same whenever the model is run, found "
            f"{described(value)} in argument '{name}', which its first run uses up. Pass a "
            "list, or the batches of a loader by batches=."
        )
    for name, array in _arrays_in(named, lists=True):
        if isinstance(array, _Column):
            # The model takes them out by itself, and may compute with them before the host does.
            _check_list(name, np.array(array), None, fraction)
        elif isinstance(array, tuple | list | int):
            _check_list(name, np.array(array), kept, fraction)
        else:
            check_array(name, array, kept, fraction, anew=anew)
    for name, array in _arrays_in(_held_by(model, named), lists=True):
        _warn_of_held(name, array, kept, fraction)
    for name, array in _arrays_in(_around(model), lists=True, objects=False):
        _warn_of_held(name, array, kept, fraction, is_bound=False)


def check_array(
    name: str,
    array: Any,
    kept: Kept | None = None,
    fraction: np.dtype[Any] | None = None,
    *,
    anew: bool = False,
) -> None:
    """See that nothing of an array is lost on its way into a host; see :func:`check_call`."""
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(
            f"Expected arrays without a mask of NumPy's own, found a masked array in argument "
            f"'{name}', whose mask neither host knows. Pass its data and its mask apart, and put "
            "the mask on the observed site: with mask(mask=~hidden)."
        )
    foreign = None if kept is None else _of_no_framework(array)
    if foreign is not None:
        # A model may compute with it as its library does, in double precision.
        _warn_of_numbers(name, foreign, fraction)
        return
    if not isinstance(array, np.ndarray | np.generic) or kept is None:
        if fraction is not None and (anew or not _is_known(array, fraction)):
            if (whole := _whole_numbers(array)) is not None:
                _warn_of_whole(name, whole, fraction)
                _remember(array, fraction)
        return
    if array.dtype.kind not in "biufcV":
        return  # names, dates and objects, of which a model may take a length, or codes
    if not array.dtype.isnative:
        x = _in_formula(name)
        raise ArgumentError(
            f"Expected arrays in the byte order of this machine, found argument '{name}' of type "
            f"{array.dtype.str}, as files of other machines have it. Pass "
            f"{x}.astype({x}.dtype.newbyteorder('='))."
        )
    own = np.dtype(kept(array.dtype))
    if own.kind not in "iuf" or not array.size or (_is_known(array, own) and not anew):
        return
    numbers = np.asarray(array)
    if own.kind == "f":
        check_digits(name, numbers, own)
    else:
        check_range(name, numbers, own)
        if fraction is not None:
            _warn_of_whole(name, numbers, fraction)
    _remember(array, own)


def _check_list(
    name: str, array: np.ndarray, kept: Kept | None, fraction: np.dtype[Any] | None
) -> None:
    """The same of a list of numbers, of which a model makes an array.

    Where the host keeps types as they are, it may choose one that holds them.
    """
    if fraction is None:
        return
    if array.dtype.kind == "f":
        check_digits(name, array, fraction, refuse=kept is not None)
    else:
        if kept is not None:
            check_range(name, array, np.dtype(kept(np.dtype(np.int64))))
        _warn_of_whole(name, array, fraction)


def _held_by(model: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """What a model holds by ``partial`` or as a default, and the functions among its arguments."""
    parameters = getattr(_signature(model), "parameters", {}).values()
    held = {
        each.name: each.default
        for each in parameters
        if each.name not in named and each.default is not each.empty
    }
    for name, each in {"": model, **named}.items():
        if isinstance(each, partial):
            prefix = f"{name}." if name else ""
            while isinstance(each, partial):
                signature, given = _signature(each.func), _by_position(each.args, each.keywords)
                if signature is not None:
                    try:
                        given = signature.bind_partial(*each.args, **each.keywords).arguments
                    except TypeError as error:
                        what = f"argument '{name}'" if name else "the model"
                        raise ArgumentError(
                            f"Expected {what} to bind what its function takes, found a "
                            f"functools.partial that does not fit it: {error}."
                        ) from None
                held |= {f"{prefix}{key}": value for key, value in given.items()}
                each = each.func
        elif name and callable(each) and not is_dataclass(each):
            held |= {f"{name}.{key}": value for key, value in getattr(each, "__dict__", {}).items()}
    return held


def _around(model: Any) -> dict[str, Any]:
    """What a model's functions and objects hold: closures, globals that they use, attributes."""
    held: dict[str, Any] = {}
    waiting, seen = deque([model]), set[int]()
    while waiting and len(seen) < _AROUND:
        each = waiting.popleft()
        if id(each) in seen or isinstance(each, type | ModuleType):
            continue
        seen.add(id(each))
        if isinstance(each, partial):
            # Functions among what is bound, such as a link or a mean, may hold arrays as well.
            waiting += filter(callable, (each.func, *each.args, *each.keywords.values()))
            continue
        if isinstance(each, MethodType):
            waiting += [each.__self__, each.__func__]
            continue
        if isinstance(each, FunctionType):
            own = _used_by(each)
            # Functions of other modules are a library's, whose globals are no data.
            inner = [value for value in own.values() if _is_of(value, each.__module__)]
        else:
            own = dict(getattr(each, "__dict__", {}))
            # Names under which handlers of the hosts, wrappers of functions and
            # :func:`functools.wraps` hold the function that they call.
            inner = [own[name] for name in ("fn", "func", "model", "__wrapped__") if name in own]
            inner += [
                vars(kind)["__call__"] for kind in type(each).__mro__ if "__call__" in vars(kind)
            ]
        waiting += [value for value in inner if callable(value)]
        held |= {name: value for name, value in own.items() if not callable(value)}
    return held


def _is_of(value: Any, module: str) -> bool:
    return isinstance(value, FunctionType | MethodType | partial) and (
        isinstance(value, partial) or value.__module__ == module
    )


def _used_by(function: FunctionType) -> dict[str, Any]:
    """Variables of a function's closure, and the globals that it uses."""
    names = _globals_of(function.__code__)
    own = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            own[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return own


@lru_cache(maxsize=256)
def _globals_of(code: CodeType) -> tuple[str, ...]:
    """Names that a function and those within it look up among globals."""
    found = {
        str(each.argval) for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"
    }
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found |= set(_globals_of(each))
    return tuple(sorted(found))


def _warn_of_held(
    name: str,
    array: Any,
    kept: Kept | None,
    fraction: np.dtype[Any] | None,
    *,
    is_bound: bool = True,
) -> None:
    """Warn of what a model holds itself and may lose; refuse masks of what was bound to it."""
    if is_bound:
        check_array(name, array)
    elif isinstance(array, np.ma.MaskedArray):
        warnings.warn(
            f"The model holds a masked array of NumPy's, '{name}', whose mask neither host knows: "
            "where an array of the host is made of it, hidden entries count as data. Put the mask "
            "on the observed site: with mask(mask=~hidden).",
            DataWarning,
            stacklevel=2,
        )
        return
    if kept is None or isinstance(array, int):
        return
    if isinstance(array, tuple | list):
        array = np.array(array)
    foreign = _of_no_framework(array)
    _warn_of_numbers(name, array if foreign is None else foreign, fraction)


def _warn_of_numbers(name: str, array: Any, fraction: np.dtype[Any] | None) -> None:
    """Say where numbers are lost if a host gets them as they are."""
    if fraction is None or not isinstance(array, np.ndarray) or not array.size:
        return
    if array.dtype.kind in "iu":
        # A host that computes in 32 bits has whole numbers of 32 bits as well.
        own = np.dtype(f"{array.dtype.kind}{fraction.itemsize}")
        try:
            check_range(name, array, own)
        except ArgumentError as error:
            warnings.warn(str(error), DataWarning, stacklevel=2)
        else:
            _warn_of_whole(name, array, fraction)
    elif array.dtype.kind == "f":
        check_digits(name, array, fraction, refuse=False)


def _of_no_framework(array: Any) -> np.ndarray | None:
    """A column of a table, or another library's array, as NumPy's; None of all other arrays."""
    owner = type(array).__module__.partition(".")[0]
    if isinstance(array, np.ndarray | np.generic) or owner in _FRAMEWORKS:
        return None
    if hasattr(array, "columns") or not hasattr(array, "__array__"):
        return None
    found = np.asarray(array)
    return found if found.dtype.kind in "iuf" else None


def _whole_numbers(array: Any) -> np.ndarray | None:
    """Whole numbers of a framework's array; None where it has others, or has none yet."""
    if "int" not in str(getattr(array, "dtype", "")) or not math.prod(array.shape):
        return None
    try:
        return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
    except (TypeError, RuntimeError):  # one that stands for others, of a transformation
        return None


def check_digits(name: str, array: np.ndarray, own: np.dtype[Any], *, refuse: bool = True) -> None:
    """See that a type with a fraction holds what differs between the entries of a column.

    A :class:`DataWarning` says where it does so in part, or where it may not be what the model
    computes with.

    Raises
    ------
    ArgumentError
        It does not.
    """
    if own.itemsize >= array.dtype.itemsize:
        return
    x = _in_formula(name)
    largest = float(np.max(np.abs(array), where=np.isfinite(array), initial=0.0))
    if largest > float(np.finfo(own).max):
        told = (
            f"Expected numbers that the model's precision, {own}, holds, found {largest:.3g} in "
            f"argument '{name}', which would be infinite. Leave it out, or use {_DOUBLE}."
        )
        if refuse:
            raise ArgumentError(told)
        warnings.warn(told, DataWarning, stacklevel=2)
        return
    share = _rounding(array, own)
    if share <= ROUNDED:
        return
    told = (
        f"Expected numbers that the model's precision, {own}, holds, found that rounding argument "
        f"'{name}' to it changes entries by {share:.2g} of their spread. Numbers that are large "
        f"beside their spread lose digits. Centre them first, as {x} - {x}.mean(), or use "
        f"{_DOUBLE}. Pass {x}.astype('{own}') where the rounding is meant."
    )
    if refuse and share > LOST:
        raise ArgumentError(told)
    warnings.warn(told, DataWarning, stacklevel=2)


def placed_array(name: str, array: np.ndarray, place: Callable[[Any], Any]) -> Any:
    """An array that the library itself makes one of a package's, as through the door.

    ``place`` makes it; it is asked for the type first.

    Raises
    ------
    ArgumentError
        Something of it would be lost.
    """
    # An empty part of the array, so that nothing is copied or rounded before it is looked at.
    own = np.dtype(str(place(array[:0]).dtype).removeprefix("torch."))
    check_array(name, array, lambda _: own)
    return place(array)


def check_range(name: str, array: np.ndarray, own: np.dtype[Any]) -> None:
    """See that a type of whole numbers holds those of an array.

    ``name`` is its argument's; empty for one of a batch.

    Raises
    ------
    ArgumentError
        It does not.
    """
    if np.can_cast(array.dtype, own):
        return
    low, high, limits = int(array.min()), int(array.max()), np.iinfo(own)
    if low < limits.min or high > limits.max:
        x = _in_formula(name)
        where = f"argument '{name}'" if name else "an array of a batch"
        others = f"{x} - {x}.min(), codes from 0 on, or numbers with a fraction, {x}.astype(float)"
        raise ArgumentError(
            f"Expected whole numbers that {own} holds, from {limits.min} to {limits.max}, found "
            f"{low} to {high} in {where}, which would wrap to other numbers. Pass "
            f"{others if array.ndim else f'float({x})'}; or use {_DOUBLE}."
        )


def check_same(name: str, given: Any, placed: Any) -> None:
    """See that an array of a loader is the same after it was made one of a package's.

    Raises
    ------
    ArgumentError
        It was rounded by more than an answer may depend on unseen.
    """
    own = str(placed.dtype).removeprefix("torch.")
    array = given.detach().cpu().numpy() if hasattr(given, "detach") else np.asarray(given)
    check_array(name, given)
    if array.dtype.kind == "f" and own in ("float32", "float16"):
        check_digits(name, array, np.dtype(own))


def _in_formula(name: str) -> str:
    return name if name.isidentifier() else "x"


def _warn_of_whole(name: str, array: np.ndarray, fraction: np.dtype[Any]) -> None:
    """Say where whole numbers lose digits in a program that computes with them in a type."""
    # Up to this whole number the type holds all.
    whole = 2 ** (np.finfo(fraction).nmant + 1)
    if array.dtype.itemsize < fraction.itemsize or max(-int(array.min()), int(array.max())) < whole:
        return
    share, x = _rounding(array, fraction), _in_formula(name)
    if share > ROUNDED:
        warnings.warn(
            f"The whole numbers of argument '{name}' are large beside their spread: where the "
            f"model computes with them in {fraction} they are rounded by {share:.2g} of it. Pass "
            f"{x} - {x}.min(), or use {_DOUBLE}.",
            DataWarning,
            stacklevel=2,
        )


def _rounding(array: np.ndarray, kept: np.dtype[Any]) -> float:
    """Largest share of a column's spread that rounding changes a quarter of its entries by.

    Spread is that between quartiles, in standard deviations of a Normal, which a few numbers far
    away, such as codes for missing ones, do not move; the standard deviation where that is zero.
    It is a grain of the largest entry at least, so that entries next to zero do not count. Columns
    lie along the longest axis.
    """
    if array.ndim == 0 or max(array.shape) < 2:
        return 0.0
    array = np.moveaxis(array, int(np.argmax(array.shape)), 0)
    rows = array.reshape(len(array), -1)
    wide = max(1, math.ceil(rows.shape[1] * min(_ROWS, len(rows)) / _LOOKED_AT))
    rows = rows[:, ::wide]
    long = max(1, math.ceil(len(rows) * rows.shape[1] / _LOOKED_AT))
    with np.errstate(all="ignore"):
        columns = np.sort(rows[::long].astype(np.float64), axis=0)  # NaN come last
        columns[~np.isfinite(columns)] = np.nan
        counts = np.maximum(np.isfinite(columns).sum(0), 1)
        # Places of the quartiles among the finite entries alone, of which each column has a count
        # of its own.
        first, third = (_at(columns, (part * (counts - 1)) // 4) for part in (1, 3))
        spread = (third - first) / _QUARTILES
        if (spread == 0.0).any():
            # Most entries are one number here, such as zeros of a sparse column.
            middle = np.where(np.isfinite(columns), columns, first)
            spread = np.where(spread > 0.0, spread, middle.std(0))
        largest = np.nanmax(np.abs(columns), axis=0, initial=0.0)
        changed = np.sort(np.abs(columns - columns.astype(kept).astype(np.float64)), axis=0)
        # The upper quartile of the changes: entries that a type happens to hold exactly, such as
        # whole numbers among the others, do not hide what happens to the rest.
        rounding = _at(changed, (3 * (counts - 1)) // 4)
        size = np.maximum(np.abs(first), np.abs(third))
        shares = rounding / np.maximum(spread, np.finfo(kept).eps * largest)
    # A column such as `0.1 + 0.2` beside `0.3` is constant but for double rounding, which no model
    # is meant to see.
    differs = spread > _ONE_NUMBER * np.finfo(np.float64).eps * size
    return float(np.max(shares, where=differs & ~np.isnan(shares), initial=0.0))


def _at(columns: Float[np.ndarray, "N K"], places: np.ndarray) -> Float[np.ndarray, " K"]:
    return np.take_along_axis(columns, places[None], 0)[0]


#: Arrays that were looked at, by identity, with the type that they got.
_known: dict[int, tuple[weakref.ref[Any], np.dtype[Any]]] = {}


def _is_known(array: Any, kept: np.dtype[Any]) -> bool:
    known = _known.get(id(array))
    return known is not None and known[0]() is array and known[1] == kept


def _remember(array: Any, kept: np.dtype[Any]) -> None:
    if not isinstance(array, np.generic):
        # Arrays of NumPy and JAX have no hash, so the id is the key. The entry goes with the
        # array, because another may get its id.
        number = id(array)
        _known[number] = weakref.ref(array, lambda _: _known.pop(number, None)), kept


def check_callable(model: Any, host: str) -> None:
    """See that a model can be called.

    Raises
    ------
    ArgumentError
        It cannot.
    """
    if not callable(model):
        raise ArgumentError(
            f"Expected model to be a callable with {host} primitives, found {described(model)}."
        )


def named_arrays(
    model: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The arrays among a model's arguments, also those inside of containers, with their names."""
    return _arrays_in(_by_name(model, args, kwargs))


def _by_name(
    model: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """A model's arguments by its own names, where it takes them."""
    if (signature := _signature(model)) is not None:
        try:
            return signature.bind(*args, **kwargs).arguments
        except TypeError:
            pass
    return _by_position(args, kwargs)


def argument_names(model: Any, args: tuple[Any, ...]) -> list[str]:
    """Names of arguments that are given by position, as the model has them where it says."""
    signature = _signature(model)
    own = [] if signature is None else list(signature.parameters.values())
    names = [each.name for each in own if each.kind is _BY_PLACE][: len(args)]
    return [*names, *(f"args[{number}]" for number in range(len(names), len(args)))]


def _by_position(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**{f"args[{number}]": each for number, each in enumerate(args)}, **kwargs}


def _iterators_in(named: Mapping[str, Any]) -> Iterator[tuple[str, Iterator[Any]]]:
    """Iterators among values and inside of their containers; none is used up."""
    waiting, seen = deque(named.items()), set[int]()
    while waiting and len(seen) < _CONTAINERS:
        name, value = waiting.popleft()
        if isinstance(value, Iterator):
            yield name, value
        elif isinstance(value, tuple | list) and _are_numbers(value):
            continue  # often long, and nothing is in them
        elif isinstance(value, _PARTS) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(_inside(name, value))


def _arrays_in(
    named: Mapping[str, Any], *, lists: bool = False, objects: bool = True
) -> Iterator[tuple[str, Any]]:
    """Arrays of mappings, sequences, records and objects that are none of a framework's.

    With ``lists``, lists of numbers, whole numbers, columns of tables and of lists of records too,
    which arrays are made of. Objects are not looked into without ``objects``.
    """
    for name, value in named.items():
        waiting, seen, others = deque([(name, value)]), set[int](), 0
        while waiting and len(seen) < _CONTAINERS:
            name, value = waiting.popleft()
            if isinstance(value, ModuleType):
                continue  # such as torch.classes, which has every attribute
            if hasattr(value, "__array__") and hasattr(value, "shape"):
                yield name, value
                if lists or getattr(getattr(value, "dtype", None), "names", None):
                    waiting.extend(_columns_of(name, value))
            elif lists and isinstance(value, tuple | list) and _are_numbers(value):
                yield name, value
            elif lists and type(value) is int:
                yield name, value
            elif not isinstance(value, _PLAIN) and id(value) not in seen:
                is_object = not isinstance(value, _PARTS)
                others += is_object
                if is_object and (not objects or others > _OBJECTS):
                    continue
                seen.add(id(value))
                if lists and isinstance(value, tuple | list):
                    yield from _columns_of_records(name, value)
                waiting.extend(_inside(name, value))


def _columns_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Columns of a table, whatever their types, and what an array of objects holds."""
    kind = getattr(value, "dtype", None)
    if getattr(kind, "kind", "") == "O" and isinstance(value, np.ndarray):
        return ((f"{name}[{n}]", each) for n, each in enumerate(value.flat))
    columns = getattr(kind, "names", None) or getattr(value, "columns", None)
    if columns is None or not hasattr(value, "__getitem__"):
        return iter(())
    return ((f"{name}[{key!r}]", value[key]) for key in columns)


class _Column(list[Any]):
    """Numbers of a list of records under one key."""


def _columns_of_records(name: str, values: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Numbers under one key of a list of mappings or data classes."""
    if len(values) < 2:
        return
    first = values[0]
    if not isinstance(first, Mapping) and not is_dataclass(first):
        return
    if any(type(each) is not type(first) for each in values):
        return
    form = "{}[:][{!r}]" if isinstance(first, Mapping) else "{}[:].{}"
    rows = [each if isinstance(each, Mapping) else _attributes(each) for each in values]
    for key in rows[0]:
        column = [each.get(key) for each in rows]
        if _are_numbers(column):
            yield form.format(name, key), _Column(column)


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether these are numbers, or lists of them of one length."""
    if values and all(isinstance(each, tuple | list) for each in values):
        return len(set(map(len, values))) == 1 and all(map(_are_numbers, values))
    return len(values) > 0 and all(type(each) in (float, int) for each in values)


#: Containers that hold what they were given and nothing else.
_PARTS = (Mapping, tuple, list, deque, KeysView, ValuesView, ItemsView, Set)


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a container holds, with its names."""
    if isinstance(value, Mapping):
        return ((f"{name}[{key!r}]", each) for key, each in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ((f"{name}.{key}", getattr(value, key)) for key in value._fields)
    if isinstance(value, _PARTS):
        pairs = enumerate(value)
        return ((f"{name}[{n}]", each) for n, each in pairs if not isinstance(each, _PLAIN))
    if callable(value) and not is_dataclass(value):
        return iter(())  # modules and distributions, whose arrays are a framework's
    return ((f"{name}.{key}", each) for key, each in _attributes(value).items())


def _attributes(value: Any) -> dict[str, Any]:
    """What an object holds, also where its class has ``__slots__`` and no ``__dict__``."""
    slots = [key for kind in type(value).__mro__ for key in getattr(kind, "__slots__", ())]
    more = {key: getattr(value, key) for key in slots if hasattr(value, key)}
    return {**getattr(value, "__dict__", {}), **more}


def columns_as_arrays(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: Callable[[np.ndarray], Any] | None = None,
    model: Any = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A model's arguments, with columns of data frames as arrays, also those inside of containers.

    A column is what has numbers and a ``to_numpy``, as a Series of pandas and of polars, and is no
    array of a framework's. A whole data frame stays as it is: a model may take its columns by name.

    Parameters
    ----------
    args, kwargs
        A model's arguments.
    place : callable, optional
        What makes a package's array of one of NumPy, which it stays otherwise.
    model : callable, optional
        Whose names of its arguments errors have.

    Raises
    ------
    ArgumentError
        The package's precision does not hold the numbers of a column.
    """

    def each(name: str, value: Any) -> Any:
        if type(value) in (list, tuple, dict):
            pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
            made = [(key, each(f"{name}[{key!r}]", inner)) for key, inner in pairs]
            if all(new is old for (_, new), (_, old) in zip(made, pairs, strict=True)):
                return value
            return dict(made) if isinstance(value, dict) else type(value)(new for _, new in made)
        if not is_column(value):
            return value
        array = np.asarray(value.to_numpy())
        if array.dtype.kind not in "biufc":
            return value
        return array if place is None else placed_array(name, array, place)

    if not any(type(x) in (list, tuple, dict) or is_column(x) for x in (*args, *kwargs.values())):
        return args, dict(kwargs)
    by_place = tuple(map(each, argument_names(model, args), args))
    return by_place, {name: each(name, value) for name, value in kwargs.items()}


def is_column(value: Any) -> bool:
    """Whether this is a column of a data frame, of any library."""
    makes_arrays = hasattr(value, "to_numpy") and hasattr(value, "__array__")
    # Frames have columns, and arrays of xarray dimensions, which a model may take by name.
    return makes_arrays and not hasattr(value, "columns") and not hasattr(value, "dims")


#: What models ask columns of data frames for, and arrays do not have.
_OF_COLUMNS = frozenset(
    "apply astype cat codes factorize groupby iloc index loc map name nunique to_list to_numpy "
    "unique value_counts values".split()
)


class ForeignArgumentError(ArgumentError):
    """A model failed at arguments that are no arrays of its host's."""


@contextmanager
def named_if_foreign(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    own: tuple[type, ...],
    advice: str,
) -> Iterator[None]:
    """Context of a first run of a model, whose errors name arguments that may be to blame.

    They are arrays of other kinds than a host's ``own``, such as columns of a data frame: a model
    may make its own of them, or fail in the host's words. ``advice`` says how to make one.

    Raises
    ------
    ArgumentError
        The model failed, and has such arguments.
    """
    try:
        yield
    except (TypeError, AttributeError, ValueError, RuntimeError) as error:
        # Others are a model's or a distribution's own words on values, for which the type of an
        # argument is not to blame.
        words = str(error)
        method = getattr(error, "name", None) or ("values" if _OF_METHOD in words else "")
        is_other = isinstance(error, ValueError) and not any(map(words.__contains__, _WANTS_TENSOR))
        if is_other or (isinstance(error, RuntimeError) and not method):
            raise
        others = {
            name: f"{type(each).__module__.partition('.')[0]}.{type(each).__name__}{_entries(each)}"
            for name, each in named_arrays(model, args, kwargs)
            if not isinstance(each, own) or _entries(each)
        }
        others |= {
            name: "list of numbers"
            for name, each in _by_name(model, args, kwargs).items()
            if isinstance(each, list) and each and all(isinstance(n, int | float) for n in each)
        }
        if not others and method in _OF_COLUMNS:
            raise ForeignArgumentError(
                f"The model asks an array for .{method}, which a column of a data frame has. "
                "Columns come to the model as arrays. Give it the whole frame, as in fit(model, "
                f"frame), which it gets as it is, or leave .{method} out of the model."
            ) from error
        if not others:
            raise
        told = ", ".join(f"'{name}' is a {kind}" for name, kind in list(others.items())[:_NAMED])
        first = str(error).strip().partition("\n")[0].rstrip(".") + "."
        raise ForeignArgumentError(
            f"The model failed with {type(error).__name__}: {first} Argument {told}, which it may "
            f"not be made for. {advice}"
        ) from error


def _entries(array: Any) -> str:
    """Of what type the entries of an array are, where these are no numbers."""
    kind = getattr(array, "dtype", None)
    return f" of {kind}" if getattr(kind, "kind", "b") not in "biufcV" else ""


def nonfinite_arguments(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """A sentence on the arguments that hold NaN or infinity, for the end of a message.

    Empty where none does, or where that cannot be told.
    """
    found = []
    for name, value in named_arrays(model, args, kwargs):
        try:
            array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
            if array.dtype.kind not in "fc":
                continue
            broken = ~np.isfinite(array)
        except Exception:  # noqa: BLE001 a message must not fail: objects, half types, tracers
            continue
        if broken.any():
            first = [int(each) for each in np.argwhere(broken)[0]]
            found.append(f"'{name}' ({int(broken.sum())} of {broken.size}, the first at {first})")
    if not found:
        return ""
    more = f" and {len(found) - _NAMED} others" if len(found) > _NAMED else ""
    return f" NaN or infinite entries are in argument {', '.join(found[:_NAMED])}{more}."
