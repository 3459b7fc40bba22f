"""Data sets for the benchmarks: those that scikit-learn ships, and files under PPL_EXT_DATA.

`shipped` needs no file and no network. `external` reads `NAME.npz` from the folder that the
environment variable PPL_EXT_DATA names; the layouts that it understands are written at `external`.
Values come as float64 rows, unscaled and in the original order; `Split.standardised` scales with
the training rows' statistics alone. `images` and `series` read files of the same folder as images
and as time series.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Loaded = TypeVar("Loaded")
Task = Literal["regression", "classification"]

FOLDER_VARIABLE = "PPL_EXT_DATA"
# name -> (loader in sklearn.datasets, task); all of them lie inside scikit-learn's own package.
SHIPPED: dict[str, tuple[str, Task]] = {
    "breast_cancer": ("load_breast_cancer", "classification"),
    "diabetes": ("load_diabetes", "regression"),
    "digits": ("load_digits", "classification"),
    "iris": ("load_iris", "classification"),
    "linnerud": ("load_linnerud", "regression"),
    "wine": ("load_wine", "classification"),
}


# Images that OpenML holds: the benchmarks' name -> OpenML's.
OPENML_IMAGES = {"mnist": "mnist_784", "fashion_mnist": "Fashion-MNIST"}

# Public copies of the time series that the benchmarks know, for the message when one is missing.
SERIES_SOURCES = {
    "exchange_rate": "daily exchange rates of 8 countries (exchange_rate.csv), linked at "
    "https://github.com/thuml/Autoformer",
    "illness": "weekly influenza-like illness, CDC (national_illness.csv), linked at "
    "https://github.com/thuml/Autoformer",
    "weather": "10-minute weather of Jena in 2020 (weather.csv), linked at "
    "https://github.com/thuml/Autoformer",
}


class MissingDataError(FileNotFoundError):
    """A data set is not on this machine; the message says how to give it."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Training and test rows of one data set.

    `x_train` (n, d), `y_train` (n,) or (n, outputs), and the same for the test rows. `y_location`
    and `y_scale` undo the scaling of the response: original = scaled * y_scale + y_location.
    """

    x_train: NDArray[np.float64]
    y_train: NDArray[Any]
    x_test: NDArray[np.float64]
    y_test: NDArray[Any]
    y_location: NDArray[np.float64] | float = 0.0
    y_scale: NDArray[np.float64] | float = 1.0

    def standardised(self, *, response: bool = False) -> Split:
        """Scale features to training mean 0 and variance 1; the response too if asked.

        A feature that is constant over the training rows keeps its scale. Scaling the response is
        for regression; `y_location` and `y_scale` of the result bring predictions back.
        """
        location, scale = self.x_train.mean(0), self.x_train.std(0)
        scale = np.where(scale > 0, scale, 1.0)
        scaled = dataclasses.replace(
            self,
            x_train=(self.x_train - location) / scale,
            x_test=(self.x_test - location) / scale,
        )
        if not response:
            return scaled
        y_location, y_scale = self.y_train.mean(0), self.y_train.std(0)
        return dataclasses.replace(
            scaled,
            y_train=(self.y_train - y_location) / y_scale,
            y_test=(self.y_test - y_location) / y_scale,
            y_location=y_location,
            y_scale=y_scale,
        )


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A table with its task and where it came from.

    `x` is (n, d). `y` is (n,) or (n, outputs): float64 for regression, int64 labels 0, 1, ... for
    classification. `splits` holds the data set's published (training rows, test rows), if any.
    """

    name: str
    task: Task
    x: NDArray[np.float64]
    y: NDArray[Any]
    source: str
    splits: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...] = ()

    def split(self, index: int) -> Split:
        """Published split number `index`.

        Raises
        ------
        IndexError
            When the data set has no such split.
        """
        if not 0 <= index < len(self.splits):
            raise IndexError(
                f"{self.name}: expected a split from 0 to {len(self.splits) - 1}, found {index}"
                if self.splits
                else f"{self.name} comes without published splits; use random_split instead."
            )
        return self._rows(*self.splits[index])

    def random_split(self, seed: int, test_fraction: float = 0.2) -> Split:
        """Rows drawn at random into training and test, the same for the same seed."""
        order = np.random.default_rng(seed).permutation(len(self.x))
        num_test = round(test_fraction * len(order))
        if not 0 < num_test < len(order):
            raise ValueError(
                f"{self.name}: expected a test fraction that leaves rows on both sides of "
                f"{len(order)}, found {test_fraction}."
            )
        return self._rows(order[num_test:], order[:num_test])

    def _rows(self, train: NDArray[np.int64], test: NDArray[np.int64]) -> Split:
        return Split(self.x[train], self.y[train], self.x[test], self.y[test])


