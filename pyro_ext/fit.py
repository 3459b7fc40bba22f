"""``fit``: from a Pyro program to draws with a verdict."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppl_ext.documented import documented
from ppl_ext.fit import fit as shared
from ppl_ext.fit.fit import FIT_DOCUMENTATION, LOAD_DOCUMENTATION, TARGET_ESS, Fit
from ppl_ext.fit.problem import Problem, problem_of
from pyro_ext.density import Data, LogDensity
from pyro_ext.density.fingerprint import digest_of_arguments
from pyro_ext.density.reparameterise import noncentered
from pyro_ext.density.replay import replay
from pyro_ext.start import piece_of


@documented(
    FIT_DOCUMENTATION,
    host="Pyro",
    randomness="seed : int\n        Of the random numbers; see below.",
)
def fit(
    model: Callable[..., Any],
    *args: Any,
    seed: int = 0,
    budget: int | None = None,
    seconds: float | None = None,
    target_ess: float = TARGET_ESS,
    exact: bool = True,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Fit:
    """Draws of a program's posterior that may be trusted, or a clear no."""
    generator = np.random.default_rng(seed)
    return shared.fit(
        lambda: list(ways_of(model, args, kwargs, seed, generator)),
        generator,
        seed,
        budget=budget,
        seconds=seconds,
        target_ess=target_ess,
        exact=exact,
        progress_bar=progress_bar,
    )


@documented(LOAD_DOCUMENTATION, host="Pyro")
def load_fit(
    path: str | os.PathLike[str], model: Callable[..., Any] | None = None, *args: Any, **kwargs: Any
) -> Fit:
    """Read a fit that ``Fit.save`` has written."""

    def ways(seed: int, generator: np.random.Generator) -> Iterator[Problem]:
        assert model is not None
        return ways_of(model, args, kwargs, seed, generator)

    return shared.load_fit(path, None if model is None else ways)


def ways_of(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seed: int,
    generator: np.random.Generator,
) -> Iterator[Problem]:
    """A program as what a fit asks of it: as written first, then with sites non-centred."""
    rng = torch.Generator().manual_seed(seed)
    target = LogDensity(model, args, kwargs)
    data = target.bind(*args, **kwargs)

    def as_written(z: np.ndarray) -> dict[str, Tensor]:
        found = target.constrain(torch.as_tensor(z, dtype=target.dtype), data)
        return {name: found[name].detach() for name in target.layout.names}

    yield _problem("as written", target, target, data, as_written, rng, generator)
    other = None if target.plates else noncentered(target, data)
    if other is None:
        return
    moved = LogDensity(other[0], args, kwargs)
    moved_data = moved.bind(*args, **kwargs)

    def of_sites(z: np.ndarray) -> dict[str, Tensor]:
        latent = moved.constrain(torch.as_tensor(z, dtype=moved.dtype), moved_data)
        found = replay(moved, latent, moved_data, groups=["deterministic"])
        values = {**latent, **found.deterministic}
        return {name: torch.as_tensor(values[name]).detach() for name in target.layout.names}

    name = f"with {', '.join(other[1])} non-centred"
    yield _problem(name, moved, target, moved_data, of_sites, rng, generator)


def _problem(
    name: str,
    target: LogDensity,
    written: LogDensity,
    data: Data,
    values: Callable[[np.ndarray], dict[str, Tensor]],
    rng: torch.Generator,
    generator: np.random.Generator,
) -> Problem:
    def by_strategy(number: int) -> np.ndarray:
        return target.initial_positions(number, rng, data).double().cpu().numpy()

    return problem_of(
        name,
        target,
        written,
        lambda rows: piece_of(target, data, rows),
        torch.finfo(target.dtype).eps,
        by_strategy,
        values,
        lambda: digest_of_arguments((data.args, data.kwargs)),
        generator,
    )
