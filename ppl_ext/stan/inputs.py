"""What `model` takes: a Stan program and its data, each as text, as a file or as objects."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ppl_ext.errors import ArgumentError


def read_program(program: str | os.PathLike[str]) -> tuple[str, str]:
    """Text of a Stan program, and what messages call it.

    Raises
    ------
    ArgumentError
        The file cannot be read.
    """
    if isinstance(program, str) and _is_text(program):
        return program, "program"
    path = Path(program)
    return _read(path, "a Stan program"), path.name


def read_data(data: Mapping[str, Any] | str | os.PathLike[str] | None) -> str:
    """Data as JSON text, empty for none.

    Raises
    ------
    ArgumentError
        The file cannot be read, or the text is no JSON object, or a value is no number or array.
    """
    if data is None:
        return ""
    if isinstance(data, Mapping):
        return json.dumps({str(name): _plain(str(name), data[name]) for name in data})
    if isinstance(data, str) and (_is_text(data) or not data.strip()):
        text, source = data, "the text"
    else:
        text, source = _read(Path(data), "Stan data"), f"'{os.fspath(data)}'"
    if not text.strip():
        return ""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentError(
            f"Expected Stan data as a JSON object, found {source} that is no JSON: {error}."
        ) from None
    if not isinstance(found, dict):
        raise ArgumentError(
            f"Expected Stan data as a JSON object, found a {type(found).__name__} in {source}."
        )
    return text


def _is_text(given: str) -> bool:
    """Whether a string is the text itself, and not the path of a file."""
    if "\n" in given:
        return True
    try:
        return "{" in given and not Path(given).is_file()
    except (OSError, ValueError):
        return True  # no path is so long, or has such characters


def _read(path: Path, what: str) -> str:
    try:
        # Some editors begin a file with a byte order mark, which is no part of the text.
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ArgumentError(f"Expected {what} in the file '{path}': {reason}.") from error


def _has_mask(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_mask, value))
    return isinstance(value, np.ma.MaskedArray)


def _plain(name: str, value: Any) -> Any:
    """Numbers and nested lists of a value, as Stan's JSON has them."""
    if _has_mask(value):
        raise ArgumentError(
            f"Expected numbers without a mask of NumPy's own for the Stan data '{name}', found a "
            "masked array, whose hidden entries Stan would take for data. Pass the entries that "
            "are seen, and their places as data of their own."
        )
    try:
        array = np.asarray(value)
    except ValueError:
        raise ArgumentError(
            f"Expected numbers or a rectangular array for the Stan data '{name}', found rows of "
            "different lengths or shapes. Stan's ragged arrays are one flat array and the lengths."
        ) from None
    if array.dtype.kind == "b":
        array = array.astype(int)
    if array.dtype.kind not in "iufc":
        raise ArgumentError(
            f"Expected numbers for the Stan data '{name}', found {type(value).__name__} of "
            f"{array.dtype}."
        )
    if array.dtype.kind == "c":
        # Stan reads a complex number as the pair of its parts.
        array = np.stack([array.real, array.imag], axis=-1)
    # NaN and infinity become the names that Stan's reader knows as well.
    return array.tolist()
