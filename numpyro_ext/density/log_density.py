"""The target: log density, score and full-data sweeps of a NumPyro program on the flat
unconstrained space (log prior with every Jacobian + N/B times the batch's log likelihood).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from numpyro_ext.density.arguments import Arguments, as_data
from numpyro_ext.density.bound_model import BoundModel
from numpyro_ext.density.check import (
    raise_invalid_parameters,
    resolve_plates,
    structure_of_model,
)
from numpyro_ext.density.evaluation import Evaluation, Score, ScoreParts
from numpyro_ext.density.first_run import (
    InitStrategy,
    as_init_strategy,
    held_without_prior,
)
from numpyro_ext.density.handlers import Trace, belongs_to_prior, is_factor, is_observation
from numpyro_ext.density.layout import Data, DataPlate, Indices, Layout
from numpyro_ext.density.outputs import Output, output_of
from numpyro_ext.density.spaces import check_values, constrain, unconstrain
from numpyro_ext.density.start import Attempt, Start
from numpyro_ext.density.sweep import sum_over_rows
from numpyro_ext.programs import Program
from ppl_ext.density import check_all_rows, nothing_to_temper
from ppl_ext.errors import ArgumentError, HeldParameterWarning
from ppl_ext.layouts import sweep_ranges
from ppl_ext.options import check_count, check_number


class LogDensity:
    """Flat unconstrained log density of a model with given arguments.

    The prior part holds every latent site with its Jacobian and the factors outside every plate;
    the likelihood part holds the observed sites and the factors inside a plate. Plate scales,
    masks and ``handlers.scale`` multiply in as in NumPyro's own ``potential_energy``.

    The methods are functions of arrays and may be called inside ``jax.jit``; called outside it
    they run compiled programs, which targets that compute the same share. Two caches grow: of
    programs, and of what :meth:`bind` has seen of arguments (``arguments.known_forms``, and the
    ``batch_plates`` that they bring).

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
    bound : BoundModel
        The model and its structure.
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
                "Expected model to be a callable with NumPyro primitives, found "
                f"{type(model).__name__}."
            )
        check_number("likelihood_temperature", likelihood_temperature)
        for name, chunk in (("particle_chunk", particle_chunk), ("data_chunk", data_chunk)):
            check_count(name, chunk, optional=True)
        self.init_strategy = as_init_strategy(init_strategy)
        self.likelihood_temperature = float(likelihood_temperature)
        self.particle_chunk = particle_chunk
        self.data_chunk = data_chunk

        data = as_data(model, args, dict(kwargs or {}))
        structure = structure_of_model(model, rng_key, data, init_strategy, engine, checked=check)
        structure = resolve_plates(
            model,
            structure,
            data,
            allow_local_latents=allow_local_latents or not check,
            engine=engine,
        )
        without = bool(getattr(model, "parameter_sites", ())) and not structure.has_likelihood
        if self.likelihood_temperature != 1.0 and without:
            raise ArgumentError(nothing_to_temper(likelihood_temperature))
        bound = BoundModel(
            model,
            structure.layout,
            structure.plates,
            structure.batch_plates,
            structure.local_sites,
            structure.observed_sites,
            structure.held,
        )
        self._assemble(Arguments(bound, self.init_strategy).traced_or_constant(data))
        if data_chunk is not None and not self.plates:
            raise ArgumentError(
                f"data_chunk={data_chunk} has nothing to divide: the model has no subsampled plate "
                "whose rows it looks up. Write the data plate as 'with numpyro.plate(name, N, "
                "subsample_size=B) as i:' and index the data by i, or leave data_chunk out."
            )
        if check:

            def judge(attempt: Attempt) -> None:
                if not attempt.valid:
                    raise_invalid_parameters(model, rng_key, data, init_strategy)

            self._start.check(rng_key, self.arguments.ready(data), judge)
        names = held_without_prior(structure)
        if names:
            warnings.warn(
                f"Parameters without a prior are held at their initial values: {', '.join(names)}. "
                "Give them a prior (numpyro.sample, or the prior argument of the random modules) "
                "to have them inferred.",
                HeldParameterWarning,
                stacklevel=2,
            )

    def _assemble(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.bound = bound = arguments.bound
        self._evaluation = Evaluation(bound, self.likelihood_temperature, self.particle_chunk)
        self._start = Start(self._evaluation, self.init_strategy)
        self._programs: dict[Any, Program] = {}
        self.model = bound.model
        self.layout: Layout = bound.layout
        self.dim: int = bound.layout.dim
        self.dtype = bound.dtype
        self.plates: dict[str, DataPlate] = bound.plates
        self.batch_plates: dict[str, DataPlate] = bound.batch_plates
        self.local_sites: tuple[str, ...] = bound.local_sites
        self.observed_sites: tuple[str, ...] = bound.observed_sites
        self.parameter_sites: tuple[str, ...] = bound.parameter_sites
        self.held: dict[str, Any] = bound.held

    @property
    def batch_arguments(self) -> bool:
        """Whether a plate is smaller than its size because a batch was passed as arguments."""
        return bool(self.batch_plates)

    @property
    def constants_reason(self) -> str | None:
        """Why the arguments are held as constants of the compiled program, when they are."""
        return self.arguments.constants_reason

    def with_held(self, held: Mapping[str, Any]) -> LogDensity:
        """The same target with other values of the ``param`` and ``mutable`` sites."""
        if set(held) != set(self.held):
            raise ArgumentError(
                f"Expected held values of {sorted(self.held)}, found {sorted(held)}."
            )
        other = copy.copy(self)
        other._assemble(replace(self.arguments, bound=replace(self.bound, held=dict(held))))
        return other

    # -- arguments ----------------------------------------------------------------------------

    def bind(self, *args: Any, **kwargs: Any) -> Data:
        """The model's arguments as :class:`Data`, checked against its signature.

        Raises
        ------
        ArgumentError
            When the model cannot be called with these arguments, or their rows do not fit its
            plates.
        """
        return self.arguments.bind(args, kwargs)

    def partial_plates(self, data: Data) -> dict[str, tuple[int, int]]:
        """Plates that arguments hold a batch of: name to all rows, and those that are held."""
        return self.arguments.partial_plates(data)

    def require_all_rows(self, data: Data, advice: str) -> None:
        """See that arguments hold every row of every plate whose rows the engine does not choose.

        ``advice`` says in the error what to do.

        Raises
        ------
        ArgumentError
            They hold a batch.
        """
        check_all_rows(self.partial_plates(data), advice)

    def first_rows(self) -> Indices:
        """Row indices of one minibatch for every plate that the model subsamples itself."""
        return self.bound.first_rows()

    # -- values and scores ----------------------------------------------------------------------

    def evaluate(
        self, position: Float[Array, " D"], data: Data, indices: Indices | None = None
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Log prior and log likelihood, two scalars, at one position (D,).

        Plain traceable code without ``vmap``, for callers that build their own derivatives.
        """
        return self._evaluation.value(data, {} if indices is None else indices, position)

    def _run(self, name: str, function: Callable[..., Any], *, rarely: bool = False) -> Program:
        if name not in self._programs:
            self._programs[name] = Program(function, rarely=rarely)
        return self._programs[name]

    def _batch(self, one: Callable[..., Any], z: Array, data: Data, indices: Indices | None) -> Any:
        run = self._run(one.__name__, partial(self._evaluation.batch, one))
        z, indices = self.bound.check_positions(z), self.bound.check_indices(indices)
        return run(z, self.arguments.ready(data), indices)

    def _full(self, one: Callable[..., Any], z: Array, data: Data) -> Any:
        if not self.plates:
            return self._batch(one, z, data, None)

        def sweep(z: Array, data: Data) -> Any:
            return self.sum_over_rows(lambda rows: self._evaluation.batch(one, z, data, rows))

        run = self._run(f"full_{one.__name__}", sweep)
        return run(self.bound.check_positions(z), self.arguments.ready(data))

    def log_prior_and_likelihood(
        self, z: Float[Array, "P D"], data: Data, indices: Indices | None = None
    ) -> tuple[Float[Array, " P"], Float[Array, " P"]]:
        """Log prior and log likelihood of a (mini)batch at positions.

        Scales, masks and Jacobians are applied, the temperature is not. ``indices`` hold the rows
        of each subsampled plate: (rows,) for all positions, or (P, rows), those of each.

        Raises
        ------
        ArgumentError
            When the model leaves its rows to the engine and ``indices`` are not given.
        """
        return self._batch(self._evaluation.value, z, data, indices)

    def log_density(
        self, z: Float[Array, "P D"], data: Data, indices: Indices | None = None
    ) -> Float[Array, " P"]:
        """Log prior + log likelihood / temperature of a (mini)batch."""
        return self._batch(self._evaluation.log_density, z, data, indices)

    def score(self, z: Float[Array, "P D"], data: Data, indices: Indices | None = None) -> Score:
        """Tempered score of one (mini)batch at positions."""
        return self._batch(self._evaluation.score, z, data, indices)

    def score_parts(
        self, z: Float[Array, "P D"], data: Data, indices: Indices | None = None
    ) -> ScoreParts:
        """Gradients of prior and likelihood apart, of one (mini)batch."""
        return self._batch(self._evaluation.parts, z, data, indices)

    # -- all rows -------------------------------------------------------------------------------

    def full_score(self, z: Float[Array, "P D"], data: Data) -> Score:
        """Exact tempered score over all rows, in chunks; the ragged tail is included."""
        return self._full(self._evaluation.score, z, data)

    def full_score_parts(self, z: Float[Array, "P D"], data: Data) -> ScoreParts:
        """Exact gradients of prior and likelihood apart, over all rows."""
        return self._full(self._evaluation.parts, z, data)

    def full_log_prior_and_likelihood(
        self, z: Float[Array, "P D"], data: Data
    ) -> tuple[Float[Array, " P"], Float[Array, " P"]]:
        """Exact log prior and log likelihood over all rows."""
        return self._full(self._evaluation.value, z, data)

    def full_log_density(self, z: Float[Array, "P D"], data: Data) -> Float[Array, " P"]:
        """Exact log prior + log likelihood / temperature over all rows."""
        return self._full(self._evaluation.log_density, z, data)

    def sweep(self, chunk: int | None = None) -> list[tuple[float, Indices]]:
        """The chunks of a full-data sweep: weights (summing to 1) and row indices.

        Several plates give the cross product of their chunks. Without a subsampled plate the
        sweep is the arguments as they are.
        """
        check_count("chunk", chunk, optional=True)
        return [
            (weight, {name: jnp.arange(rows.start, rows.stop) for name, rows in ranges.items()})
            for weight, ranges in sweep_ranges(self.plates, chunk or self.data_chunk)
        ]

    def sum_over_rows(self, function: Callable[[Indices], Any]) -> Any:
        """Weighted sum of a function of row indices over every chunk of the full data.

        The function returns a pytree of arrays and is traced once for each size of chunk.
        """
        return sum_over_rows(self.plates, self.data_chunk, function)

    # -- spaces -------------------------------------------------------------------------------

    def constrain(self, z: Float[Array, "P D"], data: Data) -> dict[str, Array]:
        """Latent sites in their supports, each (P, ...), from positions.

        Supports are those of the run itself, so a support that depends on another latent site is
        right; local latents have their full length. Programs whose parameters are deterministic
        sites (``parameter_sites``) have these as well.
        """

        def of_positions(z: Array, data: Data) -> dict[str, Array]:
            return self._evaluation.over_particles(partial(constrain, self.bound, data), z)

        run = self._run("constrain", of_positions, rarely=True)
        values = run(self.bound.check_positions(z), self.arguments.ready(data))
        return {name: values[name] for name in (*self.layout.names, *self.parameter_sites)}

    def unconstrain(self, values: Mapping[str, Array], data: Data) -> Float[Array, "P D"]:
        """Positions from constrained latent sites (P, ...): inverse of ``constrain``.

        Raises
        ------
        ArgumentError
            When a latent site is missing or has another shape.
        """

        def of_values(values: dict[str, Array], data: Data) -> Array:
            return self._evaluation.over_particles(partial(unconstrain, self.bound, data), values)

        run = self._run("unconstrain", of_values, rarely=True)
        return run(check_values(self.bound, values), self.arguments.ready(data))

    # -- starting points ----------------------------------------------------------------------

    def initial_positions(self, num: int, rng_key: Array, data: Data) -> Float[Array, "P D"]:
        """Starting positions by the init strategy, with finite density and score.

        Positions that are not finite are drawn again, up to 100 times. The density is that of
        the first rows of each subsampled plate. Best called outside ``jax.jit``: inside it the
        model is compiled once more for this alone, and positions that stay bad are returned.

        Raises
        ------
        ModelCheckError
            When no finite position is found; the message names the site at fault.
        """
        check_count("num", num)
        return self._start.positions(num, rng_key, self.arguments.ready(data))

    # -- observed distributions ---------------------------------------------------------------

    def _trace(self, z: Array, data: Data, indices: Indices | None) -> Trace:
        indices = self.bound.check_indices(indices)
        return self.bound.trace(jnp.asarray(z), self.arguments.ready(data), indices)

    def outputs(
        self, z: Float[Array, " D"], data: Data, indices: Indices | None = None
    ) -> dict[str, Output]:
        """Observed distributions at one position (D,), by site; differentiable in ``z``.

        There is no ``vmap`` inside: the caller adds its own.
        """
        trace = self._trace(z, data, indices)
        return {name: output_of(site) for name, site in trace.items() if is_observation(site)}

    def likelihood_factors(
        self, z: Float[Array, " D"], data: Data, indices: Indices | None = None
    ) -> tuple[str, ...]:
        """Names of the factors in the likelihood, which are not among :meth:`outputs`."""
        trace = self._trace(z, data, indices)
        return tuple(
            name
            for name, site in trace.items()
            if site["type"] == "sample" and is_factor(site) and not belongs_to_prior(site)
        )
