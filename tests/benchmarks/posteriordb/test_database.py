"""Reading posteriordb: folders, GitHub through the package, and what is said of bad input."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.posteriordb import database as subject
from benchmarks.posteriordb.database import (
    EMBEDDED,
    Database,
    DatabaseError,
    GithubFiles,
    UnknownPosteriorError,
    gather,
    scatter,
)

DRAWS = "reference_posteriors/draws/draws"
MEANS = "reference_posteriors/summary_statistics/mean_value/mean_value"
CHAINS = [
    {"theta[2]": [2.0, 5.0], "mu": [0.5, 0.25], "theta[1]": [1.0, 4.0]},
    {"theta[2]": [8.0, 11.0], "mu": [1.5, 1.25], "theta[1]": [7.0, 10.0]},
]
DATA = {"N": 3, "scale": 0.5, "y": [1, 2, 3], "x": [[1, 2.5], [3, 4]], "none": []}


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_zip(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(path.stem, value if isinstance(value, str) else json.dumps(value))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A database of two posteriors that share data and the reference of the second."""
    root = tmp_path / "checkout" / "posterior_database"
    for name in ("line-centred", "line-plain"):
        write_json(
            root / "posteriors" / f"{name}.json",
            {
                "name": name,
                "model_name": name.partition("-")[2],
                "data_name": "line",
                "reference_posterior_name": "line-plain",
                "dimensions": {"theta": 2, "mu": 1},
            },
        )
    write_zip(root / "data" / "data" / "line.json.zip", DATA)
    write_json(root / "data" / "info" / "line.info.json", {"data_file": "data/data/line.json"})
    for model in ("centred", "plain"):
        code = {"stan": {"model_code": f"models/stan/{model}.stan"}}
        write_json(root / "models" / "info" / f"{model}.info.json", {"model_implementations": code})
    (root / "models" / "stan").mkdir()
    (root / "models" / "stan" / "plain.stan").write_text("model {}", encoding="utf-8")
    write_zip(root / DRAWS / "line-plain.json.zip", CHAINS)
    write_json(root / "reference_posteriors/draws/info/line-plain.info.json", {"name": "x"})
    write_json(
        root / MEANS / "line-plain.json",
        {"names": ["mu", "theta[1]", "theta[2]"], "mean_value": [1, 2, 3], "mcse_mean": [4, 5, 6]},
    )
    return root


def error_of(posterior: str, folder: Path, call: str) -> str:
    """The one line that is said when a posterior of a broken database is read."""
    with pytest.raises(DatabaseError) as caught:
        getattr(Database.open(folder)[posterior], call)()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_checkout_and_its_inner_folder_are_the_same_database(folder: Path) -> None:
    for where in (folder, folder.parent, str(folder.parent)):
        database = Database.open(where)
        assert database.names() == ["line-centred", "line-plain"]
        assert database.where == str(folder)
    assert len(database) == 2 and list(database) == database.names() and "line" not in database


def test_entries_are_read(folder: Path) -> None:
    posterior = Database.open(folder)["line-centred"]
    assert posterior.name == "line-centred"
    assert posterior.model_name == "centred"
    assert posterior.data_name == "line"
    assert posterior.dimensions == {"theta": 2, "mu": 1}
    assert posterior.reference_name == "line-plain"


def test_data_keep_whole_numbers_apart_from_floats(folder: Path) -> None:
    data = Database.open(folder)["line-plain"].data()
    assert data["N"] == 3 and type(data["N"]) is int
    assert data["scale"] == 0.5 and type(data["scale"]) is float
    assert isinstance(data["y"], np.ndarray) and data["y"].dtype == np.int64
    assert isinstance(data["x"], np.ndarray) and data["x"].dtype == np.float64
    assert data["x"].tolist() == [[1.0, 2.5], [3.0, 4.0]]
    assert isinstance(data["none"], np.ndarray) and data["none"].shape == (0,)


def test_draws_are_gathered_by_index_and_shared_with_the_alias(folder: Path) -> None:
    for name in ("line-plain", "line-centred"):
        draws = Database.open(folder)[name].reference_draws()
        assert draws is not None
        assert draws["mu"].shape == (2, 2) and draws["theta"].shape == (2, 2, 2)
        assert draws["theta"].dtype == np.float64
        # Chain 2, draw 1: the file has theta[2] before theta[1].
        assert draws["theta"][1, 0].tolist() == [7.0, 8.0]
        assert draws["mu"][1].tolist() == [1.5, 1.25]


