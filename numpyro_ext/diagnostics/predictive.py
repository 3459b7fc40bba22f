"""The predictive distribution of a model at draws from any source, on rows of any data set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from numpyro_ext.density.prediction import ObserveMissing
from numpyro_ext.density.replay import replay
from numpyro_ext.diagnostics.fit import target_of_model
from numpyro_ext.sharding import Sharding, on_own_axes
from ppl_ext.diagnostics.predictive_data import (
    PREDICTIVE_DOCUMENTATION,
    discrete_latents,
    predicted_site,
)
from ppl_ext.diagnostics.replay import check_draws_are_mapping, check_numbers_of_draws
from ppl_ext.documented import documented
from ppl_ext.options import check_count
from ppl_ext.sharding import check_sharding

if TYPE_CHECKING:
    from xarray import Dataset


@documented(
    PREDICTIVE_DOCUMENTATION,
    host="NumPyro",
    kinds="",
    state="state",
    params="""
        params : mapping of str to array, optional
            Values of ``param`` and ``mutable`` sites, such as the weights of a module without
            priors.
        """,
    randomness="""
        rng_key : array, optional
            Key of the values of discrete sites. Default: ``jax.random.key(0)``.
        """,
    draw_chunk="""
        draw_chunk : int, optional
            At most this many draws are evaluated at once. Default: 128.
        """,
    one_by_one="",
)
@on_own_axes
def predictive_distribution(
    model: Callable[..., Any],
    draws: Mapping[str, Any],
    *args: Any,
    site: str | None = None,
    discrete: str | None = None,
    params: Mapping[str, Any] | None = None,
    draw_chunk: int | None = None,
    data_chunk: int | None = None,
    rng_key: Any = None,
    sharding: Sharding | None = None,
    **kwargs: Any,
) -> Dataset:
    """The observed site's distribution at every draw and row; no observation is sampled."""
    check_sharding(sharding, Sharding)
    check_draws_are_mapping(draws)
    for name, chunk in (("draw_chunk", draw_chunk), ("data_chunk", data_chunk)):
        check_count(name, chunk, optional=True)
    draws = {name: np.asarray(value) for name, value in draws.items()}
    check_numbers_of_draws(draws)

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

    target, data, observing = observed(draws)
    latents = discrete_latents(site, target.observed_sites, observing.finite)
    if latents:
        target, data, observing = observed({*draws, *latents})
    at_draws = partial(
        replay,
        target,
        data=data,
        draw_chunk=draw_chunk,
        data_chunk=data_chunk,
        rng_key=rng_key,
    )
    return predicted_site(site, target, observing.missing, draws, discrete, at_draws)
