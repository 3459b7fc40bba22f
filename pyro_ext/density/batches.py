"""Batches of a loader, as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from ppl_ext.batches.passes import Passes, total_rows
from pyro_ext.density.arguments import as_data, placing
from pyro_ext.density.bound_model import BoundModel
from pyro_ext.density.layout import Data, Indices
from pyro_ext.sharding import Sharding


def array_or_none(value: Any) -> np.ndarray | None:
    """An argument as an array of NumPy, None of what is no array."""
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    return value if isinstance(value, np.ndarray) else None


def batches_of(
    passes: Passes, bound: BoundModel, data: Data, sharding: Sharding | None = None
) -> Iterator[tuple[float, Data, Indices]]:
    """One pass: the arguments of each batch, with weights that sum to one.

    A batch of n of N rows is evaluated with the plate's scale N/n and weighted n/N, as a chunk of
    a sweep is. Keyword arguments of ``data`` that no batch has are those of all. With a sharding
    they are those of this process's rows, and the weights of all processes sum to one.
    """
    place = placing(bound.dtype)
    first = passes.first(place)
    size = total_rows(bound.batch_plates, first.rows)
    for batch in passes.batches(place, size or first.rows):
        weight = batch.rows / (size or first.rows)
        if sharding is not None:
            share, batch = sharding.own_batch(batch)
            weight *= share
        kwargs = {**data.kwargs, **batch.kwargs}
        yield weight, as_data(bound.model, batch.args, kwargs), {}
