"""How Stan programs are compiled and kept, with a compiler that only pretends."""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.stan import compilation

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("package", ["ppl_ext", "pyro_ext", "numpyro_ext"])
def test_importing_needs_no_bridgestan(package: str) -> None:
    for path in (ROOT / package / "stan").glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not re.match(r"(from|import) bridgestan", ast.unparse(node)), path


@pytest.mark.parametrize("package", ["bridgestan", "filelock", "platformdirs"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bridgestan", "bridgestan.compile", "filelock", "platformdirs"):
        monkeypatch.setitem(sys.modules, name, None if name == package else ModuleType(name))
    expected = rf'need the package {package}, which is not installed: pip install "ppl-ext\[stan\]"'
    with pytest.raises(ImportError, match=expected):
        compilation.import_bridgestan()


class Compiler:
    """Stands in for the package bridgestan."""

    def __init__(self, home: Path) -> None:
        self.sources: list[str] = []
        self.arguments: tuple[list[str], list[str]] = [], []
        self.fails = ""
        self.compile = SimpleNamespace(get_bridgestan_path=lambda: str(home))

    def compile_model(self, source: Path, stanc_args: list[str], make_args: list[str]) -> Path:
        time.sleep(0.1)
        # As make reads a name.
        assert re.fullmatch(r"[\w/.-]+", str(source.resolve())), source
        self.arguments = stanc_args, make_args
        if self.fails:
            raise RuntimeError(self.fails)
        self.sources.append(source.read_text())
        made = source.with_suffix(".so")
        made.write_text("compiled")
        return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "Makefile").write_text("all:")
    monkeypatch.setenv("BRIDGESTAN", str(home))
    monkeypatch.setenv(compilation.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("MAKE", "true")
    return home


@pytest.fixture
def compiler(home: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler(home)
    monkeypatch.setattr(compilation, "import_bridgestan", lambda: compiler)
    return compiler


def test_a_program_is_compiled_once(
    compiler: Compiler, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compilation.compiled("model {}", "one")
    assert compilation.compiled("model {}", "another name") == first
    assert compiler.sources == ["model {}"] and first.read_text() == "compiled"
    found = {first}

    def is_new(*arguments: Any) -> bool:
        path = compilation.compiled("model {}", "one", *arguments)
        new = path not in found and path.is_file()
        found.add(path)
        return new

    assert compilation.compiled("model { }", "one") != first
    assert is_new(["--O1"]) and is_new((), ["--O1"])
    (home / "Makefile").write_text("all: more")
    assert is_new()
    (home / "make").mkdir()
    (home / "make" / "local").write_text("CXXFLAGS=-O1")
    assert is_new()
    monkeypatch.setenv("CXX", "make")
    assert is_new()
    assert not is_new()


def test_a_program_of_several_files_is_refused(compiler: Compiler) -> None:
    """A change of the other file would be taken for the same program."""
    with pytest.raises(ArgumentError, match="one file, found #include in 'one'"):
        compilation.compiled("functions {\n  #include f.stan\n}", "one", ["--include-paths=."])
    assert not compiler.sources
    compilation.compiled("// as by #include\nmodel {}", "one")
    compilation.compiled("/* as by\n#include f.stan\n*/\nmodel {}", "one")


@pytest.mark.parametrize("name", ["with a space", "$(shell x)", "a;b", "link"])
def test_a_folder_that_make_cannot_read(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever the folder's name is, the program is compiled in one that make reads."""
    folder = tmp_path / name
    if name == "link":
        (tmp_path / "with a space").mkdir()
        folder.symlink_to(tmp_path / "with a space")
    monkeypatch.setenv(compilation.CACHE_VARIABLE, str(folder))
    found = compilation.compiled("model {}", "one")
    assert found.parent == folder and found.read_text() == "compiled"
    assert compilation.compiled("model {}", "one") == found and len(compiler.sources) == 1
    assert {path.suffix for path in folder.iterdir()} == {"", ".so", ".sha256"}
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(compilation.ToolchainError, match="as make needs it"):
        compilation.compiled("model { }", "another")


def test_what_killed_processes_left_is_removed(compiler: Compiler) -> None:
    folder = compilation.cache_folder()
    (folder / "compiling-x").mkdir(parents=True)
    (folder / "compiling-x" / "program.stan").touch()
    (folder / "y.part").touch()
    compilation.compiled("model {}", "one")
    assert {path.suffix for path in folder.iterdir()} == {"", ".so", ".sha256"}
    assert not list(folder.glob("compiling-*"))


def test_stans_compiler_gets_its_arguments_as_they_are(compiler: Compiler) -> None:
    """Read as make's recipe and the shell read them."""
    given = ["--O1", "$(shell x)", "a b", "it's", "$HOME", "`x`", ";x", "\\", "%#"]
    compilation.compiled("model {}", "one", given)
    line = " ".join(compiler.arguments[0])
    # No variable is left for make: each sign stands twice.
    assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", line)
    assert shlex.split(line.replace("$$", "$")) == given
    assert compiler.arguments[0][0] == "--O1"


def test_two_at_once_compile_once(compiler: Compiler) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(compilation.compiled("model {}", "one")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and len(set(found)) == 1 and len(compiler.sources) == 1


@pytest.mark.parametrize("kept", ["comp", "", None])
def test_a_library_that_is_not_whole_is_made_again(compiler: Compiler, kept: str | None) -> None:
    """Cut off, empty, or from before there were checksums: loading one could end the process."""
    first = compilation.compiled("model {}", "one")
    if kept is None:
        first.with_suffix(".sha256").unlink()
    else:
        first.write_text(kept)
    assert compilation.compiled("model {}", "one") == first
    assert len(compiler.sources) == 2 and first.read_text() == "compiled"
    assert compilation.compiled("model {}", "one") == first and len(compiler.sources) == 2


def test_a_failure_leaves_nothing_behind(compiler: Compiler) -> None:
    compiler.fails = "Command make failed with code 2.\nstderr:\ng++: fatal error: Killed"
    with pytest.raises(compilation.ToolchainError, match="fatal error: Killed") as caught:
        compilation.compiled("model {}", "one")
    assert "\n" not in str(caught.value)
    assert [path.name for path in compilation.cache_folder().iterdir()] == ["lock"]
    compiler.fails = ""
    assert compilation.compiled("model {}", "one").is_file()


def test_the_message_of_stans_compiler_is_one_line(compiler: Compiler) -> None:
    compiler.fails = (
        "Command make x.so failed with code 2.\nstdout:\n/bin/stanc x.stan\n\nstderr:\n"
        "Syntax error in '/tmp/x.stan', line 4, column 0 to column 1, parsing error:\n"
        "   -------------------------------------------------\n"
        "     3:  model { mu ~ normal(0, 1)\n     4:  }\n         ^\n"
        "   -------------------------------------------------\n\n"
        'Ill-formed "~"-statement.\nExpect ";".\n'
        "make: *** [Makefile:21: /tmp/x_model.cpp] Error 1\n"
    )
    with pytest.raises(ArgumentError) as caught:
        compilation.compiled("model {}", "mine.stan")
    assert str(caught.value) == (
        "Syntax error in 'mine.stan', line 4, column 0 to column 1, parsing error: "
        'Ill-formed "~"-statement. Expect ";".'
    )


@pytest.mark.parametrize("case", ["no make", "no sources", "no network", "no folder"])
def test_what_is_missing_is_told_in_one_line(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    def unreachable() -> str:
        print("Retrying")
        raise ValueError("Failed to download BridgeStan 2.9.0 from github.com.")

    if case == "no make":
        monkeypatch.setenv("MAKE", "no-such-make")
        expected = "need make and a C.. compiler, found no 'no-such-make'"
    elif case == "no sources":
        monkeypatch.setenv("BRIDGESTAN", str(tmp_path))
        expected = "has no Makefile.*set the environment variable BRIDGESTAN.*access to the network"
    elif case == "no network":
        monkeypatch.delenv("BRIDGESTAN")
        compiler.compile.get_bridgestan_path = unreachable
        expected = "Failed to download.*set the environment variable BRIDGESTAN.*the network"
    else:
        monkeypatch.setenv(compilation.CACHE_VARIABLE, str(tmp_path / "home" / "Makefile" / "x"))
        expected = f"name another one by {compilation.CACHE_VARIABLE}"
    with pytest.raises(compilation.ToolchainError, match=expected) as caught:
        compilation.compiled("model {}", "one")
    assert "\n" not in str(caught.value)


def test_where_programs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compilation.CACHE_VARIABLE, "/somewhere")
    assert compilation.cache_folder() == Path("/somewhere")
    monkeypatch.delenv(compilation.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert compilation.cache_folder() == Path("/caches/ppl-ext/stan")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compilation.cache_folder() == Path.home() / ".cache" / "ppl-ext" / "stan"
