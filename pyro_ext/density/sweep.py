"""Sums over all rows of the data, in chunks or in batches of a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from pyro_ext.density.layout import Data, Indices


def sum_over_rows(
    chunks: Iterable[tuple[float, Data, Indices]],
    function: Callable[[Data, Indices], tuple[Tensor, ...]],
) -> list[Tensor]:
    """Weighted sum of a function of arguments and row indices that together hold all rows once.

    A chunk of n rows is evaluated with plate scale N/n and weighted n/N, so that sites inside
    the plate are counted once and sites outside are averaged over chunks that all agree.
    """
    total: list[Tensor] = []
    for weight, data, indices in chunks:
        parts = function(data, indices)
        if total:
            total = [
                so_far.add(part, alpha=weight) for so_far, part in zip(total, parts, strict=True)
            ]
        else:
            total = [part if weight == 1.0 else weight * part for part in parts]
    return total
