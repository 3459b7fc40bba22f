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
#: Where the program could stay as written it is partly non-centred only if data have no more than
#: this share of what is known of some entry: too little for that entry to stay centred.
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
    """The way to write a program whose Normal has the highest bound on the evidence.

    Another way is taken as well where sites of latent scale make a narrow neck of the program as it
    is written: a Normal at the mode does not see it, and it may be known (``has_neck``) from draws.
    Ways that fail, or have another density, are ``dropped`` with the reason, and the fit goes on
    without them. The program as it is written then knows of its other form.
    """
    problem, start = written, _start_of(written, generator, meter)
    other_form, tried, scales = written.other_form, "non-centred", dict[str, list[int]]()
    try:
        for other in others:
            of_other = _start_of(other, generator, meter)
            if told := _difference(written, other, of_other.modes[0], meter):
                dropped.append(f"Not fitted {other.name}: {told}.")
                continue
            other_form, scales = other, scales_of(written, other, of_other.modes[0])
            if problem is not written:
                continue
            is_better = of_other.modes[0].log_mass > start.modes[0].log_mass + BETTER
            # Several modes may come of labels that can be exchanged. Their entries must then be
            # written alike, and not each by its own data.
            may_differ = (start.weights > LEAST_MASS).sum() == 1
            first = start.modes[0]
            has_neck = (
                has_neck
                or is_better
                or policy.is_strained(neck(written, other.latents, first, meter))
            )
            if has_neck:
                problem, start, most = other, of_other, 1.0
            else:
                most = FEW_DATA
            tried = "partly non-centred"
            if may_differ:
                found = _partly(written, other, of_other, most, generator, meter, dropped)
                problem, start = found or (problem, start)
    except SpentError:
        dropped.append(f"Not fitted with sites of latent scale {tried}: the budget ended before.")
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the fit.
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        dropped.append(f"Not fitted with sites of latent scale {tried}, which failed: {reason}")
    if problem is written and other_form is not None:
        problem = replace(written, other_form=other_form)
    at = [problem.coordinates[site].start + n for site, own in scales.items() for n in own]
    return replace(problem, scales=tuple(at)), start


def _partly(
    written: Problem,
    other: Problem,
    start: Start,
    most: float,
    generator: np.random.Generator,
    meter: Meter,
    dropped: list[str],
) -> tuple[Problem, Start] | None:
    """The way with entries standardised given their data, where these tell much of some entries.

    ``start`` is that of the non-centred way, and ``most`` the largest share that data have of what
    is known of some entry for this way to be worth a third program.
    """
    told = entry_data(written, other, start.modes[0], meter)
    if not told.least <= most or other.partly is None:
        return None
    between = other.between(told.entries)
    found = _start_of(between, generator, meter)
    if reason := _difference(written, between, found.modes[0], meter):
        dropped.append(f"Not fitted {between.name}: {reason}.")
        return None
    return between, found


def _difference(written: Problem, other: Problem, mode: Mode, meter: Meter) -> str:
    """How the density of another way to write a program differs; empty if it does not.

    Half of the positions lie around the mode, where the density of many rows is rounded least.
    """
    if written.maps is None or not other.latents:
        return ""

    one, two = meter.of(other.evaluate), meter.of(written.evaluate)
    places = [
        (other.coordinates[o], written.coordinates[name]) for name, o in other.latents.items()
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
