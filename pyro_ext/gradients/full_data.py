"""The exact score of a model whose batches are its arguments, from the arguments of all rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils import _pytree as pytree

from ppl_ext.gradients.full_data import Batch, FullData, rows_in
from pyro_ext.density import LogDensity, Score


def num_rows(batch: Batch) -> int:
    """Rows of a batch: the leading axis of its tensors; refused as by ``rows_in``."""
    return rows_in(leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor))


def exact_score(
    target: LogDensity,
    z: Float[Tensor, "P D"],
    batches: tuple[Batch, ...],
    keywords: Mapping[str, Any] | None = None,
) -> Score:
    """Score over all rows at positions (P, D): the mean over batches, weighted by their rows.

    A batch's likelihood is scaled up to all rows by the model's plate, so that the weighted mean
    over batches that hold each row once is exact. ``keywords`` are the model's keyword arguments,
    the same for all batches.
    """
    total = sum(num_rows(batch) for batch in batches)
    score = Score(torch.zeros_like(z), z.new_zeros(len(z)), z.new_zeros(len(z)))
    for batch in batches:
        weight = num_rows(batch) / total
        found = target.score(z, target.bind(*batch, **dict(keywords or {})))
        # The prior's share too: it is the same in all batches, whose weights sum to one.
        score = Score(*(old + weight * new for old, new in zip(score, found, strict=True)))
    return score


__all__ = ["FullData", "exact_score", "num_rows"]
