"""A model with what is known of its structure: run under a handler, with rows of its plates."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ppl_ext.target.bound_model import BoundModelShell
from pyro_ext.density.enumeration import NoneNew, enumerating
from pyro_ext.density.handlers import SiteHandler, plate_shape_error, running
from pyro_ext.density.layout import Indices, Layout, with_own_containers


@dataclass(frozen=True, kw_only=True)
class BoundModel(BoundModelShell[Tensor]):
    """A model and its structure, and of which type and where positions are.

    Parameters
    ----------
    model, layout, plates, batch_plates, local_sites, observed_sites, held
        See :class:`~ppl_ext.target.bound_model.BoundModelShell`; ``held`` is the state of the
        parameter store.
    dtype : torch.dtype
    device : torch.device
    """

    layout: Layout
    dtype: torch.dtype
    device: torch.device

    def row_numbers(self, rows: range) -> Int[Tensor, " rows"]:
        """Row numbers as a tensor."""
        return torch.arange(rows.start, rows.stop, device=self.device)

    def run(
        self, handler: Any, arguments: Any, *, enumerated: bool = True
    ) -> dict[str, tuple[int, int]]:
        """Run the model once under ``handler``, with (args, kwargs, row indices).

        Discrete latent sites have all their values, or are drawn where not ``enumerated``.
        Returns the size of each subsampled plate, and the number of rows that it asks for.

        Raises
        ------
        ModelCheckError
            There were no discrete latent sites in the first run, and now there are.
        """
        # A model that appends to a list of its arguments would find it longer in the next run.
        args, kwargs = with_own_containers(*arguments[:2])
        known = enumerating(self.nesting) if self.enumerated else NoneNew()
        every = known if enumerated else nullcontext()
        with running(self.held, arguments[2]) as control, every, handler:
            try:
                self.model(*args, **kwargs)
            except ValueError as error:
                raise plate_shape_error(error) or error from error
        if isinstance(handler, SiteHandler):
            handler.sum_out()
        return control.plates

    def check_indices(self, indices: Indices | None) -> dict[str, Int[Tensor, "*P B"]]:
        """Rows of each plate, with those of a plate that has all of its rows in order.

        Raises as :meth:`check_plates` does.
        """
        indices = {} if indices is None else indices
        self.check_plates(indices)
        # A plate of which all rows are chosen gives Pyro's data in order. Latents are indexed by
        # these rows, so they are put in order as well.
        return {
            name: rows.sort().values if rows.shape[-1] == self.plates[name].size else rows
            for name, rows in indices.items()
        }
