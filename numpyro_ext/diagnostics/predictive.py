"""The predictive distribution of a model at draws from any source, on rows of any data set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.infer import Predictive
from numpyro.util import is_prng_key

from numpyro_ext.density.batches import place
from numpyro_ext.density.prediction import GoesOnError, ObserveMissing, run_at
from numpyro_ext.density.replay import computed_sites, replay
from numpyro_ext.diagnostics.fit import target_of_model
from numpyro_ext.draws import check_key
from numpyro_ext.engine import Engine
from numpyro_ext.sharding import Sharding, entry_on_own_axes, verb_on_own_axes
from ppl_ext.arguments import columns_as_arrays
from ppl_ext.diagnostics.predictive_data import (
    draws_of_fit,
    returned_sites,
    site_predictor,
)
from ppl_ext.diagnostics.replay import (
    check_draws_are_mapping,
    check_numbers_of_draws,
    of_the_same_shape,
    values_of_shared,
)
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.habits import as_fitted
from ppl_ext.options import check_count, described
from ppl_ext.running.sharding import check_sharding

if TYPE_CHECKING:
    from xarray import Dataset


@entry_on_own_axes
def predictive_distribution(
    model: Callable[..., Any],
    draws: Any,
    *args: Any,
    site: str | None = None,
    linearize: bool | Mapping[str, Any] = False,
    discrete: str | None = None,
    return_sites: Collection[str] | None = None,
    state: Any = None,
    num_samples: int | None = None,
    params: Mapping[str, Any] | None = None,
    draw_chunk: int | None = None,
    data_chunk: int | None = None,
    rng_key: Any = None,
    sharding: Sharding | None = None,
    **kwargs: Any,
) -> Dataset:
    """The observed site's distribution at every draw and row; no observation is sampled.

    The model runs with each draw on the rows of its arguments, test rows as a rule, as NumPyro's
    ``Predictive`` runs it. A model that subsamples a plate is evaluated on all rows of it.

    Discrete latent sites, which draws do not hold, have values of their prior, as those of rows
    yet to be seen do. Those that several observations share, such as a change point, have values of
    their posterior given the draw and what is observed. With ``discrete`` all have such values, as
    with the host's ``infer_discrete``, and these are in the result.

    Parameters
    ----------
    model : callable
        The NumPyro program.
    draws : mapping of str to array (S, *site shape), or a fit
        Constrained values of the latent sites, as ``engine.get_samples(state)`` or
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
    params : mapping of str to array, optional
        Values of ``param`` and ``mutable`` sites, such as the weights of a module without
        priors.
    state, num_samples : optional
        Of an engine in place of the draws: its state, or the result of its run, and how many
        draws it gives.
    rng_key : array, optional
        Key of an engine's draws, by default its own, and of the values of discrete sites, by
        default ``jax.random.key(0)``.
    draw_chunk : int, optional
        At most this many draws are evaluated at once. Default: 128.
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
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> import numpyro.distributions as dist
    >>> import numpyro_ext as nx
    >>> def model(x, y=None):
    ...     w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 1]).to_event(2))
    ...     with numpyro.plate("rows", len(x)):
    ...         numpyro.sample("y", dist.Normal((x @ w)[:, 0], 0.1), obs=y)
    >>> x = jnp.tile(jnp.eye(2), (10, 1))
    >>> y = x @ jnp.array([1.0, -1.0])
    >>> draws = {"w": jnp.array([[[0.9], [-1.0]], [[1.1], [-1.0]]])}  # of any fit
    >>> rows = jnp.array([[1.0, 0.0], [2.0, 1.0]])  # whose y is not known
    >>> predictive = nx.predictive_distribution(model, draws, rows)
    >>> print(predictive["mean"].mean("draw").values.round(1))
    [1. 1.]
    """
    check_sharding(sharding, Sharding)
    if rng_key is not None:
        check_key(rng_key)
    counts = {"num_samples": num_samples, "draw_chunk": draw_chunk, "data_chunk": data_chunk}
    for name, count in counts.items():
        check_count(name, count, optional=True)
    options = {"rng_key": rng_key, "num_samples": num_samples}
    if isinstance(draws, Engine):
        draws, state = draws.of_run(state)
    draws, at = draws_of_fit(draws, linearize, *_states(draws, state), **options)
    check_draws_are_mapping(draws)
    draws = {name: np.asarray(value) for name, value in draws.items()}
    check_numbers_of_draws(draws)

    if at is not None:
        at = {name: np.asarray(value) for name, value in at.items()}
    predict = predictor(model, draws, args, kwargs, site, params, sharding)
    options = {"draw_chunk": draw_chunk, "data_chunk": data_chunk, "rng_key": rng_key}
    return predict(draws, discrete, return_sites, around=at, **options)


@verb_on_own_axes
def predictor(
    model: Callable[..., Any],
    draws: Mapping[str, np.ndarray],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    site: str | None = None,
    params: Mapping[str, Any] | None = None,
    sharding: Sharding | None = None,
) -> Callable[..., Dataset]:
    """See :func:`ppl_ext.diagnostics.predictive_data.site_predictor`."""

    def observed(given: Collection[str]) -> tuple[Any, Any, ObserveMissing]:
        observing = ObserveMissing(model, given)
        found = target_of_model(
            observing,
            args,
            kwargs,
            held=params,
            all_rows=False,
            owner="predictive_distribution",
            sharding=sharding,
        )
        return *found, observing

    run = run_at(model, args, dict(kwargs))
    return site_predictor(site, draws, observed, computed_sites, run, replay)


def _states(draws: Any, state: Any) -> tuple[Any, ...]:
    """The state of an engine, and nothing with draws.

    Raises
    ------
    ArgumentError
        An engine has none, or something else has one.
    """
    is_engine = isinstance(draws, Engine)
    if is_engine != (state is not None):
        raise ArgumentError(
            "Expected state=... with an engine in place of the draws, and without one otherwise, "
            f"found {'no state' if is_engine else described(draws)}."
        )
    return (state,) if is_engine else ()


@verb_on_own_axes
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
    args, kwargs = columns_as_arrays(args, kwargs, model=model)
    if args and is_prng_key(args[0]) and not is_prng_key(next(iter(like[0]), None)):
        raise ArgumentError(
            "Expected the model's arguments, found a key before them. Type fit.predict(*args), or "
            "fit.predict(*args, seed=0): a whole number takes the place of a key."
        )
    args, kwargs = as_fitted(model, args, kwargs, like, place)
    draws = {name: np.asarray(value) for name, value in draws.items()}
    # New rows usually have no observations. The target needs some, so that the sites count as
    # observed.
    observing = ObserveMissing(model, draws)
    try:
        target, data = target_of_model(observing, args, kwargs, all_rows=False, owner="predict")
    except GoesOnError:
        return _forecasts(model, draws, args, kwargs, seed, return_sites)
    key = random.key(seed)
    if observing.finite and any(like):
        fitted, own = target_of_model(model, *like, all_rows=False)
        shared = values_of_shared(replay, fitted, draws, own, rng_key=random.fold_in(key, 1))
        if shared and (shared := of_the_same_shape(shared, replay, target, draws, data)):
            draws = {**draws, **shared}
            observing = ObserveMissing(model, draws)
            target, data = target_of_model(observing, args, kwargs, all_rows=False, owner="predict")
    at_draws = partial(replay, target, data=data, rng_key=key)
    return returned_sites(at_draws, draws, observing, return_sites)


def _forecasts(
    model: Callable[..., Any],
    draws: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    seed: int,
    return_sites: Collection[str] | None,
) -> dict[str, np.ndarray]:
    """The host's own predictions, of a ``scan`` that goes on beyond the values it is given.

    Such a site is observed in its first steps and drawn in the others, which no density has.
    """
    found = Predictive(
        model,
        posterior_samples={name: jnp.asarray(value) for name, value in draws.items()},
        return_sites=None if return_sites is None else list(return_sites),
    )(random.key(seed), *args, **kwargs)
    return {name: np.asarray(value) for name, value in found.items()}
