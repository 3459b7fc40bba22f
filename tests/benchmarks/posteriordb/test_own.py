"""A folder of a user's own posteriors, by the page, and what is said of one that cannot be used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import records
from benchmarks.__main__ import main
from benchmarks.posteriordb import programs
from benchmarks.posteriordb.database import Database, DatabaseError

PAGE = Path(__file__).parents[3] / "docs" / "posteriordb.md"
X, Y = np.array([1.0, 2.0, 3.0]), np.array([2.1, 3.9, 6.2])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The page's posterior, without draws."""
    text = PAGE.read_text(encoding="utf-8").partition("## Posteriors of your own")[2]
    program = re.findall(r"^```py\n(.*?)^```", text, re.S | re.M)[0]
    data = re.findall(r"line\.json`, `(\{.*?\})`", text)[0]
    own = tmp_path / "my_posteriors"
    own.mkdir()
    (own / "line.py").write_text(program)
    (own / "line.json").write_text(data)
    yield own
    for known in programs.OWN.values():
        known.clear()


def exact(chains: int = 4, draws: int = 2_000) -> np.ndarray:
    """Draws of the slope: a Normal, whose precision is sum(x²) / 0.25 + 0.01."""
    precision = (X**2).sum() / 0.25 + 0.01
    mean = (X * Y).sum() / 0.25 / precision
    return np.random.default_rng(0).normal(mean, precision**-0.5, (chains, draws))


def run(folder: Path, *words: str) -> list[records.Record]:
    out = folder.parent / "out"
    every = ["--database", str(folder), "--budget", "2000", "--jobs", "1", "--out", str(out)]
    assert main(["posteriordb", *every, *words]) == 0
    assert "line" in (out / "leaderboard.html").read_text()
    return records.read(out / "posteriordb.jsonl")


def test_a_folder_with_draws(folder: Path) -> None:
    np.savez(folder / "line.npz", slope=exact())
    (found,) = run(folder, "--methods", "GSM")
    assert found.model == "line" and found.error is None and found.figures["right"]
    # Other draws are another reference.
    np.savez(folder / "line.npz", slope=exact() + 1.0)
    (found,) = run(folder, "--methods", "GSM")
    assert not found.figures["right"]


@pytest.mark.slow
def test_draws_are_made_where_there_are_none(folder: Path) -> None:
    (found,) = run(folder, "--methods", "GSM")
    assert found.figures["right"]
    draws = Database.open(folder)["line"].reference_draws()
    assert draws is not None
    assert abs(draws["slope"].mean() - exact().mean()) < 4.0 * exact().std() / 1_700**0.5


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("line.py", "x = 1", r"expected numpyro_model\(data\) or pyro_model\(data\), found none"),
        ("line.py", "1 / 0", "ZeroDivisionError"),
        ("line.py", "def pyro_model(data):\n    data['z']", "its program fails .* KeyError: 'z'"),
        ("line.json", "{", "expected JSON"),
    ],
)
def test_what_cannot_be_used_is_told(folder: Path, file: str, text: str, told: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(DatabaseError, match=told):
        Database.open(folder)


def test_draws_of_another_shape_are_told(folder: Path) -> None:
    np.savez(folder / "line.npz", slope=exact()[0])
    with pytest.raises(DatabaseError, match=r"\(chains, draws, \.\.\.\), found .*\(2000,\)"):
        Database.open(folder)


def test_a_pyro_program_has_no_reference(folder: Path) -> None:
    (folder / "line.py").write_text(
        "import pyro, torch\n"
        "import pyro.distributions as dist\n"
        "def pyro_model(data):\n"
        "    slope = pyro.sample('slope', dist.Normal(0.0, 10.0).expand([2]).to_event(1))\n"
        "    x, y = (torch.as_tensor(data[name]) for name in 'xy')\n"
        "    with pyro.plate('rows', len(x)):\n"
        "        pyro.sample('y', dist.Normal(slope.sum(-1) * x, 0.5), obs=y)\n"
    )
    posterior = Database.open(folder)["line"]
    assert posterior.dimensions == {"slope": 2} and posterior.reference_draws() is None
    assert json.loads((folder / "line.json").read_text())["x"] == list(X)


def test_a_program_without_its_data_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(folder / "line.npz", slope=exact())
    (folder / "other.py").write_text("def pyro_model(data): ...\n")
    (folder / "helper.py").write_text("LIMIT = 3\n")  # no program
    Database.open(str(folder))
    told = capsys.readouterr().err
    assert "other.py is left out: its data, other.json, is not beside it" in told
    assert "helper" not in told and "line" not in told
