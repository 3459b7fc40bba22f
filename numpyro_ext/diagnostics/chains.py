"""Markov chains of a host's MCMC run, seen as an engine is: a target and draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax import Array
from jaxtyping import Float
from numpyro.infer import MCMC

from numpyro_ext.diagnostics.fit import target_of_model
from ppl_ext.batches.passes import Passes
from ppl_ext.diagnostics import fit as shared

#: ArviZ's names of what NumPyro's kernels report of each draw.
_NAMES = {"num_steps": "n_steps", "accept_prob": "acceptance_rate"}


class Chains(shared.Chains):
    """Draws of ``numpyro.infer.MCMC``, by any kernel of a model.

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
        self._take(mcmc, mcmc.sampler, mcmc.last_state is not None, num_samples)
        # Not the kernel's target: the kernel may have served other data since.
        self.target, _ = target_of_model(self._kernel.model, args, kwargs, passes=passes)

    def get_samples(self, state: Any, rng_key: Any = None) -> dict[str, Array]:
        """Draws of all chains, one chain after another."""
        return self._drawn()

    def sample_statistics(self, state: Any, positions: Float[Array, "S D"]) -> dict[str, Array]:
        """What the kernel reports of each draw."""
        fields = self.mcmc.get_extra_fields()
        return {
            _NAMES.get(name, name): self._taken(values)
            for name, values in fields.items()
            if isinstance(values, Array) and values.shape == (self._num_draws,)
        }


__all__ = ["Chains"]
