"""Posteriors of posteriordb: data, reference draws and Stan programs, from one of three places.

`Database.open` reads a folder in posteriordb's official layout (a checkout of
https://github.com/stan-dev/posteriordb), the same through GitHub with the package `posteriordb`
from PyPI, or the small database that lies beside this file in the same layout and needs neither.

The layout, as far as it is read here::

    posterior_database/
      posteriors/NAME.json                                  model, data and reference by name
      data/data/DATA.json.zip                               one JSON object
      data/info/DATA.info.json
      models/info/MODEL.info.json
      models/stan/MODEL.stan
      reference_posteriors/draws/draws/REFERENCE.json.zip   one JSON object for each chain
      reference_posteriors/draws/info/REFERENCE.info.json
      reference_posteriors/summary_statistics/mean_value/mean_value/REFERENCE.json

A posterior may name another's reference: eight schools, centred, has the non-centred one's. NumPy
only; nothing here imports a backend.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import math
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FOLDER_VARIABLE = "POSTERIORDB"
EMBEDDED = Path(__file__).resolve().parent / "embedded" / "posterior_database"
GITHUB_REPOSITORY = "stan-dev/posteriordb"

Values = dict[str, "int | float | NDArray[Any]"]


class DatabaseError(ValueError):
    """A database, or something in it, cannot be read; the message is one line."""


class UnknownPosteriorError(DatabaseError, KeyError):
    """A database has no posterior of this name; the message lists near names."""

    # KeyError shows the repr of its argument, which is meant for a bare key.
    __str__ = Exception.__str__


class Files(Protocol):
    """Where a database's files come from."""

    where: str

    def names(self) -> list[str]:
        """Names of the posteriors."""
        ...

    def find(self, relative: str) -> Path | None:
        """A local path of the file, or None when the database has no such file."""
        ...


class FolderFiles:
    """Files of a database in a local folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        folder = Path(folder).expanduser()
        inner = folder / "posterior_database"
        self.root = inner if inner.is_dir() else folder
        self.where = str(self.root)
        if not (self.root / "posteriors").is_dir():
            found = "no posteriors/ in it" if folder.is_dir() else "no such folder"
            raise DatabaseError(
                "expected a folder of posteriordb (one that holds posterior_database/, or "
                f"posterior_database/ itself), found {found}: {folder}"
            )

    def names(self) -> list[str]:
        """Names of the posteriors."""
        return sorted(path.stem for path in (self.root / "posteriors").glob("*.json"))

    def find(self, relative: str) -> Path | None:
        """The file's path, or None when there is none."""
        path = self.root / relative
        return path if path.is_file() else None


class GithubFiles:
    """Files of posteriordb on GitHub, fetched one by one by the package `posteriordb` and kept.

    Parameters
    ----------
    store:
        A `posteriordb.PosteriorDatabaseGithub`; its `path` is the folder where files are kept.
    download:
        `posteriordb.posterior_database_github.download_file`: `(url, path)` writes the file and
        returns whether that succeeded.
    """

    def __init__(self, store: Any, download: Callable[[str, Path], bool]) -> None:
        self._store = store
        self._download = download
        self._root = Path(store.path)
        self.where = f"GitHub ({GITHUB_REPOSITORY}, kept in {self._root})"

    def names(self) -> list[str]:
        """Names of the posteriors."""
        return sorted(self._store.posterior_names())

    def find(self, relative: str) -> Path | None:
        """The file's path after fetching it if need be, or None when GitHub has no such file.

        Raises
        ------
        DatabaseError
            When GitHub lists the file but does not deliver it.
        """
        path = self._root / relative
        if path.is_file():
            return path
        # Version 0.2.0 of the package has no call that fetches reference draws, so the list from
        # which it fetches everything else is read directly.
        listed = self._store._links.get(path)
        if listed is None:
            return None
        with _quiet() as said:
            done = self._download(listed["download_url"], path)
        if not done:
            raise DatabaseError(
                f"GitHub lists {relative} but did not deliver it: {_one_line(said.getvalue())}"
            )
        return path


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Catch what the package prints, errors included."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        yield said


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300] or "no reason given"


