"""Curvature of the log prior in some coordinates, given the others.

As :mod:`pyro_ext.curvature.prior`, but of the coordinates that have a Gaussian alone: with the
scale of the weights' prior held, the prior of the weights may be diagonal where that of weights and
scale together is not. It is differentiable in all coordinates.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ppl_ext.curvature import DENSE_PRIOR_UP_TO
from ppl_ext.errors import ArgumentError
from pyro_ext.curvature import Curvature, GaussNewton, symmetric_eigen
from pyro_ext.curvature.coordinates import Coordinates
from pyro_ext.density import Data, LogDensity


class ConditionalPrior:
    """What is found once about the log prior: where its curvature is diagonal.

    Parameters
    ----------
    target : LogDensity
    data : Data
        Arguments of the model.
    coordinates : Coordinates
        D' in number.
    options : GaussNewton

    Attributes
    ----------
    form : {"diagonal", "hessian"}
        The curvature is the diagonal, or the matrix with negative eigenvalues set to 0.
    exact : bool
        Whether nothing but negative curvature is left out.

    Raises
    ------
    ArgumentError
        A matrix is asked for with a structure that is to do without matrices.
    """

    def __init__(
        self, target: LogDensity, data: Data, coordinates: Coordinates, options: GaussNewton
    ) -> None:
        if options.prior == "hessian" and options.structure != "full":
            raise ArgumentError(
                f'Expected prior="hessian" with curvature="full" alone, found curvature='
                f"{options.structure!r}: a matrix of all coordinates would undo the structure. Use "
                'prior="diagonal".'
            )
        self.target = target
        self.coordinates = coordinates
        dim = len(coordinates)
        # Anywhere will do: these positions show the structure, and are not started from.
        generator = torch.Generator().manual_seed(1)
        uniform = torch.rand(2, target.dim, generator=generator, dtype=target.dtype)
        positions = (2.0 * uniform - 1.0).to(target.device)
        drawn = torch.randn(dim, generator=generator, dtype=target.dtype).to(target.device)
        ones = torch.ones_like(drawn)

        def product(vector: Tensor) -> Tensor:
            return torch.stack([self._product(z, data)(vector) for z in positions])

        def is_diagonal(mask: Tensor) -> bool:
            """Whether H M v = (H M 1) * v on the mask, for a random v."""
            expected, crossed = product(mask) * drawn, product(drawn * mask)
            size = torch.maximum(expected.abs(), crossed.abs())
            near = (crossed - expected).abs() <= 1e3 * torch.finfo(target.dtype).eps * size
            return bool((near | (mask == 0.0)).all())

        self.whole = is_diagonal(ones)
        self.apart = tuple(
            name
            for name, where in coordinates.slices.items()
            if self.whole or is_diagonal(_mask(ones, where))
        )
        wants_matrix = not self.whole and options.structure == "full" and dim <= DENSE_PRIOR_UP_TO
        self.form = options.prior or ("hessian" if wants_matrix else "diagonal")
        self.exact = self.whole or self.form == "hessian"

    def _log_prior(self, position: Tensor, data: Data) -> Tensor:
        if not self.target.local_sites:
            return self.target.evaluate(position, data, self.target.first_rows())[0]
        # The rows' own latents: each row has some.
        total = torch.zeros_like(position[0])
        for weight, indices in self.target.sweep():
            total = total + weight * self.target.evaluate(position, data, indices)[0]
        return total

    def _product(self, position: Tensor, data: Data) -> Callable[[Tensor], Tensor]:
        """Products of minus the Hessian in the coordinates, with vectors (D',)."""
        where = self.coordinates

        def log_prior(part: Tensor) -> Tensor:
            return self._log_prior(where.placed(position, part), data)

        # The Hessian is its own transpose; forward mode fails on some models in float32.
        pull = torch.func.vjp(torch.func.grad(log_prior), where.part(position))[1]

        def product(vector: Tensor) -> Tensor:
            result: Tensor = pull(vector)[0]
            return -result

        return product

    def at(self, position: Tensor, data: Data) -> Curvature:
        """The curvature at a position (D,), of one position."""
        product = self._product(position, data)
        ones = torch.ones(len(self.coordinates), dtype=position.dtype, device=position.device)
        if self.form == "hessian":
            matrix = without_negative(torch.func.vmap(product)(ones.diag()))
            return Curvature(torch.zeros_like(ones)[None], matrix[None])
        if self.whole:
            return Curvature(product(ones).clamp_min(0.0)[None])
        parts = []
        for name, where in self.coordinates.slices.items():
            if name in self.apart:
                parts.append(product(_mask(ones, where))[where])
            else:
                numbers = range(where.start, where.stop)
                entries = [product(_mask(ones, slice(i, i + 1)))[i] for i in numbers]
                parts.append(torch.stack(entries))
        return Curvature(torch.cat(parts).clamp_min(0.0)[None])


def _mask(ones: Tensor, where: slice) -> Tensor:
    mask = torch.zeros_like(ones)
    mask[where] = 1.0
    return mask


def without_negative(matrix: Tensor) -> Tensor:
    """A symmetric matrix (D, D) with negative eigenvalues set to 0, and its derivative."""
    matrix = 0.5 * (matrix + matrix.T)
    held = matrix.detach()
    if not torch.isfinite(held).all():
        return matrix
    values, vectors = symmetric_eigen(held)
    kept = values.clamp_min(0.0)
    # Divided differences of max(x, 0): the derivative of a function of a matrix, which has no
    # difference of eigenvalues in a denominator unless one of them is cut.
    gaps = values[:, None] - values
    rise = (values > 0.0).to(matrix.dtype)
    crossing = rise[:, None] != rise
    slopes = torch.where(
        crossing,
        (kept[:, None] - kept) / torch.where(crossing, gaps, torch.ones_like(gaps)),
        rise[:, None],
    )
    change = vectors.T @ (matrix - held) @ vectors
    return vectors @ (kept.diag() + slopes * change) @ vectors.T
