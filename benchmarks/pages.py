"""`python -m benchmarks pages`: the tables of the documentation, made anew from their records.

A table of a page that stands between two comments,

    <!-- table: NAME -->
    <!-- end of table -->

is what a function makes of the records of a benchmark that are kept in `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

from benchmarks import records

ROOT = Path(__file__).resolve().parents[1]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"

#: Of each table the file of its records and the function that makes it of them.
TABLES: dict[str, tuple[str, str]] = {
    "discrete": ("discrete.jsonl", "benchmarks.discrete.comparison:page_table"),
    "discrete, large": ("discrete.jsonl", "benchmarks.discrete.comparison:large_table"),
    "sgmcmc, bias": ("sgmcmc.jsonl", "benchmarks.sgmcmc.report:bias_table"),
    "semi-exact": ("semi-exact.jsonl", "benchmarks.semi_exact.report:page_table"),
}

_MARKED = re.compile(
    r"(?P<begin><!-- table: (?P<name>.+?) -->\n).*?(?P<end>\n<!-- end of table -->)", re.DOTALL
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--check", action="store_true", help="say which pages differ, write none")


def main(arguments: argparse.Namespace) -> int:
    """Write the tables into the pages; the exit status, 1 where pages differ that were checked."""
    changed = []
    for path in marked_pages():
        before = path.read_text(encoding="utf-8")
        if (after := rebuilt(before)) != before:
            changed.append(path)
            if not arguments.check:
                records.write_text(path, after)
    for path in changed:
        print(f"{path.relative_to(ROOT)}: {'differs' if arguments.check else 'written'}")
    return int(arguments.check and bool(changed))


def marked_pages() -> list[Path]:
    """Pages with tables that are made of records."""
    return [path for path in sorted(DOCS.rglob("*.md")) if _MARKED.search(path.read_text("utf-8"))]


def rebuilt(page: str) -> str:
    """The text of a page with its tables made anew.

    Raises
    ------
    KeyError
        A table is not known.
    """
    return _MARKED.sub(lambda found: f"{found['begin']}{table(found['name'])}{found['end']}", page)


def table(name: str) -> str:
    """A table made of its records."""
    file, maker = TABLES[name]
    module, function = maker.split(":")
    made: str = getattr(importlib.import_module(module), function)(records.read(RESULTS / file))
    return made.strip()
