"""``fit``: from a Pyro program to draws with a verdict."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pyro.infer import autoguide
from pyro.optim import Adam
from torch import Tensor

from ppl_ext.arguments import columns_as_arrays, entry
from ppl_ext.batches.passes import passes_of
from ppl_ext.documented import documented
from ppl_ext.fit import load, many
from ppl_ext.fit.doors import FIT_DOCUMENTATION, Asked, Named, fit_program
from ppl_ext.fit.fit import TARGET_ESS, Fit
from ppl_ext.fit.habits import KEYS, check_habits, engine_of, written_for_arrays
from ppl_ext.fit.many import MANY_DOCUMENTATION, Fits, calls_of
from ppl_ext.fit.problem import ways as shared_ways
from ppl_ext.fit.problem.engine import check_own_engine
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.fit.problem.views import axis_names
from ppl_ext.fit.problem.ways import Host, HostMaps
from ppl_ext.options import describe
from ppl_ext.running.settling import Settling
from ppl_ext.running.sharding import check_sharding
from ppl_ext.start.start import Start
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.arguments import placing
from pyro_ext.density.fingerprint import digest_of_arguments
from pyro_ext.density.reparameterise import moves_of, noncentred
from pyro_ext.density.replay import replay
from pyro_ext.diagnostics.arviz import to_arviz
from pyro_ext.diagnostics.predictive import predictions, predictor
from pyro_ext.engine import Engine
from pyro_ext.gradients import SVRG
from pyro_ext.score import ProximalScoreVI
from pyro_ext.sharding import Sharding
from pyro_ext.start import piece_of

#: What engines get that are given by class or name alone.
ENGINE_DEFAULTS: dict[str, Callable[[], Any]] = {
    "optim": lambda: Adam({"lr": 0.05}),
    "guide": lambda: autoguide.AutoMultivariateNormal,
}
SEED_WORDS = dict.fromkeys(KEYS, "Write seed=0, a whole number: Pyro has no keys.")


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
    # One bar for all processes.
    shown = progress_bar and (sharding is None or sharding.writes)
    asked = Asked(budget, seconds, target_ess, exact, shown)
    asked = asked._replace(target_sd_error=target_sd_error, judge=judge, held_out=held_out)
    if sharding is not None:
        # Processes with other options would take other ways through the fit, and wait for each
        # other for ever.
        told = describe((seed, *asked[:4], target_sd_error, judge, guide, type(given)))
        sharding.agree(
            {
                "arguments": digest_of_arguments((args, kwargs, held_out)),
                "options of the fit": digest_of_arguments(told),
            }
        )
    generator = np.random.default_rng(seed)

    def made(program: Callable[..., Any], guide: Any, epoch: int | None) -> Engine:
        estimator = None if epoch is None else SVRG(epoch)
        return ProximalScoreVI(program, guide, estimator=estimator, seed=seed, sharding=sharding)

    passes, names = passes_of(batches, args), axis_names(dims, coords)
    ways, named = partial(ways_of, model), Named(given, guide, autoguide, made)
    call = args, kwargs
    random = generator, seed
    return fit_program(ways, call, random, asked, named, passes, names, replay, sharding)


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
    asked = Asked(budget, seconds, target_ess, exact, progress_bar)
    return many.fit_many(partial(ways_of, model), calls, seed, asked)


def _as_array(value: Any) -> Any:
    return value if isinstance(value, Tensor | np.ndarray) else None


@documented(load.LOAD_DOCUMENTATION, host="Pyro")
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
    ways = None if model is None else partial(ways_of, model)
    return load.load_fit(path, ways, args, kwargs, passes, names, replay)


def ways_of(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    seed: int,
    generator: np.random.Generator,
    *,
    sharding: Sharding | None = None,
    **options: Any,
) -> Iterator[Problem]:
    """A program as what a fit asks of it, by :func:`ppl_ext.fit.problem.ways.ways_of`."""
    rng = torch.Generator().manual_seed(seed)

    def target_of(
        program: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loaded: tuple[str, ...] | None,
        is_moved: bool,
    ) -> LogDensity:
        return LogDensity(program, args, kwargs, sharding=sharding, loaded=loaded)

    def values(target: LogDensity, z: np.ndarray, data: Data) -> dict[str, Tensor]:
        found = target.constrain(torch.as_tensor(z, dtype=target.dtype), data)
        return {name: value.detach() for name, value in found.items()}

    def maps(target: LogDensity, data: Data) -> HostMaps:
        def constrain(z: np.ndarray) -> dict[str, np.ndarray]:
            found = values(target, z, data)
            return {name: value.cpu().numpy() for name, value in found.items()}

        def unconstrain(given: Mapping[str, np.ndarray]) -> np.ndarray:
            sites = {name: torch.as_tensor(value) for name, value in given.items()}
            return target.unconstrain(sites, data).detach().cpu().numpy()

        return constrain, unconstrain

    def initial(target: LogDensity, number: int, data: Data) -> np.ndarray:
        return target.initial_positions(number, rng, data).double().cpu().numpy()

    def prior(target: LogDensity, number: int, seed: int, data: Data) -> np.ndarray:
        # A generator of its own: looks at the prior must not move the numbers of the fit on.
        of_seed = torch.Generator().manual_seed(seed)
        return target.prior_positions(number, of_seed, data).double().cpu().numpy()

    host = Host(
        place=placing(None),
        place_batch=placing(None),
        target=target_of,
        piece=lambda target: partial(piece_of, target),
        bound=lambda target, *args, **kwargs: target.bind(*args, **kwargs),
        digest=digest_of_arguments,
        values=values,
        maps=maps,
        initial=initial,
        prior=prior,
        epsilon=lambda target: torch.finfo(target.dtype).eps,
        moves=moves_of,
        noncentred=noncentred,
        running=_Run,
        to_arviz=to_arviz,
        predictions=predictions,
        predictor=predictor,
    )
    options |= {"generator": generator, "sharding": sharding}
    ways = partial(shared_ways.ways_of, host, model, **options)
    args, kwargs = columns_as_arrays(args, kwargs, placing(None), model)
    return written_for_arrays(ways, args, kwargs, host.place)


class _Run:
    """An engine that is run again and again; see :class:`ppl_ext.fit.problem.ways.Run`."""

    def __init__(self, engine: Engine) -> None:
        # The engine may have run before. Its evaluations then are not of this fit.
        self._engine, self._before = engine, engine.gradient_evaluations

    def run(
        self, steps: int, start: Start | None, *args: Any, **options: Any
    ) -> tuple[int, Settling]:
        # An engine that has a state goes on from it, and refuses a start.
        begun: dict[str, Any] = {"start": start} if self._engine.num_steps_taken == 0 else {}
        result = self._engine.run(steps, *args, **begun, **options)
        assert result.settling is not None
        return len(result.losses), result.settling

    def spent(self, steps: int) -> float:
        return float(self._engine.gradient_evaluations) - self._before

    def positions(self, target: LogDensity, data: Data, number: int | None) -> np.ndarray:
        draws = self._engine.get_samples(number)
        return target.unconstrain(draws, data).detach().double().cpu().numpy()
