"""Shapes and arguments: the flat unconstrained vector as sites, and the model's arguments as a
pytree whose arrays are traced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from ppl_ext.errors import ModelCheckError
from ppl_ext.target.layouts import DataPlate, FlatLayout

__all__ = ["Data", "DataPlate", "Indices", "Layout"]

Indices = dict[str, Array]
Found = TypeVar("Found")

#: Entries from which on a vector's memory is worth more than a short program.
LONG = 2**18


class Layout(FlatLayout):
    """The flat layout of latent sites, for JAX arrays."""

    def split(self, flat: Float[Array, "*P D"]) -> dict[str, Array]:
        """Split ``flat`` of shape (..., D) into sites of shape (..., *site shape)."""
        # In one operation, whose gradient joins the sites' once; a slice's gradient is a vector of
        # zeros around it, one of length D for each site.
        flat = jnp.asarray(flat)
        lead = flat.shape[:-1]
        pieces = lax.split(flat, list(self.sizes.values()), axis=flat.ndim - 1)
        return {
            name: jnp.reshape(piece, lead + self.shapes[name])
            for name, piece in zip(self.names, pieces, strict=True)
        }

    def join(self, sites: Mapping[str, Array]) -> Float[Array, "*P D"]:
        """Inverse of :meth:`split`: sites of shape (..., *site shape) to (..., D)."""
        pieces = []
        for name in self.names:
            value = jnp.asarray(sites[name])
            lead = value.shape[: value.ndim - len(self.shapes[name])]
            pieces.append(jnp.reshape(value, (*lead, self.sizes[name])))
        alike = len({(piece.dtype, piece.shape[:-1]) for piece in pieces}) == 1
        if self.dim > LONG and alike:
            return _joined_in_place(pieces)
        return jnp.concatenate(pieces, axis=-1)


def _joined_in_place(pieces: list[Array]) -> Array:
    """Long vectors of one type joined along their last axis, each written over zeros in its place.

    What a vector is computed by is then done while it is written. XLA joins vectors in one loop
    over the entries of all on processors, which is many times as slow, or copies each once more.
    """
    *lead, _ = pieces[0].shape
    length = sum(piece.shape[-1] for piece in pieces)
    joined = jnp.zeros((*lead, length), pieces[0].dtype)
    # A place that the compiler does not know: it would make it a concatenation again.
    start = lax.optimization_barrier(jnp.asarray(0, jnp.int32))
    for piece in pieces:
        joined = lax.dynamic_update_slice_in_dim(joined, piece, start, joined.ndim - 1)
        start += piece.shape[-1]
    return joined


_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, type)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, *_FUNCTIONS)


class _Static:
    """A static argument: compared by value when it is hashable, by identity otherwise.

    Callable objects other than functions are compared by identity: modules and distributions
    often hash and compare through the arrays that they hold.
    """

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._hash: int | None = None
        if not callable(value) or isinstance(value, _FUNCTIONS):
            try:
                self._hash = hash((type(value), value))
            except TypeError:
                self._hash = None

    def __hash__(self) -> int:
        return id(self.value) if self._hash is None else self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static):
            return NotImplemented
        if self.value is other.value:
            return True
        if self._hash is None or self._hash != other._hash:
            return False
        return type(self.value) is type(other.value) and bool(self.value == other.value)


class _Constant:
    """An array held as a constant of the compiled program, compared by its contents."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any, placed: bool) -> None:
        # A copy: the caller may write to the array, and the digest would no longer be that of the
        # contents.
        contents = np.array(value)
        contents.flags.writeable = False
        digest = hashlib.blake2b(contents.tobytes(), digest_size=16).digest()
        self._key = (contents.shape, contents.dtype.str, digest, placed)
        self.value = jax.device_put(contents) if placed else contents

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant):
            return NotImplemented
        return self._key == other._key


class _Auxiliary(NamedTuple):
    treedef: Any
    entries: tuple[_Static | _Constant | None, ...]  # None: the leaf is a traced child


def _is_jax(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array)


def _is_numeric(leaf: Any) -> bool:
    if _is_jax(leaf):
        return True
    return isinstance(leaf, np.ndarray) and bool(
        jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == np.bool_
    )


