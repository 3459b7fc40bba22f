"""The rules of conftest.py, seen from outside: small test suites are run under it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")


def run_suite(folder: Path, files: dict[str, str], *, ci: bool) -> tuple[int, str]:
    """Exit status and output of pytest over `files` with the project's conftest.py beside them."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / name).write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != "CI"}
    if ci:
        environment["CI"] = "true"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "--rootdir=.", "."],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return run.returncode, run.stdout + run.stderr


# A framework's place is taken by a module of its name, so the rule is seen without installing it.
FAKE_JAX = """
class config:
    jax_enable_x64 = False

    @classmethod
    def update(cls, name, value):
        setattr(cls, name, value)

def clear_caches():
    pass
"""


def test_precision_set_by_a_module_holds_there_and_nowhere_else(tmp_path: Path) -> None:
    body = "\ndef test_it():\n    assert jax.config.jax_enable_x64 is {}\n"
    status, output = run_suite(
        tmp_path,
        {
            "jax.py": FAKE_JAX,
            "test_a_double.py": "import jax\njax.config.update('jax_enable_x64', True)\n"
            + body.format(True),
            "test_b_single.py": "import jax\n" + body.format(False),
            "test_c_double.py": "import jax\njax.config.update('jax_enable_x64', True)\n"
            + body.format(True),
            "test_d_leaks_while_running.py": "import jax\n"
            "def test_it():\n    jax.config.update('jax_enable_x64', True)\n",
            "test_e_single.py": "import jax\n" + body.format(False),
        },
        ci=False,
    )
    assert status == 0, output
    assert "5 passed" in output


@pytest.mark.parametrize("ci", [False, True])
def test_missing_part_is_told_outside_ci_and_fails_inside(tmp_path: Path, ci: bool) -> None:
    # A finder that refuses the name stands for an environment without it.
    refuse = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'blackjax':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    status, output = run_suite(
        tmp_path,
        {
            "test_needs_it.py": refuse + "import blackjax\ndef test_it():\n    pass\n",
            "test_plain.py": "def test_it():\n    pass\n",
        },
        ci=ci,
    )
    if ci:
        assert status != 0
        assert "No module named 'blackjax'" in output
    else:
        assert status == 0, output
        assert "blackjax is not installed (pip install 'ppl-ext[bench]')" in output
        assert "1 passed, 1 skipped" in output


@pytest.mark.parametrize("ci", [False, True])
def test_other_import_errors_fail_everywhere(tmp_path: Path, ci: bool) -> None:
    status, output = run_suite(
        tmp_path, {"test_wrong.py": "import no_such_module_of_this_project\n"}, ci=ci
    )
    assert status != 0
    assert "no_such_module_of_this_project" in output
