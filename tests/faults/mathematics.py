"""Runs that end before what they hold has settled."""

from __future__ import annotations

import numpy as np

from tests.faults.table import Trial, fault
from tests.sgmcmc_support import chains_of


@fault(
    "Ends of runs",
    "a warm-up of `PSGLD` that ends while its chains are on their way",
    "draws, and `ConvergenceWarning` at the end of the warm-up",
)
def _warm_up(trial: Trial) -> None:
    chains = chains_of(trial.backend.name)
    kernel = trial.public.PSGLD(chains.normal(np.zeros(2), np.ones(2)), 0.03)
    start = {"z": np.full((1, 2), 20.0, np.float32)}
    with trial.warned("on their way in 2 of 2 coordinates", trial.public.ConvergenceWarning):
        chains.sample(kernel, num_samples=1, warmup=100, initial=start)
