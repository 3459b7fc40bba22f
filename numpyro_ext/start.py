"""Where runs start: :func:`find_start`; the search itself is in :mod:`ppl_ext.start`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random

from numpyro_ext.density import Data, LogDensity
from numpyro_ext.programs import Loop
from ppl_ext.start.search import Piece, rows_of, search
from ppl_ext.start.start import Start

#: Calls of a usual fit.
CALLS = 2_000


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
    """
    target_key, key = random.split(rng_key)
    target = LogDensity(model, target_key, args, kwargs, engine="find_start")
    return start_of(target, key, target.bind(*args, **kwargs))


def start_of(
    target: LogDensity, rng_key: Array, data: Data, *, has_strategy: bool = False
) -> Start:
    """The start of a target with given data; see :func:`ppl_ext.start.search.search`."""
    of_points, of_numbers = random.split(rng_key)
    generator = np.random.default_rng(np.asarray(random.bits(of_numbers, (4,))))
    piece = piece_of(target, data, rows_of(target.plates, generator))

    def by_strategy(number: int) -> np.ndarray:
        return np.asarray(target.initial_positions(number, of_points, data), np.float64)

    epsilon = float(jnp.finfo(target.dtype).eps)
    return search(piece, target.dim, epsilon, generator, by_strategy, has_strategy=has_strategy)


def piece_of(target: LogDensity, data: Data, rows: dict[str, np.ndarray] | None) -> Piece:
    """Log densities and scores of a target, of these rows or of all."""

    def evaluate(z: Array, data: Data, indices: Any, _: Array) -> tuple[Array, Array]:
        found = target.full_score(z, data) if rows is None else target.score(z, data, indices)
        return found.log_density(target.likelihood_temperature), found.score

    program, indices = Loop(evaluate, CALLS), {} if rows is None else rows

    def piece(z: np.ndarray, before: int) -> tuple[Any, Any]:
        positions = jnp.asarray(z, target.dtype)
        found: tuple[Any, Any] = program(
            before, 1, positions, target.arguments.as_evaluated(data), indices
        )
        return found

    return piece
