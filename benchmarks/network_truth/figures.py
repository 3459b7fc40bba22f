"""How far outputs are from a reference's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.network_truth.outputs import LEVELS, Outputs, Reference
from benchmarks.trust.effective import effective_number

Floats = NDArray[np.float64]

#: A method is right whose means are off by so many standard deviations (root mean square over the
#: outputs), whose standard deviations are off by such shares in the median and at most, and whose
#: Kolmogorov distances are at most this beyond their sampling error.
MEAN, MEDIAN_SD, ANY_SD, KOLMOGOROV = 0.1, 0.1, 0.25, 0.07
#: Probability with which a distance of exact draws may be beyond it.
LEVEL = 0.01


def kolmogorov_distances(values: Floats, reference: Reference) -> Floats:
    """Greatest distances (M,) of the distribution functions at the reference's quantiles.

    Between two quantiles the distance may be larger by at most the 0.02 that lie between them.
    """
    found = []
    for column, points in zip(values.T, reference.quantiles.T, strict=True):
        ordered = np.sort(column)
        below = np.searchsorted(ordered, points, side="left")
        upto = np.searchsorted(ordered, points, side="right")
        found.append(np.abs(0.5 * (below + upto) / len(ordered) - LEVELS).max())
    return np.array(found)


def sampling_error(number: float, reference: Reference) -> float:
    """Kolmogorov distance that draws of the reference exceed on no output, with 99 %.

    ``number`` is how many independent draws there are; the bound is A. Dvoretzky's, J. Kiefer's and
    J. Wolfowitz's with P. Massart's constant, over all outputs.
    """
    both = np.sqrt(1.0 / number + 1.0 / float(reference.about["least effective"]))
    return float(both * np.sqrt(0.5 * np.log(2.0 * len(reference.mean) / LEVEL)))


def total_variation(ours: Floats, true: Floats) -> float:
    """Mean over rows of half the sum of the differences of probabilities (N, K)."""
    return float(0.5 * np.abs(ours - true).sum(1).mean())


def agreement(ours: Floats, true: Floats) -> float:
    """Share of the rows (N, K) whose most probable class is the same."""
    return float((ours.argmax(1) == true.argmax(1)).mean())


def figures(found: Outputs, reference: Reference) -> dict[str, Any]:
    """Figures of a method's outputs.

    ``right`` and ``reasons`` say whether, and where not why, they are right; the other names say
    what they are. Draws are taken in the order in which they were made.
    """
    values = found.values
    if not np.isfinite(values).all():
        return {"right": False, "reasons": ["outputs that are not finite"]}
    with np.errstate(all="ignore"):
        errors = (values.mean(0) - reference.mean) / reference.sd
        ratios = values.std(0) / reference.sd
    distances = kolmogorov_distances(values, reference)
    effective = float(effective_number(values).min())
    allowed = KOLMOGOROV + sampling_error(effective, reference)
    said: dict[str, Any] = {
        "mean error": float(np.sqrt(np.square(errors).mean())),
        "greatest mean error": float(np.abs(errors).max()),
        "sd ratio": float(np.median(ratios)),
        "least sd ratio": float(ratios.min()),
        "greatest sd ratio": float(ratios.max()),
        "Kolmogorov": float(np.median(distances)),
        "greatest Kolmogorov": float(distances.max()),
        "Kolmogorov allowed": allowed,
        "effective": effective,
        "log density": found.log_density,
        "reference's log density": float(reference.about["log density"]),
        "calibration error": float(found.metrics.get("calibration_error", np.nan)),
    }
    for name in ("rmse", "accuracy"):
        if name in found.metrics:
            said[name] = float(found.metrics[name])
    if found.probabilities is not None and reference.probabilities is not None:
        said["agreement"] = agreement(found.probabilities, reference.probabilities)
        said["total variation"] = total_variation(found.probabilities, reference.probabilities)
    reasons = what_is_wrong(said)
    return said | {"right": not reasons, "reasons": reasons}


def what_is_wrong(said: dict[str, Any]) -> list[str]:
    """What is out, in words; comparisons are written so that NaN is out."""
    least, greatest = said["least sd ratio"], said["greatest sd ratio"]
    checks = [
        (said["mean error"] <= MEAN, f"means are {said['mean error']:.2f} sd off"),
        (
            abs(said["sd ratio"] - 1.0) <= MEDIAN_SD,
            f"sds are {said['sd ratio']:.2f} times the reference's in the median",
        ),
        (
            1.0 - ANY_SD <= least and greatest <= 1.0 + ANY_SD,
            f"sds are {least:.2f} to {greatest:.2f} times the reference's",
        ),
        (
            said["greatest Kolmogorov"] <= said["Kolmogorov allowed"],
            f"a Kolmogorov distance is {said['greatest Kolmogorov']:.2f}",
        ),
    ]
    return [text for good, text in checks if not good]
