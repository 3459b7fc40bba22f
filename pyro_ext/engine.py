"""What all engines share: setting up the target, the run loop, saving, and broken steps.

An engine is a thin shell with the host's verbs around an update function on tensors. It holds the
options that it was given, and, once it has met the model's arguments, one frozen :class:`Plan` of
all that it decided then and the state of its algorithm. No hook writes to the engine; a step may
write into the tensors of the state, as torch's optimizers do. A subclass fills in:

``_initialize(plan, data)``
    The algorithm's state before the first step; it holds the tensors that the steps move.
``_update(plan, state, data)``
    Takes one step and returns an :class:`Update`, with the next state.
``_algorithm_state(state)``
    Tensors and plain values that the next step needs, for saving.
``_load_algorithm_state(plan, state, saved)``
    The inverse; ``state`` is one of the same engine, whose tensors may be written to.
``_draw(plan, state, num_samples)``
    Flat posterior draws (draws, D).

An engine that decides more than the base does has a plan class with more fields, and makes it in
``_plan(target, generator, data)``. ``_settings()`` may name the options that a saved state depends
on, such as the kernel.
"""

from __future__ import annotations

import copy
import functools
import math
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ppl_ext.arguments import entry
from ppl_ext.batches.passes import check_not_shared
from ppl_ext.batches.stream import Stream, check_no_arguments, place_of
from ppl_ext.engines.base import EngineShell
from ppl_ext.engines.judgement import Drawn, Judgement
from ppl_ext.engines.result import Looks, Ran
from ppl_ext.errors import ArgumentError, NonFiniteError
from ppl_ext.options import describe, described, is_count
from ppl_ext.process import between_steps, hold, release
from ppl_ext.running import state_files
from ppl_ext.running.best import Best
from ppl_ext.running.piece import Piece
from ppl_ext.running.run import Cadence, check_num_steps, handing_over, take_steps
from ppl_ext.running.settling import (
    Settled,
    Settling,
    SettlingWatch,
    check_saved,
    rule_of,
)
from ppl_ext.running.sharding import FIRST_BATCH
from ppl_ext.start.given import HOST
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.arguments import placing
from pyro_ext.density.fingerprint import digest_of_arguments
from pyro_ext.density.handlers import global_generator, isolated_parameters
from pyro_ext.density.reparameterise import moves_of, noncentred
from pyro_ext.density.replay import out_of_bounds_at
from pyro_ext.gradients import GradientEstimator, ScoreEstimate, default_estimator
from pyro_ext.optim import OptimizerLike
from pyro_ext.sharding import Sharding
from pyro_ext.start import GUIDE_FORM, is_guide, piece_of, prior_of, started

Callback = Callable[[int, "Engine", Mapping[str, float]], bool | None]
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _at_work(
    verb: Callable[Concatenate[Engine, Parameters], Result],
) -> Callable[Concatenate[Engine, Parameters], Result]:
    """A verb that uses the state: by one thread at a time, in torch's usual mode.

    Ctrl-C waits around it (:func:`~ppl_ext.process.between_steps`).
    """

    @functools.wraps(verb)
    def working(self: Engine, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        thread = threading.get_ident()
        if self._thread.get("of") == thread:  # a callback's call, or a verb's of another
            return verb(self, *args, **kwargs)
        if self._thread.setdefault("of", thread) != thread:
            raise ArgumentError(
                f"Expected one thread at a time to use this {type(self).__name__}, found a "
                "second: they would share its state. Make an engine for each thread, or a copy: "
                "copy.deepcopy(engine)."
            )
        quiet = nullcontext() if self.sharding is None else self.sharding.quiet()
        try:
            # Tensors that are made in torch's inference mode can be used nowhere else.
            with torch.inference_mode(False), quiet:
                return verb(self, *args, **kwargs)
        finally:
            del self._thread["of"]

    return working


def _reading(verb: Callable[..., RunResult]) -> Callable[..., RunResult]:
    """A run that may take its batches from a loader, which is read ahead while it lasts."""

    @functools.wraps(verb)
    def reading(self: Engine, *args: Any, batches: Any = None, **options: Any) -> RunResult:
        if batches is None:
            return verb(self, *args, **options)
        check_no_arguments(args[1:])
        where = self._place if self._pending is None else self._pending[1]["batches"]
        try:
            place = placing(self.dtype)
            with Stream(batches, lambda batch: batch.map(place), where) as self._stream:
                return verb(self, *args, batches=batches, **options)
        finally:
            if self._stream is not None and self._pending is None:
                self._place = self._stream.saved()
            self._stream = None

    return reading


class Update(NamedTuple):
    """Result of one step.

    ``loss`` is what the progress bar shows, ``info`` further figures, and ``finite`` tells
    whether the step was taken: an update that is not finite must leave the state as it was.
    ``state`` is the next state, None where the step wrote into the one before.
    """

    loss: float
    info: dict[str, float]
    finite: bool
    state: Any = None


@dataclass(frozen=True)
class SavedState:
    """A state of an engine in memory, which :meth:`Engine.load` takes.

    Parameters
    ----------
    header : dict
        What it belongs to.
    state : dict
        As :meth:`Engine.save` writes it, the history as it was or with later steps.
    """

    header: dict[str, Any] = field(repr=False)
    state: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, repr=False)
