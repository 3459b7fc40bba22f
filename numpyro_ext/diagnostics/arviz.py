"""Conversion of a fitted engine, or of a guide of the host's, to ArviZ, on the full data.

Engines need two things for it: ``target`` (their log density) and ``get_samples(state,
rng_key=..., num_samples=...)``. Where they have more to say, they define any of the following,
each looked up by name:

``sample_statistics(state, positions)``
    Statistics of each draw, as a dict of (S,) arrays, given the draws' unconstrained
    positions (S, D). Guides return ``log_q``, their log density at the positions. They go to
    the group ``sample_stats``, beside ``log_p``, the model's log density at the positions.
``arviz_attributes()``
    A dict of attributes. ``sample_kind`` says what the draws are: "particles" or
    "independent draws".

The figures of every step go to the group ``optimization`` when the run's result is passed, or
its losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from numpyro.infer import MCMC

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.batches import array_or_none, place
from numpyro_ext.density.replay import is_quick, replay
from numpyro_ext.diagnostics.fit import Chains, HostFit, state_of_engine
from numpyro_ext.draws import key_or
from numpyro_ext.engine import Engine, RunResult
from numpyro_ext.programs import Program
from numpyro_ext.sharding import Sharding, entry_on_own_axes
from ppl_ext.diagnostics import fit_groups
from ppl_ext.diagnostics.fit import asked_of
from ppl_ext.diagnostics.inference_data import Variable
from ppl_ext.diagnostics.replay import Replay
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.fit import Fit
from ppl_ext.running.sharding import check_sharding

Array = NDArray[Any]


@entry_on_own_axes
def to_arviz(
    engine: Any,
    state: Any = None,
    *args: Any,
    num_samples: int | None = None,
    posterior_predictive: bool = True,
    log_likelihood: bool = True,
    log_prior: bool = True,
    observed_data: bool = True,
    sample_stats: bool = True,
    constant_data: Mapping[str, Any] | bool = True,
    discrete: str | None = None,
    losses: Any = None,
    result: RunResult | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    draw_chunk: int | None = None,
    data_chunk: int | None = None,
    rng_key: Any = None,
    model: Callable[..., Any] | None = None,
    batches: Iterable[Any] | None = None,
    sharding: Sharding | None = None,
    **kwargs: Any,
) -> Any:
    """Convert a fitted engine, a run of the host's ``MCMC``, or a guide fitted by its ``SVI``.

    Everything is computed on the full data, also when the model draws minibatches: the model
    is replayed over chunks of rows, and the rows come out in their order. When batches are
    passed as arguments, pass the arrays of all rows here.

    The arguments may be left out where they are those of the fit: an engine, ``MCMC`` and a fit
    remember them.

    The draws of an engine are stored as one chain, those of ``MCMC`` as its chains. Deterministic
    sites are part of the posterior, and so are sites that are observed at values computed from
    latent ones, as a prior of a transformed latent is written: they are no data. Of a Stan program
    the posterior has the parameters, and the vector that they come from is in the group
    ``unconstrained_posterior``. Names are made safe for netCDF ("/" becomes "."); the attribute
    ``renamed`` holds the originals.

    Parameters
    ----------
    engine
        An engine of this package; ``numpyro.infer.MCMC`` after ``run``, with any kernel of a model;
        or, with ``model``, a guide fitted by NumPyro's ``SVI`` under any objective. With ``MCMC``
        and a fit there is no ``state``.
    state
        The :class:`~numpyro_ext.engine.RunResult` of its run, which ``result`` then need not
        repeat, or its state alone: ``result.state``. With a guide the result of ``SVI.run``,
        or the parameters as ``SVI.get_params`` gives them.
    *args, **kwargs
        The model's arguments, with all rows of the data.
    batches : iterable, optional
        All rows in place of ``args``, as batches of a loader, which is passed over twice; rows
        come out in its order. Arrays of single batches are not constant data.
    num_samples : int, optional
        Number of draws. Default: every particle, all draws of a fit or of ``MCMC``, or what the
        engine draws by default. Of a fit and of ``MCMC`` fewer can be taken, as many of each chain:
        the number is rounded up to that. Without it ``log_likelihood`` and
        ``posterior_predictive`` have fewer draws than the posterior, evenly spaced and labelled,
        where they would hold more than 33 million numbers, and a warning says how many.
    posterior_predictive, log_likelihood, log_prior, observed_data, sample_stats : bool
        Groups to include. ``log_likelihood`` is pointwise, without the scales of plates and of
        ``handlers.scale``; observations that are masked out have 0, and factors are no part of it.
        ``log_prior`` is the same of the latent sites, as they are written, without Jacobians:
        ArviZ's sensitivity to priors takes it. There is none of Stan programs, whose density is in
        one piece, and where a latent site depends on a discrete one.
    discrete : {"sample", "most probable"}, optional
        Add the discrete latent sites to the posterior, as integers: given each draw of all other
        sites and the data, drawn jointly, or the most probable ones together. They are summed out
        of everything else; deterministic sites that depend on them have these values, or drawn
        ones.
    constant_data : mapping of str to array, or bool
        Arrays for the group of that name. True takes the model's array arguments that are not
        observations.
    losses : sequence of float, optional
        Loss of each step, for the group ``optimization``, in place of ``result.losses``.
    result : RunResult, optional
        Run whose losses and other figures (the force norm of particles, log_p and log_q of guides)
        go to the group ``optimization``, along a dimension ``step``. Default: the result that is
        given as ``state``.
    dims : mapping of str to sequence of str, optional
        Dimension names of a variable, without chain and draw. Default: the plates' names, and for
        axes of an event those that the model gives by ``sample(..., infer={"event_dims": [...]})``.
    coords : mapping of str to sequence, optional
        Labels along a dimension.
    draw_chunk, data_chunk : int, optional
        At most this many draws and rows are evaluated at once, which bounds memory.
    rng_key : array, optional
        Key of the posterior and posterior predictive draws. Default: ``jax.random.key(0)``.
    model : callable, optional
        The model of a guide; not with an engine.
    sharding : Sharding, optional
        How draws and rows are split over devices. Default: as the engine's.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        The former with ArviZ 0.23, the latter with ArviZ 1 and later.

    Raises
    ------
    ArgumentError
        ``engine`` is none of these, or the arguments do not fit the model, lack observations that
        the engine was set up with, or hold only some rows of a plate.
    RuntimeError
        The engine has not seen the model's arguments yet.

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
    >>> engine = nx.SVGD(model, numpyro.optim.Adam(0.3), num_particles=20)
    >>> result = engine.run(jax.random.key(0), 100, y)
    >>> idata = nx.to_arviz(engine, result, y)
    >>> print(round(float(idata.posterior["mean"].mean())), dict(idata.log_likelihood["y"].sizes))
    2 {'chain': 1, 'draw': 20, 'rows': 4}
    """
    all_draws = num_samples is None
    if isinstance(engine, RunResult):
        args = args if state is None else (state, *args)
        engine, state = engine.ran.engine, engine
    if isinstance(engine, MCMC):
        if state is not None:
            # A run of MCMC holds its state itself. What comes second is the model's first argument.
            args = (state, *args)
        if not args and not kwargs:
            args, kwargs = engine._args, engine._kwargs
        engine, state = Chains(engine, args, kwargs, num_samples=num_samples), None
        num_samples = None
    if isinstance(engine, Fit):
        if isinstance(state, RunResult):
            raise ArgumentError(
                "Expected no result with a fit, which has its draws, found RunResult. Call "
                "to_arviz(fit, *args) with the model's arguments."
            )
        args, state = args if state is None else (state, *args), None
    if isinstance(engine, Engine) and isinstance(state, RunResult):
        result = state if result is None else result
        engine, state = engine.of_run(state)
    args, kwargs, passes = fit_groups.rows_to_show(engine, model, args, kwargs, batches, place)
    fit_groups.check_fit(engine, model, "to_arviz(engine, result, *args)")
    if model is not None:
        # The host's result has the losses of its run.
        losses = getattr(state, "losses", None) if losses is None else losses
        state = getattr(state, "params", state)
        engine = HostFit(engine, state, model, args, kwargs, passes)
    if result is not None and not isinstance(result, RunResult):
        raise ArgumentError(
            f"Expected result to be what engine.run returns, found {type(result).__name__}."
        )
    traces = {} if result is None else {"loss": result.losses, **result.info}
    check_sharding(sharding, Sharding)
    target = engine.target if sharding is None else engine.target.with_sharding(sharding)
    if isinstance(engine, Engine):
        state = state_of_engine(engine, state)
    data = target.bind(*args, **kwargs)
    key = key_or(rng_key)
    given = engine.get_samples(state, rng_key=key, **asked_of(engine, num_samples))
    draws = {name: np.asarray(given[name]) for name in target.layout.names if name in given}
    included = posterior_predictive, log_likelihood, log_prior, observed_data, sample_stats
    wanted = fit_groups.Wanted(*included, constant_data, discrete, losses, draw_chunk, data_chunk)
    wanted = wanted._replace(dims=dims, coords=coords, may_thin=all_draws)

    def seeded(*given: Any, number: int | None, **options: Any) -> Replay:
        # Groups that are drawn one after another must not have the same random numbers.
        own = key if number is None else jax.random.fold_in(key, number)
        return replay(*given, rng_key=own, **options)

    def statistics(target: LogDensity, together: int) -> fit_groups.Group:
        return _sample_statistics(engine, target, state, draws, data, together)

    host = fit_groups.Host(("numpyro_ext", "numpyro", "numpyro"), seeded, array_or_none, place)
    call = args, kwargs, passes
    return fit_groups.arviz_of(host, engine, target, draws, data, wanted, call, traces, statistics)


def _sample_statistics(
    engine: Any,
    target: LogDensity,
    state: Any,
    draws: Mapping[str, Any],
    data: Data,
    together: int,
) -> fit_groups.Group:
    """Log densities of the model and, where the engine knows it, of the fit.

    At most ``together`` draws are evaluated at once.
    """
    number = len(next(iter(draws.values())))
    hook = getattr(engine, "sample_statistics", None)
    # Hooks of this package's engines are traced into the program; those of others may not be
    # traceable.
    inside = hook if isinstance(engine, (Engine, HostFit)) else None
    evaluate = _compiled_log_densities(target, inside, is_quick(number, target, data))
    # Chunks of one size, for which one program is compiled: the last is filled up.
    size = -(-number // -(-number // together))
    pieces: dict[str, list[Array]] = {}
    for start in range(0, number, size):
        # The last draw fills the last chunk up. What is found at these copies is left out below.
        places = np.minimum(np.arange(start, start + size), number - 1)
        some = {name: value[places] for name, value in draws.items()}
        for name, found in evaluate(some, data, state if inside else None).items():
            pieces.setdefault(name, []).append(np.asarray(found))
    statistics = {name: np.concatenate(found)[:number] for name, found in pieces.items()}
    if hook is not None and inside is None:
        positions = target.unconstrain(draws, data)
        statistics.update(
            {name: np.asarray(value) for name, value in hook(state, positions).items()}
        )
    return {name: Variable(value) for name, value in statistics.items()}


# A few programs are kept, so that a second look at the same fit is not compiled again.
@lru_cache(maxsize=4)
def _compiled_log_densities(target: LogDensity, hook: Any, quick: bool) -> Program:
    def log_densities(
        draws: Mapping[str, jax.Array], data: Data, state: Any
    ) -> dict[str, jax.Array]:
        positions = target.unconstrain(draws, data)
        prior, likelihood = target.full_log_prior_and_likelihood(positions, data)
        more = {} if hook is None else hook(state, positions)
        return {"log_p": prior + likelihood, **more}

    return Program(log_densities, rarely=quick)