def test_stated_moments_and_information_are_those_of_the_reference(folder: Path) -> None:
    posterior = Database.open(folder)["line-centred"]
    moments = posterior.reference_moments()
    assert moments is not None
    assert moments[0]["theta"].tolist() == [2.0, 3.0] and moments[1]["mu"] == 4.0
    assert posterior.reference_moments(2) is None
    assert posterior.reference_information() == {"name": "x"}


def test_no_reference_is_none(folder: Path) -> None:
    entry = json.loads((folder / "posteriors" / "line-plain.json").read_text())
    write_json(
        folder / "posteriors" / "line-plain.json", entry | {"reference_posterior_name": None}
    )
    posterior = Database.open(folder)["line-plain"]
    assert posterior.reference_draws() is None
    assert posterior.reference_moments() is None
    assert posterior.reference_information() is None


def test_draws_that_are_not_kept_are_none_while_their_moments_are_read(folder: Path) -> None:
    (folder / DRAWS / "line-plain.json.zip").unlink()
    posterior = Database.open(folder)["line-plain"]
    assert posterior.reference_draws() is None
    assert posterior.reference_moments() is not None


def test_the_own_stan_program_comes_first_then_the_embedded_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded = tmp_path / "embedded"
    (embedded / "models" / "stan").mkdir(parents=True)
    for model in ("plain", "centred"):
        (embedded / "models" / "stan" / f"{model}.stan").write_text("", encoding="utf-8")
    monkeypatch.setattr(subject, "EMBEDDED", embedded)
    database = Database.open(folder)
    assert database["line-plain"].stan_program() == folder / "models" / "stan" / "plain.stan"
    centred = embedded / "models" / "stan" / "centred.stan"
    assert database["line-centred"].stan_program() == centred
    centred.unlink()
    assert database["line-centred"].stan_program() is None


def test_where_to_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTERIORDB", str(folder.parent))
    assert Database.open().where == str(folder)
    assert Database.open("embedded").where == str(EMBEDDED)
    monkeypatch.setenv("POSTERIORDB", "")
    assert Database.open().where == str(EMBEDDED)
    monkeypatch.delenv("POSTERIORDB")
    assert Database.open().where == str(EMBEDDED)


def test_an_unknown_posterior_names_near_ones(folder: Path) -> None:
    with pytest.raises(UnknownPosteriorError, match="near names: line-plain") as caught:
        Database.open(folder)["line-plian"]
    assert isinstance(caught.value, KeyError) and "'line-plian'" in str(caught.value)
    with pytest.raises(UnknownPosteriorError, match="lists all"):
        Database.open(folder)["?"]


def test_a_wrong_folder_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"no such folder: .*nowhere"):
        Database.open(tmp_path / "nowhere")
    with pytest.raises(DatabaseError, match="no posteriors/ in it"):
        Database.open(folder / "data")
    (tmp_path / "empty" / "posteriors").mkdir(parents=True)
    with pytest.raises(DatabaseError, match="found none"):
        Database.open(tmp_path / "empty")


def test_a_missing_data_file_is_named(folder: Path) -> None:
    (folder / "data" / "data" / "line.json.zip").unlink()
    assert "data/data/line.json.zip" in error_of("line-plain", folder, "data")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(
    ("file", "call"),
    [("data/data/line.json.zip", "data"), (f"{DRAWS}/line-plain.json.zip", "reference_draws")],
)
def test_a_truncated_zip_is_named(folder: Path, file: str, call: str, share: float) -> None:
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: int(share * len(content))])
    text = error_of("line-centred", folder, call)
    assert Path(file).name in text and "complete zip archive" in text


def test_a_damaged_zip_is_named(folder: Path) -> None:
    path = folder / DRAWS / "line-plain.json.zip"
    content = bytearray(path.read_bytes())
    # Past the local header and the name, inside the compressed numbers.
    content[60] ^= 0xFF
    path.write_bytes(bytes(content))
    assert "complete zip archive" in error_of("line-plain", folder, "reference_draws")


