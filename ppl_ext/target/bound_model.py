"""A model with what is known of its structure, and what may be asked of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic

from jaxtyping import Float, Int

from ppl_ext.errors import ArgumentError
from ppl_ext.target.layouts import DataPlate
from ppl_ext.target.scores import Array


@dataclass(frozen=True, kw_only=True)
class Found:
    """The structure of a model, as its first run finds it.

    Parameters
    ----------
    layout : Layout
        Latent sites and their unconstrained shapes at full length.
    plates : dict of str to DataPlate
        Subsampled plates whose rows the engine chooses.
    batch_plates : dict of str to DataPlate
        Plates of which the arguments hold a batch. In NumPyro a cache: arguments of a new form may
        add to it.
    local_sites, observed_sites : tuple of str
        Latent sites inside a subsampled plate, and observed sites other than factors.
    enumerated : tuple of str
        Discrete latent sites, which are summed out.
    nesting : int
        Plates that are open at once, at most.
    """

    layout: Any
    plates: dict[str, DataPlate]
    batch_plates: dict[str, DataPlate] = field(default_factory=dict)
    local_sites: tuple[str, ...]
    observed_sites: tuple[str, ...]
    enumerated: tuple[str, ...] = ()
    nesting: int = 0


@dataclass(frozen=True, kw_only=True)
class BoundModelShell(Found, ABC, Generic[Array]):
    """A model and its structure.

    Parameters
    ----------
    model : callable
    layout, plates, batch_plates, local_sites, observed_sites, enumerated, nesting
        See :class:`Found`.
    held
        Values of parameters, and in NumPyro of ``mutable`` sites.
    """

    model: Callable[..., Any]
    held: Any

    @property
    def parameter_sites(self) -> tuple[str, ...]:
        """Deterministic sites that the program declares to be its parameters.

        They belong to its draws, as those of a Stan program do, whose latent site is a vector
        without names.
        """
        return tuple(getattr(self.model, "parameter_sites", ()))

    def has_structure(self, found: Found) -> bool:
        """Whether arguments of another form lead to the structure that is known.

        Plates of which the arguments hold a batch may come and go, and have other batches.

        Parameters
        ----------
        found : Structure
        """
        same = (
            found.layout == self.layout
            and found.plates == self.plates
            and found.observed_sites == self.observed_sites
            # Values of discrete sites are summed in dimensions to the left of all plates that are
            # known. A site that is not known would be drawn, and more plates would meet the values.
            and set(found.enumerated) <= set(self.enumerated)
            and (found.nesting <= self.nesting or not self.enumerated)
        )
        sizes = (
            {n: p.size for n, p in each.items()} for each in (found.batch_plates, self.batch_plates)
        )
        one, two = sizes
        return same and all(one[name] == two[name] for name in one.keys() & two.keys())

    @abstractmethod
    def row_numbers(self, rows: range) -> Int[Array, " rows"]:
        """Row numbers as an array."""

    def all_rows(self) -> dict[str, Int[Array, " rows"]]:
        """Row indices of the full data for every plate that the model subsamples itself."""
        return {name: self.row_numbers(range(plate.size)) for name, plate in self.plates.items()}

    def first_rows(self) -> dict[str, Int[Array, " rows"]]:
        """Row indices of one minibatch for every plate that the model subsamples itself."""
        return {
            name: self.row_numbers(range(plate.subsample_size))
            for name, plate in self.plates.items()
        }

    def rows_for_values(self) -> dict[str, Int[Array, " rows"]]:
        """Rows needed to see every latent site: all when some are local, else one minibatch."""
        # Local latents have a value for each row; all others are seen with any rows, of which few
        # are quick.
        return self.all_rows() if self.local_sites else self.first_rows()

    def check_positions(self, positions: Any) -> Float[Array, "P D"]:
        """See that positions have shape (P, D).

        Raises
        ------
        ArgumentError
            They have not.
        """
        shape = tuple(positions.shape)
        if len(shape) != 2 or shape[1] != self.layout.dim:
            raise ArgumentError(
                f"Expected positions of shape (P, {self.layout.dim}), found {shape}."
            )
        return positions

    def check_plates(self, indices: Mapping[str, Any]) -> None:
        """See that there are rows for every plate whose rows the engine chooses.

        Raises
        ------
        ArgumentError
            Plates are missing or unknown.
        """
        if set(indices) == set(self.plates):
            return
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

    def check_values(self, values: Mapping[str, Any]) -> None:
        """See that there are values for every latent site.

        Raises
        ------
        ArgumentError
            A latent site has none.
        """
        if missing := [name for name in self.layout.names if name not in values]:
            raise ArgumentError(
                f"Expected values for the latent sites {list(self.layout.names)}, missing "
                f"{missing}."
            )


def check_own_rows(indices: Mapping[str, Any], number: int) -> None:
    """See that each of so many positions has rows of its own, of every plate.

    Raises
    ------
    ArgumentError
        Some plates have rows for each position and some for all, or not as many as positions.
    """
    shapes = {name: tuple(rows.shape) for name, rows in indices.items()}
    if not all(len(shape) == 2 and shape[0] == number for shape in shapes.values()):
        raise ArgumentError(
            "Expected indices of shape (rows,) for every plate, or of shape (P, rows) for every "
            f"plate at P = {number} positions, found {shapes}."
        )


def as_found(structure: Found) -> dict[str, Any]:
    """The fields of a :class:`BoundModelShell` that the structure has which was found."""
    return {each.name: getattr(structure, each.name) for each in fields(Found)}
