"""Stan programs as shared libraries: compiled by BridgeStan once and kept in the user's cache.

A library is found again by a hash of all that it depends on: the program's text, the flags, the
versions of BridgeStan, of the C++ compiler and of the sources that BridgeStan builds from. The
folder is that of ``PPL_EXT_STAN_CACHE``, by default ``ppl-ext/stan`` where the system keeps what
can be made again (``XDG_CACHE_HOME`` or ``~/.cache`` on Linux). One process compiles at a time,
which takes more than a gigabyte; the others wait and take what it has made. Beside each library
lies its checksum, without which, or with another, it is compiled anew.

make takes a space for the end of a file's name and expands ``$``, so a program is compiled in a
folder whose path has neither, and arguments for Stan's compiler are quoted.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import Any

from ppl_ext.errors import ArgumentError

#: Environment variable that names the folder of compiled programs.
CACHE_VARIABLE = "PPL_EXT_STAN_CACHE"

_TWO_WAYS = (
    "Either set the environment variable BRIDGESTAN to a folder with BridgeStan's sources (its "
    "Makefile among them), or give this machine access to the network, from where they are "
    "fetched once."
)
#: Seconds without an answer after which a download is given up.
_PATIENCE = 30.0
#: What stanc says of a program: what is wrong, where, and below it the reason.
_FAULT = re.compile(
    r"^(?P<kind>\w+ error) in '(?P<file>[^']*)', (?P<where>[^\n]*?):?$", re.MULTILINE
)

#: A line that takes in another file, and comments of several lines, in which it does not.
_INCLUDES = re.compile(r"^[ \t]*#include\b", re.MULTILINE)
_COMMENTS = re.compile(r"/\*.*?\*/", re.DOTALL)


class ToolchainError(RuntimeError):
    """Stan programs cannot be compiled here; the message says what is missing and what to do."""


def import_bridgestan() -> Any:
    """The package ``bridgestan``, with the others that Stan programs need beside it.

    Raises
    ------
    ImportError
        One of them is not installed.
    """
    try:
        import bridgestan
        import bridgestan.compile
        import filelock  # noqa: F401
        import platformdirs  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"Stan programs need the package {error.name}, which is not installed: "
            'pip install "ppl-ext[stan]"'
        ) from error
    return bridgestan


def cache_folder() -> Path:
    """Where compiled programs are kept."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("ppl-ext", appauthor=False) / "stan"


def compiled(
    text: str,
    name: str,
    stanc_args: Sequence[str] = (),
    make_args: Sequence[str] = (),
) -> Path:
    """The shared library of a Stan program, compiled unless the cache has it.

    Parameters
    ----------
    text : str
        The program.
    name : str
        What messages call it, such as its file name.
    stanc_args, make_args : sequence of str
        Further arguments for the Stan compiler, which gets each as it is, and for make, which
        expands them.

    Raises
    ------
    ArgumentError
        The program is no valid Stan program of one file, or the arguments are no sequences of
        lines.
    ToolchainError
        BridgeStan's sources, make or the C++ compiler are missing, or a folder cannot be written.
    ImportError
        The package ``bridgestan`` is not installed.
    """
    # The name of a library tells nothing of other files, which may change meanwhile.
    if _INCLUDES.search(_COMMENTS.sub("", text)):
        raise ArgumentError(
            f"Expected a Stan program of one file, found #include in '{name}'. Put the text of "
            "the other file in its place: a compiled program is found again by its text alone."
        )
    stanc_args = [_quoted(each) for each in _lines("stanc_args", stanc_args)]
    make_args = _lines("make_args", make_args)
    bridgestan = import_bridgestan()
    # Threads evaluate the particles. A home that takes its headers from an installed Python
    # package has to know which Python; others do not read PYTHON.
    make_args = ["STAN_THREADS=True", f"PYTHON={_quoted(sys.executable)}", *make_args]
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        home = _home(bridgestan, folder)
        library = folder / f"{_key(text, stanc_args, make_args, bridgestan, home)}.so"
        if _is_whole(library):
            return library
        with _locked(folder / "lock"):
            if not _is_whole(library):
                _compile(bridgestan, home, text, name, stanc_args, make_args, library)
    except OSError as error:
        raise ToolchainError(
            f"Compiling a Stan program failed: {error}. Expected a folder for compiled programs "
            f"that can be written, found {folder}; name another one by {CACHE_VARIABLE}. The "
            "folder of BRIDGESTAN has to be writable as well."
        ) from error
    return library


