"""A model with what is known of its structure: run at a flat position, with rows of its plates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int
from numpyro import handlers

from numpyro_ext.density.enumeration import NoneNew, enumerated_trace, log_marginal, summed_sites
from numpyro_ext.density.handlers import (
    FixedKey,
    PlateControl,
    Trace,
    belongs_to_prior,
    is_changed_by_handlers,
    position_of,
    run_trace,
    site_log_prob,
    unconstraining,
)
from numpyro_ext.density.layout import Data, Indices, Layout
from ppl_ext.errors import ArgumentError, ModelCheckError
from ppl_ext.target.bound_model import BoundModelShell


@dataclass(frozen=True, kw_only=True)
class BoundModel(BoundModelShell[Array]):
    """A model and its structure, and of which type positions are.

    Parameters
    ----------
    model, layout, plates, batch_plates, local_sites, observed_sites, held
        See :class:`~ppl_ext.target.bound_model.BoundModelShell`, and for ``batch_plates``
        :class:`~numpyro_ext.density.arguments.Arguments`.
    dtype : dtype
    """

    layout: Layout
    held: dict[str, Any]
    dtype: Any = field(default_factory=lambda: jnp.result_type(float))

    @property
    def plate_sizes(self) -> dict[str, int]:
        """Number of rows of each plate whose rows the engine chooses."""
        return {name: plate.size for name, plate in self.plates.items()}

    def row_numbers(self, rows: range) -> Int[Array, " rows"]:
        """Row numbers as an array, without a compiled program for each number of rows."""
        return jax.device_put(np.arange(rows.start, rows.stop))

    def controlled(
        self, indices: Indices, sizes: Mapping[str, int] | None = None
    ) -> Callable[..., Any]:
        """The model with its parameters held and these rows of its plates."""
        held = handlers.substitute(FixedKey(self.model), data=self.held)
        return PlateControl(held, indices, sizes or self.plate_sizes, self.batch_plates)

    def trace(
        self,
        position: Float[Array, " D"] | dict[str, Array],
        data: Data,
        indices: Indices,
        sizes: Mapping[str, int] | None = None,
    ) -> Trace:
        """The model's trace at a position, a vector or one that is split into sites already.

        Raises
        ------
        ModelCheckError
            A latent site is not met.
        """
        seen: set[str] = set()
        values = position if isinstance(position, dict) else self.layout.split(position)
        substitution = unconstraining(values, indices, seen, self.observed_sites)
        model = handlers.substitute(self.controlled(indices, sizes), substitute_fn=substitution)
        trace = self.run(model, data)
        if missing := [name for name in self.layout.names if name not in seen]:
            raise ModelCheckError(
                f"Latent sample site '{missing[0]}' was there when the model was first run, but "
                "not now: its structure changes between runs. Give the model the same latent "
                "sites on every run; use jnp.where or numpyro.handlers.mask in place of Python "
                "control flow."
            )
        return trace

    def prior_and_likelihood(self, trace: Trace) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Log prior and log likelihood of a trace, scales, masks and Jacobians applied.

        Factors that are summed over discrete latent sites belong to the likelihood.
        """
        summed = summed_sites(trace) if self.enumerated else {}
        # Of the type of positions, which sums without any terms would not have.
        prior = likelihood = jnp.zeros((), self.dtype)
        for name, site in trace.items():
            if site["type"] != "sample" or name in summed:
                continue
            if belongs_to_prior(site):
                prior = prior + site_log_prob(site)
            else:
                likelihood = likelihood + site_log_prob(site)
        if summed:
            likelihood = likelihood + log_marginal(summed).astype(self.dtype)
        return prior, likelihood

    def handlers_change_jacobians(self, data: Data) -> bool:
        """Whether the host's own potential has Jacobians that handlers scale or mask."""
        found: list[bool] = []

        def look(position: Array, data: Data) -> None:
            trace = self.trace(position, data, self.first_rows())
            found.extend(map(is_changed_by_handlers, trace.values()))

        jax.eval_shape(look, jax.ShapeDtypeStruct((self.layout.dim,), self.dtype), data)
        return any(found)

    def run(self, model: Callable[..., Any], data: Data) -> Trace:
        """The trace of this model under handlers, discrete latent sites with all their values.

        Raises
        ------
        ModelCheckError
            There were no discrete latent sites in the first run, and now there are.
        """
        if self.enumerated:
            return enumerated_trace(model, data.args, data.kwargs, self.nesting)
        return run_trace(NoneNew(model), data.args, data.kwargs)

    def unconstrained(self, trace: Trace) -> Float[Array, " D"]:
        """The flat position of a trace.

        Raises
        ------
        ArgumentError
            A site has another shape.
        """
        sites = {name: position_of(trace, name) for name in self.layout.names}
        for name, value in sites.items():
            if jnp.shape(value) != self.layout.shapes[name]:
                raise ArgumentError(
                    f"Expected site '{name}' to have unconstrained shape "
                    f"{self.layout.shapes[name]}, found {jnp.shape(value)}."
                )
        return self.layout.join(sites).astype(self.dtype)

    def check_positions(self, positions: Any) -> Float[Array, "P D"]:
        """Positions as an array (P, D); see the base."""
        return super().check_positions(jnp.asarray(positions))

    def check_indices(self, indices: Mapping[str, Array] | None) -> Indices:
        """Rows for every plate whose rows the engine chooses; see :meth:`check_plates`.

        Raises
        ------
        ArgumentError
            Plates are missing or unknown, or rows are no vector of integers.
        """
        indices = {} if indices is None else indices
        self.check_plates(indices)
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
