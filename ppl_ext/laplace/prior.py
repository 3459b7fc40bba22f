"""Curvature of the log prior in some coordinates, given the others: what is diagonal of it.

As the ``curvature.prior`` of the packages, but of the coordinates that have a Gaussian alone: with
the scale of the weights' prior held, the prior of the weights may be diagonal where that of weights
and scale together is not. It is differentiable in all coordinates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from ppl_ext.curvature.program_curvature import DENSE_PRIOR_UP_TO, GaussNewton
from ppl_ext.documented import documents_subclasses
from ppl_ext.errors import ArgumentError


@documents_subclasses
class PriorShell(ABC):
    """What is found once about the log prior: where its curvature is diagonal.

    Parameters
    ----------
    target : LogDensity
    data : Data
        Concrete arguments of the model.
    coordinates : Coordinates
        D' in number.
    options : GaussNewton

    Attributes
    ----------
    form : {"diagonal", "hessian"}
        The curvature is the diagonal, or the matrix with negative eigenvalues set to 0.
    exact : bool
        Whether nothing but negative curvature is left out.
    whole : bool
        Whether all of it is diagonal.
    apart : tuple of str
        Sites within which it is.

    Raises
    ------
    ArgumentError
        A matrix is asked for with a structure that is to do without matrices.
    """

    def __init__(self, target: Any, data: Any, coordinates: Any, options: GaussNewton) -> None:
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
        generator = np.random.default_rng(1)
        product = self._products(generator.uniform(-1.0, 1.0, (2, target.dim)), data)
        drawn = generator.normal(size=dim)

        def is_diagonal(mask: np.ndarray) -> bool:
            """Whether H M v = (H M 1) * v on the mask, for a random v."""
            ones = product(mask)
            vector = drawn.astype(ones.dtype)
            expected, crossed = ones * vector, product(vector * mask)
            size = np.maximum(np.abs(expected), np.abs(crossed))
            near = np.abs(crossed - expected) <= 1e3 * np.finfo(ones.dtype).eps * size
            return bool((near | (mask == 0.0)).all())

        def only(where: slice) -> np.ndarray:
            mask = np.zeros(dim)
            mask[where] = 1.0
            return mask

        self.whole = is_diagonal(np.ones(dim))
        self.apart = tuple(
            name
            for name, where in coordinates.slices.items()
            if self.whole or is_diagonal(only(where))
        )
        wants_matrix = not self.whole and options.structure == "full" and dim <= DENSE_PRIOR_UP_TO
        self.form = options.prior or ("hessian" if wants_matrix else "diagonal")
        self.exact = self.whole or self.form == "hessian"

    @abstractmethod
    def _products(self, positions: np.ndarray, data: Any) -> Callable[[np.ndarray], np.ndarray]:
        """From a vector (D',) to minus the Hessian at the positions (n, D) times it, (n, D')."""

    @abstractmethod
    def at(self, position: Any, data: Any) -> Any:
        """The curvature at a position (D,), of one position."""