def open_github() -> GithubFiles:
    """Connect to posteriordb on GitHub through the package `posteriordb`.

    Files are kept where the package keeps them: in the folder that POSTERIOR_DB_PATH names, or in
    `~/.posteriordb/posterior_database`. Set GITHUB_PAT to an access token where GitHub's limit for
    requests without one is too low.

    Raises
    ------
    DatabaseError
        When the package is not installed, POSTERIOR_DB_PATH names a folder that the package cannot
        use, or GitHub cannot be reached.
    """
    folder = os.environ.get("POSTERIOR_DB_PATH")
    # The package puts GitHub's own paths, which begin so, below the folder's parent.
    if folder is not None and Path(folder).name != "posterior_database":
        raise DatabaseError(
            "expected POSTERIOR_DB_PATH to name a folder called posterior_database, found "
            f"{folder!r}"
        )
    try:
        import requests
        from posteriordb import PosteriorDatabaseGithub
        from posteriordb.posterior_database_github import download_file
    except ModuleNotFoundError as error:
        raise DatabaseError(
            f"posteriordb on GitHub is read with the package posteriordb, of which {error.name} is "
            "not installed: pip install 'ppl-ext[stan]', or name a local folder or `embedded`"
        ) from error
    try:
        # The package asks without a time limit, which can hang for minutes where there is no
        # network; and when all attempts fail it stops at a name that was never assigned.
        requests.head("https://api.github.com", timeout=20)
        with _quiet():
            store = PosteriorDatabaseGithub(repo=GITHUB_REPOSITORY)
    except (OSError, ValueError, NameError) as error:
        # What went wrong on the network stands at the end of what requests say.
        reason = _one_line(str(error).rpartition("Caused by ")[2])
        raise DatabaseError(
            f"posteriordb on GitHub cannot be reached ({type(error).__name__}: {reason}); name a "
            f"local folder with --database or {FOLDER_VARIABLE}, or use `embedded`"
        ) from error
    return GithubFiles(store, download_file)


class Database:
    """A set of posteriors by name. Use `Database.open`."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._names = files.names()
        if not self._names:
            raise DatabaseError(f"expected posteriors/*.json, found none in {files.where}")

    @classmethod
    def open(cls, where: str | os.PathLike[str] | None = None) -> Database:
        """Open a database.

        Parameters
        ----------
        where:
            "embedded", "github" or a folder: either the one that holds `posterior_database/` or
            that itself, or one of one's own posteriors (:mod:`benchmarks.posteriordb.own`). None
            means the folder that the environment variable POSTERIORDB names, and the embedded
            database where it is unset or empty.

        Raises
        ------
        DatabaseError
            When there is no database there.
        """
        if where is None:
            where = os.environ.get(FOLDER_VARIABLE) or "embedded"
        if where == "embedded":
            return cls(FolderFiles(EMBEDDED))
        if where == "github":
            return cls(open_github())
        # Imported here, as it imports this.
        from benchmarks.posteriordb import own

        folder = Path(where).expanduser()
        for told in own.left_out(folder):
            print(told, file=sys.stderr, flush=True)
        return cls(own.files_of(folder) if own.names_of(folder) else FolderFiles(folder))

    @property
    def where(self) -> str:
        """Where the database lies, for reports."""
        return self._files.where

    def names(self) -> list[str]:
        """Names of all posteriors, sorted."""
        return list(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Posterior:
        """The posterior of this name.

        Raises
        ------
        UnknownPosteriorError
            When there is none.
        DatabaseError
            When its file cannot be read.
        """
        if name not in self._names:
            near = difflib.get_close_matches(name, self._names, n=3, cutoff=0.4)
            hint = f"near names: {', '.join(near)}" if near else "names() lists all"
            raise UnknownPosteriorError(
                f"expected one of the {len(self._names)} posteriors of {self.where}, found "
                f"{name!r}; {hint}"
            )
        return Posterior(name, self._files)


class Posterior:
    """One posterior: a model, its data and, where there are any, reference draws.

    Attributes
    ----------
    name, model_name, data_name:
        As posteriordb has them, such as "eight_schools-eight_schools_centered",
        "eight_schools_centered" and "eight_schools".
    reference_name:
        Name of the reference draws, another posterior's for some, or None.
    dimensions:
        Parameter -> number of values.
    information:
        The whole entry.
    """

    def __init__(self, name: str, files: Files) -> None:
        self._files = files
        self.name = name
        self.information = _object(self._json(f"posteriors/{name}.json"), f"posteriors/{name}.json")
        try:
            self.model_name: str = self.information["model_name"]
            self.data_name: str = self.information["data_name"]
        except KeyError as error:
            raise DatabaseError(
                f"posteriors/{name}.json in {files.where}: expected the field {error}, found none"
            ) from error
        self.reference_name: str | None = self.information.get("reference_posterior_name")
        self.dimensions: dict[str, int] = dict(self.information.get("dimensions") or {})

    def __repr__(self) -> str:
        return f"Posterior({self.name!r})"

    def data(self) -> Values:
        """The model's data: whole numbers, floats, and arrays (int64 or float64) of lists.

        Raises
        ------
        DatabaseError
            When the file is missing, cut off, or holds something else.
        """
        relative = f"data/data/{self.data_name}.json.zip"
        # The official information names the file; it agrees with the rule above in all of 1.0.
        information = self._files.find(f"data/info/{self.data_name}.info.json")
        if information is not None:
            stated = _object(_read_json(information), str(information)).get("data_file")
            relative = f"{stated}.zip" if stated else relative
        path = self._files.find(relative)
        if path is None:
            raise DatabaseError(
                f"{self.name}: expected the data file {relative} in {self._files.where}, found none"
            )
        entries = _object(_read_zip(path), str(path))
        return {key: _value(value, f"{path}: {key}") for key, value in entries.items()}

    def reference_draws(self) -> dict[str, NDArray[np.float64]] | None:
        """Reference draws: parameter -> (chains, draws, *shape) with `theta[3]` inside `theta`.

        None when the posterior has no reference, or the database holds only its summary.

        Raises
        ------
        DatabaseError
            When the file is cut off, or chains differ in parameters or in length.
        """
        if self.reference_name is None:
            return None
        path = self._files.find(f"reference_posteriors/draws/draws/{self.reference_name}.json.zip")
        if path is None:
            return None
        return gather(_columns(_read_zip(path), str(path)), str(path))

    def reference_information(self) -> dict[str, Any] | None:
        """How the reference was drawn and its diagnostics, or None when there is no such file."""
        return self._reference_json("draws/info/{}.info.json")

    def reference_moments(
        self, power: int = 1
    ) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]] | None:
        """Stated means of the parameters to the `power` 1 or 2, and their Monte Carlo errors.

        Parameter -> (*shape), twice; None when the database has no such summary. They may rest on
        more draws than are kept.
        """
        statistic = {1: "mean_value", 2: "mean_squared_value"}[power]
        stated = self._reference_json(f"summary_statistics/{statistic}/{statistic}/{{}}.json")
        if stated is None:
            return None
        try:
            columns = [
                {
                    name: np.asarray(value, dtype=np.float64)
                    for name, value in zip(stated["names"], stated[key], strict=True)
                }
                for key in (statistic, "mcse_mean")
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise DatabaseError(
                f"{self.reference_name}: expected names, {statistic} and mcse_mean of equal length "
                f"in its summary, found {_one_line(str(error))}"
            ) from error
        what = f"{statistic} of {self.reference_name}"
        return gather(columns[0], what), gather(columns[1], what)

    def stan_program(self) -> Path | None:
        """The database's own Stan program, else the embedded one of this model, else None."""
        relative = f"models/stan/{self.model_name}.stan"
        information = self._files.find(f"models/info/{self.model_name}.info.json")
        if information is not None:
            implementations = _object(_read_json(information), str(information)).get(
                "model_implementations"
            )
            stated = ((implementations or {}).get("stan") or {}).get("model_code")
            relative = stated or relative
        own = self._files.find(relative)
        if own is not None:
            return own
        embedded = EMBEDDED / "models" / "stan" / f"{self.model_name}.stan"
        return embedded if embedded.is_file() else None

    def _reference_json(self, pattern: str) -> dict[str, Any] | None:
        if self.reference_name is None:
            return None
        path = self._files.find(f"reference_posteriors/{pattern.format(self.reference_name)}")
        return None if path is None else _object(_read_json(path), str(path))

    def _json(self, relative: str) -> Any:
        path = self._files.find(relative)
        if path is None:
            raise DatabaseError(f"expected {relative} in {self._files.where}, found none")
        return _read_json(path)


