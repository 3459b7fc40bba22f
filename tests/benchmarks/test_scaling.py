"""What `scaling` reads from compiled programs, predicts and tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.records import Record
from benchmarks.scaling import kills, prediction, report
from benchmarks.scaling.collectives import Collective, collectives

PROGRAM = """
  %a = f32[16,1000]{1,0} all-gather(%p), replica_groups=mesh['x'=4,'y'=2] {'x'}, dimensions={0}
  %b = (f32[16,10]{1,0}, f64[16]{0}) all-reduce(%q, %r), replica_groups={{0,1},{2,3}}, to_apply=%s
  %c = (f32[4,5]{1,0}, f32[4,5]{1,0}) all-to-all(%t, %u), replica_groups=[4,2]<=[8]
  %d = (f32[2]{0}, f32[8]{0}) all-gather-start(%v), replica_groups={{0,1,2,3}}
  %e = f32[3]{0} add(%w, %x)
"""


def test_collectives_are_read_from_a_program() -> None:
    assert collectives(PROGRAM, 8) == [
        Collective("all-gather", 16000, 64000, 4),
        Collective("all-reduce", 176, 768, 2),
        Collective("all-to-all", 40, 160, 2),
        Collective("all-gather", 5, 20, 4),
    ]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all-gather", 75.0),
        ("all-to-all", 75.0),
        ("all-reduce", 150.0),
        ("reduce-scatter", 300.0),
        ("collective-permute", 100.0),
    ],
)
def test_bytes_that_one_of_four_devices_sends(kind: str, sent: float) -> None:
    assert Collective(kind, 25, 100, 4).sent == sent


def measured(engine: str, devices: int, sent: float, exchange: str = "all-gather") -> Record:
    settings: dict[str, Any] = {
        "engine": engine,
        "layout": "particles",
        "devices": devices,
        "particles": 16,
        "dim": 1000,
        "bytes of a number": 4,
        "exchange": exchange,
        "rows": 256,
    }
    figures = {"bytes sent by a device": sent, "numbers moved": 32000, "collectives": []}
    return Record("scaling", "measured", "numpyro", "regression", 0, settings, figures)


def test_efficiency_is_predicted_from_what_was_measured() -> None:
    """64 particles: 86e6 weights, 197 tokens, 256 images; 2 P D numbers at 50 GB a second."""
    found = prediction.predictions(
        [
            measured("SVGD", 8, 2 * 16000 * 4 * 7 / 8),
            measured("SVGD", 8, 3 * 16000 * 4 * 7 / 64, "all-to-all"),
            measured("DeepEnsemble", 8, 0.0),
        ]
    )
    assert all(each.method == "predicted" for each in found)
    of = {
        (each.settings["engine"], each.settings["exchange"], each.settings["images of a batch"]): (
            each.figures["efficiency"]
        )
        for each in found
    }
    work = 6 * 86e6 * 197 * 256 / (0.4 * 989e12)
    gathered, exchanged = (many * 86e6 * 4 * 63 / 64 / 50e9 for many in (2 * 64, 3))
    assert of["SVGD", "all-gather", 256]["64"] == pytest.approx(work / (work + gathered))
    assert of["SVGD", "all-to-all", 256]["64"] == pytest.approx(work / (work + exchanged))
    assert of["DeepEnsemble", "all-gather", 256]["64"] == 1.0


def test_what_is_predicted_is_called_so(tmp_path: Path) -> None:
    found = [measured("SVGD", 8, 2 * 16000 * 4 * 7 / 8)]
    found += prediction.predictions(found)
    text = report.table(found)
    before, after = text.split("Predicted, not measured")
    assert "32,000" in before and "all-gather" in after and "InfiniBand" not in before
    report.plot(found, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_a_late_end_or_another_result_is_not_good() -> None:
    kills = Record("scaling", "kills", "numpyro", figures={"late": 0, "not exact": 1})
    assert not report.is_good(kills)
    far = measured("SVGD", 8, 0.0)
    far.figures["difference from one device"] = 1e-5
    assert not report.is_good(far)
    assert report.is_good(measured("SVGD", 8, 0.0))


def test_kills_tell_ends_from_silence(capsys: pytest.CaptureFixture[str]) -> None:
    """A run to its end, a kill that is said, one after the end, a silent one, the rest of it."""
    over = {"killed": True, "seconds": 0.5, "message": None, "over": "x", "end": None}
    seen = [
        {"end": "x"},
        {**over, "seconds": 70.0, "message": "RankLostError"},
        over,
        {**over, "over": None, "said": "nothing"},
        {"end": "y", "killed": False},
    ]

    def pair(path: Path, until: float | None, moments: Any) -> Any:
        found = seen.pop(0)
        if (path.name == "state" and found["end"] is not None) or found.get("killed"):
            path.write_text("")
        return found

    record = kills.killed("pyro", pair, 3, seed=0)
    figures = record.figures
    assert not seen and "nothing" in capsys.readouterr().err
    assert figures["messages"] == {"RankLostError": 1} and figures["late"] == 1
    assert figures["the other was at its end"] == 1 and figures["without a message"] == 1
    assert figures["ends"] == 1 and figures["not exact"] == 1 and figures["failed"] == 0
    row = [each.strip() for each in report.kills_table([record]).splitlines()[2].split("|")[1:-1]]
    assert row == ["Pyro", "3", "0.5", "70", "1", "1", "1", "1", "1"]


@pytest.mark.parametrize(
    ("backend", "engine", "least"),
    [
        ("numpyro", "SVGD", 1),
        ("numpyro", "FisherVI", 2),
        ("numpyro", "SVN", 1001),
        ("pyro", "SVN", 1),
    ],
)
def test_what_rows_have_to_move(backend: str, engine: str, least: int) -> None:
    record = measured(engine, 8, 0.0)
    record.backend, record.settings["layout"] = backend, "rows"
    assert report.least(record) == least * 16 * 1000
