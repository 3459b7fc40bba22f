"""Files of saved states: one format for both packages, without pickle.

A file is a NumPy archive. ``header`` holds JSON: the format, what the state belongs to (the
engine, its settings, the model's latent sites), and the state itself, a tree of dictionaries,
lists, tuples, numbers, strings and None, in which arrays stand by their numbers; ``array0``,
``array1`` and so on hold them. A package says how its own arrays become NumPy's, and how it gets
them back. ``digest`` is one of all the others.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import stat
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ppl_ext.errors import ArgumentError, ModelCheckError, ResumeWarning
from ppl_ext.running.whole_files import Path, checked_path, replaced

FORMAT = 4
#: Entries of a header, and what they are.
_ENTRIES: dict[str, type] = {
    "engine": str,
    "settings": Mapping,
    "tuning": Mapping,
    "sites": list,
    "state": Mapping,
}
#: What comes up where a tree is not what it is taken for.
_UNFIT = (KeyError, ValueError, TypeError, IndexError, AttributeError, RuntimeError, AssertionError)

#: A package's array as NumPy's, with what its own needs besides, in words and numbers.
ToArray = Callable[[Any], tuple[np.ndarray, dict[str, Any]]]
FromArray = Callable[[np.ndarray, dict[str, Any]], Any]


def save(path: Path, belongs_to: Mapping[str, Any], state: Any, to_array: ToArray) -> None:
    """Write a state; the file is complete or absent, never half written.

    Parameters
    ----------
    path : path
    belongs_to : mapping
        The entries ``engine``, ``settings``, ``tuning`` and ``sites``, which :func:`check`
        compares.
    state : tree
    to_array : callable
        For every leaf that is no number, string or None.

    Raises
    ------
    ArgumentError
        No file can be written there.
    """
    arrays: dict[str, np.ndarray] = {}
    header = {"format": FORMAT, **belongs_to, "state": _encoded(state, arrays, to_array)}
    with replaced(path) as file:
        np.savez(file, allow_pickle=False, **signed(header, arrays))


def signed(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The entries of a file: the arrays, the header, and a digest of both.

    The digest tells damage, also by a tool that wrote the file anew. It is no seal: whoever changes
    a file on purpose can make another.
    """
    entries = {**arrays, "header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    return {**entries, "digest": _digest(entries)}


def _digest(entries: Mapping[str, np.ndarray]) -> np.ndarray:
    found = hashlib.blake2b(digest_size=16)
    for name, array in sorted(entries.items()):
        # Names, types and shapes count too: under others the same bytes are other numbers.
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return np.frombuffer(found.digest(), np.uint8)


def load(path: Path, engine: str, from_array: FromArray) -> tuple[dict[str, Any], Any]:
    """Header and state of a file that this engine wrote.

    Raises
    ------
    ArgumentError
        The file is not a saved state, of this format, or another engine's.
    """
    header, arrays = _read(path)
    if header["format"] != FORMAT:
        raise ArgumentError(
            f"Expected a state of format {FORMAT}, which this version reads, found format "
            f"{header['format']} in {os.fspath(path)}. Load it with the version that saved it."
        )
    own = arrays.pop("digest", None)
    if own is None or not np.array_equal(own, _digest(arrays)):
        raise _damaged(path, "its numbers or its header are not those that were saved")
    if missing := [name for name in _ENTRIES if name not in header]:
        raise _damaged(path, f"its header has no {missing}")
    for name, kind in _ENTRIES.items():
        if not isinstance(header[name], kind):
            raise _damaged(path, f"its {name} is {header[name]!r}")
    check_engine(header["engine"], engine)
    with reading(path):
        state = _decoded(header.pop("state"), arrays, from_array)
        if not isinstance(state, dict):
            raise TypeError(f"its state is {state!r}")
    return header, state


@contextmanager
def reading(path: Any) -> Iterator[None]:
    """Context in which a saved state is taken apart: what does not fit is its damage.

    Raises
    ------
    ArgumentError
        It is damaged.
    """
    try:
        yield
    except (ArgumentError, ModelCheckError):
        raise
    except _UNFIT as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def check_engine(found: str, engine: str) -> None:
    """See that a state is of the engine of this name.

    Raises
    ------
    ArgumentError
        It is another's.
    """
    if found != engine:
        raise ArgumentError(
            f"Expected a state of {engine}, found one of {found}. Load it with that engine."
        )


def _damaged(path: Any, detail: str) -> ArgumentError:
    where = os.fspath(path) if isinstance(path, str | os.PathLike) else "it"
    return ArgumentError(
        f"Expected a whole saved state, found that {where} is damaged: {detail}. Load an "
        "earlier checkpoint."
    )


def check_kinds(label: str, own: Any, found: Any) -> None:
    """See that a saved tree is of the kinds of the present engine's: names, shapes and types.

    What is empty or None in one of them is not there yet, and may be anything in the other.

    Raises
    ------
    ArgumentError
        It is of others.
    """
    if own is None or found is None:
        return
    if isinstance(own, Mapping) and isinstance(found, Mapping):
        same = not own or not found or own.keys() == found.keys()
        pairs = [(name, own[name], found[name]) for name in own.keys() & found.keys()]
    elif isinstance(own, list | tuple) and isinstance(found, list | tuple):
        same = not own or not found or len(own) == len(found)
        pairs = [(str(i), *each) for i, each in enumerate(zip(own, found, strict=False))]
    else:
        same, pairs = _kind(own) == _kind(found), []
    if not same:
        raise ArgumentError(
            f"Expected a saved state with a {label} of {_kind(own)}, found {_kind(found)}. Load "
            "it with the engine that saved it, or load an earlier checkpoint."
        )
    for name, one, other in pairs:
        check_kinds(f"{label} '{name}'", one, other)


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"entries {list(value)}"
    if isinstance(value, list | tuple):
        return f"{len(value)} entries"
    if hasattr(value, "shape") and len(value.shape):
        return f"{value.dtype} in {len(value.shape)} axes"
    return "text" if isinstance(value, str) else "a number"


def check_finite(finite: Mapping[str, Any]) -> None:
    """See that what a state that is loaded has found is finite, as an engine keeps it.

    Parameters
    ----------
    finite : mapping of str to bool
        Whether all numbers of the array of that name are.

    Raises
    ------
    ArgumentError
        They are not.
    """
    if bad := [name for name, each in finite.items() if not bool(each)]:
        raise ArgumentError(
            f"Expected finite numbers in the saved state, found NaN or infinity in {bad}. Load an "
            "earlier checkpoint."
        )


def check(header: Mapping[str, Any], belongs_to: Mapping[str, Any]) -> None:
    """See that a state belongs to an engine with these settings, of a model with these sites.

    Raises
    ------
    ArgumentError
        It does not.
    """
    if header["sites"] != belongs_to["sites"]:
        raise ArgumentError(
            "The saved state belongs to another model or other arguments: expected latent sites "
            f"{belongs_to['sites']}, found {header['sites']}. Make the engine with the same model."
        )
    own, saved = belongs_to["settings"], header["settings"]
    for name in {**own, **saved}:
        if saved.get(name) != own.get(name):
            raise ArgumentError(
                f"The saved state belongs to an engine with another {name}: expected "
                f"{own.get(name)}, found {saved.get(name)}. Make the engine with the same {name} "
                "as when it was saved."
            )
    # With other settings the numbers of a state mean something else; with other tuning a run only
    # goes on in another way.
    own, saved = belongs_to["tuning"], header["tuning"]
    for name in own:
        if saved.get(name) != own[name]:
            warnings.warn(
                f"The saved state goes on with this engine's own {name}, {own[name]}, where it was "
                f"saved with {saved.get(name)}. Make the engine with those to go on as before.",
                ResumeWarning,
                stacklevel=4,
            )


def digest(belongs_to: Mapping[str, Any]) -> np.ndarray:
    """What a state belongs to, tuning left out, as two numbers: uint32 (2,)."""
    compared = {name: belongs_to[name] for name in ("engine", "settings", "sites")}
    text = json.dumps(compared, sort_keys=True).encode()
    return np.frombuffer(hashlib.blake2b(text, digest_size=8).digest(), np.uint32)


def check_leaves(label: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """See that the arrays of a tree, by path, are those of the present engine's in kind.

    Parameters
    ----------
    label : str
        What the tree is.
    expected, found : mapping of str to object
        Shape and type of each array.

    Raises
    ------
    ArgumentError
        They are not.
    """
    for path in {**expected, **found}:
        if expected.get(path) != found.get(path):
            raise ArgumentError(
                f"The saved {label} does not fit this engine: expected {path} of "
                f"{expected.get(path)}, found {found.get(path)}. Make the engine with the same "
                "options (optimizer, number of particles, estimator, precision) as when it was "
                "saved."
            )


def _encoded(tree: Any, arrays: dict[str, np.ndarray], to_array: ToArray) -> Any:
    if isinstance(tree, np.generic):
        tree = tree.item()
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    if (kind := _KINDS.get(type(tree))) is not None:
        pairs = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        # Keys of JSON's own are strings, and those of optimizers often numbers.
        return {kind: [[key, _encoded(value, arrays, to_array)] for key, value in pairs]}
    array, extra = to_array(tree)
    entry = {"array": len(arrays), **extra}
    if array.dtype.isbuiltin != 1:  # bfloat16 and the like, which NumPy's files cannot name
        entry |= {"dtype": str(array.dtype), "shape": list(array.shape)}
        array = np.frombuffer(array.tobytes(), np.uint8)
    arrays[f"array{len(arrays)}"] = array
    return entry


#: Trees are made of these, by their names in files.
_KINDS: dict[type, str] = {
    dict: "dict",
    collections.OrderedDict: "dict",
    collections.Counter: "counter",
    list: "list",
    tuple: "tuple",
}


def _decoded(entry: Any, arrays: Mapping[str, np.ndarray], from_array: FromArray) -> Any:
    if not isinstance(entry, dict):
        return entry
    if "array" in entry:
        extra = dict(entry)
        array = arrays[f"array{extra.pop('array')}"]
        if "shape" in extra:
            array = np.frombuffer(array.tobytes(), np.dtype(extra.pop("dtype")))
            array = array.reshape(extra.pop("shape"))
        return from_array(array, extra)
    ((kind, pairs),) = entry.items()
    found = {key: _decoded(value, arrays, from_array) for key, value in pairs}
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(found.values())
    return collections.Counter(found) if kind == "counter" else found


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a saved state.

    Raises
    ------
    ArgumentError
        The file holds something else.
    """
    header: Any = None
    problem: Exception | None = None
    where = checked_path(path, "path")
    try:
        kind = os.stat(where).st_mode
        # Folders go on to `open`, whose error says what they are.
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise ValueError("it is a device or a pipe, which may have no end")
        with open(where, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.lib.npyio.NpzFile):
                # All are read before the file is closed, and so that the digest is of what is used.
                arrays = {name: archive[name] for name in archive.files}
                if isinstance(arrays.get("header"), np.ndarray):
                    header = json.loads(arrays["header"].tobytes())
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # A file that was cut off: the archive's parts lie beyond its end.
        problem = error
    if not isinstance(header, dict) or "format" not in header:
        detail = "" if problem is None else f" ({problem})"
        raise ArgumentError(
            f"Expected a file saved by an engine; {where} is not one{detail}. Pass a "
            "path that the engine's save, or a run's checkpoint, has written."
        ) from problem
    return header, arrays
