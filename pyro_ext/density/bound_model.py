"""A model with what is known of its structure: run under a handler, with rows of its plates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.errors import ArgumentError
from pyro_ext.density.handlers import (
    SubsampleControl,
    isolated_parameters,
    plate_shape_error,
)
from pyro_ext.density.layout import DataPlate, Indices, Layout


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
        Plates of which the arguments hold a batch.
    local_sites, observed_sites : tuple of str
        Latent sites inside a subsampled plate, and observed sites other than factors.
    held
        State of the parameter store.
    dtype : torch.dtype
        Of positions.
    device : torch.device
    """

    model: Callable[..., Any]
    layout: Layout
    plates: dict[str, DataPlate]
    batch_plates: dict[str, DataPlate]
    local_sites: tuple[str, ...]
    observed_sites: tuple[str, ...]
    held: Any
    dtype: torch.dtype
    device: torch.device

    @property
    def parameter_sites(self) -> tuple[str, ...]:
        """Deterministic sites that the program declares to be its parameters.

        They belong to its draws, as those of a Stan program do, whose latent site is a vector
        without names.
        """
        return tuple(getattr(self.model, "parameter_sites", ()))

    def all_rows(self) -> dict[str, Tensor]:
        """Row indices of the full data for every plate that the model subsamples itself."""
        return {
            plate.name: torch.arange(plate.size, device=self.device)
            for plate in self.plates.values()
        }

    def first_rows(self) -> dict[str, Tensor]:
        """Row indices of one minibatch for every plate that the model subsamples itself."""
        return {
            plate.name: torch.arange(plate.subsample_size, device=self.device)
            for plate in self.plates.values()
        }

    def rows_for_values(self) -> dict[str, Tensor]:
        """Rows needed to see every latent site: all when some are local, else one minibatch."""
        return self.all_rows() if self.local_sites else self.first_rows()

    def run(self, handler: Any, arguments: Any) -> dict[str, tuple[int, int]]:
        """Run the model once under ``handler``, with (args, kwargs, row indices).

        Returns the size of each subsampled plate, and the number of rows that it asks for.
        """
        args, kwargs, indices = arguments
        control = SubsampleControl(indices)
        with isolated_parameters(self.held), control, handler:
            try:
                self.model(*args, **kwargs)
            except ValueError as error:
                raise plate_shape_error(error) or error from error
        return control.plates

    def check_positions(self, positions: Tensor) -> Float[Tensor, "P D"]:
        """See that positions have shape (P, D).

        Raises
        ------
        ArgumentError
            They have not.
        """
        if positions.dim() != 2 or positions.shape[1] != self.layout.dim:
            raise ArgumentError(
                f"Expected positions of shape (P, {self.layout.dim}), found "
                f"{tuple(positions.shape)}."
            )
        return positions

    def check_indices(self, indices: Indices | None) -> dict[str, Tensor]:
        """See that there are rows for every plate whose rows the engine chooses.

        Raises
        ------
        ArgumentError
            Plates are missing or unknown.
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
        # With all rows in one set Pyro leaves the data in order, and so must the latents be.
        return {
            name: rows.sort().values if rows.shape[-1] == self.plates[name].size else rows
            for name, rows in indices.items()
        }
