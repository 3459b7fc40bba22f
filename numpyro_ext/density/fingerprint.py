"""What a model computes, read from its traced log density: operations, and arrays it closes over.

Compiled programs hold such arrays as constants, and the numbers of data frames and of objects'
attributes as well. A model whose fingerprint is another than it was has to be compiled again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from numpyro_ext.density.bound_model import BoundModel
from numpyro_ext.density.handlers import Trace, is_observation
from numpyro_ext.density.layout import Data, Indices
from ppl_ext.target.families import innermost
from ppl_ext.target.fingerprint import Digest, Fingerprint, check_repeats, digest_of


def as_numpy(array: Any) -> np.ndarray:
    """Numbers of an array, or of a random key."""
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


class _Reader:
    """Reads a traced program: every operation, and every constant."""

    def __init__(self) -> None:
        self.operations, self.constants = Digest(), Digest()

    def read(self, program: Any, constants: Any = ()) -> None:
        """Read a program and those inside it."""
        for constant in constants:
            self.constants.add_array(as_numpy(constant))
        # Variables by the order in which they come up: their names differ from trace to trace.
        numbers: dict[Any, int] = {}
        for variable in (*program.constvars, *program.invars):
            numbers[variable] = len(numbers)
            self.operations.add(variable.aval)
        for operation in program.eqns:
            self.operations.add(operation.primitive.name)
            self._read_values(operation.invars, numbers)
            for name in sorted(operation.params):
                self.operations.add(name)
                self._read_option(operation.params[name])
            for variable in operation.outvars:
                numbers[variable] = len(numbers)
        self._read_values(program.outvars, numbers)

    def _read_values(self, atoms: Iterable[Any], numbers: Mapping[Any, int]) -> None:
        for atom in atoms:
            if isinstance(atom, Literal):
                self.operations.add_array(as_numpy(atom.val))
            else:
                self.operations.add(numbers[atom])

    def _read_option(self, value: Any) -> None:
        if isinstance(value, ClosedJaxpr):
            self.read(value.jaxpr, value.consts)
        elif isinstance(value, Jaxpr):
            self.read(value)
        elif isinstance(value, (tuple, list)):
            for each in value:
                self._read_option(each)
        elif isinstance(value, (jax.Array, np.ndarray)):
            self.constants.add_array(as_numpy(value))
        elif callable(value):
            # By name: functions are made anew in each trace, and what they compute is read as a
            # program.
            self.operations.add(getattr(value, "__name__", type(value).__name__))
        else:
            self.operations.add(value)


def fingerprint(bound: BoundModel, data: Data) -> Fingerprint | None:
    """What the model computes now, of arguments of this form; None while it is traced itself."""

    def density(position: Array, data: Data, rows: Indices) -> tuple[Array, Array]:
        return bound.prior_and_likelihood(bound.trace(position, data, rows))

    position = jax.ShapeDtypeStruct((bound.layout.dim,), bound.dtype)
    program = jax.make_jaxpr(density)(position, data, bound.first_rows())
    reader = _Reader()
    try:
        reader.read(program.jaxpr, program.consts)
    except jax.errors.TracerArrayConversionError:
        return None
    return Fingerprint(str(reader.operations), str(reader.constants))


def check_repeatable(
    bound: BoundModel, data: Data, first: Fingerprint | None
) -> Fingerprint | None:
    """The fingerprint, of a model that does the same when it is run again.

    None where runs differ in something that no site shows, such as a counter.

    Raises
    ------
    ModelCheckError
        It does not: it draws random numbers, or what it changes comes into its next run.
    """
    if first is None or first == fingerprint(bound, data):
        return first
    # Number by number: what is drawn while a program is traced stands in it once and for all.
    start = jnp.asarray(0.1 * np.cos(np.arange(bound.layout.dim)), bound.dtype)
    one, two = (_found(bound.trace(start, data, bound.first_rows())) for _ in range(2))
    check_repeats(one, two)
    return None


def _found(trace: Trace) -> dict[str, dict[str, np.ndarray]]:
    """What is to be compared of each sample site."""
    sites: dict[str, dict[str, np.ndarray]] = {}
    for name, site in trace.items():
        if site["type"] != "sample":
            continue
        base = innermost(site["fn"])
        # Those that were given: others are computed when they are asked for.
        found = {each: vars(base).get(each) for each in base.arg_constraints}
        if is_observation(site):
            found["observed value"] = site["value"]
        found["log density"] = site["fn"].log_prob(site["value"])
        found["scale"] = site["scale"]
        sites[name] = {
            each: as_numpy(value)
            for each, value in found.items()
            if hasattr(value, "dtype") or isinstance(value, (int, float))
        }
    return sites


def digest_of_arguments(tree: Any) -> str:
    """Digest of the numbers in arguments."""
    return digest_of(jax.tree.leaves(tree, is_leaf=callable), as_numpy)
