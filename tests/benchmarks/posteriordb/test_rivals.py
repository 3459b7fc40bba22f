"""The README's table: methods that ended by themselves, where they were run on all posteriors."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import records
from benchmarks.pages import RESULTS
from benchmarks.posteriordb.report import rivals_table


def test_a_method_has_a_row_once_it_was_run_on_all_posteriors() -> None:
    kept = records.read(RESULTS / "trust.jsonl")
    runs = [run for run in kept if run.method not in ("nutpie",) and not run.settings["double"]]
    runs += records.read(RESULTS / "posteriordb.jsonl")
    single = [
        run
        for run in runs
        if (run.benchmark, run.method, run.backend) == ("trust", "fit", "numpyro")
        and run.model.startswith("embedded/")
    ]
    assert len(single) == 11
    given = {"right": True, "evaluations": 5}

    def doubled(method: str, number: int) -> list[records.Record]:
        own = [replace(run, method=method, settings={"double": True}) for run in single[:number]]
        return [replace(run, figures=given) for run in own]

    before = rivals_table(runs)
    assert rivals_table([*runs, *doubled("nutpie", 10), *doubled("fit", 10)]) == before
    after = rivals_table([*runs, *doubled("nutpie", 11), *doubled("fit", 11)]).splitlines()
    cells = [cell.strip() for cell in after[2].split("|")[1:4]]
    assert cells == ["`fit`", "11", "median 5, most 5"]
    assert after[3].split("|")[1].strip() == "nutpie" and len(after) == len(before.splitlines()) + 1
