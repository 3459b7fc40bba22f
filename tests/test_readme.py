"""The README's Python examples run as they are written, each in an interpreter of its own."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))


def imported(source: str) -> set[str]:
    """Top-level names of the modules that `source` imports."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_there_is_one_example_per_package() -> None:
    packages = [imported(example) & {"pyro_ext", "numpyro_ext"} for example in EXAMPLES]
    assert packages == [{"pyro_ext"}, {"numpyro_ext"}]


@pytest.mark.docs
@pytest.mark.parametrize("package", ["pyro", "numpyro"])
def test_example_runs_as_written(package: str, tmp_path: Path) -> None:
    (example,) = (text for text in EXAMPLES if f"{package}_ext" in imported(text))
    missing = sorted(name for name in imported(example) if not importlib.util.find_spec(name))
    if missing and not os.environ.get("CI"):
        pytest.skip(f"the example imports {', '.join(missing)}, not installed here")
    run = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "quick_start.py"), package],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr
