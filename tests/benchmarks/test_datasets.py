"""Shipped data sets and files of every layout load; missing ones say what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets

from benchmarks import datasets


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PPL_EXT_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", datasets.SHIPPED)
def test_shipped_sets_load_without_any_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PPL_EXT_DATA", raising=False)
    data = datasets.shipped(name)
    assert data.x.dtype == np.float64
    assert len(data.x) == len(data.y)
    assert np.isfinite(data.x).all()
    reference = getattr(sklearn.datasets, datasets.SHIPPED[name][0])(return_X_y=True)
    np.testing.assert_array_equal(data.x, reference[0])
    np.testing.assert_array_equal(data.y, reference[1])


def test_unknown_name() -> None:
    with pytest.raises(KeyError, match="expected one of breast_cancer"):
        datasets.shipped("no_such_set")


def test_table_with_published_splits(folder: Path) -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.linspace(0, 1, 6)
    train, test = np.array([[0, 1, 2, 3], [5, 4, 3, 2]]), np.array([[4, 5], [0, 1]])
    np.savez(folder / "table.npz", X=x, y=y, split_train=train, split_test=test)
    data = datasets.external("table")
    assert data.task == "regression"
    assert datasets.has_external("table")
    assert not datasets.has_external("other")
    second = data.split(1)
    np.testing.assert_array_equal(second.x_train, x[train[1]])
    np.testing.assert_array_equal(second.y_test, y[test[1]])
    with pytest.raises(IndexError, match="expected a split from 0 to 1, found 2"):
        data.split(2)


def test_sparse_rows_and_labels(folder: Path) -> None:
    dense = {"train": np.array([[0, 2.0, 0], [1.0, 0, 3.0]]), "test": np.array([[0, 0, 4.0]])}
    labels = {"train": np.array([-1, 1], np.int8), "test": np.array([1], np.int8)}
    arrays = {}
    for part, rows in dense.items():
        row, column = np.nonzero(rows)
        arrays |= {
            f"{part}_data": rows[row, column],
            f"{part}_indices": column,
            f"{part}_indptr": np.concatenate([[0], np.cumsum(np.bincount(row))]),
            f"{part}_shape": np.array(rows.shape),
            f"{part}_y": labels[part],
        }
    np.savez(folder / "sparse.npz", **arrays)
    data = datasets.external("sparse")
    assert data.task == "classification"
    split = data.split(0)
    np.testing.assert_array_equal(split.x_train, dense["train"])
    np.testing.assert_array_equal(split.x_test, dense["test"])
    np.testing.assert_array_equal(split.y_train, [0, 1])
    np.testing.assert_array_equal(split.y_test, [1])


def test_images_in_two_files(folder: Path) -> None:
    images = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    labels = np.array([3, 1, 2, 3, 1, 2], np.uint8)
    np.savez(
        folder / "images.npz",
        X_train=images[:4],
        y_train=labels[:4],
        X_test=images[4:],
        y_test=labels[4:],
    )
    split = datasets.external("images").split(0)
    np.testing.assert_array_equal(split.x_train, images[:4].reshape(4, 4))
    np.testing.assert_array_equal(split.y_test, labels[4:] - 1)


def test_missing_data_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(folder / "here.npz", X=np.zeros((2, 1)), y=np.zeros(2))
    with pytest.raises(datasets.MissingDataError, match="found only here there; correct the name"):
        datasets.external("absent")
    np.savez(folder / "odd.npz", Z=np.zeros(2))
    with pytest.raises(ValueError, match=r"odd: expected arrays X and y.*found Z"):
        datasets.external("odd")
    monkeypatch.delenv("PPL_EXT_DATA")
    with pytest.raises(datasets.MissingDataError, match="PPL_EXT_DATA to name a folder"):
        datasets.external("here")
    assert not datasets.has_external("here")


def test_random_split_is_a_partition_that_the_seed_decides(folder: Path) -> None:
    np.savez(folder / "table.npz", X=np.arange(10.0)[:, None], y=np.arange(10.0))
    data = datasets.external("table")
    first, again, other = (data.random_split(seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_train, other.x_train)
    everything = np.sort(np.concatenate([first.x_train, first.x_test]).ravel())
    np.testing.assert_array_equal(everything, np.arange(10.0))
    with pytest.raises(ValueError, match="expected a test fraction"):
        data.random_split(0, test_fraction=0.01)


def test_standardising_uses_training_rows_only_and_can_be_undone() -> None:
    split = datasets.Split(
        x_train=np.array([[0.0, 7.0], [2.0, 7.0]]),
        y_train=np.array([1.0, 5.0]),
        x_test=np.array([[4.0, 8.0]]),
        y_test=np.array([9.0]),
    )
    scaled = split.standardised(response=True)
    np.testing.assert_allclose(scaled.x_train, [[-1, 0], [1, 0]])
    np.testing.assert_allclose(scaled.x_test, [[3, 1]])
    np.testing.assert_allclose(scaled.y_test * scaled.y_scale + scaled.y_location, [9.0])
    np.testing.assert_array_equal(split.standardised().y_train, split.y_train)


def test_images_keep_their_shape_and_number_their_labels(folder: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    labels = np.array([7, 3, 5, 7, 3, 5], np.uint8)
    arrays = {"X_train": pixels[:4], "y_train": labels[:4]}
    np.savez(folder / "images.npz", **arrays, X_test=pixels[4:], y_test=labels[4:])
    data = datasets.images("images")
    np.testing.assert_array_equal(data.x_train, pixels[:4])
    np.testing.assert_array_equal(data.y_train, [2, 0, 1, 2])
    np.testing.assert_array_equal(data.y_test, [0, 1])
    assert data.x_test.dtype == np.uint8
    np.savez(folder / "table.npz", X=np.zeros((2, 1)), y=np.zeros(2))
    with pytest.raises(ValueError, match="table: expected arrays X_train.*found X, y"):
        datasets.images("table")


@pytest.mark.parametrize("name, public", datasets.OPENML_IMAGES.items())
def test_images_from_openml_are_split_where_they_were_published(
    name: str, public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PPL_EXT_DATA", raising=False)
    asked = []

    def fetch(name: str, **options: object) -> tuple[np.ndarray, np.ndarray]:
        asked.append((name, options["version"]))
        x = np.zeros((70_000, 784), np.uint8)
        x[60_000, 28] = 9  # the first test image: second row, first column
        return x, np.array(["0", "1"] * 35_000)

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    data = datasets.images(name)
    assert asked == [(public, 1)]
    assert data.x_train.shape == (60_000, 28, 28) and data.x_test.shape == (10_000, 28, 28)
    assert data.x_test[0, 1, 0] == 9 and not data.x_train.any()
    np.testing.assert_array_equal(data.y_test[:3], [0, 1, 0])


def test_series(folder: Path) -> None:
    values = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    np.savez(folder / "named.npz", X=values, columns=np.array(["a", "b"]))
    data = datasets.series("named")
    np.testing.assert_array_equal(data.values, values)
    assert data.values.dtype == np.float64
    assert data.columns == ("a", "b")
    np.savez(folder / "bare.npz", X=values)
    assert datasets.series("bare").columns == ("0", "1")
    np.savez(folder / "gaps.npz", X=np.array([[0.0, np.nan]]))
    with pytest.raises(ValueError, match="gaps: expected finite values, found 1"):
        datasets.series("gaps")
    np.savez(folder / "table.npz", X=values, y=np.zeros(3))
    with pytest.raises(ValueError, match=r"table: expected a series X .* without y; found X"):
        datasets.series("table")


def test_missing_series_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PPL_EXT_DATA", raising=False)
    with pytest.raises(
        datasets.MissingDataError, match=r"weather.npz.*The file holds X.*weather.csv"
    ):
        datasets.series("weather")
    with pytest.raises(datasets.MissingDataError, match=r"other.npz.*writes them\.$"):
        datasets.series("other")
