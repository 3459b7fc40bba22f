"""The target: log density, score and full-data sweeps of a NumPyro program on the flat
unconstrained space (ALGORITHMS: log prior with every Jacobian + N/B times the batch's log
likelihood).

Every method is a pure function of arrays and may be called inside ``jax.jit``; called outside it
runs a compiled program that is reused for arguments of the same shapes.
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro import handlers

from numpyro_ext.density.check import (
    check_data,
    closure_error,
    parameters_are_valid,
    raise_invalid_parameters,
    raise_row_mismatch,
    resolve_plates,
    structure_of_model,
)
from numpyro_ext.density.handlers import (
    LOG_DETERMINANT,
    FixedKey,
    PlateControl,
    PlateRecorder,
    Trace,
    belongs_to_prior,
    is_factor,
    is_observation,
    run_trace,
    site_log_prob,
    transform_of,
    unconstraining,
)
from numpyro_ext.density.index_use import index_use
from numpyro_ext.density.initialization import (
    InitStrategy,
    Structure,
    as_init_strategy,
    held_without_prior,
)
from numpyro_ext.density.layout import Data, DataPlate, Indices, Layout
from numpyro_ext.density.outputs import Output, output_of
from numpyro_ext.programs import Program
from ppl_ext.errors import (
    ArgumentError,
    EvaluationWarning,
    HeldParameterWarning,
    ModelCheckError,
)
from ppl_ext.options import check_count, check_number

#: Rows of a subsampled plate that a full-data sweep evaluates at once, unless told otherwise.
DEFAULT_DATA_CHUNK = 2048

_INITIAL_TRIES = 100  # as many as numpyro.infer.util.find_valid_initial_params makes


class Score(NamedTuple):
    """Gradient and value of the target at P positions.

    Parameters
    ----------
    score : array (P, D)
        Gradient of log prior + log likelihood / temperature.
    log_prior, log_likelihood : array (P,)
        The two parts, not tempered.
    """

    score: Array
    log_prior: Array
    log_likelihood: Array


class ScoreParts(NamedTuple):
    """Gradients of the two parts of the target at P positions, neither of them tempered.

    Parameters
    ----------
    prior, likelihood : array (P, D)
        Gradients of the log prior and the log likelihood.
    log_prior, log_likelihood : array (P,)
        Values of the two parts.
    """

    prior: Array
    likelihood: Array
    log_prior: Array
    log_likelihood: Array


class _Attempt(NamedTuple):
    """A position drawn by the init strategy.

    Parameters
    ----------
    rng_key : key
        For the next attempt.
    position : array (D,)
    finite : bool
        Whether density and score are finite there.
    valid : bool
        Whether all distributions' parameters are what they have to be.
    """

    rng_key: Array
    position: Array
    finite: Array
    valid: Array


class LogDensity:
    """Flat unconstrained log density of a model with given arguments.

    The prior part holds every latent site with its Jacobian and the factors outside every plate;
    the likelihood part holds the observed sites and the factors inside a plate. Plate scales,
    masks and ``handlers.scale`` multiply in as in NumPyro's own ``potential_energy``.

    Parameters
    ----------
    model : callable
        The NumPyro program.
    rng_key : array
        Key for the first run (initial values, parameters without a prior).
    args, kwargs
        Arguments of the model; numeric arrays are traced, everything else is static.
    init_strategy : callable, optional
        NumPyro init strategy; default ``init_to_uniform``.
    likelihood_temperature : float
        The log likelihood is divided by it.
    particle_chunk : int, optional
        How many positions are evaluated at once; default all of them.
    data_chunk : int, optional
        A full-data sweep evaluates about this many rows at once; default 2048.
    check : bool
        Run the model check first.
    allow_local_latents : bool
        Whether latent sites inside a subsampled plate are accepted.
    engine : str
        Name of the engine, for messages.

    Attributes
    ----------
    layout : Layout
    dim : int
        Length D of the flat vector.
    dtype : dtype
        float64 when JAX has 64-bit enabled, else float32.
    plates : dict of str to DataPlate
        Subsampled plates whose rows the engine chooses.
    local_sites, observed_sites : tuple of str
    batch_arguments : bool
        A plate is smaller than its size because a batch was passed as arguments.
    held : dict
        Values of ``param`` and ``mutable`` sites; they stay as they are.
    constants_reason : str or None
        Why the arguments are held as constants of the compiled program, when they are.

    Raises
    ------
    ModelCheckError
        When the model cannot be fitted; see :func:`numpyro_ext.density.check.check_model`.
    ArgumentError
        When the arguments do not fit the model's signature or an option has no meaning for it.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        rng_key: Array,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        init_strategy: InitStrategy | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        check: bool = True,
        allow_local_latents: bool = True,
        engine: str = "LogDensity",
    ) -> None:
        if not callable(model):
            raise ArgumentError(
                f"model must be a callable with NumPyro primitives; found {type(model).__name__}."
            )
        check_number("likelihood_temperature", likelihood_temperature)
        for name, chunk in (("particle_chunk", particle_chunk), ("data_chunk", data_chunk)):
            check_count(name, chunk, optional=True)
        self.model = model
        #: Deterministic sites that the program declares to be its parameters: they belong to its
        #: draws, as those of a Stan program do, whose latent site is a vector without names.
        self.parameter_sites: tuple[str, ...] = tuple(getattr(model, "parameter_sites", ()))
        self.init_strategy = as_init_strategy(init_strategy)
        self.likelihood_temperature = float(likelihood_temperature)
        self.particle_chunk = particle_chunk
        self.data_chunk = data_chunk
        self.dtype = jnp.result_type(float)
        self.constants_reason: str | None = None
        self._compiled: dict[str, Program] = {}
        self._admitted: set[Any] | None = None  # signatures of arguments whose plates are known

        data = self.bind(*args, **dict(kwargs or {}))
        if check:
            structure = check_data(
                model,
                rng_key,
                data,
                init_strategy=init_strategy,
                allow_local_latents=allow_local_latents,
                engine=engine,
            )
        else:
            structure = structure_of_model(model, rng_key, data, init_strategy, checked=False)
            structure = resolve_plates(model, structure, data)
        without = bool(self.parameter_sites) and not structure.has_likelihood
        if self.likelihood_temperature != 1.0 and without:
            raise ArgumentError(
                f"likelihood_temperature={likelihood_temperature} has nothing to divide: the model "
                "has no likelihood, that is neither observed sites nor factors inside a plate. The "
                "density of a Stan program is in one piece; temper it in the program."
            )
        self._take(structure)
        self._find_evaluation(data)
        self._admitted = {self._ready(data).signature()}
        if data_chunk is not None and not self.plates:
            raise ArgumentError(
                f"data_chunk={data_chunk} has nothing to divide: the model has no subsampled plate "
                "whose rows it looks up. Write the data plate as 'with numpyro.plate(name, N, "
                "subsample_size=B) as i:' and index the data by i, or leave data_chunk out."
            )
        if check:

            def judge(found: _Attempt) -> None:
                if not found.valid:
                    raise_invalid_parameters(model, rng_key, data, init_strategy)

            # Names the site at fault where there is no finite position.
            bits = np.asarray(_bits(rng_key))[None]
            self._finite_positions(bits, rng_key, self._ready(data), judge)
        self._warn_held(structure)

    # -- construction -------------------------------------------------------------------------

    def _take(self, structure: Structure) -> None:
        self.layout: Layout = structure.layout
        self.dim: int = structure.layout.dim
        self.plates: dict[str, DataPlate] = structure.plates
        self.batch_plates: dict[str, DataPlate] = structure.batch_plates
        self.local_sites: tuple[str, ...] = structure.local_sites
        self.observed_sites: tuple[str, ...] = structure.observed_sites
        self.batch_arguments: bool = bool(structure.batch_plates)
        self.held: dict[str, Any] = structure.held
        self._sizes = {name: plate.size for name, plate in self.plates.items()}

    def with_held(self, held: Mapping[str, Any]) -> LogDensity:
        """The same target with other values of the ``param`` and ``mutable`` sites."""
        if set(held) != set(self.held):
            raise ArgumentError(
                f"Held values must be given for {sorted(self.held)}; found {sorted(held)}."
            )
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.held = dict(held)
        other._compiled = {}
        return other

    def _find_evaluation(self, data: Data) -> None:
        """Trace the score once; hold the arguments as constants when tracing them fails."""
        position = jax.ShapeDtypeStruct((self.dim,), self.dtype)

        def attempt(data: Data) -> None:
            jax.eval_shape(
                lambda position, data: self.evaluate(position, data, self.first_rows()),
                position,
                data,
            )

        errors = (TypeError, ValueError, IndexError, AssertionError)
        try:
            attempt(data)
            return
        except ModelCheckError:
            raise
        except errors as error:
            first = error
        try:
            attempt(data.as_constants())
        except ModelCheckError:
            raise
        except errors as error:
            raise self._tracing_error(error) from error
        reason = str(first).strip().split("\n")[0]
        self.constants_reason = f"{type(first).__name__}: {reason}"
        warnings.warn(
            "The model needs concrete values of its array arguments, so they are held as constants "
            "of the compiled program and new arrays mean a new compilation. The reason: "
            f"{self.constants_reason}",
            EvaluationWarning,
            stacklevel=3,
        )

    def _tracing_error(self, error: Exception) -> Exception:
        text = str(error).strip().split("\n")[0]
        if isinstance(error, jax.errors.TracerBoolConversionError):
            return ModelCheckError(
                f"The model uses Python control flow on a latent value, so its structure changes "
                f"with it ({text}). Use jnp.where, lax.cond or numpyro.contrib.control_flow.cond, "
                "and give the model the same latent sites on every run."
            )
        if isinstance(error, jax.errors.TracerArrayConversionError):
            if self.plates:
                return closure_error(Structure(self.layout, self.plates, (), (), {}))
            return ModelCheckError(
                f"The model passes a latent value to NumPy, which JAX cannot differentiate "
                f"({text}). Use jax.numpy in the model."
            )
        if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
            return ModelCheckError(
                f"The model needs the concrete value of a latent site ({text}). Shapes, loop "
                "lengths and Python conditions may only depend on the model's arguments."
            )
        return error

    def _warn_held(self, structure: Structure) -> None:
        names = held_without_prior(structure)
        if names:
            warnings.warn(
                f"Parameters without a prior are held at their initial values: {', '.join(names)}. "
                "Give them a prior (numpyro.sample, or the prior argument of the random modules) "
                "to have them inferred.",
                HeldParameterWarning,
                stacklevel=3,
            )

    # -- arguments ----------------------------------------------------------------------------

    def bind(self, *args: Any, **kwargs: Any) -> Data:
        """The model's arguments as :class:`Data`, checked against its signature.

        Raises
        ------
        ArgumentError
            When the model cannot be called with these arguments, or their rows do not fit its
            plates.
        """
        try:
            signature = inspect.signature(self.model)
        except (TypeError, ValueError):
            signature = None
        if signature is not None:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise ArgumentError(
                    f"The model is called as model{signature}, which the arguments given do not "
                    f"fit: {error}."
                ) from error
        data = self._ready(Data(args, kwargs))
        if self._admitted is not None and data.signature() not in self._admitted:
            self._admit(data)
        return data

    def _admit(self, data: Data) -> None:
        """Look at the plates of arguments of a new form: batches may come where all rows did.

        Raises
        ------
        ArgumentError
            When the model now leaves rows to the engine that it did not leave at first, when the
            arrays' rows do not fit a plate, or when observations are missing.
        """
        assert self._admitted is not None
        try:
            recorder = self._recorded(data)
        except (ArgumentError, ModelCheckError):
            raise
        except (TypeError, ValueError, IndexError) as error:
            held = handlers.substitute(self.model, data=self.held)
            raise_row_mismatch(held, data, error, self.init_strategy)
            raise
        fresh = {name: sizes for name, sizes in recorder.requested.items() if sizes[0] != sizes[1]}
        if fresh:
            sizes = {**self._sizes, **{name: size for name, (size, _) in fresh.items()}}

            def log_joint(rows: Indices, position: Array, data: Data) -> tuple[Array, Array]:
                indices = {**self.first_rows(), **rows}
                trace = self._trace(position, data, indices, sizes)
                return _prior_and_likelihood(trace, self.dtype)

            rows = {name: np.arange(count) for name, (_, count) in fresh.items()}
            position = jax.ShapeDtypeStruct((self.dim,), self.dtype)
            used, _ = index_use(log_joint, rows, sizes, position, data)
            if used:
                name = min(used)
                raise ArgumentError(
                    f"With these arguments the model subsamples plate '{name}' (size "
                    f"{fresh[name][0]}, subsample_size {fresh[name][1]}) and looks its rows up, "
                    "which it did not when the engine was initialised. Initialise the engine with "
                    "the arguments of a minibatch."
                )
            for name, (size, count) in fresh.items():
                self.batch_plates[name] = DataPlate(name, size, count, -1)
            self.batch_arguments = True
        self._admitted.add(data.signature())

    def _recorded(self, data: Data) -> PlateRecorder:
        """The plates that the model meets with these arguments; only shapes are computed."""
        recorder = PlateRecorder(self._controlled(self.first_rows()))

        def look(position: Array, data: Data) -> Array:
            substitution = unconstraining(
                self.layout.split(position), self.first_rows(), set(), self.observed_sites
            )
            trace = run_trace(
                handlers.substitute(recorder, substitute_fn=substitution), data.args, data.kwargs
            )
            prior, likelihood = _prior_and_likelihood(trace, self.dtype)
            return prior + likelihood

        jax.eval_shape(look, jax.ShapeDtypeStruct((self.dim,), self.dtype), data)
        return recorder

    def partial_plates(self, data: Data) -> dict[str, tuple[int, int]]:
        """Plates that arguments hold a batch of: name to all rows, and those that are held."""
        return {
            name: (size, rows)
            for name, (size, rows) in self._recorded(self._ready(data)).sizes.items()
            if rows < size and name not in self.plates
        }

    def require_all_rows(self, data: Data, advice: str) -> None:
        """See that arguments hold every row of every plate whose rows the engine does not choose.

        ``advice`` says in the error what to do.

        Raises
        ------
        ArgumentError
            They hold a batch.
        """
        for name, (size, rows) in self.partial_plates(data).items():
            raise ArgumentError(
                f"Expected the full data: plate '{name}' has {size} rows, found arguments with "
                f"{rows}. {advice}"
            )

    def _ready(self, data: Data) -> Data:
        if self.constants_reason is None or not data.arrays:
            return data
        if any(isinstance(array, jax.core.Tracer) for array in data.arrays):
            raise ArgumentError(
                "The model needs concrete values of its array arguments "
                f"({self.constants_reason}), but they are traced by an outer jax.jit. Close over "
                "them instead of passing them to the jitted function."
            )
        return data.as_constants()

    def _check_indices(self, indices: Indices | None) -> Indices:
        if indices is None:
            indices = {}
        if set(indices) != set(self.plates):
            if not indices:
                names = ", ".join(f"'{name}'" for name in self.plates)
                raise ArgumentError(
                    f"The model leaves the rows of plate {names} to the engine: pass indices="
                    "{name: row numbers} for a minibatch, or use full_score, full_score_parts or "
                    "full_log_prior_and_likelihood for all rows."
                )
            raise ArgumentError(
                f"indices must name the plates {sorted(self.plates)}; found {sorted(indices)}."
            )
        checked = {}
        for name, rows in indices.items():
            rows = jnp.asarray(rows)
            whole = jnp.issubdtype(rows.dtype, jnp.integer)
            if rows.ndim not in (1, 2) or not whole or not rows.size:
                raise ArgumentError(
                    f"Indices of plate '{name}' must be a non-empty vector of integers, or one "
                    f"for each position; found shape {rows.shape}, dtype {rows.dtype}."
                )
            # A full-length set is a plate that is not subsampled: numpyro.subsample then leaves
            # the data in order, so the order of the rows must be the natural one.
            checked[name] = jnp.sort(rows) if rows.shape[-1] == self._sizes[name] else rows
        return checked

    def _check_positions(self, positions: Array) -> Array:
        positions = jnp.asarray(positions)
        if positions.ndim != 2 or positions.shape[1] != self.dim:
            raise ArgumentError(
                f"Positions must have shape (P, {self.dim}); found {positions.shape}."
            )
        return positions

    def first_rows(self) -> Indices:
        """Row indices of one minibatch for every plate that the model subsamples itself."""
        return {name: _arange(plate.subsample_size) for name, plate in self.plates.items()}

    def _all_indices(self) -> Indices:
        """All rows where local latents need them, else as few as the model asks for."""
        if not self.local_sites:
            return self.first_rows()
        return {name: _arange(plate.size) for name, plate in self.plates.items()}

    # -- one position -------------------------------------------------------------------------

    def _controlled(
        self, indices: Indices, sizes: Mapping[str, int] | None = None
    ) -> Callable[..., Any]:
        held = handlers.substitute(FixedKey(self.model), data=self.held)
        return PlateControl(held, indices, sizes or self._sizes, self.batch_plates)

    def _trace(
        self,
        position: Array,
        data: Data,
        indices: Indices,
        sizes: Mapping[str, int] | None = None,
    ) -> Trace:
        seen: set[str] = set()
        values = self.layout.split(position)
        substitution = unconstraining(values, indices, seen, self.observed_sites)
        model = handlers.substitute(self._controlled(indices, sizes), substitute_fn=substitution)
        trace = run_trace(model, data.args, data.kwargs)
        missing = [name for name in self.layout.names if name not in seen]
        if missing:
            raise ModelCheckError(
                f"Latent sample site '{missing[0]}' was there when the model was first run, but "
                "not now: its structure changes between runs. Give the model the same latent "
                "sites on every run; use jnp.where or numpyro.handlers.mask in place of Python "
                "control flow."
            )
        return trace

    def evaluate(
        self, position: Array, data: Data, indices: Indices | None = None
    ) -> tuple[Array, Array]:
        """Log prior and log likelihood, two scalars, at one position (D,).

        Plain traceable code without ``vmap``, for callers that build their own derivatives.
        """
        trace = self._trace(position, data, {} if indices is None else indices)
        return _prior_and_likelihood(trace, position.dtype)

    def _tempered(
        self, position: Array, data: Data, indices: Indices
    ) -> tuple[Array, tuple[Array, Array]]:
        prior, likelihood = self.evaluate(position, data, indices)
        if self.likelihood_temperature == 1.0:
            return prior + likelihood, (prior, likelihood)
        return prior + likelihood / self.likelihood_temperature, (prior, likelihood)

    def _score_one(self, data: Data, indices: Indices, position: Array) -> Score:
        gradient, (prior, likelihood) = jax.grad(self._tempered, has_aux=True)(
            position, data, indices
        )
        return Score(gradient, prior, likelihood)

    def _parts_one(self, data: Data, indices: Indices, position: Array) -> ScoreParts:
        (prior, likelihood), pull = jax.vjp(lambda p: self.evaluate(p, data, indices), position)
        one, zero = jnp.ones_like(prior), jnp.zeros_like(likelihood)
        (of_prior,) = pull((one, zero))
        (of_likelihood,) = pull((jnp.zeros_like(prior), jnp.ones_like(likelihood)))
        return ScoreParts(of_prior, of_likelihood, prior, likelihood)

    def _value_one(self, data: Data, indices: Indices, position: Array) -> tuple[Array, Array]:
        return self.evaluate(position, data, indices)

    # -- many positions -----------------------------------------------------------------------

    def _over_particles(self, function: Callable[[Any], Any], positions: Any) -> Any:
        count = jax.tree.leaves(positions)[0].shape[0]
        chunk = self.particle_chunk
        if chunk is None or chunk >= count:
            return jax.vmap(function)(positions)
        return lax.map(function, positions, batch_size=chunk)

    def _run(self, name: str, function: Callable[..., Any], *, rarely: bool = False) -> Program:
        if name not in self._compiled:
            self._compiled[name] = Program(function, rarely=rarely)
        return self._compiled[name]

    def _batch(
        self, one: Callable[..., Any], positions: Array, data: Data, indices: Indices
    ) -> Any:
        ranks = {rows.ndim for rows in indices.values()}
        if ranks <= {1}:
            return self._over_particles(partial(one, data, indices), positions)
        counts = {rows.shape[0] for rows in indices.values() if rows.ndim == 2}
        if ranks != {2} or counts != {len(positions)}:
            raise ArgumentError(
                "Expected indices of shape (rows,) for every plate, or of shape (P, rows) for "
                f"every plate at P = {len(positions)} positions; found "
                f"{ {name: rows.shape for name, rows in indices.items()} }."
            )
        return self._over_particles(lambda own: one(data, own[1], own[0]), (positions, indices))

    def _groups(self, chunk: int | None) -> Iterator[tuple[tuple[tuple[int, int, int], ...], int]]:
        """Chunks of the cross product of all plates, grouped by shape.

        Yields one (first row, rows per chunk, number of chunks) triple per plate, and the number
        of chunks in the group.
        """
        chunk = chunk or self.data_chunk or DEFAULT_DATA_CHUNK
        # Nested plates multiply, so that each gets its share of the rows.
        share = max(1, round(chunk ** (1.0 / max(1, len(self.plates)))))
        everything = math.prod(self._sizes.values()) <= chunk
        per_plate = []
        for plate in self.plates.values():
            rows = plate.size if everything else min(share, plate.size)
            whole, tail = divmod(plate.size, rows)
            pieces = [(0, rows, whole)]
            if tail:
                pieces.append((whole * rows, tail, 1))
            per_plate.append(pieces)
        for group in itertools.product(*per_plate):
            yield group, math.prod(count for _, _, count in group)

    def _sweep(self, one: Callable[..., Any], positions: Array, data: Data) -> Any:
        return self.sum_over_rows(lambda indices: self._batch(one, positions, data, indices))

    def sum_over_rows(self, function: Callable[[Indices], Any]) -> Any:
        """Weighted sum of a function of row indices over every chunk of the full data.

        The function returns a pytree of arrays and is traced once for each size of chunk. A chunk
        of n rows is evaluated with plate scale N/n and weighted n/N, so that sites inside
        the plate are counted once and sites outside are averaged over chunks that all agree.
        """
        total: Any = None
        for group, count in self._groups(None):
            weight = math.prod(
                rows / plate.size
                for (_, rows, _), plate in zip(group, self.plates.values(), strict=True)
            )

            def piece(number: Array | int, group: tuple[tuple[int, int, int], ...] = group) -> Any:
                indices: Indices = {}
                for name, (start, rows, pieces) in zip(self.plates, group, strict=True):
                    indices[name] = start + (number % pieces) * rows + jnp.arange(rows)
                    number = number // pieces
                return function(indices)

            if count == 1:
                part = piece(0)
            else:
                zero = jax.tree.map(
                    lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(piece, 0)
                )

                def add(
                    carry: Any, number: Array, piece: Callable[..., Any] = piece
                ) -> tuple[Any, None]:
                    return jax.tree.map(jnp.add, carry, piece(number)), None

                part, _ = lax.scan(add, zero, jnp.arange(count))
            part = jax.tree.map(lambda leaf, weight=weight: leaf * weight, part)
            total = part if total is None else jax.tree.map(jnp.add, total, part)
        return total

    def _evaluate_batch(
        self, name: str, one: Callable[..., Any], z: Array, data: Data, indices: Indices | None
    ) -> Any:
        function = self._run(name, partial(self._batch, one))
        return function(self._check_positions(z), self._ready(data), self._check_indices(indices))

    def _evaluate_full(self, name: str, one: Callable[..., Any], z: Array, data: Data) -> Any:
        if not self.plates:
            return self._evaluate_batch(name, one, z, data, None)
        function = self._run(f"full_{name}", partial(self._sweep, one))
        return function(self._check_positions(z), self._ready(data))

    def log_prior_and_likelihood(
        self, z: Array, data: Data, indices: Indices | None = None
    ) -> tuple[Array, Array]:
        """Log prior and log likelihood of a (mini)batch at positions (P, D), each (P,).

        Scales, masks and Jacobians are applied, the temperature is not. ``indices`` hold the rows
        of each subsampled plate: (rows,) for all positions, or (P, rows), those of each.

        Raises
        ------
        ArgumentError
            When the model leaves its rows to the engine and ``indices`` are not given.
        """
        return self._evaluate_batch("value", self._value_one, z, data, indices)

    def log_density(self, z: Array, data: Data, indices: Indices | None = None) -> Array:
        """Log prior + log likelihood / temperature of a (mini)batch, shape (P,)."""
        prior, likelihood = self.log_prior_and_likelihood(z, data, indices)
        return prior + likelihood / self.likelihood_temperature

    def score(self, z: Array, data: Data, indices: Indices | None = None) -> Score:
        """Tempered score of one (mini)batch at positions (P, D)."""
        return self._evaluate_batch("score", self._score_one, z, data, indices)

    def score_parts(self, z: Array, data: Data, indices: Indices | None = None) -> ScoreParts:
        """Gradients of prior and likelihood apart, of one (mini)batch."""
        return self._evaluate_batch("parts", self._parts_one, z, data, indices)

    def full_score(self, z: Array, data: Data) -> Score:
        """Exact tempered score over all rows, in chunks; the ragged tail is included."""
        return self._evaluate_full("score", self._score_one, z, data)

    def full_score_parts(self, z: Array, data: Data) -> ScoreParts:
        """Exact gradients of prior and likelihood apart, over all rows."""
        return self._evaluate_full("parts", self._parts_one, z, data)

    def full_log_prior_and_likelihood(self, z: Array, data: Data) -> tuple[Array, Array]:
        """Exact log prior and log likelihood over all rows."""
        return self._evaluate_full("value", self._value_one, z, data)

    def sweep(self, chunk: int | None = None) -> list[tuple[float, Indices]]:
        """The chunks of a full-data sweep: weights (summing to 1) and row indices.

        Several plates give the cross product of their chunks. Without a subsampled plate the
        sweep is the arguments as they are.
        """
        if chunk is not None and chunk < 1:
            raise ArgumentError(f"chunk must be a positive integer or None; found {chunk}.")
        chunks: list[tuple[float, Indices]] = []
        for group, _ in self._groups(chunk):
            weight = math.prod(
                rows / plate.size
                for (_, rows, _), plate in zip(group, self.plates.values(), strict=True)
            )
            starts = [range(s, s + rows * count, rows) for s, rows, count in group]
            for firsts in itertools.product(*starts):
                indices = {
                    name: jnp.arange(first, first + rows)
                    for name, first, (_, rows, _) in zip(self.plates, firsts, group, strict=True)
                }
                chunks.append((weight, indices))
        return chunks

    # -- spaces -------------------------------------------------------------------------------

    def _constrain_one(self, data: Data, position: Array) -> dict[str, Array]:
        trace = self._trace(position, data, self._all_indices())
        return {name: trace[name]["value"] for name in (*self.layout.names, *self.parameter_sites)}

    def constrain(self, z: Array, data: Data) -> dict[str, Array]:
        """Latent sites in their supports, each (P, ...), from positions (P, D).

        Supports are those of the run itself, so a support that depends on another latent site is
        right; local latents have their full length. Programs whose parameters are deterministic
        sites (``parameter_sites``) have these as well.
        """

        def constrain(positions: Array, data: Data) -> dict[str, Array]:
            return self._over_particles(partial(self._constrain_one, data), positions)

        run = self._run("constrain", constrain, rarely=True)
        values = run(self._check_positions(z), self._ready(data))
        return {name: values[name] for name in (*self.layout.names, *self.parameter_sites)}

    def _unconstrained(self, trace: Trace) -> Array:
        sites = {
            name: transform_of(trace[name]).inv(trace[name]["value"]) for name in self.layout.names
        }
        for name, value in sites.items():
            if jnp.shape(value) != self.layout.shapes[name]:
                raise ArgumentError(
                    f"Site '{name}' has unconstrained shape {self.layout.shapes[name]}; found "
                    f"{jnp.shape(value)}."
                )
        return self.layout.join(sites).astype(self.dtype)

    def _unconstrain_one(self, data: Data, values: dict[str, Array]) -> Array:
        model = handlers.substitute(self._controlled(self._all_indices()), data=values)
        return self._unconstrained(run_trace(model, data.args, data.kwargs))

    def unconstrain(self, values: Mapping[str, Array], data: Data) -> Array:
        """Positions (P, D) from constrained latent sites (P, ...): inverse of ``constrain``.

        Raises
        ------
        ArgumentError
            When a latent site is missing or has another shape.
        """
        missing = [name for name in self.layout.names if name not in values]
        if missing:
            raise ArgumentError(
                f"Values are needed for the latent sites {list(self.layout.names)}; missing "
                f"{missing}."
            )
        given = {name: jnp.asarray(values[name]) for name in self.layout.names}

        def unconstrain(values: dict[str, Array], data: Data) -> Array:
            return self._over_particles(partial(self._unconstrain_one, data), values)

        return self._run("unconstrain", unconstrain, rarely=True)(given, self._ready(data))

    # -- starting points ----------------------------------------------------------------------

    def _draw_one(self, data: Data, rng_key: Array) -> Trace:
        seeded = handlers.seed(self._controlled(self._all_indices()), rng_key)
        model = handlers.substitute(seeded, substitute_fn=self.init_strategy)
        return run_trace(model, data.args, data.kwargs)

    def _attempt(self, rng_key: Array, data: Data) -> _Attempt:
        rng_key = random.split(rng_key, 1)[0]
        trace = self._draw_one(data, rng_key)
        position = self._unconstrained(trace)
        found = self._score_one(data, self.first_rows(), position)
        finite = jnp.isfinite(found.log_prior + found.log_likelihood)
        finite &= jnp.isfinite(found.score).all()
        return _Attempt(rng_key, position, finite, parameters_are_valid(trace))

    def initial_positions(self, num: int, rng_key: Array, data: Data) -> Array:
        """Starting positions (num, D) by the init strategy, with finite density and score.

        Positions that are not finite are drawn again, up to 100 times. The density is that of
        the first rows of each subsampled plate. With traced arguments, positions that stay bad
        are returned as they are.

        Raises
        ------
        ModelCheckError
            When no finite position is found; the message names the site at fault.
        """
        check_count("num", num)
        data = self._ready(data)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((rng_key, data))):
            return self._initial_positions_traced(random.split(rng_key, num), data)
        split = Program(lambda key: _bits(random.split(key, num)), rarely=True)
        return jax.device_put(self._finite_positions(np.asarray(split(rng_key)), rng_key, data))

    def _finite_positions(
        self,
        keys: Any,
        like: Array,
        data: Data,
        judge: Callable[[_Attempt], None] | None = None,
    ) -> Any:
        """One position for each row of ``keys``, the bits of keys as ``like``.

        One after another, so that one program serves any number of them.
        """
        kind = random.key_impl(like) if _is_typed(like) else None

        def attempt(bits: Array, data: Data) -> _Attempt:
            key = bits if kind is None else random.wrap_key_data(bits, impl=kind)
            found = self._attempt(key, data)
            return found._replace(rng_key=_bits(found.rng_key))

        program = self._run(f"attempt {kind}", attempt, rarely=True)
        positions = np.empty((len(keys), self.dim), self.dtype)
        for row, bits in enumerate(keys):
            for _ in range(_INITIAL_TRIES):
                found: _Attempt = program(bits, data)
                if judge is not None:
                    judge(found)
                if found.finite:
                    break
                bits = found.rng_key
            else:
                raise self._nowhere_finite(found.position, data)
            positions[row] = found.position
        return positions

    def _initial_positions_traced(self, keys: Array, data: Data) -> Array:
        attempt = jax.vmap(partial(self._attempt, data=data))

        def unfinished(carry: tuple[Array, Array, Array, Array]) -> Array:
            tries, _, _, finite = carry
            return (tries < _INITIAL_TRIES) & ~finite.all()

        def again(
            carry: tuple[Array, Array, Array, Array],
        ) -> tuple[Array, Array, Array, Array]:
            tries, keys, positions, finite = carry
            fresh = attempt(keys)
            positions = jnp.where(finite[:, None], positions, fresh.position)
            return tries + 1, fresh.rng_key, positions, finite | fresh.finite

        start = jnp.zeros((len(keys), self.dim), self.dtype)
        nowhere = jnp.zeros(len(keys), bool)
        return lax.while_loop(unfinished, again, (jnp.asarray(0), keys, start, nowhere))[2]

    def _nowhere_finite(self, position: Array, data: Data) -> ModelCheckError:
        indices = self.first_rows()
        log_probs = self._run("site_log_probs", self._log_probs, rarely=True)(
            position, data, indices
        )
        faults = [
            f"'{n}' (log density {float(v)})"
            for n, v in log_probs.items()
            if not bool(jnp.isfinite(v))
        ]
        if faults:
            where = f"log density is not finite at site {', '.join(faults)}"
        else:
            score = self.score(position[None], data, indices or None).score[0]
            sites = [
                n for n, v in self.layout.split(score).items() if not bool(jnp.isfinite(v).all())
            ]
            where = "gradient is not finite at latent site " + ", ".join(f"'{s}'" for s in sites)
        return ModelCheckError(
            "Cannot find valid initial parameters. Please check your model again. After "
            f"{_INITIAL_TRIES} draws of the init strategy the {where}. Look for NaN or values "
            "outside the support in the data, or start elsewhere with init_strategy, for example "
            "numpyro.infer.init_to_median or init_to_value(values=...)."
        )

    def _log_probs(self, position: Array, data: Data, indices: Indices) -> dict[str, Array]:
        return _site_log_probs(self._trace(position, data, indices))

    # -- observed distributions ---------------------------------------------------------------

    def outputs(self, z: Array, data: Data, indices: Indices | None = None) -> dict[str, Output]:
        """Observed distributions at one position (D,), by site; differentiable in ``z``.

        There is no ``vmap`` inside: the caller adds its own.
        """
        trace = self._trace(jnp.asarray(z), self._ready(data), self._check_indices(indices))
        return {name: output_of(site) for name, site in trace.items() if is_observation(site)}

    def likelihood_factors(
        self, z: Array, data: Data, indices: Indices | None = None
    ) -> tuple[str, ...]:
        """Names of the factors in the likelihood, which are not among :meth:`outputs`."""
        trace = self._trace(jnp.asarray(z), self._ready(data), self._check_indices(indices))
        return tuple(
            name
            for name, site in trace.items()
            if site["type"] == "sample" and is_factor(site) and not belongs_to_prior(site)
        )


def _arange(count: int) -> Array:
    """The first row numbers, without a compiled program for each number of rows."""
    return jax.device_put(np.arange(count))


def _is_typed(rng_key: Array) -> bool:
    return jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key)


def _bits(rng_key: Array) -> Array:
    return random.key_data(rng_key) if _is_typed(rng_key) else rng_key


def _prior_and_likelihood(trace: Trace, dtype: Any) -> tuple[Array, Array]:
    prior = likelihood = jnp.zeros((), dtype)
    for site in trace.values():
        if site["type"] != "sample":
            continue
        if belongs_to_prior(site):
            prior = prior + site_log_prob(site)
        else:
            likelihood = likelihood + site_log_prob(site)
    return prior, likelihood


def _site_log_probs(trace: Trace) -> dict[str, Array]:
    log_probs: dict[str, Array] = {}
    for name, site in trace.items():
        if site["type"] != "sample":
            continue
        label = site["infer"].get(LOG_DETERMINANT, name)
        log_probs[label] = log_probs.get(label, jnp.zeros(())) + site_log_prob(site)
    return log_probs
