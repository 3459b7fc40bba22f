"""Tables of the documentation and the records that they are made of.

A section that names a command has its tables between two comments, and these are what the records
give. A table that says what something is, and holds no figure of a run, has the comment
`<!-- nothing measured -->` on the line before it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import __main__ as command_line
from benchmarks import pages, records


def test_pages_are_what_their_records_give() -> None:
    found = pages.marked_pages()
    assert found
    for path in found:
        text = path.read_text(encoding="utf-8")
        assert pages.rebuilt(text) == text, f"{path.name}: run `python -m benchmarks pages`"


def test_every_table_is_on_a_page_and_every_file_of_records_is_of_a_table() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in pages.marked_pages())
    for name in pages.TABLES:
        assert f"<!-- table: {name} -->" in text
    kept = {path.name for path in pages.RESULTS.glob("*.jsonl")}
    made = [files for files, _ in (*pages.TABLES.values(), *pages.PICTURES.values())]
    # Where a table is made of several files, those count that are there.
    needed = {files for files in made if isinstance(files, str)}
    allowed = {file for files in made if not isinstance(files, str) for file in files}
    assert needed <= kept <= needed | allowed


#: Failed runs among the records whose page tells them: file, method and model.
TOLD = {
    ("curvature", "Gauss-Newton products", ""),
    ("curvature", "posterior precision", ""),
    ("network-truth", "NUTS", "yacht"),
    ("posteriordb", "GSM", "gp_pois_regr-gp_pois_regr"),
    ("posteriordb", "NUTS", "gp_pois_simulated-gp_pois_regr"),
    ("posteriordb", "SVN", "hmm_simulated-hmm_example"),
    ("posteriordb", "nutpie", "gp_pois_simulated-gp_pois_regr"),
    ("score-vi", "natural gradient", "logistic"),
    ("trust", "fit", "planted/tiny-1e-22"),
}


def test_runs_that_failed_are_told() -> None:
    """Many tables are of the runs that did not fail: who records another sees that it is told."""
    failed = {
        (path.stem, run.method, run.model)
        for path in pages.RESULTS.glob("*.jsonl")
        for run in records.read(path)
        if run.failed
    }
    assert failed <= TOLD, f"Look whether their tables say so, and add them: {failed - TOLD}"


@pytest.mark.parametrize("name", pages.PICTURES)
def test_pictures_are_drawn_of_their_records(name: str, tmp_path: Path) -> None:
    assert (pages.DOCS / "images" / name).exists()
    pages.drawn(name, tmp_path / name)
    assert (tmp_path / name).stat().st_size > 10_000


def test_a_page_that_differs_is_told_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- table: discrete -->\nold\n<!-- end of table -->\n\nafter\n")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert command_line.main(["pages", "--check"]) == 1
    assert "page.md: differs" in capsys.readouterr().out and "old" in page.read_text()
    assert command_line.main(["pages"]) == 0 and command_line.main(["pages", "--check"]) == 0
    text = page.read_text()
    assert text.startswith("before\n\n<!-- table") and text.endswith("-->\n\nafter\n")
    assert "old" not in text and "dawid skene" in text


def test_every_table_beside_a_command_has_records() -> None:
    found = []
    for path in sorted(pages.DOCS.rglob("*.md")):
        for section in re.split(r"(?m)^#+ ", path.read_text(encoding="utf-8")):
            if "python -m benchmarks" in section:
                unmarked = re.sub(
                    r"<!-- table.*?<!-- end of table -->", "", section, flags=re.DOTALL
                )
                unmarked = re.sub(r"<!-- nothing measured -->\n(\|.*\n)+", "", unmarked)
                tables = len(re.findall(r"(?m)^\|[ :|-]+\|$", unmarked))
                found += [f"{path.name}: {section.splitlines()[0]}"] * tables
    assert not found, "\n".join(found)
