"""The ways to write a program, each as what a fit asks of it: as written, then non-centred."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from ppl_ext.batches.batch import Batch
from ppl_ext.batches.passes import Passes, Sample, total_rows
from ppl_ext.fit.problem.engine import in_rounds, name_of, number_of_draws
from ppl_ext.fit.problem.observed import Observed
from ppl_ext.fit.problem.problem import (
    Approximate,
    Approximated,
    Meter,
    Positions,
    Problem,
    maps_of,
)
from ppl_ext.fit.problem.programs import Programs
from ppl_ext.fit.problem.views import NO_NAMES, Names, Views
from ppl_ext.running.settling import Settling
from ppl_ext.start import search
from ppl_ext.start.rows import Rows
from ppl_ext.start.search import Piece
from ppl_ext.start.start import Start
from ppl_ext.target.bounds import look_of
from ppl_ext.target.noncentred import ENTRY_DATA, Moves, Noncentred

#: The engine of a program and its target, or None where none can fit it.
EngineOf = Callable[[Callable[..., Any], Any], Any]
#: Log densities and scores of a target, of some rows or of all.
PieceOf = Callable[[Any, "dict[str, np.ndarray] | None"], Piece]
#: From positions (P, D) to the host's values by site, and from NumPy's values to its positions.
HostMaps = tuple[
    Callable[[Positions], Mapping[str, Any]], Callable[[Mapping[str, np.ndarray]], Any]
]


class EngineRun(Protocol):
    """An engine that is run again and again."""

    def run(
        self, steps: int, start: Start | None, *args: Any, **options: Any
    ) -> tuple[int, Settling]:
        """So many further steps at most: how many there were, and whether figures came to rest."""

    def spent(self, steps: int) -> float:
        """Evaluations that so many steps took."""

    def positions(self, target: Any, data: Any, number: int | None) -> Positions:
        """Draws as positions of a target."""


@dataclass(frozen=True)
class Host:
    """What a package adds, with the random numbers of one fit.

    Parameters
    ----------
    place, place_batch : callable
        Of a value of the user's, or of a loader's: the host's array.
    target : callable
        Of a program, its arguments, the names of those that come from a loader, and whether it is
        one that :mod:`ppl_ext.target.noncentred` has rewritten: the host's target.
    held : callable
        Of a target: the same with the values at which parameters without a prior are held.
    piece : callable
        Of a target: its :data:`PieceOf`.
    bound : callable
        Of a target and a batch's arguments: these as what is evaluated.
    digest : callable
        Of a tree of arguments.
    values : callable
        Of a target, positions (P, D) and data: the host's arrays by site, constrained.
    maps : callable
        Of a target and data: :data:`HostMaps`.
    initial, prior : callable
        Of a target, a number and data: random positions; with a seed, draws of the prior.
    epsilon : callable
        Of a target: its machine epsilon.
    out_of_bounds : callable
        Of a target, data and positions (S, D): truth values (S,), where a parameter or an
        observation of a site is out of the bounds of its distribution, by site and what.
    moves, noncentred : callable
        Sites that may be non-centred, and the program with these so.
    running : callable
        Of an engine: a :class:`EngineRun` of it.
    to_arviz, predictions, predictor : callable
        What a fit shows of the program.
    """

    place: Callable[[Any], Any]
    place_batch: Callable[[Any], Any]
    target: Callable[..., Any]
    piece: Callable[[Any], PieceOf]
    bound: Callable[..., Any]
    digest: Callable[[Any], str]
    values: Callable[[Any, Positions, Any], dict[str, Any]]
    maps: Callable[[Any, Any], HostMaps]
    initial: Callable[[Any, int, Any], Positions]
    prior: Callable[[Any, int, int, Any], Positions]
    epsilon: Callable[[Any], float]
    out_of_bounds: Callable[[Any, Any, Positions], Mapping[str, Mapping[str, Any]]]
    moves: Callable[[Any, Any], Moves]
    noncentred: Callable[..., Noncentred]
    running: Callable[[Any], EngineRun]
    to_arviz: Callable[..., Any]
    predictions: Callable[..., Any]
    predictor: Callable[..., Any]
    held: Callable[[Any], Any] = lambda target: target


def ways_of(
    host: Host,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    generator: np.random.Generator,
    engine_of: EngineOf | None = None,
    sharding: Any = None,
    passes: Passes | None = None,
    programs: Programs | None = None,
    names: Names = NO_NAMES,
) -> Iterator[Problem]:
    """A program as what a fit asks of it: as written first, then with sites non-centred.

    Rows come from a loader where there are ``passes``, to which ``args`` and ``kwargs`` add. What
    does not depend on the arguments' numbers is taken from ``programs`` where it is there.
    """
    once = Programs() if programs is None else programs
    args_given, of_all = args, dict(kwargs)
    sample: Sample | None = None
    loaded: tuple[str, ...] | None = None
    if passes is not None:
        clock = time.perf_counter if sharding is None else sharding.clock
        sample = passes.sample(host.place_batch, search.MOST_ROWS, clock)
        args, kwargs = sample.batch.args, {**of_all, **sample.batch.kwargs}
        loaded = tuple(sample.batch.kwargs)
    with nullcontext() if sample is None else sample.meeting():
        made = once("as written", lambda: host.target(model, args, kwargs, loaded, False))
    written = host.held(made)
    data = written.bind(*args, **kwargs)
    if sample is not None:
        written.check_batch(sample.batch, of_all)

    def digest() -> str:
        if sample is None:
            return host.digest((args, kwargs))
        # Loaders may give their rows in other orders.
        sizes = {name: each.size for name, each in written.batch_plates.items()}
        return host.digest((sample.batch.form(), sizes, of_all))

    def problem(
        name: str,
        program: Callable[..., Any],
        target: Any,
        own: Any,
        latents: Mapping[str, str] | None = None,
    ) -> Problem:
        def values(z: Positions) -> dict[str, Any]:
            found = host.values(target, z, own)
            # The program as written may have further values, the parameters of a Stan program.
            return found if latents is None else {n: found[n] for n in written.layout.names}

        # It takes all rows at hundreds of draws.
        look_at_bounds = None if passes else look_of(host.out_of_bounds, target, own)
        piece = once(f"pieces, {name}", lambda: host.piece(target))
        engine = None if engine_of is None else engine_of(program, target)
        rows = _rows(host, target, own, piece, sample, passes, of_all, generator)

        def by_strategy(number: int) -> Positions:
            return host.initial(target, number, own)

        few, dim = rows.few, target.dim
        return Problem(
            name,
            few,
            dim,
            host.epsilon(target),
            search.starting_points(few, dim, generator, by_strategy, has_strategy=False),
            target.layout.slices,
            values,
            target=written,
            own=target,
            data=own,
            digest=digest,
            of_all_rows=rows.every,
            times_all_rows=rows.times,
            reading=rows.reading,
            rows_of_batch=rows.number,
            parts=rows.parts,
            minibatches=rows.minibatches,
            approximate=_by_engine(host, engine, target, own, passes, of_all),
            maps=maps_of(target.layout.names, *host.maps(target, own)),
            latents=latents or {},
            observed=observed,
            prior=lambda number, seed: host.prior(target, number, seed, own),
            out_of_bounds=look_at_bounds,
            views=views,
        )

    views = Views(
        args_given,
        of_all,
        host.to_arviz,
        partial(host.predictions, model),
        names,
        None if passes is None else passes.loader,
        partial(host.predictor, model),
    )
    batches = {} if passes is not None else dict(written.batch_plates)
    observed = Observed(written.sees_data, batches, written.touches(data))
    first = problem("as written", model, written, data)
    yield first
    may_move = not (written.plates or first.of_all_rows)
    moves = once("moves", lambda: host.moves(written, data) if may_move else Moves())
    if not moves.latents:
        return

    program = host.noncentred(model, moves, written.layout.names)
    sites = ", ".join(moves.latents)

    def moved(name: str, program: Callable[..., Any], given: Mapping[str, Any]) -> Problem:
        own = once(name, lambda: host.target(program, args, given, loaded, True))
        found = problem(name, program, own, own.bind(*args, **given), moves.latents)
        return replace(found, lengths=moves.lengths)

    def partly(entry_data: Mapping[str, np.ndarray]) -> Problem:
        # Of sites that are shifted it is not known in which units: they stay non-centred.
        own = {n: 0.0 * each if n in moves.shifted else each for n, each in entry_data.items()}
        placed = {name: host.place(each.astype(np.float32)) for name, each in own.items()}
        given = {**kwargs, ENTRY_DATA: placed}
        between = moved(f"with {sites} partly non-centred", program.given_data(), given)
        return replace(between, entry_data=entry_data)

    yield replace(moved(f"with {sites} non-centred", program, kwargs), partly=partly)


def _rows(
    host: Host,
    target: Any,
    data: Any,
    piece: PieceOf,
    sample: Sample | None,
    passes: Passes | None,
    kwargs: Mapping[str, Any],
    generator: np.random.Generator,
) -> Rows:
    """Of which rows the density of a target is evaluated."""
    if sample is None or passes is None:
        return Rows.of_plates(target.plates, lambda rows: piece(data, rows), generator)
    over = host.piece(target.over(passes))

    def piece_of_batch(batch: Batch | None) -> Piece:
        if batch is None:
            return over(data, None)
        return piece(host.bound(target, *batch.args, **{**kwargs, **batch.kwargs}), None)

    size = total_rows(target.batch_plates, sample.batch.rows)
    return Rows.of_loader(sample, size, piece_of_batch)


def _by_engine(
    host: Host,
    engine: Any,
    target: Any,
    data: Any,
    passes: Passes | None,
    kwargs: Mapping[str, Any],
) -> Approximate | None:
    """Draws by an engine that runs until it has settled, or has spent what it may."""
    if engine is None:
        return None
    args, given = (data.args, data.kwargs) if passes is None else ((), kwargs)
    options: dict[str, Any] = {"until": "settled", "progress_bar": False}
    if passes is not None:
        # Losses of single batches are too noisy to tell which state was best.
        options |= {"batches": passes.loader, "keep_best": False}

    def approximate(start: Start | None, meter: Meter) -> Approximated:
        running = host.running(engine)

        def run(steps: int, is_over: Callable[..., bool]) -> tuple[int, Settling]:
            return running.run(steps, start, *args, callback=is_over, **options, **given)

        steps, settling = in_rounds(run, meter, running.spent)
        number = number_of_draws(target.dim) if engine.makes_draws else None
        positions = running.positions(target, data, number)
        return Approximated(name_of(engine), positions, steps, settling)

    return approximate
