"""Sweeps over all rows of the data, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor


def sum_over_rows(
    chunks: Sequence[tuple[float, dict[str, Tensor]]],
    function: Callable[[dict[str, Tensor]], tuple[Tensor, ...]],
) -> list[Tensor]:
    """Weighted sum of a function of row indices over chunks that cover the full data.

    A chunk of n rows is evaluated with plate scale N/n and weighted n/N, so that sites inside
    the plate are counted once and sites outside are averaged over chunks that all agree.
    """
    total: list[Tensor] | None = None
    for weight, indices in chunks:
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
