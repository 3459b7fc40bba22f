"""Every chosen method on every chosen posterior; runs that fail are results too."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import importlib
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from benchmarks import records
from benchmarks.images.training import Book
from benchmarks.posteriordb import figures, leaderboard, programs, report
from benchmarks.posteriordb.database import Database, DatabaseError, Posterior
from benchmarks.posteriordb.methods import (
    APPENDIX,
    APPENDIX_POSTERIORS,
    DRAWS,
    EXACT,
    METHODS,
    QUICK,
    Backend,
    Draws,
    Method,
    Program,
    looks,
)
from benchmarks.posteriordb.workers import Case, spread
from benchmarks.records import Record
from ppl_ext.start.start import Start

#: Draws of a run's parameters that are kept for the plots.
KEPT_DRAWS = 1000
#: Runs and levels of noise of the paper's appendix B.
APPENDIX_SEEDS, APPENDIX_NOISE = 5, (0.0, 0.1, 1.0, 10.0)


@dataclass(frozen=True)
class Plan:
    """What the command line asks for.

    Attributes
    ----------
    out : path
    posteriors : tuple of str
    methods : dict
    backends, routes : tuples of str
    budget : int
        Score evaluations of a run.
    seconds : float
        After which a run ends at its next look.
    seeds : int
    start : {"path", "host"}
    noise : tuple of float
        Levels.
    dense_limit : int
        Dimensions above which guides with a dense covariance are not run.
    """

    out: Path
    posteriors: tuple[str, ...]
    methods: dict[str, Method]
    backends: tuple[str, ...]
    routes: tuple[str, ...]
    budget: int
    seconds: float
    seeds: int
    start: str
    noise: tuple[float, ...]
    dense_limit: int

    @classmethod
    def of(cls, arguments: argparse.Namespace, database: Database) -> Plan:
        """The plan of the command line's arguments.

        Raises
        ------
        DatabaseError
            A pattern fits no posterior of the database.
        """
        appendix = arguments.appendix_b
        named = arguments.posteriors or (APPENDIX_POSTERIORS if appendix else None)
        names = arguments.methods or (APPENDIX if appendix else () if arguments.method else QUICK)
        names = tuple(METHODS) if "all" in names else names
        own = {name: Method(name, "own") for name in arguments.method}
        noise = arguments.noise or (APPENDIX_NOISE if appendix else (0.0,))
        backends = ("numpyro", "pyro") if arguments.backend == "both" else (arguments.backend,)
        routes = ("native", "stan") if arguments.route == "both" else (arguments.route,)
        seeds = arguments.seeds
        return cls(
            arguments.out,
            chosen(database, named),
            {name: METHODS[name] for name in names} | own,
            backends,
            routes,
            arguments.budget,
            math.inf if arguments.seconds is None else arguments.seconds,
            max(seeds, APPENDIX_SEEDS) if appendix and seeds == 1 else seeds,
            arguments.start,
            tuple(noise),
            arguments.dense_limit,
        )


def chosen(database: Database, patterns: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the posteriors that fit one of the patterns.

    Raises
    ------
    DatabaseError
        A pattern fits none.
    """
    if patterns is None:
        return tuple(database.names())
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = fnmatch.filter(database.names(), pattern)
        if not matching:
            # Its message names what is near.
            database[pattern]
        found |= dict.fromkeys(matching)
    return tuple(found)


def run(arguments: argparse.Namespace) -> int:
    """Run the plan; the exit status is 2 for what cannot be begun, 1 where every run failed."""
    try:
        database = Database.open(arguments.database)
        plan = Plan.of(arguments, database)
    except DatabaseError as error:
        print(f"posteriordb: {error}", file=sys.stderr)
        return 2
    if arguments.list:
        print(listing(database, plan.posteriors))
        return 0
    plan.out.mkdir(parents=True, exist_ok=True)
    book = Book(plan.out / "posteriordb.jsonl", arguments.resume, arguments.retry_failed)
    cases = cases_of(plan)
    if min(arguments.jobs, len(cases)) > 1:
        steps = spread(cases, arguments.jobs, compare, book, arguments.database, plan)
    else:
        steps = _one_by_one(cases, book, database, plan)
    runs: list[Record] = []
    left = Counter(case.posterior for case in cases)
    interrupted = False
    # With all that earlier commands have recorded and this one keeps.
    progress = tqdm(total=number_of_runs(plan), desc="posteriordb", file=sys.stderr)
    with progress, contextlib.closing(steps):
        try:
            for record, case in steps:
                if record is not None:
                    runs.append(record)
                    progress.set_postfix_str(f"{record.model}, {record.method}")
                    progress.update()
                if case is not None:
                    left[case.posterior] -= 1
                    if not left[case.posterior] and book.path.exists():
                        found = records.read(book.path)
                        report.write(found, database, plan.out, {case.posterior}, plots=False)
        except KeyboardInterrupt:
            interrupted = True
    if book.path.exists():
        found = records.read(book.path)
        report.write(found, database, plan.out, pages=())
        if leaderboard.judged(found):
            records.write_text(plan.out / "leaderboard.html", leaderboard.page(found))
    if interrupted:
        print("posteriordb: interrupted; --resume goes on from here", file=sys.stderr)
        return 130
    if not runs:
        print("posteriordb: nothing was run", file=sys.stderr)
        return 2
    print((plan.out / "posteriordb.md").read_text(encoding="utf-8"))
    return int(all(record.failed for record in runs))