def _lines(name: str, arguments: Sequence[str]) -> list[str]:
    """Arguments of a command, each on one line as make needs them."""
    given = [arguments] if isinstance(arguments, str) else list(arguments)
    wrong = [each for each in given if not isinstance(each, str) or re.search(r"[\n\r\0]", each)]
    if isinstance(arguments, str) or wrong:
        raise ArgumentError(
            f"Expected {name} as a list of texts of one line each, such as "
            f"{name}=['--O1'], found {wrong[0] if wrong else arguments!r}."
        )
    return given


def _quoted(argument: str) -> str:
    """An argument that neither make nor the shell that it calls expands or cuts in two."""
    return shlex.quote(argument).replace("$", "$$")


def _readable(path: Path) -> bool:
    """Whether make reads a path as one name."""
    return re.fullmatch(r"[\w/.,+@~-]+", path.as_posix().removeprefix(path.drive)) is not None


def _home(bridgestan: Any, folder: Path) -> Path:
    """BridgeStan's sources: those of BRIDGESTAN, or fetched once by the package itself."""
    if named := os.environ.get("BRIDGESTAN", ""):
        if not (Path(named) / "Makefile").is_file():
            raise ToolchainError(
                f"BRIDGESTAN={named} has no Makefile: Stan programs cannot be compiled. {_TWO_WAYS}"
            )
        return Path(named).resolve()
    before = socket.getdefaulttimeout()
    # The package fetches by `urllib` without a limit of its own, and takes none.
    socket.setdefaulttimeout(_PATIENCE)
    try:
        with _locked(folder / "lock"), redirect_stdout(io.StringIO()):
            return Path(bridgestan.compile.get_bridgestan_path()).resolve()
    except (ValueError, OSError) as error:
        raise ToolchainError(
            f"BridgeStan's sources are not here and could not be fetched ({_line(error)}): Stan "
            f"programs cannot be compiled. {_TWO_WAYS}"
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def _key(
    text: str, stanc_args: Sequence[str], make_args: Sequence[str], bridgestan: Any, home: Path
) -> str:
    """A hash of all that a library depends on."""
    parts = [text, *stanc_args, "--", *make_args, str(home)]
    # What a home builds from beside the headers; the headers are told by its version.
    sources = [*sorted(home.iterdir()), home / "make" / "local"]
    for path in sources:
        if path.is_file():
            parts += [path.name, hashlib.sha256(path.read_bytes()).hexdigest()]
    parts += [_version(package) for package in ("bridgestan", "httpstan")]
    parts.append(_compiler_version(make_args))
    digest = hashlib.sha256()
    for part in parts:
        # With lengths, so that parts which are cut elsewhere do not make one text.
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:32]


def _version(distribution: str) -> str:
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        return distribution


def _compiler_version(make_args: Sequence[str]) -> str:
    """First line of the C++ compiler's ``--version``, or "none" where it is not installed.

    The compiler is ``CXX`` of ``make_args``, else ``CXX`` of the environment, else g++.
    """
    given = [argument[4:] for argument in make_args if argument.startswith("CXX=")]
    command = shlex.split(given[-1] if given else os.environ.get("CXX", "g++")) or ["g++"]
    if shutil.which(command[0]) is None:
        return "none"
    found = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return found.stdout.partition("\n")[0]