def gather(
    columns: Mapping[str, NDArray[np.float64]], what: str = "draws"
) -> dict[str, NDArray[np.float64]]:
    """Join scalar columns `theta[1]`, `theta[2]`, ... into one array for each parameter.

    Parameters
    ----------
    columns:
        Column name -> array of one common shape; a name is `mu`, `theta[3]` or `L[2,1]`.
    what:
        What the columns are, for messages.

    Returns
    -------
    Parameter -> array of the common shape followed by the parameter's own, () for `mu`; indices
    count from 1 and may come in any order.

    Raises
    ------
    DatabaseError
        When a name has another form, or an element is missing.
    """
    elements: dict[str, dict[tuple[int, ...], NDArray[np.float64]]] = {}
    for name, column in columns.items():
        match = re.fullmatch(r"([^\[\]]+)(?:\[(\d+(?:,\d+)*)\])?", name)
        if match is None:
            raise DatabaseError(f"{what}: expected a name such as theta[3], found {name!r}")
        index = tuple(int(part) - 1 for part in match[2].split(",")) if match[2] else ()
        elements.setdefault(match[1], {})[index] = column
    gathered = {}
    for base, parts in elements.items():
        if len({len(index) for index in parts}) != 1 or any(-1 in index for index in parts):
            raise DatabaseError(f"{what}: expected indices of one form for {base}, counted from 1")
        shape = tuple(max(along) + 1 for along in zip(*parts, strict=True))
        if len(parts) != math.prod(shape):
            raise DatabaseError(
                f"{what}: expected every element of {base}, found {len(parts)} columns for the "
                f"shape {shape}"
            )
        stacked = np.stack([parts[index] for index in np.ndindex(shape)], axis=-1)
        gathered[base] = stacked.reshape((*stacked.shape[:-1], *shape))
    return gathered


def scatter(arrays: Mapping[str, NDArray[np.float64]], rank: int) -> dict[str, NDArray[np.float64]]:
    """The inverse of `gather`: one column for each element, `rank` leading axes kept.

    The last index varies fastest: `L[1,1]`, `L[1,2]`, `L[2,1]`.
    """
    columns = {}
    for base, array in arrays.items():
        for index in np.ndindex(array.shape[rank:]):
            label = ",".join(str(part + 1) for part in index)
            columns[f"{base}[{label}]" if index else base] = array[(..., *index)]
    return columns


def _columns(chains: Any, what: str) -> dict[str, NDArray[np.float64]]:
    """The chains of a file of draws -> column name -> (chains, draws)."""
    if not isinstance(chains, list) or not chains:
        raise DatabaseError(f"{what}: expected a list of chains, found {type(chains).__name__}")
    names = list(_object(chains[0], what))
    for number, chain in enumerate(chains, start=1):
        if set(_object(chain, what)) != set(names):
            differing = sorted(set(chain) ^ set(names))
            raise DatabaseError(
                f"{what}: expected the same parameters in every chain, found chain {number} to "
                f"differ in {', '.join(differing[:5])}"
            )
    try:
        lengths = sorted({len(chain[name]) for chain in chains for name in names})
        if len(lengths) != 1:
            raise DatabaseError(
                f"{what}: expected draws of equal length, found lengths from {lengths[0]} to "
                f"{lengths[-1]}"
            )
        return {
            name: np.array([chain[name] for chain in chains], dtype=np.float64) for name in names
        }
    except (TypeError, IndexError) as error:
        raise DatabaseError(f"{what}: expected lists of numbers, found {error}") from error


def _value(value: Any, what: str) -> int | float | NDArray[Any]:
    """One entry of a data file as a whole number, a float or an array."""
    if isinstance(value, int | float):
        return value
    try:
        array = np.array(value)
    except ValueError:
        raise DatabaseError(
            f"{what}: expected nested lists of equal lengths, found ragged ones"
        ) from None
    if array.size == 0:
        array = array.astype(np.float64)
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise DatabaseError(f"{what}: expected numbers, found {_one_line(repr(value))[:60]}")
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DatabaseError(f"{what}: expected a JSON object, found {type(value).__name__}")
    return value


def _parse(text: bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DatabaseError(f"{what}: expected JSON, found {_one_line(str(error))}") from error


def _read_json(path: Path) -> Any:
    try:
        return _parse(path.read_bytes(), str(path))
    except OSError as error:
        raise DatabaseError(f"{path} cannot be read: {error.strerror}") from error


def _read_zip(path: Path) -> Any:
    """The JSON of the only file in a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            if len(members) != 1:
                raise DatabaseError(
                    f"{path}: expected a zip archive of one file, found {len(members)}"
                )
            text = archive.read(members[0])
    # A file that is cut off or changed shows as one of these, depending on where.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
        raise DatabaseError(
            f"{path}: expected a complete zip archive, found {_one_line(str(error))}; fetch the "
            "file again"
        ) from error
    return _parse(text, str(path))
