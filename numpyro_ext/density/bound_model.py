"""A model with what is known of its structure: run at a flat position, with rows of its plates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from numpyro import handlers

from numpyro_ext.density.handlers import (
    FixedKey,
    PlateControl,
    Trace,
    belongs_to_prior,
    run_trace,
    site_log_prob,
    transform_of,
    unconstraining,
)
from numpyro_ext.density.layout import Data, DataPlate, Indices, Layout
from ppl_ext.errors import ArgumentError, ModelCheckError


def row_numbers(count: int) -> Array:
    """The first row numbers, without a compiled program for each number of rows."""
    return jax.device_put(np.arange(count))


@dataclass(frozen=True)
class BoundModel:
    """A model and its structure.

    Parameters
    ----------
    model : callable
    layout : Layout
        Latent sites and their unconstrained shapes at full length.
    plates : dict of str to DataPlate
        Subsampled plates whose rows the engine chooses.
    batch_plates : dict of str to DataPlate
        Plates of which some arguments hold a batch. A cache: arguments of a new form may add to
        it, see :class:`~numpyro_ext.density.arguments.Arguments`.
    local_sites, observed_sites : tuple of str
        Latent sites inside a subsampled plate, and observed sites other than factors.
    held : dict
        Values of ``param`` and ``mutable`` sites.
    dtype : dtype
        Of positions.
    """

    model: Callable[..., Any]
    layout: Layout
    plates: dict[str, DataPlate]
    batch_plates: dict[str, DataPlate]
    local_sites: tuple[str, ...]
    observed_sites: tuple[str, ...]
    held: dict[str, Any]
    dtype: Any = field(default_factory=lambda: jnp.result_type(float))

    @property
    def parameter_sites(self) -> tuple[str, ...]:
        """Deterministic sites that the program declares to be its parameters.

        They belong to its draws, as those of a Stan program do, whose latent site is a vector
        without names.
        """
        return tuple(getattr(self.model, "parameter_sites", ()))

    @property
    def plate_sizes(self) -> dict[str, int]:
        """Number of rows of each plate whose rows the engine chooses."""
        return {name: plate.size for name, plate in self.plates.items()}

    def first_rows(self) -> Indices:
        """Row indices of one minibatch for every plate that the model subsamples itself."""
        return {name: row_numbers(plate.subsample_size) for name, plate in self.plates.items()}

    def rows_for_values(self) -> Indices:
        """Rows needed to see every latent site: all when some are local, else one minibatch."""
        if not self.local_sites:
            return self.first_rows()
        return {name: row_numbers(plate.size) for name, plate in self.plates.items()}

    def controlled(
        self, indices: Indices, sizes: Mapping[str, int] | None = None
    ) -> Callable[..., Any]:
        """The model with its parameters held and these rows of its plates."""
        held = handlers.substitute(FixedKey(self.model), data=self.held)
        return PlateControl(held, indices, sizes or self.plate_sizes, self.batch_plates)

    def trace(
        self,
        position: Float[Array, " D"],
        data: Data,
        indices: Indices,
        sizes: Mapping[str, int] | None = None,
    ) -> Trace:
        """The model's trace at a position.

        Raises
        ------
        ModelCheckError
            A latent site is not met.
        """
        seen: set[str] = set()
        values = self.layout.split(position)
        substitution = unconstraining(values, indices, seen, self.observed_sites)
        model = handlers.substitute(self.controlled(indices, sizes), substitute_fn=substitution)
        trace = run_trace(model, data.args, data.kwargs)
        missing = [name for name in self.layout.names if name not in seen]
        if missing:
            raise ModelCheckError(
                f"Latent sample site '{missing[0]}' was there when the model was first run, but "
                "not now: its structure changes between runs. Give the model the same latent "
                "sites on every run; use jnp.where or numpyro.handlers.mask in place of Python "
                "control flow."
            )
        return trace

    def unconstrained(self, trace: Trace) -> Float[Array, " D"]:
        """The flat position of a trace.

        Raises
        ------
        ArgumentError
            A site has another shape.
        """
        sites = {
            name: transform_of(trace[name]).inv(trace[name]["value"]) for name in self.layout.names
        }
        for name, value in sites.items():
            if jnp.shape(value) != self.layout.shapes[name]:
                raise ArgumentError(
                    f"Expected site '{name}' to have unconstrained shape "
                    f"{self.layout.shapes[name]}, found {jnp.shape(value)}."
                )
        return self.layout.join(sites).astype(self.dtype)

    def check_positions(self, positions: Array) -> Float[Array, "P D"]:
        """See that positions have shape (P, D).

        Raises
        ------
        ArgumentError
            They have not.
        """
        positions = jnp.asarray(positions)
        if positions.ndim != 2 or positions.shape[1] != self.layout.dim:
            raise ArgumentError(
                f"Expected positions of shape (P, {self.layout.dim}), found {positions.shape}."
            )
        return positions

    def check_indices(self, indices: Indices | None) -> Indices:
        """See that there are rows for every plate whose rows the engine chooses.

        Raises
        ------
        ArgumentError
            Plates are missing or unknown, or rows are no vector of integers.
        """
        indices = {} if indices is None else indices
        if set(indices) != set(self.plates):
            if not indices:
                names = ", ".join(f"'{name}'" for name in self.plates)
                raise ArgumentError(
                    f"Expected the rows of plate {names}, which the model leaves to the engine, "
                    "found none. Pass indices={name: row numbers} for a minibatch, or use "
                    "full_score, full_score_parts or full_log_prior_and_likelihood for all rows."
                )
            raise ArgumentError(
                f"Expected indices of the plates {sorted(self.plates)}, found {sorted(indices)}."
            )
        checked = {}
        for name, rows in indices.items():
            rows = jnp.asarray(rows)
            whole = jnp.issubdtype(rows.dtype, jnp.integer)
            if rows.ndim not in (1, 2) or not whole or not rows.size:
                raise ArgumentError(
                    f"Expected indices of plate '{name}' to be a non-empty vector of integers, or "
                    f"one for each position, found shape {rows.shape}, dtype {rows.dtype}."
                )
            # A full-length set is a plate that is not subsampled: numpyro.subsample then leaves
            # the data in order, so the order of the rows must be the natural one.
            everything = rows.shape[-1] == self.plates[name].size
            checked[name] = jnp.sort(rows) if everything else rows
        return checked


def prior_and_likelihood(trace: Trace, dtype: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Log prior and log likelihood of a trace, scales, masks and Jacobians applied."""
    prior = likelihood = jnp.zeros((), dtype)
    for site in trace.values():
        if site["type"] != "sample":
            continue
        if belongs_to_prior(site):
            prior = prior + site_log_prob(site)
        else:
            likelihood = likelihood + site_log_prob(site)
    return prior, likelihood
