"""Small versions of the commands ``kills`` and ``soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.process.soak import growth

PACKAGES = ("pyro", "numpyro")


def test_growth_compares_the_last_fifth_with_the_second() -> None:
    assert growth([5.0] * 2 + [10.0] * 2 + [50.0] * 4 + [11.0] * 2) == pytest.approx(0.1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_torn_left_or_lost_by_kills(package: str, tmp_path: Path) -> None:
    options = ["--backend", package, "--kills", "6", "--interrupts", "4", "--out", str(tmp_path)]
    assert command_line.main(["kills", *options]) == 0
    killed, interrupted = records.read(tmp_path / "kills.jsonl")
    assert killed.figures["kills"] == 6 and killed.figures["ends"] > 0
    assert interrupted.figures["interrupts"] == 4 and interrupted.figures["steps"] > 0
    assert (tmp_path / "kills.png").stat().st_size > 0 and (
        tmp_path / "kills.md"
    ).stat().st_size > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("package", PACKAGES)
def test_memory_is_written_down(package: str, tmp_path: Path) -> None:
    options = ["--steps", "500", "--engines", "6", "--out", str(tmp_path)]
    command_line.main(["soak", "--backend", package, *options])
    long, many = records.read(tmp_path / "soak.jsonl")
    assert len(long.figures["megabytes"]) == 50 and len(many.figures["megabytes"]) == 6
    assert (tmp_path / "soak.png").stat().st_size > 0 and (tmp_path / "soak.md").stat().st_size > 0
