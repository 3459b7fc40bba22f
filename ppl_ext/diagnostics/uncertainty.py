"""Uncertainty of predictions: what it consists of, and whether it is found where errors are.

The total uncertainty of a predictive distribution, the mean over draws θ of p(y | x, θ), is that
of the draws' own distributions, on average (aleatoric: noise that no amount of data takes away),
and that of which draw is right (epistemic). For classes it is an entropy in nats, with I the
mutual information of class and parameters,

    H[p(y | x)] = E[H[p(y | x, θ)]] + I[y; θ | x]

(W. Chen, B. Li, R. Zhang and Y. Li, "Bayesian Computation in Deep Learning",
https://arxiv.org/abs/2502.18300, equation 2.6), and for numbers a variance in squared units, by the
law of total variance,

    Var[y | x] = E[Var[y | x, θ]] + Var[E[y | x, θ]].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, rel_entr

from ppl_ext.diagnostics.predictive_data import (
    draws_first,
    is_classification,
    mixture_mean,
    mixture_probabilities,
    observed_classes,
    require_observed,
)
from ppl_ext.diagnostics.predictive_metrics import area_under_roc
from ppl_ext.errors import ArgumentError
from ppl_ext.options import check_choice

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

Array = NDArray[Any]

MEASURES = ("total", "aleatoric", "epistemic", "max_probability")


def uncertainty_split(predictive: Dataset) -> Dataset:
    """Total, aleatoric and epistemic uncertainty of each row.

    Parameters
    ----------
    predictive : Dataset
        From ``predictive_distribution``; observations are not needed.

    Returns
    -------
    Dataset
        ``total``, ``aleatoric`` and ``epistemic`` along row [, output], each computed by itself:
        for classes the entropy of the mixture, the draws' mean entropy and the mutual information
        of class and parameters, in nats; for numbers the variance of the mixture, the draws' mean
        variance and the variance of their means, in squared units of the observations.

    Examples
    --------
    >>> import xarray as xr
    >>> probabilities = [[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.7, 0.3], [0.2, 0.8], [0.2, 0.8]]]
    >>> predictive = xr.Dataset({  # two draws of three rows, as predictive_distribution gives it
    ...     "probabilities": (("draw", "row", "class"), probabilities),
    ...     "log_likelihood": (("draw", "row"), [[-0.1, -0.5, -0.2], [-0.4, -1.6, -0.2]]),
    ...     "observed": ("row", [0, 0, 1]),
    ... }, {"row": [0, 1, 2]})
    >>> split = uncertainty_split(predictive)
    >>> print(split["epistemic"].values.round(2))  # the draws disagree on the second row
    [0.03 0.09 0.  ]
    """
    import xarray

    split = _entropies if is_classification(predictive) else _variances
    name = "probabilities" if is_classification(predictive) else "mean"
    dims = [dim for dim in ("row", "output") if dim in predictive[name].dims]
    parts = {part: (dims, values) for part, values in split(predictive).items()}
    unit = "nats" if is_classification(predictive) else "squared units of the observations"
    attributes = {**predictive.attrs, "unit": unit}
    return xarray.Dataset(parts, {"row": predictive["row"].values}, attributes)


def _entropies(predictive: Dataset) -> dict[str, Array]:
    mixture = mixture_probabilities(predictive)
    draws = draws_first(predictive, "probabilities")
    aleatoric, epistemic = np.zeros(mixture.shape[:-1]), np.zeros(mixture.shape[:-1])
    # Draw by draw, so that no second array of all draws is made.
    for draw in draws:
        own = draw.astype(np.float64)
        aleatoric += entr(own).sum(-1) / len(draws)
        # Each draw's divergence from the mixture: no difference of two entropies, whose rounding
        # may be more than the mutual information.
        epistemic += rel_entr(own, mixture).sum(-1) / len(draws)
    return {"total": entr(mixture).sum(-1), "aleatoric": aleatoric, "epistemic": epistemic}


def _variances(predictive: Dataset) -> dict[str, Array]:
    centre = mixture_mean(predictive)
    means, variances = draws_first(predictive, "mean"), draws_first(predictive, "variance")
    total, epistemic = np.zeros(centre.shape), np.zeros(centre.shape)
    for mean, variance in zip(means, variances, strict=True):
        apart = np.square(mean - centre)
        total += (variance + apart) / len(means)
        epistemic += apart / len(means)
    aleatoric = np.asarray(variances.mean(0, dtype=np.float64))
    return {"total": total, "aleatoric": aleatoric, "epistemic": epistemic}


def uncertainty_score(predictive: Dataset, measure: str = "total") -> DataArray:
    """How uncertain each row is, as one number.

    Parameters
    ----------
    predictive : Dataset
        From ``predictive_distribution``; observations are not needed.
    measure : {"total", "aleatoric", "epistemic", "max_probability"}
        A part of ``uncertainty_split``: of classes the predictive entropy, the draws' entropy, or
        the mutual information; of numbers variances. "max_probability" is one less the largest
        class probability. Several outputs of one row are added up; the sum is NaN where one is.

    Raises
    ------
    ArgumentError
        The measure is none of these, or not one of numbers.

    Examples
    --------
    >>> import xarray as xr
    >>> probabilities = [[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.7, 0.3], [0.2, 0.8], [0.2, 0.8]]]
    >>> predictive = xr.Dataset({  # two draws of three rows, as predictive_distribution gives it
    ...     "probabilities": (("draw", "row", "class"), probabilities),
    ...     "log_likelihood": (("draw", "row"), [[-0.1, -0.5, -0.2], [-0.4, -1.6, -0.2]]),
    ...     "observed": ("row", [0, 0, 1]),
    ... }, {"row": [0, 1, 2]})
    >>> print(uncertainty_score(predictive, "max_probability").values.round(1))
    [0.2 0.4 0.2]
    """
    import xarray

    check_choice("measure", measure, MEASURES)
    if measure != "max_probability":
        values = uncertainty_split(predictive)[measure]
    elif is_classification(predictive):
        probabilities = mixture_probabilities(predictive)
        dims = ["row", "output"][: probabilities.ndim - 1]
        values = xarray.DataArray(
            1.0 - probabilities.max(-1), {"row": predictive["row"].values}, dims
        )
    else:
        raise ArgumentError(
            "Expected class probabilities for measure='max_probability', found means. Use one of "
            f"{MEASURES[:3]}."
        )
    # By default xarray leaves out what is not a number: an unknown variance would count as none.
    return values.sum("output", skipna=False) if "output" in values.dims else values


def selective_prediction_curve(predictive: Dataset, *, measure: str = "total") -> Dataset:
    """Error of the predictions that are kept when the most uncertain ones are withheld.

    Also called risk-coverage curve (of classes) and sparsification plot (of numbers, E. Ilg et
    al., "Uncertainty Estimates and Multi-Hypotheses Networks for Optical Flow", 2018).

    Parameters
    ----------
    predictive : Dataset
        From ``predictive_distribution``, with observations.
    measure
        What uncertainty is, as in ``uncertainty_score``.

    Returns
    -------
    Dataset
        Along ``coverage``, the share of the N rows that are kept, k / N for k = 1, ..., N:
        ``risk``, the share of wrong classes or the root mean squared error among the k least
        uncertain rows, and ``oracle_risk``, that of the k rows with the smallest errors. Rows that
        are equally uncertain count with their mean loss, so their order does not matter.
        Scalars: ``area``, the mean of the risk over all coverages (AURC); ``oracle_area``;
        ``excess_area``, their difference, 0 where the uncertainty ranks rows as the errors do.

    Raises
    ------
    ArgumentError
        There are no observations, or the measure does not fit.

    Examples
    --------
    >>> import xarray as xr
    >>> probabilities = [[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.7, 0.3], [0.2, 0.8], [0.2, 0.8]]]
    >>> predictive = xr.Dataset({  # two draws of three rows, as predictive_distribution gives it
    ...     "probabilities": (("draw", "row", "class"), probabilities),
    ...     "log_likelihood": (("draw", "row"), [[-0.1, -0.5, -0.2], [-0.4, -1.6, -0.2]]),
    ...     "observed": ("row", [0, 0, 1]),
    ... }, {"row": [0, 1, 2]})
    >>> curve = selective_prediction_curve(predictive)
    >>> print(curve["risk"].values.round(2))  # of the surest row, of two, of all
    [0.   0.   0.33]
    """
    import xarray

    require_observed(predictive, "the error of the predictions")
    classes = is_classification(predictive)
    score = uncertainty_score(predictive, measure).values
    if classes:
        wrong = mixture_probabilities(predictive).argmax(-1) != observed_classes(predictive)
        loss = wrong.astype(np.float64)
    else:
        loss = np.square(mixture_mean(predictive) - np.asarray(predictive["observed"].values))
    loss = loss.reshape(len(loss), -1).mean(1)
    risk, oracle = _risk(score, loss), _risk(loss, loss)
    if not classes:
        risk, oracle = np.sqrt(risk), np.sqrt(oracle)
    areas = {"area": float(risk.mean()), "oracle_area": float(oracle.mean())}
    curves = {"risk": ("coverage", risk), "oracle_risk": ("coverage", oracle)}
    attributes = {"measure": measure, "risk": "error rate" if classes else "RMSE"}
    return xarray.Dataset(
        {**curves, **areas, "excess_area": areas["area"] - areas["oracle_area"]},
        {"coverage": np.arange(1, len(loss) + 1) / len(loss)},
        {**predictive.attrs, **attributes},
    )


def _risk(score: Array, loss: Array) -> Array:
    """Mean loss of the k rows with the smallest scores, for every k."""
    # Rows of one score share their mean loss; groups come in ascending order.
    _, group, rows = np.unique(score, return_inverse=True, return_counts=True)
    shared = np.bincount(group, loss) / rows
    return np.asarray(np.cumsum(np.repeat(shared, rows)) / np.arange(1, len(loss) + 1))


def out_of_distribution_score(
    inside: Dataset, outside: Dataset, *, measure: str = "total"
) -> Dataset:
    """How well uncertainty tells rows of another kind from those like the training data.

    Parameters
    ----------
    inside, outside : Dataset
        From ``predictive_distribution`` with the same draws: rows like the training data, and
        rows of another kind. Observations are not needed.
    measure
        What uncertainty is, as in ``uncertainty_score``.

    Returns
    -------
    Dataset
        ``inside`` and ``outside``, the scores of the rows, and the scalar ``auroc``: the chance
        that a row from outside is more uncertain than one from inside, ties counting half.

    Raises
    ------
    ArgumentError
        One holds classes and the other numbers, or the measure does not fit.
    ImportError
        scikit-learn is not installed.

    Examples
    --------
    >>> import xarray as xr
    >>> probabilities = [[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.7, 0.3], [0.2, 0.8], [0.2, 0.8]]]
    >>> predictive = xr.Dataset({  # two draws of three rows, as predictive_distribution gives it
    ...     "probabilities": (("draw", "row", "class"), probabilities),
    ...     "log_likelihood": (("draw", "row"), [[-0.1, -0.5, -0.2], [-0.4, -1.6, -0.2]]),
    ...     "observed": ("row", [0, 0, 1]),
    ... }, {"row": [0, 1, 2]})
    >>> inside, outside = predictive.isel(row=[0, 2]), predictive.isel(row=[1])
    >>> print(out_of_distribution_score(inside, outside)["auroc"].item())
    1.0
    """
    import xarray

    if is_classification(inside) != is_classification(outside):
        raise ArgumentError(
            "Expected predictions of one site for rows inside and outside, found classes and "
            "numbers. Pass two results of predictive_distribution with the same model."
        )
    scores = [uncertainty_score(each, measure).values for each in (inside, outside)]
    positive = np.repeat([False, True], [len(score) for score in scores])
    return xarray.Dataset(
        {
            "inside": ("row_inside", scores[0]),
            "outside": ("row_outside", scores[1]),
            "auroc": area_under_roc(positive, np.concatenate(scores)),
        },
        {"row_inside": inside["row"].values, "row_outside": outside["row"].values},
        {**inside.attrs, "measure": measure},
    )
