"""How far a fit is from the reference draws, and from the density itself."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import arviz as az
import numpy as np
from scipy.stats import wasserstein_distance

from benchmarks.posteriordb.database import scatter
from benchmarks.posteriordb.methods import Draws, Floats, Program
from benchmarks.trust.effective import distinct
from benchmarks.trust.judge import inside, judge
from ppl_ext.diagnostics.stein_discrepancy import stein_discrepancy
from ppl_ext.start.start import Start

#: Directions of the sliced Wasserstein distance.
SLICES = 50
#: Draws that the Stein discrepancy is made of, at most; its cost is their square.
STEIN_DRAWS = 500
#: Nats between log densities of a guide at its own draws, hundreds at most in a thousand
#: dimensions, from which they are taken for rounding: that of a guide whose spread has burst.
ROUNDED = 1e5


@dataclass(frozen=True)
class Reference:
    """Draws that a fit is held against.

    Attributes
    ----------
    parameters : dict
        By name, each (draws, ...).
    columns : dict
        The same by scalar, each (draws,).
    """

    parameters: dict[str, Floats]
    columns: dict[str, Floats]

    @classmethod
    def of(cls, draws: Mapping[str, Floats]) -> Reference:
        """From draws (chains, draws, ...)."""
        pooled = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}
        return cls(pooled, scatter(pooled, rank=1))


def against_reference(
    parameters: Mapping[str, Floats],
    reference: Reference,
    unconstrained: tuple[Mapping[str, Floats], Mapping[str, Floats]] = ({}, {}),
) -> dict[str, Any]:
    """Errors of means and standard deviations, distances, and whether the draws are right.

    Errors and the sliced Wasserstein distance are in standard deviations of the reference; that is
    the mean over random directions of the first Wasserstein distance of the projections. Right is
    what :mod:`benchmarks.trust.judge` says of all parameters, and of ``unconstrained`` coordinates
    of the draws and of the reference.
    """
    found = scatter(parameters, rank=1)
    missing = [name for name in reference.columns if name not in found]
    if missing:
        raise KeyError(
            f"expected the reference's parameters, found no {', '.join(missing[:3])} among "
            f"{', '.join(list(found)[:5])}"
        )
    names = list(reference.columns)
    ours = np.stack([found[name] for name in names], 1)
    true = np.stack([reference.columns[name] for name in names], 1)
    location, scale = true.mean(0), true.std(0)
    errors = np.abs(ours.mean(0) - location) / scale
    ratios = ours.std(0) / scale
    directions = np.random.default_rng(0).normal(size=(SLICES, len(names)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    ours, true = ((array - location) / scale @ directions.T for array in (ours, true))
    finite = bool(np.isfinite(ours).all())
    distances = [
        wasserstein_distance(a, b) if finite else math.inf
        for a, b in zip(ours.T, true.T, strict=True)
    ]
    worst = int(np.argmax(np.where(np.isfinite(errors), errors, np.inf)))
    judged = judge({**found, **unconstrained[0]}, {**reference.columns, **unconstrained[1]})
    kolmogorov = judged.kolmogorov
    return {
        "worst mean error": float(errors[worst]),
        "worst parameter": names[worst],
        "median mean error": float(np.median(errors)),
        "least sd ratio": float(ratios.min()),
        "greatest sd ratio": float(ratios.max()),
        "sliced Wasserstein": float(np.mean(distances)),
        "Kolmogorov": math.inf if kolmogorov is None else kolmogorov.value,
        "right": judged.right,
    }


def coordinates(
    program: Program, z: Floats, reference: Reference
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Unconstrained coordinates of draws and of the reference, of sites that are parameters.

    Others, as standardised effects, would be told by a reference's last digits. None where all
    coordinates are parameters themselves.
    """
    chosen = program.coordinates(reference.parameters)
    positions = program.positions(reference.parameters) if chosen else None
    if positions is None:
        return {}, {}
    known = list(reference.columns.values())
    chosen = [i for i in chosen if not any(np.array_equal(positions[:, i], each) for each in known)]
    ours, true = (
        {f"unconstrained {i + 1}": inside(values[:, i]) for i in chosen}
        for values in (z, positions)
    )
    return ours, true


