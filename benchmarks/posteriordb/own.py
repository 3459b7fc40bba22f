"""A folder of one's own posteriors: a program, its data and, where there are any, its draws.

    my_posteriors/
        line.py     numpyro_model(data) or pyro_model(data), or both
        line.json   the data, what the program is given as `data`
        line.npz    reference draws, parameter -> (chains, draws, *shape); or none

They are put into posteriordb's layout, in `posterior_database/` of that folder, and again when one
of the files has changed. Where there are no draws, a long run of NUTS makes them of the NumPyro
program:

    python -m benchmarks.posteriordb.own FOLDER NAME

which `--database FOLDER` does by itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.posteriordb import programs
from benchmarks.posteriordb.database import Database, DatabaseError, FolderFiles, scatter
from benchmarks.posteriordb.embedded_data import write_json, write_zip

Draws = dict[str, NDArray[np.float64]]


def names_of(folder: Path) -> list[str]:
    """Names of the posteriors in a folder: what has a program and data."""
    return sorted(path.stem for path in folder.glob("*.py") if path.with_suffix(".json").is_file())


def left_out(folder: Path) -> list[str]:
    """What is said of programs in a folder that have no data beside them."""
    found = []
    for path in sorted(folder.glob("*.py")):
        is_program = re.search(r"\b(numpyro|pyro)_model\b", path.read_text(encoding="utf-8"))
        if is_program and not path.with_suffix(".json").is_file():
            found.append(f"{path.name} is left out: its data, {path.stem}.json, is not beside it")
    return found


def files_of(folder: Path) -> FolderFiles:
    """A folder of one's own posteriors as a database, and their programs with the others.

    Raises
    ------
    DatabaseError
        A program, its data or its draws cannot be used, or NUTS does not give a reference.
    """
    for name in names_of(folder):
        written = _programs(folder, name)
        for backend, program in written.items():
            programs.OWN[backend][name] = program
        digest, entry = _digest(folder, name), _entry(folder, name)
        if entry.is_file() and json.loads(entry.read_text()).get("sha256") == digest:
            continue
        sizes = _prepare(folder, name, written)
        if "numpyro" in written and not (folder / f"{name}.npz").is_file():
            print(f"{name}: NUTS draws its reference", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", __name__, str(folder), name]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                raise DatabaseError(f"{name}: {done.stderr.strip().splitlines()[-1]}")
        _state(folder, name, sizes, digest)
    return FolderFiles(folder)


def _programs(folder: Path, name: str) -> dict[str, Callable[..., Any]]:
    """The programs in a file, by host."""
    path = folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"own_posterior_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's own file raises
        raise DatabaseError(f"{path}: {type(error).__name__}: {error}") from error
    found = {
        backend: getattr(module, f"{backend}_model")
        for backend in ("numpyro", "pyro")
        if callable(getattr(module, f"{backend}_model", None))
    }
    if not found:
        raise DatabaseError(f"{path}: expected numpyro_model(data) or pyro_model(data), found none")
    return found


def _entry(folder: Path, name: str) -> Path:
    return folder / "posterior_database" / "posteriors" / f"{name}.json"


def _digest(folder: Path, name: str) -> str:
    digest = hashlib.sha256()
    for suffix in (".py", ".json", ".npz"):
        path = folder / f"{name}{suffix}"
        digest.update(path.read_bytes() if path.is_file() else b"none")
    return digest.hexdigest()


def _state(folder: Path, name: str, sizes: dict[str, int], digest: str | None) -> None:
    """Write a posterior's entry; without a digest it is made anew the next time."""
    own = {"name": name, "model_name": name, "data_name": name, "dimensions": sizes}
    draws = folder / "posterior_database/reference_posteriors/draws/draws" / f"{name}.json.zip"
    known = name if draws.is_file() else None
    write_json(_entry(folder, name), own | {"reference_posterior_name": known, "sha256": digest})


def _prepare(folder: Path, name: str, written: dict[str, Callable[..., Any]]) -> dict[str, int]:
    """Write data and the draws that are given; sizes of the parameters."""
    root, path = folder / "posterior_database", folder / f"{name}.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DatabaseError(f"{path}: expected JSON, found {error}") from error
    for stale in root.rglob(f"{name}.*json*"):
        stale.unlink()
    write_zip(root / "data" / "data" / f"{name}.json.zip", data)
    given = folder / f"{name}.npz"
    if given.is_file():
        with np.load(given) as file:
            draws: Draws = {key: np.asarray(file[key], np.float64) for key in file.files}
        leading = {value.shape[:2] for value in draws.values()}
        if len(leading) != 1 or any(value.ndim < 2 for value in draws.values()):
            found = {key: value.shape for key, value in draws.items()}
            raise DatabaseError(
                f"{given}: expected draws of shape (chains, draws, ...), found {found}"
            )
        columns = scatter(draws, rank=2)
        write_zip(
            root / "reference_posteriors" / "draws" / "draws" / f"{name}.json.zip",
            [
                {column: values[chain].tolist() for column, values in columns.items()}
                for chain in range(next(iter(leading))[0])
            ],
        )
        return {key: int(np.prod(value.shape[2:])) for key, value in draws.items()}
    _state(folder, name, {}, None)
    posterior = Database(FolderFiles(folder))[name]
    backend, program = next(iter(written.items()))
    try:
        return _SIZES[backend](program, posterior.data())
    except Exception as error:  # whatever the user's own program raises
        told = f"{folder / name}.py: its program fails on its data: {type(error).__name__}: {error}"
        raise DatabaseError(told) from error


def _sizes_in_numpyro(program: Callable[..., Any], data: Any) -> dict[str, int]:
    import jax
    from numpyro import handlers

    trace = handlers.trace(handlers.seed(program, jax.random.key(0))).get_trace(data)
    return {
        name: int(np.size(site["value"]))
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    }


def _sizes_in_pyro(program: Callable[..., Any], data: Any) -> dict[str, int]:
    from pyro import poutine

    trace = poutine.trace(program).get_trace(data)
    latent = {name: trace.nodes[name] for name in trace.stochastic_nodes}
    return {
        name: int(site["value"].numel())
        for name, site in latent.items()
        if not poutine.util.site_is_subsample(site)
    }


_SIZES: dict[str, Callable[..., dict[str, int]]] = {
    "numpyro": _sizes_in_numpyro,
    "pyro": _sizes_in_pyro,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the reference of one posterior by NUTS; returns the exit status."""
    from benchmarks.posteriordb.reference import DEFAULT, UnfitError, make

    folder, name = Path((argv or sys.argv[1:])[0]), (argv or sys.argv[1:])[1]
    import numpyro

    numpyro.enable_x64()
    written = _programs(folder, name)
    programs.OWN["numpyro"][name] = written["numpyro"]
    _state(folder, name, _prepare(folder, name, written), None)
    try:
        make(Database(FolderFiles(folder))[name], folder / "posterior_database", DEFAULT)
    except UnfitError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
