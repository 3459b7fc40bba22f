"""Refits and many data sets: what is called right, tables of known figures, small whole runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as command_line
from benchmarks import fit_many, records, refit
from benchmarks.records import Record


def drawn(seed: int, mean: float = 0.0, sd: float = 1.0) -> Any:
    """A fit of 400 independent draws of ten numbers, of which the last is of another posterior."""
    draws = np.random.default_rng(seed).normal(size=(400, 10))
    draws[:, -1] = mean + sd * draws[:, -1]
    worth = {"x": SimpleNamespace(ess_bulk=400.0)}
    return SimpleNamespace(draws={"x": draws}, verdict=SimpleNamespace(by_site=worth))


def test_fits_of_one_posterior_are_alike_and_others_are_not() -> None:
    assert all(refit.apart(drawn(seed), drawn(seed + 20)) < 1.0 for seed in range(20))
    assert refit.apart(drawn(0, mean=0.5), drawn(1)) > 1.0
    assert refit.apart(drawn(0, sd=0.7), drawn(1)) > 1.0
    assert refit.apart(drawn(0), drawn(1, sd=1.4)) > 1.0


@pytest.mark.parametrize("name", refit.FAMILIES)
def test_other_data_are_what_they_are_called(name: str) -> None:
    family = refit.FAMILIES[name]
    x, y = family.data(refit.ROWS)
    for kind, make in refit.KINDS.items():
        other_x, other_y, width = make(family)
        both = min(len(x), len(other_x))
        np.testing.assert_array_equal(other_x[:both], x[:both])
        same = np.array_equal(other_y[:both], y[:both])
        assert same is (kind != "data far away"), kind
        assert (width == refit.NARROW) is (kind == "a narrower prior")
    assert len(refit.KINDS["a twentieth more rows"](family)[1]) == 1.05 * len(y)


def test_refits_by_kind() -> None:
    def run(kind: str, evaluations: int, apart: float, anew: bool) -> Record:
        figures = {
            "evaluations": evaluations,
            "evaluations of a fresh fit": 1_000,
            "apart": apart,
            "trusted": True,
            "anew": anew,
        }
        return Record("refit", kind, "pyro", "mean", 0, {}, figures=figures)

    kind = "a narrower prior"
    failed = Record("refit", kind, "pyro", "mean", 1, error="RuntimeError: no")
    text = refit.table([run(kind, 100, 0.5, False), run(kind, 300, 1.5, True), failed])
    cells = [each.strip() for each in text.splitlines()[2].split("|")[1:-1]]
    assert cells == ["Pyro", kind, "3", "2", "1", "1", "200", "0.20"]


def test_shares_of_right_draws_are_uniform_and_of_others_not() -> None:
    generator = np.random.default_rng(0)
    truths = generator.normal(size=1_000)
    right = generator.normal(size=(1_000, 99))
    found = {"x": fit_many.shares(right, truths, 0)}
    assert all(0.0 < each < 1.0 for each in found["x"])
    assert fit_many.least_p([{"shares": found}]) > 1e-3
    narrow = {"x": fit_many.shares(0.7 * right, truths, 0)}
    off = {"x": fit_many.shares(right + 0.3, truths, 0)}
    assert max(fit_many.least_p([{"shares": each}]) for each in (narrow, off)) < 1e-6


def test_imports_are_not_of_a_fits_time_and_failed_blocks_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    imports = SimpleNamespace(import_module=order.append)
    clock = SimpleNamespace(process_time=partial(order.append, "clock"))
    host = SimpleNamespace(array=np.asarray)
    parts = {"importlib": imports, "time": clock, "host_of": lambda _: host}
    parts["forget_programs"] = partial(order.append, "forget")
    for name, value in parts.items():
        monkeypatch.setattr(fit_many, name, value)
    monkeypatch.setattr(fit_many, "fitted", lambda *_, **__: order.append("fit"))
    with pytest.raises(TypeError):
        fit_many.measured("fit", "pyro", 1, 0)
    assert order == ["pyro_ext", "forget", "clock", "fit", "clock"]

    def block(number: int, error: str | None) -> Record:
        sizes = {"data sets": 50, "processor seconds": 100.0, "evaluations": 50, "trusted": 49}
        figures = {} if error else {**sizes, "shares": {"mean": np.linspace(0.01, 0.99, 50)}}
        given = {"data sets": 50}
        return Record("fit-many", "fit_many", "pyro", "groups", number, given, figures, error=error)

    row = fit_many.table([block(0, None), block(1, "RuntimeError: no")]).splitlines()[2]
    cells = [each.strip() for each in row.split("|")[3:7]]
    assert cells == ["100", "49", "1", "2.00"]


def test_a_small_run_of_both(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path), "--backend", "pyro"]
    assert not command_line.main(["refit", *out, "--programs", "mean"])
    runs = records.read(tmp_path / "refit.jsonl")
    assert [each.method for each in runs] == list(refit.KINDS)
    assert all(each.figures["apart"] < 1.0 and each.figures["trusted"] for each in runs)
    assert runs[-1].figures["anew"] and not runs[0].figures["anew"]
    assert not command_line.main(["fit-many", *out, "--data-sets", "2", "--alone", "1"])
    text = fit_many.table(records.read(tmp_path / "fit-many.jsonl"))
    cells = [[each.strip() for each in row.split("|")[2:5]] for row in text.splitlines()[2:]]
    assert cells == [["`fit`", "1", "1"], ["`fit_many`", "2", "2"]]
