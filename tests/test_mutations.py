"""The planted faults can be planted, and the tool tells those that are noticed from the others."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.mutations.__main__ import ROOT, Judge, planted
from tests.mutations.catalogue import MUTATIONS, Mutation


def test_every_fault_can_be_planted() -> None:
    wrong = []
    for mutation in MUTATIONS:
        try:
            ast.parse(planted((ROOT / mutation.file).read_text(), mutation))
        except (LookupError, FileNotFoundError, SyntaxError) as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


def test_faults_are_many_and_in_every_room_that_computes() -> None:
    assert len(MUTATIONS) >= 60 and len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    rooms = {"density", "gradients", "curvature", "kernels", "guides", "stein", "laplace", "score"}
    for package in ("pyro_ext", "numpyro_ext"):
        found = {each.room for each in MUTATIONS if each.file.startswith(package)}
        assert rooms | {"sgmcmc", "diagnostics"} <= found


def test_caught_survived_and_out_of_date(tmp_path: Path) -> None:
    (tmp_path / "numpyro_ext").mkdir()
    (tmp_path / "numpyro_ext/sums.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "numpyro_ext/__init__.py").touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    before = "from numpyro_ext.sums import add\n\n"
    (tmp_path / "tests/test_sums.py").write_text(
        # One test fails with the fault and without it, which proves nothing.
        before + "def test_wrong():\n    assert add(1, 1) == 3\n"
    )
    # So does a run that ends before its tests do.
    dies = "import os\n\ndef test_dies():\n    os._exit(9)\n"
    (tmp_path / "tests/test_sums_dies.py").write_text(dies)
    (tmp_path / "tests/test_sums_more.py").write_text(
        before + "def test_of_pyro():\n    assert add(1, 1) == 3\n\n"
        "def test_right():\n    assert add(1, 2) == 3\n"
    )
    judge = Judge(tmp_path, likely_only=True)

    def row(old: str, new: str) -> dict[str, object]:
        return judge.judge(Mutation("a fault", "numpyro_ext/sums.py", old, new, ("sums",)))

    caught = row("a + b", "a - b")
    assert caught["outcome"] == "caught"
    assert caught["caught by"] == "tests/test_sums_more.py::test_right"
    assert caught["failing without it too"] == ["tests/test_sums.py::test_wrong", "status 9"]
    assert row("a + b", "b + a")["outcome"] == "survived the likely tests"
    gone = row("a * b", "a / b")
    assert gone["outcome"] == "error" and "Expected 'a * b' once" in str(gone["reason"])
    assert "a + b" in (tmp_path / "numpyro_ext/sums.py").read_text()
