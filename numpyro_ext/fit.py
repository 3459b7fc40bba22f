"""``fit``: from a NumPyro program to draws with a verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)
from numpyro.optim import Adam

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.batches import array_or_none, on_host, place
from numpyro_ext.density.fingerprint import digest_of_arguments
from numpyro_ext.density.reparameterise import moves_of, noncentred
from numpyro_ext.diagnostics.arviz import to_arviz
from numpyro_ext.diagnostics.predictive import predictions, predictive_distribution
from numpyro_ext.draws import check_key
from numpyro_ext.engine import Engine
from numpyro_ext.gradients import SVRG
from numpyro_ext.score import ProximalScoreVI
from numpyro_ext.sharding import Sharding, entry, on_own_axes
from numpyro_ext.start import pieces_of
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
from ppl_ext.fit.habits import SEEDS, check_habits, columns_as_arrays, engine_of
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
from ppl_ext.running.settling import Settling
from ppl_ext.running.sharding import check_sharding
from ppl_ext.start import search
from ppl_ext.start.rows import Rows
from ppl_ext.start.search import Piece
from ppl_ext.start.start import Start
from ppl_ext.target.noncentred import Moves

#: The Normals that fits of many dimensions or rows fit.
GUIDES = {
    "full": AutoMultivariateNormal,
    "low-rank": AutoLowRankMultivariateNormal,
    "diagonal": AutoDiagonalNormal,
}
#: What engines get that are given by class or name alone.
ENGINE_DEFAULTS: dict[str, Callable[[], Any]] = {
    "optim": lambda: Adam(0.05),
    "guide": lambda: AutoMultivariateNormal,
}
KEY_WORDS = dict.fromkeys(SEEDS, "The key comes first: fit(jax.random.key(0), model, ...).")
#: The engine of a program, or None where none can fit it.
EngineOf = Callable[[Callable[..., Any], LogDensity], "Engine | None"]


@documented(
    FIT_DOCUMENTATION,
    host="NumPyro",
    guide="AutoContinuous",
    engine="Engine",
    randomness="rng_key : array\n        JAX random key.",
)
@entry
@on_own_axes
def fit(
    rng_key: Array,
    model: Callable[..., Any],
    *args: Any,
    batches: Iterable[Any] | None = None,
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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> fit = nx.fit(jax.random.key(0), model, y)
    >>> print(fit.verdict.level, fit.verdict.trusted)
    exact True
    >>> print(f"{fit.draws['mean'].mean():.0f} {fit.draws['mean'].std():.1f}")
    2 0.5
    """
    check_key(rng_key, "fit")
    check_habits(model, kwargs, "fit", KEY_WORDS)
    given = engine_of(engine, model, Engine, ENGINE_DEFAULTS, {})
    check_own_engine(model, guide, given, Engine)
    check_sharding(sharding, Sharding)
    names = axis_names(dims, coords)
    passes = passes_of(batches, args)
    keys = random.split(rng_key)
    generator = np.random.default_rng(np.asarray(random.bits(keys[0], (4,))))
    seed = seed_of(keys[1])

    def own_engine(program: Callable[..., Any], target: LogDensity) -> Engine | None:
        if given is not None or target.local_sites:
            return given  # guides have no local latents
        estimator = SVRG(epoch_of(target.plates)) if target.plates else None
        chosen = guide or GUIDES[guide_for(target.dim)]
        rows = None if sharding is None else sharding.of_rows_alone()
        return ProximalScoreVI(program, chosen, estimator=estimator, sharding=rows)

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
        progress_bar=progress_bar,
        has_engine=guide is not None or given is not None,
        judge=judge,
        held_out=held_out,
        again=ways if passes is None else None,
        clock=time.perf_counter if sharding is None else sharding.clock,
    )


