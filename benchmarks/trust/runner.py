"""Every chosen method on every chosen problem; runs that fail are results too."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import records
from benchmarks.images.training import Book
from benchmarks.posteriordb.database import DatabaseError
from benchmarks.records import Record
from benchmarks.trust import report
from benchmarks.trust.methods import METHODS
from benchmarks.trust.problems import Problem, all_problems, chosen
from benchmarks.trust.runs import Case, figures_of
from benchmarks.trust.worker import in_a_process

#: Share of a recipe's steps that a small run takes.
SMALL = 0.02


def run(arguments: argparse.Namespace) -> int:
    """Run the cases, write what they found and say so; the exit status."""
    try:
        problems = chosen(all_problems(arguments.database), arguments.problems)
    except (DatabaseError, LookupError) as error:
        print(f"trust: {error}", file=sys.stderr)
        return 2
    if arguments.list:
        rows = [{"problem": problem.name, "kind": problem.kind} for problem in problems]
        print(records.markdown_table(rows))
        return 0
    if arguments.check:
        from benchmarks.trust import checking

        return checking.run(arguments, problems)
    import torch

    # Models this small lose more to handing work between threads than they gain.
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    book = Book(arguments.out / "trust.jsonl", arguments.resume, arguments.retry_failed)
    found = []
    try:
        for case, problem in cases(arguments, problems):
            record = one(case, problem, arguments, book)
            found.append(record)
            print(said(record), flush=True)
    except KeyboardInterrupt:
        print("trust: interrupted; --resume goes on from here", file=sys.stderr)
        return 130
    finally:
        if book.path.exists():
            report.write(records.read(book.path), arguments.out)
    if not found:
        print("trust: nothing was run", file=sys.stderr)
        return 2
    print((arguments.out / "trust.md").read_text(encoding="utf-8"))
    return int(all(record.failed for record in found))


def cases(arguments: argparse.Namespace, problems: list[Problem]) -> Iterator[tuple[Case, Problem]]:
    """What is run, in order: what shares compiled programs together."""
    share = SMALL if arguments.small else 1.0
    for problem in problems:
        for backend in arguments.backends:
            for method in arguments.methods:
                if backend not in METHODS[method].backends:
                    continue
                for seed in range(arguments.seeds):
                    double = arguments.double
                    yield Case(problem.name, backend, method, seed, double, share), problem


def one(case: Case, problem: Problem, arguments: argparse.Namespace, book: Book) -> Record:
    """One run and its record, in the file then."""
    settings: dict[str, Any] = {
        "double": case.double,
        "share": case.share,
        "fresh": arguments.fresh,
    }
    settings["about"] = METHODS[case.method].about
    # Told of runs that fail, too.
    figures: dict[str, Any] = {"kind": problem.kind}
    figures["answerable"] = problem.proper and (case.double or problem.single)
    if problem.reach is not None:
        figures["reach"] = problem.reach()
    record = Record("trust", case.method, case.backend, case.problem, case.seed, settings, figures)

    def work(record: Record) -> None:
        if arguments.fresh:
            record.figures |= in_a_process(case, arguments.database, arguments.limit)
        else:
            record.figures |= figures_of(case, problem)

    return book.run(record, work, go_on_after=(Exception,))


def said(record: Record) -> str:
    """A run in one line."""
    what = f"{record.model}, {record.backend}, {record.method}, seed {record.seed}"
    if record.error is not None:
        return f"{what}: {record.error.splitlines()[0]}"
    figures = record.figures
    outcome = {True: "right", False: "wrong", None: "no right answer"}[figures["right"]]
    trust = "trusted" if figures["trusted"] else "not trusted"
    told = "; ".join([*figures.get("reasons", []), *figures["told"]])
    spent = f"{figures['evaluations']} evaluations, {figures['seconds to draws']:.1f} s"
    return f"{what}: {outcome}, {trust}, {spent}" + (f" ({told})" if told else "")
