"""What all engines share: setting up the target, the compiled run loop, saving, and broken steps.

An engine is a thin shell with NumPyro's verbs around pure functions. It holds the options that it
was given, and, once it has met the model's arguments, one frozen :class:`Plan` of all that it
decided then. No hook writes to the engine. A subclass fills in four, all of them traceable by JAX:

``_init_algorithm(plan, rng_key, data)``
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

A run is one compiled loop whose trip count is an argument: however a run is cut into pieces, for
a progress bar, a callback or a checkpoint, the same program does every step and the result is the
same to the last bit.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro import optim as numpyro_optim
from numpyro.util import is_prng_key
from tqdm.auto import tqdm

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.gradients import GradientEstimator, default_estimator
from ppl_ext.errors import ArgumentError, NonFiniteError
from ppl_ext.options import check_count, decisions, describe, described, is_count, options_of

FORMAT = 1
ON_NONFINITE = ("raise", "skip")

# Steps per call of the compiled loop at most: the length of its loss buffer.
_BUFFER = 4096
# Seconds that one call of the loop should take, so that the bar moves and Ctrl-C is heard.
_CALL_SECONDS = 0.2


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
    """

    algorithm: Any
    estimator: Any
    rng_key: Array
    step: Array
    skipped: Array
    horizon: Array


def key_of_draws(state: EngineState) -> Array:
    """Key for draws that nobody gave a key for: not one of those that the steps will use."""
    # With JAX's default setting ``fold_in(key, 1)`` is ``split(key)[1]``: no small number does.
    return random.fold_in(state.rng_key, 2**31 - 1)


class RunResult(NamedTuple):
    """What a run leaves behind.

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
    """

    params: dict[str, Any]
    state: EngineState
    losses: np.ndarray
    info: dict[str, np.ndarray]


Callback = Callable[[int, EngineState, Mapping[str, float]], bool | None]


def as_optimizer(optim: Any) -> Any:
    """A NumPyro optimizer from a NumPyro or an optax one.

    Raises
    ------
    ArgumentError
        For anything else, and for optimizers that evaluate the objective themselves.
    """
    if isinstance(optim, numpyro_optim.Minimize):
        raise ArgumentError(
            "numpyro.optim.Minimize evaluates its objective several times a step, but the engines "
            "give it only a direction. Use another NumPyro optimizer, such as Adam, or optax's."
        )
    if isinstance(optim, numpyro_optim._NumPyroOptim):
        return optim
    methods = [getattr(optim, name, None) for name in ("init", "update")]
    if all(map(callable, methods)) and not isinstance(optim, type):
        return numpyro_optim.optax_to_numpyro(optim)
    raise ArgumentError(
        "optim must be a NumPyro optimizer, such as numpyro.optim.Adam(1e-2), or an optax gradient "
        f"transformation, such as optax.adam(1e-2); found "
        f"{optim.__name__ if isinstance(optim, type) else type(optim).__name__}."
    )


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
class _Meeting:
    """What is known once the engine has met the model's arguments.

    Parameters
    ----------
    plan : Plan
    data : Data
        The arguments that were seen last.
    signature : object
        What of the arguments the target depends on.
    update, chunk : callable
        The compiled steps.
    """

    plan: Plan
    data: Data
    signature: Any
    update: Callable[..., Any]
    chunk: Callable[..., Any]