@jax.tree_util.register_pytree_node_class
class Data:
    """The model's arguments as the engine sees them: a pytree.

    Numeric arrays anywhere in ``args`` and ``kwargs`` are the pytree's children, so that new
    arrays of the same shape never cause a retrace. Everything else (Python and NumPy scalars,
    strings, arrays of names and dates, callables, modules, data frames) is static: a new value
    means a new program. Values that cannot be hashed are compared by identity.

    Parameters
    ----------
    args : tuple
        Positional arguments of the model.
    kwargs : dict, optional
        Keyword arguments of the model.
    constants : bool
        Hold the arrays as constants of the compiled program, for models that need concrete
        values, such as ``len(np.unique(group))``.
    placed : bool
        Constants are arrays of JAX, in which a model may look traced rows up. Else they are
        NumPy's, of which a model may compute a length, as ``int(group.max()) + 1``: of constants
        of its own JAX traces that.
    """

    __slots__ = ("_arrays", "_auxiliary")

    def __init__(
        self,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        constants: bool = False,
        placed: bool = True,
    ) -> None:
        # Callables whole: modules are pytrees, and their parameters are no arguments that are
        # traced.
        leaves, treedef = jax.tree.flatten((tuple(args), dict(kwargs or {})), is_leaf=callable)
        arrays: list[Any] = []
        entries: list[_Static | _Constant | None] = []
        for leaf in leaves:
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "USMm":
                entries.append(_Constant(leaf, placed=False))
            elif not _is_numeric(leaf):
                entries.append(_Static(leaf))
            # NumPy cannot hold keys, so that there are no contents to compare them by.
            elif constants and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                entries.append(_Static(leaf))
            elif constants:
                entries.append(_Constant(leaf, placed))
            else:
                entries.append(None)
                arrays.append(leaf)
        self._arrays = tuple(arrays)
        self._auxiliary = _Auxiliary(treedef, tuple(entries))

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        arrays = iter(self._arrays)
        leaves = [next(arrays) if e is None else e.value for e in self._auxiliary.entries]
        return jax.tree.unflatten(self._auxiliary.treedef, leaves)

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments of the model."""
        return self._arguments()[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the model."""
        return self._arguments()[1]

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The traced arrays, in pytree order."""
        return self._arrays

    def as_constants(self, *, placed: bool = True) -> Data:
        """The same arguments with every array held as a constant of the program."""
        return Data(self.args, self.kwargs, constants=True, placed=placed)

    def forms(self) -> Iterator[Data]:
        """The same arguments, in the order in which a model is tried with them.

        Traced, then as constants of JAX, then as constants of NumPy.
        """
        yield self
        yield self.as_constants()
        yield self.as_constants(placed=False)

    def tried(
        self, look: Callable[[Data], Found], expected: tuple[type[Exception], ...]
    ) -> tuple[Found, list[Exception]]:
        """What ``look`` finds of the first form at which it does not fail, and its errors before.

        Raises
        ------
        Exception
            It fails at all, as it does with constants of JAX: these fail for what the model itself
            does, and not for their kind.
        """
        errors = list[Exception]()
        for form in self.forms():
            try:
                return look(form), errors
            except ModelCheckError:
                raise
            except expected as error:
                errors.append(error)
        raise errors[1]

    def on_device(self) -> Data:
        """The same arguments with NumPy arrays moved to JAX arrays."""
        # Not by jnp.asarray, which compiles a program for each new shape.
        return jax.tree.map(lambda leaf: leaf if _is_jax(leaf) else jax.device_put(leaf), self)

    def with_arrays(self, arrays: tuple[Any, ...]) -> Data:
        """The same arguments with other arrays of the same shapes."""
        return Data.tree_unflatten(self._auxiliary, arrays)

    @property
    def may_change(self) -> bool:
        """Whether an argument is an object that may change without being seen from outside."""
        return any(
            isinstance(entry, _Static) and not isinstance(entry.value, _PLAIN)
            for entry in self._auxiliary.entries
        )

    def signature(self) -> tuple[Any, ...]:
        """What a compiled program depends on: statics, array shapes and dtypes (hashable)."""
        shapes = tuple((jnp.shape(a), str(jnp.result_type(a))) for a in self._arrays)
        return (self._auxiliary, shapes)

    def tree_flatten(self) -> tuple[tuple[Any, ...], _Auxiliary]:
        """Children (arrays) and auxiliary data (structure and statics)."""
        return self._arrays, self._auxiliary

    @classmethod
    def tree_unflatten(cls, auxiliary: _Auxiliary, arrays: Any) -> Data:
        """Inverse of :meth:`tree_flatten`."""
        data = object.__new__(cls)
        data._arrays = tuple(arrays)
        data._auxiliary = auxiliary
        return data

    def __repr__(self) -> str:
        args, kwargs = self._arguments()
        return f"Data(args={args!r}, kwargs={kwargs!r})"
