"""``load_fit``: a saved fit is read, alone or with its program."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ppl_ext.batches.passes import passes_of
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.after.bound import check_density, way_of
from ppl_ext.fit.after.saved import from_tree, names_from_tree
from ppl_ext.fit.fit import Again, Fit
from ppl_ext.fit.ladder.climbed import Climbed
from ppl_ext.fit.problem.naming import Describe, named_ways, with_names
from ppl_ext.fit.problem.views import axis_names
from ppl_ext.fit.verdict.verdict import Verdict
from ppl_ext.running import state_files

#: Generators of random numbers that fits have, by their names in files.
GENERATORS = {"PCG64": np.random.PCG64}


def load_fit(
    path: str | os.PathLike[str],
    ways: Again | None,
    call: tuple[tuple[Any, ...], Mapping[str, Any]],
    batches: Iterable[Any] | None,
    given_names: tuple[Any, Any],
    describe: Describe,
) -> Fit:
    """See the packages' ``load_fit``; ``ways`` to write the program, or None without one.

    Names of axes are those that were saved where none are given; they, and ``describe``, are as in
    :func:`ppl_ext.fit.doors.fit_program`.
    """
    passes, names = passes_of(batches, call[0]), axis_names(*given_names)
    _, state = state_files.load(path, "fit", lambda array, _: array)
    with state_files.reading(path):
        verdict = Verdict.from_json(state["verdict"])
        draws, rest, chains = dict(state["draws"]), state["rest"], int(state["num_chains"])
        _check_draws(draws, state["gaps"], verdict)
        if ways is None:
            return Fit(draws, verdict, chains, unbound=rest)
        bit_generator = GENERATORS[rest["generator"]["bit_generator"]]()
        bit_generator.state = rest["generator"]
        generator = np.random.Generator(bit_generator)
        if rest.get("centred"):
            # Its entries were written by a number from 0 to 1 each, which is no such way any more.
            raise ArgumentError(
                "Expected a fit of this version, found an earlier one's of a program that is "
                "partly non-centred. Load it without the program, for draws and verdict alone, or "
                "fit anew."
            )
        seed, entry_data = rest["seed"], dict(rest.get("entry_data", {}))
        written = rest["way"], rest["arguments"]
        if not names.given and "names" in rest:
            names = names_from_tree(rest["names"])
        evidence = from_tree(rest["evidence"], {})
    # Not inside: the program runs, whose errors are no damage. Binding draws random numbers of its
    # own.
    first = np.random.default_rng(0)
    ways = partial(ways, names=names)
    found = named_ways(ways(*call, seed, first, passes=passes), describe, refuses=True)
    ways = with_names(ways, describe)
    problem = way_of(found, *written, draws, entry_data)
    again = ways if passes is None else None
    with state_files.reading(path):
        if evidence.program.is_whole and not problem.is_whole:
            problem = problem.with_all_rows(problem.starting_points)
        problem.evaluate.calls = rest["calls"]
        given: dict[str, Any] = {"evaluate": problem.evaluate}
        if problem.maps is not None:
            given |= dict(zip(("constrain", "unconstrain"), problem.maps, strict=True))
        sampled = from_tree(rest["sampled"], given)
        symmetry = from_tree(rest["symmetry"], given)
        if sampled is not None:
            check_density(problem, sampled.chains)
            problem.evaluate.calls = rest["calls"]
        positions = rest["positions"] if sampled is None else sampled.draws
        if sampled is not None and symmetry is not None:
            positions = symmetry.shuffled(positions)
        stages = from_tree(rest["stages"], {})
        climbed = Climbed(problem, positions, sampled, evidence, stages, symmetry)
        if sampled is None:
            return Fit(draws, verdict, chains, climbed, generator, seed, again=again)
        return Fit.of(climbed, generator, seed, again)


def _check_draws(draws: Mapping[str, np.ndarray], gaps: Sequence[str], verdict: Verdict) -> None:
    """See that draws that may be trusted are finite, but for sites that had ``gaps`` when saved."""
    finite = {name: np.isfinite(each).all() for name, each in draws.items() if name not in gaps}
    if verdict.trusted:
        state_files.check_finite(finite)
