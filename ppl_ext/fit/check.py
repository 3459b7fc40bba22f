"""Draws of any method, judged by chains that leave the posterior as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.verdict import SiteFigures, Verdict
from ppl_ext.options import described

#: Errors that nobody minds: of a mean in standard deviations, of the logarithm of a standard
#: deviation, and the Kolmogorov distance of a marginal.
MEAN, DEVIATION, DISTANCE = 0.1, 0.1, 0.05
#: Probability of refusing right draws, over all coordinates and figures together.
LEVEL = 0.01
#: Effective draws of the chains unless told otherwise.
CHECK_ESS = 1_000

CHECK_DOCUMENTATION = """
    Chains are started anew, as by :func:`fit`, and run until they agree. Then means, standard
    deviations and whole marginals of the draws are compared with theirs, coordinate by
    coordinate, with allowance for chance.

    Parameters
    ----------
    $randomness
    draws : mapping, Fit, or object with get_samples
        Latent site to constrained values, first axis = draws: of $sources.
    model : callable
        $host program.
    *args, **kwargs
        Its arguments, with all rows.
    budget, seconds, target_ess, progress_bar
        Of the chains; see :func:`fit`.

    Returns
    -------
    Verdict
        "approximate" and trusted where the draws agree with chains that agree; else "not
        trusted", with the coordinate that is furthest off, or why the chains could not tell.

    Raises
    ------
    ModelCheckError
        The model cannot be fitted.
    ArgumentError
        The draws are not of this model.
"""


def draws_of(source: Any) -> Mapping[str, Any]:
    """The draws of a fit, of an engine or a chain of the host's, or as they are.

    Raises
    ------
    ArgumentError
        There are none.
    """
    if isinstance(source, Mapping):
        return source
    if isinstance(source, Fit):
        return source.draws
    try:
        found = source.get_samples()
    except (AttributeError, TypeError) as error:
        raise ArgumentError(
            "Expected draws as a mapping from site to values, a fit, or something whose "
            f"get_samples() gives them, found {described(source)}. Pass "
            "engine.get_samples(result.state) of an engine without a state of its own."
        ) from error
    return dict(found)


@dataclass(frozen=True)
class Off:
    """How far one coordinate is off, each figure as a share of what is allowed."""

    name: str
    mean: float
    deviation: float
    distance: float
    share: float


def check(draws: Mapping[str, Any], reference: Fit) -> Verdict:
    """The verdict on draws, by the draws of a fit to the same program.

    Raises
    ------
    ArgumentError
        A site is missing, or has another shape.
    """
    sites = {name: _flat(name, draws, value) for name, value in reference.draws.items()}
    cost = reference.verdict.cost
    if not reference.verdict.level == "exact":
        told = ("Chains could not tell:", *reference.verdict.reasons)
        return Verdict("not trusted", told, {}, cost)
    number = sum(own.shape[1] for own, _ in sites.values())
    figures = reference.verdict.by_site
    found = [
        off
        for name, (own, theirs) in sites.items()
        for off in _compared(name, own, theirs, figures[name], 3 * number)
    ]
    worst = max(found, key=lambda off: off.share)
    told = (
        f"Against chains, '{worst.name}' is furthest off: mean by {worst.mean:.2f} sd, standard "
        f"deviation by a factor of {worst.deviation:.2f}, Kolmogorov distance "
        f"{worst.distance:.2f}.",
    )
    if worst.share > 1.0:
        wrong = sum(off.share > 1.0 for off in found)
        count = f"{wrong} of {number} coordinates are off by more than chance and tolerance allow."
        return Verdict("not trusted", (count, *told), {}, cost)
    return replace(Verdict("approximate", told, {}, cost), confirmed=True)


def _flat(
    name: str, draws: Mapping[str, Any], reference: Any
) -> tuple[Float[np.ndarray, "S K"], Float[np.ndarray, "R K"]]:
    if name not in draws:
        raise ArgumentError(
            f"Expected draws of every latent site, found none of '{name}'. Sites that were drawn: "
            f"{', '.join(map(str, draws))}."
        )
    own, theirs = np.asarray(draws[name], np.float64), np.asarray(reference, np.float64)
    if own.ndim == 0 or own.shape[1:] != theirs.shape[1:]:
        raise ArgumentError(
            f"Expected draws of '{name}' with shape (draws, {', '.join(map(str, theirs.shape[1:]))}"
            f"), found {own.shape}."
        )
    return own.reshape(len(own), -1), theirs.reshape(len(theirs), -1)


@np.errstate(all="ignore")
def _compared(
    name: str,
    own: Float[np.ndarray, "S K"],
    theirs: Float[np.ndarray, "R K"],
    figures: SiteFigures,
    comparisons: int,
) -> list[Off]:
    """Each coordinate of a site, constants left out."""
    noise = 1.0 / len(own) + 1.0 / max(1.0, figures.ess_bulk)
    quantile = float(-ndtri(0.5 * LEVEL / comparisons))
    of_distance = math.sqrt(-0.5 * math.log(0.5 * LEVEL / comparisons) * noise)
    allowed = (
        math.hypot(MEAN, quantile * math.sqrt(noise)),
        math.hypot(DEVIATION, quantile * math.sqrt(0.5 * noise)),
        math.hypot(DISTANCE, of_distance),
    )
    found = []
    for k in range(own.shape[1]):
        scale = float(theirs[:, k].std())
        if scale == 0.0:
            continue
        where = f"{name}[{k}]" if own.shape[1] > 1 else name
        if not np.isfinite(own[:, k]).all():
            found.append(Off(where, math.nan, math.nan, 1.0, math.inf))
            continue
        mean = abs(float(own[:, k].mean() - theirs[:, k].mean())) / scale
        deviation = float(own[:, k].std()) / scale
        distance = _distance(own[:, k], theirs[:, k])
        shares = [distance / allowed[2]]
        if not figures.is_heavy:
            shares += [mean / allowed[0], abs(math.log(max(deviation, 1e-300))) / allowed[1]]
        found.append(Off(where, mean, deviation, distance, max(shares)))
    return found


def _distance(own: Float[np.ndarray, " S"], theirs: Float[np.ndarray, " R"]) -> float:
    """Kolmogorov distance of two sets of draws. SciPy's takes half a second to import."""
    points = np.concatenate([own, theirs])
    below = [
        np.searchsorted(np.sort(each), points, side="right") / len(each) for each in (own, theirs)
    ]
    return float(np.abs(below[0] - below[1]).max())
