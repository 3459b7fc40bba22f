"""Curvature of programs in Pyro that is made of draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from ppl_ext.curvature import KRONECKER_STEPS, GaussNewton
from pyro_ext.curvature import ProgramCurvature, gauss_newton
from pyro_ext.curvature.fisher import drawn_values
from pyro_ext.density import LogDensity

torch.set_default_dtype(torch.float64)

X = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 2)))
Z = torch.from_numpy(np.random.default_rng(5).normal(size=(1, 6)))


def test_sweeps_of_one_curvature_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: Any) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros((2, 3)), 1.0).to_event(2))
        with pyro.plate("N", 12, subsample_size=4) as i:
            rate = torch.exp(torch.tanh(x[i] @ w).sum(-1))
            # Its Fisher information is not known.
            pyro.sample("y", dist.Pareto(1.0, rate), obs=2.0 + 0.0 * x[i, 0])

    drawn = []

    def spy(output: Any, *rest: Any) -> Any:
        values = drawn_values(output, *rest)
        drawn.append(torch.stack(list(values)).numpy().copy())
        return values

    target = LogDensity(model, (X,), data_chunk=6)
    data = target.bind(X)
    found = ProgramCurvature(target, data, GaussNewton("kfac"))
    monkeypatch.setattr(gauss_newton, "drawn_values", spy)
    found.at(target, Z, data, None)
    first, second = drawn[:2]
    assert (first != second).any()
    for sweep in range(2, len(drawn), 2):
        np.testing.assert_array_equal(drawn[sweep : sweep + 2], [first, second])
    # One sweep more looks at the ranks of the rows.
    assert len(drawn) == 2 * (2 * KRONECKER_STEPS + 1)
