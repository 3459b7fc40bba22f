"""Whether a program is the one that a saved fit is of: its sites, its data and its density."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ppl_ext.chains.hamiltonian import Chains
from ppl_ext.errors import ArgumentError
from ppl_ext.fit.problem.problem import Problem
from ppl_ext.start.paths import Evaluate

#: Machine epsilons, as a share of the largest, by which a density of a saved fit may differ from
#: what it is now: other processors sum in another order.
ROUNDING = 1e4


def way_of(
    ways: Iterable[Problem],
    name: str,
    arguments: str,
    draws: Mapping[str, np.ndarray],
    entry_data: Mapping[str, np.ndarray],
) -> Problem:
    """The way to write the program that was saved, with this told of its entries.

    Raises
    ------
    ArgumentError
        The program or its arguments are others.
    """
    for problem in ways:
        target = problem.target
        names = (*target.layout.names, *target.parameter_sites)
        if set(names) != set(draws):
            raise _other(f"the sites {', '.join(names)}")
        if problem.digest() != arguments:
            raise _other("other numbers in its arguments")
        problem = problem.between(entry_data)
        if problem.name == name:
            return problem
    raise _other(f"one that cannot be written {name}")


def check_density(problem: Problem, chains: Chains, evaluate: Evaluate | None = None) -> None:
    """See that the density where chains are is what it was when they came there.

    ``evaluate`` are the problem's evaluations, counted.

    Raises
    ------
    ArgumentError
        It is another.
    """
    if chains.positions.shape[1] != problem.dim:
        raise _other(f"one of {problem.dim} unconstrained numbers")
    values, scores = (evaluate or problem.evaluate)(chains.positions)
    for own, saved in ((values, chains.values), (scores, chains.scores)):
        allowed = ROUNDING * problem.epsilon * (1.0 + np.abs(saved).max())
        if not np.abs(own - saved).max() <= allowed:
            raise _other("one with another density where the chains are")


def _other(found: str) -> ArgumentError:
    return ArgumentError(
        f"Expected the program and the arguments that were fitted, found {found}. Pass those, or "
        "none, for draws and verdict alone."
    )
