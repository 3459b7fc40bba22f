"""The exact score of a model whose batches are its arguments, from the arguments of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_ext.errors import ArgumentError
from pyro_ext.target import LogDensity, Score

#: The model's positional arguments with all rows, or those of each batch.
FullData: TypeAlias = tuple[Any, ...] | Iterable[tuple[Any, ...]]


def batches_of(full_data: FullData) -> tuple[tuple[Any, ...], ...]:
    """Arguments of each batch.

    Raises
    ------
    ArgumentError
        There is no batch, a batch is no tuple of arguments, or one has no tensor to count rows by.
    """
    batches: tuple[Any, ...]
    try:
        batches = (full_data,) if isinstance(full_data, tuple) else tuple(full_data)
    except TypeError:
        batches = ()
    # A DataLoader gives lists.
    batches = tuple(tuple(batch) if isinstance(batch, list) else batch for batch in batches)
    if not batches or not all(isinstance(batch, tuple) for batch in batches):
        raise ArgumentError(
            "Expected full_data to be a tuple of the model's arguments with all rows, such as "
            "(x, y), or an iterable of such tuples, one for each batch, found "
            f"{type(full_data).__name__}."
        )
    for batch in batches:
        num_rows(batch)
    return batches


def num_rows(batch: tuple[Any, ...]) -> int:
    """Rows of a batch: the leading axis of its tensors.

    Raises
    ------
    ArgumentError
        No argument has a leading axis, or they differ.
    """
    found = {
        leaf.shape[0]
        for leaf in pytree.tree_leaves(batch)
        if isinstance(leaf, Tensor) and leaf.dim() > 0
    }
    if len(found) == 1:
        return found.pop()
    raise ArgumentError(
        "Expected each batch of full_data to hold tensors with one row for each row of the data, "
        f"found leading axes {sorted(found)} in one. Give arguments that hold no rows by keyword "
        "or by functools.partial, and several batches as a list."
    )


def exact_score(
    target: LogDensity,
    z: Tensor,
    batches: tuple[tuple[Any, ...], ...],
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
        score = Score(
            score.score + weight * found.score,
            score.log_prior + weight * found.log_prior,
            score.log_likelihood + weight * found.log_likelihood,
        )
    return score
