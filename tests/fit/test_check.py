"""``check`` on draws that are right, and on planted wrong ones, in both packages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppl_ext.errors import ArgumentError
from ppl_ext.fit.check import check
from ppl_ext.fit.fit import Fit
from ppl_ext.fit.verdict import SiteFigures, Verdict
from tests.backends import from_zoo
from tests.fit.test_fit import fit_of

DIM = 5


def reference(generator: np.random.Generator, number: int = 1_600) -> Fit:
    """A fit that ended with independent draws of a Gamma distribution."""
    figures = {"x": SiteFigures(float(number), float(number), 1.0)}
    verdict = Verdict("exact", ("R-hat 1.0",), figures)
    return Fit({"x": generator.gamma(3.0, size=(number, DIM))}, verdict, 16)


def test_right_draws_are_confirmed() -> None:
    """Of 100 sets of 400 draws at most three are refused."""
    generator = np.random.default_rng(0)
    verdicts = [
        check({"x": generator.gamma(3.0, size=(400, DIM))}, reference(generator))
        for _ in range(100)
    ]
    assert sum(not verdict.trusted for verdict in verdicts) <= 3
    assert verdicts[0].level == "approximate" and "agree with exact chains" in str(verdicts[0])
    assert Verdict.from_json(verdicts[0].as_json()) == verdicts[0]


@pytest.mark.parametrize("fault", ["shifted", "narrow", "wide", "half", "spikes", "not a number"])
def test_wrong_draws_are_refused(fault: str) -> None:
    generator = np.random.default_rng(1)
    caught = 0
    for _ in range(20):
        x = generator.gamma(3.0, size=(1_000, DIM))
        mean, deviation = 3.0, np.sqrt(3.0)
        if fault == "shifted":
            x[:, 2] += 0.4 * deviation
        elif fault == "narrow":
            x[:, 2] = mean + 0.7 * (x[:, 2] - mean)
        elif fault == "wide":
            x[:, 2] = mean + 1.4 * (x[:, 2] - mean)
        elif fault == "half":
            x[:, 2] = np.minimum(x[:, 2], 3.0)
        elif fault == "spikes":
            # Mean and standard deviation are right.
            x[:, 2] = mean + deviation * np.sign(generator.normal(size=1_000))
        else:
            x[3, 2] = np.nan
        verdict = check({"x": x}, reference(generator))
        caught += not verdict.trusted and "'x[2]'" in verdict.reasons[1]
    assert caught == 20


def test_sites_and_shapes_must_be_the_models() -> None:
    generator = np.random.default_rng(2)
    with pytest.raises(ArgumentError, match="found none of 'x'"):
        check({"y": np.zeros(3)}, reference(generator))
    with pytest.raises(ArgumentError, match=r"shape \(draws, 5\)"):
        check({"x": np.zeros((3, 4))}, reference(generator))


def test_chains_that_could_not_tell_are_said() -> None:
    generator = np.random.default_rng(3)
    lost = reference(generator)
    lost.verdict = Verdict("not trusted", ("Chains disagree.",))
    verdict = check({"x": generator.gamma(3.0, size=(400, DIM))}, lost)
    assert not verdict.trusted and verdict.reasons == ("Chains could not tell:", "Chains disagree.")


def test_a_program_is_checked(backend: Any) -> None:
    model, args, _ = from_zoo(backend, "conjugate_normal")
    fit = fit_of(backend, model, *args, seed=3)
    key = () if backend.is_pyro else (backend.key(5),)
    options = {"progress_bar": False, **({"seed": 5} if backend.is_pyro else {})}
    right = backend.public.check(*key, fit, model, *args, **options)
    assert right.trusted and right.level == "approximate" and right.evaluations > 0
    wide = {name: 2.0 * value for name, value in fit.draws.items()}
    assert not backend.public.check(*key, wide, model, *args, **options).trusted
    with pytest.raises(ArgumentError, match="Expected draws as a mapping"):
        backend.public.check(*key, 3.0, model, *args, **options)
