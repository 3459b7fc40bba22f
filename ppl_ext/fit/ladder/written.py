"""The ways to write a program, and where draws start in the best of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.ladder.centring import entry_data, neck, scales_of
from ppl_ext.fit.ladder.chain_figures import cost_far_out
from ppl_ext.fit.ladder.given_hyperparameters import has_room
from ppl_ext.fit.ladder.modes import LEAST_MASS
from ppl_ext.fit.problem.problem import Meter, Problem, timed
from ppl_ext.fit.verdict import facts, policy
from ppl_ext.start.find import find
from ppl_ext.start.paths import SpentError
from ppl_ext.start.start import Mode, Start
from ppl_ext.target.noncentred import difference, points_around
from ppl_ext.witnesses.slopes import check_slopes

#: Nats by which the bound on the evidence must be higher for another way to write the program to be
#: the better one: bounds are averages over draws, and have errors of their own.
BETTER = 0.5
#: Share of what is known of an entry, given its scale, that data have at most for the program as
#: written to have a neck there: too little for the entry to stay as wide where the scale is small.
FEW_DATA = 0.3


def look_at_slopes(problem: Problem, meter: Meter) -> None:
    """See that scores are the slopes of the log density, as far as the budget goes.

    Where the budget ends here nothing is said: the search for a start says what it would take.

    Raises
    ------
    ModelCheckError
        They are not.
    """
    with suppress(SpentError):
        check_slopes(meter.of(problem.evaluate), problem.dim, problem.epsilon)


def begin(
    written: Problem,
    others: Iterator[Problem],
    generator: np.random.Generator,
    meter: Meter,
    dropped: list[str],
    *,
    has_neck: bool = False,
) -> tuple[Problem, Start, facts.Program]:
    """The best way to write a program, where its draws start, and what is known of it there.

    It is not the program as written where that is known to have a neck.

    Raises
    ------
    ArgumentError
        The budget ends before.
    """
    try:
        problem, start = best_written(written, others, generator, meter, dropped, has_neck)
        return problem, start, known_of(problem, start, meter)
    except SpentError:
        raise ArgumentError(
            f"Expected a budget that buys a search for a start, found budget={meter.budget:,}, "
            f"which ended before. Searches take some 10 evaluations for each of the "
            f"{written.dim:,} unconstrained parameters and 100 besides, often more; corrected "
            f"draws take {policy.DRAWS:,} more, and chains {policy.LEAST_CHAINS:,} at least. Give "
            "a larger budget=."
        ) from None


def best_written(
    written: Problem,
    others: Iterator[Problem],
    generator: np.random.Generator,
    meter: Meter,
    dropped: list[str],
    has_neck: bool = False,
) -> tuple[Problem, Start]:
    """The way to write a program that has no neck, or whose Normal has the highest bound.

    Where data tell little of some entry of a site of latent scale, the program as written is narrow
    where the scale is small: then it is not searched. Nor is it where there is room for Normals
    given the scales: entries that are standardised given their data serve as well there. Else
    another way is taken where its bound on the evidence is higher, or where there is such a neck
    all the same, which a Normal at the mode does not see, or which is known (``has_neck``) from
    draws. Ways that fail, or have another density, are ``dropped`` with the reason, and the fit
    goes on without them. The program as it is written then knows of its other form.
    """
    chosen: tuple[Problem, Start] | None = None
    start: Start | None = None
    tried, scales = "non-centred", dict[str, list[int]]()
    try:
        for other in others:
            of_other = _start_of(other, generator, meter)
            first = of_other.modes[0]
            if reason := _difference(written, other, first, meter):
                dropped.append(f"Not fitted {other.name}: {reason}.")
                continue
            scales = scales_of(written, other, first)
            told = entry_data(written, other, first, meter)
            # Several modes may come of labels that can be exchanged. Their entries must then be
            # written alike, and not each by its own data.
            is_one = (of_other.weights > LEAST_MASS).sum() == 1
            number = sum(map(len, scales.values()))
            most = 1.0 if has_room(number, other.dim) else FEW_DATA
            chosen = other, of_other  # Also where the budget ends below.
            if not (has_neck or (is_one and told.least <= most)):
                start = _start_of(written, generator, meter)
                is_one = (start.weights > LEAST_MASS).sum() == 1
                mode = start.modes[0]
                is_better = first.log_mass > mode.log_mass + BETTER
                if not (is_better or policy.is_strained(neck(written, other.latents, mode, meter))):
                    chosen, written = None, replace(written, other_form=other)
                    continue
            tried = "partly non-centred"
            if is_one and told.entries and other.partly is not None:
                between = other.between(told.entries)
                found = _start_of(between, generator, meter)
                if reason := _difference(written, between, found.modes[0], meter):
                    dropped.append(f"Not fitted {between.name}: {reason}.")
                else:
                    chosen = between, found
    except SpentError:
        dropped.append(f"Not fitted with sites of latent scale {tried}: the budget ended before.")
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the fit.
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        dropped.append(f"Not fitted with sites of latent scale {tried}, which failed: {reason}")
    problem, start = chosen or (written, start or _start_of(written, generator, meter))
    at = [problem.coordinates[site].start + n for site, own in scales.items() for n in own]
    return replace(problem, scales=tuple(at)), start


def _difference(written: Problem, other: Problem, mode: Mode, meter: Meter) -> str:
    """How the density of another way to write a program differs; empty if it does not.

    Half of the positions lie around the mode, where the density of many rows is rounded least.
    """
    if written.maps is None or not other.latents:
        return ""

    one, two = meter.of(other.evaluate), meter.of(written.evaluate)
    places = [
        (other.coordinates[latent], written.coordinates[name], other.lengths.get(name, 1))
        for name, latent in other.latents.items()
    ]
    points = points_around(other.dim)
    points[::2] = mode.at(points[::2])
    return difference(
        points,
        lambda z: one(z)[0],
        lambda z: two(z)[0],
        partial(written.positions_of, other),
        places,
        written.epsilon,
    )


def known_of(problem: Problem, start: Start | None, meter: Meter) -> facts.Program:
    """What is known of a program, and of its density at a start."""
    has_engine = problem.approximate is not None
    if start is None:
        return facts.Program(problem.dim, problem.is_whole, 0.0, 0.0, has_engine=has_engine)
    value, each = timed(meter.of(problem.evaluate), start.mean, meter.clock)
    return facts.Program(
        problem.dim,
        problem.is_whole,
        each,
        problem.epsilon * abs(value),
        problem.epsilon * float(np.max(np.abs(start.mean) / start.modes[0].deviations)),
        problem.seconds_with_all_rows(each),
        has_engine,
        problem.strain,
        cost_far_out(problem),
    )


def _start_of(problem: Problem, generator: np.random.Generator, meter: Meter) -> Start:
    evaluate = meter.of(problem.evaluate)
    return find(evaluate, meter.points(problem), generator, problem.epsilon)


def words_of_form(problem: Problem) -> str:
    """How a program is written, where it is not as the user wrote it."""
    return "" if problem.name == "as written" else f"{problem.name}, "


def modes_in_words(number: int) -> str:
    """A number of modes in words."""
    return f"{number} mode{'s' * (number != 1)} found"
