"""The predictive distribution of a model at draws from any source, on rows of any data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from numpyro_ext.density.prediction import ObserveMissing
from numpyro_ext.density.replay import replay
from numpyro_ext.diagnostics.fit import target_of_model
from ppl_ext.diagnostics.predictive_data import predictive_dataset, site_to_predict
from ppl_ext.diagnostics.replay import check_draws_are_mapping, check_numbers_of_draws
from ppl_ext.options import check_count

if TYPE_CHECKING:
    from xarray import Dataset


def predictive_distribution(
    model: Callable[..., Any],
    draws: Mapping[str, Any],
    *args: Any,
    site: str | None = None,
    params: Mapping[str, Any] | None = None,
    draw_chunk: int | None = None,
    data_chunk: int | None = None,
    **kwargs: Any,
) -> Dataset:
    """The observed site's distribution at every draw and row; nothing is sampled.

    The model runs with each draw on the rows of its arguments, test rows as a rule, as NumPyro's
    ``Predictive`` runs it. A model that subsamples a plate is evaluated on all rows of it.

    Parameters
    ----------
    model : callable
        The NumPyro program.
    draws : mapping of str to array (S, *site shape)
        Constrained values of the latent sites, as ``engine.get_samples(state)`` or
        ``MCMC.get_samples()`` give them. Further names are left alone.
    *args, **kwargs
        The model's arguments. With the observations among them the result also has what needs
        these: log likelihood, observed values and distribution function.
    site : str, optional
        Name of the site to predict. Default: the only observed site, or the only one that has no
        draws.
    params : mapping of str to array, optional
        Values of ``param`` and ``mutable`` sites, such as the weights of a module without priors.
    draw_chunk, data_chunk : int, optional
        At most this many draws, and rows of a subsampled plate, are evaluated at once. Default:
        128 and 2048. Rows of a model without one can be passed in parts, and the results joined
        by ``xarray.concat(parts, "row")``.

    Returns
    -------
    Dataset
        With the dimensions draw, row and class, see
        :mod:`ppl_ext.diagnostics.predictive_data`. Rows that a mask hides are left out.

    Raises
    ------
    ArgumentError
        A latent site has no draws, sites differ in their number of draws, a draw has the wrong
        shape, several sites could be meant, or the site has neither classes nor moments.
    ModelCheckError
        The model cannot be run with its latent sites set.
    """
    check_draws_are_mapping(draws)
    for name, chunk in (("draw_chunk", draw_chunk), ("data_chunk", data_chunk)):
        check_count(name, chunk, optional=True)
    draws = {name: np.asarray(value) for name, value in draws.items()}
    check_numbers_of_draws(draws)
    observing = ObserveMissing(model, draws)
    target, data = target_of_model(
        observing, args, kwargs, held=params, all_rows=False, owner="predictive_distribution"
    )
    site = site_to_predict(site, target.observed_sites, observing.missing)
    seen = site not in observing.missing
    replayed = replay(
        target,
        {name: draws[name] for name in target.layout.names},
        data,
        groups=("prediction", "log_likelihood", "observed") if seen else ("prediction",),
        all_rows=False,
        draw_chunk=draw_chunk,
        data_chunk=data_chunk,
    )
    return predictive_dataset(
        site,
        replayed.sites[site].batch_shape,
        {term: found[site] for term, found in replayed.prediction.items() if site in found},
        replayed.log_likelihood.get(site),
        replayed.observed.get(site),
    )
