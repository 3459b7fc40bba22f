"""The code in the guide's pages runs as it is written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def blocks(page: str, package: str) -> list[str]:
    """A page's Python blocks of one package; each has the package's short name in it."""
    found = re.findall(r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.S | re.M)
    other = {"px": "nx", "nx": "px"}[package]
    return [block for block in found if not re.search(rf"\b{other}\b", block)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "package", "number"),
    [("guides", "px", 4), ("guides", "nx", 4), ("uncertainty", "px", 1)],
)
def test_blocks_of_a_page_run_one_after_another(page: str, package: str, number: int) -> None:
    found = blocks(page, package)
    assert len(found) == number
    names: dict[str, object] = {}
    for block in found:
        exec(compile(block, f"{page}.md", "exec"), names)
    assert any(name in names for name in ("khat", "predictive"))
