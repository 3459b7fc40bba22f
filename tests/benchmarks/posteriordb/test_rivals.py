"""The README's table: methods that ended by themselves, where they were run on all posteriors."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import records
from benchmarks.pages import RESULTS
from benchmarks.posteriordb.report import rivals_table


def test_a_method_has_a_row_once_it_was_run_on_all_posteriors() -> None:
    kept = records.read(RESULTS / "trust.jsonl")
    runs = [run for run in kept if not run.settings["double"]]
    runs += records.read(RESULTS / "posteriordb.jsonl")
    single = [
        run
        for run in runs
        if (run.benchmark, run.method, run.backend, run.seed) == ("trust", "fit", "numpyro", 0)
        and run.model.startswith("embedded/")
    ]
    assert len(single) == 11
    given = {"right": True, "evaluations": 5}

    def doubled(number: int) -> list[records.Record]:
        return [replace(run, settings={"double": True}, figures=given) for run in single[:number]]

    before = rivals_table(runs)
    assert rivals_table([*runs, *doubled(10)]) == before
    after = rivals_table([*runs, *doubled(11)]).splitlines()
    cells = [cell.strip() for cell in after[2].split("|")[1:4]]
    assert cells == ["`fit`", "11", "median 5, most 5"]
    assert len(after) == len(before.splitlines())
    fewer = [run for run in runs if (run.method, run.model) != ("nutpie", "arK_simulated-arK")]
    assert "nutpie" in before and "nutpie" not in rivals_table(fewer)
