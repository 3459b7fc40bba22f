"""The exact score of a model whose batches are its arguments, from the arguments of all rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from numpyro_ext.density import LogDensity, Score
from ppl_ext.gradients.full_data import Batch, FullData, rows_in


def num_rows(batch: Batch) -> int:
    """Rows of a batch: the leading axis of its arrays; refused as by ``rows_in``."""
    return rows_in(jax.tree.leaves(batch))


def exact_score(
    target: LogDensity,
    z: Float[Array, "P D"],
    batches: tuple[Batch, ...],
    keywords: Mapping[str, Any] | None = None,
) -> Score:
    """Score over all rows at positions (P, D): the mean over batches, weighted by their rows.

    A batch's likelihood is scaled up to all rows by the model's plate, so that the weighted mean
    over batches that hold each row once is exact. ``keywords`` are the model's keyword arguments,
    the same for all batches.
    """
    total = sum(num_rows(batch) for batch in batches)
    score = Score(jnp.zeros_like(z), jnp.zeros(len(z), z.dtype), jnp.zeros(len(z), z.dtype))
    for group in _of_equal_shapes(batches):
        weight = num_rows(group[0]) / total

        def add(score: Score, batch: Any, weight: float = weight) -> tuple[Score, None]:
            found = target.score(z, target.bind(*batch, **dict(keywords or {})))
            # The prior's share too: it is the same in all batches, whose weights sum to one.
            return jax.tree.map(lambda old, new: old + weight * new, score, found), None

        if len(group) == 1:
            score, _ = add(score, group[0])
        else:
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *group)
            score, _ = lax.scan(add, score, stacked)
    return score


def _of_equal_shapes(batches: tuple[Batch, ...]) -> list[list[Batch]]:
    """Batches in groups that one compiled program serves: arrays alone, of the same shapes."""
    groups: dict[Any, list[Batch]] = {}
    for index, batch in enumerate(batches):
        leaves, structure = jax.tree.flatten(batch)
        arrays = all(isinstance(leaf, (Array, np.ndarray)) for leaf in leaves)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves) if arrays else index
        groups.setdefault((structure, shapes), []).append(batch)
    return list(groups.values())


__all__ = ["FullData", "exact_score", "num_rows"]
