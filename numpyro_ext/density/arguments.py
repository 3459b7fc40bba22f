"""The model's arguments: whether they fit its signature and its plates, and whether they can be
traced.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax import Array
from numpyro import handlers

from numpyro_ext.density.bound_model import BoundModel
from numpyro_ext.density.check import closure_error, raise_row_mismatch, structure_of_model
from numpyro_ext.density.fingerprint import check_repeatable, fingerprint
from numpyro_ext.density.first_run import InitStrategy, Structure
from numpyro_ext.density.handlers import KeyRecorder, PlateRecorder, handling, unconstraining
from numpyro_ext.density.index_use import index_use
from numpyro_ext.density.layout import Data, DataPlate, Indices
from numpyro_ext.density.start import NotDifferentiableError
from ppl_ext.arguments import check_call, columns_as_arrays
from ppl_ext.errors import ArgumentError, EvaluationWarning, ModelCheckError
from ppl_ext.target.discrete import enumeration_error, steering_error
from ppl_ext.target.fingerprint import Fingerprint

#: What JAX says where Python asks an array of many values for one.
_ONE_VALUE = ("truth value of an array", "Only scalar arrays", "Only integer scalar arrays")
#: What it says of an array of integers whose value is asked for.
_OF_INTEGERS = re.compile(r"with shape (u?int|bool)")

#: Kinds of arguments whose programs are remembered.
MAX_PROGRAMS = 256


def as_data(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    anew: bool = False,
) -> Data:
    """Arguments of one call, as they go through the door of :func:`ppl_ext.arguments.check_call`.

    Raises
    ------
    ArgumentError
        The arguments do not fit the signature of the model, or something of them would be lost.
    """
    kept = jax.dtypes.canonicalize_dtype
    args, kwargs = columns_as_arrays(args, kwargs, model=model)
    check_call(model, args, kwargs, kept, np.dtype(kept(np.dtype(np.float64))), anew=anew)
    return Data(args, kwargs)


@dataclass(frozen=True)
class Arguments:
    """What is known of the arguments of a model.

    Parameters
    ----------
    bound : BoundModel
    init_strategy : callable
    constants_reason : str or None
        Why the arguments are held as constants of the compiled program, when they are.
    placed : bool
        Whether such constants are arrays of JAX, not of NumPy.
    known_forms : set
        Signatures of arguments whose plates are known, a cache that :meth:`check_form` fills.
    programs : dict
        What the model computes of arguments of each signature, a cache that :meth:`follows` and
        :meth:`constants` fill.
    rows : dict
        Numbers of rows in arguments of each signature, a cache that :meth:`row_sizes` fills.
    """

    bound: BoundModel
    init_strategy: InitStrategy
    constants_reason: str | None = None
    placed: bool = True
    known_forms: set[Any] = field(default_factory=set)
    programs: dict[Any, Fingerprint | None] = field(default_factory=dict)
    rows: dict[Any, set[int]] = field(default_factory=dict)

    def traced_or_constant(self, data: Data) -> Arguments:
        """Trace the density once; hold the arguments as constants when tracing them fails.

        Raises
        ------
        ModelCheckError
            The density cannot be traced either way.
        """
        # What a model may raise where it needs the value of something that is traced.
        expected = (TypeError, ValueError, LookupError, AssertionError, NotImplementedError)
        try:
            _, errors = data.tried(self._look_twice, expected)
        except ModelCheckError:
            raise
        except expected as error:
            raise self._tracing_error(error) from error
        return self._held(errors[0], len(errors) == 1) if errors else self

    def tried(self, check: Callable[[Arguments], None]) -> None:
        """Check the arguments as they are, or as constants where the density has no gradient.

        A loop over a number of them has a length then, and NumPy's functions take them.

        Raises
        ------
        ModelCheckError
            The check fails at all.
        """
        try:
            check(self)
        except NotDifferentiableError as error:
            for placed in (True, False):
                with suppress(NotDifferentiableError):
                    return check(self._held(error.__cause__ or error, placed))
            raise

    def _held(self, error: BaseException, placed: bool) -> Arguments:
        """The arguments as constants, for this reason."""
        reason = f"{type(error).__name__}: " + str(error).strip().split("\n")[0]
        return replace(self, constants_reason=reason, placed=placed)

    def warn_of_constants(self) -> None:
        """Say that arguments are held as constants, if they are."""
        if self.constants_reason is not None:
            warnings.warn(
                "The model needs concrete values of its array arguments, so they are held as "
                "constants of the compiled program and new arrays mean a new compilation. The "
                f"reason: {self.constants_reason}",
                EvaluationWarning,
                stacklevel=4,
            )

    def _look_twice(self, data: Data) -> None:
        """Trace the density twice, to see that it is the same, and keep what it is.

        Raises
        ------
        ModelCheckError
            It is not.
        """
        keys = KeyRecorder()
        with handling(), keys:
            found = fingerprint(self.bound, data)
        if keys.met:
            warnings.warn(
                "The model asks for a random key (numpyro.prng_key), as dropout in train mode "
                "does. Every evaluation gets the same one, as in NumPyro's own potentials, and so "
                "uses the same draw; put the network into evaluation mode if that is not meant.",
                EvaluationWarning,
                stacklevel=5,
            )
        signature = data.signature()
        # The oldest goes, since dictionaries keep their order.
        if len(self.programs) == MAX_PROGRAMS:
            del self.programs[next(iter(self.programs))]
        self.programs[signature] = check_repeatable(self.bound, data, found)
        self.known_forms.add(signature)

    def constants(self, data: Data) -> str:
        """See :meth:`~ppl_ext.target.log_density.LogDensityShell.constants`."""
        data = self.as_evaluated(data)
        signature = data.signature()
        if signature not in self.programs:
            self.programs[signature] = fingerprint(self.bound, data)
        found = self.programs[signature]
        return "" if found is None else found.constants

    def follows(self, data: Data, look: bool) -> bool:
        """See :meth:`~ppl_ext.target.log_density.LogDensityShell.follows`."""
        data = self.as_evaluated(data)
        signature = data.signature()
        if signature not in self.programs:
            found = structure_of_model(
                self.bound.model, jax.random.key(0), data, self.init_strategy
            )
            if not self._same_structure(found, data):
                return False
            self._look_twice(data)
            return True
        known = self.programs[signature]
        if known is None or not (look or data.may_change):
            return True
        return known == fingerprint(self.bound, data)

    def _same_structure(self, found: Structure, data: Data) -> bool:
        """Whether the model asks for rows of the same plates, and has the same latent sites."""
        bound = self.bound
        own = {name: plate for name, plate in found.plates.items() if name in bound.plates}
        batches = {name: plate for name, plate in found.plates.items() if name not in own}
        if not bound.has_structure(replace(found, plates=own, batch_plates=batches)):
            return False
        # A plate that held a batch at first and whose rows are looked up now leaves them to the
        # engine.
        if self._looks_up(data, {n: (p.size, p.subsample_size) for n, p in batches.items()}):
            return False
        bound.batch_plates.update(batches)
        return True

    def _tracing_error(self, error: Exception) -> Exception:
        text = str(error).strip().split("\n")[0]
        if isinstance(error, jax.errors.TracerBoolConversionError):
            return ModelCheckError(
                f"The model uses Python control flow on a latent value, so its structure changes "
                f"with it ({text}). Use jnp.where, lax.cond or numpyro.contrib.control_flow.cond, "
                "and give the model the same latent sites on every run."
            )
        if isinstance(error, jax.errors.UnexpectedTracerError):
            return ModelCheckError(
                "The model keeps a value of one run and uses it in the next, such as a random key "
                "that it splits outside of itself or a counter of JAX's. Expected a model whose "
                "log density depends on its latent sites and its arguments alone: pass what "
                "changes as an argument."
            )
        # An array of NumPy that is indexed by traced rows fails as a latent value in NumPy does.
        if isinstance(error, jax.errors.TracerArrayConversionError):
            if self.bound.plates:
                return closure_error(self.bound.plates)
            return ModelCheckError(
                f"The model passes a latent value to NumPy, which JAX cannot differentiate "
                f"({text}). Use jax.numpy in the model."
            )
        if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
            if self.bound.enumerated and _OF_INTEGERS.search(text):
                return steering_error(self.bound.enumerated, "jnp.where", text)
            return ModelCheckError(
                f"The model needs the concrete value of a latent site ({text}). Shapes, loop "
                "lengths and Python conditions may only depend on the model's arguments."
            )
        if self.bound.enumerated:
            if any(words in text for words in _ONE_VALUE):
                return steering_error(self.bound.enumerated, "jnp.where", text)
            indexing = "numpyro.ops.indexing.Vindex(array)[..., z]"
            return enumeration_error(self.bound.enumerated, indexing, error)
        return error

    def as_evaluated(self, data: Data) -> Data:
        """The arguments as they are evaluated: traced, or as constants.

        Raises
        ------
        ArgumentError
            They have to be constants, and an outer ``jax.jit`` traces them.
        """
        if self.constants_reason is None or not data.arrays:
            return data
        if any(isinstance(array, jax.core.Tracer) for array in data.arrays):
            raise ArgumentError(
                "The model needs concrete values of its array arguments "
                f"({self.constants_reason}), but they are traced by an outer jax.jit. Close over "
                "them instead of passing them to the jitted function."
            )
        return data.as_constants(placed=self.placed)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Data:
        """Arguments of one call, checked against the model's signature and its plates.

        Raises
        ------
        ArgumentError
            They do not fit.
        """
        data = self.as_evaluated(as_data(self.bound.model, args, kwargs))
        if data.signature() not in self.known_forms:
            self.check_form(data)
        return data

    def check_form(self, data: Data) -> None:
        """Look at the plates of arguments of a new form: batches may come where all rows did.

        Raises
        ------
        ArgumentError
            When the model now leaves rows to the engine that it did not leave at first, when the
            arrays' rows do not fit a plate, or when observations are missing.
        """
        bound = self.bound
        try:
            recorder = self._recorded(data)
        except (ArgumentError, ModelCheckError):
            raise
        except (TypeError, ValueError, IndexError) as error:
            held = handlers.substitute(bound.model, data=bound.held)
            raise_row_mismatch(held, data, error, self.init_strategy)
            raise
        # A plate that has all its rows leaves no choice of them.
        fresh = {name: sizes for name, sizes in recorder.requested.items() if sizes[0] != sizes[1]}
        if used := self._looks_up(data, fresh):
            name = min(used)
            raise ArgumentError(
                f"With these arguments the model subsamples plate '{name}' (size "
                f"{fresh[name][0]}, subsample_size {fresh[name][1]}) and looks its rows up, "
                "which it did not when the engine was initialised. Initialise the engine with "
                "the arguments of a minibatch."
            )
        for name, (size, count) in fresh.items():
            bound.batch_plates[name] = DataPlate(name, size, count, -1)
        self.known_forms.add(data.signature())

    def _looks_up(self, data: Data, plates: Mapping[str, tuple[int, int]]) -> Collection[str]:
        """Which of these plates, with their sizes, have rows that the model looks up."""
        if not plates:
            return ()
        bound = self.bound
        sizes = bound.plate_sizes | {name: size for name, (size, _) in plates.items()}

        def log_joint(rows: Indices, position: Array, data: Data) -> tuple[Array, Array]:
            trace = bound.trace(position, data, {**bound.first_rows(), **rows}, sizes)
            return bound.prior_and_likelihood(trace)

        # Any rows serve: only whether the model uses their numbers is asked.
        rows = {name: np.arange(count) for name, (_, count) in plates.items()}
        position = jax.ShapeDtypeStruct((bound.layout.dim,), bound.dtype)
        return index_use(log_joint, rows, sizes, position, data)[0]

    def _recorded(self, data: Data) -> PlateRecorder:
        """The plates that the model meets with these arguments, by an evaluation of shapes."""
        bound, rows = self.bound, self.bound.first_rows()
        recorder = PlateRecorder(bound.controlled(rows))

        def look(position: Array, data: Data) -> tuple[Array, Array]:
            values = bound.layout.split(position)
            substitution = unconstraining(values, rows, set(), bound.observed_sites)
            model = handlers.substitute(recorder, substitute_fn=substitution)
            return bound.prior_and_likelihood(bound.run(model, data))

        jax.eval_shape(look, jax.ShapeDtypeStruct((bound.layout.dim,), bound.dtype), data)
        return recorder

    def row_sizes(self, data: Data) -> set[int]:
        """Numbers of rows that arguments hold: of plates, and of observed sites in none."""
        data = self.as_evaluated(data)
        found: set[int] = set()
        signature = data.signature()
        if signature in self.rows:
            return self.rows[signature]

        def look(position: Array, data: Data) -> None:
            trace = self.bound.trace(position, data, self.bound.first_rows())
            for name in self.bound.observed_sites:
                if not trace[name]["cond_indep_stack"]:
                    found.update(np.shape(trace[name]["value"])[:1])

        jax.eval_shape(look, jax.ShapeDtypeStruct((self.bound.layout.dim,), self.bound.dtype), data)
        for name, (size, rows) in self._recorded(data).sizes.items():
            found.add(size if name in self.bound.plates else rows)
        if len(self.rows) == MAX_PROGRAMS:
            del self.rows[next(iter(self.rows))]
        self.rows[signature] = found
        return found

    def partial_plates(self, data: Data) -> dict[str, tuple[int, int]]:
        """Plates that arguments hold a batch of: name to all rows, and those that are held."""
        return {
            name: (size, rows)
            for name, (size, rows) in self._recorded(self.as_evaluated(data)).sizes.items()
            if rows < size and name not in self.bound.plates
        }
