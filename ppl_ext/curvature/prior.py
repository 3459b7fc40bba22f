"""Where the curvature of a log prior is diagonal, found once by products with random vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float

from ppl_ext.curvature.program_curvature import DENSE_PRIOR_UP_TO, PriorForm, PriorStructure


def structure_of_prior(
    product: Callable[[Float[np.ndarray, " d"]], Float[np.ndarray, "P d"]],
    slices: Mapping[str, slice],
    form: PriorForm | None,
) -> PriorStructure:
    """How the curvature is computed; see ``prior_structure`` of the packages' ``curvature``.

    Parameters
    ----------
    product : callable
        From a vector (D',) to minus the Hessian at P positions times it, (P, D').
    slices : dict of str to slice
        Where each of the sites that have curvature is among the D' coordinates.
    form : {"diagonal", "hessian"}, optional
    """
    dim = max((where.stop for where in slices.values()), default=0)
    # Not signs: in two dimensions every second pair of these would be a multiple of ones.
    drawn = np.random.default_rng(0).normal(size=dim)

    def is_diagonal(where: slice) -> bool:
        """Whether H M v = (H M 1) * v on the mask M, for a random v."""
        mask = np.zeros(dim)
        mask[where] = 1.0
        ones = product(mask)
        vector = drawn.astype(ones.dtype)
        expected, crossed = ones * vector, product(vector * mask)
        size = np.maximum(np.abs(expected), np.abs(crossed))
        # By coordinate: one narrow prior must not hide the couplings of the others.
        near = np.abs(crossed - expected) <= 1e3 * np.finfo(ones.dtype).eps * size
        return bool((near | (mask == 0.0)).all())

    whole = is_diagonal(slice(None))
    apart = tuple(name for name, where in slices.items() if whole or is_diagonal(where))
    found = product(np.ones(dim))
    # One position alone cannot tell that the curvature is the same at all.
    constant = whole and len(found) > 1 and bool((found == found[0]).all())
    if form is None:
        form = "hessian" if not whole and dim <= DENSE_PRIOR_UP_TO else "diagonal"
    exact = whole or form == "hessian"
    return PriorStructure(tuple(slices), form, exact, apart, constant and form == "diagonal")