@documented(
    MANY_DOCUMENTATION,
    host="NumPyro",
    randomness="rng_key : array\n        JAX random key.",
)
@entry
def fit_many(
    rng_key: Array,
    model: Callable[..., Any],
    *args: Any,
    axis: int | Mapping[str, int] = 0,
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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([[1.0, 2.0, 2.0, 3.0], [6.0, 7.0, 7.0, 8.0]])
    >>> found = nx.fit_many(jax.random.key(0), model, y)
    >>> print(found, found.draws["mean"].mean(1).round())
    Fits(2 data sets, 2 trusted) [2. 7.]
    """
    check_key(rng_key)
    # Arrays of NumPy: JAX would compile a program for each slice.
    calls = calls_of(model, args, kwargs, axis, array_or_none)
    return many.fit_many(
        partial(ways_of, model),
        calls,
        seed_of(rng_key),
        progress_bar,
        budget=budget,
        seconds=seconds,
        target_ess=target_ess,
        exact=exact,
    )


@documented(LOAD_DOCUMENTATION, host="NumPyro")
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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = jnp.array([1.0, 2.0, 2.0, 3.0])
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "fit.npz")
    >>> nx.fit(jax.random.key(0), model, y, exact=False).save(path)
    >>> print(f"{nx.load_fit(path).draws['mean'].mean():.0f}")  # draws and verdict alone
    2
    >>> print(nx.load_fit(path, model, y).has_program)
    True
    """

    passes, names = passes_of(batches, args), axis_names(dims, coords)

    def ways(seed: int, generator: np.random.Generator) -> Iterator[Problem]:
        assert model is not None
        return ways_of(model, args, kwargs, seed, generator, passes=passes, names=names)

    again = None if model is None or passes is not None else partial(ways_of, model, names=names)
    return shared.load_fit(path, None if model is None else ways, again)


def seed_of(rng_key: Array) -> int:
    """A key as a number that a file can hold."""
    return int(random.bits(rng_key, dtype=jnp.uint32)) // 2


def ways_of(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seed: int,
    generator: np.random.Generator,
    engine: str = "fit",
    held: Mapping[str, Any] | None = None,
    engine_of: EngineOf | None = None,
    sharding: Sharding | None = None,
    passes: Passes | None = None,
    programs: Programs | None = None,
    names: Names = NO_NAMES,
) -> Iterator[Problem]:
    """A program as what a fit asks of it: as written first, then with sites non-centred.

    Parameters without a prior are held as in ``held`` where they are there. Rows come from a
    loader where there are ``passes``, to which ``args`` and ``kwargs`` add. What does not depend on
    the arguments' numbers is taken from ``programs`` where it is there.
    """
    once = Programs() if programs is None else programs
    args, kwargs = columns_as_arrays(args, kwargs, place)
    key, strategy_key = random.split(random.key(seed))
    sample, of_all = None, kwargs
    args_given, loader = args, None if passes is None else passes.loader
    if passes is not None:
        clock = time.perf_counter if sharding is None else sharding.clock
        sample = passes.sample(on_host, search.MOST_ROWS, clock)
        args, kwargs = sample.batch.args, {**of_all, **sample.batch.kwargs}
    with nullcontext() if sample is None else sample.meeting():
        target = once(
            "as written",
            lambda: LogDensity(model, key, args, kwargs, engine=engine, sharding=sharding),
        )
    fitted = {name: value for name, value in (held or {}).items() if name in target.held}
    if fitted:
        target = target.with_held({**target.held, **fitted})
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

    def as_written(z: np.ndarray) -> dict[str, Array]:
        found = target.constrain(jnp.asarray(z, target.dtype), data)
        return dict(found)

    own = _by_engine(engine_of, model, target, data, strategy_key, passes, of_all)
    rows = rows_of(target, data, once("its pieces", lambda: pieces_of(target)))
    options = strategy_key, generator, rows, digest, own, passes is not None
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
        lambda: LogDensity(
            program, key, args, kwargs, engine=engine, check=False, sharding=sharding
        ),
    )
    moved_data = moved.bind(*args, **kwargs)

    def of_sites(z: np.ndarray) -> dict[str, Array]:
        found = moved.constrain(jnp.asarray(z, moved.dtype), moved_data)
        return {name: found[name] for name in target.layout.names}

    name = f"with {', '.join(moves.latents)} non-centred"
    own = _by_engine(engine_of, program, moved, moved_data, strategy_key, passes, of_all)
    rows = rows_of(moved, moved_data, once("its pieces, non-centred", lambda: pieces_of(moved)))
    options = strategy_key, generator, rows, digest, own, passes is not None
    other = _problem(name, moved, target, moved_data, of_sites, *options, moves.latents)
    yield replace(other, views=views)


def _rows(
    target: LogDensity,
    data: Data,
    piece: Callable[[Data, dict[str, np.ndarray] | None], Piece],
    *,
    sample: Sample | None,
    passes: Passes | None,
    kwargs: Mapping[str, Any],
    generator: np.random.Generator,
) -> Rows:
    """Of which rows the density of a target is evaluated."""
    if sample is None or passes is None:
        return Rows.of_plates(target.plates, lambda rows: piece(data, rows), generator)
    over = pieces_of(target.over(passes))

    def piece_of_batch(batch: Batch | None) -> Piece:
        if batch is None:
            return over(data, None)
        bound = target.bind(*batch.args, **{**kwargs, **batch.kwargs})
        return piece(bound.on_device(), None)

    size = total_rows(target.batch_plates, sample.batch.rows)
    return Rows.of_loader(sample, size, piece_of_batch)


def _by_engine(
    engine_of: EngineOf | None,
    model: Callable[..., Any],
    target: LogDensity,
    data: Data,
    rng_key: Array,
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
        last: Any = None

        def run(steps: int, is_over: Callable[..., bool]) -> tuple[int, Settling]:
            nonlocal last
            begun: dict[str, Any] = {"start": start} if last is None else {"init_state": last.state}
            last = engine.run(
                rng_key,
                steps,
                *given[0],
                until="settled",
                callback=is_over,
                progress_bar=False,
                **batches,
                **begun,
                **given[1],
            )
            return len(last.losses), last.settling

        steps, settling = in_rounds(
            run, meter, lambda step: float(step * engine._num_positions(engine.plan))
        )
        number = number_of_draws(target.dim) if engine.makes_draws else None
        draws = engine.get_samples(last.state, num_samples=number)
        positions = np.asarray(target.unconstrain(draws, data), np.float64)
        return Approximated(name_of(engine), positions, steps, settling)

    return approximate


def _problem(
    name: str,
    target: LogDensity,
    written: LogDensity,
    data: Data,
    values: Callable[[np.ndarray], dict[str, Array]],
    rng_key: Array,
    generator: np.random.Generator,
    rows: Rows,
    digest: Callable[[], str],
    approximate: Approximate | None,
    has_loader: bool,
    latents: Mapping[str, str] | None = None,
) -> Problem:
    def by_strategy(number: int) -> np.ndarray:
        return np.asarray(target.initial_positions(number, rng_key, data), np.float64)

    def prior(number: int, seed: int) -> np.ndarray:
        return np.asarray(target.prior_positions(number, random.key(seed), data), np.float64)

    def constrain(z: np.ndarray) -> dict[str, Array]:
        return target.constrain(jnp.asarray(z, target.dtype), data)

    def unconstrain(values: Mapping[str, np.ndarray]) -> Array:
        given = {name: jnp.asarray(value, target.dtype) for name, value in values.items()}
        return target.unconstrain(given, data)

    return problem_of(
        name,
        target,
        written,
        data,
        rows,
        float(jnp.finfo(target.dtype).eps),
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
