"""Closed forms of the proximal step, for each covariance structure of a Normal, and mixtures.

The formulas, and what each form is, are in :mod:`ppl_ext.score_matching.regression`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from numpyro_ext.score.regression.base import FormJaxArrays
from numpyro_ext.score.regression.mixture import MixtureForm
from ppl_ext.score_matching.regression import (
    diagonal,
    full,
    layer_low_rank,
    low_rank,
    matrix_normal,
)
from ppl_ext.score_matching.regression.base import ClosedForm


def schedule(
    iteration: Int[Array, ""] | int, total: Int[Array, ""] | int, dim: int, dtype: Any
) -> diagonal.Schedule:
    """Schedule of iteration t = 0, 1, ... of ``total`` (0: not known), for ``dim`` coordinates."""
    return diagonal.schedule(jnp.asarray(iteration, dtype), jnp.asarray(total, dtype), dim)


class DiagonalForm(diagonal.DiagonalForm):
    arrays = FormJaxArrays

    @staticmethod
    def now(
        state: diagonal.DiagonalRegression, total: Int[Array, ""] | int, dim: int
    ) -> diagonal.Schedule:
        return schedule(state.seen.num_updates, total, dim, state.square.dtype)


class FullForm(full.FullForm):
    arrays = FormJaxArrays


class LowRankForm(low_rank.LowRankForm):
    arrays = FormJaxArrays


class LayerLowRankForm(layer_low_rank.LayerLowRankForm):
    arrays = FormJaxArrays
    large, small = LowRankForm, FullForm


class MatrixNormalForm(matrix_normal.MatrixNormalForm):
    arrays = FormJaxArrays


#: By :func:`structure_of` the guide.
CLOSED_FORMS: dict[str, type[ClosedForm]] = {
    "diagonal": DiagonalForm,
    "full": FullForm,
    "low_rank": LowRankForm,
    "layer_low_rank": LayerLowRankForm,
    "matrix_normal": MatrixNormalForm,
    "mixture": MixtureForm,
}
