"""Figures of chains: of the sites as they are written, and of the coordinates that chains have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float

from ppl_ext.chains.sampler import Window
from ppl_ext.chains.symmetry import Symmetry, ordered_values
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.fit.verdict import agreement, facts
from ppl_ext.fit.verdict.figures import label
from ppl_ext.start.paths import Evaluate
from ppl_ext.statistics.convergence import Convergence, convergence

#: Draws beyond this power of the largest number there is count as without bound. Squares, which
#: densities have, overflow beyond the power of a half.
ENDLESS = 0.4
#: Draws below this power of the smallest number there is are next to 0, and share of the draws next
#: to an edge from which on some mass is beyond: a tenth is that near, where all logarithms are
#: alike likely.
SMALLEST, SATURATED = 0.9, 0.05
#: Ways out of the draws along which the density is looked at.
WAYS = 16
#: Ways along which it has to be a number for them to tell anything.
FEWEST = 4
#: The two places on each way, in distances of its draw from the median. Both are farther out than
#: any prior with units is wide, and not so far that squares overflow in single precision.
NEAR, FAR = 2.0**30, 2.0**40
#: Places on each way at which the density is evaluated: the draw, two far out, two for the level.
PLACES = 5
#: Distance at which the level of a density is read off, and again at twice of it. Log Jacobians are
#: not yet so large there that single precision loses the level beside them.
LEVEL = 2.0**10


def chained_of(
    problem: Problem,
    window: Window,
    coordinates: Convergence,
    symmetry: Symmetry | None,
    wanted: facts.Wanted,
) -> facts.Chained:
    """Figures of a window, whose unconstrained coordinates have these.

    The sites as they are written are judged. A coordinate may have a long tail that is none of its
    site's: the logarithm of a scale that may be 0 has one. Where an error of standard deviations is
    asked for, it leaves out those of tails alone that are surely heavy.
    """
    names, numbers, columns = _columns(problem, window.draws, symmetry)
    found = deviations = convergence(columns)
    if wanted.deviation_error is not None:
        deviations = replace(found, is_heavy=found.is_surely_heavy)
    r_hat = float(found.r_hat.max())
    worst = found.r_hat.argmax() if r_hat > agreement.R_HAT else found.ess_bulk.argmin()
    slow = int(coordinates.r_hat.argmax())
    sites = problem.coordinates.items()
    worst_site = names[int(worst)]
    return facts.Chained(
        r_hat,
        float(found.ess_bulk.min()),
        float(found.ess_tail.min()),
        deviations.worst_deviation,
        tuple(dict.fromkeys(names[int(number)] for number in np.flatnonzero(found.is_heavy))),
        float(window.divergent.mean()),
        window.stuck,
        found.is_adrift,
        worst_site,
        has_other_form=problem.other_form is not None and worst_site in problem.other_form.latents,
        improper=problem.target.layout.improper,
        coordinate_r_hat=float(coordinates.r_hat[slow]),
        coordinate_site=next(name for name, at in sites if at.start <= slow < at.stop),
        draws=columns.shape[0] * columns.shape[1],
        deviation_number=numbers[deviations.worst_deviation_at],
    )


def _columns(
    problem: Problem, draws: Float[np.ndarray, "N M D"], symmetry: Symmetry | None
) -> tuple[list[str], list[str], Float[np.ndarray, "N M K"]]:
    """The site of every entry that varies, the entry's own name, and its draws."""
    number, chains, dim = draws.shape
    values = problem.numbers(draws.reshape(-1, dim))
    if symmetry is not None:
        values = ordered_values(symmetry.as_written, values)
    names, numbers, columns = list[str](), list[str](), []
    for latent, at in problem.coordinates.items():
        name = _written(problem, latent)
        flat = values[name].reshape(number, chains, -1)
        # Constants, such as the corner of a Cholesky factor, have no figures.
        moving = np.flatnonzero(_varies(flat))
        if len(moving) == 0 and at.stop > at.start and not _varies(draws[:, :, at]).any():
            # No constant, but draws of which rounding has made one number.
            moving = np.arange(flat.shape[2])
        names += [name] * len(moving)
        numbers += [label(name, values[name].shape[1:], int(place)) for place in moving]
        columns.append(flat[:, :, moving])
    if not names:
        # All sites are at an edge of their supports to the last digit, and only their coordinates
        # can be judged.
        sites = problem.coordinates.items()
        names = numbers = [name for name, at in sites for _ in range(at.start, at.stop)]
        columns = [draws]
    return names, numbers, np.concatenate(columns, axis=2)


