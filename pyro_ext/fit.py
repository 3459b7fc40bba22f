"""``fit``: from a Pyro program to draws with a verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)
from pyro.optim import Adam
from torch import Tensor

from ppl_ext.arguments import entry
from ppl_ext.batches.batch import Batch
from ppl_ext.batches.passes import Passes, Sample, passes_of, total_rows
from ppl_ext.documented import documented
from ppl_ext.fit import fit as shared
from ppl_ext.fit import many
from ppl_ext.fit.engine import (
    check_own_engine,
    epoch_of,
    in_rounds,
    name_of,
    number_of_draws,
)
from ppl_ext.fit.fit import FIT_DOCUMENTATION, LOAD_DOCUMENTATION, TARGET_ESS, Fit
from ppl_ext.fit.habits import KEYS, check_habits, columns_as_arrays, engine_of
from ppl_ext.fit.many import MANY_DOCUMENTATION, Fits, calls_of
from ppl_ext.fit.policy import guide_for
from ppl_ext.fit.problem import (
    Approximate,
    Approximated,
    Meter,
    Problem,
    problem_of,
)
from ppl_ext.fit.programs import Programs
from ppl_ext.fit.views import NO_NAMES, Names, Views, axis_names
from ppl_ext.options import describe
from ppl_ext.running.settling import Settling
from ppl_ext.running.sharding import check_sharding
from ppl_ext.start import search
from ppl_ext.start.rows import Rows
from ppl_ext.start.search import Piece
from ppl_ext.start.start import Start
from ppl_ext.target.noncentred import Moves
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.batches import placing
from pyro_ext.density.fingerprint import digest_of_arguments
from pyro_ext.density.reparameterise import moves_of, noncentred
from pyro_ext.diagnostics.arviz import to_arviz
from pyro_ext.diagnostics.predictive import predictions, predictive_distribution
from pyro_ext.engine import Engine
from pyro_ext.gradients import SVRG
from pyro_ext.score import ProximalScoreVI
from pyro_ext.sharding import Sharding
from pyro_ext.start import piece_of

#: The Normals that fits of many dimensions or rows fit.
GUIDES = {
    "full": AutoMultivariateNormal,
    "low-rank": AutoLowRankMultivariateNormal,
    "diagonal": AutoDiagonalNormal,
}
#: What engines get that are given by class or name alone.
ENGINE_DEFAULTS: dict[str, Callable[[], Any]] = {
    "optim": lambda: Adam({"lr": 0.05}),
    "guide": lambda: AutoMultivariateNormal,
}
SEED_WORDS = dict.fromkeys(KEYS, "Write seed=0, a whole number: Pyro has no keys.")
#: The engine of a program, or None where none can fit it.
EngineOf = Callable[[Callable[..., Any], LogDensity], "Engine | None"]


@documented(
    FIT_DOCUMENTATION,
    host="Pyro",
    guide="AutoContinuous",
    engine="Engine",
    randomness="seed : int\n        Of the random numbers; see below.",
)
@entry
def fit(
    model: Callable[..., Any],
    *args: Any,
    batches: Iterable[Any] | None = None,
    seed: int = 0,
    budget: int | None = None,
    seconds: float | None = None,
    target_ess: float = TARGET_ESS,
    target_sd_error: float | None = None,
    exact: bool = True,
    guide: Any = None,
    engine: Engine | type[Engine] | str | None = None,
    judge: Literal["sites", "outputs"] | None = None,
    held_out: Any = None,
    progress_bar: bool = True,
    sharding: Sharding | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    **kwargs: Any,
) -> Fit:
    """Draws of a program's posterior that may be trusted, or a clear no.

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
    >>> fit = px.fit(model, y)
    >>> print(fit.verdict.level, fit.verdict.trusted)
    exact True
    >>> print(f"{fit.draws['mean'].mean():.0f} {fit.draws['mean'].std():.1f}")
    2 0.5
    """
    check_habits(model, kwargs, "fit", SEED_WORDS)
    given = engine_of(engine, model, Engine, ENGINE_DEFAULTS, {"seed": seed})
    check_own_engine(model, guide, given, Engine)
    check_sharding(sharding, Sharding)
    names = axis_names(dims, coords)
    passes = passes_of(batches, args)
    if sharding is not None:
        asked = describe((seed, budget, seconds, target_ess, target_sd_error, exact))
        sharding.agree(
            {
                "arguments": digest_of_arguments((args, kwargs)),
                "options of the fit": digest_of_arguments(asked),
            }
        )
    generator = np.random.default_rng(seed)

    def own_engine(program: Callable[..., Any], target: LogDensity) -> Engine | None:
        if given is not None or target.local_sites:
            return given  # guides have no local latents
        estimator = SVRG(epoch_of(target.plates)) if target.plates else None
        chosen = guide or GUIDES[guide_for(target.dim)]
        return ProximalScoreVI(program, chosen, estimator=estimator, seed=seed, sharding=sharding)

    ways = partial(ways_of, model, engine_of=own_engine, sharding=sharding, names=names)
    return shared.fit(
        lambda: ways(args, kwargs, seed, generator, passes=passes),
        generator,
        seed,
        budget=budget,
        seconds=seconds,
        target_ess=target_ess,
        target_sd_error=target_sd_error,
        exact=exact,
        progress_bar=progress_bar and (sharding is None or sharding.writes),
        clock=time.perf_counter if sharding is None else sharding.clock,
        has_engine=guide is not None or given is not None,
        judge=judge,
        held_out=held_out,
        again=ways if passes is None else None,
    )


@documented(
    MANY_DOCUMENTATION,
    host="Pyro",
    randomness="seed : int\n        Of the random numbers; see below.",
)
@entry
def fit_many(
    model: Callable[..., Any],
    *args: Any,
    axis: int | Mapping[str, int] = 0,
    seed: int = 0,
    budget: int | None = None,
    seconds: float | None = None,
    target_ess: float = TARGET_ESS,
    exact: bool = True,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Fits:
    """Fits of one program to many data sets of one shape.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([[1.0, 2.0, 2.0, 3.0], [6.0, 7.0, 7.0, 8.0]])
    >>> found = px.fit_many(model, y)
    >>> print(found, found.draws["mean"].mean(1).round())
    Fits(2 data sets, 2 trusted) [2. 7.]
    """
    calls = calls_of(model, args, kwargs, axis, _as_array)
    return many.fit_many(
        partial(ways_of, model),
        calls,
        seed,
        progress_bar,
        budget=budget,
        seconds=seconds,
        target_ess=target_ess,
        exact=exact,
    )


def _as_array(value: Any) -> Any:
    return value if isinstance(value, Tensor | np.ndarray) else None


@documented(LOAD_DOCUMENTATION, host="Pyro")
@entry
def load_fit(
    path: str | os.PathLike[str],
    model: Callable[..., Any] | None = None,
    *args: Any,
    batches: Iterable[Any] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    **kwargs: Any,
) -> Fit:
    """Read a fit that ``Fit.save`` has written.

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
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "fit.npz")
    >>> px.fit(model, y, exact=False).save(path)
    >>> print(f"{px.load_fit(path).draws['mean'].mean():.0f}")  # draws and verdict alone
    2
    >>> print(px.load_fit(path, model, y).has_program)
    True
    """

    passes, names = passes_of(batches, args), axis_names(dims, coords)

    def ways(seed: int, generator: np.random.Generator) -> Iterator[Problem]:
        assert model is not None
        return ways_of(model, args, kwargs, seed, generator, passes=passes, names=names)

    again = None if model is None or passes is not None else partial(ways_of, model, names=names)
    return shared.load_fit(path, None if model is None else ways, again)


def ways_of(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seed: int,
    generator: np.random.Generator,
    engine_of: EngineOf | None = None,
    sharding: Sharding | None = None,
    passes: Passes | None = None,
    programs: Programs | None = None,
    names: Names = NO_NAMES,
) -> Iterator[Problem]:
    """A program as what a fit asks of it: as written first, then with sites non-centred.

    Rows come from a loader where there are ``passes``, to which ``args`` and ``kwargs`` add. What
    does not depend on the arguments' numbers is taken from ``programs`` where it is there.
    """
    once = Programs() if programs is None else programs
    args, kwargs = columns_as_arrays(args, kwargs, placing(None))
    rng, of_all = torch.Generator().manual_seed(seed), kwargs
    args_given, loader = args, None if passes is None else passes.loader
    sample = loaded = None
    if passes is not None:
        clock = time.perf_counter if sharding is None else sharding.clock
        sample = passes.sample(placing(None), search.MOST_ROWS, clock)
        args, kwargs = sample.batch.args, {**of_all, **sample.batch.kwargs}
        loaded = tuple(sample.batch.kwargs)
    with nullcontext() if sample is None else sample.meeting():
        target = once(
            "as written",
            lambda: LogDensity(model, args, kwargs, sharding=sharding, loaded=loaded),
        )
    data = target.bind(*args, **kwargs)
    rows_of = partial(_rows, sample=sample, passes=passes, kwargs=of_all, generator=generator)

    def digest() -> str:
        if sample is None:
            return digest_of_arguments((args, kwargs))
        # Loaders may give their rows in other orders.
        form, plates = sample.batch.form(), target.batch_plates
        return digest_of_arguments(
            (form, {name: each.size for name, each in plates.items()}, of_all)
        )

    def as_written(z: np.ndarray) -> dict[str, Tensor]:
        found = target.constrain(torch.as_tensor(z, dtype=target.dtype), data)
        return {name: value.detach() for name, value in found.items()}

    engine = _by_engine(engine_of, model, target, data, passes, of_all)
    rows = rows_of(target, data)
    options = rng, generator, rows, digest, engine, passes is not None
    views = Views(
        args_given,
        of_all,
        to_arviz,
        partial(predictions, model),
        names,
        loader,
        partial(predictive_distribution, model),
    )
    written = _problem("as written", target, target, data, as_written, *options)
    yield replace(written, views=views)
    may_move = not (target.plates or rows.every)
    moves = once("moves", lambda: moves_of(target, data) if may_move else Moves())
    if not moves.latents:
        return
    program = noncentred(model, moves, target.layout.names)
    moved = once(
        "non-centred",
        lambda: LogDensity(program, args, kwargs, sharding=sharding, loaded=loaded),
    )
    moved_data = moved.bind(*args, **kwargs)

    def of_sites(z: np.ndarray) -> dict[str, Tensor]:
        found = moved.constrain(torch.as_tensor(z, dtype=moved.dtype), moved_data)
        return {name: found[name].detach() for name in target.layout.names}

    name = f"with {', '.join(moves.latents)} non-centred"
    engine = _by_engine(engine_of, program, moved, moved_data, passes, of_all)
    rows = rows_of(moved, moved_data)
    options = rng, generator, rows, digest, engine, passes is not None
    other = _problem(name, moved, target, moved_data, of_sites, *options, moves.latents)
    yield replace(other, views=views)


def _rows(
    target: LogDensity,
    data: Data,
    *,
    sample: Sample | None,
    passes: Passes | None,
    kwargs: Mapping[str, Any],
    generator: np.random.Generator,
) -> Rows:
    """Of which rows the density of a target is evaluated."""
    if sample is None or passes is None:
        return Rows.of_plates(target.plates, lambda rows: piece_of(target, data, rows), generator)
    over = target.over(passes)

    def piece(batch: Batch | None) -> Piece:
        if batch is None:
            return piece_of(over, data, None)
        return piece_of(target, target.bind(*batch.args, **{**kwargs, **batch.kwargs}), None)

    return Rows.of_loader(sample, total_rows(target.batch_plates, sample.batch.rows), piece)


def _by_engine(
    engine_of: EngineOf | None,
    model: Callable[..., Any],
    target: LogDensity,
    data: Data,
    passes: Passes | None,
    kwargs: Mapping[str, Any],
) -> Approximate | None:
    """Draws by an engine that runs until it has settled, or has spent what it may."""
    engine = None if engine_of is None else engine_of(model, target)
    if engine is None:
        return None
    given: Any = (data.args, data.kwargs) if passes is None else ((), kwargs)
    # Figures of batches are too noisy to tell a best state, which nobody would go back to.
    batches: dict[str, Any] = (
        {} if passes is None else {"batches": passes.loader, "keep_best": False}
    )

    def approximate(start: Start | None, meter: Meter) -> Approximated:
        before = engine.gradient_evaluations

        def run(steps: int, is_over: Callable[..., bool]) -> tuple[int, Settling]:
            begun: dict[str, Any] = {"start": start} if engine.num_steps_taken == 0 else {}
            result = engine.run(
                steps,
                *given[0],
                until="settled",
                callback=is_over,
                progress_bar=False,
                **batches,
                **begun,
                **given[1],
            )
            assert result.settling is not None
            return len(result.losses), result.settling

        steps, settling = in_rounds(
            run, meter, lambda _: float(engine.gradient_evaluations) - before
        )
        number = number_of_draws(target.dim) if engine.makes_draws else None
        draws = engine.get_samples(number)
        positions = target.unconstrain(draws, data).detach().double().cpu().numpy()
        return Approximated(name_of(engine), positions, steps, settling)

    return approximate


def _problem(
    name: str,
    target: LogDensity,
    written: LogDensity,
    data: Data,
    values: Callable[[np.ndarray], dict[str, Tensor]],
    rng: torch.Generator,
    generator: np.random.Generator,
    rows: Rows,
    digest: Callable[[], str],
    approximate: Approximate | None,
    has_loader: bool,
    latents: Mapping[str, str] | None = None,
) -> Problem:
    def by_strategy(number: int) -> np.ndarray:
        return target.initial_positions(number, rng, data).double().cpu().numpy()

    def prior(number: int, seed: int) -> np.ndarray:
        of_seed = torch.Generator().manual_seed(seed)
        return target.prior_positions(number, of_seed, data).double().cpu().numpy()

    def constrain(z: np.ndarray) -> dict[str, np.ndarray]:
        found = target.constrain(torch.as_tensor(z, dtype=target.dtype), data)
        return {name: value.detach().cpu().numpy() for name, value in found.items()}

    def unconstrain(values: Mapping[str, np.ndarray]) -> np.ndarray:
        given = {name: torch.as_tensor(value) for name, value in values.items()}
        return target.unconstrain(given, data).detach().cpu().numpy()

    return problem_of(
        name,
        target,
        written,
        data,
        rows,
        torch.finfo(target.dtype).eps,
        by_strategy,
        values,
        digest,
        generator,
        constrain,
        unconstrain,
        approximate,
        latents,
        has_loader,
        prior,
    )