class RunResult(Looks):
    """What a run leaves behind, looked at as a fit is.

    ``result["mean"]`` are the draws of a site.

    Parameters
    ----------
    losses : array (steps,)
        Loss of each step of this run; NaN where a step was not finite and skipped.
    info : dict of str to array (steps,)
        Further figures of each step, such as the force norm.
    best : Best, optional
        The best state of this run, as far as its noisy figures tell; see
        :class:`~ppl_ext.running.best.Best`. ``engine.load(result.best.state)`` goes back to it.
    settling : Settling, optional
        How settled the run is, with its figures; None where no ``until`` was given.
    judgement : Judgement, optional
        What speaks for and against the answer, in words and figures; see
        :class:`~ppl_ext.engines.judgement.Judgement`.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> result = px.GSM(model, seed=0).run(200, y)
    >>> print(f"{result['mean'].mean():.0f}", list(result.predict()))
    2 ['y']
    """

    losses: Float[np.ndarray, " steps"]
    info: dict[str, Float[np.ndarray, " steps"]] = field(default_factory=dict)
    best: Best | None = None
    settling: Settling | None = None
    judgement: Judgement | None = None


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
    """

    target: LogDensity = field(repr=False, compare=False)
    estimator: GradientEstimator


@dataclass(frozen=True)
class _Bound:
    """The engine's plan and its last arguments, ``data``, once it has been given arguments.

    ``memory`` is a digest of the arguments on which the estimator's state depends. ``seen`` are the
    identities of their tensors, and how often torch has written to each, so that the digest is
    taken again only where these differ. ``inputs`` tell whether the next step has the same
    arguments without reading their values; None where that cannot be told.
    """

    plan: Plan
    data: Data
    memory: str = ""
    seen: tuple[tuple[int, int], ...] = ()
    inputs: Any = None

    def of_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Bound:
        """The same, after a step's arguments were met."""
        return self if self.seen else replace(self, inputs=self.plan.target.inputs_of(args, kwargs))


