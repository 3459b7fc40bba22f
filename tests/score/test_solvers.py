"""Options of the proximal solvers: checks, choice by the guide, defaults; optimizers by site."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.score_matching.options import (
    LEARNING_RATE,
    STEPS,
    GradientSteps,
    Regression,
    as_solver,
    kind_of,
    match_sites,
)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (GradientSteps, {"num_samples": 0}, "num_samples to be an int >= 1"),
        (GradientSteps, {"num_inner_steps": 0}, "num_inner_steps to be an int >= 1"),
        (GradientSteps, {"num_inner_steps": 2.0}, "num_inner_steps to be an int >= 1"),
        (GradientSteps, {"proximal": "cosine"}, "Expected proximal to be 'linear'"),
        (GradientSteps, {"proximal": -1.0}, "Expected proximal"),
        (GradientSteps, {"sample_reuse": 0}, "sample_reuse to be an int >= 1"),
        (GradientSteps, {"clip_norm": 0.0}, "clip_norm to be a finite number > 0"),
        (Regression, {"num_samples": 0}, "num_samples to be an int >= 1"),
        (Regression, {"decay": 0.0}, "decay to be a finite number > 0 and <= 1"),
        (Regression, {"decay": 1.01}, "decay to be a finite number > 0 and <= 1"),
        (Regression, {"trust": 1.0}, "trust to be a finite number > 1"),
    ],
)
def test_options_out_of_range(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(**options)


def test_limits_of_options_and_numbers_of_numpy_are_accepted() -> None:
    assert Regression(decay=1.0).decay == 1.0
    assert GradientSteps(num_samples=np.int64(3), clip_norm=np.float32(0.5)).num_samples == 3
    assert GradientSteps(proximal=0).weight(1, 2, 0.5) == 0


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Regression().decay = 0.5  # type: ignore[misc]


def test_the_solver_is_given_by_options_by_name_or_by_the_guide() -> None:
    given = GradientSteps(num_inner_steps=3)
    assert as_solver(given, "AutoDiagonalNormal", True) is given
    assert as_solver("gradient", "AutoDiagonalNormal", True) == GradientSteps()
    assert as_solver("regression", "AutoDiagonalNormal", True) == Regression()
    assert as_solver(None, "AutoDiagonalNormal", True) == Regression()
    assert as_solver(None, "AutoIAFNormal", False) == GradientSteps()


def test_solvers_that_do_not_exist_or_do_not_serve_the_guide_are_refused() -> None:
    for wrong in ("newton", 3, GradientSteps):
        with pytest.raises(ArgumentError, match=r"one of 'gradient', 'regression' or Gradient"):
            as_solver(wrong, "AutoDiagonalNormal", True)  # type: ignore[arg-type]
    for solver in ("regression", Regression(trust=2.0)):
        with pytest.raises(ArgumentError, match="found AutoIAFNormal. Use solver='gradient'"):
            as_solver(solver, "AutoIAFNormal", False)  # type: ignore[arg-type]


def test_draws_of_the_closed_form_come_in_groups() -> None:
    assert Regression().resolved(6).num_samples == 6
    assert Regression(num_samples=12).resolved(6).num_samples == 12
    with pytest.raises(ArgumentError, match="an even num_samples in Regression.*found 3. Use 2"):
        Regression(num_samples=3).resolved(2)
    with pytest.raises(ArgumentError, match="a num_samples that 6 divides"):
        Regression(num_samples=4).resolved(6)


def test_defaults_of_gradient_steps_fill_what_is_left_open() -> None:
    steps = GradientSteps().resolved(STEPS["flexible"])
    assert (steps.num_samples, steps.num_inner_steps, steps.clip_norm) == (8, 2, 1.0)
    # The limit belongs to the default optimizer.
    assert GradientSteps(object()).resolved(STEPS["flexible"]).clip_norm is None
    given = GradientSteps(num_samples=3, num_inner_steps=4, clip_norm=0.5)
    assert given.resolved(STEPS["other"]) == given
    assert STEPS["diagonal"].learning_rate == LEARNING_RATE == 0.01


@pytest.mark.parametrize(
    ("structure", "mixture", "planar_flow", "kind"),
    [
        ("diagonal", None, False, "diagonal"),
        ("full", None, False, "flexible"),
        ("layer_low_rank", None, False, "flexible"),
        (None, "full", False, "mixture"),
        (None, "diag", False, "mixture"),
        (None, "low_rank", False, "flexible"),
        (None, None, True, "flexible"),
        (None, None, False, "other"),
    ],
)
def test_kinds_of_guides(structure: Any, mixture: Any, planar_flow: bool, kind: str) -> None:
    assert kind_of(structure, mixture, planar_flow) == kind


def test_the_proximal_weight() -> None:
    assert GradientSteps().weight(3, 12, 0.25) == 0.25
    assert GradientSteps(proximal=0.4).weight(3, 12, 0.25) == 0.4
    assert GradientSteps(proximal=lambda t, total: t + total).weight(3, 12, 0.25) == 15
    with pytest.raises(ArgumentError, match=r"proximal\(t, T\) to return one number, found 'x'"):
        GradientSteps(proximal=lambda t, total: "x").weight(3, 12, 0.25)


def test_sites_belong_to_the_first_pattern_that_they_match_and_the_rest_to_the_star() -> None:
    sites = {"a.weight": 0, "a.bias": 0, "b.bias": 0}
    assert match_sites(("*", "*.bias"), sites) == {
        "a.weight": "*",
        "a.bias": "*.bias",
        "b.bias": "*.bias",
    }
    for patterns, message in [
        ((1, "*"), r"patterns of site names .*\[1, '\*'\]"),
        ((), "found an empty mapping"),
        (("*.bias",), r"found none of .* for \['a.weight'\]. Add '\*'"),
        (("*.bias", "b.*", "*"), r"patterns that match latent sites, found \['b.\*'\]"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            match_sites(patterns, sites)  # type: ignore[arg-type]
