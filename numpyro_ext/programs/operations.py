"""What a traced program computes, in a few bytes: known before it is lowered.

Lowering takes most of the time until a program that has been compiled before is found again.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.extend.random import threefry_prng_impl
from jax.sharding import Mesh

#: Primitives that are what their programs are: the rest is rules for derivatives, taken by now.
_DIFFERENTIATED = ("custom_jvp_call", "custom_vjp_call")
#: Descriptions of operations that are numbered; beyond it numbering begins anew, with new numbers.
_MOST = 2**16

#: Its functions are those of the library.
_GENERATOR = type(threefry_prng_impl)

_numbers: dict[Hashable, int] = {}
_next = itertools.count()


class _Unknown(Exception):
    """Two programs with this in them may compute different things and look the same."""


def digest_of_program(program: Any, longest: int) -> bytes | None:
    """Digest of a traced program: of every operation, option and constant.

    Programs with the same digest compute the same, in this process.

    Parameters
    ----------
    program : ClosedJaxpr
    longest : int
        Bytes of constants that are looked at.

    Returns
    -------
    bytes or None
        None where the digest would not say all: with functions of Python inside, with values of
        another trace, with arrays of which this process has a part, and with more constants.
    """
    try:
        return _Reader(longest).read(program.jaxpr, program.consts)
    except _Unknown:
        return None


class _Reader:
    def __init__(self, longest: int) -> None:
        self._left = longest
        # JAX traces what is called twice once: one object in several places.
        self._read: dict[int, bytes] = {}

    def read(self, program: Any, constants: Iterable[Any] = ()) -> bytes:
        hashed = hashlib.blake2b(digest_size=32)
        for constant in constants:
            hashed.update(self._array(constant))
        places: dict[Any, int] = {}
        words: list[Any] = []
        for variable in (*program.constvars, *program.invars):
            places[variable] = len(places)
            words.append(_number(variable.aval))
        words.append("|")
        for operation in program.eqns:
            whole = operation.primitive.name not in _DIFFERENTIATED
            options = tuple(
                (name, self._option(value))
                for name, value in operation.params.items()
                if whole or isinstance(value, (ClosedJaxpr, Jaxpr))
            )
            kinds = tuple(variable.aval for variable in operation.outvars)
            effects = frozenset(operation.effects)
            words.append(_number((operation.primitive, operation.ctx, options, kinds, effects)))
            words += self._atoms(operation.invars, places)
            for variable in operation.outvars:
                places[variable] = len(places)
        words.append("|")
        words += self._atoms(program.outvars, places)
        # Numbers stand for descriptions, and places for variables: both mean the same in all
        # programs of this process.
        hashed.update(repr(words).encode())
        return hashed.digest()

    def _atoms(self, atoms: Iterable[Any], places: Mapping[Any, int]) -> Iterable[Any]:
        for atom in atoms:
            if isinstance(atom, Literal):
                # A number of Python's and one of an array promote others differently.
                yield _number((atom.aval, self._array(atom.val)))
            else:
                yield f"v{places[atom]}"

    def _option(self, value: Any) -> Hashable:
        if isinstance(value, ClosedJaxpr):
            return self._inner(value, value.jaxpr, value.consts)
        if isinstance(value, Jaxpr):
            return self._inner(value, value)
        if isinstance(value, (_GENERATOR, Mesh, enum.Enum, type)):
            return value
        if isinstance(value, (tuple, list)):
            return (type(value), *map(self._option, value))
        if isinstance(value, (jax.Array, np.ndarray, np.generic)):
            return self._array(value)
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            # 0.0 and -0.0, or 1 and True, are equal.
            return (type(value), repr(value))
        if callable(value) or value.__hash__ is None:
            raise _Unknown
        return value

    def _inner(self, key: Any, program: Any, constants: Iterable[Any] = ()) -> bytes:
        if id(key) not in self._read:
            self._read[id(key)] = self.read(program, constants)
        return self._read[id(key)]

    def _array(self, value: Any) -> bytes:
        if isinstance(value, jax.core.Tracer):
            raise _Unknown
        if isinstance(value, jax.Array):
            if not value.is_fully_addressable:
                raise _Unknown
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                kind = str(jax.random.key_impl(value))
                return kind.encode() + self._array(jax.random.key_data(value))
        array = np.asarray(value)
        self._left -= array.nbytes
        # Programs of longer constants are not kept, so that nobody looks for them.
        if array.dtype == object or self._left < 0:
            raise _Unknown
        hashed = hashlib.blake2b(f"{array.dtype} {array.shape}".encode(), digest_size=32)
        hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return hashed.digest()


def _number(description: Hashable) -> int:
    """The number of a description: equal ones have one, and no two others ever have the same."""
    try:
        found = _numbers.get(description)
    except TypeError as error:  # something inside has no hash
        raise _Unknown from error
    if found is None:
        if len(_numbers) >= _MOST:
            _numbers.clear()
        found = _numbers.setdefault(description, next(_next))
    return found
