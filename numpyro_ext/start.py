"""Where runs start: :func:`find_start`; the search itself is in :mod:`ppl_ext.start`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.lax import fori_loop
from numpyro.infer.autoguide import AutoContinuous, AutoGuide

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.density.reparameterise import moved_values
from numpyro_ext.density.start import numbers_of_key
from numpyro_ext.draws import check_key
from numpyro_ext.guides.flat_density import flat_density
from numpyro_ext.programs import Loop
from numpyro_ext.sharding import entry
from ppl_ext.errors import ArgumentError
from ppl_ext.start import search
from ppl_ext.start.given import DRAWS, HOST, SEARCH, Started
from ppl_ext.start.start import Start
from ppl_ext.target.on_host import as_float64

#: Calls of a usual fit.
CALLS = 2_000
#: How a guide of the host is given as a start.
GUIDE_FORM = "a pair (guide, params) of a NumPyro autoguide and its parameters"
#: The same where an engine may be given as well.
GIVEN = f"{GUIDE_FORM}, a pair (engine, result)"


@entry
def find_start(rng_key: Array, model: Callable[..., Any], *args: Any, **kwargs: Any) -> Start:
    """Find where runs of a model's engines may start: Normals near the modes of its density.

    Several quasi-Newton paths go side by side from random points towards modes; at their ends, or
    on their way where a path has no end, as in a funnel, a Normal takes the curvature of the
    density, and a few natural-gradient steps mend one that is a bad picture of it. That takes
    some hundred evaluations of the score, and more where the density is far from Normal.

    Parameters
    ----------
    rng_key : array
        JAX random key.
    model : callable
        NumPyro program.
    *args, **kwargs
        Its arguments, with all rows. Of plates with more than 10,000 rows whose minibatches the
        model draws itself, a batch of 10,000.

    Returns
    -------
    Start
        On the flat unconstrained space, latent sites in trace order: ``mean`` (D,), ``factor``
        (D, D), ``modes`` with their masses, ``evaluations``, and ``draw(number, seed)``.

    Raises
    ------
    ModelCheckError
        The model cannot be fitted, or no starting point has a finite density and score.
    ArgumentError
        The arguments do not fit the model.

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
    >>> start = nx.find_start(jax.random.key(0), model, y)
    >>> print(start.mean.round(1), start.factor.round(1))  # of a Normal near the mode
    [2.] [[0.5]]
    >>> engine = nx.SVGD(model, numpyro.optim.Adam(0.3), num_particles=20)
    >>> result = engine.run(jax.random.key(1), 100, y, start=start)
    """
    check_key(rng_key, "find_start")
    target_key, key = random.split(rng_key)
    target = LogDensity(model, target_key, args, kwargs, engine="find_start")
    data = target.bind(*args, **kwargs)
    found = started(target, key, data, SEARCH)
    assert found is not None
    return replace(found.start, sites=target.layout.sizes)


def started(
    target: LogDensity,
    rng_key: Array,
    data: Data,
    given: Any,
    *,
    has_strategy: bool = False,
    usual: str = HOST,
) -> Started | None:
    """Where a run of a target starts; see :func:`ppl_ext.start.search.begin`."""
    if search.starts_by_host(given, usual, target.dim):
        return None
    # A search branches on what it finds, and would end elsewhere where sums are taken in another
    # order. It evaluates few positions, for which one device is enough.
    sharding = target.sharding
    target, data = target.on_one_device(data)
    place: Callable[[], AbstractContextManager[Any]] = nullcontext
    if sharding is not None and target.sharding is None:
        place = sharding.on_first_device
    # JAX would compile a program for each thing done to a key.
    generator = np.random.default_rng(numbers_of_key(rng_key))
    piece = piece_of(target, data, search.rows_of(target.plates, generator))

    def evaluated(z: np.ndarray, before: int) -> tuple[Any, Any]:
        with place():
            return piece(z, before)

    def by_strategy(number: int) -> np.ndarray:
        return as_float64(target.initial_positions(number, rng_key, data))

    of_host = partial(of_guide, target=target, rng_key=rng_key, data=data)
    space = search.space_of(
        target, data, of_host, search.Joined(evaluated, piece.together), moved_values
    )
    with place():
        return search.begin(given, space, generator, by_strategy, has_strategy=has_strategy)


def is_guide(given: Any) -> bool:
    """Whether this is a guide of the host with its parameters."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], AutoGuide)


