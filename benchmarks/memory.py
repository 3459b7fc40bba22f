"""Memory of this process, as Linux tells it."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path


def resident(name: str) -> int:
    """Bytes of this process's memory of a kind.

    Parameters
    ----------
    name : str
        VmRSS, what it holds; VmHWM, the most that it held; RssAnon, of no file; RssFile.

    Raises
    ------
    OSError
        The system is not Linux.
    """
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise OSError(f"Expected {name} in /proc/self/status, which Linux has, found none.")
    return 1024 * int(found[1])


def release_freed() -> None:
    """Give memory that is free back to the system, where it would count as held."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def reset_peak() -> None:
    """Let the most that this process held be what it holds now."""
    Path("/proc/self/clear_refs").write_text("5")
