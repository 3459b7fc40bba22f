"""Mean, standard deviation and their errors of each number of a site."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from ppl_ext.fit.verdict.verdict import MOST_SHOWN, SiteFigures, Value
from ppl_ext.statistics.convergence import TAIL, convergence, in_chains, varies

Numbers = Float[np.ndarray, " K"]


@np.errstate(all="ignore")  # of draws that are worth nothing, whose errors are infinite
def site_figures(
    name: str, draws: Float[np.ndarray, "S ..."], chains: int, share: float
) -> SiteFigures:
    """What the draws of a site are worth; a share of them where they are independent.

    Parameters
    ----------
    name : str
    draws : array (S, *shape)
        Of all chains, one after the other.
    chains : int
        1 for independent draws.
    share : float
        Effective share of independent draws.
    """
    number, shape = len(draws), draws.shape[1:]
    flat = np.asarray(draws, np.float64).reshape(number, -1)
    size = flat.shape[1]
    # Constants, such as the corner of a Cholesky factor, have no figures.
    moves = varies(np.reshape(draws, flat.shape))
    ess = np.full(size, float(number) if chains > 1 else share * number)
    tail, unknown = ess.copy(), np.full(size, math.nan)
    if chains == 1 or not moves.any():
        errors = np.where(moves, _deviation_errors(flat, ess), math.nan)
        values = values_of(name, shape, flat, moves, (ess, tail, unknown), ess**-0.5, errors)
        worth = float(number) if chains > 1 else share * number
        return SiteFigures(worth, worth, math.nan, size=size, values=values)
    found = convergence(in_chains(flat[:, moves], chains))
    r_hat, errors = unknown.copy(), unknown.copy()
    ess[moves], tail[moves] = found.ess_bulk, found.ess_tail
    r_hat[moves] = found.r_hat
    errors[moves] = np.where(found.is_heavy, math.inf, found.deviation_error)
    return SiteFigures(
        float(found.ess_bulk.min()),
        float(found.ess_tail.min()),
        float(found.r_hat.max()),
        bool(found.is_heavy.any()),
        float(found.deviation_error.max()),
        size=size,
        values=values_of(name, shape, flat, moves, (ess, tail, r_hat), ess**-0.5, errors),
    )


def values_of(
    name: str,
    shape: Sequence[int],
    flat: Float[np.ndarray, "S K"],
    moves: Bool[np.ndarray, " K"],
    figures: tuple[Numbers, Numbers, Numbers],
    mean_errors: Numbers,
    sd_errors: Numbers,
) -> tuple[Value, ...]:
    """The numbers of a site, or, where they are many, the least certain one that is no constant.

    Parameters
    ----------
    name : str
    shape : sequence of int
        Of the site.
    flat : array (S, K)
    moves : bool array (K,)
        Which are no constants.
    figures : tuple of array (K,)
        Effective numbers of the middle and of the tails, and R-hat.
    mean_errors, sd_errors : array (K,)
        In standard deviations, and as a share of the standard deviation.
    """
    ess, tail, r_hat = figures
    chosen: Sequence[int] = range(flat.shape[1])
    if len(chosen) > MOST_SHOWN:
        chosen = [int(np.argmin(np.where(moves, ess, math.inf)))]
    with np.errstate(all="ignore"):
        means, deviations = flat.mean(0), flat.std(0)
        ends = np.quantile(flat[:, list(chosen)], [TAIL, 1.0 - TAIL], axis=0).T
    return tuple(
        Value(
            label(name, shape, k),
            float(means[k]),
            float(deviations[k]),
            float(deviations[k] * mean_errors[k]),
            float(deviations[k] * sd_errors[k]),
            float(ess[k]),
            float(tail[k]),
            float(r_hat[k]),
            *map(float, own),
        )
        for k, own in zip(chosen, ends, strict=True)
    )


def label(name: str, shape: Sequence[int], place: int) -> str:
    """A number of a site, named as ArviZ names it."""
    if not shape:
        return name
    return f"{name}[{', '.join(str(int(k)) for k in np.unravel_index(place, tuple(shape)))}]"


@np.errstate(all="ignore")
def _deviation_errors(flat: Float[np.ndarray, "S K"], ess: Numbers) -> Numbers:
    """Standard error of the standard deviation of independent draws, as a share of it."""
    white = (flat - flat.mean(0)) / flat.std(0)
    fourth = np.power(white, 4).mean(0)
    return np.asarray(0.5 * np.sqrt(np.maximum(fourth - 1.0, 0.0) / ess))
