"""What all engines share: setting up the target, the run loop, saving, and broken steps.

An engine is a thin shell with the host's verbs around an update function on tensors. It holds the
options that it was given, the state of its algorithm, and, once it has met the model's arguments,
one frozen :class:`Plan` of all that it decided then; options are never written over. A subclass
fills in five hooks:

``_initialize(plan, data)``
    Builds the algorithm's tensors.
``_update(plan, data)``
    Takes one step and returns an :class:`Update`.
``_algorithm_state()``, ``_load_algorithm_state(state)``
    Save the algorithm's state.
``_draw(plan, num_samples)``
    Flat posterior draws (draws, D).

An engine that decides more than the base does has a plan class with more fields, and makes it in
``_plan(target, generator, data)``. ``_settings()`` may name the options that a saved state depends
on, such as the kernel.
"""

from __future__ import annotations

import math
import os
import pickle
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from ppl_ext.errors import ArgumentError, NonFiniteError
from ppl_ext.options import check_count, decisions, describe, described, is_count, options_of
from pyro_ext.density import Data, LogDensity
from pyro_ext.gradients import GradientEstimator, ScoreEstimate, default_estimator
from pyro_ext.optim import EngineOptimizer, OptimizerLike

FORMAT = 1
ON_NONFINITE = ("raise", "skip")

Callback = Callable[[int, "Engine", Mapping[str, float]], bool | None]


class Update(NamedTuple):
    """Result of one step.

    ``loss`` is what the progress bar shows, ``info`` further figures, and ``finite`` tells
    whether the step was taken: an update that is not finite must leave the state as it was.
    """

    loss: float
    info: dict[str, float]
    finite: bool


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind.

    Parameters
    ----------
    losses : array (steps,)
        Loss of each step of this run; NaN where a step was not finite and skipped.
    info : dict of str to array (steps,)
        Further figures of each step, such as the force norm.
    """

    losses: np.ndarray
    info: dict[str, np.ndarray] = field(default_factory=dict)


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
class _Meeting:
    """What is known once the engine has met the model's arguments: ``data`` are the last ones."""

    plan: Plan
    data: Data


