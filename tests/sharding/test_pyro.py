"""Sharding in Pyro: layouts equal one process, states go from one to another, ranks may be lost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sharding import pyro_processes
from tests.sharding.pyro_jobs import ENGINES, LAYOUTS, LOADED
from tests.sharding.rounding import TOLERANCE, allowed

DIFFERENT = (
    *("arguments", "seed", "options of the run", "settings", "program"),
    "options of the fit",
)
#: Of the quick tests, one engine of particles and one of a guide.
QUICK = ("SVGD", "ProximalScoreVI")


def jobs_of(
    engines: Any, layouts: Any, precisions: Any, *, judged: bool = True
) -> dict[str, dict[str, Any]]:
    return {
        f"{engine} | {layout} | {precision}": {
            "job": "equality",
            "engine": engine,
            "layout": layout,
            "precision": precision,
            "judged": judged,
        }
        for engine in engines
        for layout in layouts
        for precision in precisions
    }


def loaded_jobs(engines: Any, layouts: Any) -> dict[str, dict[str, Any]]:
    return {
        f"{engine} | {layout}, loader | float64": {
            "job": "loaded",
            "engine": engine,
            "layout": layout,
        }
        for engine in engines
        for layout in layouts
    }


def check_equality(found: list[dict[str, Any]], label: str) -> None:
    """See that a layout equals one process, and that all processes have the same."""
    results = [each[label] for each in found]
    assert not any(isinstance(each, str) for each in results), results
    precision = label.rpartition(" | ")[2]
    for name, expected in results[0]["alone"].items():

        def apart(own: torch.Tensor, expected: torch.Tensor = expected) -> float:
            size = expected.abs().nan_to_num().amax().clamp_min(1.0)
            return float(((own - expected.to(own.dtype)) / size).abs().nan_to_num().amax())

        most = allowed(precision, (apart(each[name]) for each in results[0].get("changed", ())))
        for each in results:
            own = each["sharded"][name]
            assert torch.equal(own.nan_to_num(), results[0]["sharded"][name].nan_to_num()), name
            assert apart(own) <= most, (label, name, apart(own), most)
            assert torch.equal(own.isnan(), expected.isnan()), (label, name)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes found in the quick jobs; the second is killed in the last."""
    jobs = jobs_of(QUICK, ("particles", "rows"), ("float64",), judged=False)
    jobs["SVGD | particles | float64"]["judged"] = True  # as users have it
    jobs |= {"resumption": {"job": "resumption", "engine": "SVGD", "layout": "particles"}}
    jobs |= {each: {"job": "disagreement", "what": each} for each in DIFFERENT}
    jobs |= {"seeds": {"job": "seeds"}}
    jobs |= loaded_jobs(("SVGD",), ("rows",))
    jobs |= {f"apart, {what}": {"job": "apart", "what": what} for what in ("rows", "scale")}
    jobs |= {"kernels | all to all | float64": {"job": "kernels"}}
    for layout in ("particles", "rows", "all to all"):
        jobs[f"traffic, {layout}"] = {
            "job": "traffic",
            "engine": "SVGD",
            "layout": layout,
            "dim": 60,
        }
    jobs |= {
        f"{job} | particles | float64": {"job": job, "layout": "particles"}
        for job in ("after_the_fit", "chains")
    }
    jobs |= {"killed": {"job": "lost", "how": "killed"}}
    return pyro_processes.run(tmp_path_factory.mktemp("two"), 2, jobs)


@pytest.mark.parametrize("label", jobs_of(QUICK, ("particles", "rows"), ("float64",)))
def test_a_layout_equals_one_process(two: list[dict[str, Any]], label: str) -> None:
    check_equality(two, label)


@pytest.mark.parametrize("label", loaded_jobs(("SVGD",), ("rows",)))
def test_batches_of_a_loader_are_divided(two: list[dict[str, Any]], label: str) -> None:
    check_equality(two, label)


def test_batches_that_cannot_be_divided_are_refused(two: list[dict[str, Any]]) -> None:
    """Those of a DistributedSampler, and those whose plate does not scale them up."""
    for found in two:
        assert "the same loader" in found["apart, rows"] and "[1]" in found["apart, rows"]
        assert "each would count as all the data" in found["apart, scale"]


