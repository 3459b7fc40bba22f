"""Conversion of a fitted engine, or of a guide of the host's, to ArviZ, on the full data.

Engines need three things for it: ``target`` (their log density), ``get_samples(num_samples)``,
and, where they have more to say, any of the following, each looked up by name:

``sample_statistics(positions)``
    Statistics of each draw, as a dict of (S,) tensors, given the draws' unconstrained
    positions (S, D). Guides return ``log_q``, their log density at the positions. They go to
    the group ``sample_stats``, beside ``log_p``, the model's log density at the positions.
``arviz_attributes()``
    A dict of attributes. ``sample_kind`` says what the draws are: "particles" or
    "independent draws".
``history``
    A dict of the figures of every step so far, the loss among them, which go to the group
    ``optimization``: a step is not a draw, so they cannot be in ``sample_stats``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from pyro.infer import MCMC
from pyro.infer.mcmc import StreamingMCMC

from ppl_ext.arguments import entry
from ppl_ext.diagnostics import fit_groups
from ppl_ext.diagnostics.fit import asked_of
from ppl_ext.diagnostics.inference_data import Variable
from ppl_ext.diagnostics.replay import Replay
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.fit import Fit
from ppl_ext.running.sharding import check_sharding
from pyro_ext.density import LogDensity
from pyro_ext.density.arguments import placing
from pyro_ext.density.batches import array_or_none
from pyro_ext.density.replay import replay
from pyro_ext.diagnostics.fit import Chains, HostFit
from pyro_ext.engine import RunResult
from pyro_ext.sharding import Sharding

Array = NDArray[Any]


@entry
def to_arviz(
    engine: Any,
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
    seed: int = 0,
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
        A fitted engine of this package; ``pyro.infer.MCMC`` after ``run``, with any kernel of a
        model; or, with ``model``, a guide fitted by Pyro's ``SVI`` under any objective.
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
        ``poutine.scale``; observations that are masked out have 0, and factors are no part of it.
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
        Loss of each step, for the group ``optimization``, in place of those kept.
    result : RunResult, optional
        Run whose losses and other figures (the force norm of particles, log_p and log_q of guides)
        go to the group ``optimization``, along a dimension ``step``. Default: those of every step
        that the engine has taken.
    dims : mapping of str to sequence of str, optional
        Dimension names of a variable, without chain and draw. Default: the plates' names, and for
        axes of an event those that the model gives by ``sample(..., infer={"event_dims": [...]})``.
    coords : mapping of str to sequence, optional
        Labels along a dimension.
    draw_chunk, data_chunk : int, optional
        At most this many draws and rows are evaluated at once, which bounds memory.
    seed : int
        Seed of the posterior predictive draws, and of the draws of a guide.
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
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(y):
    ...     mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("rows", len(y)):
    ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> y = torch.tensor([1.0, 2.0, 2.0, 3.0])
    >>> engine = px.SVGD(model, pyro.optim.Adam({"lr": 0.3}), num_particles=20, seed=0)
    >>> result = engine.run(100, y)
    >>> idata = px.to_arviz(engine, y)
    >>> print(round(float(idata.posterior["mean"].mean())), dict(idata.log_likelihood["y"].sizes))
    2 {'chain': 1, 'draw': 20, 'rows': 4}
    """
    all_draws = num_samples is None
    if isinstance(engine, RunResult):
        engine, result = engine.ran.engine, result or engine
    if isinstance(engine, StreamingMCMC):
        raise ArgumentError(
            "Expected draws, found StreamingMCMC, which keeps statistics of them alone. Run "
            "pyro.infer.MCMC."
        )
    if isinstance(engine, MCMC):
        # The chains have run on these rows. Others are given where the log likelihood is asked for
        # elsewhere.
        if not args and not kwargs:
            args, kwargs = engine._args, engine._kwargs
        engine, num_samples = Chains(engine, args, kwargs, num_samples=num_samples), None
    if args and isinstance(args[0], RunResult) and not isinstance(engine, Fit):
        # As it is written with NumPyro's engines, which do not hold their state.
        result, args = result or args[0], args[1:]
    args, kwargs, passes = fit_groups.rows_to_show(
        engine, model, args, kwargs, batches, placing(None)
    )
    fit_groups.check_fit(engine, model, "to_arviz(engine, *args)")
    if model is not None:
        engine = HostFit(engine, model, args, kwargs, seed, passes)
    check_sharding(sharding, Sharding)
    target = engine.target if sharding is None else engine.target.with_sharding(sharding)
    sharding = target.sharding
    data = target.bind(*args, **kwargs)
    target.follows(data, look=False)  # raises where the arguments do not fit each other
    given = engine.get_samples(**asked_of(engine, num_samples))
    draws = {
        name: torch.as_tensor(given[name]).detach() for name in target.layout.names if name in given
    }
    traces = {} if isinstance(engine, Fit) else getattr(engine, "history", {})
    if result is not None:
        traces = {"loss": result.losses, **result.info}
    included = posterior_predictive, log_likelihood, log_prior, observed_data, sample_stats
    wanted = fit_groups.Wanted(*included, constant_data, discrete, losses, draw_chunk, data_chunk)
    wanted = wanted._replace(dims=dims, coords=coords, may_thin=all_draws)

    def seeded(*given: Any, number: int | None, **options: Any) -> Replay:
        # Groups that are drawn one after another must not have the same random numbers.
        return replay(*given, seed=seed + (number or 0), sharding=sharding, **options)

    def statistics(target: LogDensity, together: int) -> fit_groups.Group:
        return _sample_statistics(engine, target, draws, data, together)

    host = fit_groups.Host(
        ("pyro_ext", "pyro", "pyro-ppl"), seeded, array_or_none, placing(target.dtype)
    )
    call = args, kwargs, passes
    return fit_groups.arviz_of(host, engine, target, draws, data, wanted, call, traces, statistics)


def _sample_statistics(
    engine: Any, target: LogDensity, draws: Mapping[str, Any], data: Any, together: int
) -> fit_groups.Group:
    positions = target.unconstrain(draws, data)
    log_p = [
        torch.stack(target.full_log_prior_and_likelihood(part, data)).sum(0)
        for part in positions.split(together)
    ]
    statistics = {"log_p": torch.cat(log_p)}
    if (hook := getattr(engine, "sample_statistics", None)) is not None:
        statistics.update(hook(positions))
    return {name: Variable(value.detach().cpu().numpy()) for name, value in statistics.items()}