def test_a_pointer_in_place_of_a_zip_is_named(folder: Path) -> None:
    (folder / "data" / "data" / "line.json.zip").write_text("version https://git-lfs", "utf-8")
    assert "complete zip archive" in error_of("line-plain", folder, "data")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "expected JSON"),
        ("[1]", "expected a JSON object, found list"),
        ({"y": [[1, 2], [3]]}, "y: expected nested lists of equal lengths"),
        ({"y": ["a"]}, "y: expected numbers"),
        ({"y": None}, "y: expected numbers"),
    ],
)
def test_data_of_another_form_are_named(folder: Path, content: Any, said: str) -> None:
    write_zip(folder / "data" / "data" / "line.json.zip", content)
    assert said in error_of("line-plain", folder, "data")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"mu": [1.0]}, "expected a list of chains"),
        ([], "expected a list of chains"),
        ([{"mu": [1.0, 2.0]}, {"mu": [1.0]}], "equal length, found lengths from 1 to 2"),
        ([{"mu": [1.0, 2.0], "nu": [1.0]}], "equal length"),
        ([{"mu": [1.0]}, {"nu": [1.0]}], "chain 2 to differ in mu, nu"),
        ([{"theta[1]": [1.0], "theta[3]": [1.0]}], "every element of theta"),
        ([{"theta[0]": [1.0]}], "counted from 1"),
        ([{"theta": [1.0], "theta[1]": [1.0]}], "one form for theta"),
        ([{"theta[1": [1.0]}], "such as theta\\[3\\], found 'theta\\[1'"),
        ([{"mu": 1.0}], "expected lists of numbers"),
        ([{}], "expected lists of numbers"),
    ],
)
def test_draws_of_another_form_are_named(folder: Path, content: Any, said: str) -> None:
    write_zip(folder / DRAWS / "line-plain.json.zip", content)
    with pytest.raises(DatabaseError, match=said):
        Database.open(folder)["line-plain"].reference_draws()


def test_an_archive_of_two_files_is_named(folder: Path) -> None:
    with zipfile.ZipFile(folder / "data" / "data" / "line.json.zip", "a") as archive:
        archive.writestr("other.json", "{}")
    assert "one file, found 2" in error_of("line-plain", folder, "data")


def test_an_incomplete_entry_is_named(folder: Path) -> None:
    write_json(folder / "posteriors" / "line-plain.json", {"name": "line-plain"})
    with pytest.raises(DatabaseError, match="expected the field 'model_name'"):
        Database.open(folder)["line-plain"]


def test_uneven_moments_are_named(folder: Path) -> None:
    write_json(
        folder / MEANS / "line-plain.json",
        {"names": ["mu"], "mean_value": [1.0, 2.0], "mcse_mean": [1.0]},
    )
    assert "of equal length" in error_of("line-plain", folder, "reference_moments")


def test_gather_and_scatter_are_inverse() -> None:
    values = np.random.default_rng(0).normal(size=(4, 7, 12))
    arrays = {"L": values.reshape(4, 7, 3, 4), "v": values[..., :1], "s": values[..., 0]}
    columns = scatter(arrays, rank=2)
    assert columns["L[2,3]"].tolist() == arrays["L"][:, :, 1, 2].tolist()
    assert "v[1]" in columns and "s" in columns and len(columns) == 14
    back = gather(dict(reversed(columns.items())))
    assert all(np.array_equal(back[name], arrays[name]) for name in arrays)


# GitHub: the package itself, with the network's part played by a folder.


class Answer:
    """What `requests.get` gives."""

    def __init__(self, content: bytes) -> None:
        self.ok, self.content = True, content

    def json(self) -> Any:
        return json.loads(self.content)


class Network:
    """GitHub's list of contents and its files, from a local checkout; counts what is fetched."""

    api = "https://api.github.com/repos/stan-dev/posteriordb/contents"

    def __init__(self, checkout: Path) -> None:
        self.checkout, self.fetched = checkout, list[str]()
        self.broken = False

    def head(self, url: str, **options: Any) -> Answer:
        if self.broken:
            raise OSError("Name or service not known")
        return Answer(b"")

    def get(self, url: str, **options: Any) -> Answer:
        if self.broken:
            raise OSError("Name or service not known")
        if not url.startswith(self.api):
            self.fetched.append(url)
            return Answer((self.checkout / url.removeprefix("raw:")).read_bytes())
        inside = self.checkout / url.removeprefix(self.api + "/").partition("?")[0]
        return Answer(json.dumps([self.entry(path) for path in sorted(inside.iterdir())]).encode())

    def entry(self, path: Path) -> dict[str, Any]:
        relative = path.relative_to(self.checkout).as_posix()
        sha = hashlib.sha1(path.read_bytes()).hexdigest() if path.is_file() else ""
        return {
            "type": "dir" if path.is_dir() else "file",
            "path": relative,
            "sha": sha,
            "download_url": f"raw:{relative}",
            "_links": {"self": f"{self.api}/{relative}"},
        }