def shipped(name: str) -> Dataset:
    """One of the real data sets that scikit-learn carries in its own package.

    Raises
    ------
    KeyError
        When `name` is none of `SHIPPED`.
    MissingDataError
        When scikit-learn is not installed.
    """
    if name not in SHIPPED:
        raise KeyError(f"expected one of {', '.join(SHIPPED)}, found {name!r}.")
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise MissingDataError(
            f"the data set {name!r} is shipped with scikit-learn, which is not installed: "
            "install it with pip install 'ppl-ext[plots]'."
        ) from error
    loader, task = SHIPPED[name]
    load: Callable[..., tuple[Any, Any]] = getattr(datasets, loader)
    x, y = load(return_X_y=True)
    return Dataset(
        name,
        task,
        np.asarray(x, dtype=np.float64),
        np.asarray(y, dtype=np.int64 if task == "classification" else np.float64),
        source=f"scikit-learn, sklearn.datasets.{loader}",
    )


def external_folder() -> Path | None:
    """The folder that PPL_EXT_DATA names, or None when the variable is unset or empty."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder) if folder else None


def external_array(name: str, key: str) -> NDArray[Any]:
    """A further array of `$PPL_EXT_DATA/NAME.npz`, such as a second response.

    Raises
    ------
    MissingDataError
        When the file is missing, or has no such array.
    """
    arrays = _read_file(name, ".")
    if key not in arrays:
        raise MissingDataError(
            f"{name}.npz: expected an array {key!r}, found only {', '.join(arrays)}."
        )
    return arrays[key]


def has_external(name: str) -> bool:
    """Whether `external(name)` would find its file."""
    folder = external_folder()
    return folder is not None and (folder / f"{name}.npz").is_file()


def external(name: str) -> Dataset:
    """The table in `$PPL_EXT_DATA/NAME.npz`.

    Understood layouts (arrays without pickled objects):

    - `X` (n, d), `y` (n,): one table. Optional `split_train` (k, n_train) and `split_test`
      (k, n_test): k published splits as row numbers from 0.
    - `X`, `y`, `X_test`, `y_test`, or `X_train`, `y_train`, `X_test`, `y_test`: the training and
      the test file; the result holds both, one after the other, as its only split. Features of
      more than one axis (images) are flattened.
    - `train_data`, `train_indices`, `train_indptr`, `train_shape`, `train_y` and the same with
      `test_`: compressed sparse rows, made dense.

    Whole-number or Boolean `y` means classification; labels become 0, 1, ... in sorted order.

    Raises
    ------
    MissingDataError
        When PPL_EXT_DATA is unset or holds no such file.
    ValueError
        When the file's arrays have none of the layouts above.
    """
    arrays = _read_file(name, f", or use a data set that scikit-learn ships: {', '.join(SHIPPED)}.")
    x, y, splits = _read_layout(name, arrays)
    classification = y.dtype.kind in "biu"
    if classification:
        y = np.unique(y, return_inverse=True)[1]
    return Dataset(
        name,
        "classification" if classification else "regression",
        x,
        y.astype(np.int64 if classification else np.float64),
        source=f"{external_folder()}/{name}.npz",
        splits=splits,
    )


@dataclasses.dataclass(frozen=True)
class Images:
    """Labelled images with their published training and test parts.

    `x_train` (n, height, width) and `x_test` are uint8, `y_train` (n,) and `y_test` int64 labels
    0, 1, ....
    """

    name: str
    x_train: NDArray[np.uint8]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.int64]
    source: str


def there(names: Iterable[str], load: Callable[[str], Loaded]) -> Iterator[tuple[str, Loaded]]:
    """What can be loaded of these names; of the others a line says why not."""
    for name in names:
        try:
            yield name, load(name)
        except MissingDataError as error:
            print(f"{name}: {error}")


def images(name: str) -> Images:
    """The images in `$PPL_EXT_DATA/NAME.npz`, else, of those in `OPENML_IMAGES`, from OpenML.

    The file holds `X_train` (n, height, width) and `X_test`, uint8, and the labels `y_train` and
    `y_test`.

    Raises
    ------
    MissingDataError
        When there is no such file and, for those, OpenML cannot be reached.
    ValueError
        When the file has other arrays.
    """
    if name in OPENML_IMAGES and not has_external(name):
        return _images_from_openml(name)
    arrays = _read_file(
        name, ". The file holds X_train and X_test, uint8 (n, height, width), y_train and y_test."
    )
    if not {"X_train", "y_train", "X_test", "y_test"} <= set(arrays):
        raise ValueError(
            f"{name}: expected arrays X_train, y_train, X_test and y_test; found "
            f"{', '.join(arrays)}."
        )
    labels = np.unique(arrays["y_train"])
    return Images(
        name,
        arrays["X_train"].astype(np.uint8),
        np.searchsorted(labels, arrays["y_train"]).astype(np.int64),
        arrays["X_test"].astype(np.uint8),
        np.searchsorted(labels, arrays["y_test"]).astype(np.int64),
        source=f"{external_folder()}/{name}.npz",
    )


def _images_from_openml(name: str) -> Images:
    """Images by scikit-learn's downloader, which keeps a copy in its own cache."""
    try:
        from sklearn.datasets import fetch_openml
    except ModuleNotFoundError as error:
        raise MissingDataError(
            f"{name} is fetched with scikit-learn, which is not installed: install it with "
            "pip install 'ppl-ext[plots]'."
        ) from error
    public = OPENML_IMAGES[name]
    try:
        x, y = fetch_openml(public, version=1, as_frame=False, return_X_y=True)
    # Its own errors are ValueErrors, those of the network OSErrors.
    except (OSError, ValueError) as error:
        raise MissingDataError(
            f"expected {name}.npz in the folder that {FOLDER_VARIABLE} names, or OpenML within "
            f"reach, found neither ({type(error).__name__}: {error}). Set {FOLDER_VARIABLE} to a "
            f"folder with {name}.npz, holding X_train (60000, 28, 28) and X_test (10000, 28, 28), "
            "uint8, y_train and y_test, or try again with a network."
        ) from error
    # OpenML keeps the published order: 60,000 training images, then 10,000 of the test set.
    shaped, labels = x.astype(np.uint8).reshape(-1, 28, 28), y.astype(np.int64)
    return Images(
        name,
        shaped[:60_000],
        labels[:60_000],
        shaped[60_000:],
        labels[60_000:],
        source=f"OpenML, {public}, version 1",
    )


