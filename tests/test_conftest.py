"""The rules of conftest.py, seen from outside: small test suites are run under it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import trim

CONFTEST = Path(__file__).with_name("conftest.py")


def run_suite(folder: Path, files: dict[str, str], *, ci: bool) -> tuple[int, str]:
    """Exit status and output of pytest over `files` with the project's conftest.py beside them."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / name).write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != "CI"}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(folder / "kept" / "jax")
    if ci:
        environment["CI"] = "true"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-rs", "-p", "no:cacheprovider", "--rootdir=.", "."],
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
        assert "blackjax is not installed (pip install --group dev)" in output
        assert "1 passed, 1 skipped" in output


@pytest.mark.parametrize("ci", [False, True])
def test_other_import_errors_fail_everywhere(tmp_path: Path, ci: bool) -> None:
    status, output = run_suite(
        tmp_path, {"test_wrong.py": "import no_such_module_of_this_project\n"}, ci=ci
    )
    assert status != 0
    assert "no_such_module_of_this_project" in output


def test_marks_leave_one_package_to_the_slow_tests(tmp_path: Path) -> None:
    body = """
import pytest

pytestmark = [pytest.mark.formula, pytest.mark.filterwarnings("ignore")]
packages = pytest.mark.parametrize("package", ["pyro", "numpyro"])

def left_out(request):
    return request.node.get_closest_marker("slow") is not None

@packages
def test_of_the_module(request, package):
    assert left_out(request) == (package == "numpyro")

@pytest.mark.in_both_packages
@packages
def test_in_both(request, package):
    assert not left_out(request)

@pytest.mark.in_one_package
@packages
def test_of_a_run(request, package):
    assert left_out(request) == (package == "pyro")

def test_of_neither(request):
    assert not left_out(request)
"""
    status, output = run_suite(tmp_path, {"test_marks.py": body}, ci=False)
    assert status == 0 and "7 passed" in output, output


def test_tests_of_the_list_are_marked_long(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("test_it.py::test_one[a b]\n")
    body = """
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")

@pytest.mark.parametrize("name", ["a b", "c"])
def test_one(request, name):
    assert (request.node.get_closest_marker("long") is not None) == (name == "a b")
"""
    status, output = run_suite(tmp_path, {"test_it.py": body}, ci=False)
    assert status == 0 and "2 passed" in output, output


def test_files_that_took_long_come_first_after_new_ones(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "seconds.json").write_text('{"test_a.py": 1.0, "test_b.py": 20.0, "test_gone.py": 3}')
    body = "def test_one():\n    pass\n\ndef test_another():\n    pass\n"
    names = ["test_a.py", "test_b.py", "test_new.py"]
    status, output = run_suite(tmp_path, dict.fromkeys(names, body), ci=False)
    assert status == 0, output
    found = [line.split()[0] for line in output.splitlines() if " PASSED" in line]
    order = ["test_new.py", "test_b.py", "test_a.py"]
    assert found == [f"{name}::{test}" for name in order for test in ("test_one", "test_another")]
    after = json.loads((kept / "seconds.json").read_text())
    assert set(after) == {*names, "test_gone.py"}
    assert after["test_b.py"] == 16.0 and after["test_new.py"] < 1.0


def test_what_was_not_used_for_longest_is_deleted(tmp_path: Path) -> None:
    for number, name in enumerate(["old-cache", "older-cache", "new-cache", "left.part"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (number, [2e9, 1e9, 3e9, 1.0][number]))
    trim(tmp_path, 400)
    assert {path.name for path in tmp_path.iterdir()} == {"old-cache", "older-cache", "new-cache"}
    trim(tmp_path, 250)
    assert {path.name for path in tmp_path.iterdir()} == {"old-cache", "new-cache"}
    trim(tmp_path / "missing", 0)


# Both write the same files and read those of the other: what is read is whole or not there.
SHARING = """
import sys
from pathlib import Path
import tests.conftest
from jax._src.lru_cache import LRUCache

cache, found = LRUCache(sys.argv[1], max_size=-1), 0
for number in range(400):
    key = f"program{number}"
    value = cache.get(key)
    assert value is None or value == key.encode() * 20_000, number
    found += value is not None
    cache.put(key, key.encode() * 20_000)
    assert cache.get(key) == key.encode() * 20_000
print(found)
"""


def test_two_processes_share_what_is_compiled(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    command = [sys.executable, "-c", SHARING, str(tmp_path / "jax")]
    both = [
        subprocess.Popen(command, cwd=CONFTEST.parents[1], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len(list((tmp_path / "jax").glob("*-cache"))) == 400
    assert not list((tmp_path / "jax").glob("*.part"))
    assert sum(map(int, outputs)) <= 400
