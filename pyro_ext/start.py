"""Where runs start: :func:`find_start`; the search itself is in :mod:`ppl_ext.start`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pyro.infer.autoguide import AutoContinuous, AutoGuide

from ppl_ext.arguments import entry
from ppl_ext.errors import ArgumentError
from ppl_ext.start.given import DRAWS, HOST, SEARCH, Started
from ppl_ext.start.search import Piece, begin, rows_of, space_of, starts_by_host
from ppl_ext.start.start import Start
from ppl_ext.target.on_host import as_float64
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.handlers import global_generator, isolated_parameters
from pyro_ext.density.reparameterise import moved_values
from pyro_ext.guides.flat_density import flat_density

#: How a guide of the host is given as a start.
GUIDE_FORM = "a Pyro autoguide that has its parameters"


@entry
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
    >>> start = px.find_start(model, y)
    >>> print(start.mean.round(1), start.factor.round(1))  # of a Normal near the mode
    [2.] [[0.5]]
    >>> engine = px.SVGD(model, pyro.optim.Adam({"lr": 0.3}), seed=0)
    >>> result = engine.run(10, y, start=start)
    """
    target = LogDensity(model, args, kwargs)
    data = target.bind(*args, **kwargs)
    found = started(target, torch.Generator().manual_seed(seed), data, SEARCH)
    assert found is not None
    return replace(found.start, sites=target.layout.sizes)


def started(
    target: LogDensity,
    rng: torch.Generator,
    data: Data,
    given: Any,
    *,
    has_strategy: bool = False,
    usual: str = HOST,
) -> Started | None:
    """Where a run of a target starts; see :func:`ppl_ext.start.search.begin`."""
    if starts_by_host(given, usual, target.dim):
        return None
    # The search is shared with NumPyro, and draws by NumPy in both.
    generator = np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))

    def by_strategy(number: int) -> np.ndarray:
        return as_float64(target.initial_positions(number, rng, data))

    space = space_of(
        target,
        data,
        lambda given: of_guide(given, target, rng, data),
        piece_of(target, data, rows_of(target.plates, generator)),
        moved_values,
        time.perf_counter if target.sharding is None else target.sharding.clock,
    )
    return begin(given, space, generator, by_strategy, has_strategy=has_strategy)


def is_guide(given: Any) -> bool:
    """Whether this is a guide of the host."""
    return isinstance(given, AutoGuide)


@torch.no_grad()
def of_guide(
    given: Any, target: LogDensity, rng: torch.Generator, data: Data
) -> Start | Mapping[str, Any] | None:
    """Normals of a host's guide with its parameters, or draws; None of anything else.

    Raises
    ------
    ArgumentError
        The guide is of another model, or has no parameters yet.
    """
    if not is_guide(given):
        return None
    if given.prototype_trace is None:
        raise ArgumentError(
            f"Expected {GUIDE_FORM}, found {type(given).__name__} that has none yet. Fit it first, "
            "or leave start out."
        )
    if not isinstance(given, AutoContinuous):
        seed = int(torch.randint(2**62, (), generator=rng))
        # A guide written by hand has its parameters in the store, and draws from the global
        # generator. Both are as before after the draws.
        with isolated_parameters(None), global_generator(seed):
            drawn = [given(*data.args, **data.kwargs) for _ in range(DRAWS)]
        return {name: torch.stack([each[name] for each in drawn]) for name in drawn[0]}
    density = flat_density(given, data.args, data.kwargs, layout=target.layout)
    parameters = density.initial_parameters()
    return density.as_start(parameters) or target.constrain(
        density.sample(parameters, rng, DRAWS).to(target.dtype), data
    )


def prior_of(target: LogDensity, number: int, seed: int, data: Data) -> np.ndarray:
    """So many positions (S, D) of draws of the prior; see :meth:`LogDensity.prior_positions`."""
    # A generator of its own: looks at the prior must not move a run's numbers on.
    own = torch.Generator().manual_seed(seed)
    return target.prior_positions(number, own, data).double().cpu().numpy()


def piece_of(target: LogDensity, data: Data, rows: dict[str, np.ndarray] | None) -> Piece:
    """Log densities and scores of a target, of these rows or of all."""
    indices = None if rows is None else {name: torch.as_tensor(r) for name, r in rows.items()}

    def piece(positions: np.ndarray, _: int = 0) -> tuple[Any, Any]:
        z = target.placed(positions)
        found = target.full_score(z, data) if rows is None else target.score(z, data, indices)
        value = found.log_density(target.likelihood_temperature)
        return value.detach().cpu(), found.score.detach().cpu()

    return piece
