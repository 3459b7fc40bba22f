"""Files that are complete or absent, whoever else writes or reads them and whoever is killed.

A file is written under a name of its own beside the one that is wanted, and takes that one's place
at once when it is on the disk. Who writes holds a lock on it, which the system takes away from a
process that is killed: so the next writer tells what a killed one has left, and removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from ppl_ext.errors import ArgumentError
from ppl_ext.options import described

if sys.platform != "win32":  # where nobody can remove a file that is open
    import fcntl

Path = str | os.PathLike[str]


@contextmanager
def replaced(path: Path, name: str = "path") -> Iterator[BinaryIO]:
    """An open file that takes the place of the one at ``path`` when the context ends well.

    A link at ``path`` stays, and the file that it names is replaced. The new file has the
    permissions of the old one, or where there was none those that the process gives all its files.

    Parameters
    ----------
    path : path
    name : str
        What the message calls it.

    Raises
    ------
    ArgumentError
        No file can be written there, or what is there is none, such as a folder or a device.
    """
    try:
        target = os.path.realpath(checked_path(path, name))
        old = _regular(target)
        _remove_leftovers(target)
        temporary, descriptor = _opened(target, old)
    except OSError as error:
        raise ArgumentError(
            f"Expected {name} to be a file that can be written, found '{os.fspath(path)}' "
            f"({error}). Make its folder, or give another path."
        ) from error
    with open(descriptor, "w+b") as file:
        try:
            yield file
            file.flush()
            os.fsync(descriptor)
            if sys.platform == "win32":
                file.close()  # no open file can be moved
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise


def check_can_write(path: Path, name: str) -> None:
    """See that a file can be written there, before there is anything to lose.

    Raises
    ------
    ArgumentError
        It cannot.
    """

    class Enough(Exception):
        pass

    with contextlib.suppress(Enough), replaced(path, name):
        raise Enough


def checked_path(path: Any, name: str) -> str:
    """The path as text.

    Raises
    ------
    ArgumentError
        It is none.
    FileNotFoundError
        It is empty.
    """
    try:
        found = os.fsdecode(path)
    except TypeError:
        raise ArgumentError(
            f"Expected {name} to be the path of a file, found {described(path)}."
        ) from None
    if not found:
        raise FileNotFoundError("it is empty")
    return found


def _regular(target: str) -> os.stat_result | None:
    """The file that is there; None where nothing is."""
    try:
        found = os.lstat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", target)
    if not stat.S_ISREG(found.st_mode):  # among them a link that leads to itself
        raise OSError(errno.EINVAL, "it is a device, a pipe or a link without end", target)
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "it may not be written", target)
    return found


def _opened(target: str, old: os.stat_result | None) -> tuple[str, int]:
    """A new file beside the target, open and locked, that replaces an old one."""
    while True:
        temporary = f"{target}.{secrets.token_hex(8)}.part"
        # Nobody may read what only its owner could read before.
        descriptor = os.open(
            temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666 if old is None else 0o600
        )
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                _lock(descriptor, wait=True)
            if old is not None:
                # Only some may give a file to another owner, and Windows has none.
                with contextlib.suppress(OSError, AttributeError):
                    os.chown(temporary, old.st_uid, old.st_gid)
                os.chmod(temporary, stat.S_IMODE(old.st_mode))
            if os.path.exists(temporary):
                return temporary, descriptor
        except FileNotFoundError:
            pass
        # Another writer came between opening and locking, and took it for a killed one's.
        os.close(descriptor)


def _remove_leftovers(target: str) -> None:
    """Remove what writers of the same file have left that were killed."""
    folder, base = os.path.split(target)
    left = re.compile(re.escape(base) + r"\.[0-9a-f]{16}\.part")
    with os.scandir(folder) as entries:
        named = (each for each in entries if left.fullmatch(each.name))
        found = [each.path for each in named if each.is_file(follow_symlinks=False)]
    for each in found:
        with contextlib.suppress(OSError):  # it is being written, or gone
            descriptor = os.open(each, os.O_RDWR)
            try:
                _lock(descriptor, wait=False)
                os.unlink(each)
            finally:
                os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> None:
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