@pytest.mark.parametrize("job", ["after_the_fit", "chains"])
def test_draws_on_a_layout_equal_those_of_one_process(two: list[dict[str, Any]], job: str) -> None:
    check_equality(two, f"{job} | particles | float64")


def check_resumption(found: list[dict[str, Any]], label: str) -> None:
    for each in found:
        result = each[label]
        assert not isinstance(result, str), result
        assert bool(result["saved once"])
        assert torch.equal(result["again"], result["through"])
        for other in ("alone", "taken"):
            torch.testing.assert_close(result[other], result["through"], rtol=1e-11, atol=1e-11)


def test_a_state_goes_on_exactly_and_on_other_layouts(two: list[dict[str, Any]]) -> None:
    check_resumption(two, "resumption")


@pytest.mark.parametrize("what", DIFFERENT)
def test_processes_that_differ_are_told_so(two: list[dict[str, Any]], what: str) -> None:
    for found in two:
        assert found[what].startswith("ArgumentError: Expected all processes"), found[what]
        assert f"another {what} in [1]" in found[what]


def test_engines_without_a_seed_start_alike(two: list[dict[str, Any]]) -> None:
    for name, value in two[0]["seeds"].items():
        assert torch.equal(value, two[1]["seeds"][name])


def test_kernels_see_coordinates_of_all_particles(two: list[dict[str, Any]]) -> None:
    check_equality(two, "kernels | all to all | float64")
    said = two[0]["kernels | all to all | float64"]["refused"]
    assert said.startswith("Expected a kernel whose coordinates can be divided among processes")


def test_a_step_moves_no_more_numbers_than_it_must(two: list[dict[str, Any]]) -> None:
    # Particles and their scores once; scores once; or, all to all, three halves of P D numbers,
    # beside which sums of P^2 are short.
    for layout, least in (("particles", 2.0), ("rows", 1.0), ("all to all", 1.5)):
        moved = two[0][f"traffic, {layout}"]
        assert not isinstance(moved, str), moved
        assert least <= moved["all"] <= 1.1 * least, moved


def check_lost(found: dict[str, Any], how: str) -> None:
    assert not isinstance(found[how], str), found[how]
    assert found[how] == {"seconds": found[how]["seconds"], "saved": 2.0, "said": 1.0}


def test_a_killed_process_ends_the_run_in_the_others(two: list[dict[str, Any]]) -> None:
    assert "killed" not in two[1]
    check_lost(two[0], "killed")
    assert two[0]["killed"]["seconds"] < 60.0


@pytest.mark.slow
def test_a_stalled_process_ends_the_run_in_the_others(tmp_path: Path) -> None:
    found = pyro_processes.run(tmp_path, 2, {"stalled": {"job": "lost", "how": "stalled"}})
    check_lost(found[0], "stalled")
    assert 5.0 <= found[0]["stalled"]["seconds"] < 60.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_engine_on_every_layout(tmp_path: Path, layout: str, precision: str) -> None:
    jobs = jobs_of(ENGINES, (layout,), (precision,))
    found = pyro_processes.run(tmp_path, math.prod(LAYOUTS[layout][0]), jobs)
    for label in jobs:
        check_equality(found, label)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_draws_after_a_fit_and_fits_on_every_layout(tmp_path: Path) -> None:
    jobs = {
        f"{job} | {layout} | float64": {"job": job, "layout": layout}
        for job in ("after_the_fit", "chains", "whole_fit")
        for layout in ("particles, 4", "rows, 4", "both")
    }
    jobs |= loaded_jobs(LOADED, ("rows, 4", "both"))
    jobs["fit | both, loader | float64"] = {"job": "whole_fit", "layout": "both", "loader": True}
    found = pyro_processes.run(tmp_path, 4, jobs)
    for label in jobs:
        check_equality(found, label)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_state_goes_on_exactly_and_on_other_layouts(tmp_path: Path) -> None:
    jobs = {engine: {"job": "resumption", "engine": engine, "layout": "both"} for engine in ENGINES}
    found = pyro_processes.run(tmp_path, 4, jobs)
    for label in jobs:
        check_resumption(found, label)
