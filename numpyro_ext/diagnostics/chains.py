"""Markov chains of a host's MCMC run, seen as an engine is: a target and draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax import Array
from jaxtyping import Float
from numpyro.infer import MCMC

from numpyro_ext.diagnostics.fit import target_of_model
from ppl_ext.batches.passes import Passes
from ppl_ext.diagnostics.fit import LONGER, check_chains, evenly_spaced

#: ArviZ's names of what NumPyro's kernels report of each draw.
_NAMES = {"num_steps": "n_steps", "accept_prob": "acceptance_rate"}


class Chains:
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
        Draws that are taken, as many of each chain. Default: all.

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
        kernel = mcmc.sampler
        check_chains(mcmc.last_state is not None, kernel)
        self.mcmc = mcmc
        self.num_chains = int(mcmc.num_chains)
        # Not the kernel's target: the kernel may have served other data since.
        self.target, _ = target_of_model(kernel.model, args, kwargs, passes=passes)
        self._all = dict(mcmc.get_samples())
        self._num_draws = len(next(iter(self._all.values())))
        self._places = evenly_spaced(self._num_draws, self.num_chains, num_samples, LONGER)

    def get_samples(self, state: Any, rng_key: Any = None) -> dict[str, Array]:
        """Draws of all chains, one chain after another."""
        return {name: self._taken(value) for name, value in self._all.items()}

    def _taken(self, values: Array) -> Array:
        return values if self._places is None else values[self._places]

    def sample_statistics(self, state: Any, positions: Float[Array, "S D"]) -> dict[str, Array]:
        """What the kernel reports of each draw."""
        fields = self.mcmc.get_extra_fields()
        return {
            _NAMES.get(name, name): self._taken(values)
            for name, values in fields.items()
            if isinstance(values, Array) and values.shape == (self._num_draws,)
        }

    def arviz_attributes(self) -> dict[str, Any]:
        """The kernel's name, and that the draws are chains."""
        return {"engine": type(self.mcmc.sampler).__name__, "sample_kind": "Markov chains"}


__all__ = ["Chains"]
