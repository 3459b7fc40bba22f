"""The exact score of a model whose batches are its arguments, from the arguments of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from numpyro_ext.density import Data, LogDensity, Score
from ppl_ext.errors import ArgumentError

#: The model's positional arguments with all rows, or those of each batch.
FullData: TypeAlias = tuple[Any, ...] | Iterable[tuple[Any, ...]]


def batches_of(full_data: FullData) -> tuple[tuple[Any, ...], ...]:
    """Arguments of each batch.

    Raises
    ------
    ArgumentError
        There is no batch, a batch is no tuple of arguments, or one has no array to count rows by.
    """
    batches: tuple[Any, ...]
    try:
        batches = (full_data,) if isinstance(full_data, tuple) else tuple(full_data)
    except TypeError:
        batches = ()
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
    """Rows of a batch: the leading axis of its arrays.

    Raises
    ------
    ArgumentError
        No argument has a leading axis, or they differ.
    """
    found = {int(np.shape(leaf)[0]) for leaf in jax.tree.leaves(batch) if np.ndim(leaf) > 0}
    if len(found) == 1:
        return found.pop()
    raise ArgumentError(
        "Expected each batch of full_data to hold arrays with one row for each row of the data, "
        f"found leading axes {sorted(found)} in one. Give arguments that hold no rows by keyword "
        "or by functools.partial, and several batches as a list."
    )


def check_rows(target: LogDensity, data: Data, batches: tuple[tuple[Any, ...], ...]) -> None:
    """See that rows come from the engine or from ``full_data``, and not from both.

    Raises
    ------
    ArgumentError
        They come from both or from neither, or ``full_data`` does not hold each row once.
    """
    if batches and target.plates:
        raise ArgumentError(
            "Expected no full_data with a model that looks up its rows by a plate's indices, "
            f"as {sorted(target.plates)}: the engine draws them, and sweeps over all."
        )
    if not batches and target.batch_arguments:
        raise ArgumentError(
            "Expected full_data with a model whose batches are its arguments: the score at an "
            "anchor needs all rows. Pass full_data=(x, y) with all of them, or a list of such "
            "tuples, one for each batch."
        )
    sizes = {plate.size for plate in target.batch_plates.values()}
    found = sum(num_rows(batch) for batch in batches)
    if batches and not sizes and num_rows(data.args) != found:
        raise ArgumentError(
            "Expected a model that scales its batches up to all rows, by a plate with "
            "subsample_size=len(batch), or a first call with all rows; found no such plate, "
            f"{num_rows(data.args)} rows in the call and {found} in full_data."
        )
    if batches and sizes and sizes != {found}:
        raise ArgumentError(
            f"Expected full_data to hold each of the rows of {sorted(target.batch_plates)} "
            f"once, {sorted(sizes)} in all, found {found}."
        )


def score_of_all_rows(
    target: LogDensity, z: Array, data: Data, batches: tuple[tuple[Any, ...], ...]
) -> Score:
    """Score over all rows at positions (P, D), by the model's own plate or from all batches."""
    if batches:
        return exact_score(target, z, batches, data.kwargs)
    return target.full_score(z, data)


def exact_score(
    target: LogDensity,
    z: Array,
    batches: tuple[tuple[Any, ...], ...],
    keywords: Mapping[str, Any] | None = None,
) -> Score:
    """Score over all rows at positions (P, D): the mean over batches, weighted by their rows.

    A batch's likelihood is scaled up to all rows by the model's plate, so that the weighted mean
    over batches that hold each row once is exact. ``keywords`` are the model's keyword arguments,
    the same for all batches.
    """
    total = sum(num_rows(batch) for batch in batches)
    score = Score(jnp.zeros_like(z), jnp.zeros(len(z), z.dtype), jnp.zeros(len(z), z.dtype))
    for group in _alike(batches):
        weight = num_rows(group[0]) / total

        def add(score: Score, batch: Any, weight: float = weight) -> tuple[Score, None]:
            found = target.score(z, target.bind(*batch, **dict(keywords or {})))
            return jax.tree.map(lambda old, new: old + weight * new, score, found), None

        if len(group) == 1:
            score, _ = add(score, group[0])
        else:
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *group)
            score, _ = lax.scan(add, score, stacked)
    return score


def _alike(batches: tuple[tuple[Any, ...], ...]) -> list[list[tuple[Any, ...]]]:
    """Batches in groups that one compiled program serves: arrays alone, of the same shapes."""
    groups: dict[Any, list[tuple[Any, ...]]] = {}
    for index, batch in enumerate(batches):
        leaves, structure = jax.tree.flatten(batch)
        arrays = all(isinstance(leaf, (Array, np.ndarray)) for leaf in leaves)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves) if arrays else index
        groups.setdefault((structure, shapes), []).append(batch)
    return list(groups.values())
