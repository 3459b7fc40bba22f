"""Sweeps over all rows of the data, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ppl_ext.layouts import sweep_ranges
from pyro_ext.density.layout import DataPlate


def sweep(
    plates: Mapping[str, DataPlate], chunk: int | None, device: torch.device
) -> list[tuple[float, dict[str, Tensor]]]:
    """Chunks that cover all rows once: weights that sum to one, and row indices."""
    return [
        (
            weight,
            {
                name: torch.arange(rows.start, rows.stop, device=device)
                for name, rows in ranges.items()
            },
        )
        for weight, ranges in sweep_ranges(plates, chunk)
    ]


def sum_over_rows(
    plates: Mapping[str, DataPlate],
    chunk: int | None,
    device: torch.device,
    function: Callable[[dict[str, Tensor]], tuple[Tensor, ...]],
) -> list[Tensor]:
    """Weighted sum of a function of row indices over every chunk of the full data.

    A chunk of n rows is evaluated with plate scale N/n and weighted n/N, so that sites inside
    the plate are counted once and sites outside are averaged over chunks that all agree.
    """
    if not plates:
        return list(function({}))
    total: list[Tensor] | None = None
    for weight, indices in sweep(plates, chunk, device):
        parts = function(indices)
        if weight == 1.0:
            return list(parts)
        if total is None:
            total = [weight * part for part in parts]
        else:
            total = [
                so_far.add(part, alpha=weight) for so_far, part in zip(total, parts, strict=True)
            ]
    assert total is not None
    return total
