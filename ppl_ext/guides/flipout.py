"""Flipout: noise in a network's weights that is nearly independent from row to row.

Reparameterised gradients draw the weights once for all rows of a minibatch. The rows' gradients
are then correlated, and averaging over more of them stops lowering the variance. Flipout gives
row n the weights ``W_mean + dW * (r_n s_n^T)``, where dW is the deviation of the one draw from its
mean and s_n, r_n are random signs: in distribution the same weights for every row, since dW is
symmetric about zero and independent in its entries, but nearly uncorrelated between rows. With
signs outside of the product this costs one more product of matrices, not one for each row.

Y. Wen, P. Vicol, J. Ba, D. Tran and R. Grosse, "Flipout: efficient pseudo-independent weight
perturbations on mini-batches", ICLR 2018 (https://arxiv.org/abs/1803.04386), the estimator in
matrix form.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from ppl_ext.errors import ArgumentError
from ppl_ext.guides.row_noise import LinearUse, RowNoise


class FlipoutSigns(RowNoise):
    """Random signs by row and axis of each weight, the same in all uses of the weight."""

    name = "flipout"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._axes: dict[str, tuple[int, frozenset[Any]]] = {}
        self._signs: dict[tuple[str, Any, int], Any] = {}

    @abstractmethod
    def _random_signs(self, rows: int, length: int, like: Any) -> Any:
        """New signs (rows, length), of the type of an array."""

    def __call__(self, use: LinearUse) -> Any:
        axes = use.rows, frozenset(label for label, _ in (*use.in_axes, *use.out_axes))
        if self._axes.setdefault(use.site, axes) != axes:
            raise ArgumentError(
                f"Expected all uses of {use.site!r} to be alike, with one number of rows, found "
                f"{self._axes[use.site][0]} and {use.rows} rows, or other axes of the weight. The "
                "rows would not have one weight each; name the other sites in sites=."
            )
        # Row n has the weight M + (W - M) * s_n r_n', with signs s and r, which is distributed as W
        # is.
        centre = use.apply(use.x, use.draw.mean)
        flipped = use.x * self._factor(use, use.in_axes, use.row_axes[0], use.x)
        deviation = use.apply(flipped, use.draw.value - use.draw.mean)
        return centre + deviation * self._factor(use, use.out_axes, use.row_axes[1], centre)

    def _factor(self, use: LinearUse, axes: Any, row_axis: int, like: Any) -> Any:
        """Product of the signs along axes of an array, of a shape that broadcasts to it."""
        factor: Any = 1.0
        for label, axis in axes:
            length = like.shape[axis]
            # By the axis of the weight and its length, so that all uses of a weight in a step share
            # the signs, and each row has one weight.
            key = use.site, label, length
            if key not in self._signs:
                self._signs[key] = self._random_signs(use.rows, length, like)
            signs = self._signs[key]
            # Signs are (rows, length), and axes of the array come in its own order.
            if axis < row_axis:
                signs = signs.T
            shape = [1] * like.ndim
            shape[row_axis], shape[axis] = use.rows, length
            factor = factor * signs.reshape(shape)
        return factor