def cases_of(plan: Plan) -> list[Case]:
    """All combinations of a posterior, a backend and a route."""
    return [
        Case(name, backend, route)
        for name in plan.posteriors
        for backend in plan.backends
        for route in plan.routes
    ]


def _one_by_one(
    cases: Sequence[Case], book: Book, database: Database, plan: Plan
) -> Generator[tuple[Record | None, Case | None]]:
    """Records and finished cases, as :func:`spread` gives them, in this process."""
    for case in cases:
        for record in compare(book, database, case, plan):
            yield record, None
        yield None, case


def number_of_runs(plan: Plan) -> int:
    """How many runs a plan has, one for each step size that is tried."""
    each = sum(
        len(method.rates)
        for backend in plan.backends
        for method in plan.methods.values()
        if backend in method.backends
    )
    return each * len(plan.posteriors) * len(plan.routes) * plan.seeds * len(plan.noise)


def listing(database: Database, names: Sequence[str]) -> str:
    """A table of posteriors: dimensions, reference draws, native and Stan programs."""
    native = {backend: programs.programs(backend) for backend in ("numpyro", "pyro")}
    rows = []
    for name in names:
        posterior = database[name]
        program = posterior.stan_program()
        rows.append(
            {
                "posterior": name,
                "parameters": sum(posterior.dimensions.values()),
                "reference": "yes" if posterior.reference_draws() is not None else "no",
                "NumPyro": "yes" if posterior.model_name in native["numpyro"] else "no",
                "Pyro": "yes" if posterior.model_name in native["pyro"] else "no",
                "Stan": "yes" if program is not None else "no",
            }
        )
    return f"{database.where}\n\n{records.markdown_table(rows)}"


def compare(book: Book, database: Database, case: Case, plan: Plan) -> Iterator[Record]:
    """Records of all methods on one posterior."""
    own = _Case(book, database[case.posterior], case.backend, case.route, plan)
    try:
        for noise in plan.noise:
            for name, method in plan.methods.items():
                if case.backend not in method.backends:
                    continue
                for seed in range(plan.seeds):
                    for rate in method.rates:
                        yield own.run(name, method, seed, rate, noise)
    finally:
        own.release()


def digest(data: Mapping[str, Any], draws: Mapping[str, Any] | None) -> str:
    """What tells a posterior from one of the same name in another database, or its older data."""
    found = hashlib.sha256()
    for part in (data, draws or {}):
        for name, value in sorted(part.items()):
            found.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return found.hexdigest()[:16]


