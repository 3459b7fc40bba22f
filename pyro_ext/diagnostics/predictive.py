"""The predictive distribution of a model at draws from any source, on rows of any data set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ppl_ext.arguments import columns_as_arrays, entry
from ppl_ext.diagnostics.predictive_data import (
    draws_of_fit,
    returned_sites,
    site_predictor,
)
from ppl_ext.diagnostics.replay import (
    Replay,
    check_draws_are_mapping,
    check_numbers_of_draws,
    of_the_same_shape,
    values_of_shared,
)
from ppl_ext.errors import ModelCheckError
from ppl_ext.fit.habits import as_fitted
from ppl_ext.options import as_seed, check_count
from ppl_ext.process import between_steps
from ppl_ext.running.sharding import check_sharding
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.arguments import placing
from pyro_ext.density.prediction import ObserveMissing, run_at
from pyro_ext.density.replay import computed_sites, replay
from pyro_ext.diagnostics.fit import target_of_model
from pyro_ext.sharding import Sharding

if TYPE_CHECKING:
    from xarray import Dataset


@entry
def predictive_distribution(
    model: Callable[..., Any],
    draws: Any,
    *args: Any,
    site: str | None = None,
    linearize: bool | Mapping[str, Any] = False,
    discrete: str | None = None,
    return_sites: Collection[str] | None = None,
    num_samples: int | None = None,
    data_chunk: int | None = None,
    seed: int = 0,
    sharding: Sharding | None = None,
    **kwargs: Any,
) -> Dataset:
    """The observed site's distribution at every draw and row; no observation is sampled.

    The model runs with each draw on the rows of its arguments, test rows as a rule, as Pyro's
    ``Predictive`` runs it. A model that subsamples a plate is evaluated on all rows of it.

    Discrete latent sites, which draws do not hold, have values of their prior, as those of rows
    yet to be seen do. Those that several observations share, such as a change point, have values of
    their posterior given the draw and what is observed. With ``discrete`` all have such values, as
    with the host's ``infer_discrete``, and these are in the result.

    Parameters
    ----------
    model : callable
        The Pyro program, a function or a module.
    draws : mapping of str to array (S, *site shape), or a fit
        Constrained values of the latent sites, as ``engine.get_samples()`` or
        ``MCMC.get_samples()`` give them. Further names are left alone. Or an engine, or what
        ``fit`` returns, whose draws are taken.
    *args, **kwargs
        The model's arguments. With the observations among them the result also has what needs
        these: log likelihood, observed values and distribution function.
    site : str, optional
        Name of the site to predict. Default: the only observed site, or, where several are in the
        model, the only one without values. A site that is observed at values computed from latent
        sites is a prior of these and not meant; nor is a discrete site without values that
        another depends on, which is latent.
    linearize : bool or mapping of str to array
        Whether the model is made linear in its parameters, at the mode of the engine in place of
        the draws, or at given constrained values of the latent sites. Each draw moves the
        parameters of the observed distributions by one product of their Jacobian with its way from
        there, in unconstrained space: locations and logits as they are, probabilities by their
        logits or logarithms, positive parameters by their logarithms. Draws of ``LaplaceGGN`` mean
        this model; of the network itself they are worse.
    discrete : {"sample", "most probable"}, optional
        Draw discrete latent sites jointly from their posterior, or take the most probable values
        together. Distributions are then given these; the log likelihood stays that with discrete
        sites summed out.
    return_sites : sequence of str, optional
        Deterministic sites whose values at each draw the dataset has under their names, such as
        the mean that a program computes of its rows. Default: all that do not depend on sites
        without values, but for those that bear a name of the dataset.
    num_samples : int, optional
        Draws that an engine in their place gives. Default: the engine's.
    seed : int
        Seed of the values of discrete sites.
    data_chunk : int, optional
        At most this many rows of a subsampled plate are evaluated at once. Default: 2048. Rows of
        a model without one can be passed in parts, and the results joined by
        ``xarray.concat(parts, "row")``.
    sharding : Sharding, optional
        How draws and rows are split over devices.

    Returns
    -------
    Dataset
        With the dimensions draw, row and class, see
        :mod:`ppl_ext.diagnostics.predictive_data`. Rows that a mask hides are left out. With
        ``discrete`` also every discrete latent site under its name. Such sites and deterministic
        ones are by row where their plates are those of the predicted site.

    Raises
    ------
    ArgumentError
        A latent site has no draws, sites differ in their number of draws, a draw has the wrong
        shape, draws are NaN, infinite or outside of their sites' supports, several sites could be
        meant, the observations are computed from latent sites, the site has neither classes nor
        moments, a discrete site bears a name of the dataset, there is no deterministic site of a
        name in ``return_sites``, or, with ``discrete``, an observed site depends on the one to
        predict. With ``linearize``: there is no mode, or a parameter of
        an observed distribution has no scale without bounds.
    ModelCheckError
        The model cannot be run with its latent sites set.

    Examples
    --------
    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> import pyro_ext as px
    >>> def model(x, y=None):
    ...     w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 1]).to_event(2))
    ...     with pyro.plate("rows", len(x)):
    ...         pyro.sample("y", dist.Normal((x @ w)[:, 0], 0.1), obs=y)
    >>> x = torch.eye(2).repeat(10, 1)
    >>> y = x @ torch.tensor([1.0, -1.0])
    >>> draws = {"w": torch.tensor([[[0.9], [-1.0]], [[1.1], [-1.0]]])}  # of any fit
    >>> rows = torch.tensor([[1.0, 0.0], [2.0, 1.0]])  # whose y is not known
    >>> predictive = px.predictive_distribution(model, draws, rows)
    >>> print(predictive["mean"].mean("draw").values.round(1))
    [1. 1.]
    """
    for name, count in (("num_samples", num_samples), ("data_chunk", data_chunk)):
        check_count(name, count, optional=True)
    draws, at = draws_of_fit(draws, linearize, num_samples=num_samples)
    check_draws_are_mapping(draws)
    check_sharding(sharding, Sharding)
    draws = _tensors(draws)
    check_numbers_of_draws(draws)
    at = None if at is None else _tensors(at)
    options = {"data_chunk": data_chunk, "around": at, "seed": seed, "sharding": sharding}
    return predictor(model, draws, args, kwargs, site)(draws, discrete, return_sites, **options)


@between_steps()
def predictor(
    model: Callable[..., Any],
    draws: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    site: str | None = None,
) -> Callable[..., Dataset]:
    """See :func:`ppl_ext.diagnostics.predictive_data.site_predictor`."""
    draws = _tensors(draws)
    # Draws of discrete sites are whole numbers, which say nothing of the precision.
    dtype = next((value.dtype for value in draws.values() if value.is_floating_point()), None)

    def observed(given: Collection[str]) -> tuple[Any, Any, ObserveMissing]:
        observing = ObserveMissing(given)
        # New rows usually have no observations. The target needs some, so that the sites count as
        # observed.
        known = observing.over(model)
        return *target_of_model(known, args, kwargs, dtype=dtype, all_rows=False), observing

    run = run_at(model, args, dict(kwargs))
    return site_predictor(site, draws, observed, computed_sites, run, _replay_at)


def _replay_at(target: LogDensity, draws: Mapping[str, Any], **options: Any) -> Replay:
    return replay(target, _tensors(draws), **options)


def _tensors(draws: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value).detach() for name, value in draws.items()}


@between_steps()
def predictions(
    model: Callable[..., Any],
    draws: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    seed: int = 0,
    like: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {}),
    return_sites: Collection[str] | None = None,
) -> dict[str, np.ndarray]:
    """New values of the observed sites of a model at draws, as the host's ``Predictive`` has them.

    And those of deterministic sites in the same runs.

    Parameters
    ----------
    model : callable
    draws : mapping of str to array (S, *site shape)
    args, kwargs
        The model's arguments. Sites without observations among them are predicted as well.
    seed : int
    like : tuple of tuple and mapping
        The arguments of the fit: where these are arrays, lists and arrays of NumPy are made such.
    return_sites : collection of str, optional
        Sites that are returned, latent ones among them. Default: all others.

    Returns
    -------
    dict of str to array (S, *shape)

    Raises
    ------
    ArgumentError
        The draws or the arguments do not fit the model, or there is no such site.
    """
    args, kwargs = columns_as_arrays(args, kwargs, placing(None), model)
    args, kwargs = as_fitted(model, args, kwargs, like, placing(None))
    draws = _tensors(draws)
    dtype = next((value.dtype for value in draws.values() if value.is_floating_point()), None)

    def observed(draws: Mapping[str, Tensor]) -> tuple[ObserveMissing, LogDensity, Data]:
        observing = ObserveMissing(draws)
        known = observing.over(model)
        return observing, *target_of_model(known, args, kwargs, dtype=dtype, all_rows=False)

    built = None
    # Observations may be impossible beside a discrete site that was drawn from its prior.
    with suppress(ModelCheckError) if any(like) else nullcontext():
        built = observed(draws)
    if any(like) and (built is None or built[0].finite):
        fitted, own = target_of_model(model, *like, dtype=dtype, all_rows=False)
        shared = values_of_shared(replay, fitted, draws, own, seed=as_seed(seed) + 1)
        if built is not None and shared:
            shared = of_the_same_shape(shared, replay, built[1], draws, built[2])
        draws = {**draws, **_tensors(shared)}
        built = observed(draws) if shared or built is None else built
    assert built is not None
    observing, target, data = built
    at_draws = partial(replay, target, data=data, seed=as_seed(seed))
    return returned_sites(at_draws, draws, observing, return_sites)