class Engine(EngineShell, ABC):
    """Base of the engines.

    Parameters
    ----------
    model : callable
        Pyro model, used as it is.
    optim : PyroOptim, callable or None
        See :class:`~pyro_ext.optim.EngineOptimizer`.
    estimator : GradientEstimator, optional
        How scores are computed. Default: minibatches when the model subsamples a plate itself,
        else all rows of the arguments.
    init_strategy : callable, optional
        Strategy of ``pyro.infer.autoguide.initialization``.
    likelihood_temperature : float
        The likelihood part of the log density is divided by this.
    particle_chunk, data_chunk : int, optional
        Bounds on the particles and on the rows evaluated at once.
    evaluation : {"graph", "inductor", "handlers", "loop"}
        How scores are evaluated; see :class:`~pyro_ext.density.LogDensity`.
    on_nonfinite : {"raise", "skip"}
        What to do when a step is not finite. The previous state is kept in both cases.
    seed : int, optional
        Seed of all the engine's randomness. Default: drawn from torch's global generator.
    dtype : torch.dtype, optional
        Default: torch's default dtype.
    sharding : Sharding, optional
        How positions and rows are split over processes, which must all do the same.
    reparameterise : bool
        Write sites whose scale is latent non-centred, as ``fit`` does, by the host's handlers.
        Draws hold the sites as written, beside those that stand for them. A guide is then given as
        its class, or as a function that makes it of the program. Default: not; a message of the
        logger "ppl_ext" names such sites before the first run.
    """

    _host = "Pyro"
    _sharding_class = Sharding
    _guide_form = GUIDE_FORM
    _estimator_class = GradientEstimator
    _first_verbs = "run, step or setup (also after load)"
    _noncentred = staticmethod(noncentred)
    _moves_of = staticmethod(moves_of)
    _start_of = staticmethod(started)
    _is_guide = staticmethod(is_guide)
    _digest = staticmethod(digest_of_arguments)
    _back_to_best = "engine.load(result.best.state) goes back to it."
    #: Whether latents inside a subsampled plate are accepted.
    allow_local_latents = True

    def __init__(
        self,
        model: Callable[..., Any],
        optim: OptimizerLike | None = None,
        *,
        evaluation: str = "graph",
        seed: int | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self.optim = optim
        self.num_steps_taken = 0
        self.num_skipped = 0
        self.gradient_evaluations = 0.0
        self.history: dict[str, list[float]] = {"loss": []}
        self.evaluation = evaluation
        self.dtype = dtype
        if seed is not None and not is_count(seed, -math.inf):
            raise ArgumentError(f"Expected seed to be an int, found {described(seed)}.")
        self.seed = seed
        self._estimator_state: dict[str, Any] = {}
        seed = int(torch.randint(2**62, ())) if seed is None else int(seed)
        self._generator = seeded_generator(seed)
        # A generator of its own: asking for draws must not change how a run goes on.
        self._draws = seeded_generator(self._generator.initial_seed(), 1)
        self._state: Any = None
        # Which thread is using the state; a dictionary, since setting a default cannot be torn.
        self._thread: dict[str, int] = {}
        self._pending: tuple[dict[str, Any], dict[str, Any]] | None = None
        # The batches of a run, and the place in their loader after the last one.
        self._stream: Stream | None = None
        self._place: str | None = None
        self._horizon: int | None = None
        # What ends a run once it has settled, and what that of a run has seen that was broken off.
        self._watching: SettlingWatch | None = None
        self._seen: np.ndarray | None = None

    @property
    def losses(self) -> list[float]:
        """Loss of every step so far, over all runs; NaN where a step was skipped."""
        return self.history["loss"]

    # -- hooks -------------------------------------------------------------------------------

    def _plan(self, target: LogDensity, generator: torch.Generator, data: Data) -> Plan:
        """What the engine decides about a target and its data, checked."""
        return Plan(target, self.estimator or default_estimator(target))

    @abstractmethod
    def _initialize(self, plan: Any, data: Data) -> Any:
        """The algorithm's state before the first step."""

    @abstractmethod
    def _update(self, plan: Any, state: Any, data: Data) -> Update:
        """Take one step."""

    @abstractmethod
    def _algorithm_state(self, state: Any) -> dict[str, Any]:
        """Tensors and plain values that the next step needs, for saving."""

    @abstractmethod
    def _load_algorithm_state(self, plan: Any, state: Any, saved: dict[str, Any]) -> Any:
        """The state that :meth:`_algorithm_state` saved, in the tensors of the present one."""

    def _settings(self) -> dict[str, str]:
        optimizer = getattr(self._state, "optimizer", None)
        description = "none" if optimizer is None else optimizer.description
        return {**super()._settings(), "optimizer": description}

    def _tuning(self) -> dict[str, str]:
        optimizer = getattr(self._state, "optimizer", None)
        return {"settings of the optimizer": "none" if optimizer is None else optimizer.settings}

    @abstractmethod
    def _draw(self, plan: Any, state: Any, num_samples: int | None) -> Float[Tensor, "draws D"]:
        """Flat posterior draws (draws, D)."""

    def _positions(self, plan: Any, state: Any) -> Float[Tensor, "n D"]:
        """Flat positions (n, D) that move only as the state does: by them a run settles."""
        return self._draw(plan, state, self._draws_to_look_at(plan))

    # -- set up ------------------------------------------------------------------------------

    @entry
    @_at_work
    def setup(self, *args: Any, start: Any = None, **kwargs: Any) -> None:
        """Check the model with these arguments and build the state, without taking a step.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the model.
        start : optional
            Where a run without a state starts: "search" for Normals near the modes, "host" for the
            init strategy, a ``Start`` of ``find_start``, a fit, a dict from latent sites to
            constrained values or draws, a fitted autoguide of the host, or an object with
            ``get_samples()``. Default: the engine's own; see the page "Where runs start".

        Raises
        ------
        ModelCheckError
            The model cannot be fitted; see :mod:`pyro_ext.density.check`.
        ArgumentError
            The arguments do not fit the model, or the start does not.
        """
        self._check_start(start, self._has_state())
        self._meet(args, kwargs, start=start)

    def _has_state(self) -> bool:
        return not self._bound is self._kept is self._pending is None

    def _meet(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        look: bool = True,
        start: Any = None,
    ) -> None:
        """Take these arguments: as they are, or, where they lead to another target, with a new one.

        What the algorithm has reached stays. ``look`` tells whether to look at what the model
        computes and at the numbers of the data, which takes a run of the model.
        """
        if not look and self._bound is not None:
            inputs = self._bound.inputs
            if inputs is not None and inputs.is_of(args, kwargs):
                return
        known = self._known()
        agrees = look or known is None
        if agrees:
            self._agree_on_arguments(args, kwargs)
        self._meet_known(known, args, kwargs, look, start)
        if agrees:
            self._agree_on_model()

    def _meet_known(
        self,
        known: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        look: bool,
        start: Any,
    ) -> None:
        if known is None:
            self._meet_anew(args, kwargs, start)
            return
        plan = known.plan
        data = plan.target.bind(*args, **kwargs)
        if not plan.target.follows(data, look):
            self._meet_anew(args, kwargs)
            return
        seen, memory = _seen(plan.estimator.memory_of(data)), known.memory
        # The digest reads all numbers of the data. It is taken only where tensors are others, or
        # were written to.
        if seen and (look or seen != known.seen):
            memory = self._memory(plan, data)
            if memory != known.memory:
                self._estimator_state = plan.estimator.init(plan.target, data, self._generator)
        self._bound = _Bound(plan, data, memory, seen)

    def _agree_on_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See that all processes have the same arguments, and let them have the same randomness.

        Raises
        ------
        ArgumentError
            They have others.
        """
        sharding = self.sharding
        if sharding is None:
            return
        if self.seed is None and self._bound is None:
            for generator in (self._generator, self._draws):
                generator.set_state(sharding.of_first(generator.get_state()))
        # Models and guides may draw from torch's own.
        torch.set_rng_state(sharding.of_first(torch.get_rng_state()))
        randomness = self._generator.get_state(), self._draws.get_state()
        sharding.agree(
            {
                "engine": self._digest([type(self).__name__, self.num_steps_taken]),
                "arguments": self._digest((args, kwargs)),
                "seed": self._digest(randomness),
            }
        )

    def _agree_on_model(self) -> None:
        """See that all processes have the same program, settings and state.

        Raises
        ------
        ArgumentError
            They have others.
        """
        if self.sharding is not None:
            target = self.target
            self.sharding.agree(
                {
                    "program": target.identity(self.data),
                    "settings": self._digest(describe(self._header(self.plan))),
                    "state": self._digest(self._replicated_state()),
                }
            )

    def _replicated_state(self) -> Any:
        """What of the algorithm's state every process has, as a tree of tensors."""
        return self._algorithm_state(self._state)

    def _meet_anew(self, args: tuple[Any, ...], kwargs: dict[str, Any], start: Any = None) -> None:
        known, generator = self._bound, self._generator.get_state()
        try:
            with self._met_again(known):
                target = self._target(known, args, kwargs)
            if known is not None:
                self._check_same_latents(known.plan.target, target)
            data = target.bind(*args, **kwargs)
            plan = self._plan(target, self._generator, data)
            estimator_state = plan.estimator.init(target, data, self._generator)
            state = self._state
            if known is None:
                if self._pending is not None:
                    start = HOST  # the state is a saved one
                begun = self._with_start(plan, self._generator, data, start)
                state = self._initialize(begun, data)
            seen = _seen(plan.estimator.memory_of(data))
            self._estimator_state, self._state = estimator_state, state
            self._bound = _Bound(plan, data, self._memory(plan, data), seen)
            if self._pending is not None:
                self._restore(*self._pending)
                self._pending = None
        except BaseException:
            # The next try is as this one.
            self._bound = known
            self._generator.set_state(generator)
            raise

    def _target(
        self, known: _Bound | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> LogDensity:
        """The program with these arguments as a log density."""
        held = None if known is None else known.plan.target.bound.held

        def make(program: Callable[..., Any]) -> LogDensity:
            return LogDensity(
                program,
                args,
                kwargs,
                allow_local_latents=self.allow_local_latents,
                **self._target_options(),
                evaluation=self.evaluation,
                dtype=self.dtype,
                held=held,
                sharding=self.sharding,
                loaded=self._loaded(known),
            )

        return self._target_of(make, args, kwargs)

    def _loaded(self, known: _Bound | None) -> Sequence[str] | None:
        """Names of the arguments that a loader gives by keyword; None where there is none."""
        if self._stream is not None:
            return tuple(self._stream.first().kwargs)
        return None if known is None else known.plan.target.loaded

    def _score(
        self, z: Float[Tensor, "P D"], data: Data, target: Any = None, cost: float = 1.0
    ) -> ScoreEstimate:
        """Score at particles z (P, D) by the engine's estimator, which moves on.

        Of another ``target`` than the plan's where one is given; each score counts ``cost`` times.
        """
        plan = self._bound.plan
        score, self._estimator_state = plan.estimator.estimate(
            target or plan.target, self._estimator_state, z, data, self._generator
        )
        evaluations = z.shape[0] * plan.estimator.evaluations_per_step(plan.target)
        self.gradient_evaluations += cost * evaluations
        return score

    # -- verbs -------------------------------------------------------------------------------

    @entry
    @_at_work
    def step(self, *args: Any, **kwargs: Any) -> float:
        """Take one step with these arguments of the model and return the loss.

        Raises
        ------
        NonFiniteError
            The step was not finite and ``on_nonfinite="raise"``; the state is as before.
        """
        before = self._bound, self._estimator_state, self._generator.get_state()
        self._meet(args, kwargs, look=False)
        if self._bound is not before[0]:
            self._bound = self._bound.of_step(args, kwargs)
        self._seen = None
        try:
            return self._step_once().loss
        except BaseException:
            # Data that the step failed with are not met either. A first meeting stays: the state
            # that it made is the one before the step.
            if before[0] is not None:
                self._bound, self._estimator_state = before[:2]
                self._generator.set_state(before[2])
            raise

    def _step_once(self) -> Update:
        """Take one step; after any exception, Ctrl-C among them, the state is as before it.

        The model is run, and may fail, before the step writes to the state's tensors; from then
        on Ctrl-C waits for the end of the step.
        """
        known = self._require_bound()
        before = self._estimator_state, self._generator.get_state(), self.gradient_evaluations
        try:
            update = self._update(known.plan, self._state, known.data)
            hold()
            if not update.finite and self.on_nonfinite == "raise":
                raise self._nonfinite_error(self.num_steps_taken + 1)
            self._count(update)
        except BaseException:
            hold()
            self._estimator_state, generator, self.gradient_evaluations = before
            self._generator.set_state(generator)
            raise
        finally:
            release()
        return update if update.finite else update._replace(loss=math.nan)

    def _count(self, update: Update) -> None:
        """Keep a step and its figures."""
        if not update.finite:
            self.num_skipped += 1
        elif update.state is not None:
            self._state = update.state
        figures = {"loss": update.loss if update.finite else math.nan, **update.info}
        for name in {**self.history, **figures}:
            # A figure that a step did not give is NaN there.
            values = self.history.setdefault(name, [math.nan] * self.num_steps_taken)
            values.append(figures.get(name, math.nan))
        self.num_steps_taken += 1
        if self._stream is not None:
            self._stream.taken(update.finite)

    @entry
    @_at_work
    @_reading
    def run(
        self,
        num_steps: int,
        *args: Any,
        batches: Iterable[Any] | None = None,
        start: Any = None,
        progress_bar: bool = True,
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
            constrained values or draws, a fitted autoguide of the host, or an object with
            ``get_samples()``. Default: the engine's own; see the page "Where runs start".
        progress_bar : bool
            Show loss and rate.
        callback : callable, optional
            ``callback(i, engine, info)`` every ``callback_every`` steps and after the last, with
            the number of steps taken so far and the figures of the latest; returning True ends
            the run.
        callback_every : int, optional
            Default: a hundredth of the run.
        checkpoint : path, optional
            Save the state there every ``checkpoint_every`` steps and when the run ends, before
            the callback is called. A new engine that loads it and runs the remaining steps ends
            bit-identical to a run that was not interrupted.
        checkpoint_every : int, optional
            Default: a tenth of the run.
        keep_best : bool, optional
            Keep a copy of the best state so far, for ``result.best``; a checkpoint does not hold
            it. Default: where the tensors of a fit have at most 64 MiB.
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
            A step was not finite and ``on_nonfinite="raise"``; it carries the best state.
        ArgumentError
            ``batches`` are none of these, end before the run does, or change their form.
        """
        check_num_steps(num_steps, "the first argument of run")
        sharding = self.sharding
        is_first = sharding is None or sharding.writes
        # The first process alone writes the file. The others need no folder for it.
        self._check_run(callback, checkpoint if is_first else None)
        rule = rule_of(until)
        evaluations = self.gradient_evaluations
        self._check_start(start, self._has_state())
        calls_back, saves = (callback, callback_every), (checkpoint, checkpoint_every)
        cadence = Cadence.of(self.num_steps_taken, num_steps, calls_back, saves)
        # Schedules over a run need its end; a resumed run ends where the first one would have.
        self._horizon = cadence.last
        if sharding is not None:
            told = describe((tuple(cadence), keep_best, described(until)))
            sharding.agree({"options of the run": self._digest([told])})
        stream = self._stream
        if stream is not None:
            args, own = stream.first()
            if sharding is not None:
                sharding.agree({FIRST_BATCH: self._digest((args, own))})
            self._meet(args, {**kwargs, **own}, start=start)
            stream.check_target(self.target)
            self.target.check_batch(stream.first(), kwargs)
            check_not_shared(batches, getattr(self.plan.estimator, "full_data", None))
        else:
            self._meet(args, kwargs, start=start)
        # An exception that is being handled around the run is not one of the run's.
        outside = sys.exception()

        def step_on_batch(stream: Stream) -> None:
            try:
                args, own = stream.next()
                self._meet(args, {**kwargs, **own}, look=False)
                self._step_once()
            except BaseException as error:
                stream.tell(error)
                raise

        def take(count: int) -> Piece:
            before = self.num_steps_taken
            for _ in range(count):
                self._step_once() if stream is None else step_on_batch(stream)
            figures = {name: np.asarray(each[before:]) for name, each in self.history.items()}
            return Piece(figures.pop("loss"), figures, self.num_skipped)

        def reached() -> tuple[int, None]:
            return self.num_steps_taken, None

        def save() -> None:
            # Processes that fail do so at different places, and have no state in common.
            failed = sharding is not None and sys.exception() is not outside
            if checkpoint is not None and not (
                failed and not isinstance(sys.exception(), NonFiniteError)
            ):
                self.save(checkpoint)

        def call_back(position: int, figures: Mapping[str, float]) -> bool | None:
            ends = None if callback is None else callback(position, self, figures)
            return ends if sharding is None else sharding.any(ends)

        fitted = tree_leaves((self._state, self._estimator_state, vars(self.plan)))
        size = sum(each.nbytes for each in fitted if isinstance(each, Tensor))
        watch = self._watch(keep_best, size, self._kept_state)
        settling = self._until(rule, cadence, self._positions_now, self._seen)
        self._watching, self._seen = settling, None
        try:
            found = take_steps(
                type(self).__name__,
                cadence,
                take,
                state=reached,
                watch=watch,
                until=settling,
                save=save,
                call_back=call_back,
                progress_bar=progress_bar and is_first,
                shown=None if stream is None else stream.shown,
            )
        finally:
            self._watching, self._seen = None, self._seen_so_far()
        asked = num_steps if self.num_steps_taken == cadence.last else None
        best, settled = self._ended(self.plan, found, watch, settling, asked)
        evaluations = self.gradient_evaluations - evaluations
        with handing_over(reached):  # of Ctrl-C, or of a warning that is an error
            judgement = self._judged(len(found.losses), evaluations, kwargs)
        result = RunResult(found.losses, found.info, best, settled, judgement)
        ran = Ran(self, args, kwargs, stream is not None, self.num_steps_taken)
        vars(result)["_ran"] = ran
        return result

    def _positions_now(self) -> np.ndarray:
        with self._same_noise():
            return on_host(self._positions(self.plan, self._state))

    @contextmanager
    def _same_noise(self) -> Iterator[None]:
        """Context of draws with the same noise each time; those that are asked for stay."""
        own, self._draws = self._draws, seeded_generator(0)
        try:
            with torch.no_grad():
                yield
        finally:
            self._draws = own

    def _to_judge(self, plan: Any, state: Any, number: int) -> Drawn:
        """Draws that a run is judged by, where the engine makes any so many at most."""
        return Drawn(on_host(self._draw(plan, state, number if self.makes_draws else None)))

    def _judged(
        self, steps: int, evaluations: float, kwargs: Mapping[str, Any]
    ) -> Judgement | None:
        """What the end of a run of so many steps says of its answer.

        ``kwargs`` are the model's beside those of a loader's batches.
        """
        plan, data = self.plan, self.data
        target = plan.target

        def draw(number: int) -> Drawn:
            with self._same_noise():
                return self._to_judge(plan, self._state, number)

        def pieces(data: Data, rows: dict[str, np.ndarray] | None) -> Any:
            piece = piece_of(target, data, rows)

            def kept(positions: np.ndarray, before: int) -> tuple[Any, Any]:
                # What a model draws itself is the same in each piece.
                torch.default_generator.manual_seed(0)
                if target.device.type == "cuda":
                    torch.cuda.manual_seed_all(0)
                return piece(positions, before)

            return kept

        def constrain(z: np.ndarray) -> dict[str, np.ndarray]:
            positions = torch.as_tensor(z, dtype=target.dtype, device=target.device)
            with torch.no_grad(), global_generator(0):
                return {
                    name: on_host(value)
                    for name, value in target.constrain(positions, data).items()
                }

        with global_generator(0):  # It must not change how a run goes on.
            return self._judgement(
                plan,
                data,
                self._stream,
                kwargs,
                pieces,
                steps=steps,
                evaluations=evaluations,
                draw=draw,
                constrain=constrain,
                out_of_bounds=out_of_bounds_at,
                prior=lambda number: prior_of(target, number, 0, data),
            )

    @between_steps()
    @_at_work
    def get_samples(self, num_samples: int | RunResult | None = None) -> dict[str, Tensor]:
        """Posterior draws: latent site to constrained values, leading dimension = draws.

        The dictionary is what ``Predictive(model, posterior_samples=...)`` takes. Particle
        engines return as many draws as particles. The result of a run in place of the number, as
        NumPyro's engines take it, is of no account: the engine holds its state itself.
        """
        target, data = self.target, self.data
        if isinstance(num_samples, RunResult):
            num_samples = None
        with torch.no_grad():
            return target.constrain(self._draw(self.plan, self._state, num_samples), data)

    # -- saving ------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state of the engine; the file is complete or absent, never half written."""
        found = self._present_state()
        history = {
            name: torch.tensor(values, dtype=torch.float64)
            for name, values in found.state["history"].items()
        }
        state = {**found.state, "history": history}

        def write() -> None:
            state_files.save(path, found.header, state, _as_numpy)

        if self.sharding is None:
            write()
        else:
            self.sharding.by_first(write)

    def _present_state(self) -> SavedState:
        """The present state. Some of its tensors are those that the next step writes into."""
        seen = self._seen_so_far()
        state = {
            "steps": self.num_steps_taken,
            "skipped": self.num_skipped,
            "gradient_evaluations": self.gradient_evaluations,
            "history": dict(self.history),
            "estimator": self._estimator_of_all(),
            "generator": self._generator.get_state(),
            "draws": self._draws.get_state(),
            "algorithm": self._algorithm_state(self._state),
            "batches": self._place if self._stream is None else self._stream.saved(),
            "settling": None if seen is None else torch.from_numpy(seen.copy()),
            "memory": self._require_bound().memory,
            "rows": self._rows(self.plan),
        }
        return SavedState(self._header(self.plan), state)

    def _seen_so_far(self) -> np.ndarray | None:
        """What is known of whether the run has settled; None where none is under way."""
        return self._seen if self._watching is None else self._watching.saved()

    def _estimator_of_all(self) -> Any:
        """The estimator's state for the positions of all processes."""
        return self._estimator_state

    def _estimator_of_own(self, state: Any) -> Any:
        """Inverse of :meth:`_estimator_of_all`."""
        return state

    def _kept_state(self) -> SavedState:
        return _of_its_own(self._present_state())

    def __getstate__(self) -> dict[str, Any]:
        state = {**super().__getstate__(), "_thread": {}, "_stream": None, "_watching": None}
        if self._bound is not None:
            found = self._present_state()
            kept = {"_pending": (found.header, found.state), "_state": None}
            state |= {**kept, "_estimator_state": {}}
        return state

    def _meet_again(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], held: Any) -> None:
        with isolated_parameters(held):
            self.setup(*args, **kwargs)

    @between_steps()
    @_at_work
    def load(self, path: str | os.PathLike[str] | SavedState) -> None:
        """Take over a saved state; the next run goes on from it exactly.

        An engine that has not seen the model's arguments takes the state over at its first
        ``setup``, ``step`` or ``run``.

        Parameters
        ----------
        path : path or SavedState
            A file, or the best state of a run, ``result.best.state``.

        Raises
        ------
        ArgumentError
            The state is another engine's, one with other settings, or of another model.
        """
        # The saved end of a run holds until a run sets its own.
        before, self._horizon = self._horizon, None
        try:
            with state_files.reading(path):
                saved = _found(path, type(self).__name__)
                if self._bound is None:
                    self._restore_counts(saved[1])
                    self._pending = saved
                else:
                    self._restore(*saved)
        except Exception:
            self._horizon = before
            raise

    def _restore(self, header: dict[str, Any], state: dict[str, Any]) -> None:
        plan, bound = self.plan, self._require_bound()
        state_files.check(header, self._header(plan))
        self._check_memory(plan, state["memory"], bound.memory)
        if state["rows"] == self._rows(plan):
            state_files.check_kinds("estimator", self._estimator_state, state["estimator"])
        # A state that cannot be taken over must not leave the engine with half of it.
        before = self._kept_state().state
        try:
            with state_files.reading(None):
                self._take_over(state)
        except BaseException:
            self._take_over(before)
            raise
        if self._horizon is None:
            self._horizon = state["algorithm"].get("total_steps")

    def _take_over(self, state: dict[str, Any]) -> None:
        plan, bound = self.plan, self._require_bound()
        self._state = self._load_algorithm_state(plan, self._state, state["algorithm"])
        self._restore_counts(state)
        if state["batches"] is not None:
            place_of(state["batches"])
        self._place = state["batches"]
        seen = state["settling"]
        self._seen = None if seen is None else seen.cpu().numpy()
        check_saved(self._seen)
        self._generator.set_state(state["generator"])
        # An order of other rows is of no use.
        self._estimator_state = (
            self._estimator_of_own(state["estimator"])
            if state["rows"] == self._rows(plan)
            else plan.estimator.init(plan.target, bound.data, self._generator)
        )
        self._draws.set_state(state["draws"])

    def _restore_counts(self, state: dict[str, Any]) -> None:
        counts = [state[name] for name in ("steps", "skipped")]
        if not all(is_count(each, least=0) for each in counts):
            raise ValueError(f"its counts of steps are {counts}")
        if not isinstance(state["gradient_evaluations"], int | float):
            raise TypeError(f"its gradient evaluations are {state['gradient_evaluations']!r}")
        self.num_steps_taken = state["steps"]
        self.num_skipped = state["skipped"]
        self.gradient_evaluations = state["gradient_evaluations"]
        # Lists of a state that is in memory are the engine's own, which have gone on.
        self.history = {name: each[: state["steps"]] for name, each in state["history"].items()}


def seeded_generator(*seeds: int) -> torch.Generator:
    """Generator for one or several whole numbers.

    torch's generator starts badly from seeds with few bits set, such as 0 or 1 (the mean of its
    first 4,000 normal draws can be 4.7 standard errors off), so the bits are mixed first.
    """
    mixed = np.random.SeedSequence([seed % 2**64 for seed in seeds]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(mixed[0] >> 1))


def on_host(tensor: Tensor) -> np.ndarray:
    """A tensor as an array of NumPy."""
    found = tensor.detach().cpu()
    # NumPy has no bfloat16.
    return np.asarray((found.float() if found.dtype == torch.bfloat16 else found).numpy())


def _seen(tree: Any) -> tuple[tuple[int, int], ...]:
    """Which tensors there are in a tree, and how often torch has written into each."""
    leaves = tree_leaves(tree)
    return tuple(
        (id(each), 0 if each.is_inference() else each._version)
        for each in leaves
        if isinstance(each, Tensor)
    )


def _of_its_own(saved: SavedState) -> SavedState:
    """The same in tensors of its own; histories, which only grow, are shared."""
    shared = {id(saved.state["history"]): saved.state["history"]}
    return SavedState(saved.header, copy.deepcopy(saved.state, shared))


def _found(path: Any, engine: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and state of a file, or of a state in memory, that this engine gave."""
    if isinstance(path, SavedState):
        state_files.check_engine(path.header["engine"], engine)
        return path.header, _of_its_own(path).state
    header, state = state_files.load(path, engine, _from_numpy)
    history = {name: values.tolist() for name, values in state["history"].items()}
    lengths = {name: len(values) for name, values in history.items()}
    if "loss" not in lengths or set(lengths.values()) != {state["steps"]}:
        raise ValueError(f"it has {state['steps']} steps, with figures of {lengths}")
    return header, {**state, "history": history}


def _as_numpy(leaf: Any) -> tuple[np.ndarray, dict[str, Any]]:
    if not isinstance(leaf, Tensor):
        raise TypeError(f"Expected a state of tensors and plain values, found {leaf!r}.")
    tensor, extra = leaf.detach().cpu(), {"device": str(leaf.device)}
    if tensor.dtype == torch.bfloat16:  # which NumPy does not have
        return tensor.view(torch.int16).numpy(), {**extra, "as": "bfloat16"}
    return tensor.numpy(), extra


def _from_numpy(array: np.ndarray, extra: Mapping[str, Any]) -> Tensor:
    # Arrays of a file that was read may not be written to.
    tensor = torch.from_numpy(np.array(array))
    if "as" in extra:
        tensor = tensor.view(getattr(torch, extra["as"]))
    return tensor.to(extra["device"])
