"""Whether Stan programs can be compiled here; asked by the pages and by the tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path


def missing() -> str | None:
    """Why Stan programs cannot be compiled here, or None."""
    if importlib.util.find_spec("bridgestan") is None:
        return "bridgestan is not installed (pip install 'ppl-ext[stan]')"
    for tool in ("make", os.environ.get("CXX", "g++")):
        if shutil.which(tool) is None:
            return f"no {tool} to compile Stan programs with"
    named = os.environ.get("BRIDGESTAN", "")
    if named:
        if not (Path(named) / "Makefile").is_file():
            return f"BRIDGESTAN={named} has no Makefile"
        return None if os.access(named, os.W_OK) else f"BRIDGESTAN={named} cannot be written"
    from bridgestan.download import CURRENT_BRIDGESTAN

    if not (CURRENT_BRIDGESTAN / "Makefile").is_file():
        return "BRIDGESTAN names no folder, and ~/.bridgestan has no sources of this version"
    return None
