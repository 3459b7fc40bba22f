"""Every problem of the benchmark: planted ones, the tests' models, posteriors with references."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.posteriordb import programs
from benchmarks.posteriordb.database import Database, Posterior, scatter
from benchmarks.posteriordb.programs.sites import SiteMap
from benchmarks.trust.pathologies import PATHOLOGIES
from benchmarks.trust.pathology import Draws, Pathology
from benchmarks.trust.target import Floats, Target
from benchmarks.trust.zoo import EXACT, zoo_program

#: Exact draws that a fit is held against, fewer where there are many dimensions.
EXACT_DRAWS, FEWER_DRAWS, MANY = 20_000, 8_000, 100


@dataclass(frozen=True)
class Program:
    """A problem in one host.

    Attributes
    ----------
    model : callable
    args : tuple
    kwargs : dict
    """

    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """A posterior whose draws can be judged, or one that has no right answer.

    Attributes
    ----------
    name : str
        ``source/name``.
    kind : str
        What it is, or what is hard about it.
    program : callable
        From a host's name to the :class:`Program`; call it in the precision that is meant.
    reference : callable or None
        Exact draws, or such as are as good, by parameter; None where the posterior is not proper.
    sites : SiteMap
        How latent sites and parameters go together.
    single : bool
        Whether single precision can hold the right answer.
    reach : callable or None
        See :class:`Pathology`.
    """

    name: str
    kind: str
    program: Callable[[str], Program]
    reference: Callable[[], Draws] | None
    sites: SiteMap = field(default_factory=SiteMap)
    single: bool = True
    reach: Callable[[], float] | None = None

    @property
    def proper(self) -> bool:
        """Whether there is a right answer."""
        return self.reference is not None

    @property
    def source(self) -> str:
        """Where it comes from."""
        return self.name.partition("/")[0]

    def columns(self, target: Target, draws: Mapping[str, NDArray[Any]]) -> dict[str, Floats]:
        """Every scalar marginal of draws by latent site: parameters, and unconstrained space."""
        return columns_of(target, self.sites, self.sites.parameters(dict(draws)), draws)

    def reference_columns(self, target: Target) -> dict[str, Floats]:
        """The same of the reference."""
        assert self.reference is not None
        parameters = self.reference()
        return columns_of(target, self.sites, parameters, self.sites.sites(parameters))


def columns_of(
    target: Target,
    sites: SiteMap,
    parameters: Mapping[str, NDArray[Any]],
    draws: Mapping[str, NDArray[Any]],
) -> dict[str, Floats]:
    """Scalars of parameters, and the unconstrained coordinates of sites that are parameters.

    Sites that are not, as standardised effects, would be told by a reference's last digits.
    """
    wanted = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
    found = scatter(wanted, rank=1)
    for name, column in target.unconstrained_columns(draws).items():
        if name.partition("[")[0] in wanted:
            same = (np.array_equal(column, known) for known in found.values())
            if not any(same):
                found[f"unconstrained {name}"] = column
    return found


def of_pathology(problem: Pathology) -> Problem:
    """A planted one."""
    number = EXACT_DRAWS if problem.dim <= MANY else FEWER_DRAWS
    return Problem(
        f"planted/{problem.name}",
        problem.kind,
        lambda backend: Program(problem.model(backend), problem.args(backend)),
        functools.partial(problem.draws, number, 1_000) if problem.proper else None,
        single=problem.single,
        reach=problem.reach,
    )


def of_zoo(name: str) -> Problem:
    """One of the tests' models."""

    def program(backend: str) -> Program:
        return Program(*zoo_program(name, backend))

    return Problem(
        f"zoo/{name}", "zoo", program, lambda: EXACT[name](EXACT_DRAWS, np.random.default_rng(23))
    )


def of_posterior(source: str, posterior: Posterior) -> Problem:
    """A posterior of a database, by its native program."""

    def program(backend: str) -> Program:
        # Some programs compute with NumPy from their data, which arguments would not let them.
        model = programs.programs(backend)[posterior.model_name]
        return Program(functools.partial(model, posterior.data()))

    def reference() -> Draws:
        draws = posterior.reference_draws()
        assert draws is not None
        return {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}

    sites = programs.site_map(posterior.model_name)
    return Problem(f"{source}/{posterior.name}", source, program, reference, sites)


def of_database(source: str, where: str | None) -> list[Problem]:
    """The posteriors of a database that have reference draws."""
    database = Database.open(where)
    found = (database[name] for name in database.names())
    return [
        of_posterior(source, posterior)
        for posterior in found
        if posterior.reference_draws() is not None
    ]


def all_problems(database: str | None = None) -> dict[str, Problem]:
    """All by name; ``database`` is where posteriordb lies, and without one there is the embedded.

    Raises
    ------
    DatabaseError
        There is no database there.
    """
    found = [of_pathology(problem) for problem in PATHOLOGIES.values()]
    found += [of_zoo(name) for name in EXACT]
    found += of_database("embedded", "embedded")
    if Database.open(database).where != Database.open("embedded").where:
        found += of_database("posteriordb", database)
    return {problem.name: problem for problem in found}


def chosen(problems: Mapping[str, Problem], patterns: Sequence[str] | None) -> list[Problem]:
    """Those whose names, with or without their source, fit one of the patterns; None is all.

    Raises
    ------
    LookupError
        A pattern fits none.
    """
    if patterns is None:
        return list(problems.values())
    found: dict[str, Problem] = {}
    for pattern in patterns:
        matching = {
            name: problem
            for name, problem in problems.items()
            if fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name.split("/", 1)[1], pattern)
        }
        if not matching:
            raise LookupError(f"Expected the name of a problem or a pattern, found {pattern!r}.")
        found |= matching
    return list(found.values())
