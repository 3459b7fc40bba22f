"""What engines of both packages share: their options, what they met, and how they name both."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from ppl_ext.arguments import check_callable, nonfinite_arguments
from ppl_ext.batches.batch import Batch
from ppl_ext.batches.stream import Stream
from ppl_ext.documented import documents_subclasses
from ppl_ext.engines.judgement import EndedRun, Judgement, judge
from ppl_ext.errors import ArgumentError, HeldParameterWarning, NonFiniteError
from ppl_ext.gradients.estimator import GradientEstimator
from ppl_ext.networks.random_module import watched
from ppl_ext.options import check_choice, check_count, decisions, describe, described, options_of
from ppl_ext.process import swapped
from ppl_ext.running.best import LARGEST, Best, Watch, warn_if_lost
from ppl_ext.running.piece import Piece
from ppl_ext.running.run import Cadence, check_callback
from ppl_ext.running.settling import Settled, Settling, SettlingWatch, warn_if_unsettled
from ppl_ext.running.sharding import ShardingShell, check_sharding
from ppl_ext.running.whole_files import check_can_write
from ppl_ext.start.given import HOST, SEARCH, Started, check_start
from ppl_ext.start.rows import Rows
from ppl_ext.start.search import MOST_SEARCHED
from ppl_ext.start.start import Start
from ppl_ext.target.bounds import look_of
from ppl_ext.target.log_density import warn_of_nothing
from ppl_ext.target.noncentred import Moves, Noncentred, check_moved, say_before_run

Target = TypeVar("Target")

#: Draws that an engine gives unless told otherwise.
DRAWS = 1000
#: What may be done about a step that is not finite.
ON_NONFINITE = ("raise", "skip")
#: A longer start takes as much memory as the weights of a network, and is not kept to be seen.
LONGEST_START = 2**18


@documents_subclasses
class EngineShell:
    """The options of an engine, and what it knows once it has met the model's arguments.

    Options are never written over. What is decided when the arguments are met is a plan, which
    ``_bound`` holds together with the last arguments.

    Parameters
    ----------
    model : callable
    estimator : GradientEstimator, optional
    on_nonfinite : {"raise", "skip"}
    sharding : Sharding, optional
        How positions and rows are split over devices.
    reparameterise : bool
        Whether sites of latent scale are written non-centred.
    **unknown
        Options that no engine has, which are refused.
    """

    #: What models are written in.
    _host: str
    #: Whether a run ends with a judgement of its answer.
    _judges: ClassVar[bool] = True
    # Whether no draw is made without a pass over all rows.
    _draws_take_all_rows = False
    # Whether each position is an answer of its own, and not a draw of one.
    _answers_apart = False
    #: What makes steps gentler, in the words of an error.
    _gentler: ClassVar[str] = "Lower the learning rate"
    #: Whether any number of independent draws may be asked for.
    makes_draws = False
    #: Where runs start unless told otherwise.
    _usual_start: ClassVar[str] = SEARCH
    #: How a guide of the host is given as a start.
    _guide_form: ClassVar[str]
    #: What says how positions and rows are split over devices.
    _sharding_class: ClassVar[type[ShardingShell]]
    #: How a run goes back to its best state.
    _back_to_best: ClassVar[str]
    #: What estimators are instances of.
    _estimator_class: ClassVar[type]
    #: The calls with which an engine meets the model's arguments.
    _first_verbs: ClassVar[str]
    #: A model as one that may be written non-centred; what of a target and its data is to be so.
    _noncentred: ClassVar[Callable[..., Noncentred]]
    _moves_of: ClassVar[Callable[..., Moves]]
    #: Where a run of a target starts, of a target, random numbers, data and what is given.
    _start_of: ClassVar[Callable[..., Started | None]]
    #: Whether this is a guide of the host with parameters.
    _is_guide: ClassVar[Callable[..., bool]]
    #: Digest of the numbers in a tree of arguments.
    _digest: ClassVar[Callable[..., str]]

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        estimator: GradientEstimator | None = None,
        init_strategy: Callable[..., Any] | None = None,
        likelihood_temperature: float = 1.0,
        particle_chunk: int | None = None,
        data_chunk: int | None = None,
        on_nonfinite: str = "raise",
        sharding: ShardingShell | None = None,
        reparameterise: bool = False,
        **unknown: Any,
    ) -> None:
        self._check_no_more(unknown)
        check_callable(model, self._host)
        check_choice("on_nonfinite", on_nonfinite, ON_NONFINITE)
        check_choice("reparameterise", reparameterise, (True, False))
        if estimator is not None and not isinstance(estimator, self._estimator_class):
            raise ArgumentError(
                "Expected estimator to be a GradientEstimator, such as Minibatch() or Full(), "
                f"found {described(estimator)}."
            )
        if sharding is not None:
            check_sharding(sharding, self._sharding_class)
        self.model = model
        self.sharding: Any = sharding
        self.estimator: Any = estimator
        self.init_strategy = init_strategy
        self.likelihood_temperature = likelihood_temperature
        self.particle_chunk = particle_chunk
        self.data_chunk = data_chunk
        self.on_nonfinite = on_nonfinite
        self.reparameterise = reparameterise
        # What runs: the model, or one that may be written non-centred.
        self._program: Any = self._noncentred(model) if reparameterise else model
        self._has_looked = False
        # Whether it draws the weights of a network.
        self._is_network = False
        # Sites of latent scale that the look found, where the program is fitted as written.
        self._centred: tuple[str, ...] = ()
        #: Where the last run started that had no state; None where that was by the host's init
        #: strategy, and where there are more than ``LONGEST_START`` numbers.
        self.start: Start | None = None
        self._bound: Any = None
        # Of an engine that was pickled or copied: what it needs to bind the model again.
        self._kept: tuple[Any, ...] | None = None

    def _check_no_more(self, unknown: Mapping[str, Any]) -> None:
        """Refuse options that no engine has, and say where those of a run belong."""
        run: Any = type(self).run  # type: ignore[attr-defined]
        of_run = inspect.signature(run).parameters
        for name, value in unknown.items():
            if name in of_run:
                raise ArgumentError(
                    f"Expected {name}= in run, found it among the options of "
                    f"{type(self).__name__}: it belongs to one run. Write engine.run(..., "
                    f"{name}={describe(value)})."
                )
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument '{name}'")

    def __repr__(self) -> str:
        shown = [f"{name}={describe(value)}" for name, value in options_of(self).items()]
        if (bound := getattr(self, "_bound", None)) is not None:
            shown.append(f"plan={bound.plan!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def plan(self) -> Any:
        """What the engine decided about the model and its arguments; its fields are frozen.

        Raises
        ------
        RuntimeError
            The engine has not seen the model's arguments yet.
        """
        return self._require_bound().plan

    @property
    def target(self) -> Any:
        """The model as a ``LogDensity``; raises as :attr:`plan` does."""
        return self._require_bound().plan.target

    @property
    def data(self) -> Any:
        """The arguments that the engine saw last; raises as :attr:`plan` does."""
        return self._require_bound().data

    def _known(self) -> Any:
        """What the engine has met, or what it was a copy of; None before that."""
        if self._bound is None and self._kept is not None:
            kept, self._kept = self._kept, None
            try:
                self._meet_again(*kept)
            except BaseException:
                self._kept = kept
                raise
        return self._bound

    def _require_bound(self) -> Any:
        if self._bound is None and self._known() is None:
            raise RuntimeError(
                f"{type(self).__name__} has not seen the model's arguments yet. Call "
                f"{self._first_verbs} with them first."
            )
        return self._bound

    # -- copies ------------------------------------------------------------------------------

    def _to_keep(self) -> tuple[Any, ...]:
        """What :meth:`_meet_again` takes: the model's arguments and its held parameters."""
        bound = self._bound
        return bound.data.args, bound.data.kwargs, bound.plan.target.bound.held

    def _meet_again(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], held: Any) -> None:
        """Bind the model to these arguments, with these parameters, as before."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        # Traced graphs and compiled programs cannot be pickled and are made anew when needed.
        kept = self._kept if self._bound is None else self._to_keep()
        return {**vars(self), "_bound": None, "_kept": kept}

    def __copy__(self) -> EngineShell:
        """A copy shares nothing with the engine, as :func:`copy.deepcopy` makes it."""
        return copy.deepcopy(self)

    def _target_options(self) -> dict[str, Any]:
        """Options of the engine that are the target's."""
        return {
            "init_strategy": self.init_strategy,
            "likelihood_temperature": self.likelihood_temperature,
            "particle_chunk": self.particle_chunk,
            "data_chunk": self.data_chunk,
        }

    def _settings(self) -> dict[str, str]:
        """Options that a saved state belongs to, described so that any process says the same."""
        return {
            "likelihood_temperature": repr(float(self.likelihood_temperature)),
            "reparameterise": repr(bool(self.reparameterise)),
        }

    def _target_of(
        self,
        make: Callable[[Callable[..., Any]], Target],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Target:
        """The target of the program, with sites of latent scale non-centred where asked for.

        Where it is not, the first call says which sites these are. It also says where the program
        observes nothing.

        Parameters
        ----------
        make : callable
            Of a program: its target.
        args, kwargs
            The program's arguments.

        Raises
        ------
        ModelCheckError
            The program with sites non-centred is another one.
        """
        # The first target is of the program as written, by which it is seen which sites have a
        # latent scale.
        if self._has_looked:
            return make(self._program)
        with watched() as modules:
            target: Any = make(self.model)
        self._is_network = bool(modules)
        warn_of_nothing(target)
        if self.reparameterise:
            moves = self._moves_of(target, target.bind(*args, **kwargs))
            if moves.latents:
                written, before = target, (self._program.moves, self._program.names)
                self._program.moves, self._program.names = moves, target.layout.names
                try:
                    target = make(self._program)
                    self._check_moved(written, target, args, kwargs)
                except BaseException:
                    self._program.moves, self._program.names = before
                    raise
        elif target.dim <= MOST_SEARCHED:  # Beyond, fit does not write programs anew either.
            with suppress(Exception):  # Only a look, which a run can do without.
                if latents := self._moves_of(target, target.bind(*args, **kwargs)).latents:
                    self._centred = tuple(latents)
                    say_before_run(type(self).__name__, self._centred)
        self._has_looked = True
        return target

    def _check_moved(
        self, written: Any, moved: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """See that the targets as written and as moved are of the same program."""
        of_written, of_moved = (each.bind(*args, **kwargs) for each in (written, moved))
        check_moved(self._program.moves, written, of_written, moved, of_moved)

    def _with_start(self, plan: Any, random: Any, data: Any, given: Any) -> Any:
        """The plan with a target that starts where a run does."""
        options = {"has_strategy": self.init_strategy is not None}
        usual = self._default_start(plan)
        found = self._start_of(plan.target, random, data, given, usual=usual, **options)
        # A longer start takes as much memory as the weights of a network.
        is_long = plan.target.dim > LONGEST_START
        self.start = None if found is None or is_long else found.start
        return plan if found is None else replace(plan, target=plan.target.with_start(found))

    def _default_start(self, plan: Any) -> str:
        """Where a run with this plan starts when nobody says: "search" or "host"."""
        return self._usual_start if self.init_strategy is None else HOST

    def _check_start(self, start: Any, has_state: bool) -> None:
        """See that a start is one, and that a run is one that starts.

        Raises
        ------
        ArgumentError
            It is not.
        """
        check_start(start, self._is_guide, self._guide_form)
        if start is not None and has_state:
            raise ArgumentError(
                f"Expected no start for a run that goes on from a state, found "
                f"{described(start)}. Leave start out, or make a new {type(self).__name__}."
            )

    def _check_run(self, callback: Any, checkpoint: Any) -> None:
        """See that a run's callback can be called, and that its checkpoint can be written.

        Raises
        ------
        ArgumentError
            The callback cannot be called with a step, the engine or its state, and figures, or
            the checkpoint cannot be written.
        """
        check_callback(callback)
        if checkpoint is not None and (self.sharding is None or self.sharding.writes):
            check_can_write(checkpoint, "checkpoint")

    def _watch(self, keep_best: bool | None, size: int, keep: Callable[[], Any]) -> Watch:
        """What looks at a run, whose state has ``size`` bytes and is copied by ``keep``."""
        keeps = size <= LARGEST if keep_best is None else keep_best
        return Watch(self.target.dim, self._nats, keep if keeps else None)

    def _until(
        self,
        rule: Settled | None,
        cadence: Cadence,
        positions: Callable[[], Any],
        saved: Any,
    ) -> SettlingWatch | None:
        """What ends a run once it has settled by a rule, judged by its present positions.

        It watches on where that of a run was that was broken off, of which ``saved`` is.
        """
        if rule is None:
            return None
        search = math.ceil(self._search_share(self.plan) * cadence.last)
        sites = self.target.layout.slices
        first = max(cadence.first, search)
        watch = SettlingWatch(rule, first, positions, sites, self._answers_apart)
        watch.go_on(saved)
        return watch

    def _ended(
        self, plan: Any, piece: Piece, watch: Watch, until: SettlingWatch | None, asked: int | None
    ) -> tuple[Best | None, Settling | None]:
        """The best state of a run that has ended, and how settled it is; warns where it must.

        ``asked`` are its steps, None where it ended before the last.
        """
        name, best = type(self).__name__, watch.end()
        settled = None if until is None else until.found
        warn_if_lost(name, best, self._back_to_best)
        if asked is not None:
            warn_if_unsettled(name, settled, asked)
        self._look_at_end(plan, piece)
        return best, settled

    def _draws_to_look_at(self, plan: Any) -> int | None:
        """Number of draws by which a run's settling is judged; None for the engine's own."""
        return None

    def _search_share(self, plan: Any) -> float:
        """Share of all steps in which the engine looks for a place, and cannot settle."""
        return 0.0

    def _nats(self, piece: Piece) -> Any:
        """What the steps of a run are judged by (steps,), less being better, in nats."""
        return piece.losses

    def _look_at_end(self, plan: Any, piece: Piece) -> None:
        """Say what the figures of a whole run show, besides that it ended far above its best."""

    def _scores_of_a_step(self, plan: Any) -> float:
        """Score evaluations that a step takes as long as, at each of its positions."""
        return 1.0

    def _notes(self, plan: Any) -> tuple[str, ...]:
        """What a judgement tells of the answer whatever the draws show."""
        return ()

    def _judgement(
        self,
        plan: Any,
        data: Any,
        stream: Stream | None,
        kwargs: Mapping[str, Any],
        pieces: Callable[[Any, dict[str, np.ndarray] | None], Any],
        evaluations: float,
        out_of_bounds: Callable[..., Any],
        prior: Callable[[int], np.ndarray],
        **found: Any,
    ) -> Judgement | None:
        """What speaks for and against the answer of a run that has ended; warns where it must.

        ``kwargs`` are the model's beside those of a ``stream``'s batches, and ``pieces`` evaluate
        with arguments and some of their rows, or all; ``out_of_bounds`` is what
        :func:`~ppl_ext.target.bounds.look_of` takes, ``prior`` draws from it, and ``found`` are
        other fields of :class:`~ppl_ext.engines.judgement.EndedRun` that a package knows.
        """
        if not self._judges:
            return None
        target = plan.target

        def of_batch(batch: Batch) -> Any:
            return pieces(target.bind(*batch.args, **{**kwargs, **batch.kwargs}), None)

        def of_plates() -> Rows:
            return Rows.of_plates(target.plates, partial(pieces, data), np.random.default_rng(0))

        rows: Callable[[], Rows] = of_plates
        has_all = has_rows = not target.partial_plates(data)
        if not has_rows and stream is not None and stream.size and self.sharding is None:
            batches, size = stream.sample(), stream.size
            has_rows = bool(batches) and not self._draws_take_all_rows
            rows = partial(Rows.of_batches, batches, size, of_batch)
        judgement = judge(
            EndedRun(
                type(self).__name__,
                target.dim,
                target.layout.slices,
                rows=rows,
                epsilon=target.epsilon,
                has_rows=has_rows,
                evaluations=evaluations * self._scores_of_a_step(plan),
                draws_take_all_rows=self._draws_take_all_rows,
                modes=() if self.start is None else self.start.modes,
                centred=self._centred,
                notes=self._notes(plan),
                out_of_bounds=look_of(out_of_bounds, target, data) if has_all else None,
                # Weights of a network have many modes that are the same function.
                prior=prior if has_all and not self._is_network else None,
                **found,
            )
        )
        judgement.warn()
        return judgement

    def _tuning(self) -> dict[str, str]:
        """Settings that a saved state may go on without: the engine's own hold, and it says so."""
        return {}

    def _memory(self, plan: Any, data: Any) -> str:
        """Digest of the data that the estimator's state knows something of; empty if of none."""
        known = plan.estimator.memory_of(data)
        if known is None:
            return ""
        # Batches that are arguments come in several forms, and what a model closes over may too.
        constants = "" if plan.target.batch_plates else plan.target.constants(data)
        return self._digest((known, constants))

    def _rows(self, plan: Any) -> str:
        """The rows that the estimator draws from, in words."""
        return describe({name: each.size for name, each in plan.target.plates.items()})

    def _check_memory(self, plan: Any, saved: str, own: str) -> None:
        """See that what a saved estimator knows of the data is of these.

        Raises
        ------
        ArgumentError
            It is of others.
        """
        if saved != own:
            raise ArgumentError(
                f"The saved state belongs to other data: {type(plan.estimator).__name__} keeps "
                f"scores of the rows that it has seen (digest {saved or 'none'}), found others "
                f"({own or 'none'}). Load it with the arguments that it was saved with; the next "
                "run may have others, goes on from where the state is, and computes its scores "
                "anew."
            )

    @contextmanager
    def _met_again(self, known: Any) -> Iterator[None]:
        """Context in which a target is made anew, with no word of what the known one has told."""
        with swapped(warnings.catch_warnings()):
            if known is not None:
                warnings.simplefilter("ignore", HeldParameterWarning)
            yield

    def _check_same_latents(self, known: Any, found: Any) -> None:
        """See that other arguments have left the latent sites as they were.

        Raises
        ------
        ArgumentError
            They have not.
        """
        if found.layout == known.layout:
            return
        each_of = [
            {n: (each.layout.shapes[n], each.layout.families.get(n)) for n in each.layout.names}
            for each in (known, found)
        ]
        names = {**each_of[0], **each_of[1]}
        changed = [name for name in names if each_of[0].get(name) != each_of[1].get(name)]
        before, now = ({n: each[n] for n in changed if n in each} for each in each_of)
        raise ArgumentError(
            f"Expected data with the latent sites that this {type(self).__name__} goes on from, "
            f"found that {changed or list(names)} are others: {now} where they were {before}. "
            "Latent sites that belong to rows, or to groups of rows, have no values for new ones. "
            "Pass data with the same rows, or make a new engine for these."
        )

    def _header(self, plan: Any) -> dict[str, Any]:
        """What a state belongs to: the engine, its options and decisions, and the latent sites.

        Latent sites with their unconstrained shapes, and the families of their distributions.
        """
        layout = plan.target.layout
        return {
            "engine": type(self).__name__,
            "settings": {
                "dtype": str(plan.target.dtype),
                **self._settings(),
                **decisions(plan),
            },
            "tuning": self._tuning(),
            "sites": [
                [name, list(layout.shapes[name]), layout.families[name]] for name in layout.names
            ],
        }

    def _nonfinite_arguments(self) -> str:
        """What is to be said of the arguments that the engine saw last."""
        if self._bound is None:
            return ""
        return nonfinite_arguments(self.model, self.data.args, self.data.kwargs)

    def _nonfinite_error(self, step: int, state: Any = None) -> NonFiniteError:
        where = "the engine holds" if state is None else "the error's state is"
        return NonFiniteError(
            f"Expected finite scores and updates, found that step {step} of {type(self).__name__} "
            f"was not; {where} the state before it. {self._gentler}, check the data for "
            f"NaN, or pass on_nonfinite='skip'.{self._nonfinite_arguments()}",
            step=step,
            state=state,
        )


def draws_asked(num_samples: int | None) -> int:
    """How many draws an engine gives where so many are asked for, or nobody says."""
    check_count("num_samples", num_samples, optional=True)
    return DRAWS if num_samples is None else num_samples
