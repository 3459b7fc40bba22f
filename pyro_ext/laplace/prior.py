"""Curvature of the log prior by torch; see :mod:`ppl_ext.laplace.prior`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ppl_ext.laplace.prior import PriorShell
from pyro_ext.curvature import Curvature
from pyro_ext.density import Data
from pyro_ext.laplace.gaussian import Algebra

without_negative = Algebra.without_negative


class ConditionalPrior(PriorShell):
    def _products(self, positions: np.ndarray, data: Data) -> Callable[[np.ndarray], np.ndarray]:
        kind = {"dtype": self.target.dtype, "device": self.target.device}
        products = [self._product(z, data) for z in torch.as_tensor(positions, **kind)]

        def product(vector: np.ndarray) -> np.ndarray:
            given = torch.as_tensor(vector, **kind)
            found = torch.stack([product(given) for product in products])
            return found.detach().cpu().numpy()

        return product

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

    def at(self, position: Float[Tensor, " D"], data: Data) -> Curvature:
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
