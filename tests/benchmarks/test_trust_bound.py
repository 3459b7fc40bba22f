"""Stated bounds beside measured distances."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.records import Record
from benchmarks.trust import bound
from ppl_ext.chains.coupling import Coupled


def figures(**other: Any) -> dict[str, Any]:
    """Of a fit whose bound is 5 %."""
    told = ["All 64 pairs met: starts change the probability of any event by at most 5.0%."]
    stages = [
        {"name": "chains", "evaluations": 900},
        {"name": "pairs of chains", "evaluations": 100},
    ]
    known: dict[str, Any] = {"told": told, "effective": 500.0, "dimension": 2, "evaluations": 1_000}
    return {**known, "stages": stages, "Kolmogorov": 0.04, **other}


def test_a_bound_is_read_as_verdicts_state_it() -> None:
    met = Coupled.of(np.full(64, 7.0), 5, 100, 200)
    found = bound.bound_of(figures(told=["R-hat 1.003.", met.told]))
    assert found is not None and met.bound is not None and abs(found - met.bound) < 1e-3
    assert bound.bound_of(figures(told=["Pairs have not met."])) is None


def test_a_distance_beyond_the_bound_and_sampling_is_seen() -> None:
    # sqrt(log(2 * 2 / 0.01) / (2 * 500)) = 0.077.
    assert not bound.is_below(figures(Kolmogorov=0.12), 0.05)
    assert bound.is_below(figures(Kolmogorov=0.13), 0.05)
    assert not bound.is_below(figures(Kolmogorov=0.13, effective=50.0), 0.05)  # counts as 400


def test_bounds_by_reach() -> None:
    runs = [
        Record("trust", "fit", "pyro", "a", 0, {}, figures=figures()),
        Record("trust", "fit", "pyro", "b", 0, {}, figures=figures(reach=0.5)),
        Record("trust", "fit", "pyro", "c", 0, {}, figures=figures(reach=0.0, Kolmogorov=0.6)),
        Record("trust", "fit", "pyro", "d", 0, {}, figures=figures(told=[])),
        Record("trust", "nuts", "pyro", "a", 0, {}, figures=figures()),
    ]
    rows = [line.split("|")[2:8] for line in bound.page_table(runs).splitlines()[2:]]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["1 % and more", "3", "2", "0", "0.050", "0.10"],
        ["below 1 %", "1", "1", "1", "0.050", "0.10"],
    ]