@pytest.fixture
def network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    import posteriordb.posterior_database_github
    import requests

    network = Network(folder.parent)
    monkeypatch.setattr(requests, "head", network.head)
    monkeypatch.setattr(posteriordb.posterior_database_github.requests, "get", network.get)
    return network


def test_github_gives_what_the_folder_gives(
    folder: Path,
    network: Network,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = tmp_path / "kept" / "posterior_database"
    monkeypatch.setenv("POSTERIOR_DB_PATH", str(kept))
    remote, local = Database.open("github"), Database.open(folder)
    assert remote.names() == local.names() and "stan-dev/posteriordb" in remote.where
    assert network.fetched == []
    ours, theirs = remote["line-centred"], local["line-centred"]
    assert ours.information == theirs.information
    assert str(ours.data()) == str(theirs.data())
    draws, expected = ours.reference_draws(), theirs.reference_draws()
    assert draws is not None and expected is not None
    assert np.array_equal(draws["theta"], expected["theta"])
    program = remote["line-plain"].stan_program()
    assert program is not None and program == kept / "models" / "stan" / "plain.stan"
    assert program.read_text() == "model {}"
    assert remote["line-centred"].stan_program() is None
    # Files that were fetched are kept.
    before = list(network.fetched)
    ours.data()
    ours.reference_draws()
    assert network.fetched == before
    # The package prints its doings; a report should not have them.
    assert capsys.readouterr().out == ""


def test_a_file_that_github_does_not_deliver_is_named(
    folder: Path, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTERIOR_DB_PATH", str(tmp_path / "kept" / "posterior_database"))
    posterior = Database.open("github")["line-plain"]
    (folder / DRAWS / "line-plain.json.zip").unlink()
    with pytest.raises(DatabaseError, match=r"did not deliver it: .*No such file") as caught:
        posterior.reference_draws()
    assert "\n" not in str(caught.value)


def test_github_out_of_reach_is_one_line(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POSTERIOR_DB_PATH", str(tmp_path / "posterior_database"))
    network.broken = True
    with pytest.raises(DatabaseError, match=r"cannot be reached \(OSError: Name or") as caught:
        Database.open("github")
    assert "\n" not in str(caught.value) and "embedded" in str(caught.value)


def test_github_that_refuses_the_list_is_one_line(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POSTERIOR_DB_PATH", str(tmp_path / "posterior_database"))
    import posteriordb.posterior_database_github as module

    def fail(url: str, **options: Any) -> Answer:
        raise OSError("reset by peer")

    # All three attempts of the package fail, after which it uses a name that it never assigned.
    monkeypatch.setattr(module.requests, "get", fail)
    with pytest.raises(DatabaseError, match="cannot be reached"):
        Database.open("github")


def test_a_folder_that_the_package_cannot_use_is_named(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POSTERIOR_DB_PATH", str(tmp_path / "kept"))
    with pytest.raises(DatabaseError, match=r"called posterior_database, found '.*kept'"):
        Database.open("github")


def test_github_without_the_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "posteriordb", None)
    with pytest.raises(DatabaseError, match=r"posteriordb is not installed: pip install"):
        Database.open("github")


def test_the_adapter_needs_no_more_than_a_list_of_links(folder: Path, tmp_path: Path) -> None:
    class Store:
        def __init__(self) -> None:
            self.path = tmp_path / "posterior_database"
            self._links = {
                self.path / file.relative_to(folder): {"download_url": str(file)}
                for file in folder.rglob("*")
            }

        def posterior_names(self) -> list[str]:
            return ["line-plain", "line-centred"]

    def download(url: str, path: Path) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(url, path)
        return True

    database = Database(GithubFiles(Store(), download))
    assert database.names() == ["line-centred", "line-plain"]
    assert database["line-plain"].data()["N"] == 3


# A real checkout, where there is one.


@pytest.mark.skipif(not os.environ.get("POSTERIORDB"), reason="POSTERIORDB names no checkout")
def test_every_posterior_of_a_checkout_reads() -> None:
    database = Database.open()
    for name in database:
        posterior = database[name]
        assert posterior.data()
        draws, moments = posterior.reference_draws(), posterior.reference_moments()
        if draws is None:
            continue
        sizes = {key: int(np.prod(value.shape[2:])) for key, value in draws.items()}
        assert sizes.items() <= posterior.dimensions.items()
        if moments is not None:
            for key, value in draws.items():
                # The moments are of the same 10,000 draws, but written with few digits in places.
                error = np.abs(value.mean((0, 1)) - moments[0][key]) / moments[1][key]
                assert np.all(error < 1.0), f"{name}: {key}"