class _Case:
    """Runs on one posterior with one backend by one route, which share what is compiled."""

    def __init__(
        self, book: Book, posterior: Posterior, backend: str, route: str, plan: Plan
    ) -> None:
        self._book, self._posterior, self._plan = book, posterior, plan
        self._name, self._route = backend, "native" if route == "auto" else route
        self._backend: Backend = importlib.import_module(f"benchmarks.posteriordb.{backend}_fits")
        self._made: Program | None = None
        self._failure: Exception | None = None
        self._reference: figures.Reference | None = None
        self._starts: dict[int, Start] = {}
        self._fitter: tuple[Any, Any] = (None, None)
        # Stated by every run, so that a posterior on which all fail is missed in no count.
        self._judged = posterior.reference_name is not None
        try:
            native = posterior.model_name in programs.programs(backend)
            if route == "auto" and not native and posterior.stan_program() is not None:
                self._route = "stan"
            self._data, draws = posterior.data(), posterior.reference_draws()
        except DatabaseError as error:
            # Every run will fail of it.
            self._fails(error)
            self._digest = "unreadable"
            return
        self._judged = draws is not None
        self._digest = digest(self._data, draws)
        self._reference = None if draws is None else figures.Reference.of(draws)

    def _fails(self, error: Exception) -> None:
        """Keep what every run will fail of, and say it once."""
        self._failure = error
        tqdm.write(f"{self._posterior.name}: {type(error).__name__}: {error}", sys.stderr)

    def run(self, name: str, method: Method, seed: int, rate: float | None, noise: float) -> Record:
        """One run, and its record."""
        plan = self._plan
        settings = {
            "route": self._route,
            "rate": rate,
            "budget": plan.budget,
            "seconds": plan.seconds if math.isfinite(plan.seconds) else None,
            "start": plan.start,
            "noise": noise,
            "posterior": self._digest,
            "options": {key: str(value) for key, value in method.options.items()},
        }
        reason = self._too_large(method)
        if reason is not None:
            # Told apart from the run itself, which a higher limit makes.
            settings["dense limit"] = plan.dense_limit
        stated = {report.JUDGED: self._judged}
        record = Record(
            "posteriordb", name, self._name, self._posterior.name, seed, settings, stated
        )

        def work(record: Record) -> None:
            if reason is not None:
                record.figures |= {"dimension": self._program().dim, "not run": reason}
            else:
                self._fit(record, method, noise)

        with warnings.catch_warnings():
            # Of hosts about their own internals; what goes wrong is in the figures.
            warnings.simplefilter("ignore")
            return self._book.run(record, work, go_on_after=(Exception,))

    def _too_large(self, method: Method) -> str | None:
        """Why a method is not run here, None if it is."""
        limit, parameters = self._plan.dense_limit, self._posterior.dimensions
        # Programs have no more dimensions than parameters: most need not be made to be told.
        if not method.dense or 0 < sum(parameters.values()) <= limit:
            return None
        dim = 0
        # Where it cannot be made, the run will say so.
        with contextlib.suppress(Exception):
            dim = self._program().dim
        if dim <= limit:
            return None
        return f"not run: D={dim} is above {limit} for a dense covariance (--dense-limit)"

    def release(self) -> None:
        """Let go of what was compiled, a gigabyte or so: the next case shares nothing of it."""
        self._made, self._fitter = None, (None, None)
        self._backend.release()

    def _program(self) -> Program:
        """The program, made once; an error in it is an error of every run."""
        if self._failure is not None:
            raise self._failure
        if self._made is None:
            try:
                self._made = self._make()
            except Exception as error:
                self._fails(error)
                raise
        return self._made

    def _make(self) -> Program:
        self._backend.configure()
        posterior, data = self._posterior, self._data
        if self._route == "native":
            if posterior.model_name not in programs.programs(self._name):
                other = "--route stan takes" if posterior.stan_program() else "nor is there"
                raise DatabaseError(
                    f"expected a native program of {posterior.model_name} in {self._name}, found "
                    f"none; {other} a Stan program"
                )
            try:
                return self._backend.native(posterior.model_name, data)
            except KeyError as error:
                raise DatabaseError(
                    f"the data of {posterior.name} do not fit its program: expected the entry "
                    f"{error}, found {', '.join(sorted(data))}"
                ) from error
        path = posterior.stan_program()
        if path is None:
            raise DatabaseError(
                f"expected a Stan program of {posterior.model_name} in {posterior.name}'s "
                "database or among the embedded ones, found none; use --route native"
            )
        return self._backend.stan(posterior.model_name, str(path), data)

    def _start(self, seed: int) -> Start | None:
        if self._plan.start == "host":
            return None
        if seed not in self._starts:
            self._starts[seed] = self._program().start(seed)
        return self._starts[seed]

    def _fit(self, record: Record, method: Method, noise: float) -> None:
        program, plan = self._program(), self._plan
        seed = record.seed or 0
        start = self._start(seed) if method.family not in EXACT else None
        key = (record.method, noise)
        if self._fitter[0] != key:
            made = self._backend.fitter(program, method, plan.budget, noise)
            self._fitter = (key, made)
        curves: dict[str, list[Any]] = {}
        last: list[Draws] = []

        def look(evaluations: int, seconds: float, draws: Any) -> bool:
            found = {"evaluations": evaluations, "seconds": seconds}
            drawn = draws(DRAWS)
            found |= figures.along(program, drawn, self._reference)
            for name, value in found.items():
                curves.setdefault(name, []).append(value)
            last[:] = [drawn]
            return seconds > plan.seconds

        began = time.perf_counter()
        self._fitter[1].fit(seed, record.settings["rate"], start, looks(plan.budget), look)
        if not last:
            spent = 0 if start is None else start.evaluations
            raise ArithmeticError(
                f"the budget of {plan.budget} score evaluations was spent before there was a draw "
                f"(the start took {spent}); raise --budget"
            )
        record.figures |= {"dimension": program.dim, "curves": curves}
        record.figures |= figures.at_the_end(program, last[0], self._reference, start)
        record.figures["evaluations"] = curves["evaluations"][-1]
        record.figures["step seconds"] = curves["seconds"][-1]
        record.figures["whole seconds"] = time.perf_counter() - began
        record.figures["start evaluations"] = 0 if start is None else start.evaluations
        self._keep(record, program, last[0])

    def _keep(self, record: Record, program: Program, draws: Draws) -> None:
        """Save some draws of the parameters for the plots."""
        if not np.isfinite(draws.z).all():
            return
        rows = np.unique(np.linspace(0, len(draws.z) - 1, KEPT_DRAWS).astype(int))
        path = report.draws_path(self._plan.out, record)
        path.parent.mkdir(parents=True, exist_ok=True)
        values: dict[str, Any] = program.parameters(draws.z[rows])
        np.savez_compressed(path, **values)
