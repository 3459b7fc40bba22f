"""The queue of studies: what ended is not run again, what was stopped loses nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import queue, records
from benchmarks.queue import PARTS, Part, Queue

#: In place of a study: a record each quarter of a second, four in all, after those that are there.
STUDY = """
import sys, time
from pathlib import Path
from benchmarks import records
path = Path(sys.argv[sys.argv.index("--out") + 1]) / "study.jsonl"
done = len(records.read(path)) if path.exists() else 0
for seed in range(done, 4):
    time.sleep(0.25)
    if "broken" in sys.argv:
        raise SystemExit("broken: no such set")
    records.append(path, records.Record("study", "method", "numpyro", sys.argv[1], seed))
"""
#: Runs a queue over three such parts, as the command does.
# What a shell starts in the background ignores Ctrl-C.
QUEUE = """
import signal
import sys
from pathlib import Path
from tests.benchmarks.test_queue import small_queue
signal.signal(signal.SIGINT, signal.default_int_handler)
small_queue(Path(sys.argv[1]), "one", "two", "three").run(1.0, 2)
"""


class Small(Part):
    """A part whose command is the study above."""

    def command(self, folder: Path) -> list[str]:
        return [sys.executable, "-c", STUDY, *self.options, "--out", str(folder)]


def small_queue(out: Path, *names: str, retry_failed: bool = False) -> Queue:
    parts = [Small("study", (*name.split(), "numpyro"), 1.0, "a table") for name in names]
    return Queue(out, parts, retry_failed=retry_failed)


def recorded(found: Queue) -> list[tuple[str, int | None]]:
    return [(run.model, run.seed) for part in found.parts for run in part.runs(found.out)]


def test_a_queue_runs_each_part_once_and_records_failures(tmp_path: Path) -> None:
    found = small_queue(tmp_path, "one", "two broken", "three")
    found.run(1.0, 2)
    assert found.left() == []
    ended = queue.ended(tmp_path / "queue.jsonl")
    assert len(ended) == 3
    failed = [record for record in ended.values() if record.failed]
    assert [record.error for record in failed] == ["exit status 1: broken: no such set"]
    assert recorded(found) == [(name, seed) for name in ("one", "three") for seed in range(4)]

    again = small_queue(tmp_path, "one", "two broken", "three")
    again.run(1.0, 2)
    assert len(records.read(tmp_path / "queue.jsonl")) == 3
    retried = small_queue(tmp_path, "one", "two broken", "three", retry_failed=True)
    assert [part.options[0] for part in retried.left()] == ["two"]
    assert "three" not in retried.report()


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_queue_that_is_killed_loses_no_run_and_repeats_none(
    tmp_path: Path, sign: signal.Signals
) -> None:
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", QUEUE, str(tmp_path)], cwd=Path(__file__).parents[2]
    )
    while not list(tmp_path.glob("parts/*/study.jsonl")):
        assert process.poll() is None and time.monotonic() - started < 60.0
        time.sleep(0.02)
    os.kill(process.pid, sign)
    process.wait(60.0)
    found = small_queue(tmp_path, "one", "two", "three")
    if sign is signal.SIGKILL:  # its parts go on to their end, and hold the lock until then
        with pytest.raises(SystemExit, match="another queue"):
            found.run(1.0, 2)
    while True:
        with contextlib.suppress(SystemExit), queue._alone(tmp_path):
            break
        time.sleep(0.1)
    before = recorded(found)
    assert 0 < len(before) < 12

    found.run(1.0, 2)
    assert sorted(recorded(found)) == sorted(
        (name, seed) for name in ("one", "two", "three") for seed in range(4)
    )
    assert set(before) <= set(recorded(found))
    assert len(records.read(tmp_path / "queue.jsonl")) == 3


def test_parts_are_stopped_when_the_time_is_over(tmp_path: Path) -> None:
    found = small_queue(tmp_path, "one", "two", "three")
    # Shorter than a part is expected to take: the first is begun all the same.
    started = time.monotonic()
    found.run(0.3 / 3600.0, 1)
    assert time.monotonic() - started < 20.0
    assert len(found.left()) == 3


def test_two_queues_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        queue._alone(tmp_path),
        pytest.raises(SystemExit, match="another queue"),
        queue._alone(tmp_path),
    ):
        pass


def test_commands_of_all_parts_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.__main__ import build_parser

    assert len({part.name for part in PARTS}) == len(PARTS)
    for study in dict.fromkeys(part.study for part in PARTS):
        parser = build_parser(study)
        for part in PARTS:
            if part.study == study:
                parser.parse_args(part.command(Path("out"))[3:])


def test_records_of_ended_parts_are_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = small_queue(tmp_path / "out", "one", "two")
    found.run(1.0, 2)
    results = tmp_path / "results"
    monkeypatch.setattr(queue, "RESULTS", results)
    monkeypatch.setattr(queue, "ROOT", tmp_path)
    monkeypatch.setattr(queue, "PARTS", tuple(found.parts))
    for _ in range(2):
        queue.kept(tmp_path / "out")
        assert len(records.read(results / "study.jsonl")) == 8
        assert len(records.read(results / "queue.jsonl")) == 2
    curves = {name: [1.0, 2.0] for name in ("epoch", "test NLL", "validation NLL")}
    wide = records.Record("bnn", "SVN", figures={"curves": curves})
    assert set(queue._slim(wide).figures["curves"]) == {"epoch", "test NLL"}
    # What the results have is not run again on another machine.
    assert small_queue(tmp_path / "elsewhere", "one", "two", "three").left()[0].options[0] == (
        "three"
    )
