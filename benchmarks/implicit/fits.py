"""A sampler fitted to a planted problem, in either package."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.trust.pathology import Pathology
from ppl_ext.implicit.samplers import Sampler

Floats = NDArray[np.float64]


def fit(
    backend: str,
    problem: Pathology,
    sampler: Sampler,
    start: str | None,
    steps: int,
    seed: int,
    number: int,
) -> Floats:
    """Draws (number, D) of a fitted sampler."""
    fits = {"numpyro": _fit_numpyro, "pyro": _fit_pyro}
    draws = fits[backend](problem, sampler, start, steps, seed, number)
    return flat(draws, problem.dim)


def flat(draws: dict[str, Any], dim: int) -> Floats:
    """Draws by site side by side, (n, D)."""
    sites = [np.asarray(each, np.float64) for each in draws.values()]
    found: Floats = np.concatenate([each.reshape(len(each), -1) for each in sites], axis=1)
    if found.shape[1] != dim:
        raise ValueError(f"Expected draws of {dim} numbers, found {found.shape[1]}.")
    return found


def _fit_numpyro(
    problem: Pathology, sampler: Sampler, start: str | None, steps: int, seed: int, number: int
) -> dict[str, Any]:
    import jax

    import numpyro_ext as nx

    engine = nx.SteinDiscrepancyVI(problem.model("numpyro"), sampler)
    run = engine.run(jax.random.key(seed), steps, progress_bar=False, start=start)
    found: dict[str, Any] = engine.get_samples(run.state, num_samples=number)
    return found


def _fit_pyro(
    problem: Pathology, sampler: Sampler, start: str | None, steps: int, seed: int, number: int
) -> dict[str, Any]:
    import torch

    import pyro_ext as px

    torch.set_num_threads(1)
    engine = px.SteinDiscrepancyVI(problem.model("pyro"), sampler, seed=seed)
    engine.run(steps, progress_bar=False, start=start)
    return {name: value.detach() for name, value in engine.get_samples(num_samples=number).items()}
