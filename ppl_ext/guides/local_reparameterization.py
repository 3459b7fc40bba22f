"""The local reparameterisation: noise in a layer's outputs in place of its weights.

With independent Normal weights of mean M and variance V the outputs y = x W of a row are
independent Normals with mean x M and variance x^2 V (squares entry by entry). Drawing these
directly gives every row noise of its own, so that the variance of the gradient falls with the
number of rows, and fewer numbers are drawn.

D. P. Kingma, T. Salimans and M. Welling, "Variational dropout and the local reparameterization
trick", NeurIPS 2015, https://arxiv.org/abs/1506.02557, equation (6). For convolutions, with places
drawn independently: D. Molchanov, A. Ashukha and D. Vetrov, "Variational dropout sparsifies deep
neural networks", ICML 2017, https://arxiv.org/abs/1701.05369.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from ppl_ext.errors import ArgumentError
from ppl_ext.guides.row_noise import LinearUse, RowNoise


class NormalOutputs(RowNoise):
    """Independent Normal noise in the outputs, with the variance that the weights' noise has."""

    name = "local_reparameterization"

    def __init__(self, *args: Any, independent_places: bool = False) -> None:
        super().__init__(*args)
        self._independent_places = independent_places
        self._seen: set[str] = set()

    @abstractmethod
    def _normal(self, mean: Any, variance: Any) -> Any:
        """Independent Normal draws, of the shape of the mean."""

    def __call__(self, use: LinearUse) -> Any:
        if use.site in self._seen:
            raise ArgumentError(
                f"Expected {use.site!r} to be applied once, found a second use, whose outputs "
                "depend on those of the first. Use flipout, which is exact there, or name the "
                "other sites in sites=."
            )
        if use.positions > 1 and not self._independent_places:
            raise ArgumentError(
                f"Expected {use.site!r} to be applied once a row, found {use.positions} places, "
                "whose outputs depend on each other. Use flipout, which is exact there, or accept "
                "the approximation of independent places with independent_places=True."
            )
        self._seen.add(use.site)
        # Equation 6: gamma_mj = sum_i a_mi mu_ij and delta_mj = sum_i a_mi^2 sigma_ij^2.
        mean = use.apply(use.x, use.draw.mean)
        return self._normal(mean, use.apply(use.x**2, use.draw.scale**2))
