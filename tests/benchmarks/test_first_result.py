"""The wait for the first answer: what is compared with what, and that a run is recorded."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command_line
from benchmarks import records
from benchmarks.first_result import comparison


def parsed(*options: str) -> Namespace:
    """Options of the command line."""
    return command_line.build_parser("first-result").parse_args(["first-result", *options])


def made_up(
    method: str, cpu: float, mean: float = 0.0, *, diagnostic: str | None = None, **fields: Any
) -> records.Record:
    """A record of a run with these CPU seconds and this posterior mean."""
    read = {"wall": 2 * cpu, "cpu": cpu, "programs": 10 * cpu, "found in the cache": 0}
    stages = {"run": {**read, "cpu": cpu - 1.0, "programs": 0}, "draws": read}
    stages["arviz" if diagnostic is None else "diagnostic"] = {**read, "cpu": cpu + 3.0}
    return records.Record(
        "first-result",
        method,
        "numpyro",
        "eight_schools",
        settings={"diagnostic": diagnostic, "checkout": "this"},
        figures={"stages": stages, "mean": {"mu": [mean, 0.0]}, "sd": {"mu": [2.0, 1.0]}},
        **fields,
    )


def test_table_by_hand() -> None:
    found = [made_up("NUTS", 8.0), made_up("SVI", 4.0, 1.0)]
    found += [made_up("SVGD", seconds, mean) for seconds, mean in ((1.0, 2.0), (3.0, 4.0))]
    failed = made_up("SVGD", 99.0, error="ChildFailed: no result within 1 s")
    failed.figures = {}
    rows = {row["method"]: row for row in comparison.table([*found, failed])}
    assert [rows[method]["draws"] for method in rows] == [8.0, 4.0, 2.0]
    assert rows["SVGD"]["draws / NUTS"] == 0.25 and rows["SVGD"]["draws / SVI"] == 0.5
    assert rows["SVGD"]["ArviZ"] == 5.0 and rows["SVGD"]["programs"] == 20
    # The means of two runs are off by one and by two of NUTS's standard deviations.
    assert rows["SVGD"]["error"] == 1.5 and rows["NUTS"]["error"] is None
    assert rows["SVGD"]["failed"] == 1 and "checkout" not in rows["SVGD"]


def test_diagnostics_are_the_call_alone() -> None:
    called = made_up("ProximalScoreVI", 2.0, diagnostic="ksd")
    rows = comparison.diagnostics_table([made_up("ProximalScoreVI", 5.0), called])
    found = {row["call"]: (row["CPU s"], row["programs"]) for row in rows}
    assert found == {"get_samples": (1.0, 50), "ksd": (5.0, 20), "to_arviz": (3.0, 0)}


def test_cases_take_turns_and_hosts_run_once() -> None:
    options = ["--backend", "pyro", "--models", "network", "--methods", "NUTS", "SVN"]
    cases = list(comparison._cases(parsed(*options, "--diagnostics", "ksd", "--against", "/")))
    found = [(case["method"], case["diagnostic"], case["checkout"]) for case in cases]
    assert found == [
        ("NUTS", None, None),
        ("SVN", None, None),
        ("SVN", None, "/"),
        ("ProximalScoreVI", "ksd", None),
        ("ProximalScoreVI", "ksd", "/"),
    ]


def test_compilation_cache_is_off_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    assert "JAX_COMPILATION_CACHE_DIR" not in comparison.environment(None)
    kept = comparison.environment(tmp_path)
    assert kept["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path)
    assert kept["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"


def test_runs_and_reports_failures_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only = ["--small", "--rounds", "1", "--backend", "pyro", "--models", "eight_schools"]
    arguments = ["first-result", *only, "--out", str(tmp_path), "--methods", "SVGD"]
    assert command_line.main([*arguments, "--diagnostics", "elbo"]) == 0
    fit, called = records.read(tmp_path / "first-result.jsonl")
    assert list(fit.figures["stages"]) == ["run", "draws", "arviz"]
    assert list(called.figures["stages"]) == ["run", "draws", "diagnostic"]
    assert fit.figures["stages"]["draws"]["cpu"] > 0 and len(fit.figures["mean"]["eta"]) == 8
    assert (tmp_path / "first-result.png").stat().st_size > 0
    monkeypatch.setattr(comparison.sys, "executable", "false")
    assert command_line.main([*arguments, "--diagnostics"]) == 0
    (failed,) = records.read(tmp_path / "first-result.jsonl")
    assert failed.error == "ChildFailed: status 1: no message"
    # The earlier records are kept beside the new ones.
    assert len(records.read(tmp_path / "first-result-1.jsonl")) == 2
