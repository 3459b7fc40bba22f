"""The target: log density, score and full-data sweeps of a NumPyro program on the flat
unconstrained space (log prior with every Jacobian + N/B times the batch's log likelihood).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from numpyro_ext.density.arguments import Arguments, as_data
from numpyro_ext.density.batches import sum_over_batches
from numpyro_ext.density.bound_model import BoundModel
from numpyro_ext.density.check import (
    check_enumeration,
    raise_invalid_parameters,
    resolve_plates,
    structure_of_model,
)
from numpyro_ext.density.evaluation import Evaluation
from numpyro_ext.density.first_run import InitStrategy, as_init_strategy, held_without_prior
from numpyro_ext.density.handlers import (
    Trace,
    belongs_to_prior,
    is_array,
    is_factor,
    is_observation,
)
from numpyro_ext.density.index_use import index_use, outputs_from
from numpyro_ext.density.layout import Data, Indices, Layout
from numpyro_ext.density.outputs import Output, output_of
from numpyro_ext.density.spaces import check_values, constrain, unconstrain
from numpyro_ext.density.start import Attempt, StartingPositions, numbers_of_key
from numpyro_ext.density.sweep import sum_over_rows
from numpyro_ext.programs import Program
from numpyro_ext.sharding import Sharding
from ppl_ext.arguments import check_callable, named_if_foreign
from ppl_ext.batches.passes import Passes
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count
from ppl_ext.target.bound_model import as_found
from ppl_ext.target.discrete import check_curvature
from ppl_ext.target.log_density import LogDensityShell, warn_of_held_parameters

_ADVICE = "Pass arrays of numbers, of JAX or NumPy, as y.to_numpy() or tensor.numpy() gives."
#: Bytes of arguments up to which they are taken to fit on one device beside all that it holds.
WHOLE_UP_TO = 2**30


Kept = TypeVar("Kept")


class LogDensity(LogDensityShell[Array, Data]):
    """Flat unconstrained log density of a model with given arguments.

    The prior part holds every latent site with its Jacobian and the factors outside every plate;
    the likelihood part holds the observed sites and the factors inside a plate. Plate scales,
    masks and ``handlers.scale`` multiply in as in NumPyro's own ``potential_energy``, but for
    Jacobians, which neither of the latter two changes.

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
    sharding : Sharding, optional
        How positions and rows are split over devices.

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

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> target = nx.LogDensity(model, jax.random.key(0), (y,))
    >>> z = jnp.array([[1.0], [2.0]])  # two positions (P, D) in unconstrained space
    >>> found = target.full_score(z, target.bind(y))
    >>> print([f"{value:.1f}" for value in found.log_density(1.0)])
    ['-9.9', '-7.9']
    >>> print(found.score[0].round())
    [4.]
    """

    bound: BoundModel
    _data_plate = "with numpyro.plate(name, N, subsample_size=B) as rows:"

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
        sharding: Sharding | None = None,
    ) -> None:
        check_callable(model, "NumPyro")
        self._set_options(
            as_init_strategy(init_strategy), likelihood_temperature, particle_chunk, data_chunk
        )
        self.sharding = sharding
        data = self._on_automatic_axes(as_data(model, args, dict(kwargs or {}), anew=True))
        with named_if_foreign(model, args, kwargs or {}, (jax.Array, np.ndarray), _ADVICE):
            structure = structure_of_model(
                model, rng_key, data, init_strategy, engine, checked=check
            )
        structure = resolve_plates(
            model,
            structure,
            data,
            allow_local_latents=allow_local_latents or not check,
            engine=engine,
        )
        bound = BoundModel(model=model, held=structure.held, **as_found(structure))
        self._assemble(Arguments(bound, self.init_strategy).traced_or_constant(data))
        self._check_options(structure.has_likelihood)
        self.sees_data = structure.sees_data
        self._are_masked = structure.are_masked
        if check:

            def judge(attempt: Attempt) -> None:
                if not attempt.valid:
                    raise_invalid_parameters(model, rng_key, data, init_strategy)

            def begin(arguments: Arguments) -> None:
                self._assemble(arguments)
                self._start.check(rng_key, arguments.as_evaluated(data), judge)

            self.arguments.tried(begin)
            check_enumeration(bound, self.arguments.as_evaluated(data))
            if sharding is None:  # positions are fewer than devices may be
                self._check_rows_apart(data)
        self.arguments.warn_of_constants()
        warn_of_held_parameters(
            held_without_prior(structure),
            "initial",
            "a prior (handlers.lift, or the prior argument of the random modules) to have them "
            "inferred",
        )

    def _assemble(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.bound = bound = arguments.bound
        self._evaluation = Evaluation(
            bound, self.likelihood_temperature, self.particle_chunk, self.sharding
        )
        self._start = StartingPositions(self._evaluation, self.init_strategy)
        self._programs: dict[Any, Program] = {}
        self._remembered: dict[str, Any] = {}
        self._set_model(bound)
        self.layout: Layout = bound.layout
        self.dtype = bound.dtype
        self.held: dict[str, Any] = bound.held

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
        bound = replace(self.bound, held=dict(held))
        # Fingerprints hold the values that are held, so those of before are of no use.
        other._assemble(replace(self.arguments, bound=bound, programs={}))
        return other

    def with_sharding(self, sharding: Sharding | None) -> LogDensity:
        """The same target with positions and rows split over devices in this way."""
        other = copy.copy(self)
        other.sharding = sharding
        other._assemble(self.arguments)
        return other

    def on_one_device(self, data: Data) -> tuple[LogDensity, Data]:
        """The target and its arguments on the first device of those that it is split over.

        In one process, and where the arguments fit (:data:`WHOLE_UP_TO`); else as they are.
        """
        size = sum(np.size(each) * np.dtype(each.dtype).itemsize for each in data.arrays)
        if self.sharding is None or self.sharding.has_processes or size > WHOLE_UP_TO:
            return self, data
        return self.with_sharding(None), data.with_arrays(self.sharding.alone(data.arrays))

    # -- arguments ----------------------------------------------------------------------------

    def bind(self, *args: Any, **kwargs: Any) -> Data:
        return self.bind_batch(args, kwargs, ragged=False)

    def bind_batch(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, ragged: bool = True
    ) -> Data:
        """A batch of a loader as :meth:`bind` makes it, also the last, with fewer rows."""
        if self.sharding is None:
            return self.arguments.bind(args, kwargs)
        data = self.arguments.bind(*self._on_automatic_axes((args, kwargs)))
        return self._with_split_rows(data, ragged)

    def _with_split_rows(self, data: Data, ragged: bool) -> Data:
        """The same arguments with their rows split over devices."""
        sizes = self.arguments.row_sizes(data) if self.sharding.rows is not None else ()
        return data.with_arrays(self.sharding.of_rows(data.arrays, sizes, ragged))

    def _on_automatic_axes(self, tree: Any) -> Any:
        return tree if self.sharding is None else self.sharding.rehomed(tree)

    def follows(self, data: Data, look: bool = True) -> bool:
        return self.arguments.follows(self._on_automatic_axes(data), look)

    def constants(self, data: Data) -> str:
        return self.arguments.constants(data)

    def partial_plates(self, data: Data) -> dict[str, tuple[int, int]]:
        return self.arguments.partial_plates(data)

    # -- values and scores --------------------------------------------------------------------

    def evaluate(
        self, z: Float[Array, " D"], data: Data, indices: Mapping[str, Array] | None = None
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return self._evaluation.value(data, dict(indices or {}), z)

    @property
    def epsilon(self) -> float:
        return float(jnp.finfo(self.dtype).eps)

    def placed(self, values: Any) -> Array:
        return jnp.asarray(values, self.dtype)

    def _must_touch(self, data: Data) -> bool:
        """Programs take long to compile: a trace tells what is not masked."""
        if self._are_masked:
            return False

        def likelihood(position: dict[str, Array], data: Data) -> Array:
            return self._evaluation.value(data, rows, position["z"])[1]

        def is_used() -> bool:
            position, arguments = {"z": jnp.zeros(self.dim, self.dtype)}, self.arguments
            return "z" in index_use(likelihood, position, {"z": 0}, arguments.as_evaluated(data))[0]

        rows = self.first_rows() if self.plates else {}
        # The same whatever the numbers are.
        return self.remembered("latent sites reach the likelihood", is_used)

    def _likelihoods(
        self, z: Float[np.ndarray, "K D"], rows: Mapping[str, np.ndarray], *data: Data
    ) -> Float[np.ndarray, " values"]:
        one = partial(self._evaluation.batch, self._evaluation.value)
        program, positions = Program(one, rarely=True), self.placed(z)
        evaluated = map(self.arguments.as_evaluated, data)
        found = [np.asarray(program(positions, each, dict(rows))[1]) for each in evaluated]
        return np.concatenate(found)

    def forget_programs(self) -> None:
        """Let go of the programs that looked for a start and at it; a network's are large."""
        self._start.forget()
        self._programs.clear()
        self._remembered.clear()

    def remembered(self, name: str, make: Callable[[], Kept]) -> Kept:
        """What was made of this target under a name, so that it is traced once for all runs.

        Made anew where all rows are those of a loader, which targets of one density may differ by.
        """
        if self.passes is not None:
            return make()
        if name not in self._remembered:
            self._remembered[name] = make()
        return self._remembered[name]

    def _run(self, name: Any, function: Callable[..., Any], *, rarely: bool = False) -> Program:
        if name not in self._programs:
            self._programs[name] = Program(function, rarely=rarely)
        return self._programs[name]

    def _batch(self, what: str, z: Array, data: Data, indices: Any) -> Any:
        run = self._run(what, partial(self._evaluation.batch, getattr(self._evaluation, what)))
        z, indices = self.bound.check_positions(z), self.bound.check_indices(indices)
        return run(z, self.arguments.as_evaluated(data), indices)

    def _full(self, what: str, z: Array, data: Data) -> Any:
        one = getattr(self._evaluation, what)
        if self.passes is not None:
            return self._over_batches(what, z, data, self.passes)
        if not self.plates:
            return self._batch(what, z, data, None)

        def sweep(z: Array, data: Data) -> Any:
            return self.sum_over_rows(lambda rows: self._evaluation.batch(one, z, data, rows))

        run = self._run(f"full_{what}", sweep)
        return run(self.bound.check_positions(z), self.arguments.as_evaluated(data))

    def _over_batches(self, what: str, z: Array, data: Data, passes: Passes) -> Any:
        one = getattr(self._evaluation, what)

        def sweep(z: Array, data: Data) -> Any:
            def of_batch(data: Data) -> Any:
                if self.sharding is not None:
                    # A callback has its values on one device.
                    data = data.with_arrays(self.sharding.whole(data.arrays))
                    data = self._with_split_rows(data, ragged=True)
                return self._evaluation.batch(one, z, data, {})

            return sum_over_batches(passes, self.arguments, data, of_batch)

        # The program reads this loader.
        run = self._run((what, id(passes)), sweep)
        return run(self.bound.check_positions(z), data)

    def sum_over_rows(self, function: Callable[[Indices], Any]) -> Any:
        """Weighted sum of a function of row indices over every chunk of the full data.

        The function returns a pytree of arrays and is traced once for each size of chunk.
        """
        return sum_over_rows(self.plates, self.data_chunk, function)

    # -- spaces -------------------------------------------------------------------------------

    def constrain(self, z: Float[Array, "P D"], data: Data) -> dict[str, Array]:
        def of_positions(z: Array, data: Data) -> dict[str, Array]:
            return self._evaluation.over_particles(partial(constrain, self.bound, data), z)

        run = self._run("constrain", of_positions, rarely=True)
        values = run(self.bound.check_positions(z), self.arguments.as_evaluated(data))
        return {name: values[name] for name in (*self.layout.names, *self.parameter_sites)}

    def value_shapes(self, data: Data) -> dict[str, tuple[int, ...]]:
        # Shapes alone, so that nothing is compiled.
        position = jax.ShapeDtypeStruct((self.dim,), self.dtype)
        one = partial(constrain, self.bound, self.arguments.as_evaluated(data))
        found = jax.eval_shape(one, position)
        return {name: tuple(found[name].shape) for name in self.layout.names}

    def unconstrain(self, values: Mapping[str, Array], data: Data) -> Float[Array, "P D"]:
        def of_values(values: dict[str, Array], data: Data) -> Array:
            return self._evaluation.over_particles(partial(unconstrain, self.bound, data), values)

        run = self._run("unconstrain", of_values, rarely=True)
        return run(check_values(self.bound, values), self.arguments.as_evaluated(data))

    # -- starting points ----------------------------------------------------------------------

    def initial_positions(self, num: int, rng_key: Array, data: Data) -> Float[Array, "P D"]:
        """Starting positions by the init strategy, with finite density and score.

        They are draws of the target's start where it has one. Positions that are not finite are
        drawn again, up to 100 times. The density is that of the first rows of each subsampled
        plate. Best called outside ``jax.jit``: inside it the model is compiled once more for this
        alone, and positions that stay bad are returned.

        Raises
        ------
        ModelCheckError
            When no finite position is found; the message names the site at fault.
        ArgumentError
            The target has a start and the key is traced.
        """
        check_count("num", num)
        if self.start is not None:
            found = self.start.positions(num, numbers_of_key(rng_key))
            return jax.device_put(found.astype(self.dtype))
        return self._start.positions(num, rng_key, self.arguments.as_evaluated(data))

    def prior_positions(self, num: int, rng_key: Array, data: Data) -> Float[Array, "P D"]:
        """Positions (P, D) of draws of the prior, by a forward run of the model for each.

        Factors have no part in them. Positions may lie where density or score is not finite.

        Raises
        ------
        NotImplementedError
            A latent site has a distribution without draws, as an improper one.
        """
        check_count("num", num)
        return self._start.from_prior(num, rng_key, self.arguments.as_evaluated(data))

    def deterministic(self, z: Float[Array, " D"], data: Data) -> dict[str, Array]:
        """Deterministic sites at one position (D,), as the host's samplers have them.

        But for those of the rows of a plate that the engine chooses, and none of programs with
        discrete latent sites, on which they may depend.
        """
        if self.bound.enumerated:
            return {}
        data, first = self.arguments.as_evaluated(data), self.first_rows()

        def computed(rows: dict[str, Array]) -> dict[str, Array]:
            return {
                name: jnp.asarray(site["value"])
                for name, site in self.bound.trace(z, data, rows).items()
                if is_array(site)
                and not any(each.name in rows for each in site["cond_indep_stack"])
            }

        found = computed(first)
        if not first:
            return found
        read = outputs_from(jax.make_jaxpr(computed)(first).jaxpr, len(first))
        # JAX has the values of a dict in the order of their names.
        of_rows = dict(zip(sorted(found), read, strict=True))
        return {name: value for name, value in found.items() if not of_rows[name]}

    # -- observed distributions ---------------------------------------------------------------

    def _trace(self, z: Array, data: Data, indices: Mapping[str, Array] | None) -> Trace:
        check_curvature(self.bound.enumerated)
        rows = self.bound.check_indices(indices)
        return self.bound.trace(jnp.asarray(z), self.arguments.as_evaluated(data), rows)

    def outputs(
        self, z: Float[Array, " D"], data: Data, indices: Indices | None = None
    ) -> dict[str, Output]:
        """Observed distributions at one position (D,), by site; differentiable in ``z``.

        There is no ``vmap`` inside: the caller adds its own.
        """
        trace = self._trace(z, data, indices)
        return {name: output_of(site) for name, site in trace.items() if is_observation(site)}

    def likelihood_factors(
        self, z: Float[Array, " D"], data: Data, indices: Mapping[str, Array] | None = None
    ) -> tuple[str, ...]:
        trace = self._trace(z, data, indices)
        return tuple(
            name
            for name, site in trace.items()
            if site["type"] == "sample" and is_factor(site) and not belongs_to_prior(site)
        )
