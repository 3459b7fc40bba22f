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
from ppl_ext.fit import load, many
from ppl_ext.fit.doors import Asked, Named, fit_program
from ppl_ext.fit.fit import TARGET_ESS, Fit
from ppl_ext.fit.habits import KEYS, check_habits, engine_of, written_for_arrays
from ppl_ext.fit.many import Fits, calls_of
from ppl_ext.fit.problem import ways as shared_ways
from ppl_ext.fit.problem.engine import check_own_engine
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.fit.problem.ways import Host, HostMaps
from ppl_ext.options import describe
from ppl_ext.running.settling import Settling
from ppl_ext.running.sharding import check_sharding
from ppl_ext.start.start import Start
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.arguments import placing
from pyro_ext.density.fingerprint import digest_of_arguments
from pyro_ext.density.reparameterise import moves_of, noncentred
from pyro_ext.density.replay import out_of_bounds_at, replay
from pyro_ext.diagnostics.arviz import to_arviz
from pyro_ext.diagnostics.predictive import predictions, predictor
from pyro_ext.engine import Engine
from pyro_ext.gradients import SVRG
from pyro_ext.score import ProximalScoreVI
from pyro_ext.sharding import Sharding
from pyro_ext.start import piece_of, prior_of

#: What engines get that are given by class or name alone.
ENGINE_DEFAULTS: dict[str, Callable[[], Any]] = {
    "optim": lambda: Adam({"lr": 0.05}),
    "guide": lambda: autoguide.AutoMultivariateNormal,
}
SEED_WORDS = dict.fromkeys(KEYS, "Write seed=0, a whole number: Pyro has no keys.")


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

    The fit climbs only as far as it must. A search finds where the posterior has its mass, and
    Normals near its modes. Sites whose scale is latent are tried non-centred as well, by the
    host's own handlers. Draws of the Normals are corrected by importance weights. From these,
    Hamiltonian chains that leave the posterior exactly as it is run until they agree. What could
    not be reached is said by ``fit.verdict``, with reasons and advice.

    Parameters
    ----------
    seed : int
        Seed of all random numbers.
    model : callable
        Pyro program.
    *args, **kwargs
        Its arguments, with all rows.
    batches : iterable, optional
        All rows from a loader, in place of ``args``: tuples of the model's arguments, or mappings
        from their names, such as a ``DataLoader`` gives again and again. The model's plate scales
        a batch up to all rows. See the page "Rows from iterators".
    budget : int, optional
        Evaluations of the score at most; one for each position. Default: 300,000, with which an
        engine is bounded by ``seconds`` alone. A search takes some hundreds, corrected draws 1,000
        more, chains about 5,000 at least. What a smaller budget cannot buy is left out, and the
        verdict says so.
    seconds : float, optional
        Wall time at most, about. Default: 600.
    target_ess : float
        Effective draws that the worst entry of a site must have, for its mean.
    target_sd_error : float, optional
        Standard error of every standard deviation, as a share of it, for which chains go on, such
        as 0.03. Default: the verdict states the errors, and nothing is run for them.
    exact : bool
        Whether chains may run. Without them the best level is "corrected".
    guide : AutoContinuous, optional
        Fit this guide by ``ProximalScoreVI``. The draws are then the guide's, judged by chains
        where these can run.
    engine : Engine, class or str, optional
        Likewise an engine of this package with the same model, such as ``SVGD(model, optim)``,
        which runs until it has settled. A class, or its name such as "SVGD", is made with its
        defaults, and with Adam at 0.05 where it needs an optimiser.
    judge : {"sites", "outputs"}, optional
        What chains have to agree in: latent sites, or the outputs of a network at its rows, which
        are the parameters of the observed distributions. Default: outputs, where ``random_module``
        or the host's own random modules draw weights and rows are arguments. See the page
        "Networks as programs".
    held_out : tuple or mapping, optional
        The model's arguments with rows that are not fitted, such as ``(x_test, y_test)``, at which
        outputs are judged as well. Where these rows are calibrated, chains need not be adjusted.
    progress_bar : bool
        Show what is done and what is found.
    sharding : Sharding, optional
        How chains, other positions and rows are split over devices; of an engine that the fit
        makes, the rows. An engine that is given has its own.
    dims : mapping of str to sequence of str, optional
        Names of the axes of a variable, without chain and draw, for ``summary``, ``plot`` and
        ``to_arviz`` of the fit. Default: the plates' names. See the page "Names and labels".
    coords : mapping of str to sequence, optional
        Labels along an axis.

    Returns
    -------
    Fit
        ``draws``, equally weighted, and ``verdict``: "exact", "corrected", "approximate" or
        "not trusted".

    Raises
    ------
    ModelCheckError
        The model cannot be fitted, or no starting point has a finite density and score.
    ArgumentError
        An option or the arguments have no meaning for the model, or the budget ended before there
        was a start.

    References
    ----------
    The search: L. Zhang, B. Carpenter, A. Gelman and A. Vehtari, "Pathfinder: Parallel
    quasi-Newton variational inference" (2022). R-hat: A. Vehtari and others, "Rank-normalization,
    folding, and localization" (2021). Non-centred sites: M. Gorinova, D. Moore and M. Hoffman,
    "Automatic reparameterisation of probabilistic programs" (2020).

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
    asked = Asked(budget, seconds, target_ess, exact, shown, target_sd_error, judge, held_out)
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

    ways, named = partial(ways_of, model), Named(given, guide, autoguide, made)
    call, random, names = (args, kwargs), (generator, seed), (dims, coords)
    return fit_program(ways, call, random, asked, named, batches, names, replay, sharding)


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

    Each data set is fitted as ``fit`` does it, with random numbers, draws and a verdict of its own.
    The program is checked and compiled once for all.

    Parameters
    ----------
    seed : int
        Seed of all random numbers.
    model : callable
        Pyro program.
    *args, **kwargs
        Its arguments, in which arrays hold the data sets along an axis, in dictionaries as well.
        All data sets have one shape: pad those that are shorter, and mask what is padded in the
        program.
    axis : int or mapping of str to int
        The axis of the data sets: one for all arrays, or by the names of those arguments that hold
        data sets; the others are then the same for all. The name of a dictionary stands for all
        arrays in it, ``"rows['x']"`` for one of them.
    budget, seconds, target_ess, exact
        Of each data set, as in ``fit``.
    progress_bar : bool
        Count the data sets.

    Returns
    -------
    Fits
        ``draws`` by site, first axis = data sets, second = draws; ``verdicts``; each :class:`Fit`
        by its number.

    Raises
    ------
    ModelCheckError
        The model cannot be fitted.
    ArgumentError
        Arguments hold no data sets along the axis, or other numbers of them; or as ``fit`` raises
        it.

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

    Draws and verdict come back without the program, the draws then as NumPy's arrays. With the
    program and its arguments all comes back: ``more`` goes on to the last bit as the fit would
    have that was saved.

    Parameters
    ----------
    path : path
    model : callable, optional
        Pyro program that was fitted.
    *args, **kwargs
        Its arguments, as they were.
    batches : iterable, optional
        A loader with the same rows, where the fit had one.
    dims, coords : mapping, optional
        Names of axes and labels along them; see :func:`fit`.

    Returns
    -------
    Fit

    Raises
    ------
    ArgumentError
        The file is no saved fit, or damaged; or the program or its arguments are others.
    ModelCheckError
        The model cannot be fitted.

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
    ways = None if model is None else partial(ways_of, model)
    return load.load_fit(path, ways, (args, kwargs), batches, (dims, coords), replay)


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
        prior=prior_of,
        epsilon=lambda target: torch.finfo(target.dtype).eps,
        out_of_bounds=out_of_bounds_at,
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
    """An engine that is run again and again; see :class:`ppl_ext.fit.problem.ways.EngineRun`."""

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
