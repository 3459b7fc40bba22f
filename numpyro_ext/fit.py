"""``fit``: from a NumPyro program to draws with a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.reparameterise import noncentered
from numpyro_ext.density.replay import replay
from numpyro_ext.start import piece_of
from ppl_ext.documented import documented
from ppl_ext.fit import check as shared_check
from ppl_ext.fit import fit as shared
from ppl_ext.fit.check import CHECK_DOCUMENTATION, CHECK_ESS, draws_of
from ppl_ext.fit.fit import FIT_DOCUMENTATION, TARGET_ESS, Fit
from ppl_ext.fit.problem import Problem, problem_of
from ppl_ext.fit.verdict import Verdict


@documented(
    FIT_DOCUMENTATION,
    host="NumPyro",
    randomness="rng_key : array\n        JAX random key.",
)
def fit(
    rng_key: Array,
    model: Callable[..., Any],
    *args: Any,
    budget: int | None = None,
    seconds: float | None = None,
    target_ess: float = TARGET_ESS,
    exact: bool = True,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Fit:
    """Draws of a program's posterior that may be trusted, or a clear no."""
    keys = random.split(rng_key, 3)
    generator = np.random.default_rng(np.asarray(random.bits(keys[0], (4,))))

    def problems() -> Sequence[Problem]:
        target = LogDensity(model, keys[1], args, kwargs, engine="fit")
        data = target.bind(*args, **kwargs)

        def as_written(z: np.ndarray) -> dict[str, Array]:
            found = target.constrain(jnp.asarray(z, target.dtype), data)
            return {name: found[name] for name in target.layout.names}

        ways = [_problem("as written", target, target, data, as_written, keys[2], generator)]
        if target.plates:
            return ways
        other = noncentered(target, data)
        if other is None:
            return ways
        moved = LogDensity(other[0], keys[1], args, kwargs, engine="fit", check=False)
        moved_data = moved.bind(*args, **kwargs)

        def of_sites(z: np.ndarray) -> dict[str, Array]:
            latent = moved.constrain(jnp.asarray(z, moved.dtype), moved_data)
            found = replay(moved, latent, moved_data, groups=["deterministic"])
            values = {**latent, **found.deterministic}
            return {name: jnp.asarray(values[name]) for name in target.layout.names}

        name = f"with {', '.join(other[1])} non-centred"
        ways.append(_problem(name, moved, target, moved_data, of_sites, keys[2], generator))
        return ways

    return shared.fit(
        problems,
        generator,
        budget=budget,
        seconds=seconds,
        target_ess=target_ess,
        exact=exact,
        progress_bar=progress_bar,
    )


@documented(
    CHECK_DOCUMENTATION,
    host="NumPyro",
    sources="an engine (``engine.get_samples(state)``), of ``Predictive``, or a run of ``MCMC``",
    randomness="rng_key : array\n        JAX random key.",
)
def check(
    rng_key: Array,
    draws: Any,
    model: Callable[..., Any],
    *args: Any,
    budget: int | None = None,
    seconds: float | None = None,
    target_ess: float = CHECK_ESS,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Verdict:
    """Whether draws of any method are the posterior's, by chains that are exact."""
    found = draws_of(draws)
    reference = fit(
        rng_key,
        model,
        *args,
        budget=budget,
        seconds=seconds,
        target_ess=target_ess,
        progress_bar=progress_bar,
        **kwargs,
    )
    return shared_check.check(found, reference)


def _problem(
    name: str,
    target: LogDensity,
    written: LogDensity,
    data: Data,
    values: Callable[[np.ndarray], dict[str, Array]],
    rng_key: Array,
    generator: np.random.Generator,
) -> Problem:
    def by_strategy(number: int) -> np.ndarray:
        return np.asarray(target.initial_positions(number, rng_key, data), np.float64)

    return problem_of(
        name,
        target,
        written,
        lambda rows: piece_of(target, data, rows),
        float(jnp.finfo(target.dtype).eps),
        by_strategy,
        values,
        generator,
    )
