"""A few draws whose predictions have, together, the mean and spread of those of all.

Which draws are taken is kernel herding with exchanges, in the kernel of the outputs x and of their
squares: k(a, b) = sum_m [x_am x_bm + (x_am^2 - 1) (x_bm^2 - 1)], each output m in standard
deviations from its mean over all draws. The sum of k over the chosen pairs is then the squared
error of the outputs' first and second moments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from ppl_ext.diagnostics.predictive_data import unbounded_outputs
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_count

if TYPE_CHECKING:
    from xarray import Dataset

#: Beginnings that exchanges are tried from: the best of ten has four fifths of one's squared error.
BEGINNINGS = 10
#: An exchange lowers the squared error by more than this share of a draw's own, so that rounding is
#: none, and exchanges end.
LEAST_GAIN = 1e-9


def representative_draws(predictive: Dataset, number: int) -> Int[NDArray[np.int64], " P"]:
    """Places of a few draws that predict together nearly as all draws do.

    They are chosen so that means and variances of the outputs over them are near to those over all
    draws, at every row. Outputs are means and, where all
    are finite, logarithms of standard deviations, or logits. Of
    independent draws 20 have means that are 0.22 posterior standard deviations off; chosen ones a
    fraction of this, at the rows that they are chosen by and less so elsewhere. So give rows like
    those that will be predicted; observations are not used.

    Parameters
    ----------
    predictive : Dataset
        From ``predictive_distribution``, of all draws.
    number : int
        How many are chosen, P.

    Returns
    -------
    int array (P,)
        Places among the draws, in ascending order, each once.

    Raises
    ------
    ArgumentError
        There are fewer draws, or an output is not finite.

    References
    ----------
    Y. Chen, M. Welling and A. Smola, "Super-samples from kernel herding" (2010),
    https://arxiv.org/abs/1203.3472.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> mean = [[-2.0], [-1.0], [0.5], [1.0], [2.0]]  # of five draws at one row
    >>> predictive = xr.Dataset({
    ...     "mean": (("draw", "row"), mean), "variance": (("draw", "row"), np.ones((5, 1)))
    ... })
    >>> few = representative_draws(predictive, 2)
    >>> print(few, predictive["mean"].values[few].ravel())
    [1 4] [-1.  2.]
    """
    check_count("number", number)
    outputs = np.concatenate([values for _, values in unbounded_outputs(predictive)], 1)
    if number > len(outputs):
        raise ArgumentError(f"Expected at most the {len(outputs)} draws, found number={number}.")
    if not np.isfinite(outputs).all():
        raise ArgumentError("Expected finite outputs of all draws, found others.")
    centred = outputs - outputs.mean(0)
    sd = centred.std(0)
    scaled = centred[:, sd > 0.0] / sd[sd > 0.0]
    features = np.concatenate([scaled, scaled**2 - 1.0], 1)
    # Draws near to the mean in all outputs, as herding begins.
    nearest = np.square(features).sum(1).argsort()[:BEGINNINGS]
    found = [_herded(features, int(first), number) for first in nearest]
    return min(found, key=lambda places: float(np.square(features[places].sum(0)).sum()))


def _herded(
    features: Float[np.ndarray, "S F"], first: int, number: int
) -> Int[NDArray[np.int64], " P"]:
    """Places of features, whose mean is 0, with a sum near to 0: one by one, then exchanged."""
    own = np.square(features).sum(1)
    least = LEAST_GAIN * float(own.mean())
    chosen = [first]
    total = features[first]

    def nearest() -> tuple[int, float]:
        """The place that brings the sum nearest to 0, and the square of that sum."""
        # |total + f|^2 less |total|^2, which is the same for all.
        squares = own + 2.0 * features @ total
        squares[chosen] = np.inf
        place = int(squares.argmin())
        return place, float(squares[place] + total @ total)

    while len(chosen) < number:
        place, _ = nearest()
        chosen.append(place)
        total = total + features[place]
    kept = 0
    while kept < number:  # until each has been asked since the last exchange
        square, last = float(total @ total), chosen.pop(0)
        total = total - features[last]
        place, found = nearest()
        better = found < square - least
        kept = 1 if better else kept + 1
        chosen.append(place if better else last)
        total = total + features[chosen[-1]]
    return np.sort(np.array(chosen))
