"""Markov chains of a host's MCMC run, seen as an engine is: a target and draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from pyro.infer import MCMC
from torch import Tensor

from ppl_ext.batches.passes import Passes
from ppl_ext.diagnostics import fit as shared
from pyro_ext.diagnostics.fit import target_of_model


class Chains(shared.Chains):
    """Draws of ``pyro.infer.MCMC``, by any kernel of a model.

    Parameters
    ----------
    mcmc : MCMC
        After ``run``.
    args, kwargs
        The model's arguments, with all rows of the data.
    passes : Passes, optional
        All rows, from a loader.
    num_samples : int, optional
        Draws that are taken, as many of each chain, at least. Default: all.

    Raises
    ------
    ArgumentError
        There are no draws yet, or fewer; or the kernel has no model.
    """

    def __init__(
        self,
        mcmc: MCMC,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        passes: Passes | None = None,
        num_samples: int | None = None,
    ) -> None:
        self._take(mcmc, mcmc.kernel, mcmc._samples is not None, num_samples)
        # Not the kernel's target: the kernel may have served other data since.
        self.target, _ = target_of_model(self._kernel.model, args, kwargs, passes=passes)

    def get_samples(self) -> dict[str, Tensor]:
        """Draws of all chains, one chain after another."""
        return self._drawn()

    def sample_statistics(self, positions: Float[Tensor, "S D"]) -> dict[str, Tensor]:
        """What the kernel reports of each draw."""
        per_chain = self._num_draws // self.num_chains
        statistics: dict[str, list[Tensor]] = {}
        for figures in self.mcmc._diagnostics:
            diverging = torch.zeros(per_chain, dtype=torch.bool)
            diverging[list(figures.get("divergences", []))] = True
            statistics.setdefault("diverging", []).append(diverging)
            for name, values in figures.items():
                if isinstance(values, list) and len(values) == per_chain and name != "divergences":
                    statistics.setdefault(name, []).append(torch.as_tensor(values))
        return {name: self._taken(torch.cat(values)) for name, values in statistics.items()}


__all__ = ["Chains"]