class Engine(ABC):
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
    """

    #: Whether latents inside a subsampled plate are accepted.
    allow_local_latents = True

    def __init__(
        self,
        model: Callable[..., Any],
        optim: OptimizerLike | None = None,
        *,
        estimator: GradientEstimator | None = None,
        init_strategy: Callable[..., Any] | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        evaluation: str = "graph",
        on_nonfinite: str = "raise",
        seed: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if on_nonfinite not in ON_NONFINITE:
            raise ArgumentError(
                f"Expected on_nonfinite to be one of {ON_NONFINITE}, found {on_nonfinite!r}."
            )
        if estimator is not None and not isinstance(estimator, GradientEstimator):
            raise ArgumentError(
                "Expected estimator to be a GradientEstimator such as Minibatch(), found "
                f"{type(estimator).__name__}."
            )
        self.model = model
        self.optim = optim
        self._optimizer: EngineOptimizer | None = None
        self.on_nonfinite = on_nonfinite
        self.num_steps_taken = 0
        self.num_skipped = 0
        self.gradient_evaluations = 0.0
        self.history: dict[str, list[float]] = {"loss": []}
        self.estimator = estimator
        self.init_strategy = init_strategy
        self.likelihood_temperature = likelihood_temperature
        self.particle_chunk = particle_chunk
        self.data_chunk = data_chunk
        self.evaluation = evaluation
        self.dtype = dtype
        if seed is not None and not is_count(seed, -math.inf):
            raise ArgumentError(f"Expected seed to be an int, found {described(seed)}.")
        self.seed = seed
        self._estimator_state: dict[str, Any] = {}
        seed = int(torch.randint(2**62, ())) if seed is None else int(seed)
        self._generator = seeded_generator(seed)
        self._meeting: _Meeting | None = None
        self._pending: dict[str, Any] | None = None
        self._horizon: int | None = None

    def __repr__(self) -> str:
        shown = [f"{name}={describe(value)}" for name, value in options_of(self).items()]
        if self._meeting is not None:
            shown.append(f"plan={self._meeting.plan!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def losses(self) -> list[float]:
        """Loss of every step so far, over all runs; NaN where a step was skipped."""
        return self.history["loss"]

    # -- hooks -------------------------------------------------------------------------------

    def _plan(self, target: LogDensity, generator: torch.Generator, data: Data) -> Plan:
        """What the engine decides about a target and its data, checked."""
        return Plan(target, self.estimator or default_estimator(target))

    @abstractmethod
    def _initialize(self, plan: Any, data: Data) -> None:
        """Build the algorithm's tensors."""

    @abstractmethod
    def _update(self, plan: Any, data: Data) -> Update:
        """Take one step."""

    @abstractmethod
    def _algorithm_state(self) -> dict[str, Any]:
        """Tensors and plain values that the next step needs, for saving."""

    @abstractmethod
    def _load_algorithm_state(self, state: dict[str, Any]) -> None:
        """Take over a state from :meth:`_algorithm_state`; tensors are built already."""

    def _settings(self) -> dict[str, str]:
        """Settings that a saved state depends on, by name; a state is loaded only into the same."""
        return {
            "likelihood_temperature": repr(float(self.likelihood_temperature)),
            "optimizer": "none" if self._optimizer is None else self._optimizer.description,
        }

    @abstractmethod
    def _draw(self, plan: Any, num_samples: int | None) -> Tensor:
        """Flat posterior draws (draws, D)."""

    # -- set up ------------------------------------------------------------------------------

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
        """The arguments that the engine saw last; as :attr:`plan`."""
        return self._met().data

    def _met(self) -> _Meeting:
        if self._meeting is None:
            raise RuntimeError(
                f"{type(self).__name__} has not seen the model's arguments yet. Call run, step or "
                "setup with them first (also after load)."
            )
        return self._meeting

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Check the model with these arguments and build the state, without taking a step.

        Raises
        ------
        ModelCheckError
            The model cannot be fitted; see :mod:`pyro_ext.density.check`.
        ArgumentError
            The arguments do not fit the model.
        """
        known = self._meeting
        if known is not None:
            self._meeting = replace(known, data=known.plan.target.bind(*args, **kwargs))
            return
        target = LogDensity(
            self.model,
            args,
            kwargs,
            allow_local_latents=self.allow_local_latents,
            init_strategy=self.init_strategy,
            likelihood_temperature=self.likelihood_temperature,
            particle_chunk=self.particle_chunk,
            data_chunk=self.data_chunk,
            evaluation=self.evaluation,
            dtype=self.dtype,
        )
        data = target.bind(*args, **kwargs)
        plan = self._plan(target, self._generator, data)
        self._estimator_state = plan.estimator.init(target, data, self._generator)
        self._initialize(plan, data)
        self._meeting = _Meeting(plan, data)
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._restore(pending)

    def _score(self, z: Tensor, data: Data) -> ScoreEstimate:
        """Score at particles z (P, D) by the engine's estimator, which moves on."""
        plan = self._met().plan
        score, self._estimator_state = plan.estimator.estimate(
            plan.target, self._estimator_state, z, data, self._generator
        )
        self.gradient_evaluations += z.shape[0] * plan.estimator.evaluations_per_step(plan.target)
        return score

    # -- verbs -------------------------------------------------------------------------------

    def step(self, *args: Any, **kwargs: Any) -> float:
        """Take one step with these arguments of the model and return the loss.

        Raises
        ------
        NonFiniteError
            The step was not finite and ``on_nonfinite="raise"``; the state is as before.
        """
        self.setup(*args, **kwargs)
        return self._step_once().loss

    def _step_once(self) -> Update:
        known = self._met()
        before = self._estimator_state, self._generator.get_state(), self.gradient_evaluations
        update = self._update(known.plan, known.data)
        if not update.finite and self.on_nonfinite == "raise":
            self._estimator_state, generator, self.gradient_evaluations = before
            self._generator.set_state(generator)
            step = self.num_steps_taken + 1
            raise NonFiniteError(
                f"Step {step} of {type(self).__name__} was not finite. The engine holds the state "
                "before it. Expected finite scores and updates; lower the learning rate, check the "
                "data, or pass on_nonfinite='skip'.",
                step=step,
            )
        self.num_steps_taken += 1
        if not update.finite:
            self.num_skipped += 1
            update = update._replace(loss=float("nan"))
        for name, value in {"loss": update.loss, **update.info}.items():
            self.history.setdefault(name, []).append(value)
        return update

    def run(
        self,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        callback: Callback | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 1000,
        **kwargs: Any,
    ) -> RunResult:
        """Take ``num_steps`` steps with these arguments of the model.

        Parameters
        ----------
        num_steps : int
        *args, **kwargs
            Arguments of the model.
        progress_bar : bool
            Show loss and rate.
        callback : callable, optional
            ``callback(i, engine, info)`` after every step, with the number of steps taken so
            far and the step's figures; returning True ends the run.
        checkpoint : path, optional
            Save the state there every ``checkpoint_every`` steps and at the end. A new engine
            that loads it and runs the remaining steps ends bit-identical to a run that was not
            interrupted.
        checkpoint_every : int

        Returns
        -------
        RunResult

        Raises
        ------
        NonFiniteError
            A step was not finite and ``on_nonfinite="raise"``.
        """
        if not is_count(num_steps, least=0):
            raise ArgumentError(
                "Expected num_steps to be an int >= 0 and the first argument of run, found "
                f"{described(num_steps)}."
            )
        check_count("checkpoint_every", checkpoint_every)
        # Schedules over a run need its end; a resumed run ends where the first one would have.
        self._horizon = self.num_steps_taken + num_steps
        self.setup(*args, **kwargs)
        losses: list[float] = []
        info: dict[str, list[float]] = {}
        name = type(self).__name__
        with tqdm(total=num_steps, desc=name, disable=not progress_bar, mininterval=0.2) as bar:
            for _ in range(num_steps):
                update = self._step_once()
                losses.append(update.loss)
                for key, value in update.info.items():
                    info.setdefault(key, []).append(value)
                if progress_bar:
                    bar.set_postfix(_figures(update), refresh=False)
                    bar.update()
                taken = self.num_steps_taken
                if checkpoint is not None and taken % checkpoint_every == 0:
                    self.save(checkpoint)
                if callback is not None:
                    figures = {"loss": update.loss, **update.info}
                    if callback(taken, self, figures):
                        break
        if checkpoint is not None:
            self.save(checkpoint)
        return RunResult(np.asarray(losses), {k: np.asarray(v) for k, v in info.items()})

    def get_samples(self, num_samples: int | None = None) -> dict[str, Tensor]:
        """Posterior draws: latent site to constrained values, leading dimension = draws.

        The dictionary is what ``Predictive(model, posterior_samples=...)`` takes. Particle
        engines return as many draws as particles.
        """
        target, data = self.target, self.data
        with torch.no_grad():
            return target.constrain(self._draw(self.plan, num_samples), data)

    # -- saving ------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state of the engine; the file is complete or absent, never half written."""
        state = {
            "format": FORMAT,
            "engine": type(self).__name__,
            "sites": _sites(self.target),
            "steps": self.num_steps_taken,
            "skipped": self.num_skipped,
            "gradient_evaluations": self.gradient_evaluations,
            "settings": self._settings(),
            "plan": decisions(self.plan),
            "history": {
                name: torch.tensor(values, dtype=torch.float64)
                for name, values in self.history.items()
            },
            "estimator": self._estimator_state,
            "generator": self._generator.get_state(),
            "algorithm": self._algorithm_state(),
        }
        path = os.fspath(path)
        directory = os.path.dirname(os.path.abspath(path))
        handle, temporary = tempfile.mkstemp(dir=directory, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save(state, file)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take over a saved state; the next run goes on from it exactly.

        An engine that has not seen the model's arguments takes the state over at its first
        ``setup``, ``step`` or ``run``.

        Raises
        ------
        ArgumentError
            The file was saved by another engine, with other settings, or for another model.
        """
        try:
            state = torch.load(path, weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, KeyError, EOFError) as error:
            raise ArgumentError(
                f"Expected a file saved by an engine, found one that cannot be read: {path}."
            ) from error
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise ArgumentError(f"Expected a file saved by an engine, found another: {path}.")
        if state["engine"] != type(self).__name__:
            raise ArgumentError(
                f"Expected a state of {type(self).__name__}, found one of {state['engine']}."
            )
        if self._meeting is None:
            self._restore_counts(state)
            self._pending = state
        else:
            self._restore(state)

    def _restore(self, state: dict[str, Any]) -> None:
        expected, found = _sites(self.target), state["sites"]
        if expected != found:
            raise ArgumentError(
                f"The saved state belongs to another model: expected sites {expected}, "
                f"found {found}."
            )
        saved = {**state["settings"], **state["plan"]}
        own = {**self._settings(), **decisions(self.plan)}
        for name in {**own, **saved}:
            if saved.get(name) != own.get(name):
                raise ArgumentError(
                    f"The saved state belongs to an engine with another {name}: expected "
                    f"{own.get(name)}, found {saved.get(name)}. Make the engine with the "
                    f"same {name} as when it was saved."
                )
        self._load_algorithm_state(state["algorithm"])
        self._restore_counts(state)
        self._estimator_state = state["estimator"]
        self._generator.set_state(state["generator"])

    def _restore_counts(self, state: dict[str, Any]) -> None:
        self.num_steps_taken = state["steps"]
        self.num_skipped = state["skipped"]
        self.gradient_evaluations = state["gradient_evaluations"]
        self.history = {name: values.tolist() for name, values in state["history"].items()}


def seeded_generator(*seeds: int) -> torch.Generator:
    """Generator for one or several whole numbers.

    torch's generator starts badly from seeds with few bits set, such as 0 or 1 (the mean of its
    first 4,000 normal draws can be 4.7 standard errors off), so the bits are mixed first.
    """
    mixed = np.random.SeedSequence([seed % 2**64 for seed in seeds]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(mixed[0] >> 1))


def _sites(target: LogDensity) -> list[list[Any]]:
    layout = target.layout
    return [[name, list(layout.shapes[name])] for name in layout.names]


def _figures(update: Update) -> dict[str, str]:
    return {key: f"{value:.4g}" for key, value in [("loss", update.loss), *update.info.items()]}
