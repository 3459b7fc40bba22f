"""The predictive distribution of a model at draws from any source, on rows of any data set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ppl_ext.arguments import columns_as_arrays, entry
from ppl_ext.diagnostics.predictive_data import (
    PREDICTIVE_DOCUMENTATION,
    draws_of_fit,
    returned_sites,
    site_predictor,
)
from ppl_ext.diagnostics.replay import Replay, check_draws_are_mapping, check_numbers_of_draws
from ppl_ext.documented import documented
from ppl_ext.fit.habits import as_fitted
from ppl_ext.options import as_seed, check_count
from ppl_ext.process import between_steps
from ppl_ext.running.sharding import check_sharding
from pyro_ext.density import LogDensity
from pyro_ext.density.arguments import placing
from pyro_ext.density.prediction import ObserveMissing, run_at
from pyro_ext.density.replay import computed_sites, replay
from pyro_ext.diagnostics.fit import target_of_model
from pyro_ext.sharding import Sharding

if TYPE_CHECKING:
    from xarray import Dataset


@documented(
    PREDICTIVE_DOCUMENTATION,
    host="Pyro",
    kinds=", a function or a module",
    state="",
    params="""
        num_samples : int, optional
            Draws that an engine in their place gives. Default: the engine's.
        """,
    randomness="""
        seed : int
            Seed of the values of discrete sites.
        """,
    draw_chunk="",
)
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
    observing = ObserveMissing(draws)
    known = observing.over(model)
    target, data = target_of_model(known, args, kwargs, dtype=dtype, all_rows=False)
    at_draws = partial(replay, target, data=data, seed=as_seed(seed))
    return returned_sites(at_draws, draws, observing, return_sites)
