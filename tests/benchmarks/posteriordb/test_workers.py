"""Runs in worker processes: every one is recorded once, whatever becomes of its process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import records
from benchmarks.images.training import Book
from benchmarks.posteriordb import report
from benchmarks.posteriordb.database import Database
from benchmarks.posteriordb.workers import ONE_THREAD, Case, spread
from benchmarks.records import Record

CASES = [Case(name, "numpyro", "native") for name in ("one", "two", "three")]


def runs(book: Any, database: Any, case: Case, plan: Path) -> Iterator[Record]:
    """Three methods: the second fails, and of the case "two" ends its process the first time."""

    def work(record: Record) -> None:
        record.figures = {"threads": os.environ["OMP_NUM_THREADS"], "process": os.getpid()}
        if record.method == "B":
            if case.posterior == "two":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("no")

    for method in "ABC":
        record = Record("posteriordb", method, case.backend, case.posterior, 0)
        yield book.run(record, work, go_on_after=(ArithmeticError,))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a signal that ends a process")
def test_every_run_is_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ONE_THREAD:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "runs.jsonl"
    book = Book(path, retry_failed=True)
    steps = list(spread(CASES, 2, runs, book, "embedded", None))
    assert not set(ONE_THREAD) & set(os.environ)
    given = [record for record, _ in steps if record is not None]
    assert {case for _, case in steps if case is not None} == set(CASES)
    wanted = sorted((case.posterior, method) for case in CASES for method in "ABC")
    assert sorted((record.model, record.method) for record in given) == wanted
    written = records.read(path)
    assert sorted((record.model, record.method) for record in written) == wanted
    for record in written:
        assert record.failed == (record.method == "B")
        if record.method == "B":
            died = record.model == "two"
            assert str(record.error).startswith("ChildProcessError" if died else "Arithmetic")
        else:
            assert record.figures["threads"] == "1"
    # A case stays in its process; what is recorded well is not run again.
    for name in ("one", "three"):
        assert len({r.figures["process"] for r in written if r.model == name and r.figures}) == 1
    for retried in (False, True):
        book = Book(path, True, retried)
        again = [r for r, _ in spread(CASES[:1], 2, runs, book, "embedded", None) if r]
        assert [record.method for record in again] == ["A", "B", "C"]
        assert len(records.read(path)) == 9
        times = {record.method: record.time for record in written if record.model == "one"}
        assert ([record.time for record in again] == list(times.values())) != retried


def test_reports_do_not_depend_on_the_order_of_records(tmp_path: Path) -> None:
    settings = {"route": "native", "budget": 10, "start": "path", "noise": 0.0}
    found = [
        Record("posteriordb", method, "numpyro", name, seed, settings | {"rate": rate})
        for name in ("one", "two")
        for method, rate in (("ADVI, full", 0.1), ("ADVI, full", 0.01), ("GSM", None))
        for seed in (0, 1)
    ]
    for number, record in enumerate(found):
        record.figures = {"curves": {}, "negative ELBO": float(number % 5), "right": True}
    texts = []
    for order in (found, found[::-1]):
        report.write(order, Database.open("embedded"), tmp_path, pages=())
        texts.append((tmp_path / "posteriordb.md").read_text())
    assert texts[0] == texts[1] and texts[0].index("### one") < texts[0].index("### two")
