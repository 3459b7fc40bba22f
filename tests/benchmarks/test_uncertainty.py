"""The uncertainty figure: its rows are what they claim, and it runs with both packages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command_line
from benchmarks.uncertainty import figure
from tests import arviz_support as support

# xarray uses what NumPy has deprecated.
pytestmark = [pytest.mark.filterwarnings(rule) for rule in support.IGNORED]


def test_rows_of_another_kind_are_not_trained_on() -> None:
    rows = figure.digits()
    assert set(rows["unseen"][1]) == {8, 9}
    for part in ("train", "test"):
        assert set(rows[part][1]) == set(range(8))
    train, test = ({row.tobytes() for row in rows[part][0]} for part in ("train", "test"))
    assert len(train) == figure.TRAINING_ROWS and not train & test


@pytest.mark.parametrize("backend", ["pyro", pytest.param("numpyro", marks=pytest.mark.slow)])
def test_it_runs(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure, "ENGINES", ("DeepEnsemble",))
    arguments = ["uncertainty", "--backend", backend, "--steps", "1", "--out", str(tmp_path)]
    assert command_line.main(arguments) == 0
    assert (tmp_path / "uncertainty.png").stat().st_size > 10_000
    (line,) = (tmp_path / "uncertainty.md").read_text().splitlines()[2:]
    cells = [float(cell) for cell in line.split("|")[3:-1]]
    assert len(cells) == 5 and np.isfinite(cells).all()