@dataclasses.dataclass(frozen=True)
class Series:
    """A multivariate time series: `values` (n, channels) in time order, and the channels' names."""

    name: str
    values: NDArray[np.float64]
    columns: tuple[str, ...]
    source: str


def series(name: str) -> Series:
    """The time series in `$PPL_EXT_DATA/NAME.npz`.

    The file holds `X` (n, channels) in time order and, if they have names, `columns` (channels,).

    Raises
    ------
    MissingDataError
        When there is no such file; the message says where the known series come from.
    ValueError
        When the file holds no such array, or values that are not finite.
    """
    where = SERIES_SOURCES.get(name)
    arrays = _read_file(
        name,
        ". The file holds X, (n, channels) in time order, and columns, the channels' names, as "
        "numpy.savez writes them" + (f". The data are public: {where}." if where else "."),
    )
    values = arrays.get("X")
    if values is None or values.ndim != 2 or "y" in arrays:
        found = ", ".join(f"{key} {value.shape}" for key, value in arrays.items())
        raise ValueError(f"{name}: expected a series X (n, channels) without y; found {found}.")
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name}: expected finite values, found {int((~np.isfinite(values)).sum())} that are "
            "not; fill or cut the gaps first."
        )
    columns = arrays.get("columns", np.arange(values.shape[1]))
    return Series(
        name,
        values.astype(np.float64),
        tuple(str(column) for column in columns),
        source=f"{external_folder()}/{name}.npz",
    )


