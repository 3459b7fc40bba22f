"""Print the changelog's section of a version; fail where anything is not ready for its release.

python .ci/release_notes.py 0.1.0
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECTION = re.compile(r"^## (\S+) \(([^)]+)\)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def notes(version: str, changelog: str, project: str, citation: str) -> str:
    """The section's text.

    Raises
    ------
    ValueError
        pyproject.toml or CITATION.cff name another version, or the section is missing or has no
        date such as 2026-11-24.
    """
    for name, found in (
        ("pyproject.toml", tomllib.loads(project)["project"]["version"]),
        ("CITATION.cff", re.findall(r"^version: (\S+)$", citation, re.MULTILINE)[0]),
    ):
        if found != version:
            raise ValueError(f"expected version {version} in {name}, found {found}")
    for name, date, text in SECTION.findall(changelog):
        if name == version:
            if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
                raise ValueError(f"expected a date beside {version} in CHANGELOG.md, found {date}")
            return text.strip()
    raise ValueError(f"expected a section {version} in CHANGELOG.md, found none")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python .ci/release_notes.py VERSION")
    try:
        found = notes(
            sys.argv[1],
            *(
                (ROOT / name).read_text(encoding="utf-8")
                for name in ("CHANGELOG.md", "pyproject.toml", "CITATION.cff")
            ),
        )
    except ValueError as error:
        sys.exit(f"not ready: {error}")
    print(found)