class Engine(ABC):
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

    Raises
    ------
    ArgumentError
        An option is not one of those listed.
    """

    # Whether latent sites inside a subsampled plate can be carried.
    allow_local_latents = True

    def __init__(
        self,
        model: Callable[..., Any],
        optim: Any = None,
        *,
        estimator: GradientEstimator | None = None,
        init_strategy: Callable[..., Any] | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        on_nonfinite: str = "raise",
    ) -> None:
        if on_nonfinite not in ON_NONFINITE:
            raise ArgumentError(
                f"on_nonfinite must be one of {ON_NONFINITE}; found {on_nonfinite!r}."
            )
        if estimator is not None and not isinstance(estimator, GradientEstimator):
            raise ArgumentError(
                "estimator must be a GradientEstimator, such as Minibatch() or Full(); found "
                f"{type(estimator).__name__}."
            )
        self.model = model
        self.optim: Any = None if optim is None else as_optimizer(optim)
        self.on_nonfinite = on_nonfinite
        self.estimator = estimator
        self.init_strategy = init_strategy
        self.likelihood_temperature = likelihood_temperature
        self.particle_chunk = particle_chunk
        self.data_chunk = data_chunk
        self._meeting: _Meeting | None = None

    def __repr__(self) -> str:
        shown = [f"{name}={describe(value)}" for name, value in options_of(self).items()]
        if self._meeting is not None:
            shown.append(f"plan={self._meeting.plan!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    # -- hooks --------------------------------------------------------------------------------

    def _plan(self, target: LogDensity, rng_key: Array, data: Data) -> Plan:
        """What the engine decides about a target and its data, checked."""
        return Plan(target, self.estimator or default_estimator(target))

    @abstractmethod
    def _init_algorithm(self, plan: Any, rng_key: Array, data: Data) -> Any:
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

    def _settings(self) -> dict[str, str]:
        """Options that a saved state belongs to, described so that any process says the same."""
        return {"likelihood_temperature": repr(float(self.likelihood_temperature))}

    # -- set up -------------------------------------------------------------------------------

    @property
    def plan(self) -> Any:
        """The :class:`Plan`: what the engine decided about the model and its arguments.

        Raises
        ------
        RuntimeError
            The engine has not seen the model's arguments yet.
        """
        return self._met().plan

    @property
    def target(self) -> LogDensity:
        """The model as a log density; as :attr:`plan`."""
        return self._met().plan.target

    @property
    def data(self) -> Data:
        """The arguments that ``init``, ``run`` or ``load`` saw last; as :attr:`plan`."""
        return self._met().data

    def _met(self) -> _Meeting:
        if self._meeting is None:
            raise RuntimeError(
                f"{type(self).__name__} has not seen the model's arguments yet. Call init or run "
                "with them first, or load(path, *args)."
            )
        return self._meeting

    def _meet(
        self, rng_key: Array, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[_Meeting, Data]:
        """The present meeting where these arguments would only lead to the same, or a new one.

        Also the arguments themselves, which inside ``jax.jit`` are not those of the meeting.
        """
        signature = Data(args, kwargs).signature()
        known = self._meeting
        if known is not None and not known.plan.target.held and known.signature == signature:
            return self._meet_again(known, args, kwargs)
        target = LogDensity(
            self.model,
            rng_key,
            args,
            kwargs,
            allow_local_latents=self.allow_local_latents,
            engine=type(self).__name__,
            init_strategy=self.init_strategy,
            likelihood_temperature=self.likelihood_temperature,
            particle_chunk=self.particle_chunk,
            data_chunk=self.data_chunk,
        )
        data = target.bind(*args, **kwargs)
        if not _traced(data):
            data = data.on_device()
        return self._meeting_of(target, rng_key, data, signature), data

    def _meet_again(
        self, known: _Meeting, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[_Meeting, Data]:
        data = known.plan.target.bind(*args, **kwargs)
        if _traced(data):
            return known, data
        data = data.on_device()
        return replace(known, data=data), data

    def _meeting_of(
        self, target: LogDensity, rng_key: Array, data: Data, signature: Any
    ) -> _Meeting:
        plan = self._plan(target, rng_key, data)
        # JAX reuses traces between equal functions, and bound methods of one object are equal;
        # a new partial is not, so a new target is never answered with an old one's trace.
        update = jax.jit(partial(self._advance, plan))
        chunk = jax.jit(partial(self._chunk, plan, update), donate_argnums=0)
        return _Meeting(plan, data, signature, update, chunk)

    def _initial_state(self, plan: Plan, rng_key: Array, data: Data) -> EngineState:
        algorithm_key, estimator_key, rng_key = random.split(rng_key, 3)
        number = self._num_positions(plan)
        state = EngineState(
            algorithm=self._init_algorithm(plan, algorithm_key, data),
            estimator=plan.estimator.init(plan.target, data, estimator_key, number),
            rng_key=rng_key,
            step=jnp.asarray(0, jnp.int32),
            skipped=jnp.asarray(0, jnp.int32),
            horizon=jnp.asarray(0, jnp.int32),
        )
        return jax.tree.map(_strong, state)

    # -- one step -----------------------------------------------------------------------------

    def _advance(
        self, plan: Plan, state: EngineState, data: Data
    ) -> tuple[EngineState, Array, dict[str, Array], Array]:
        """One step; when it is not finite the algorithm's state stays as it was."""
        proposed, loss, *rest = self._step(plan, state, data)
        info: dict[str, Array] = rest[0] if rest else {}
        finite = jnp.isfinite(loss)
        if plan.keeps_state:
            algorithm = jax.tree.map(_like, proposed.algorithm, state.algorithm)
        else:
            for leaf in jax.tree.leaves(proposed.algorithm):
                if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
                    finite &= jnp.isfinite(leaf).all()
            algorithm = _choose(finite, proposed.algorithm, state.algorithm)
        advanced = EngineState(
            algorithm=algorithm,
            estimator=jax.tree.map(_like, proposed.estimator, state.estimator),
            rng_key=proposed.rng_key,
            step=state.step + 1,
            skipped=state.skipped + jnp.where(finite, 0, 1).astype(state.skipped.dtype),
            horizon=state.horizon,
        )
        return advanced, jnp.where(finite, loss, jnp.nan), info, finite

    def _chunk(
        self,
        plan: Plan,
        advance: Callable[..., Any],
        state: EngineState,
        data: Data,
        count: Array,
    ) -> tuple[EngineState, Array, dict[str, Array], Array, Array]:
        """``count`` steps; with ``on_nonfinite="raise"`` only up to the first broken one.

        ``advance`` is compiled already, so that the step is traced once for all its uses.
        """
        _, loss, info, _ = jax.eval_shape(advance, state, data)
        losses = jnp.full((_BUFFER,), jnp.nan, loss.dtype)
        figures = {name: jnp.zeros((_BUFFER,), value.dtype) for name, value in info.items()}
        stop_when_broken = self.on_nonfinite == "raise"

        def unfinished(carry: Any) -> Array:
            taken, _, _, _, sound = carry
            return (taken < count) & sound if stop_when_broken else taken < count

        def step(carry: Any) -> Any:
            taken, state, losses, figures, _ = carry
            advanced, loss, info, sound = advance(state, data)
            losses = losses.at[taken].set(loss)
            figures = {name: figures[name].at[taken].set(info[name]) for name in figures}
            if stop_when_broken:
                # The whole state is kept, minibatch and key included, so that the broken step
                # can be taken again.
                kept = advanced.algorithm if plan.keeps_state else None
                advanced = _choose(
                    sound,
                    advanced if kept is None else advanced._replace(algorithm=None),
                    state if kept is None else state._replace(algorithm=None),
                )
                if kept is not None:
                    advanced = advanced._replace(algorithm=kept)
            return taken + 1, advanced, losses, figures, sound

        start = (jnp.asarray(0, jnp.int32), state, losses, figures, jnp.asarray(True))
        taken, state, losses, figures, sound = lax.while_loop(unfinished, step, start)
        return state, losses, figures, taken, sound

    # -- verbs --------------------------------------------------------------------------------

    def init(self, rng_key: Array, *args: Any, **kwargs: Any) -> EngineState:
        """Check the model with these arguments and return the state before the first step.

        Raises
        ------
        ModelCheckError
            The model cannot be fitted; see :mod:`numpyro_ext.density.check`.
        ArgumentError
            The arguments do not fit the model.
        """
        _check_key(rng_key)
        target_key, state_key = random.split(rng_key)
        self._meeting, data = self._meet(target_key, args, kwargs)
        return self._initial_state(self._meeting.plan, state_key, data)

    def update(self, state: EngineState, *args: Any, **kwargs: Any) -> tuple[EngineState, Array]:
        """Take one step with these arguments of the model; return the next state and the loss.

        Pure, and may be called inside ``jax.jit``. There a step that is not finite keeps the
        algorithm's state, counts in ``state.skipped`` and has loss NaN.

        Raises
        ------
        NonFiniteError
            Outside ``jax.jit``: the step was not finite and ``on_nonfinite="raise"``.
        """
        self._meeting, data = self._meet_again(self._met(), args, kwargs)
        advanced, loss, _, finite = self._meeting.update(state, data)
        if (
            self.on_nonfinite == "raise"
            and not isinstance(finite, jax.core.Tracer)
            and not bool(finite)
        ):
            raise self._nonfinite(state)
        return advanced, loss

    def run(
        self,
        rng_key: Array,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        init_state: EngineState | None = None,
        callback: Callback | None = None,
        callback_every: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        **kwargs: Any,
    ) -> RunResult:
        """Take ``num_steps`` steps with these arguments of the model.

        Parameters
        ----------
        rng_key : array
            Key of the whole run; not used when ``init_state`` is given.
        num_steps : int
        *args, **kwargs
            Arguments of the model.
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

        Returns
        -------
        RunResult

        Raises
        ------
        NonFiniteError
            A step was not finite and ``on_nonfinite="raise"``; it carries the last finite state.
        """
        if not is_count(num_steps, least=0):
            raise ArgumentError(
                "Expected num_steps to be an int >= 0 and the second argument of run, after the "
                f"key, found {described(num_steps)}."
            )
        for name, every in (
            ("callback_every", callback_every),
            ("checkpoint_every", checkpoint_every),
        ):
            check_count(name, every, optional=True)
        if init_state is None:
            state = self.init(rng_key, *args, **kwargs)
        else:
            self._check_state(init_state)
            if self._meeting is None:
                self._meeting, _ = self._meet(random.split(rng_key)[0], args, kwargs)
            else:
                self._meeting, _ = self._meet_again(self._meeting, args, kwargs)
            state = init_state
        meeting = self._met()
        data = meeting.data
        # The compiled loop takes its state over, so it gets one that nobody else holds.
        state = _copy(state)
        first = int(state.step)
        last = first + num_steps
        state = state._replace(horizon=jnp.asarray(last, jnp.int32))

        intervals = []
        if callback is not None:
            callback_every = callback_every or max(1, math.ceil(num_steps / 100))
            intervals.append(callback_every)
        if checkpoint is not None:
            checkpoint_every = checkpoint_every or max(1, math.ceil(num_steps / 10))
            intervals.append(checkpoint_every)

        losses: list[np.ndarray] = []
        figures: list[dict[str, np.ndarray]] = []
        position, size = first, 1
        bar = tqdm(total=num_steps, desc=type(self).__name__, disable=not progress_bar)
        with bar:
            while position < last:
                boundary = min([last, *(_next_multiple(position, every) for every in intervals)])
                count = min(size, boundary - position)
                started = time.perf_counter()
                state, buffer, info, taken, sound = meeting.chunk(
                    state, data, jnp.asarray(count, jnp.int32)
                )
                done = int(taken)
                elapsed = time.perf_counter() - started
                losses.append(np.asarray(buffer)[:done])
                figures.append({name: np.asarray(value)[:done] for name, value in info.items()})
                if not bool(sound):
                    if self.on_nonfinite == "raise":
                        if checkpoint is not None:
                            self.save(checkpoint, state)
                        raise self._nonfinite(state)
                position += done
                if count == size and elapsed < _CALL_SECONDS / 2:
                    size = min(2 * size, _BUFFER)
                elif elapsed > 2 * _CALL_SECONDS and position > first + 1:
                    size = max(1, size // 2)
                latest = {"loss": float(losses[-1][-1])}
                latest.update({name: float(value[-1]) for name, value in figures[-1].items()})
                if progress_bar:
                    shown = {name: f"{value:.4g}" for name, value in latest.items()}
                    if int(state.skipped):
                        shown["skipped"] = str(int(state.skipped))
                    bar.set_postfix(shown, refresh=False)
                    bar.update(done)
                if checkpoint is not None and checkpoint_every is not None:
                    if position % checkpoint_every == 0 and position < last:
                        self.save(checkpoint, state)
                if callback is not None and callback_every is not None:
                    if position % callback_every == 0 or position == last:
                        # A copy, because the loop will take the state over again.
                        if callback(position, _copy(state), latest):
                            break
        if checkpoint is not None:
            self.save(checkpoint, state)
        return RunResult(
            params=self._get_params(meeting.plan, state, data),
            state=state,
            losses=np.concatenate(losses) if losses else np.zeros(0),
            info={
                name: np.concatenate([piece[name] for piece in figures])
                for name in (figures[0] if figures else {})
            },
        )

    def get_params(self, state: EngineState) -> dict[str, Any]:
        """The parameters in a state: what the engine has fitted."""
        return self._get_params(self.plan, state, self.data)

    def get_samples(
        self, state: EngineState, rng_key: Array | None = None, num_samples: int | None = None
    ) -> dict[str, Array]:
        """Posterior draws: latent site to constrained values, leading dimension = draws.

        The dictionary is what ``Predictive(model, posterior_samples=...)`` takes.

        Parameters
        ----------
        state : EngineState
        rng_key : array, optional
            Key of the draws of engines that fit a guide. Default: a key derived from the state,
            so that every call gives the same draws. Particle engines do not use it.
        num_samples : int, optional
            Number of draws. Default: the engine's own; particle engines return their particles.
        """
        positions = self._draw(self.plan, state, rng_key, num_samples)
        return self.target.constrain(positions, self.data)

    def _nonfinite(self, state: EngineState) -> NonFiniteError:
        step = int(state.step) + 1
        return NonFiniteError(
            f"Step {step} of {type(self).__name__} was not finite; the error's state is the one "
            "before it. Expected finite scores and updates: lower the learning rate, check the "
            "data for NaN, or pass on_nonfinite='skip'.",
            step=step,
            state=state,
        )

    def _check_state(self, state: Any) -> None:
        if not isinstance(state, EngineState):
            raise ArgumentError(
                "init_state must be an EngineState, as returned by init, update, run(...).state or "
                f"load; found {type(state).__name__}."
            )

    # -- saving -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], state: EngineState) -> None:
        """Save a state; the file is complete or absent, never half written."""
        target = self.target
        arrays: dict[str, np.ndarray] = {}
        header = {
            "format": FORMAT,
            "engine": type(self).__name__,
            "settings": self._settings(),
            "plan": decisions(self.plan),
            "sites": _sites(target),
            "state": _pack("state", state, arrays),
            "held": _pack("held", target.held, arrays),
        }
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        path = os.fspath(path)
        directory = os.path.dirname(os.path.abspath(path))
        handle, temporary = tempfile.mkstemp(dir=directory, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def load(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> EngineState:
        """Read a saved state; a run with ``init_state`` goes on from it exactly.

        An engine that has not seen the model's arguments needs them here.

        Raises
        ------
        ArgumentError
            The file is not a saved state, or was saved by another engine, for another model or
            with other options, such as another kernel or guide.
        """
        header, arrays = _read(path)
        if header["format"] != FORMAT:
            raise ArgumentError(
                f"{os.fspath(path)} has format {header['format']}, but this version reads {FORMAT}."
            )
        if header["engine"] != type(self).__name__:
            raise ArgumentError(
                f"Expected a state of {type(self).__name__}; found one of {header['engine']}."
            )
        # Keys of the same kind as those saved; their values are replaced.
        saved_key = next(entry for entry in header["state"] if entry["path"] == ".rng_key")
        key = random.key(0, impl=saved_key["key"]) if "key" in saved_key else random.PRNGKey(0)
        meeting = self._meeting
        if meeting is None or args or kwargs:
            meeting, _ = self._meet(key, args, kwargs)
        target = meeting.plan.target
        saved = {**header["settings"], **header["plan"]}
        own = {**self._settings(), **decisions(meeting.plan)}
        for name in {**own, **saved}:
            if saved.get(name) != own.get(name):
                raise ArgumentError(
                    f"The saved state belongs to an engine with another {name}: expected "
                    f"{own.get(name)}, found {saved.get(name)}. Make the engine with the "
                    f"same {name} as when it was saved."
                )
        if header["sites"] != _sites(target):
            raise ArgumentError(
                "The saved state belongs to another model or other arguments: expected latent "
                f"sites {_sites(target)}, found {header['sites']}."
            )
        held = _unpack("held", header["held"], arrays, target.held)
        if held:
            target = target.with_held(held)
            meeting = self._meeting_of(target, key, meeting.data, meeting.signature)
        template = self._initial_state(meeting.plan, key, meeting.data)
        state: EngineState = _unpack("state", header["state"], arrays, template)
        self._meeting = meeting
        return state


# -- helpers ----------------------------------------------------------------------------------


def _check_key(rng_key: Any) -> None:
    if not is_prng_key(rng_key):
        raise ArgumentError(
            f"rng_key must be a JAX key, such as jax.random.key(0); found {type(rng_key).__name__}."
        )


def _traced(data: Data) -> bool:
    return any(isinstance(array, jax.core.Tracer) for array in data.arrays)


def _next_multiple(position: int, every: int) -> int:
    return (position // every + 1) * every


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


def _copy(state: EngineState) -> EngineState:
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), state)


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a saved state.

    Raises
    ------
    ArgumentError
        The file holds something else.
    """
    header: Any = None
    problem: Exception | None = None
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.lib.npyio.NpzFile):
                arrays = {name: archive[name] for name in archive.files}
                if isinstance(arrays.get("header"), np.ndarray):
                    header = json.loads(arrays["header"].tobytes())
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        problem = error
    if not isinstance(header, dict) or "format" not in header:
        detail = "" if problem is None else f" ({problem})"
        raise ArgumentError(
            f"Expected a file saved by an engine; {os.fspath(path)} is not one{detail}. Pass a "
            "path that the engine's save, or a run's checkpoint, has written."
        ) from problem
    return header, arrays


def _sites(target: LogDensity) -> list[list[Any]]:
    return [[name, list(target.layout.shapes[name])] for name in target.layout.names]


def _pack(label: str, tree: Any, arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Put the tree's leaves into ``arrays`` and return what is needed to check them later."""
    entries = []
    for number, (path, leaf) in enumerate(jax.tree.flatten_with_path(tree)[0]):
        entry: dict[str, Any] = {"path": jax.tree_util.keystr(path)}
        leaf = jnp.asarray(leaf)
        entry["shape"], entry["dtype"] = list(leaf.shape), str(leaf.dtype)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            entry["key"] = str(random.key_impl(leaf))
            leaf = random.key_data(leaf)
        array = np.asarray(leaf)
        if array.dtype.isbuiltin != 1:  # bfloat16 and the like, which npz cannot name
            array = np.frombuffer(array.tobytes(), np.uint8)
            entry["bytes"] = True
        arrays[f"{label}{number}"] = array
        entries.append(entry)
    return entries


def _unpack(
    label: str, entries: list[dict[str, Any]], arrays: Mapping[str, np.ndarray], template: Any
) -> Any:
    """Saved leaves in the template's structure; they must agree in path, shape and dtype."""
    flat, treedef = jax.tree.flatten_with_path(template)
    expected = [
        (jax.tree_util.keystr(path), list(jnp.shape(leaf)), str(jnp.asarray(leaf).dtype))
        for path, leaf in flat
    ]
    found = [(entry["path"], entry["shape"], entry["dtype"]) for entry in entries]
    if expected != found:
        differences = [pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]]
        first = (
            f"expected {differences[0][0]}, found {differences[0][1]}"
            if differences
            else f"expected {len(expected)} arrays, found {len(found)}"
        )
        raise ArgumentError(
            f"The saved {label} does not fit this engine: {first}. Make the engine with the same "
            "options (optimizer, number of particles, estimator, 64-bit setting) as when it was "
            "saved."
        )
    leaves = []
    for number, entry in enumerate(entries):
        array = arrays[f"{label}{number}"]
        if entry.get("bytes"):
            array = np.frombuffer(array.tobytes(), jnp.dtype(entry["dtype"]))
            array = array.reshape(entry["shape"])
        leaf = jnp.asarray(array)
        leaves.append(random.wrap_key_data(leaf, impl=entry["key"]) if "key" in entry else leaf)
    return jax.tree.unflatten(treedef, leaves)