def _compile(
    bridgestan: Any,
    home: Path,
    text: str,
    name: str,
    stanc_args: Sequence[str],
    make_args: Sequence[str],
    library: Path,
) -> None:
    make = shlex.split(os.environ.get("MAKE", "make"))[0]
    if shutil.which(make) is None:
        raise ToolchainError(
            f"Stan programs need make and a C++ compiler, found no '{make}'. Install them (for "
            "example `apt install build-essential`)."
        )
    makefile = (home / "Makefile").read_text(encoding="utf-8", errors="replace")
    if "httpstan" in makefile and importlib.util.find_spec("httpstan") is None:
        raise ToolchainError(
            f"BRIDGESTAN={home} takes Stan's headers from the package httpstan, which is not "
            "installed: `pip install --no-deps httpstan`, of which only the files are used."
        )
    # Nobody else is at work here, so these are of processes that were killed.
    for left in library.parent.glob("compiling-*"):
        shutil.rmtree(left, ignore_errors=True)
    for left in library.parent.glob("*.part"):
        left.unlink()
    places = [library.parent.resolve(), Path(tempfile.gettempdir()).resolve()]
    place = next(filter(_readable, places), None)
    if place is None:
        raise ToolchainError(
            "Expected a folder for compiled programs, or one for temporary files, whose path has "
            f"letters, digits and /.,+@~_- only, as make needs it, found '{places[0]}' and "
            f"'{places[1]}'; name another one by {CACHE_VARIABLE} or TMPDIR."
        )
    with tempfile.TemporaryDirectory(dir=place, prefix="compiling-") as folder:
        source = Path(folder) / "program.stan"
        source.write_text(text, encoding="utf-8")
        try:
            made = bridgestan.compile_model(
                source, stanc_args=list(stanc_args), make_args=list(make_args)
            )
        except RuntimeError as error:
            raise _failure(str(error), name, home) from error
        # Whole or not at all, for whoever looks at the same time; the sum comes first, so that
        # a library with the sum of another is made anew and never loaded.
        arrived = library.with_suffix(".part")
        shutil.move(made, arrived)
        library.unlink(missing_ok=True)
        _sum_of(library).write_text(_sum(arrived), encoding="ascii")
        os.replace(arrived, library)


def _sum_of(library: Path) -> Path:
    """The file that states a library's checksum."""
    return library.with_suffix(".sha256")


def _sum(library: Path) -> str:
    with open(library, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(library: Path) -> bool:
    """Whether a compiled library exists and has the checksum that was stored beside it.

    To load a truncated library would end the process.
    """
    stated = _sum_of(library)
    if not (library.is_file() and stated.is_file()):
        return False
    return stated.read_text(encoding="ascii", errors="replace").strip() == _sum(library)


def _failure(output: str, name: str, home: Path) -> Exception:
    """What make's output says, in one line."""
    if (fault := _FAULT.search(output)) is not None:
        # The excerpt between dashes shows what the line number says; the reason follows it.
        rest = output[fault.end() :].rpartition("-----\n")[2]
        rest = rest.partition("\nmake")[0]
        reason = " ".join(rest.split())
        return ArgumentError(f"{fault['kind']} in '{name}', {fault['where']}: {reason}")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    wrong = [
        line
        for line in lines
        if re.search(r"not found|no such file|permission|error|killed|read-only", line.lower())
        and not line.startswith("Command ")
    ]
    # make's own summary, which comes last, only says that something failed.
    said = next((line for line in wrong if "***" not in line), (wrong or lines)[-1])
    odd = "" if _readable(home) else " (in whose path make may stumble over a space or a sign)"
    return ToolchainError(
        f"Compiling the Stan program '{name}' failed: {said.rstrip('.')}. Expected make, a C++ "
        f"compiler and BridgeStan's complete and writable sources in {home}{odd}. {_TWO_WAYS}"
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait until no other process is here."""
    from filelock import FileLock

    with FileLock(path):
        yield
