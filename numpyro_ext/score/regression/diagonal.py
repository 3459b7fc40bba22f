"""Closed form for diagonal Normal guides; see :mod:`ppl_ext.score_matching.regression.diagonal`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from numpyro_ext.score.regression.base import ClosedForm
from ppl_ext.score_matching.regression import diagonal
from ppl_ext.score_matching.regression.diagonal import DiagonalRegression, Schedule


def schedule(
    iteration: Int[Array, ""] | int, total: Int[Array, ""] | int, dim: int, dtype: Any
) -> Schedule:
    """Schedule of iteration t = 0, 1, ... of ``total`` (0: not known), for ``dim`` coordinates."""
    return diagonal.schedule(jnp.asarray(iteration, dtype), jnp.asarray(total, dtype), dim)


class DiagonalForm(diagonal.DiagonalForm, ClosedForm[DiagonalRegression]):
    @staticmethod
    def now(state: DiagonalRegression, total: Int[Array, ""] | int, dim: int) -> Schedule:
        return schedule(state.seen.num_updates, total, dim, state.square.dtype)


observe, updated_moments = DiagonalForm.observe, DiagonalForm.updated_moments

__all__ = ["DiagonalForm", "DiagonalRegression", "observe", "schedule", "updated_moments"]