def _varies(columns: Float[np.ndarray, "N M K"]) -> Bool[np.ndarray, " K"]:
    return np.ptp(columns, axis=(0, 1)) > 0.0


def _written(problem: Problem, name: str) -> str:
    """The site as written that a latent site stands for, or the site itself."""
    return next((site for site, latent in problem.latents.items() if latent == name), name)


def endless(values: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Sites whose draws come near the largest numbers there are, where squares overflow."""
    return tuple(
        name
        for name, each in values.items()
        if each.dtype.kind == "f"
        # Stan's generated quantities may be NaN in some draws, and no other values are.
        and not np.nanmax(np.abs(each), initial=0.0) < np.finfo(each.dtype).max ** ENDLESS
    )


def saturated(values: Mapping[str, np.ndarray], families: Mapping[str, str]) -> tuple[str, ...]:
    """Sites with draws where the numbers of their precision end, next to an edge at 0 or at 1.

    A density that rises towards such an edge has some of its mass beyond them, or has no end there.
    ``families`` are those of the sites, see :func:`~ppl_ext.target.families.family_of`.
    """
    return tuple(
        name for name, each in values.items() if _is_saturated(each, families.get(name, ""))
    )


def _is_saturated(draws: np.ndarray, family: str) -> bool:
    if draws.dtype.kind != "f":
        return False
    limits, is_simplex = np.finfo(draws.dtype), family.endswith("Simplex")
    near = np.zeros((2, *draws.shape), bool)
    if is_simplex or " from 0" in family:
        near[0] = draws < limits.tiny**SMALLEST
    if is_simplex or family.endswith(" from 0 to 1"):
        near[1] = draws > 1.0 - 2.0 * limits.eps
    return bool((near.mean(1) > SATURATED).any())


def cost_far_out(problem: Problem) -> int:
    """Evaluations that :func:`flat_far_out` takes at most, which chains have to leave."""
    return PLACES * WAYS if problem.target.layout.improper else 0


def flat_far_out(
    problem: Problem, evaluate: Evaluate, draws: Float[np.ndarray, "S D"]
) -> tuple[str, ...]:
    """Sites with an improper prior along which the density does not fall far out.

    A density that can be normalised falls faster than 1 over the distance along almost every way
    out. Draws do not show whether it does: what is far out may lie many nats below them. So the
    density is evaluated far out, in both directions of each way, since it may be flat on one side
    only. Sites whose values stay within bounds, such as points of a simplex, have no way out.

    A density that stays level far out counts only where that level is high enough for all the
    numbers that this precision has to hold some mass at it. A lower one comes of rounding, as where
    a probability is held away from 0. The level is that of the density of the sites: on
    unconstrained space a site's Jacobian grows in proportion to the distance, and is taken off.
    """
    improper = problem.target.layout.improper
    sites = {name: at for name, at in problem.coordinates.items() if name in improper}
    if not sites:
        return ()
    some = draws[np.linspace(0, len(draws) - 1, WAYS // 2).astype(int)]
    away = some - np.median(draws, axis=0)
    some, away = np.concatenate([some, some]), np.concatenate([away, -away])
    moves = np.zeros_like(some)
    with np.errstate(all="ignore"):
        ends = [problem.numbers(some + times * away) for times in (NEAR, FAR)]
        for name in list(sites):
            near, far = (each[_written(problem, name)] for each in ends)
            if np.isfinite(far).all() and np.allclose(near, far):
                del sites[name]
            else:
                moves[:, sites[name]] = away[:, sites[name]]
        if not sites:
            return ()
        here, near, far = (evaluate(some + times * moves)[0] for times in (0.0, NEAR, FAR))
        # A number that cannot be computed there says nothing.
        falls = near - far >= math.log(FAR / NEAR)
    precision = np.finfo(np.float32 if problem.epsilon > np.finfo(np.float64).eps else np.float64)
    volume = math.log(precision.max) * sum(at.stop - at.start for at in sites.values())
    known = ~np.isnan(near) & ~np.isnan(far)
    flat = known & np.isfinite(near) & (far < np.inf) & ~falls
    if flat.any():
        with np.errstate(all="ignore"):
            one, two = (evaluate(some + times * moves)[0] for times in (LEVEL, 2.0 * LEVEL))
            level = 2.0 * one - two
        level = np.where(np.isnan(level), far, level)
        flat &= np.minimum(level, far) > np.median(here) - volume
    return tuple(sites) if 2 * flat.sum() >= known.sum() >= FEWEST else ()
