"""Where runs start: :func:`find_start`; the search itself is in :mod:`ppl_ext.start`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ppl_ext.start.search import Piece, rows_of, search
from ppl_ext.start.start import Start
from pyro_ext.density import Data, LogDensity


def find_start(model: Callable[..., Any], *args: Any, seed: int = 0, **kwargs: Any) -> Start:
    """Find where runs of a model's engines may start: Normals near the modes of its density.

    Several quasi-Newton paths go side by side from random points towards modes; at their ends, or
    on their way where a path has no end, as in a funnel, a Normal takes the curvature of the
    density, and a few natural-gradient steps mend one that is a bad picture of it. That takes
    some hundred evaluations of the score, and more where the density is far from Normal.

    Parameters
    ----------
    model : callable
        Pyro program.
    *args, **kwargs
        Its arguments, with all rows. Of plates with more than 10,000 rows whose minibatches the
        model draws itself, a batch of 10,000.
    seed : int
        Of the random points.

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
    target = LogDensity(model, args, kwargs)
    return start_of(target, torch.Generator().manual_seed(seed), target.bind(*args, **kwargs))


def start_of(
    target: LogDensity, rng: torch.Generator, data: Data, *, has_strategy: bool = False
) -> Start:
    """The start of a target with given data; see :func:`ppl_ext.start.search.search`."""
    generator = np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))
    piece = piece_of(target, data, rows_of(target.plates, generator))

    def by_strategy(number: int) -> np.ndarray:
        return target.initial_positions(number, rng, data).double().cpu().numpy()

    epsilon = torch.finfo(target.dtype).eps
    return search(piece, target.dim, epsilon, generator, by_strategy, has_strategy=has_strategy)


def piece_of(target: LogDensity, data: Data, rows: dict[str, np.ndarray] | None) -> Piece:
    """Log densities and scores of a target, of these rows or of all."""
    indices = None if rows is None else {name: torch.as_tensor(r) for name, r in rows.items()}

    def piece(positions: np.ndarray, _: int = 0) -> tuple[Any, Any]:
        z = torch.as_tensor(positions, dtype=target.dtype)
        found = target.full_score(z, data) if rows is None else target.score(z, data, indices)
        value = found.log_density(target.likelihood_temperature)
        return value.detach().cpu(), found.score.detach().cpu()

    return piece
