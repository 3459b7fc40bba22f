"""The command for accelerators: its parts, wheels from a folder, and a small run."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from benchmarks import __main__ as command_line
from benchmarks import gpu, records
from tests.backends import PACKAGES


def test_the_parts_fit_into_eight_minutes() -> None:
    found = list(gpu.parts(32, small=False))
    assert len({part.name for part in found}) == len(found) == 6
    assert sum(part.minutes for part in found) < 8.0
    assert {part.options[-1] for part in found} == {"numpyro", "pyro"}
    for part in found:
        options = command_line.build_parser(part.study).parse_args([part.study, *part.options])
        assert options.command == part.study


def test_packages_come_from_a_folder_of_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    with pytest.raises(FileNotFoundError, match="no wheels"):
        gpu.install(tmp_path, tmp_path / "packages")
    about = "Metadata-Version: 2.1\nName: nothing-else\nVersion: 1.0\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(tmp_path / "nothing_else-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("nothing_else.py", "value = 1\n")
        wheel.writestr("nothing_else-1.0.dist-info/METADATA", about)
        wheel.writestr("nothing_else-1.0.dist-info/WHEEL", tags)
        wheel.writestr("nothing_else-1.0.dist-info/RECORD", "")
    gpu.install(tmp_path, tmp_path / "packages")
    assert (tmp_path / "packages" / "nothing_else.py").exists()
    assert os.environ["PYTHONPATH"].endswith(f":{tmp_path / 'packages'}")


@pytest.mark.slow
def test_it_runs_on_a_small_machine(tmp_path: Path) -> None:
    assert command_line.main(["gpu", "--small", "--out", str(tmp_path)]) == 0
    runs = records.read(tmp_path / "gpu.jsonl")
    assert not [run.error for run in runs if run.failed]
    expected = {
        (name, method)
        for name in PACKAGES
        for method in ("SGD", "MCLMC", "SVGD", "DeepEnsemble, 64")
    }
    assert {(run.backend, run.method) for run in runs} == expected
    assert "not ended" not in (tmp_path / "gpu.md").read_text()