def bound(program: Program, draws: Draws) -> dict[str, float]:
    """Negative evidence lower bound in nats, its standard error, and Pareto's k-hat.

    All are infinite where a density is not finite or is mostly rounding.
    """
    if draws.log_q is None:
        return {}
    ratios = program.log_density(draws.z) - draws.log_q
    if not (np.isfinite(ratios).all() and np.ptp(draws.log_q) < ROUNDED):
        return {"negative ELBO": math.inf, "its error": math.inf, "k-hat": math.inf}
    error = ratios.std() / math.sqrt(len(ratios))
    return {
        "negative ELBO": float(-ratios.mean()),
        "its error": float(error),
        "k-hat": pareto_shape(ratios),
    }


def pareto_shape(log_ratios: Floats) -> float:
    """k-hat of log importance ratios by the installed ArviZ.

    -inf where no weight is more than e times another: a tail that ends steeply is fitted by large
    shapes, which say nothing there.
    """
    if np.ptp(log_ratios) <= 1.0:
        return -math.inf
    if hasattr(az, "psislw"):
        khat = az.psislw(log_ratios.copy())[1]
    else:
        # It is made for leave-one-out and takes log likelihoods: log weights negated.
        khat = import_module("arviz_stats.base").array_stats.psislw(-log_ratios)[1]
    return math.inf if np.isnan(khat) else float(khat)


def along(program: Program, draws: Draws, reference: Reference | None) -> dict[str, Any]:
    """Figures at one look along a run."""
    found: dict[str, Any] = {}
    with np.errstate(all="ignore"):
        if reference is not None:
            both = coordinates(program, draws.z, reference)
            found |= against_reference(program.parameters(draws.z), reference, both)
        bounds = bound(program, draws)
    if bounds:
        found["negative ELBO"] = bounds["negative ELBO"]
    return found


def at_the_end(
    program: Program, draws: Draws, reference: Reference | None, start: Start | None = None
) -> dict[str, Any]:
    """Figures of the whole run's fit."""
    found: dict[str, Any] = {"draws": len(draws.z)}
    with np.errstate(all="ignore"):
        if reference is not None:
            both = coordinates(program, draws.z, reference)
            parameters = program.parameters(draws.z)
            found |= against_reference(parameters, reference, both)
            if draws.before is not None:
                columns = both[0] | scatter(parameters, rank=1)
                found["warm-up"] = draws.before
                found["bulk ESS"] = min(effective(each, draws.chains) for each in columns.values())
        found |= bound(program, draws)
    if not np.isfinite(draws.z).all():
        return found
    # Of chains evenly over all draws.
    rows = np.unique(np.linspace(0, len(draws.z) - 1, STEIN_DRAWS).astype(int))
    factor = stein_units(program, draws.z, reference, start)
    if factor is not None:
        z = draws.z[rows]
        found["KSD"] = in_units(z, program.value_and_score(z)[1], factor, draws.log_q is not None)
    return found


def effective(column: Floats, chains: int) -> float:
    """How many independent draws those of chains are worth in bulk, or draws that were resampled.

    The greatest number where nothing varies, which says nothing.
    """
    if not chains:
        return distinct(column)
    return float(az.ess(column.reshape(chains, -1))) if np.ptp(column) > 0.0 else math.inf


def in_units(z: Floats, score: Floats, factor: Floats, independent: bool) -> float:
    """Stein discrepancy of positions (n, D) with scores, in units of a root (D, D) of a covariance.

    The U-statistic of independent draws, the V-statistic of others; infinite where a score is not
    finite.
    """
    if not np.isfinite(score).all():
        return math.inf
    white = np.linalg.solve(factor, z.T).T
    statistic = "U" if independent else "V"
    return stein_discrepancy(white, score @ factor, statistic=statistic, metric=None).value


def stein_units(
    program: Program, z: Floats, reference: Reference | None, start: Start | None
) -> Floats | None:
    """A root (D, D) of the covariance in whose units Stein discrepancies are; None without one.

    All fits of a program have the same, so that they can be compared: that of the reference, else
    that of the start. In units of single coordinates a strongly correlated posterior's narrow
    directions would hide how far a fit is off along the wide ones.
    """
    positions = None if reference is None else program.positions(reference.parameters)
    with contextlib.suppress(np.linalg.LinAlgError):
        if positions is not None and len(positions) > program.dim:
            found: Floats = np.linalg.cholesky(np.atleast_2d(np.cov(positions.T)))
            return found
    if start is not None:
        return start.modes[0].root
    scales = z.std(0)
    return np.diag(scales) if (scales > 0).all() else None