def _read_file(name: str, instead: str) -> dict[str, NDArray[Any]]:
    """Arrays of `$PPL_EXT_DATA/NAME.npz`; `instead` ends the message when there is none."""
    folder = external_folder()
    if folder is None:
        raise MissingDataError(
            f"expected the environment variable {FOLDER_VARIABLE} to name a folder with "
            f"{name}.npz, found it unset; set it{instead}"
        )
    path = folder / f"{name}.npz"
    if not path.is_file():
        there = sorted(file.stem for file in folder.glob("*.npz")) if folder.is_dir() else []
        raise MissingDataError(
            f"expected {path}, found "
            + (f"only {', '.join(there)} there" if there else "no .npz file there")
            + f"; correct the name or {FOLDER_VARIABLE}{instead}"
        )
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def _read_layout(
    name: str, arrays: dict[str, NDArray[Any]]
) -> tuple[
    NDArray[np.float64], NDArray[Any], tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]
]:
    """Features (n, d), response and published splits from the arrays of one file."""
    if "train_indptr" in arrays:
        parts = [
            (_dense_rows(arrays, prefix), arrays[f"{prefix}_y"]) for prefix in ("train", "test")
        ]
    elif "X_train" in arrays:
        parts = [(arrays["X_train"], arrays["y_train"]), (arrays["X_test"], arrays["y_test"])]
    elif "X" in arrays and "y" in arrays:
        parts = [(arrays["X"], arrays["y"])]
        if "X_test" in arrays:
            parts.append((arrays["X_test"], arrays["y_test"]))
    else:
        raise ValueError(
            f"{name}: expected arrays X and y, X_train and y_train, or compressed sparse rows; "
            f"found {', '.join(arrays)}."
        )
    x = np.concatenate([part.reshape(len(part), -1) for part, _ in parts]).astype(np.float64)
    y = np.concatenate([part for _, part in parts])
    if len(parts) == 2:
        rows = np.arange(len(x))
        num_train = len(parts[0][0])
        return x, y, ((rows[:num_train], rows[num_train:]),)
    trains, tests = arrays.get("split_train", ()), arrays.get("split_test", ())
    splits = zip(trains, tests, strict=True)
    return x, y, tuple((train.astype(np.int64), test.astype(np.int64)) for train, test in splits)


def _dense_rows(arrays: dict[str, NDArray[Any]], prefix: str) -> NDArray[np.float64]:
    """Dense (n, d) rows from compressed sparse ones (data, indices, indptr, shape)."""
    num_rows, num_columns = (int(size) for size in arrays[f"{prefix}_shape"])
    dense = np.zeros((num_rows, num_columns))
    rows = np.repeat(np.arange(num_rows), np.diff(arrays[f"{prefix}_indptr"]))
    # A column that a row names twice counts twice, as in the sparse format itself.
    np.add.at(dense, (rows, arrays[f"{prefix}_indices"]), arrays[f"{prefix}_data"])
    return dense
