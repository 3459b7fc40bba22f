"""Every row of the table of faults, in both packages, and the page that shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.table import PAGE, Fault, page_with_table, rows

ROWS = rows()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            marks=[pytest.mark.slow] if row.slow else [],
            id=f"{row.group}: {row.given}",
        )
        for row in ROWS
    ],
)
def test_fault(backend: Any, row: Fault, tmp_path: Path) -> None:
    if row.outcome(backend) is None:
        return
    row.tried(backend, tmp_path)


def test_inputs_have_one_row_each() -> None:
    names = [(row.group, row.given) for row in ROWS]
    assert len(set(names)) == len(names)


def test_the_page_of_errors_shows_the_table() -> None:
    text = PAGE.read_text()
    assert page_with_table(text) == text, "write the page with: python -m tests.faults"
