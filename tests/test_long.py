"""The list of long tests: what it names is there, and a log is read right."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.long import EQUAL, LIST, long_tests

ROOT = Path(__file__).parent.parent


def test_what_the_list_names_is_there() -> None:
    """A test that was renamed is run by `make test` again: the list is to be made anew."""
    named = defaultdict(set)
    for line in LIST.read_text().splitlines():
        file, _, rest = line.partition("::")
        named[file].add(rest.partition("[")[0].rpartition("::")[2])
    assert named
    for file, names in named.items():
        tree = ast.parse((ROOT / file).read_text())
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert names <= there, f"{file} no longer has {names - there}: run python -m tests.long"


def test_a_log_is_read_with_the_seconds_of_fixtures() -> None:
    log = "\n".join(
        [
            "2.00s call     tests/test_a.py::test_b[a: b - c]",
            "0.90s setup    tests/test_a.py::test_c",
            "0.70s call     tests/test_a.py::test_c",
            "1.20s call     tests/test_a.py::test_d",
            f"9.00s call     {EQUAL[0]}test_a.py::test_e",
            "5.00s of something else",
        ]
    )
    assert long_tests(log) == ["tests/test_a.py::test_b[a: b - c]", "tests/test_a.py::test_c"]
