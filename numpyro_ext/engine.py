"""What all engines share: setting up the target, the compiled run loop, saving, and broken steps.

An engine is a thin shell with NumPyro's verbs around pure functions. It holds the options that it
was given, and, once it has met the model's arguments, one frozen :class:`Plan` of all that it
decided then. No hook writes to the engine. A subclass fills in:

``_start(plan, rng_key, data)``
    Where the algorithm starts: positions, or parameters of a guide. It alone may look at values.
``_init_algorithm(plan, start, data)``
    The algorithm's own state, any pytree of arrays.
``_step(plan, state, data)``
    The next :class:`EngineState` and the loss, or these and a dictionary of further scalar
    figures. The subclass replaces ``algorithm``, and ``estimator`` and ``rng_key`` where it used
    them; counting steps and keeping the old state when something is not finite is done here.
``_get_params(plan, state, data)``
    What ``get_params`` returns.
``_draw(plan, state, rng_key, num_samples)``
    Flat posterior draws (draws, D).

``_num_positions(plan)`` says at how many positions a step asks for scores. An engine that decides
more than the base does has a plan class with more fields, and makes it in ``_plan(target, rng_key,
data)``. ``_settings()`` may name the options that a saved state depends on and that the shapes of
its arrays do not tell, such as the kernel.

A run is one compiled loop whose trip count is an argument. On processors the first steps of small
models are taken by a program that is quickly compiled, and later ones by one that is optimised
(:class:`~numpyro_ext.programs.Loop`). Which of them takes a step depends on its number: however a
run is cut into pieces, for a progress bar, a callback or a checkpoint, the same program does every
step and the result is the same to the last bit.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Bool, Float, Int, UInt8, UInt32

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.batches import Block, Rest, placed, together
from numpyro_ext.density.fingerprint import digest_of_arguments
from numpyro_ext.density.reparameterise import moves_of, noncentred
from numpyro_ext.density.replay import out_of_bounds_at
from numpyro_ext.draws import check_key
from numpyro_ext.gradients import GradientEstimator, default_estimator
from numpyro_ext.optim import as_optimizer, kind_and_settings
from numpyro_ext.programs import Loop, Program
from numpyro_ext.sharding import (
    Call,
    Sharding,
    entry_on_own_axes,
    on_own_axes,
    verb_on_own_axes,
)
from numpyro_ext.start import GUIDE_FORM, is_guide, pieces_of, prior_of, started
from ppl_ext.arguments import entry
from ppl_ext.batches.batch import Batch
from ppl_ext.batches.passes import check_not_shared
from ppl_ext.batches.stream import Stream, check_no_arguments
from ppl_ext.engines.base import EngineShell
from ppl_ext.engines.judgement import Drawn, Judgement
from ppl_ext.engines.result import Looks, Ran
from ppl_ext.errors import ArgumentError, NonFiniteError, RankLostError
from ppl_ext.options import described
from ppl_ext.process import hold, release
from ppl_ext.running import state_files
from ppl_ext.running.best import Best
from ppl_ext.running.piece import Piece, joined
from ppl_ext.running.run import (
    LARGEST_PIECE,
    Cadence,
    check_num_steps,
    handing_over,
    take_steps,
)
from ppl_ext.running.settling import Settled, Settling, check_saved, rule_of
from ppl_ext.running.sharding import lost_rank
from ppl_ext.start.given import HOST
from ppl_ext.target.fingerprint import Digest, numbers_of


@contextmanager
def _reading(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Call]:
    """Context of a run :func:`on_own_axes` that may take its batches from a loader.

    It is read ahead while the run lasts, which is given a stream in its place.
    """
    batches = kwargs.get("batches")
    stream: AbstractContextManager[Any] = nullcontext()
    if batches is not None:
        check_no_arguments(args[3:])
        where = getattr(kwargs.get("init_state"), "batches", None)
        saved = None if where is None else bytes(np.asarray(where)).decode()
        stream = Stream(batches, placed, saved, together)
    with stream as opened, on_own_axes(args, {**kwargs, "batches": opened}) as call:
        yield call


class EngineState(NamedTuple):
    """Everything the next step needs.

    Parameters
    ----------
    algorithm : pytree
        State of the algorithm and its optimizer.
    estimator : pytree
        State of the score estimator.
    rng_key : array
        Key for the steps to come.
    step : int array
        Steps taken, skipped ones included.
    skipped : int array
        Steps that were not finite and left ``algorithm`` as it was.
    horizon : int array
        Step at which the present run ends, for schedules over a run; 0 when it is not known, as
        in a loop of ``update`` calls.
    belongs_to : uint32 array (2,)
        Digest of the engine, its settings and the model's latent sites, which other engines
        refuse.
    data : uint32 array (2,)
        Digest of the rows that ``estimator`` draws from, and of the data that it knows something
        of; with others it begins anew. Zero when it is not known, as in a state that ``jax.jit``
        has made: an estimator that knows something then begins anew outside of it.
    batches : uint8 array, optional
        The place in the loader of a run's batches after the last one, as text; None where there
        was none.
    settling : uint8 array, optional
        What a run that was broken off knows of whether it has settled; None where there was none.
    """

    algorithm: Any
    estimator: Any
    rng_key: Array
    step: Int[Array, ""]
    skipped: Int[Array, ""]
    horizon: Int[Array, ""]
    belongs_to: UInt32[Array, " 2"]
    data: UInt32[Array, " 2"]
    batches: UInt8[np.ndarray, " text"] | None = None
    settling: UInt8[np.ndarray, " bytes"] | None = None


class _Step(NamedTuple):
    """One step: the next state, the loss, further figures, and whether all of it was finite."""

    state: EngineState
    loss: Float[Array, ""]
    info: dict[str, Float[Array, ""]]
    finite: Bool[Array, ""]


class _Steps(NamedTuple):
    """``taken`` steps: the last state, the figures of each, and whether the last was finite."""

    taken: Int[Array, ""]
    state: EngineState
    losses: Float[Array, " steps"]
    info: dict[str, Float[Array, " steps"]]
    finite: Bool[Array, ""]


def key_of_draws(state: EngineState) -> Array:
    """Key for draws that nobody gave a key for: not one of those that the steps will use."""
    # With JAX's default setting ``fold_in(key, 1)`` is ``split(key)[1]``: no small number does.
    return random.fold_in(state.rng_key, 2**31 - 1)


class _RunResult(NamedTuple):
    params: dict[str, Any]
    state: EngineState
    losses: Float[np.ndarray, " steps"]
    info: dict[str, Float[np.ndarray, " steps"]]
    best: Best | None = None
    settling: Settling | None = None
    judgement: Judgement | None = None


class RunResult(Looks, _RunResult):
    """What a run leaves behind, looked at as a fit is.

    ``result["mean"]`` are the draws of a site.

    Parameters
    ----------
    params : dict
        The engine's parameters at the end (see ``get_params``).
    state : EngineState
        State at the end; a run goes on from it with ``init_state=state``.
    losses : array (steps,)
        Loss of each step of this run; NaN where a step was skipped.
    info : dict of str to array (steps,)
        Further figures of each step, such as the force norm.
    best : Best, optional
        The best state of this run, as far as its noisy figures tell; see
        :class:`~ppl_ext.running.best.Best`. ``run(..., init_state=result.best.state)`` goes on from
        it.
    settling : Settling, optional
        How settled the run is, with its figures; None where no ``until`` was given.
    judgement : Judgement, optional
        What speaks for and against the answer, in words and figures; see
        :class:`~ppl_ext.engines.judgement.Judgement`.

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
    >>> result = nx.GSM(model).run(jax.random.key(0), 200, y)
    >>> print(f"{result['mean'].mean():.0f}", list(result.predict()))
    2 ['y']
    """


Callback = Callable[[int, EngineState, Mapping[str, float]], bool | None]


@dataclass(frozen=True)
class Plan:
    """What an engine decides when it meets the model's arguments.

    The fields that are shown and compared are printed by ``repr(engine)``, and a saved state
    names them: it serves engines that have decided the same.

    Parameters
    ----------
    target : LogDensity
        The model as a log density.
    estimator : GradientEstimator
        The score estimator in use.
    keeps_state : bool
        Whether ``_step`` itself leaves the algorithm's state as it was when something is not
        finite, and says so by a loss that is not: then no old state has to be kept beside the
        new one.
    """

    target: LogDensity = field(repr=False, compare=False)
    estimator: GradientEstimator
    keeps_state: bool = field(default=False, repr=False, compare=False, kw_only=True)


@dataclass(frozen=True)
class _Bound:
    """What is known once the engine has met the model's arguments.

    Parameters
    ----------
    plan : Plan
    data : Data
        The arguments that were seen last.
    signature : object
        What of the arguments the target depends on.
    init : callable
        From where the algorithm starts, keys and data to the state before the first step.
    update : callable
        One step.
    chunk : Loop
        Many steps, which takes its state over.
    params : callable
        The parameters in a state.
    estimator : callable
        The state of an estimator that begins anew.
    memory : uint32 array (2,)
        See ``data`` of :class:`EngineState`.
    belongs_to : uint32 array (2,)
        That of the states of this plan.
    """

    plan: Plan
    data: Data
    signature: Any
    init: Program
    update: Program
    chunk: Loop
    params: Program
    estimator: Program
    memory: np.ndarray
    belongs_to: np.ndarray


class Engine(EngineShell, ABC):
    """Base of the engines.

    Parameters
    ----------
    model : callable
        NumPyro model, used as it is.
    optim : optimizer, optional
        NumPyro or optax optimizer; kept as a NumPyro one in ``self.optim``.
    estimator : GradientEstimator, optional
        How scores are computed. Default: minibatches when the model subsamples a plate itself,
        else all rows of the arguments.
    init_strategy : callable, optional
        Strategy of ``numpyro.infer``; default ``init_to_uniform``.
    likelihood_temperature : float
        The likelihood part of the log density is divided by this.
    particle_chunk, data_chunk : int, optional
        Bounds on the particles and on the rows evaluated at once.
    on_nonfinite : {"raise", "skip"}
        What to do about a step whose loss or state is not finite. The state before the step is
        kept either way: ``"raise"`` ends the run with an error that carries it, ``"skip"`` goes
        on with the next minibatch.
    sharding : Sharding, optional
        How particles, draws and rows are split over devices; see the page "Many devices". It is
        no part of what a saved state belongs to.
    reparameterise : bool
        Write sites whose scale is latent non-centred, as ``fit`` does, by the host's handlers.
        Draws hold the sites as written, beside those that stand for them. A guide is then given as
        its class, or as a function that makes it of the program. Default: not; a message of the
        logger "ppl_ext" names such sites before the first run.

    Raises
    ------
    ArgumentError
        An option is not one of those listed.
    """

    _host = "NumPyro"
    _guide_form = GUIDE_FORM
    _sharding_class = Sharding
    _estimator_class = GradientEstimator
    _first_verbs = "init, run or load"
    _noncentred = staticmethod(noncentred)
    _moves_of = staticmethod(moves_of)
    _start_of = staticmethod(started)
    _is_guide = staticmethod(is_guide)
    _digest = staticmethod(digest_of_arguments)
    _back_to_best = "run(..., init_state=result.best.state) goes on from it."
    # The option that says at how many positions a step asks for scores; None where they are one.
    _positions_option: ClassVar[str | None] = "num_particles"
    # Whether latent sites inside a subsampled plate can be carried.
    allow_local_latents = True
    # Steps of a usual run: in fewer, time that is saved in compiling must not be lost.
    _usual_steps = 2000

    def __init__(self, model: Callable[..., Any], optim: Any = None, **options: Any) -> None:
        super().__init__(model, **options)
        self.optim: Any = None if optim is None else as_optimizer(optim)

    # -- hooks --------------------------------------------------------------------------------

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> Plan:
        """What the engine decides about a target and its data, checked."""
        return Plan(target, self.estimator or default_estimator(target))

    def _settings(self) -> dict[str, str]:
        return {**super()._settings(), "optimizer": kind_and_settings(self.optim)[0]}

    def _target_options(self) -> dict[str, Any]:
        return {**super()._target_options(), "sharding": self.sharding}

    def _tuning(self) -> dict[str, str]:
        return {"settings of the optimizer": kind_and_settings(self.optim)[1]}

    @abstractmethod
    def _start(self, plan: Any, rng_key: Array, data: Data) -> Any:
        """Where the algorithm starts, checked: positions, or parameters of a guide."""

    @abstractmethod
    def _init_algorithm(self, plan: Any, start: Any, data: Data) -> Any:
        """The algorithm's state before the first step."""

    @abstractmethod
    def _step(
        self, plan: Any, state: EngineState, data: Data
    ) -> tuple[EngineState, Array] | tuple[EngineState, Array, dict[str, Array]]:
        """The next state and the loss, with further scalar figures if there are any."""

    @abstractmethod
    def _get_params(self, plan: Any, state: EngineState, data: Data) -> dict[str, Any]:
        """The parameters in a state."""

    @abstractmethod
    def _num_positions(self, plan: Any) -> int:
        """At how many positions a step asks for scores."""

    @abstractmethod
    def _draw(
        self,
        plan: Any,
        state: EngineState,
        rng_key: Array | None,
        num_samples: int | None,
    ) -> Array:
        """Flat posterior draws (draws, D)."""

    def _positions(self, plan: Any, state: EngineState) -> Array:
        """Flat positions (n, D) that move only as the state does: by them a run settles."""
        return self._draw(plan, state, random.key(0), self._draws_to_look_at(plan))

    def _to_judge(self, plan: Any, state: EngineState, number: int) -> Drawn:
        """Draws that a run is judged by, where the engine makes any so many at most."""
        positions = self._draw(plan, state, None, number if self.makes_draws else None)
        return Drawn(np.asarray(self._whole(positions)))

    def _judged(
        self,
        plan: Any,
        state: EngineState,
        data: Data,
        steps: int,
        stream: Stream | None,
        kwargs: Mapping[str, Any],
    ) -> Judgement | None:
        """What the end of a run of so many steps says of its answer.

        ``kwargs`` are the model's beside those of a loader's batches.
        """
        target = plan.target
        each = plan.estimator.evaluations_per_step(target)
        pieces = pieces_of(target)
        return self._judgement(
            plan,
            data,
            stream,
            kwargs,
            lambda own, some: pieces(own.on_device(), some),
            steps=steps,
            evaluations=steps * self._num_positions(plan) * each,
            draw=lambda number: self._to_judge(plan, state, number),
            constrain=lambda z: target.constrain(jnp.asarray(z, target.dtype), data),
            out_of_bounds=out_of_bounds_at,
            prior=lambda number: prior_of(target, number, 0, data),
        )

    # -- set up -------------------------------------------------------------------------------

    def _bind(
        self, keys: _Keys, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[_Bound, Data]:
        """The model bound to these arguments: as it is where they would only lead to the same.

        Also the arguments themselves, which inside ``jax.jit`` are not those that are kept.
        """
        data, known = Data(args, kwargs), self._known()
        if (
            known is not None
            and not known.plan.target.held
            and known.signature == data.signature()
            and (_traced(data) or known.plan.target.follows(data))
        ):
            return self._bound_with(known, args, kwargs)
        return self._bind_anew(keys, args, kwargs)

    def _bind_anew(
        self,
        keys: _Keys,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        known: _Bound | None = None,
    ) -> tuple[_Bound, Data]:
        """The same with a new target, which goes on from where the ``known`` one has come to."""
        with self._met_again(known):
            target = self._target(keys.target, args, kwargs)
        if known is not None:
            self._check_same_latents(known.plan.target, target)
            if target.held:
                target = target.with_held(known.plan.target.held)
        data = target.bind(*args, **kwargs)
        if not _traced(data):
            data = data.on_device()
        signature = Data(args, kwargs).signature()
        return self._bound_to(target, keys.start, data, signature), data

    def _target(
        self, rng_key: Array, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> LogDensity:
        """The program with these arguments as a log density."""

        def make(program: Callable[..., Any]) -> LogDensity:
            return LogDensity(
                program,
                rng_key,
                args,
                kwargs,
                allow_local_latents=self.allow_local_latents,
                engine=type(self).__name__,
                **self._target_options(),
            )

        return self._target_of(make, args, kwargs)

    def _check_moved(
        self, written: Any, moved: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if _traced(Data(args, kwargs)):
            raise ArgumentError(
                "Expected an engine with reparameterise=True to see the model's arguments "
                "outside jax.jit first, found traced ones. Call init or run with them."
            )
        super()._check_moved(written, moved, args, kwargs)

    def _bind_again(
        self,
        known: _Bound,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        look: bool = True,
        ragged: bool = False,
    ) -> tuple[_Bound, Data]:
        """The known target with these arguments, or a new one where they lead to another.

        ``look`` tells whether to look at what the model computes and at the numbers of the data,
        which takes a trace of the model; ``ragged`` whether their rows may not split evenly.
        """
        data = Data(args, kwargs)
        if _traced(data) or known.plan.target.follows(data, look):
            return self._bound_with(known, args, kwargs, look, ragged)
        return self._bind_anew(_keys(random.key(0)), args, kwargs, known)

    def _bound_with(
        self,
        known: _Bound,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        look: bool = True,
        ragged: bool = False,
    ) -> tuple[_Bound, Data]:
        plan = known.plan
        target = plan.target
        data = target.bind_batch(args, dict(kwargs)) if ragged else target.bind(*args, **kwargs)
        if _traced(data):
            return known, data
        data, memory = data.on_device(), known.memory
        if look or not _same_arrays(data, known.data):
            memory = self._memory_numbers(plan, data)
        return replace(known, data=data, memory=memory), data

    def _laid(self, plan: Plan, state: Any) -> Any:
        """A state, or a part of one, as it lies on devices between steps."""
        if self.sharding is None:
            return state
        return self.sharding.split(state, self._num_positions(plan))

    def _whole(self, tree: Any) -> Any:
        """Figures that every process is to read."""
        return tree if self.sharding is None else self.sharding.whole(tree)

    def _memory_numbers(self, plan: Plan, data: Data) -> np.ndarray:
        digest = Digest()
        digest.add(self._rows(plan), self._memory(plan, data))
        return numbers_of(str(digest))

    def _meet_again(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], held: Any) -> None:
        # Starting values that the keys are for are not asked for again.
        keys = _keys(random.key(0))
        bound, _ = self._bind(keys, args, kwargs)
        if held:
            target = bound.plan.target.with_held(held)
            bound = self._bound_to(target, keys.start, bound.data, bound.signature)
        self._bound = bound

    def _bound_to(self, target: LogDensity, rng_key: Array, data: Data, signature: Any) -> _Bound:
        plan = self._plan(target, rng_key, data)
        if self.sharding is not None and self._positions_option is not None:
            self.sharding.check_positions(self._num_positions(plan), self._positions_option)
        update = Program(partial(self._advance, plan), whole=False)
        chunk = partial(self._chunk, plan, update.jitted)
        return _Bound(
            plan,
            data,
            signature,
            Program(partial(self._initial_state, plan), rarely=True, whole=False),
            update,
            Loop(chunk, self._usual_steps, donate_argnums=(0,), whole=False),
            Program(partial(self._params, plan), rarely=True, whole=False),
            Program(partial(self._fresh_estimator, plan), rarely=True, whole=False),
            np.zeros(2, np.uint32) if _traced(data) else self._memory_numbers(plan, data),
            state_files.digest(self._header(plan)),
        )

    def _first_state(
        self, bound: _Bound, keys: _Keys, data: Data, given: Any = HOST
    ) -> EngineState:
        if given is None and (_traced(data) or _is_tracer(keys.start)):
            given = HOST  # a search looks at values
        plan = self._with_start(bound.plan, keys.start, data, given)
        start = self._start(plan, keys.start, data)
        state: EngineState = bound.init(start, keys.estimator, keys.steps, data)
        if not isinstance(state.step, jax.core.Tracer):
            bound.plan.estimator.check(state.estimator)
            state = state._replace(data=self._whole(jax.device_put(bound.memory)))
        return state

    def _with_its_data(self, bound: _Bound, state: EngineState) -> EngineState:
        """A state whose estimator begins anew if what it knows is of other data."""
        found = np.asarray(state.data)
        forgets = bound.plan.estimator.memory_of(bound.data) is None
        if np.array_equal(found, bound.memory) or (forgets and not found.any()):
            return state
        estimator = bound.estimator(state, bound.data)
        bound.plan.estimator.check(estimator)
        memory = self._whole(jax.device_put(bound.memory))
        return state._replace(estimator=estimator, data=memory)

    def _initial_state(
        self, plan: Plan, start: Any, estimator_key: Array, rng_key: Array, data: Data
    ) -> EngineState:
        number = self._num_positions(plan)
        state = EngineState(
            algorithm=self._init_algorithm(plan, start, data),
            estimator=plan.estimator.init(plan.target, data, estimator_key, number),
            rng_key=rng_key,
            step=jnp.asarray(0, jnp.int32),
            skipped=jnp.asarray(0, jnp.int32),
            horizon=jnp.asarray(0, jnp.int32),
            belongs_to=jnp.asarray(state_files.digest(self._header(plan))),
            data=jnp.zeros(2, jnp.uint32),
        )
        return self._laid(plan, jax.tree.map(_strong, state))

    def _params(self, plan: Plan, state: EngineState, data: Data) -> dict[str, Any]:
        return self._laid(plan, self._get_params(plan, state, data))

    def _fresh_estimator(self, plan: Plan, state: EngineState, data: Data) -> Any:
        """State of an estimator that begins anew in the midst of a run."""
        # With JAX's default setting ``fold_in(key, 1)`` is ``split(key)[1]``: no small number does.
        key = random.fold_in(state.rng_key, 2**31 - 5)
        fresh = plan.estimator.init(plan.target, data, key, self._num_positions(plan))
        return self._laid(plan, jax.tree.map(_strong, fresh))

    # -- one step -----------------------------------------------------------------------------

    def _advance(self, plan: Plan, state: EngineState, data: Data) -> _Step:
        """One step; when it is not finite the algorithm's state stays as it was."""
        proposed, loss, *rest = self._step(plan, state, data)
        info: dict[str, Array] = rest[0] if rest else {}
        finite = jnp.isfinite(loss)
        if plan.keeps_state:
            algorithm = jax.tree.map(_like, proposed.algorithm, state.algorithm)
        else:
            for leaf in jax.tree.leaves(proposed.algorithm):
                if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
                    # A finite loss does not tell: a gradient can overflow where the value does not.
                    finite &= jnp.isfinite(leaf).all()
            algorithm = _choose(finite, proposed.algorithm, state.algorithm)
        advanced = EngineState(
            algorithm=algorithm,
            # The estimator moves on also after a skipped step, so that the next one has other rows.
            estimator=jax.tree.map(_like, proposed.estimator, state.estimator),
            rng_key=proposed.rng_key,
            step=state.step + 1,
            skipped=state.skipped + jnp.where(finite, 0, 1).astype(state.skipped.dtype),
            horizon=state.horizon,
            belongs_to=state.belongs_to,
            data=state.data,
        )
        figures = self._whole((jnp.where(finite, loss, jnp.nan), info, finite))
        return _Step(self._laid(plan, advanced), *figures)

    def _chunk(
        self,
        plan: Plan,
        advance: Callable[..., Any],
        state: EngineState,
        data: Data | Rest,
        count: Array,
    ) -> _Steps:
        """``count`` steps; with ``on_nonfinite="raise"`` only up to the first broken one.

        ``advance`` is compiled already, so that the step is traced once for all its uses.
        """

        def data_of(step: Array) -> Data:
            return data.at(step) if isinstance(data, Rest) else data

        # The figures of a step are known by shape only when the step is traced.
        first = jax.eval_shape(data_of, jnp.asarray(0, jnp.int32))
        shown = jax.eval_shape(advance, state, first)
        # As long as the longest piece, so that one program takes pieces of all lengths.
        losses = jnp.full((LARGEST_PIECE,), jnp.nan, shown.loss.dtype)
        info = {name: jnp.zeros((LARGEST_PIECE,), each.dtype) for name, each in shown.info.items()}
        stop_when_broken = self.on_nonfinite == "raise"

        def unfinished(steps: _Steps) -> Array:
            more = steps.taken < count
            return more & steps.finite if stop_when_broken else more

        def step(steps: _Steps) -> _Steps:
            taken, state = steps.taken, steps.state
            advanced, loss, found, finite = advance(state, data_of(taken))
            losses = steps.losses.at[taken].set(loss)
            info = {name: each.at[taken].set(found[name]) for name, each in steps.info.items()}
            if stop_when_broken:
                # The whole state is kept, minibatch and key included, so that the broken step
                # can be taken again.
                kept = advanced.algorithm if plan.keeps_state else None
                advanced = _choose(
                    finite,
                    advanced if kept is None else advanced._replace(algorithm=None),
                    state if kept is None else state._replace(algorithm=None),
                )
                if kept is not None:
                    advanced = advanced._replace(algorithm=kept)
            return _Steps(taken + 1, advanced, losses, info, finite)

        start = _Steps(jnp.asarray(0, jnp.int32), state, losses, info, jnp.asarray(True))
        found: _Steps = lax.while_loop(unfinished, step, start)
        figures = (found.taken, found.losses, found.info, found.finite)
        taken, losses, info, finite = self._whole(figures)
        return _Steps(taken, self._laid(plan, found.state), losses, info, finite)

    # -- verbs --------------------------------------------------------------------------------

    @entry_on_own_axes
    def init(self, rng_key: Array, *args: Any, start: Any = None, **kwargs: Any) -> EngineState:
        """Check the model with these arguments and return the state before the first step.

        Parameters
        ----------
        rng_key : array
        *args, **kwargs
            Arguments of the model.
        start : optional
            Where a run without a state starts: "search" for Normals near the modes, "host" for the
            init strategy, a ``Start`` of ``find_start``, a fit, a dict from latent sites to
            constrained values or draws, a pair (guide, params) of the host, or an object with
            ``get_samples()``. Default: the engine's own; see the page "Where runs start".
            Inside ``jax.jit``, where values cannot be looked at: the init strategy.

        Raises
        ------
        ModelCheckError
            The model cannot be fitted; see :mod:`numpyro_ext.density.check`.
        ArgumentError
            The arguments do not fit the model, or the start does not.
        """
        check_key(rng_key)
        self._check_start(start, has_state=False)
        keys = _keys(rng_key)
        self._bound, data = self._bind(keys, args, kwargs)
        return self._first_state(self._bound, keys, data, start)

    @entry_on_own_axes
    def update(
        self, state: EngineState, *args: Any, **kwargs: Any
    ) -> tuple[EngineState, Float[Array, ""]]:
        """Take one step with these arguments of the model; return the next state and the loss.

        Pure, and may be called inside ``jax.jit``. There a step that is not finite keeps the
        algorithm's state, counts in ``state.skipped`` and has loss NaN.

        Raises
        ------
        NonFiniteError
            Outside ``jax.jit``: the step was not finite and ``on_nonfinite="raise"``.
        """
        known = self._require_bound()
        bound, data = self._bind_again(known, args, kwargs, look=False)
        self._check_state_of(bound, state)
        remembers = bound.plan.estimator.memory_of(data) is not None
        if (remembers or bound.plan is not known.plan) and not _is_tracer(state.step):
            state = self._with_its_data(bound, state)
        self._bound = bound
        # Its length changes from state to state: no program has it.
        found: _Step = bound.update(state._replace(batches=None, settling=None), data)
        if (
            self.on_nonfinite == "raise"
            and not isinstance(found.finite, jax.core.Tracer)
            and not bool(found.finite)
        ):
            raise self._nonfinite_error(int(state.step) + 1, state)
        return found.state._replace(batches=state.batches), found.loss

    @partial(entry, within=_reading)
    def run(
        self,
        rng_key: Array,
        num_steps: int,
        *args: Any,
        batches: Iterable[Any] | None = None,
        start: Any = None,
        progress_bar: bool = True,
        init_state: EngineState | None = None,
        callback: Callback | None = None,
        callback_every: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        keep_best: bool | None = None,
        until: Settled | str | None = None,
        **kwargs: Any,
    ) -> RunResult:
        """Take ``num_steps`` steps with these arguments of the model, or fewer.

        Parameters
        ----------
        rng_key : array
            Key of the whole run; not used when ``init_state`` is given.
        num_steps : int
        *args, **kwargs
            Arguments of the model.
        batches : iterable, optional
            In place of ``args``: gives a tuple of the model's arguments, or a mapping from their
            names, for each step, in epochs without end; such as a ``DataLoader``. The model's
            plate scales a batch up to all rows, ``plate("N", N, subsample_size=len(x))``. A state
            holds the place in it. See the page "Rows from iterators".
        start : optional
            Where a run without a state starts: "search" for Normals near the modes, "host" for the
            init strategy, a ``Start`` of ``find_start``, a fit, a dict from latent sites to
            constrained values or draws, a pair (guide, params) of the host, or an object with
            ``get_samples()``. Default: the engine's own; see the page "Where runs start".
        progress_bar : bool
            Show loss and rate.
        init_state : EngineState, optional
            Go on from this state, which is left intact.
        callback : callable, optional
            ``callback(i, state, info)`` every ``callback_every`` steps and after the last, with
            the number of steps taken so far and the figures of the latest; returning True ends
            the run.
        callback_every : int, optional
            Default: a hundredth of the run.
        checkpoint : path, optional
            Save the state there every ``checkpoint_every`` steps and when the run ends, before
            the callback is called. A state loaded from it and run for the remaining steps ends
            bit-identical to a run that was not interrupted.
        checkpoint_every : int, optional
            Default: a tenth of the run.
        keep_best : bool, optional
            Keep a copy of the best state so far, for ``result.best``; a checkpoint does not hold
            it. Default: where a state has at most 64 MiB.
        until : "settled" or Settled, optional
            End the run once its draws move no more, as far as their noise lets one tell; see
            :mod:`ppl_ext.running.settling`. ``num_steps`` is then the most steps, and the end of
            all schedules over a run. Each run begins anew to look.

        Returns
        -------
        RunResult

        Warns
        -----
        LostFitWarning
            The run ended far above its best.
        DoubtfulFitWarning
            Something speaks against the answer; ``result.judgement`` says what.
        UnsettledWarning
            It was to go on until it has settled, and has not in ``num_steps``.
        BatchWarning
            Steps of some batches were skipped; it names them.
        ResumeWarning
            The run cannot go on where it was in ``batches``, and begins a new epoch.

        Raises
        ------
        NonFiniteError
            A step was not finite and ``on_nonfinite="raise"``; it carries the last finite state,
            and the best one.
        ArgumentError
            ``batches`` are none of these, end before the run does, or change their form.
        """
        check_num_steps(num_steps, "the second argument of run, after the key")
        self._check_run(callback, checkpoint)
        rule = rule_of(until)
        self._check_start(start, has_state=init_state is not None)
        loader: Any = batches
        stream: Stream | None = loader
        if stream is not None:
            args, own = stream.first()
            kwargs = {**kwargs, **own}
            if self.sharding is not None:
                self.sharding.check_batch(stream.rows, self._digest((args, own)))
        reached = seen = None
        if init_state is None:
            begun = {} if start is None else {"start": start}
            state = self.init(rng_key, *args, **begun, **kwargs)
        else:
            if self._bound is None:
                bound, _ = self._bind(_keys(rng_key), args, kwargs)
            else:
                bound, _ = self._bind_again(self._bound, args, kwargs)
            self._check_state_of(bound, init_state)
            reached, seen = init_state.batches, init_state.settling
            laid = self._laid(bound.plan, init_state._replace(batches=None, settling=None))
            state = self._with_its_data(bound, laid)
            self._bound = bound
        bound = self._require_bound()
        if stream is not None:
            stream.check_target(self.target)
            self.target.check_batch(stream.first(), kwargs)
            full_data = getattr(bound.plan.estimator, "full_data", None)
            check_not_shared(stream.order.loader, full_data)
        # Of batches: the model is looked at once for each.
        forms = {bound.data.signature()}
        calls_back, saves = (callback, callback_every), (checkpoint, checkpoint_every)
        cadence = Cadence.of(int(state.step), num_steps, calls_back, saves)
        # The compiled loop takes its state over, so it gets one that nobody else holds.
        state = self._copied(bound.plan, state, np.int32(cadence.last))
        position = int(state.step)
        block: Block | None = None
        settling = self._until(rule, cadence, lambda: self._positions(bound.plan, state), seen)

        def present() -> EngineState:
            saved = None if stream is None else stream.saved()
            # A state is a tree of arrays, in which a text has no place.
            text = reached if saved is None else np.frombuffer(saved.encode(), np.uint8)
            return state._replace(
                batches=text, settling=None if settling is None else settling.saved()
            )

        def here() -> tuple[int, EngineState]:
            return int(state.step), present()

        def bind(batch: Batch) -> Data:
            return bound.plan.target.bind_batch(batch.args, {**kwargs, **batch.kwargs})

        # The step from which on the optimised program takes them, which a trace of the step tells.
        switch = bound.chunk.switch(state, bound.data) if num_steps else 0

        def take_block(stream: Stream, most: int) -> Piece:
            nonlocal bound, block, switch
            if block is None or not block.left:
                batches = stream.several(cadence.last - position)
                first = batches[0]
                data = Data(first.args, {**kwargs, **first.kwargs})
                # Batches of another number of rows are another program. The model is looked at for
                # the first one of each number.
                if data.signature() not in forms:
                    data = data.on_device()
                    given = data.args, data.kwargs
                    bound, _ = self._bind_again(bound, *given, look=False, ragged=True)
                    forms.add(data.signature())
                # A stack would have to be divided along its second axis.
                alone = first.rows != stream.rows or self.sharding is not None
                block = Block(batches, bind, 1 if alone else stream.together)
                if data.signature() != bound.data.signature():
                    self._bound = bound = replace(bound, data=block.data())
                switch = bound.chunk.switch(state, bound.data)
            return take_whole(min(most, block.left))

        def take_whole(count: int) -> Piece:
            nonlocal state, position, bound
            if self.sharding is not None:
                # Processes that are not equally quick would cut a run in other places.
                count = int(self.sharding.agreed(count, f"step {position}"))
            hold()
            try:
                data = bound.data if block is None else block.rest()
                found: _Steps = bound.chunk(position, count, switch, state, data)
                done, finite = int(found.taken), bool(found.finite)
                state = found.state
                broken = not finite and self.on_nonfinite == "raise"
                position += done
                losses = np.asarray(found.losses)[:done].copy()
                if block is not None and stream is not None:
                    # That of the last step, to which an error belongs.
                    self._bound = bound = replace(bound, data=block.data(done - 1))
                    for loss in losses[: done - broken]:
                        stream.taken(bool(np.isfinite(loss)))
                    block.take(done - broken)
            except jax.errors.JaxRuntimeError as error:
                if self.sharding is None or not self.sharding.has_processes:
                    raise
                told = lost_rank(f"step {position + count}", self.sharding.timeout, error)
                raise RankLostError(told) from error
            finally:
                release()
            if broken:
                raise self._nonfinite_error(int(state.step) + 1, present())
            # Copies: views would keep the memory of the largest piece for each to the end.
            info = {name: np.asarray(value)[:done].copy() for name, value in found.info.items()}
            return Piece(losses, info, int(state.skipped))

        def take_batches(stream: Stream, count: int) -> Piece:
            pieces: list[Piece] = []
            try:
                while count > 0:
                    pieces.append(take_block(stream, count))
                    count -= len(pieces[-1].losses)
            except BaseException as error:
                known = isinstance(error, NonFiniteError)
                stream.tell(error, 1 if block is None or known else min(count, block.left))
                raise
            return joined(pieces)

        def save() -> None:
            if checkpoint is not None:
                self.save(checkpoint, present())

        def handed_out() -> EngineState:
            # A copy, because the loop will take the state over again.
            copied = self._copied(bound.plan, state, state.horizon)
            here = present()
            return copied._replace(batches=here.batches, settling=here.settling)

        def call_back(position: int, figures: Mapping[str, float]) -> bool | None:
            return None if callback is None else callback(position, handed_out(), figures)

        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        watch = self._watch(keep_best, size, handed_out)
        found = take_steps(
            type(self).__name__,
            cadence,
            take_whole if stream is None else partial(take_batches, stream),
            state=here,
            watch=watch,
            until=settling,
            save=save,
            call_back=call_back,
            progress_bar=progress_bar,
            shown=None if stream is None else stream.shown,
        )
        asked = num_steps if int(state.step) == cadence.last else None
        best, settled = self._ended(bound.plan, found, watch, settling, asked)
        params = bound.params(state, bound.data)
        with handing_over(here):  # of Ctrl-C, or of a warning that is an error
            taken = len(found.losses)
            judgement = self._judged(bound.plan, state, bound.data, taken, stream, kwargs)
        figures = found.losses, found.info, best, settled, judgement
        result = RunResult(params, present(), *figures)
        of_run = None if stream is not None else bound
        ran = Ran(self, args, kwargs, stream is not None, int(state.step), of_run)
        vars(result)["_ran"] = ran
        return result

    def _copied(self, plan: Plan, state: EngineState, horizon: Any) -> EngineState:
        return self._laid(plan, _copy(state, horizon))

    @verb_on_own_axes
    def get_params(self, state: EngineState) -> dict[str, Any]:
        """The parameters in a state: what the engine has fitted."""
        known = self._require_bound()
        self.check_state(state)
        return known.params(state, known.data)

    @verb_on_own_axes
    def get_samples(
        self,
        state: EngineState | RunResult,
        rng_key: Array | None = None,
        num_samples: int | None = None,
    ) -> dict[str, Array]:
        """Posterior draws: latent site to constrained values, leading dimension = draws.

        The dictionary is what ``Predictive(model, posterior_samples=...)`` takes.

        Parameters
        ----------
        state : EngineState or RunResult
        rng_key : array, optional
            Key of the draws of engines that fit a guide. Default: a key derived from the state,
            so that every call gives the same draws. Particle engines do not use it.
        num_samples : int, optional
            Number of draws. Default: the engine's own; particle engines return their particles.
        """
        engine, found = self.of_run(state)
        engine.check_state(found)
        positions = engine._draw(engine.plan, found, rng_key, num_samples)
        return engine.target.constrain(positions, engine.data)

    def of_run(self, found: Any) -> tuple[Engine, Any]:
        """The engine as it was in the run of a result, and the result's state; else both as given.

        The engine may have seen other arguments since, on which curvatures, supports and densities
        depend. What comes back is a view with those of the run; this engine stays as it is.
        """
        if not isinstance(found, RunResult):
            return self, found
        ran = found._ran
        if ran is None or ran.engine is not self or ran.bound is None:
            return self, found.state
        view = object.__new__(type(self))
        vars(view).update(vars(self), _bound=ran.bound)
        return view, found.state

    def check_state(self, state: Any) -> None:
        """See that a state is one of this engine's, as far as it has a value.

        Raises
        ------
        ArgumentError
            It is not.
        """
        self._check_state_of(self._require_bound(), state)

    def _check_state_of(self, bound: _Bound, state: Any) -> None:
        if not isinstance(state, EngineState):
            raise ArgumentError(
                "Expected an EngineState, as returned by init, update, run(...).state or load, "
                f"found {described(state)}."
            )
        own, found = bound.belongs_to, state.belongs_to
        if not isinstance(found, jax.core.Tracer) and not np.array_equal(found, own):
            raise ArgumentError(
                f"Expected a state of this {type(self).__name__}, found one of another engine, of "
                "one with other settings (number of particles, kind of optimizer, kernel, guide, "
                "temperature), or of another model. Pass a state that this engine, or one made "
                "like it, has returned."
            )

    # -- saving -------------------------------------------------------------------------------

    @verb_on_own_axes
    def save(self, path: str | os.PathLike[str], state: EngineState) -> None:
        """Save a state; the file is complete or absent, never half written.

        Raises
        ------
        ArgumentError
            ``state`` is not a state of this engine.
        """
        plan = self.plan
        self.check_state(state)
        trees = {"state": _by_path(state), "held": _by_path(plan.target.held)}
        if self.sharding is None:
            state_files.save(path, self._header(plan), trees, _as_numpy)
            return
        # Every process has a part of what is written, and none goes on before it is.
        trees = jax.tree.map(self.sharding.on_host, trees)
        if self.sharding.writes:
            state_files.save(path, self._header(plan), trees, _as_numpy)
        self.sharding.agreed(0, f"the saving of step {int(state.step)}")

    @entry_on_own_axes
    def load(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> EngineState:
        """Read a saved state; a run with ``init_state`` goes on from it exactly.

        An engine that has not seen the model's arguments needs them here.

        Raises
        ------
        ArgumentError
            The file is not a saved state, or was saved by another engine, for another model or
            with other options, such as another kernel or guide.
        """
        header, trees = state_files.load(path, type(self).__name__, _from_numpy)
        # A key of the same kind as the one saved.
        with state_files.reading(path):
            keys = _keys(trees["state"][".rng_key"])
            leaves, held = dict(trees["state"]), dict(trees["held"] or {})
        bound = self._bound
        if bound is None or args or kwargs:
            bound, _ = self._bind(keys, args, kwargs)
        state_files.check(header, self._header(bound.plan))
        with state_files.reading(path):
            state_files.check_finite(
                {
                    name: ~jnp.isnan(leaf).any()
                    for name, leaf in leaves.items()
                    if name.startswith(".algorithm") and jnp.issubdtype(leaf.dtype, jnp.floating)
                }
            )
        target = bound.plan.target
        if held:
            with state_files.reading(path):
                held = _in_place("held parameters", held, target.held)
            target = target.with_held(held)
            bound = self._bound_to(target, keys.start, bound.data, bound.signature)
        template = self._first_state(bound, keys, bound.data)
        with state_files.reading(path):
            memory = np.asarray(leaves[".data"], np.uint32)
        if not np.array_equal(memory, template.data):
            if bound.plan.estimator.memory_of(bound.data) is not None:
                saved, own = (np.asarray(each).tobytes().hex() for each in (memory, template.data))
                self._check_memory(bound.plan, saved, own)
            # An order of other rows is of no use.
            fresh = {
                p: v for p, v in _by_path(template).items() if p.startswith((".estimator", ".data"))
            }
            leaves = {**leaves, **fresh}
        with state_files.reading(path):
            where, seen = leaves.pop(".batches", None), leaves.pop(".settling", None)
            seen = None if seen is None else np.asarray(seen, np.uint8)
            check_saved(seen)
            state: EngineState = _in_place("state", leaves, template)
            # Text, which lies on no device.
            text = None if where is None else np.asarray(where, np.uint8)
        self._bound = bound
        laid: EngineState = self._laid(bound.plan, state)
        return laid._replace(batches=text, settling=seen)


# -- helpers ----------------------------------------------------------------------------------


def _is_tracer(leaf: Any) -> bool:
    return isinstance(leaf, jax.core.Tracer)


def _traced(data: Data) -> bool:
    return any(map(_is_tracer, data.arrays))


def _same_arrays(one: Data, two: Data) -> bool:
    return all(a is b for a, b in zip(one.arrays, two.arrays, strict=False))


def _strong(leaf: Any) -> Array:
    # Weak types (Python scalars) would be strong after the first step, and cause a retrace.
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return jnp.asarray(leaf, dtype=leaf.dtype)


def _like(new: Any, old: Any) -> Array:
    new = jnp.asarray(new)
    return new if new.dtype == old.dtype else new.astype(old.dtype)


def _choose(condition: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda n, o: jnp.where(condition, _like(n, o), o), new, old)


@jax.jit
def _copy(state: EngineState, horizon: Any) -> EngineState:
    return jax.tree.map(jnp.copy, state._replace(horizon=horizon))


class _Keys(NamedTuple):
    """Keys of the target, of where the algorithm starts, of the estimator and of the steps."""

    target: Array
    start: Array
    estimator: Array
    steps: Array


def _split(rng_key: Array) -> _Keys:
    target_key, state_key = random.split(rng_key)
    return _Keys(target_key, *random.split(state_key, 3))


_keys = Program(_split, rarely=True)


def _by_path(tree: Any) -> dict[str, Any]:
    leaves = jax.tree.flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def _in_place(label: str, found: Mapping[str, Any], template: Any) -> Any:
    """Leaves by path in the template's structure; they must agree in path, shape and type."""

    def kinds(leaves: Mapping[str, Any]) -> dict[str, str]:
        return {path: jax.typeof(jnp.asarray(leaf)).str_short() for path, leaf in leaves.items()}

    expected = _by_path(template)
    state_files.check_leaves(label, kinds(expected), kinds(found))
    return jax.tree.unflatten(jax.tree.structure(template), [found[path] for path in expected])


def _as_numpy(leaf: Any) -> tuple[np.ndarray, dict[str, Any]]:
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        return np.asarray(random.key_data(leaf)), {"key": str(random.key_impl(leaf))}
    return np.asarray(leaf), {}


def _from_numpy(array: np.ndarray, extra: Mapping[str, Any]) -> Array:
    leaf = jnp.asarray(array)
    return random.wrap_key_data(leaf, impl=extra["key"]) if "key" in extra else leaf
