"""One run in a process of its own: `python -m benchmarks.trust.worker JSON`.

It prints its figures as one line of JSON, the last of its output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.posteriordb.workers import ONE_THREAD
from benchmarks.records import from_json, to_json
from benchmarks.trust.runs import Case

HERE = Path(__file__).resolve().parents[2]


class ChildFailed(RuntimeError):
    """A run's process took too long or ended in an error."""


def in_a_process(case: Case, database: str | None, limit: int) -> dict[str, Any]:
    """Figures of a run in a fresh process, of one thread, without what JAX has kept.

    Raises
    ------
    ChildFailed
        The process ended in an error, or took longer than ``limit`` seconds.
    """
    text = json.dumps({"case": asdict(case), "database": database})
    kept = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.trust.worker", text],
            cwd=HERE,
            env={**kept, **ONE_THREAD, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"no result within {limit} s") from None
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise ChildFailed(f"status {ended.returncode}: {last}")
    found: dict[str, Any] = from_json(json.loads(ended.stdout.splitlines()[-1]))
    return found


def main(text: str) -> None:
    """Make one run and print its figures."""
    from benchmarks.trust.problems import all_problems
    from benchmarks.trust.runs import figures_of

    given = json.loads(text)
    case = Case(**given["case"])
    found = figures_of(case, all_problems(given["database"])[case.problem])
    print(json.dumps(to_json(found), allow_nan=False))


if __name__ == "__main__":
    main(sys.argv[1])