def is_given(source: Any) -> bool:
    """Whether this is a guide with its parameters, or an engine with its result."""
    is_pair = isinstance(source, tuple) and len(source) == 2
    return is_guide(source) or (is_pair and hasattr(source[0], "get_samples"))


def without_engine(source: Any) -> Any:
    """A start as it is, or the draws of an engine that is given with its result."""
    if not isinstance(source, tuple) or is_guide(source):
        return source
    engine, state = source
    return engine.get_samples(state)


def of_guide(
    given: Any, target: LogDensity, rng_key: Array, data: Data
) -> Start | Mapping[str, Any] | None:
    """Normals of a host's guide with its parameters, or draws; None of anything else.

    Raises
    ------
    ArgumentError
        The guide is of another model, or these are not its parameters.
    """
    if not is_guide(given):
        return None
    guide, params = given[0], getattr(given[1], "params", given[1])
    try:
        if not isinstance(guide, AutoContinuous):
            options = {"sample_shape": (DRAWS,), **data.kwargs}
            return dict(guide.sample_posterior(rng_key, params, *data.args, **options))
        # A copy: the guide's own set-up stays as it is.
        density = flat_density(
            copy.copy(guide), rng_key, data.args, data.kwargs, layout=target.layout
        )
        parameters = density.from_host(params)
    except (KeyError, TypeError) as error:
        raise ArgumentError(
            f"Expected {GUIDE_FORM}, found parameters that {type(guide).__name__} cannot use "
            f"({type(error).__name__}: {error}). Pass SVI.get_params(state), or what SVI.run "
            "returned."
        ) from error
    return density.as_start(parameters) or target.constrain(
        density.sample(parameters, rng_key, DRAWS), data
    )


def prior_of(target: LogDensity, number: int, seed: int, data: Data) -> np.ndarray:
    """So many positions (S, D) of draws of the prior; see :meth:`LogDensity.prior_positions`."""
    return np.asarray(target.prior_positions(number, random.key(seed), data), np.float64)


def piece_of(target: LogDensity, data: Data, rows: dict[str, np.ndarray] | None) -> search.Joined:
    """Log densities and scores of a target, of these rows or of all."""
    return pieces_of(target)(data, rows)


def pieces_of(target: LogDensity) -> Callable[[Data, dict[str, np.ndarray] | None], search.Joined]:
    """The same of any arguments and rows, which a target traces once for all of one form."""

    def of_piece(z: Array, data: Data, indices: Any) -> tuple[Array, Array]:
        found = target.score(z, data, indices) if indices else target.full_score(z, data)
        return found.log_density(target.likelihood_temperature), found.score

    def evaluate(z: Array, data: Data, indices: Any, count: Array) -> tuple[Array, Array]:
        def following(number: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
            own = of_piece(z[number], data, indices)
            return jax.tree.map(lambda all_, some: all_.at[number].set(some), found, own)

        if len(z) == 1:
            values, scores = of_piece(z[0], data, indices)
            return values[None], scores[None]
        empty = jnp.zeros(z.shape[:2], target.dtype), jnp.zeros(z.shape, target.dtype)
        return fori_loop(0, count, following, empty)

    program = target.remembered("pieces", lambda: Loop(evaluate, CALLS))

    def bound(data: Data, rows: dict[str, np.ndarray] | None) -> search.Joined:
        evaluated, indices = target.arguments.as_evaluated(data), rows or {}
        together = search.pieces_together(target.dim, sum(array.size for array in data.arrays))
        if target.passes is not None:
            together = 1

        def piece(z: np.ndarray, before: int) -> tuple[Any, Any]:
            width = search.WIDTH if together > 1 else len(z)
            number = len(z) // width
            # The program has one shape. What is not asked for is left at zero, and the loop ends
            # before it.
            filled = np.zeros((together, width, target.dim), target.dtype)
            filled[:number] = z.reshape(number, width, target.dim)
            values, scores = program.whole(before, number, filled, evaluated, indices)
            many = number * width
            return (
                np.asarray(values).reshape(-1)[:many],
                np.asarray(scores).reshape(-1, target.dim)[:many],
            )

        return search.Joined(piece, together)

    return bound
